"""``bus.recovery``: what was cut off, what can be done with it, and doing it; and what an opened bus says of it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import msgspec

from agentbus.codec import encode_metadata
from agentbus.engine.interface import Engine
from agentbus.errors import AgentBusError, InvalidInput, UnknownSession
from agentbus.limits import (
    MAX_PAGE,
    check_expected,
    check_name,
    check_range,
    check_seconds,
    check_text,
    name_or_none,
)
from agentbus.operations.clearing import ClearRequest, IncompleteFilter, clear_agents, incomplete_agents
from agentbus.operations.liveness import convict, overstayed
from agentbus.operations.prospects import Basis, is_little, prospect, recovery_needed, summarize
from agentbus.operations.recovery import RecoverRequest, recover
from agentbus.operations.sessions import BeginRequest
from agentbus.records import (
    AgentRecord,
    CheckpointSummary,
    Page,
    Recovered,
    RecoveryAgent,
    RecoveryOption,
    RecoveryRecord,
    RecoverySummary,
    SessionRecord,
)
from agentbus.records.recovery import named
from agentbus.services.composites import read_composite

if TYPE_CHECKING:
    from agentbus.services.asking import Ask

log = logging.getLogger("agentbus.recovery")

WITHIN = 300.0
"""Seconds in which somebody must come to a session that was resumed, unless told otherwise."""


class Recovery:
    """What was cut off, and the way to go on.

    >>> summary = await bus.recovery.summary()                                        # doctest: +SKIP
    >>> for session in summary.interrupted:                                           # doctest: +SKIP
    ...     plan = await bus.recovery.plan(session)
    ...     print(session, [option.action for option in plan.options])
    """

    def __init__(self, engine: Engine, max_payload: int, max_snapshot: int) -> None:
        self._engine = engine
        self._max_payload = max_payload
        self._max_snapshot = max_snapshot

    async def summary(self) -> RecoverySummary:
        """What was cut off, and how recovery went so far.

        >>> (await bus.recovery.summary()).incomplete                                 # doctest: +SKIP
        3
        """
        if await self._engine.look(is_little, None):
            summary = await self._engine.look(summarize, None)
        else:
            summary = await self._engine.read(summarize, None)
        database, _ = await self._engine.sizes()
        return msgspec.structs.replace(summary, database_bytes=database)

    async def plan(self, session: str) -> RecoveryPlan:
        """What a session came to, and what can be done with it, the likeliest first. Nothing is done yet.

        >>> plan = await bus.recovery.plan("planning-001")                            # doctest: +SKIP
        >>> plan.options[0].action, plan.missing                                      # doctest: +SKIP
        ('resume', {'scope-analyzer': 'planning-scope'})
        >>> await plan.resume()                                                       # doctest: +SKIP
        """
        found = await self._engine.read(prospect, check_name(session, "session"))
        if found is None:
            raise UnknownSession(session=session)
        return RecoveryPlan(self._engine, *found, max_payload=self._max_payload, max_snapshot=self._max_snapshot)

    async def agents(self, *, cursor: str | None = None, limit: int = 100) -> Page[AgentRecord]:
        """The incomplete agents: those that have not ended, and those that failed or stopped in a session that goes on
        or is interrupted; in the order of their ids.

        >>> [(agent.id, agent.status) for agent in (await bus.recovery.agents()).items]   # doctest: +SKIP
        [('executor-1', 'running'), ('planner-1', 'failed')]
        """
        after = name_or_none(cursor, "cursor") or ""
        wanted = IncompleteFilter(after, check_range(limit, "limit", 1, MAX_PAGE))
        return await self._engine.read(incomplete_agents, wanted)

    async def clear(self, agent: str | None = None) -> list[str]:
        """Set aside the agents that are suspect, and those that failed in a session that has not ended: they are
        stopped, what they held goes back, their work waits for nobody. Nothing is deleted. An ``agent`` that is named
        is set aside whatever it does; if it is at work, its next call is refused. Says who was set aside.

        >>> await bus.recovery.clear()                                                # doctest: +SKIP
        ['planner-1']
        """
        request = ClearRequest(name_or_none(agent, "agent"))
        cleared: list[str] = []
        more = True
        while more:
            done = await self._engine.write(clear_agents, request)
            cleared += done.agents
            more = done.more
        return cleared

    async def _at_start(self, ask: Ask | None) -> None:
        """A bus was opened: say what was cut off, and resume what shall be. Nothing of this keeps it from opening."""
        try:
            await self._give_up_waiting()
            if not await self._engine.read(recovery_needed, None):
                return
            summary = await self.summary()
            log.warning("%s", describe(summary))
            if ask is not None:
                for session in summary.interrupted:
                    await self._resume(session, ask)
        except AgentBusError as error:
            log.warning("what was cut off could not be looked at: %s", error)

    async def _give_up_waiting(self) -> None:
        """Interrupt again what was resumed and nobody came for: perhaps nobody sweeps this bus."""
        request = await self._engine.read(overstayed, None)
        while request is not None:
            convicted = await self._engine.write(convict, request)
            request = msgspec.structs.replace(request, sessions=()) if convicted.more else None

    async def _resume(self, session: str, ask: Ask) -> None:
        """Where something else is the likeliest, or somebody is there who could decide, it is not for us to do."""
        try:
            plan = await self.plan(session)
            if plan.record.owned or plan.record.at_work or plan.options[:1] != _first(plan.options, "resume"):
                return
            # Only here: the command line plans without an event loop.
            from agentbus.services.asking import answer

            if await answer(ask, plan.record):
                done = await plan.resume()
                if done.changed:
                    log.warning("%s was resumed; it waits for %s", session, named(done.agents) or "anybody")
        except AgentBusError as error:
            log.warning("%s was not resumed: %s", session, error)


class RecoveryPlan:
    """What can be done with a session as it was when the plan was made. Made by ``bus.recovery.plan(id)``.

    Each of its actions is one commit. If the session has changed meanwhile it raises PlanOutdated, and does nothing.

    >>> plan = await bus.recovery.plan("planning-001")                                # doctest: +SKIP
    >>> print(plan)                                                                   # doctest: +SKIP
    session planning-001 (planning, 40 %) is interrupted: planner-1 failed: its process died
      planner-1 (planner) failed at 40 %; its process died; checkpoint 12 'half'; 3 messages unfinished
    resume: continues it and expects planner-1 again; each continues with its state, checkpoint and mailbox
    abandon: ends it as failed, with your reason
    """

    def __init__(
        self, engine: Engine, record: RecoveryRecord, basis: Basis, *, max_payload: int, max_snapshot: int
    ) -> None:
        self.record = record
        self._engine = engine
        self._basis = basis
        self._max_payload = max_payload
        self._max_snapshot = max_snapshot

    def __repr__(self) -> str:
        actions = ", ".join(option.action for option in self.options)
        return f"<RecoveryPlan {self.session.id}: {actions or 'nothing to do'}>"

    def __str__(self) -> str:
        return str(self.record)

    @property
    def session(self) -> SessionRecord:
        """The session.

        >>> plan.session.status, plan.session.error                                   # doctest: +SKIP
        ('interrupted', 'planner-1 failed: its process died')
        """
        return self.record.session

    @property
    def agents(self) -> Sequence[RecoveryAgent]:
        """Its agents: how far each came, its newest checkpoint, what waits for it.

        >>> [(agent.id, agent.progress, agent.waiting) for agent in plan.agents]      # doctest: +SKIP
        [('planner-1', 40, 3)]
        """
        return self.record.agents

    @property
    def present(self) -> dict[str, str]:
        """Which expected documents are there, by their producers.

        >>> plan.present                                                              # doctest: +SKIP
        {'risk-assessor': 'risks'}
        """
        return self.record.present

    @property
    def missing(self) -> dict[str, str]:
        """Which expected documents are not there, by their producers.

        >>> plan.missing                                                              # doctest: +SKIP
        {'scope-analyzer': 'planning-scope'}
        """
        return self.record.missing

    @property
    def checkpoints(self) -> Sequence[CheckpointSummary]:
        """The composite checkpoints that it could go back to, newest first.

        >>> [(point.id, point.name) for point in plan.checkpoints]                    # doctest: +SKIP
        [(17, 'auto'), (12, 'before-deploy')]
        """
        return self.record.checkpoints

    @property
    def follow_ons(self) -> Sequence[str]:
        """The sessions that were started from it by ``follow_on``, newest first.

        >>> plan.follow_ons                                                           # doctest: +SKIP
        ['planning-001-execution']
        """
        return self.record.follow_ons

    @property
    def options(self) -> Sequence[RecoveryOption]:
        """What makes sense, the likeliest first; nothing while somebody is at work in the session.

        >>> [option.action for option in plan.options]                                # doctest: +SKIP
        ['resume', 'rollback', 'abandon']
        """
        return self.record.options

    async def resume(self, *, within: float | None = WITHIN) -> Recovered:
        """Go on with it. Its agents whose life was cut off are expected again: one that registers under the same id
        continues with its state, checkpoint and mailbox. If it goes on already, nothing is done (``changed`` is False).

        This starts nobody: that is up to you, ``within`` so many seconds. Whoever has not registered by then fails with
        the next sweep (or opening of the bus), and the session is interrupted again. With None there is no hurry.

        >>> (await plan.resume(within=60)).agents                                     # doctest: +SKIP
        ['executor-1', 'planner-1']
        """
        return await self._recover(self._request("resume", within=_within(within)))

    async def complete(self) -> Recovered:
        """End it as completed. Refused while an expected document is missing.

        >>> await plan.complete()                                                     # doctest: +SKIP
        """
        return await self._recover(self._request("complete"))

    async def abandon(self, reason: str) -> Recovered:
        """End it as failed.

        >>> await plan.abandon("the milestone was dropped")                           # doctest: +SKIP
        """
        return await self._recover(self._request("abandon", reason=check_text(reason, "reason", low=1)))

    async def rollback(self, checkpoint: int | None = None, *, within: float | None = WITHIN) -> Recovered:
        """Take documents, state and participants back to a composite checkpoint (by default the newest), then go on
        as after ``resume``. What was there before is saved as a composite too; ``rollback`` says what changed.

        >>> (await plan.rollback(17)).rollback.documents                              # doctest: +SKIP
        ['plan']
        """
        deadline = _within(within)
        if checkpoint is None:
            if not self.checkpoints:
                raise InvalidInput(reason=f"session {self.session.id!r} has no composite checkpoint to go back to")
            checkpoint = self.checkpoints[0].id
        back = await read_composite(self._engine, self.session.id, checkpoint, self._max_snapshot)
        return await self._recover(self._request("rollback", rollback=back, within=deadline))

    async def follow_on(
        self,
        operation: str,
        *,
        id: str | None = None,
        milestone: str | None = None,
        expects: Mapping[str, str] | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> Recovered:
        """Start a new session with copies of this one's documents: a plan becomes an execution. This one is completed,
        unless an expected document is missing.

        Without an ``id`` it is named after this session and the operation, so that a second call says that it is there
        (SessionIdTaken). ``metadata["follows"]`` of the new session says where it came from. Nobody is in it yet: go on
        with it by ``bus.session(operation, id=done.follow_on)``.

        >>> done = await plan.follow_on("execution", expects={"executor-1": "results"})   # doctest: +SKIP
        >>> async with bus.session("execution", id=done.follow_on) as session:        # doctest: +SKIP
        ...     await session.document("plan").latest()
        """
        check_name(operation, "operation")
        request = BeginRequest(
            _follow_on_id(self.session.id, operation) if id is None else check_name(id, "session"),
            operation,
            None,
            name_or_none(milestone, "milestone"),
            None if expects is None else check_expected(expects),
            None if metadata is None else encode_metadata(metadata, self._max_payload),
        )
        return await self._recover(self._request("follow_on", follow_on=request))

    def _request(self, action: str, **options: Any) -> RecoverRequest:
        return RecoverRequest(self.session.id, action, self._basis, **options)

    async def _recover(self, request: RecoverRequest) -> Recovered:
        return await self._engine.write(recover, request)


def _within(seconds: float | None) -> int | None:
    return None if seconds is None else check_seconds(seconds, "within")


def _follow_on_id(session: str, operation: str) -> str:
    """A name that is always the same for the two."""
    name = f"{session}-{operation}"
    if len(name) <= 128:
        return name
    return f"{session[:55]}-{operation[:55]}-{sha256(name.encode()).hexdigest()[:16]}"


def describe(summary: RecoverySummary) -> str:
    """What a bus that is opened has to say, as one line: nothing of those who are at work."""
    parts: list[str] = []
    if summary.interrupted:
        sessions = [
            f"{session} ({counted} of its agents did not complete)" if counted else session
            for session in summary.interrupted
            for counted in (summary.by_session.get(session, 0),)
        ]
        parts.append(f"interrupted: {named(sessions)}; bus.recovery.plan(session) says what can be done")
    if summary.dead_holders:
        parts.append(f"failed, and work waits until they register again: {named(summary.dead_holders)}")
    return "; ".join(parts)


def _first(options: Sequence[RecoveryOption], action: str) -> Sequence[RecoveryOption]:
    return [option for option in options if option.action == action][:1]
