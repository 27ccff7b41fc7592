"""Handle one message in a complete unit and be killed within it: a process for each input line.

``statement N`` kills it before the N-th statement of the commit, ``after`` right after the COMMIT, ``moment N``
N microseconds after the block started to end.
"""

import asyncio
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import agentbus
from agentbus import Bus
from agentbus.engine.sqlite.engine import SQLiteEngine
from tests.support.processes import say


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Executioner:
    """Kills the process at a moment of the commit; notes the statements before it."""

    def __init__(self, bus: Bus, how: str, number: int) -> None:
        assert isinstance(bus._engine, SQLiteEngine)
        assert bus._engine._writer is not None
        self._writer = bus._engine._writer
        self._how = how
        self._number = number
        self.seen: list[str] = []

    def arm(self) -> None:
        if self._how == "statement":
            self._writer._connection._conn.set_trace_callback(self._note)
        elif self._how == "after":
            commit = self._writer._runner._commit

            def commit_and_die(*arguments: Any) -> list[str]:
                channels = commit(*arguments)
                die()
                return channels

            setattr(self._writer._runner, "_commit", commit_and_die)  # noqa: B010 - mypy minds a method
        else:
            threading.Thread(target=self._wait, daemon=True).start()

    def _note(self, sql: str) -> None:
        if "COMMIT" in self.seen:
            # The log is preallocated, which is another transaction.
            return
        self.seen.append(sql.split(None, 1)[0])
        if len(self.seen) == self._number:
            say("at", *self.seen[-1:])
            die()

    def _wait(self) -> None:
        time.sleep(self._number / 1e6)
        die()


async def live(path: str, root: Path, how: str, number: int, value: int) -> None:
    async with agentbus.connect(path, beat_every=3600) as bus:
        handler = await bus.register("handler", type="worker", session="s", pools=["jobs"])
        message = await handler.receive(timeout=10)
        assert message is not None
        (root / "plan.md").write_text(f"the plan {value}")
        async with message as unit:
            unit.reply(message, "coordination_response", value)
            unit.send("out", "note", value)
            unit.publish("news", "note", value)
            unit.state.set("last", value)
            unit.state.increment("handled")
            unit.state.delete(f"draft-{message.payload}")
            unit.state_of("shared").set("by", value)
            unit.state_of("session:s").set("phase", value)
            unit.checkpoint("half", value, files=["plan.md"], root=root)
            unit.document("output", value)
            unit.progress(50, str(value))
            await unit._prepare()
            executioner = Executioner(bus, how, number)
            executioner.arm()
        say("returned", len(executioner.seen))
        die()


def main(path: str, root: str) -> None:
    say("ready")
    for value, line in enumerate(sys.stdin, 1):
        how, number = line.split()
        child = os.fork()
        if child == 0:
            asyncio.run(live(path, Path(root), how, int(number), value))
        _, status = os.waitpid(child, 0)
        say("died", value, os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main(*sys.argv[1:])
