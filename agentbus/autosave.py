"""Checkpoints by the clock: ``agent.checkpoint_every``."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any

from agentbus.errors import AgentBusError, AgentFenced, Misuse, OutOfRange
from agentbus.limits import check_keep, check_name, check_seconds
from agentbus.services.callbacks import guarded, log_failure

if TYPE_CHECKING:
    from agentbus.handle import Handle

log = logging.getLogger("agentbus")

Make = Callable[[], Any]
"""Gives the snapshot, or a coroutine that does."""


def every(agent: Handle, seconds: float, make: Make, name: str, keep: int) -> AbstractAsyncContextManager[None]:
    check_seconds(seconds, "seconds")
    if not callable(make):
        raise OutOfRange(what="make", value=make, allowed="a function that gives the snapshot")
    repeater = _Repeater(agent, make, check_name(name, "checkpoint"), check_keep(keep))
    return _running(repeater, seconds)


@asynccontextmanager
async def _running(repeater: _Repeater, seconds: float) -> AsyncIterator[None]:
    # A task of its own, not a task group: that would wrap the exceptions of the caller's block.
    task = asyncio.create_task(repeater.run(seconds), name="agentbus checkpoints")
    try:
        yield
    finally:
        repeater.over = True
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await repeater.finish()


class _Repeater:
    """Saves what ``make`` gives, if it is not what it gave before."""

    def __init__(self, agent: Handle, make: Make, name: str, keep: int) -> None:
        self._agent = agent
        self._make = make
        self._name = name
        self._keep = keep
        self._last: bytes | None = None
        self.over = False
        """Looked at because ``make`` may swallow the cancellation."""

    async def run(self, seconds: float) -> None:
        pulse = self._agent.engine.hub.listen(())
        while not self.over:
            await pulse.wait(seconds)
            try:
                await self._save(await guarded(self._made()))
            except (AgentFenced, Misuse) as error:
                # Its life is over, or the bus is closed: nothing that comes later could be saved.
                log.warning("%s: no more checkpoints %r: %s", self._agent.id, self._name, error)
                return
            except AgentBusError as error:
                log.warning("%s: no checkpoint %r this time: %s", self._agent.id, self._name, error)
            except Exception as error:
                log_failure(log, error, "%s: no checkpoint %r this time", self._agent.id, self._name)

    async def finish(self) -> None:
        """The last one. Whoever leaves the block hears of it if that cannot be saved."""
        if not self._agent.ended:
            await self._save(await self._made())

    async def _made(self) -> Any:
        """On the loop, also if it is a plain function: what it reads must not change meanwhile."""
        value = self._make()
        return await value if inspect.isawaitable(value) else value

    async def _save(self, value: Any) -> None:
        draft = self._agent.draft_checkpoint(self._name, value, keep=self._keep)
        if draft.snapshot.encoded == self._last:
            return
        self._agent.active = True
        # Until it is known to be saved, the next one is not the same.
        self._last = None
        await draft.save(self._agent.engine)
        self._last = draft.snapshot.encoded
