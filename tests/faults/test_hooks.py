"""Hooks of a coding agent under kill -9: each message enters its context once."""

from __future__ import annotations

import os
import random
import statistics
import time
from collections import Counter
from pathlib import Path

import pytest

from agentbus.cli.clients import AFTER_TOOL, PROMPT, STOP
from agentbus.sync.bus import BlockingBus, open_bus
from tests.faults.rows import integrity, no_process_writes
from tests.support import zygote
from tests.support.coding_agents import CodingAgent, messages
from tests.support.figures import Figure, Scale

_EVENTS = (AFTER_TOOL,) * 6 + (STOP, PROMPT)


class Model:
    """Act as the model of a coding agent: read the context, and acknowledge what was sent."""

    def __init__(self, client: CodingAgent, bus: BlockingBus, agent: str) -> None:
        self.client = client
        self.bus = bus
        self.agent = agent
        self.read: Counter[str] = Counter()
        self.reminders = 0

    def meet(self, event: str, kill: float | None = None) -> bool:
        """Let an event happen; return whether something has entered the context."""
        fields = {"stop_hook_active": False} if event == STOP else {}
        answer = self.client.fire(event, kill=kill, **fields)
        found = messages("\n".join([*answer["context"], *answer["stop"]]))
        for one in found:
            self.read[one["payload"]["name"]] += 1
            self.reminders += one.get("reminder", False)
            self.bus.agent(self.agent).ack(one["lease"])
        return bool(found)


@pytest.mark.slow
@pytest.mark.fault(27)
@pytest.mark.parametrize("client", ["claude"])
def test_a_message_enters_a_context_once_wherever_its_hook_is_killed(
    client: str, short: Path, figure: Figure, scale: Scale
) -> None:
    total = scale(10, 500, 5000)
    chance = random.Random(scale.seed(20261118))
    (short / "project").mkdir()
    (short / "home").mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AGENTBUS_")} | {
        "HOME": str(short / "home"),
        "PATH": f"{Path(zygote.COMMAND).parent}{os.pathsep}{os.environ['PATH']}",
    }
    project = short / "project"
    with open_bus(project / ".agentbus", create=True) as bus:
        done = zygote.run([zygote.COMMAND, "setup", client, "--project"], cwd=project, env=environment, timeout=60)
        assert done.returncode == 0, done.stderr
        sender = bus.register("sender", type="worker")
        with CodingAgent(client, project, environment) as agent:
            agent.start()
            (name,) = [one.id for one in bus.do(bus.agents.list()).items if one.id != "sender"]
            model = Model(agent, bus, name)
            sent = 0
            took: list[float] = []
            rounds = 0
            # How often a kill at random finds the hook alive depends on the load, so the number of rounds does too.
            deadline = time.monotonic() + scale(90, 1800, 3000)
            while sent < total or rounds <= total or agent.killed <= total // 5:
                assert time.monotonic() < deadline, f"{agent.killed} kills and {sent} messages in {rounds} rounds"
                for _ in range(chance.choice((0, 1, 1, 3))):
                    sender.send(name, "note", {"name": f"n-{sent}"}, priority=chance.choice((5, 7, 8, 9)))
                    sent += 1
                killed = len(took) >= 3 and chance.random() < 0.6
                # At any moment of its life, and shortly before and after its end.
                moment = chance.uniform(0, 1.1) * statistics.median(took) if killed else None
                begun = time.perf_counter()
                model.meet(chance.choice(_EVENTS) if killed else AFTER_TOOL, moment)
                if not killed:
                    took = [*took[-9:], time.perf_counter() - begun]
                rounds += 1
            while model.meet(PROMPT) or model.meet(STOP):
                pass
            lost = {f"n-{i}" for i in range(sent)} - model.read.keys()
            doubled = {one: count for one, count in model.read.items() if count != 1}
            figure(
                f"{client}: in the context {statistics.median(took) * 1000:.0f} ms after the tool,"
                f" {model.reminders} when the agent stopped",
                kills=agent.killed, messages=sent, lost=len(lost), duplicated=len(doubled),
            )  # fmt: skip
            assert (lost, doubled) == (set(), {})
        counts = bus.stats().messages
        assert counts.get("acked") == sent, counts
    no_process_writes(project / ".agentbus")
    assert integrity(project / ".agentbus") == "ok"
