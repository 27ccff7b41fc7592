"""The processes of the demo: a coordinator that plans, and workers. AGENTBUS_URL names the bus.

Each can be killed at any moment. A worker commits the acknowledgement, its result, its checkpoint and the completion
notification together. It prints "done" only after that commit has returned.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from typing import Any

import anyio

import agentbus
from agentbus import Agent, Session


class DemoProcess:
    """A process of the team, on the bus at ``url``. ``lines`` are the lines that it has printed."""

    def __init__(self, name: str, url: str, *arguments: str) -> None:
        self.name = name
        self.lines: list[list[str]] = []
        self._process = subprocess.Popen(
            [sys.executable, "-m", "agentbus.cli.demo.team", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            # Not an argument, which other users can read: it may contain a password.
            env={**os.environ, "AGENTBUS_URL": url},
        )
        self.pid = self._process.pid
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def reports(self, first: str) -> list[list[str]]:
        """Return the rest of the lines that start with this word."""
        return [rest for word, *rest in list(self.lines) if word == first]

    @property
    def code(self) -> int | None:
        return self._process.poll()

    def kill(self) -> None:
        """Send SIGKILL, without waiting for the process."""
        self._process.kill()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()

    def _read(self) -> None:
        for line in self._process.stdout or ():
            self.lines.append(line.split())


class Processes:
    """All processes that were started."""

    def __init__(self) -> None:
        self.started: list[DemoProcess] = []

    def start(self, name: str, url: str, *arguments: str) -> DemoProcess:
        process = DemoProcess(name, url, *arguments)
        self.started.append(process)
        return process

    def close(self) -> None:
        """End all processes."""
        for process in self.started:
            process.close()


TASKS = 24
PHASES = ("design", "implement", "test", "review")


def names(suffix: str) -> dict[str, str]:
    """Return the ids of the demo, with a suffix on a bus that is shared."""
    return {name: f"{name}{suffix}" for name in ("coordinator", "workers", "demo")}


async def coordinate(suffix: str) -> None:
    """Plan, send the tasks, collect the completions, and stop the workers."""
    ids = names(suffix)
    async with (
        agentbus.connect() as bus,
        bus.session("demo", id=ids["demo"], expects={ids["coordinator"]: "plan"}) as session,
        session.agent(ids["coordinator"], type="coordinator") as me,
    ):
        last = await me.restore("progress") if me.restored else None
        completed: list[str] = last.snapshot["completed"] if last else []
        report("ready", last.id if last else 0, len(completed))
        if last is None:
            await plan(me, session, ids["workers"])
        tasks = await session.document("plan").latest()
        while len(completed) < len(tasks):
            message = await me.receive()
            if message is None or message.type != "completion_notification":
                # A notification of a failed worker; its task is redelivered without the coordinator.
                if message is not None:
                    await message.ack()
                continue
            async with message as unit:
                completed.append(message.payload["task"])
                unit.checkpoint("progress", {"completed": completed}, keep=2)
                unit.progress(100 * len(completed) // len(tasks))
        await session.progress(100)
        workers = await bus.agents.list(session=session.id, type="worker", status=["running", "suspect"])
        for worker in workers.items:
            await me.send(worker.id, "control", "stop")


async def plan(me: Agent, session: Session, pool: str) -> None:
    """Commit the plan, all its tasks, and the first checkpoint together."""
    tasks = [f"{PHASES[number % len(PHASES)]}-{number // len(PHASES) + 1}" for number in range(TASKS)]
    async with me.unit() as unit:
        unit.document("plan", tasks)
        for task in tasks:
            unit.send(agentbus.pool(pool), "task_assignment", {"task": task})
        unit.checkpoint("progress", {"completed": []}, keep=2)


async def work(suffix: str, name: str, pace: float) -> None:
    """Process tasks until the coordinator sends stop."""
    ids = names(suffix)
    async with (
        agentbus.connect() as bus,
        bus.agent(name, type="worker", session=ids["demo"], pools=[ids["workers"]]) as me,
    ):
        last = await me.restore("work") if me.restored else None
        done: list[str] = last.snapshot["done"] if last else []
        report("ready", last.id if last else 0, len(done))
        async for message in me.inbox():
            if message.type == "control":
                await message.ack()
                return
            task: str = message.payload["task"]
            async with message as unit:
                await anyio.sleep(pace)
                done.append(task)
                unit.state_of(ids["demo"]).increment(task)
                unit.checkpoint("work", {"done": done}, keep=2)
                unit.send(message.sender, "completion_notification", {"task": task})
            report("done", task)


def report(*words: object) -> None:
    """Print a line for the process that runs the demo. It is in the pipe when this returns."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def exit_when_input_ends() -> None:
    """Exit when standard input ends: the process that runs the demo is gone."""

    def wait() -> None:
        while os.read(0, 4096):
            pass
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def main(role: str, *arguments: Any) -> None:
    exit_when_input_ends()
    if role == "coordinator":
        anyio.run(coordinate, *arguments)
    else:
        suffix, name, pace = arguments
        anyio.run(work, suffix, name, float(pace))


if __name__ == "__main__":
    main(*sys.argv[1:])
