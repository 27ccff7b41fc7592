"""Checkpoints as callers work with them: ``bus.checkpoints``, and what agents, sessions and units save with."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import msgspec

from agentbus.aside import aside
from agentbus.codec import Snapshot, plain, snapshot
from agentbus.engine.interface import Engine
from agentbus.errors import DamagedPayload, InvalidInput, UnknownCheckpoint
from agentbus.files import Path, Stopped, check_paths, check_root, compare_files, hash_files
from agentbus.limits import (
    MAX_ID,
    MAX_NOTES,
    MAX_PAGE,
    check_choice,
    check_keep,
    check_name,
    check_range,
    check_row,
    check_text,
    name_or_none,
)
from agentbus.operations import Actor, Part
from agentbus.operations.checkpoints import (
    HistoryFilter,
    Owner,
    PruneRequest,
    Saved,
    SaveRequest,
    Stored,
    delete_checkpoint,
    files_of,
    get_checkpoint,
    latest_checkpoint,
    list_checkpoints,
    names_of,
    prune_checkpoints,
    save_checkpoint,
)
from agentbus.records import Checkpoint, CheckpointSummary, FileCheck, FileReference, Page
from agentbus.snapshots import opened, reread, settled

T = TypeVar("T")

OWNERS = ("agent", "session", "task")
LOOKED_AT = (*OWNERS, "composite")

_references = msgspec.json.Decoder(list[FileReference]).decode


class Draft(msgspec.Struct, frozen=True):
    """A checkpoint before it is saved: checked as far as that is possible without looking at files."""

    owner: Owner
    name: str
    snapshot: Snapshot
    notes: str
    paths: tuple[str, ...]
    root: str
    actor: Actor | None = None
    session: str | None = None
    keep: int | None = None

    async def finished(self, engine: Engine) -> tuple[SaveRequest, list[FileReference]]:
        """Ready to be written: the snapshot looked through and hashed, and the files too."""
        text, checksum = await settled(self.snapshot)
        files = await _read(lambda stopped: hash_files(self.paths, self.root, engine.holds, stopped), self.paths)
        request = SaveRequest(
            self.actor,
            self.owner,
            self.name,
            text,
            checksum,
            len(self.snapshot.encoded),
            self.notes,
            plain(files),
            len(files),
            self.session,
            self.keep,
        )
        return request, files

    async def part(self, engine: Engine) -> Part:
        request, _ = await self.finished(engine)
        return Part(save_checkpoint, request)

    async def save(self, engine: Engine) -> Checkpoint:
        request, files = await self.finished(engine)
        # Before it is saved: whoever is cancelled here has saved nothing.
        value = await reread(request.snapshot)
        saved: Saved = await engine.write(save_checkpoint, request)
        return Checkpoint(
            saved.id,
            self.owner.kind,
            self.owner.id,
            self.name,
            value,
            self.notes,
            files,
            saved.session,
            saved.created,
        )


def draft(
    owner: Owner,
    name: str,
    value: Any,
    limit: int,
    *,
    notes: str = "",
    files: Iterable[Path] = (),
    root: Path | None = None,
    keep: int | None = None,
    actor: Actor | None = None,
    session: str | None = None,
) -> Draft:
    """A checked draft of a checkpoint of ``value`` as it is now."""
    paths = check_paths(files)
    return Draft(
        owner,
        check_name(name, "checkpoint"),
        snapshot(value, limit),
        check_text(notes, "notes", MAX_NOTES),
        paths,
        # Whoever names no files needs no working directory either.
        "" if root is None and not paths else check_root(root),
        actor,
        session,
        None if keep is None else check_keep(keep),
    )


async def _checkpoint(stored: Stored) -> Checkpoint:
    """A checkpoint as people see it, once its checksum is found right."""
    what = f"checkpoint {stored.id}"
    return Checkpoint(
        stored.id,
        stored.owner_kind,
        stored.owner,
        stored.name,
        await opened(stored.snapshot, stored.checksum, what),
        stored.notes,
        _files(stored.files, what),
        stored.session,
        stored.created,
    )


class Checkpoints:
    """The checkpoints of all agents and sessions.

    >>> for summary in (await bus.checkpoints.list("planner-1")).items:               # doctest: +SKIP
    ...     print(summary.id, summary.name, summary.size)
    """

    def __init__(self, engine: Engine, limit: int) -> None:
        self._engine = engine
        self._limit = limit

    async def get(self, id: int) -> Checkpoint | None:
        """One checkpoint by its id, or None.

        >>> checkpoint = await bus.checkpoints.get(7)                                 # doctest: +SKIP
        """
        stored = await self._engine.read(get_checkpoint, _id(id))
        return None if stored is None else await _checkpoint(stored)

    async def latest(self, owner: str, name: str | None = None, *, kind: str = "agent") -> Checkpoint | None:
        """The newest checkpoint of an agent (or, with ``kind="session"``, of a session), of one name or of all.

        >>> await bus.checkpoints.latest("planner-1", "after_planning")               # doctest: +SKIP
        """
        wanted = (_owner(owner, kind), name_or_none(name, "checkpoint"))
        stored = await self._engine.read(latest_checkpoint, wanted)
        return None if stored is None else await _checkpoint(stored)

    async def list(
        self,
        owner: str | None = None,
        name: str | None = None,
        *,
        kind: str | None = None,
        cursor: str | None = None,
        limit: int = 100,
    ) -> Page[CheckpointSummary]:
        """Checkpoints without their snapshots, newest first. An ``owner`` is an agent unless ``kind`` is "session", or
        "composite": those that ``session.checkpoint_all`` made.

        >>> page = await bus.checkpoints.list("planner-1", "after_planning")          # doctest: +SKIP
        """
        if owner is not None:
            kind = _owner(owner, kind or "agent").kind
        wanted = HistoryFilter(
            None if kind is None else check_choice(kind, "kind", LOOKED_AT),
            owner,
            name_or_none(name, "checkpoint"),
            check_row(cursor),
            check_range(limit, "limit", 1, MAX_PAGE),
        )
        return await self._engine.read(list_checkpoints, wanted)

    async def verify(self, checkpoint: Checkpoint | int, root: Path | None = None) -> Sequence[FileCheck]:
        """What became of the files that a checkpoint refers to, below ``root`` (by default the working directory).

        >>> await bus.checkpoints.verify(7)                                           # doctest: +SKIP
        [FileCheck(path='plan.md', status='changed')]
        """
        place = check_root(root)
        if checkpoint is None:
            raise InvalidInput(reason="there is no checkpoint to verify; restore() and get() give None for none")
        if isinstance(checkpoint, Checkpoint):
            references = checkpoint.files
        else:
            files = await self._engine.read(files_of, _id(checkpoint))
            if files is None:
                raise UnknownCheckpoint(id=checkpoint)
            references = _files(files, f"checkpoint {checkpoint}")
        holds = self._engine.holds
        return await _read(lambda stopped: compare_files(references, place, holds, stopped), references)

    async def save(
        self,
        owner: str,
        name: str,
        snapshot: Any,
        *,
        kind: str = "agent",
        notes: str = "",
        files: Iterable[Path] = (),
        root: Path | None = None,
        keep: int | None = None,
    ) -> Checkpoint:
        """Save a checkpoint for any agent or open session; the options are those of ``Agent.checkpoint``.

        >>> await bus.checkpoints.save("planning-001", "half", {"step": 3}, kind="session")   # doctest: +SKIP
        """
        checked = draft(
            _owner(owner, kind, OWNERS), name, snapshot, self._limit, notes=notes, files=files, root=root, keep=keep
        )
        return await checked.save(self._engine)

    async def delete(self, id: int) -> None:
        """Delete one checkpoint.

        >>> await bus.checkpoints.delete(7)                                           # doctest: +SKIP
        """
        await self._engine.write(delete_checkpoint, _id(id))

    async def prune(self, owner: str, name: str | None = None, *, keep: int, kind: str = "agent") -> int:
        """Delete all but the newest ``keep`` checkpoints of a name, or of each name; says how many.

        >>> await bus.checkpoints.prune("planner-1", keep=3)                          # doctest: +SKIP
        """
        whose = _owner(owner, kind)
        check_keep(keep, low=0)
        names = (check_name(name, "checkpoint"),) if name is not None else await self._engine.read(names_of, whose)
        gone = 0
        while names:
            # In steps, so that nobody waits long for the lock.
            pruned = await self._engine.write(prune_checkpoints, PruneRequest(whose, names, keep, name))
            gone += pruned.count
            names = pruned.names
        return gone


def _owner(owner: object, kind: object, kinds: Sequence[str] = LOOKED_AT) -> Owner:
    return Owner(check_choice(kind, "kind", kinds), check_name(owner, "owner"))


def _id(id: object) -> int:
    return check_range(id, "id", 1, MAX_ID)


def _files(text: str, what: str) -> list[FileReference]:
    try:
        return _references(text)
    except msgspec.DecodeError:
        raise DamagedPayload(what=f"the files of {what}") from None


async def _read(work: Callable[[Stopped], list[T]], files: Sequence[object]) -> list[T]:
    """Read files on a thread, which hears when nobody waits for it any more."""
    if not files:
        return []
    stop = threading.Event()
    try:
        return await aside(work, stop.is_set, abandon_on_cancel=True)
    finally:
        stop.set()
