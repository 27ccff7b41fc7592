"""Documents: named, versioned outputs of a session."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, TypeVar, overload

import msgspec

from agentbus.core.codec import Snapshot, decode_snapshot, encode_snapshot, snapshot, verify_and_decode
from agentbus.core.files import check_target, write_json
from agentbus.core.threads import run_in_thread
from agentbus.core.validation import KEEP_VERSIONS, MAX_ID, MAX_PAGE, check_keep, check_name, check_range, name_or_none
from agentbus.engine.interface import Engine
from agentbus.errors import UnknownDocument
from agentbus.operations.documents import DocumentQuery, SaveRequest, Stored, get_documents, save_document
from agentbus.operations.protocol import Actor, Part
from agentbus.records import DocumentRecord

T = TypeVar("T")


class Draft(msgspec.Struct, frozen=True):
    """A new version of a document before it is saved."""

    session: str
    name: str
    snapshot: Snapshot
    author: str | None
    keep: int
    actor: Actor | None

    async def prepare(self) -> SaveRequest:
        """Return the request to write, with the value checked and hashed."""
        text, checksum = await encode_snapshot(self.snapshot)
        return SaveRequest(self.session, self.name, text, checksum, self.author, self.keep, self.actor)

    async def part(self, engine: Engine) -> Part:
        return Part(save_document, await self.prepare())


def draft(
    session: str, name: str, value: Any, limit: int, *, author: str | None, keep: int, actor: Actor | None = None
) -> Draft:
    """Return a checked draft of a document with a copy of ``value``."""
    return Draft(
        session,
        check_name(name, "document"),
        snapshot(value, limit),
        name_or_none(author, "author"),
        check_keep(keep),
        actor,
    )


class Document:
    """A document of a session, made by ``session.document(name)``. It exists once a version is saved.

    >>> plan = session.document("planning_output")                                    # doctest: +SKIP
    >>> await plan.save({"phases": ["design", "build"]})                              # doctest: +SKIP
    >>> await plan.latest()                                                           # doctest: +SKIP
    {'phases': ['design', 'build']}
    """

    session: str
    """The id of its session."""
    name: str
    """Its name."""

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
        """Save a new version and delete all but the newest ``keep`` versions (default 10, including this one).

        ``author`` is recorded with the version. Agents save with ``unit.document``, which is fenced and records them.

        >>> record = await session.document("risks").save(["time"], author="risk-assessor-1")   # doctest: +SKIP
        >>> record.version                                                            # doctest: +SKIP
        1
        """
        keep = self._keep if keep is None else keep
        checked = draft(self.session, self.name, value, self._limit, author=author, keep=keep)
        request = await checked.prepare()
        # Decode before writing: a caller cancelled here has saved nothing.
        stored = await decode_snapshot(request.value)
        saved = await self._engine.write(save_document, request)
        return DocumentRecord(saved.id, self.session, self.name, saved.version, author, saved.created, stored)

    @overload
    async def latest(self, default: Any = msgspec.UNSET, *, as_: type[T]) -> T | Any: ...
    @overload
    async def latest(self, default: Any = msgspec.UNSET, *, as_: Any = None) -> Any: ...
    async def latest(self, default: Any = msgspec.UNSET, *, as_: Any = None) -> Any:
        """Return the newest value; if there is none, the default given here or to ``session.document``, or None.

        ``as_`` is the type that the value is decoded as, for example a Struct.

        >>> await session.document("risks").latest([])                                # doctest: +SKIP
        ['time']
        """
        found = await self._engine.read(get_documents, DocumentQuery(self.session, self.name))
        if not found:
            return self._default if default is msgspec.UNSET else default
        return (await _record(found[0], as_)).value

    async def record(self, version: int | None = None) -> DocumentRecord | None:
        """Return the record of the newest version, or of version ``version``; None if it does not exist.

        >>> (await session.document("risks").record(1)).author                        # doctest: +SKIP
        'risk-assessor-1'
        """
        if version is not None:
            check_range(version, "version", 1, MAX_ID)
        found = await self._engine.read(get_documents, DocumentQuery(self.session, self.name, version))
        return await _record(found[0]) if found else None

    async def history(self, limit: int = KEEP_VERSIONS) -> list[DocumentRecord]:
        """Return the stored versions, newest first.

        >>> [record.version for record in await session.document("risks").history()]  # doctest: +SKIP
        [3, 2, 1]
        """
        wanted = DocumentQuery(self.session, self.name, None, check_range(limit, "limit", 1, MAX_PAGE))
        return [await _record(stored) for stored in await self._engine.read(get_documents, wanted)]

    async def export(self, path: str | os.PathLike[str]) -> Path:
        """Write the newest version to a JSON file, atomically.

        An existing file is replaced. Only its owner may read the new file.

        >>> await session.document("planning_output").export("plan.json")             # doctest: +SKIP
        PosixPath('plan.json')
        """
        target = check_target(path)
        record = await self.record()
        if record is None:
            raise UnknownDocument(session=self.session, name=self.name)
        await run_in_thread(write_json, target, record.value)
        return target


async def _record(stored: Stored, as_: Any = None) -> DocumentRecord:
    what = f"version {stored.version} of document {stored.name} of session {stored.session}"
    value = await verify_and_decode(stored.value, stored.checksum, what, as_)
    return DocumentRecord(
        stored.id, stored.session, stored.name, stored.version, stored.author, stored.created, value
    )  # fmt: skip
