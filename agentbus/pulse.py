"""The pulse of a process: one beat for all its agents, the renewal of leases, and what is looked after with them."""

from __future__ import annotations

import asyncio
import logging

import anyio

from agentbus.engine.interface import Engine
from agentbus.errors import AgentBusError, DatabaseGone
from agentbus.handle import Handle
from agentbus.operations.processes import BeatRequest, beat
from agentbus.operations.reading import pending
from agentbus.renewal import Renewer
from agentbus.services.expiry import expire_state
from agentbus.services.presence import notice_deaths
from agentbus.watchdog import Watchdog

log = logging.getLogger("agentbus")


class Pulse:
    """The background work of a process that has the bus open."""

    def __init__(self, engine: Engine, every: float, max_blocked: float) -> None:
        self.handles: set[Handle] = set()
        self.watchdog = Watchdog(engine, self.handles, max_blocked)
        self._engine = engine
        self._every = every
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> Renewer:
        # A task of its own, not a task group around the caller's block: that would wrap the caller's exceptions,
        # and demand that the bus is closed by the task that opened it.
        started: asyncio.Future[Renewer] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._run(started), name="agentbus")
        return await started

    async def stop(self) -> BaseException | None:
        """Stop everything; what had ended it before, if something did."""
        if self._task is None:
            return None
        self._task.cancel()
        (ending,) = await asyncio.gather(self._task, return_exceptions=True)
        await self.watchdog.stop()
        return ending

    async def _run(self, started: asyncio.Future[Renewer]) -> None:
        async with anyio.create_task_group() as tasks:
            renewer = Renewer(self._engine, self.watchdog)
            tasks.start_soon(self._beat)
            tasks.start_soon(renewer.run)
            started.set_result(renewer)

    async def _beat(self) -> None:
        """Beat for all agents of this process; look for bells that were missed, dead neighbours and expired state."""
        engine = self._engine
        pulse = engine.hub.listen(())
        while True:
            await pulse.wait(self._every)
            try:
                if await self._beat_once():
                    # It was struck off: whoever waits for a message here must hear that its agent has failed.
                    log.warning("this process was silent for so long that it counted as dead; its agents have failed")
                    engine.hub.ring_all()
                await self._listen_again()
                await notice_deaths(engine)
                await expire_state(engine)
            except AgentBusError as error:
                log.warning("no beat: %s", error)
                if isinstance(error, DatabaseGone):
                    # Whoever only waits would never hear of it.
                    engine.hub.ring_all()
            except Exception:
                log.exception("no beat")

    async def _beat_once(self) -> bool:
        """Say who did something since the last beat; whether this process counted as dead."""
        engine = self._engine
        awake = engine.clock.now().awake
        active = [agent for agent in self.handles if agent.active]
        calls = tuple((agent.id, agent.epoch, awake) for agent in self.handles if agent.active or agent.waiting)
        for agent in active:
            agent.active = False
        try:
            return await engine.write(beat, BeatRequest(engine.process, calls, engine.waited()))
        except BaseException:
            # Nobody heard of it: the next beat must say so.
            for agent in active:
                agent.active = True
            raise

    async def _listen_again(self) -> None:
        """A writer killed between its commit and its bell, or a lease that ran out, rings nobody: look now and then."""
        hub = self._engine.hub
        hub.ring_watchers()
        mailboxes: dict[int, list[str]] = {}
        for channel in hub.channels:
            if channel.startswith("mailbox/"):
                mailboxes.setdefault(int(channel[8:].partition("#")[0]), []).append(channel)
        if mailboxes:
            for mailbox in await self._engine.read(pending, tuple(mailboxes)):
                hub.ring(mailboxes[mailbox])
