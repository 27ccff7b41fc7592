"""``bus.recovery``: what was cut off, what can be done with it, and doing it; and what happens when a bus is opened."""

from __future__ import annotations

import logging
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from agentbus.aside import aside
from agentbus.codec import encode_metadata
from agentbus.engine.interface import Engine
from agentbus.errors import AgentBusError, InvalidInput, OutOfRange, UnknownSession
from agentbus.limits import MAX_PAGE, check_expected, check_name, check_range, check_text, name_or_none
from agentbus.operations.clearing import ClearRequest, IncompleteFilter, clear_agents, incomplete_agents
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
from agentbus.services.composites import read_composite
from agentbus.settings import switched_on

log = logging.getLogger("agentbus.recovery")

AUTO_RESUME = "AGENTBUS_AUTO_RESUME"

Ask = Callable[[RecoveryRecord], bool]
"""Decides whether a session shall be resumed. Runs on a thread, so that it may wait for a person."""


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

    async def at_start(self, ask: Ask | None) -> None:
        """A bus was opened: say what was cut off, and resume what shall be. Nothing of this keeps it from opening."""
        try:
            if not await self._engine.read(recovery_needed, None):
                return
            summary = await self.summary()
            log.warning("%s", describe(summary))
            for session in summary.interrupted if ask is not None else ():
                await self._resume(session, ask)
        except AgentBusError as error:
            log.warning("what was cut off could not be looked at: %s", error)

    async def _resume(self, session: str, ask: Ask | None) -> None:
        """Where something else is the likeliest, or somebody is there who could decide, it is not for us to do."""
        try:
            plan = await self.plan(session)
            if plan.record.owned or plan.record.at_work or plan.options[:1] != _first(plan.options, "resume"):
                return
            if ask is not None and await aside(ask, plan.record, abandon_on_cancel=True):
                done = await plan.resume()
                if done.changed:
                    log.warning("%s was resumed; it waits for %s", session, _names(done.agents) or "nobody")
        except AgentBusError as error:
            log.warning("%s was not resumed: %s", session, error)
        except Exception:
            log.exception("%s was not resumed", session)


class RecoveryPlan:
    """What can be done with a session as it was when the plan was made. Made by ``bus.recovery.plan(id)``.

    Each of its actions is one commit. If the session has changed meanwhile it raises PlanOutdated, and does nothing.

    >>> plan = await bus.recovery.plan("planning-001")                                # doctest: +SKIP
    >>> for option in plan.options:                                                   # doctest: +SKIP
    ...     print(option.action, "–", option.does)
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

    @property
    def session(self) -> SessionRecord:
        """The session.

        >>> plan.session.status, plan.session.error                                   # doctest: +SKIP
        ('interrupted', 'its process died')
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
    def options(self) -> Sequence[RecoveryOption]:
        """What makes sense, the likeliest first; nothing while somebody is at work in the session.

        >>> [option.action for option in plan.options]                                # doctest: +SKIP
        ['resume', 'rollback', 'abandon']
        """
        return self.record.options

    async def resume(self) -> Recovered:
        """Go on with it. Its agents whose life was cut off are expected again: one that registers under the same id
        continues with its state, checkpoint and mailbox. If it goes on already, nothing is done (``changed`` is False).

        >>> (await plan.resume()).agents                                              # doctest: +SKIP
        ['executor-1', 'planner-1']
        """
        return await self._recover(self._request("resume"))

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

    async def rollback(self, checkpoint: int | None = None) -> Recovered:
        """Take documents, state and participants back to a composite checkpoint (by default the newest), then go on
        as after ``resume``. What was there before is saved as a composite too; ``rollback`` says what changed.

        >>> (await plan.rollback(17)).rollback.documents                              # doctest: +SKIP
        ['plan']
        """
        if checkpoint is None:
            if not self.checkpoints:
                raise InvalidInput(reason=f"session {self.session.id!r} has no composite checkpoint to go back to")
            checkpoint = self.checkpoints[0].id
        back = await read_composite(self._engine, self.session.id, checkpoint, self._max_snapshot)
        return await self._recover(self._request("rollback", rollback=back))

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

        ``metadata["follows"]`` of the new session says where it came from. Nobody is in it yet: go on with it by
        ``bus.session(operation, id=done.follow_on)``.

        >>> done = await plan.follow_on("execution", expects={"executor-1": "results"})   # doctest: +SKIP
        >>> async with bus.session("execution", id=done.follow_on) as session:        # doctest: +SKIP
        ...     await session.document("plan").latest()
        """
        check_name(operation, "operation")
        request = BeginRequest(
            f"{operation[:115]}-{secrets.token_hex(6)}" if id is None else check_name(id, "session"),
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


def asking(auto_resume: object) -> Ask | None:
    """What ``connect(auto_resume=…)`` means: who decides, or None if nothing is to be resumed.

    True asks on a terminal, and resumes without a question where there is none; a function is asked instead.
    """
    if auto_resume is None:
        auto_resume = switched_on(AUTO_RESUME)
    if auto_resume is True:
        return ask_on_terminal
    if auto_resume is False:
        return None
    if not callable(auto_resume):
        raise OutOfRange(what="auto_resume", value=auto_resume, allowed="True, False, or a function that decides")
    return auto_resume


def ask_on_terminal(record: RecoveryRecord) -> bool:
    """Ask whoever sits there; yes where nobody does."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return True
    session = record.session
    print(f"Session {session.id} ({session.operation}, {session.progress} %) was interrupted.", file=sys.stderr)
    print("Resume it? [Y/n] ", end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline()
    # Without a line the terminal is gone, or somebody pressed Ctrl-D: that is no yes.
    return answer.strip().lower() in {"", "y", "yes"} if answer else False


def describe(summary: RecoverySummary) -> str:
    """A summary as one line."""
    parts: list[str] = []
    if summary.interrupted:
        parts.append(f"interrupted: {_names(summary.interrupted)}")
    if summary.dead_holders:
        parts.append(f"failed while work waits for them: {_names(summary.dead_holders)}")
    statuses = ", ".join(f"{count} {status}" for status, count in sorted(summary.by_status.items()))
    parts.append(f"incomplete agents: {statuses or 'none'}")
    return f"{'; '.join(parts)}. bus.recovery.plan(session) says what can be done"


def _names(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _first(options: Sequence[RecoveryOption], action: str) -> Sequence[RecoveryOption]:
    return [option for option in options if option.action == action][:1]
