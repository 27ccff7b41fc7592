"""A document: a named output of a session, its last versions, and the way back to a file."""

from __future__ import annotations

import errno
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar, overload

import anyio.to_thread
import msgspec

from agentbus.engine.interface import Engine
from agentbus.errors import DiskFull, InvalidInput, NotWritable, UnknownDocument
from agentbus.limits import KEEP_VERSIONS, MAX_BATCH, MAX_PAGE, check_name, check_range
from agentbus.operations.documents import SaveRequest, Stored, Wanted, get_documents, save
from agentbus.records import DocumentRecord
from agentbus.sealing import seal_aside, unseal_aside

T = TypeVar("T")


class Document:
    """A document of a session. Made by ``session.document(name)``; it exists once something was saved.

    >>> plan = session.document("planning_output")                                    # doctest: +SKIP
    >>> await plan.save({"phases": ["design", "build"]})                              # doctest: +SKIP
    >>> await plan.latest()                                                           # doctest: +SKIP
    {'phases': ['design', 'build']}
    """

    def __init__(
        self, engine: Engine, limit: int, session: str, name: str, *, default: Any = None, keep: int = KEEP_VERSIONS
    ) -> None:
        self.session = session
        self.name = check_name(name, "document")
        self._engine = engine
        self._limit = limit
        self._default = default
        self._keep = check_keep(keep)

    def __repr__(self) -> str:
        return f"<Document {self.name} of {self.session}>"

    async def save(self, value: Any, *, author: str | None = None, keep: int | None = None) -> DocumentRecord:
        """Save a new version; of the older ones the newest are kept (10 with this one, unless ``keep`` says otherwise).

        ``author`` is a name to remember. An agent saves with ``unit.document``, which is fenced and names it.

        >>> record = await session.document("risks").save(["time"], author="risk-assessor-1")   # doctest: +SKIP
        >>> record.version                                                            # doctest: +SKIP
        1
        """
        author = None if author is None else check_name(author, "author")
        keep = self._keep if keep is None else check_keep(keep)
        text, checksum = await seal_aside(value, self._limit)
        saved = await self._engine.write(save, SaveRequest(self.session, self.name, text, checksum, author, keep))
        return DocumentRecord(saved.id, self.session, self.name, saved.version, author, saved.created, value)

    @overload
    async def latest(self, default: Any = msgspec.UNSET, *, as_: None = None) -> Any: ...
    @overload
    async def latest(self, default: Any = msgspec.UNSET, *, as_: type[T]) -> T | Any: ...
    async def latest(self, default: Any = msgspec.UNSET, *, as_: Any = None) -> Any:
        """The value that was saved last; if there is none, the default given here or to ``session.document``, or None.

        ``as_`` is a type (a Struct, for example) that the value is decoded as.

        >>> await session.document("risks").latest([])                                # doctest: +SKIP
        ['time']
        """
        found = await self._engine.read(get_documents, Wanted(self.session, self.name))
        if not found:
            return self._default if default is msgspec.UNSET else default
        return (await _record(found[0], as_)).value

    async def record(self, version: int | None = None) -> DocumentRecord | None:
        """The newest version, or the one of this number, with all that is known of it; None if it is not there.

        >>> (await session.document("risks").record(1)).author                        # doctest: +SKIP
        'risk-assessor-1'
        """
        if version is not None:
            check_range(version, "version", 1, 2**62)
        found = await self._engine.read(get_documents, Wanted(self.session, self.name, version))
        return await _record(found[0]) if found else None

    async def history(self, limit: int = KEEP_VERSIONS) -> list[DocumentRecord]:
        """The versions that are kept, newest first.

        >>> [record.version for record in await session.document("risks").history()]  # doctest: +SKIP
        [3, 2, 1]
        """
        wanted = Wanted(self.session, self.name, None, check_range(limit, "limit", 1, MAX_PAGE))
        return [await _record(stored) for stored in await self._engine.read(get_documents, wanted)]

    async def export(self, path: str | os.PathLike[str]) -> Path:
        """Write the newest version to a JSON file, to be handed on: the whole file, or nothing of it.

        A file that is there is replaced. Only its owner may read the new one.

        >>> await session.document("planning_output").export("plan.json")             # doctest: +SKIP
        PosixPath('plan.json')
        """
        try:
            target = Path(os.fsdecode(path))
            os.fsencode(target)
        except (TypeError, ValueError):
            raise InvalidInput(reason=f"{path!r:.80} is not a path") from None
        if "\0" in str(target):
            raise InvalidInput(reason=f"{path!r:.80} is not a path")
        record = await self.record()
        if record is None:
            raise UnknownDocument(session=self.session, name=self.name)
        await anyio.to_thread.run_sync(_write, target, record.value)
        return target


def check_keep(keep: int) -> int:
    return check_range(keep, "keep", 1, MAX_BATCH)


async def _record(stored: Stored, type: Any = None) -> DocumentRecord:
    what = f"version {stored.version} of document {stored.name} of session {stored.session}"
    value = await unseal_aside(stored.value, stored.checksum, what, type)
    return DocumentRecord(
        stored.id, stored.session, stored.name, stored.version, stored.author, stored.created, value
    )  # fmt: skip


def _write(target: Path, value: Any) -> None:
    """A new file takes the old one's place once it is on the disk."""
    text = msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"
    temporary = None
    try:
        # Beside the target, because a rename works within a file system only; 0600 from the start.
        descriptor, temporary = tempfile.mkstemp(prefix=f".{target.name[:100]}.", dir=target.parent)
        with open(descriptor, "wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
        temporary = None
        _sync_directory(target.parent)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise DiskFull(path=str(target)) from error
        raise NotWritable(path=str(target), reason=error.strerror or str(error)) from error
    finally:
        if temporary is not None:
            with suppress(OSError):
                os.unlink(temporary)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
