"""Systems with durable workflows: agentbus, and DBOS on SQLite if installed (the ``bench`` extra)."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, Protocol

import agentbus
from benchmarks.payload import PAYLOAD

Step = Callable[[], Awaitable[Any]]
Body = Callable[[Step], Awaitable[None]]
"""The body of a workflow, which calls its durable step."""


class Runner(Protocol):
    """Run workflows of one body."""

    async def start(self, id: str) -> None: ...

    async def replay(self, id: str) -> None:
        """Replay a workflow up to its last finished step without executing any."""


class Contestant(Protocol):
    @property
    def key(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def durability(self) -> str: ...
    def open(self, directory: Path, body: Body) -> Any: ...


async def work() -> Any:
    """Return the result of a step, which does nothing else."""
    return PAYLOAD


class TaskRunner:
    def __init__(self, bus: agentbus.Bus, workflow: Any) -> None:
        self._bus = bus
        self._workflow = workflow

    async def start(self, id: str) -> None:
        await self._bus.tasks.start(self._workflow, id=id)

    async def replay(self, id: str) -> None:
        await self._bus.tasks.stop(id)
        await self._bus.tasks.resume(id)


@dataclass(frozen=True)
class AgentBus:
    """agentbus as it is installed, with one worker."""

    key: str
    title: str
    mode: Literal["disk", "process"]
    durability: str

    @asynccontextmanager
    async def open(self, directory: Path, body: Body) -> AsyncIterator[Runner]:
        @agentbus.workflow("bench")
        async def bench(task: agentbus.Task) -> None:
            await body(lambda: task.step("work", work))

        async with agentbus.connect(directory / "bus", durability=self.mode) as bus:
            worker = asyncio.create_task(bus.tasks.run_worker(bench, concurrency=64))
            try:
                yield TaskRunner(bus, bench)
            finally:
                worker.cancel()
                with suppress(asyncio.CancelledError):
                    await worker


class ForkRunner:
    def __init__(self, dbos: Any, workflow: Any) -> None:
        self._dbos = dbos
        self._workflow = workflow

    async def start(self, id: str) -> None:
        with self._dbos.SetWorkflowID(id):
            await self._dbos.DBOS.start_workflow_async(self._workflow)

    async def replay(self, id: str) -> None:
        # An ended workflow cannot be resumed; a fork replays all its steps.
        await self._dbos.DBOS.fork_workflow_async(id, 1_000_000)


@dataclass(frozen=True)
class DBOS:
    """DBOS in this process; its own tables in a database of SQLite."""

    key: str
    title: str
    journal: str
    durability: str

    @asynccontextmanager
    async def open(self, directory: Path, body: Body) -> AsyncIterator[Runner]:
        dbos = import_module("dbos")
        file = directory / "dbos.sqlite"
        with closing(sqlite3.connect(file)) as connection:
            connection.execute(f"PRAGMA journal_mode = {self.journal}")
        config = {"name": "bench", "system_database_url": f"sqlite:///{file}", "log_level": "CRITICAL"}
        dbos.DBOS(config=config)

        async def bench() -> None:
            await body(lambda: dbos.DBOS.run_step_async({"name": "work"}, work))

        workflow = dbos.DBOS.workflow(name="bench")(bench)
        dbos.DBOS.launch()
        try:
            yield ForkRunner(dbos, workflow)
        finally:
            await asyncio.to_thread(lambda: dbos.DBOS.destroy(destroy_registry=True))


DISK = AgentBus(
    "agentbus", "agentbus", "disk", "disk: every result is fsynced (many in one commit), its beginning is not"
)
PROCESS = AgentBus("agentbus-process", "agentbus, durability=process", "process", "process: nothing is fsynced")
DBOS_DEFAULT = DBOS(
    "dbos", "DBOS, SQLite", "delete", "disk: every result is fsynced, a commit each (rollback journal, as installed)"
)
DBOS_WAL = DBOS("dbos-wal", "DBOS, SQLite with WAL", "wal", "disk: the same with journal_mode=WAL, set by hand")
INSTALLED = find_spec("dbos") is not None
CONTESTANTS: tuple[Contestant, ...] = (DISK, PROCESS, *((DBOS_DEFAULT, DBOS_WAL) if INSTALLED else ()))
