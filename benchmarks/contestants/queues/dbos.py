"""DBOS on SQLite: a message is a workflow in a queue, received when it runs and acknowledged when it returns."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.contestants.about import missing_packages, package
from benchmarks.contestants.queues.base import CONCURRENTLY

QUEUE, WORK, NAME = "box", "work", "bench"
Running = tuple[threading.Event, Any]


class WorkflowSender:
    def __init__(self, enqueue: Any) -> None:
        self._enqueue = enqueue

    async def send(self, payload: Any) -> None:
        await asyncio.to_thread(self._enqueue, payload)


class WorkflowBox(WorkflowSender):
    """The one queue; workflows run on threads."""

    def __init__(self, enqueue: Any, arrived: asyncio.Queue[Running]) -> None:
        super().__init__(enqueue)
        self._arrived = arrived

    async def receive(self) -> Running:
        return await self._arrived.get()

    async def ack(self, message: Running) -> None:
        message[0].set()

    async def ack_many(self, messages: Sequence[Running]) -> None:
        for done, _ in messages:
            done.set()

    async def send_many(self, payloads: Sequence[Any]) -> None:
        for payload in payloads:
            await self.send(payload)

    async def receive_many(self, limit: int, done: Sequence[Running]) -> list[Running]:
        await self.ack_many(done)
        return [await self.receive()]

    def payload(self, message: Running) -> Any:
        return message[1]


@dataclass(frozen=True)
class DBOSQueue:
    key: str = "dbos"
    title: str = "DBOS, SQLite"
    durability: str = "disk: every commit is fsynced"
    workloads: frozenset[str] = CONCURRENTLY - {"tasks"}

    def missing(self) -> str | None:
        return missing_packages(["dbos"])

    @asynccontextmanager
    async def open(self, directory: Path, boxes: int) -> AsyncIterator[list[WorkflowBox]]:
        dbos = package("dbos")
        loop = asyncio.get_running_loop()
        arrived: asyncio.Queue[Running] = asyncio.Queue()

        def work(payload: Any) -> None:
            done = threading.Event()
            loop.call_soon_threadsafe(arrived.put_nowait, (done, payload))
            done.wait(60)

        def launch() -> Any:
            dbos.DBOS(config={"name": NAME, "system_database_url": _url(directory), "log_level": "CRITICAL"})
            workflow = dbos.DBOS.workflow(name=WORK)(work)
            dbos.DBOS.launch()
            queue = dbos.DBOS.register_queue(QUEUE, polling_interval_sec=0.001)
            return lambda payload: queue.enqueue(workflow, payload)

        try:
            yield [WorkflowBox(await asyncio.to_thread(launch), arrived)]
        finally:
            while not arrived.empty():
                arrived.get_nowait()[0].set()
            await asyncio.to_thread(lambda: dbos.DBOS.destroy(destroy_registry=True))

    @asynccontextmanager
    async def sender(self, directory: Path) -> AsyncIterator[WorkflowSender]:
        client = package("dbos").DBOSClient(system_database_url=_url(directory), application_name=NAME)
        options = {"queue_name": QUEUE, "workflow_name": WORK}
        try:
            yield WorkflowSender(lambda payload: client.enqueue(options, payload))
        finally:
            client.destroy()


def _url(directory: Path) -> str:
    return f"sqlite:///{directory}/dbos.sqlite"


DBOS = DBOSQueue()
