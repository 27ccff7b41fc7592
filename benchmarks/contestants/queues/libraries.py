"""Queue libraries, each called as in its documentation: dirq, persist-queue, litequeue, huey, Maildir."""

from __future__ import annotations

import json
import mailbox
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.contestants.about import package
from benchmarks.contestants.queues.base import CalledBox, Calls, Library


def _text(payload: Any) -> str:
    return json.dumps(payload, separators=(",", ":"))


class Maildir:
    """A message is a file in ``new``, in ``cur`` once it is claimed; the standard library writes and syncs it."""

    def __init__(self, directory: Path) -> None:
        self._box = mailbox.Maildir(str(directory / "maildir"))
        self._new = directory / "maildir" / "new"
        self._cur = directory / "maildir" / "cur"

    def send(self, payload: Any) -> None:
        self._box.add(_text(payload).encode())

    def claim(self, limit: int) -> list[Path]:
        claimed = []
        for file in sorted(self._new.iterdir())[:limit]:
            claimed.append(file.rename(self._cur / f"{file.name}:2,"))
        return claimed

    def ack(self, messages: Sequence[Path]) -> None:
        for file in messages:
            file.unlink()

    def payload(self, message: Path) -> Any:
        return json.loads(message.read_bytes())

    def close(self) -> None:
        self._box.close()


class Dirq:
    """A directory queue; an element is locked, read and removed."""

    def __init__(self, directory: Path) -> None:
        self._queue = package("dirq.QueueSimple").QueueSimple(str(directory / "dirq"))

    def send(self, payload: Any) -> None:
        self._queue.add(_text(payload))

    def claim(self, limit: int) -> list[tuple[str, Any]]:
        claimed: list[tuple[str, Any]] = []
        name = self._queue.first()
        while name and len(claimed) < limit:
            if self._queue.lock(name):
                claimed.append((name, json.loads(self._queue.get(name))))
            name = self._queue.next()
        return claimed

    def ack(self, messages: Sequence[tuple[str, Any]]) -> None:
        for name, _ in messages:
            self._queue.remove(name)

    def payload(self, message: tuple[str, Any]) -> Any:
        return message[1]

    def close(self) -> None:
        pass


class PersistFile:
    """The file queue of persist-queue: ``task_done`` saves the position."""

    def __init__(self, directory: Path) -> None:
        persistqueue = package("persistqueue")
        self._empty = persistqueue.Empty
        self._queue = persistqueue.Queue(str(directory / "files"), tempdir=str(directory))

    def send(self, payload: Any) -> None:
        self._queue.put(payload)

    def claim(self, limit: int) -> list[Any]:
        claimed: list[Any] = []
        try:
            while len(claimed) < limit:
                claimed.append(self._queue.get_nowait())
        except self._empty:
            pass
        return claimed

    def ack(self, messages: Sequence[Any]) -> None:
        self._queue.task_done()

    def payload(self, message: Any) -> Any:
        return message

    def close(self) -> None:
        pass


class PersistAck:
    """The SQLite queue of persist-queue with acknowledgements; WAL, synchronous=FULL by default."""

    def __init__(self, directory: Path) -> None:
        persistqueue = package("persistqueue")
        self._empty = persistqueue.Empty
        self._queue = persistqueue.SQLiteAckQueue(str(directory), auto_commit=True, multithreading=True)

    def send(self, payload: Any) -> None:
        self._queue.put(payload)

    def claim(self, limit: int) -> list[dict[str, Any]]:
        claimed: list[dict[str, Any]] = []
        try:
            while len(claimed) < limit:
                claimed.append(self._queue.get(block=False, raw=True))
        except self._empty:
            pass
        return claimed

    def ack(self, messages: Sequence[dict[str, Any]]) -> None:
        for message in messages:
            self._queue.ack(id=message["pqid"])

    def payload(self, message: dict[str, Any]) -> Any:
        return message["data"]

    def close(self) -> None:
        self._queue.close()


class Lite:
    """litequeue: one table, WAL, synchronous=NORMAL."""

    def __init__(self, directory: Path) -> None:
        self._queue = package("litequeue").LiteQueue(str(directory / "lite.db"))

    def send(self, payload: Any) -> None:
        self._queue.put(_text(payload))

    def claim(self, limit: int) -> list[Any]:
        claimed: list[Any] = []
        while len(claimed) < limit and (message := self._queue.pop()) is not None:
            claimed.append(message)
        return claimed

    def ack(self, messages: Sequence[Any]) -> None:
        for message in messages:
            self._queue.done(message.message_id)

    def payload(self, message: Any) -> Any:
        return json.loads(message.data)

    def close(self) -> None:
        self._queue.close()


class Huey:
    """The SQLite storage of huey; a claim deletes the message, so there is nothing to acknowledge."""

    def __init__(self, directory: Path) -> None:
        storage = package("huey.storage").SqliteStorage
        self._storage = storage(filename=str(directory / "huey.db"), fsync=True)

    def send(self, payload: Any) -> None:
        self._storage.enqueue(_text(payload).encode())

    def claim(self, limit: int) -> list[bytes]:
        claimed: list[bytes] = []
        while len(claimed) < limit and (data := self._storage.dequeue()) is not None:
            claimed.append(data)
        return claimed

    def ack(self, messages: Sequence[bytes]) -> None:
        pass

    def payload(self, message: bytes) -> Any:
        return json.loads(message)

    def close(self) -> None:
        self._storage.close()


def _library(
    key: str, title: str, durability: str, calls: Callable[[Path], Calls], name: str | None, **options: Any
) -> Library:
    packages = () if name is None else (name,)
    return Library(key, title, durability, lambda directory: CalledBox(calls(directory)), packages, **options)


LIBRARIES = (
    _library("maildir", "Maildir, standard library", "disk: the file is fsynced, its directory is not", Maildir, None),
    _library("dirq", "dirq", "nothing is fsynced", Dirq, "dirq"),
    _library(
        "persist-file", "persist-queue, files", "every hundredth send is fsynced; one process only", PersistFile,
        "persistqueue", workloads=frozenset({"one"}),
    ),
    _library("persist-ack", "persist-queue, SQLiteAck", "disk: every commit is fsynced", PersistAck, "persistqueue"),
    _library("litequeue", "litequeue", "kill -9; nothing is fsynced (synchronous=NORMAL)", Lite, "litequeue"),
    _library("huey", "huey, SQLite", "disk: every commit is fsynced; at most once", Huey, "huey"),
)  # fmt: skip
