"""Composite checkpoints of a session as its callers make them: by hand, before something major, every so often."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import msgspec

from agentbus.aside import aside
from agentbus.codec import LARGE, digest
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
from agentbus.limits import MAX_ID, MAX_NOTES, check_keep, check_name, check_range, check_seconds, check_text
from agentbus.operations.checkpoints import Stored, get_checkpoint
from agentbus.operations.composites import (
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
    """The composite checkpoints of one session; each of at most ``limit`` bytes."""

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
        """A checkpoint to begin with; after an exception in the block, and if asked for, the way back to it."""
        point = await self.save(f"{_BEFORE}{check_name(operation, 'operation')}"[:128])
        try:
            yield point
        except Exception:
            if undo:
                try:
                    await self.roll_back(point.id)
                except AgentBusError as problem:
                    # The exception of the block matters more.
                    log.warning("%s could not be rolled back to checkpoint %d: %s", self._session, point.id, problem)
            raise

    def every(self, seconds: float, name: str, keep: int) -> AbstractAsyncContextManager[None]:
        check_seconds(seconds, "seconds")
        return self._running(seconds, check_name(name, "checkpoint"), check_keep(keep))

    @asynccontextmanager
    async def _running(self, seconds: float, name: str, keep: int) -> AsyncIterator[None]:
        # Imported only here: the command line makes composites without.
        import asyncio

        saver = _Saver(self, name, keep)
        # A task of its own, not a task group: that would wrap the exceptions of the caller's block.
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


class _Saver:
    """Saves the session as it is, unless it is what it was."""

    def __init__(self, composites: Composites, name: str, keep: int) -> None:
        self._composites = composites
        self._name = name
        self._keep = keep
        self._last: str | None = None

    async def run(self, engine: Engine, seconds: float) -> None:
        pulse = engine.hub.listen(())
        while True:
            await pulse.wait(seconds)
            try:
                await self._save()
            except (WrongState, NotFound, Misuse) as error:
                # The session has ended, or the bus is closed: nothing that comes later could be saved.
                log.warning("no more checkpoints %r: %s", self._name, error)
                return
            except AgentBusError as error:
                log.warning("no checkpoint %r this time: %s", self._name, error)
            except Exception:
                log.exception("no checkpoint %r this time", self._name)

    async def finish(self) -> None:
        """The last one; a session that was ended inside the block is not saved any more."""
        try:
            await self._save()
        except WrongState as error:
            log.debug("no last checkpoint %r: %s", self._name, error)

    async def _save(self) -> None:
        self._last = (await self._composites._write(self._name, "", self._keep, self._last)).digest


async def read_composite(engine: Engine, session: str, checkpoint: int, limit: int) -> RollbackRequest:
    """The composite that this session shall go back to. A checkpoint never changes, so that it can be read, checked and
    decoded before anybody waits for the lock; that it is still there is looked at again then."""
    id = check_range(checkpoint, "checkpoint", 1, MAX_ID)
    stored = await engine.read(get_checkpoint, id)
    if stored is None:
        raise UnknownCheckpoint(id=id)
    if stored.owner != session or stored.owner_kind == "agent":
        raise ForeignCheckpoint(
            id=id, owner_kind=stored.owner_kind, owner=stored.owner, session=session, wanted=f"session {session!r}"
        )
    if stored.owner_kind != KIND:
        advice = "take one made by session.checkpoint_all(); session.composites() lists them"
        raise WrongState(
            what="checkpoint", name=id, status="a snapshot of your own", action="roll a session back to it",
            advice=advice,
        )  # fmt: skip
    if len(stored.snapshot) > LARGE:
        composite = await aside(_open, stored)
    else:
        composite = _open(stored)
    return RollbackRequest(session, id, composite, limit)


def _open(stored: Stored) -> Composite:
    encoded = stored.snapshot.encode()
    if digest(encoded) != stored.checksum:
        raise DamagedPayload(what=f"checkpoint {stored.id}")
    try:
        return _decode(encoded)
    except msgspec.DecodeError:
        raise DamagedPayload(what=f"checkpoint {stored.id}") from None
