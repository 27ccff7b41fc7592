"""A document: a named output of a session, its last versions, and the way back to a file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, TypeVar, overload

import msgspec

from agentbus.aside import aside
from agentbus.codec import Snapshot, snapshot
from agentbus.engine.interface import Engine
from agentbus.errors import UnknownDocument
from agentbus.exporting import check_target, write_json
from agentbus.limits import KEEP_VERSIONS, MAX_ID, MAX_PAGE, check_keep, check_name, check_range, name_or_none
from agentbus.operations import Actor, Part
from agentbus.operations.documents import SaveRequest, Stored, Wanted, get_documents, save_document
from agentbus.records import DocumentRecord
from agentbus.snapshots import opened, reread, settled

T = TypeVar("T")


class Draft(msgspec.Struct, frozen=True):
    """A new version of a document before it is saved: its value as it was when the draft was made."""

    session: str
    name: str
    snapshot: Snapshot
    author: str | None
    keep: int
    actor: Actor | None

    async def finished(self) -> SaveRequest:
        """Ready to be written: the value looked through and hashed."""
        text, checksum = await settled(self.snapshot)
        return SaveRequest(self.session, self.name, text, checksum, self.author, self.keep, self.actor)

    async def part(self, engine: Engine) -> Part:
        return Part(save_document, await self.finished())


def draft(
    session: str, name: str, value: Any, limit: int, *, author: str | None, keep: int, actor: Actor | None = None
) -> Draft:
    """A checked draft of a document of ``value`` as it is now."""
    return Draft(
        session,
        check_name(name, "document"),
        snapshot(value, limit),
        name_or_none(author, "author"),
        check_keep(keep),
        actor,
    )


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
        keep = self._keep if keep is None else keep
        checked = draft(self.session, self.name, value, self._limit, author=author, keep=keep)
        request = await checked.finished()
        # Before it is saved: whoever is cancelled here has saved nothing.
        stored = await reread(request.value)
        saved = await self._engine.write(save_document, request)
        return DocumentRecord(saved.id, self.session, self.name, saved.version, author, saved.created, stored)

    @overload
    async def latest(self, default: Any = msgspec.UNSET, *, as_: type[T]) -> T | Any: ...
    @overload
    async def latest(self, default: Any = msgspec.UNSET, *, as_: Any = None) -> Any: ...
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
            check_range(version, "version", 1, MAX_ID)
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
        target = check_target(path)
        record = await self.record()
        if record is None:
            raise UnknownDocument(session=self.session, name=self.name)
        await aside(write_json, target, record.value)
        return target


async def _record(stored: Stored, as_: Any = None) -> DocumentRecord:
    what = f"version {stored.version} of document {stored.name} of session {stored.session}"
    value = await opened(stored.value, stored.checksum, what, as_)
    return DocumentRecord(
        stored.id, stored.session, stored.name, stored.version, stored.author, stored.created, value
    )  # fmt: skip
