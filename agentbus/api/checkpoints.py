"""Checkpoints: ``bus.checkpoints``, drafts that agents, sessions and units save, and periodic saving."""

from __future__ import annotations

import inspect
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, Unpack

import msgspec

from agentbus.api.checkpoint_files import Path, Stopped, check_paths, check_root, compare_files, hash_files
from agentbus.core.codec import Snapshot, decode_snapshot, encode_snapshot, plain, snapshot, verify_and_decode
from agentbus.core.threads import run_in_thread
from agentbus.core.validation import (
    MAX_ID,
    MAX_NOTES,
    MAX_PAGE,
    PAGE_SIZE,
    check_choice,
    check_keep,
    check_name,
    check_range,
    check_row_cursor,
    check_seconds,
    check_text,
    name_or_none,
)
from agentbus.engine.interface import Engine
from agentbus.errors import (
    AgentBusError,
    AgentFenced,
    DamagedPayload,
    InvalidInput,
    Misuse,
    OutOfRange,
    UnknownCheckpoint,
)
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
from agentbus.operations.protocol import Actor, Part
from agentbus.records import Checkpoint, CheckpointSummary, FileCheck, FileReference, Page

if TYPE_CHECKING:
    from agentbus.api.agent import Agent

T = TypeVar("T")
Make = Callable[[], Any]
"""A function that returns the snapshot, or a coroutine that does."""

log = logging.getLogger("agentbus")

OWNERS = ("agent", "session", "task")
OWNER_KINDS = (*OWNERS, "composite")

_references = msgspec.json.Decoder(list[FileReference]).decode


class CheckpointOptions(TypedDict, total=False):
    """Options of every method that saves a checkpoint; ``Agent.checkpoint`` describes them."""

    notes: str
    files: Iterable[Path]
    root: Path | None
    keep: int | None


class Draft(msgspec.Struct, frozen=True):
    """A checkpoint before it is saved, checked as far as possible without reading its files."""

    owner: Owner
    name: str
    snapshot: Snapshot
    notes: str
    paths: tuple[str, ...]
    root: str
    actor: Actor | None = None
    session: str | None = None
    keep: int | None = None

    async def prepare(self, engine: Engine) -> tuple[SaveRequest, list[FileReference]]:
        """Return the request to write and the file references, with snapshot and files hashed."""
        text, checksum = await encode_snapshot(self.snapshot)
        files = await _read(lambda stopped: hash_files(self.paths, self.root, engine.owns_file, stopped), self.paths)
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
        request, _ = await self.prepare(engine)
        return Part(save_checkpoint, request)

    async def save(self, engine: Engine) -> Checkpoint:
        request, files = await self.prepare(engine)
        # Decode before writing: a caller cancelled here has saved nothing.
        value = await decode_snapshot(request.snapshot)
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
    """Return a checked draft of a checkpoint with a copy of ``value``."""
    paths = check_paths(files)
    return Draft(
        owner,
        check_name(name, "checkpoint"),
        snapshot(value, limit),
        check_text(notes, "notes", MAX_NOTES),
        paths,
        # Without files no working directory is needed.
        "" if root is None and not paths else check_root(root),
        actor,
        session,
        None if keep is None else check_keep(keep),
    )


async def _verified(stored: Stored) -> Checkpoint:
    """Return the public record of a checkpoint after verifying its checksum."""
    what = f"checkpoint {stored.id}"
    return Checkpoint(
        stored.id,
        stored.owner_kind,
        stored.owner,
        stored.name,
        await verify_and_decode(stored.snapshot, stored.checksum, what),
        stored.notes,
        _decode_references(stored.files, what),
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
        """Return one checkpoint by its id, or None.

        >>> checkpoint = await bus.checkpoints.get(7)                                 # doctest: +SKIP
        """
        stored = await self._engine.read(get_checkpoint, _check_id(id))
        return None if stored is None else await _verified(stored)

    async def latest(self, owner: str, name: str | None = None, *, kind: str = "agent") -> Checkpoint | None:
        """Return the newest checkpoint of an agent (or, with ``kind="session"``, a session), of one name or any.

        >>> await bus.checkpoints.latest("planner-1", "after_planning")               # doctest: +SKIP
        """
        wanted = (_owner(owner, kind), name_or_none(name, "checkpoint"))
        stored = await self._engine.read(latest_checkpoint, wanted)
        return None if stored is None else await _verified(stored)

    async def list(
        self,
        owner: str | None = None,
        name: str | None = None,
        *,
        kind: str | None = None,
        cursor: str | None = None,
        limit: int = PAGE_SIZE,
    ) -> Page[CheckpointSummary]:
        """Return checkpoints without their snapshots, newest first. ``owner`` is an agent, a session with
        ``kind="session"``; ``kind="composite"`` selects those of ``session.checkpoint_all``.

        >>> page = await bus.checkpoints.list("planner-1", "after_planning")          # doctest: +SKIP
        """
        if owner is not None:
            kind = _owner(owner, kind or "agent").kind
        wanted = HistoryFilter(
            None if kind is None else check_choice(kind, "kind", OWNER_KINDS),
            owner,
            name_or_none(name, "checkpoint"),
            check_row_cursor(cursor),
            check_range(limit, "limit", 1, MAX_PAGE),
        )
        return await self._engine.read(list_checkpoints, wanted)

    async def verify(self, checkpoint: Checkpoint | int, root: Path | None = None) -> Sequence[FileCheck]:
        """Compare the files that a checkpoint refers to with those below ``root`` (default: working directory).

        >>> await bus.checkpoints.verify(7)                                           # doctest: +SKIP
        [FileCheck(path='plan.md', status='changed')]
        """
        directory = check_root(root)
        if checkpoint is None:
            raise InvalidInput(reason="the checkpoint is None; restore() and get() return None if there is none")
        if isinstance(checkpoint, Checkpoint):
            references = checkpoint.files
        else:
            files = await self._engine.read(files_of, _check_id(checkpoint))
            if files is None:
                raise UnknownCheckpoint(id=checkpoint)
            references = _decode_references(files, f"checkpoint {checkpoint}")
        owns_file = self._engine.owns_file
        return await _read(lambda stopped: compare_files(references, directory, owns_file, stopped), references)

    async def save(
        self,
        owner: str,
        name: str,
        snapshot: Any,
        *,
        kind: str = "agent",
        **options: Unpack[CheckpointOptions],
    ) -> Checkpoint:
        """Save a checkpoint for any agent or open session. The options are those of ``Agent.checkpoint``.

        >>> await bus.checkpoints.save("planning-001", "half", {"step": 3}, kind="session")   # doctest: +SKIP
        """
        checked = draft(_owner(owner, kind, OWNERS), name, snapshot, self._limit, **options)
        return await checked.save(self._engine)

    async def delete(self, id: int) -> None:
        """Delete one checkpoint.

        >>> await bus.checkpoints.delete(7)                                           # doctest: +SKIP
        """
        await self._engine.write(delete_checkpoint, _check_id(id))

    async def prune(self, owner: str, name: str | None = None, *, keep: int, kind: str = "agent") -> int:
        """Delete all but the newest ``keep`` checkpoints of a name, or of each name, and return the number deleted.

        >>> await bus.checkpoints.prune("planner-1", keep=3)                          # doctest: +SKIP
        """
        owner_id = _owner(owner, kind)
        check_keep(keep, low=0)
        names = (check_name(name, "checkpoint"),) if name is not None else await self._engine.read(names_of, owner_id)
        deleted = 0
        while names:
            # In bounded transactions, so that other writers do not wait long.
            pruned = await self._engine.write(prune_checkpoints, PruneRequest(owner_id, names, keep, name))
            deleted += pruned.count
            names = pruned.names
        return deleted


def _owner(owner: object, kind: object, kinds: Sequence[str] = OWNER_KINDS) -> Owner:
    return Owner(check_choice(kind, "kind", kinds), check_name(owner, "owner"))


def _check_id(id: object) -> int:
    return check_range(id, "id", 1, MAX_ID)


def _decode_references(text: str, what: str) -> list[FileReference]:
    try:
        return _references(text)
    except msgspec.DecodeError:
        raise DamagedPayload(what=f"the files of {what}") from None


async def _read(work: Callable[[Stopped], list[T]], files: Sequence[object]) -> list[T]:
    """Read files on a thread, which stops when the caller is cancelled."""
    if not files:
        return []
    stop = threading.Event()
    try:
        return await run_in_thread(work, stop.is_set, abandon_on_cancel=True)
    finally:
        stop.set()


def save_periodically(
    agent: Agent, seconds: float, make: Make, name: str, keep: int
) -> AbstractAsyncContextManager[None]:
    """Save the result of ``make`` every ``seconds`` seconds for the length of a block, if it has changed."""
    check_seconds(seconds, "seconds")
    if not callable(make):
        raise OutOfRange(what="make", value=make, allowed="a function that returns the snapshot")
    repeater = _Repeater(agent, make, check_name(name, "checkpoint"), check_keep(keep))
    return _run_repeater(repeater, seconds)


@asynccontextmanager
async def _run_repeater(repeater: _Repeater, seconds: float) -> AsyncIterator[None]:
    import asyncio

    # A separate task: a task group would wrap the exceptions of the caller's block.
    task = asyncio.create_task(repeater.run(seconds), name="agentbus checkpoints")
    try:
        yield
    finally:
        repeater.over = True
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await repeater.finish()


class _Repeater:
    """Saves the result of ``make`` if it differs from the last one."""

    def __init__(self, agent: Agent, make: Make, name: str, keep: int) -> None:
        self._agent = agent
        self._make = make
        self._name = name
        self._keep = keep
        self._last: bytes | None = None
        self.over = False
        """Checked because ``make`` may swallow the cancellation."""

    async def run(self, seconds: float) -> None:
        from agentbus.core.cancellation import await_user_code, log_failure

        timer = self._agent._engine.waiters.listen(())
        while not self.over:
            await timer.wait(seconds)
            try:
                await self._save(await await_user_code(self._make_snapshot()))
            except (AgentFenced, Misuse) as error:
                # The incarnation has ended or the bus is closed: no later checkpoint could be saved.
                log.warning("%s: stopped saving checkpoint %r: %s", self._agent.id, self._name, error)
                return
            except AgentBusError as error:
                log.warning("%s: checkpoint %r failed: %s", self._agent.id, self._name, error)
            except Exception as error:
                log_failure(log, error, "%s: checkpoint %r failed", self._agent.id, self._name)

    async def finish(self) -> None:
        """Save once more. The caller that leaves the block gets the error."""
        if not self._agent.ended:
            await self._save(await self._make_snapshot())

    async def _make_snapshot(self) -> Any:
        """Call ``make`` on the loop, even if it is a plain function: its data must not change during the call."""
        value = self._make()
        return await value if inspect.isawaitable(value) else value

    async def _save(self, value: Any) -> None:
        draft = self._agent._draft_checkpoint(self._name, value, keep=self._keep)
        if draft.snapshot.encoded == self._last:
            return
        self._agent._active = True
        # Unknown until this one is saved: the next one must not be skipped.
        self._last = None
        await draft.save(self._agent._engine)
        self._last = draft.snapshot.encoded
