"""Resume from the last checkpoint, step by step; print each step once its checkpoint is saved."""

import asyncio
import sys
from pathlib import Path

import agentbus
from tests.support.processes import say


async def main(path: str, root: str) -> None:
    async with agentbus.connect(path) as bus, bus.agent("stepper", type="worker", takeover=True) as agent:
        last = await agent.restore("steps")
        step = last.snapshot["step"] if last is not None else 0
        say("begins", step)
        while True:
            step += 1
            output = Path(root) / "output"
            output.write_text(f"step {step}")
            async with agent.unit() as unit:
                unit.send("witness", "progress_update", step)
                unit.checkpoint("steps", {"step": step, "ballast": "x" * 20_000}, files=["output"], root=root, keep=3)
            say("saved", step)


asyncio.run(main(*sys.argv[1:]))
