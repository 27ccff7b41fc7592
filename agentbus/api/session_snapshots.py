"""Composite checkpoints of a session: save, save periodically, save before a block, roll back."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import msgspec

from agentbus.core.codec import LARGE, digest
from agentbus.core.threads import run_in_thread
from agentbus.core.validation import MAX_ID, MAX_NOTES, check_keep, check_name, check_range, check_seconds, check_text
from agentbus.engine.interface import Engine
from agentbus.errors import (
    AgentBusError,
    DamagedPayload,
    ForeignCheckpoint,
    Misuse,
    NotFound,
    UnknownCheckpoint,
    WrongState,
)
from agentbus.operations.checkpoints import Stored, get_checkpoint
from agentbus.operations.session_snapshots import (
    KIND,
    Composed,
    ComposeRequest,
    Composite,
    RollbackRequest,
    checkpoint_session,
    rollback,
)
from agentbus.records import CheckpointSummary, Rollback

log = logging.getLogger("agentbus")

_BEFORE = "before-"
_decode = msgspec.json.Decoder(Composite).decode


class Composites:
    """The composite checkpoints of one session, each of at most ``limit`` bytes."""

    def __init__(self, engine: Engine, session: str, limit: int) -> None:
        self._engine = engine
        self._session = session
        self._limit = limit

    async def save(self, name: str, *, notes: str = "", keep: int | None = None) -> CheckpointSummary:
        kept = None if keep is None else check_keep(keep)
        saved = await self._write(name, check_text(notes, "notes", MAX_NOTES), kept, None)
        session = self._session
        return CheckpointSummary(saved.id, KIND, session, name, notes, session, saved.created, saved.size, 0)

    async def roll_back(self, checkpoint: int) -> Rollback:
        request = await read_composite(self._engine, self._session, checkpoint, self._limit)
        return await self._engine.write(rollback, request)

    @asynccontextmanager
    async def before(self, operation: str, undo: bool) -> AsyncIterator[CheckpointSummary]:
        """Save a checkpoint, run a block, and with ``undo`` roll back after an exception in it."""
        point = await self.save(f"{_BEFORE}{check_name(operation, 'operation')}"[:128])
        try:
            yield point
        except Exception:
            if undo:
                try:
                    await self.roll_back(point.id)
                except AgentBusError as problem:
                    # Raise the exception of the block instead.
                    log.warning("could not roll session %s back to checkpoint %d: %s", self._session, point.id, problem)
            raise

    def every(self, seconds: float, name: str, keep: int) -> AbstractAsyncContextManager[None]:
        check_seconds(seconds, "seconds")
        return self._save_periodically(seconds, check_name(name, "checkpoint"), check_keep(keep))

    @asynccontextmanager
    async def _save_periodically(self, seconds: float, name: str, keep: int) -> AsyncIterator[None]:
        # Imported late: the command line saves composites without an event loop.
        import asyncio

        saver = _PeriodicSaver(self, name, keep)
        # A separate task: a task group would wrap the exceptions of the caller's block.
        task = asyncio.create_task(saver.run(self._engine, seconds), name="agentbus composites")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await saver.finish()

    async def _write(self, name: str, notes: str, keep: int | None, unless: str | None) -> Composed:
        request = ComposeRequest(self._session, check_name(name, "checkpoint"), self._limit, notes, keep, unless)
        return await self._engine.write(checkpoint_session, request)


class _PeriodicSaver:
    """Saves the session periodically, unless it has not changed."""

    def __init__(self, composites: Composites, name: str, keep: int) -> None:
        self._composites = composites
        self._name = name
        self._keep = keep
        self._last: str | None = None

    async def run(self, engine: Engine, seconds: float) -> None:
        timer = engine.waiters.listen(())
        while True:
            await timer.wait(seconds)
            try:
                await self._save()
            except (WrongState, NotFound, Misuse) as error:
                # The session has ended or the bus is closed: no later checkpoint could be saved.
                log.warning("stopped saving checkpoint %r: %s", self._name, error)
                return
            except AgentBusError as error:
                log.warning("checkpoint %r failed: %s", self._name, error)
            except Exception:
                log.exception("checkpoint %r failed", self._name)

    async def finish(self) -> None:
        """Save once more, unless the session ended inside the block."""
        try:
            await self._save()
        except WrongState as error:
            log.debug("final checkpoint %r skipped: %s", self._name, error)

    async def _save(self) -> None:
        self._last = (await self._composites._write(self._name, "", self._keep, self._last)).digest


async def read_composite(engine: Engine, session: str, checkpoint: int, limit: int) -> RollbackRequest:
    """Return the request to roll back to a composite checkpoint of this session. Checkpoints are immutable, so this one
    is read, verified and decoded before the lock is taken; its existence is checked again under the lock."""
    id = check_range(checkpoint, "checkpoint", 1, MAX_ID)
    stored = await engine.read(get_checkpoint, id)
    if stored is None:
        raise UnknownCheckpoint(id=id)
    if stored.owner != session or stored.owner_kind == "agent":
        raise ForeignCheckpoint(
            id=id, owner_kind=stored.owner_kind, owner=stored.owner, session=session, wanted=f"session {session!r}"
        )
    if stored.owner_kind != KIND:
        raise WrongState(
            what="checkpoint", name=id, status="not a composite", action="roll a session back to it",
            advice="use one made by session.checkpoint_all(); session.composites() returns them",
            shell_advice="use one made by agentbus checkpoint create --all; agentbus checkpoint list shows them",
        )  # fmt: skip
    if len(stored.snapshot) > LARGE:
        composite = await run_in_thread(_decode_composite, stored)
    else:
        composite = _decode_composite(stored)
    return RollbackRequest(session, id, composite, limit)


def _decode_composite(stored: Stored) -> Composite:
    encoded = stored.snapshot.encode()
    if digest(encoded) != stored.checksum:
        raise DamagedPayload(what=f"checkpoint {stored.id}")
    try:
        return _decode(encoded)
    except msgspec.DecodeError:
        raise DamagedPayload(what=f"checkpoint {stored.id}") from None
