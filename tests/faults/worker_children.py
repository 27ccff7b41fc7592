"""Start children by one of multiprocessing's start methods, with and without an open bus; print their reports."""

import asyncio
import json
import multiprocessing
import os
import sys
import threading
import warnings
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.connection import Connection
from typing import Any

import agentbus
from agentbus.errors import AgentBusError

DEADLINE = 30.0
NOTES = agentbus.pool("notes")
JOBS = agentbus.pool("jobs")
ENGINES = ("agentbus.engine.sqlite.engine", "agentbus.engine.postgres.engine")
inherited: agentbus.Bus | None = None
"""The bus of the parent, as a forked child finds it."""


# In the children


def send(url: str, name: str) -> str:
    """Send a message on a bus of its own."""

    async def work() -> None:
        async with agentbus.connect(url) as bus, bus.agent(name, type="worker") as agent:
            await agent.send(NOTES, "note", message_id=name)

    asyncio.run(work())
    return "sent"


def report(url: str, name: str, answer: Connection) -> None:
    """Report what using the bus of the parent comes to, if there is one, and then a bus of its own."""
    reports: list[str | None] = []
    for use in (lambda: None if inherited is None else asyncio.run(inherited.stats()), lambda: send(url, name)):
        try:
            done = use()
        except AgentBusError as error:
            reports.append(error.code)
        else:
            reports.append(str(done))
    answer.send(reports)


def leave_open(url: str, name: str, answer: Connection) -> None:
    """End without closing the bus."""
    asyncio.run(agentbus.connect(url).__aenter__())
    answer.send("open")


def hold(url: str, name: str, answer: Connection) -> None:
    """Receive a message, and keep it until this process is killed."""

    async def work() -> None:
        async with agentbus.connect(url) as bus, bus.agent(name, type="worker", pools=[JOBS]) as agent:
            await agent.send(JOBS, "note", message_id=f"job-of-{name}")
            message = await agent.receive(timeout=DEADLINE)
            answer.send(message is not None and message.message_id)
            await asyncio.Event().wait()

    asyncio.run(work())


# In the parent


class Child:
    """A child that answers once."""

    def __init__(self, context: Any, target: Any, url: str, name: str, *, daemon: bool = False) -> None:
        self.answer, theirs = context.Pipe(duplex=False)
        self.process = context.Process(target=target, args=(url, name, theirs), daemon=daemon)
        self.process.start()
        theirs.close()

    def result(self) -> list[Any]:
        """Return its answer and its exit code, which is None if it does not end."""
        answer = self.answer.recv()
        self.process.join(DEADLINE)
        return [answer, self.process.exitcode]

    def kill(self) -> Any:
        """Kill it after its answer; if it is a child of this process, leave it a zombie."""
        answer = self.answer.recv()
        self.process.kill()
        try:
            os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)
        except ChildProcessError:
            # It is a child of the fork server.
            self.process.join(DEADLINE)
        return answer


def fork_in_thread(bus: agentbus.Bus) -> list[Any]:
    """Fork in another thread than that of the event loop; return what using the parent's bus comes to in the child."""
    reading, writing = os.pipe()
    pids: list[int] = []

    def fork() -> None:
        pid = os.fork()
        if pid == 0:
            try:
                asyncio.run(bus.stats())
            except AgentBusError as error:
                os.write(writing, error.code.encode())
            finally:
                os._exit(0)
        pids.append(pid)

    thread = threading.Thread(target=fork)
    thread.start()
    thread.join()
    _, status = os.waitpid(pids[0], 0)
    os.close(writing)
    with open(reading) as pipe:
        return [pipe.read(), os.waitstatus_to_exitcode(status)]


async def open_and_start(context: Any, url: str) -> dict[str, Any]:
    """Start children while this process has the bus open."""
    global inherited  # noqa: PLW0603
    found: dict[str, Any] = {}
    async with agentbus.connect(url) as bus, bus.agent("parent", type="worker", pools=[JOBS]) as parent:
        job = await parent.receive(timeout=0)
        assert job is not None
        found["taken over"] = job.message_id
        await job.ack()
        inherited = bus
        # Not on a thread of an executor: a child that is forked there joins its own thread at its end, and fails.
        found["while open"] = await asyncio.to_thread(Child(context, report, url, "while-open").result)
        found["thread"] = await asyncio.to_thread(fork_in_thread, bus)
        with ProcessPoolExecutor(1, mp_context=context) as pool:
            try:
                found["pool"] = await asyncio.get_running_loop().run_in_executor(pool, send, url, "pool")
            except AgentBusError as error:
                found["pool"] = error.code
        # The parent is as it was.
        await parent.send(NOTES, "note", message_id="parent")
    inherited = None
    return found


async def declare(url: str) -> None:
    async with agentbus.connect(url) as bus:
        await bus.declare(NOTES, JOBS)


def main(url: str, method: str) -> None:
    # Of a fork in a process with threads; in the children too.
    warnings.simplefilter("ignore")
    os.environ["PYTHONWARNINGS"] = "ignore"
    context: Any = multiprocessing.get_context(method)
    context.set_forkserver_preload(["agentbus.api.bus", *ENGINES])
    # Opened and closed before: nothing of that may be left for the children.
    asyncio.run(declare(url))
    children = [Child(context, target, url, "before") for target in (report, leave_open)]
    found: dict[str, Any] = {"before": [child.result() for child in children]}
    killed = Child(context, hold, url, "killed")
    found["killed"] = killed.kill()
    found |= asyncio.run(open_and_start(context, url))
    killed.process.join()
    # At the exit of this process a child that is a daemon is terminated, with the bus open and a message in its hands.
    found["daemon"] = Child(context, hold, url, "daemon", daemon=True).answer.recv()
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
