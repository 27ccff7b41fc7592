"""Recovery of interrupted sessions: ``bus.recovery``, its plans, and auto-resume when a bus is opened."""

from __future__ import annotations

import inspect
import logging
import sys
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import Any

import msgspec

from agentbus.api.session import session_request
from agentbus.api.session_snapshots import read_composite
from agentbus.core.validation import (
    MAX_PAGE,
    PAGE_SIZE,
    check_name,
    check_range,
    check_seconds,
    check_text,
    error_text,
    name_or_none,
    read_flag,
)
from agentbus.engine.interface import Engine
from agentbus.errors import AgentBusError, InvalidInput, OutOfRange, UnknownSession
from agentbus.errors.base import shown
from agentbus.operations.agent_deletion import ClearRequest, IncompleteFilter, clear_agents, incomplete_agents
from agentbus.operations.liveness import find_overdue, mark_failed
from agentbus.operations.recovery import PlanBasis, RecoverRequest, is_small, plan, recover, recovery_needed, summarize
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
from agentbus.records.recovery import join_names

log = logging.getLogger("agentbus.recovery")

WITHIN = 300.0
"""Seconds within which the agents of a resumed session must register, by default."""
AUTO_RESUME = "AGENTBUS_AUTO_RESUME"

Ask = Callable[[RecoveryRecord], bool | Awaitable[bool]]
"""Decides whether to resume a session: on a thread, where it may wait for a person, or on the loop if async."""


class Recovery:
    """Interrupted sessions and incomplete agents, and the ways to resume them.

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
        """Return a summary of interrupted sessions, incomplete agents and past recoveries.

        >>> (await bus.recovery.summary()).incomplete                                 # doctest: +SKIP
        3
        """
        if await self._engine.read_inline(is_small, None):
            summary = await self._engine.read_inline(summarize, None)
        else:
            summary = await self._engine.read(summarize, None)
        database, _ = await self._engine.sizes()
        return msgspec.structs.replace(summary, database_bytes=database)

    async def plan(self, session: str, *, by: str | None = None) -> RecoveryPlan:
        """Return the state of a session and its recovery options, most likely first. Nothing is changed yet. The audit
        log names the operator ``by`` for what the plan does.

        >>> plan = await bus.recovery.plan("planning-001")                            # doctest: +SKIP
        >>> plan.options[0].action, plan.missing                                      # doctest: +SKIP
        ('resume', {'scope-analyzer': 'planning-scope'})
        >>> await plan.resume()                                                       # doctest: +SKIP
        """
        found = await self._engine.read(plan, check_name(session, "session"))
        if found is None:
            raise UnknownSession(session=session)
        return RecoveryPlan(self._engine, *found, max_payload=self._max_payload, max_snapshot=self._max_snapshot, by=by)

    async def agents(self, *, cursor: str | None = None, limit: int = PAGE_SIZE) -> Page[AgentRecord]:
        """Return the incomplete agents, ordered by id: those that have not ended, and those that failed or stopped in a
        session that is active or interrupted.

        >>> [(agent.id, agent.status) for agent in (await bus.recovery.agents()).items]   # doctest: +SKIP
        [('executor-1', 'running'), ('planner-1', 'failed')]
        """
        after = name_or_none(cursor, "cursor") or ""
        wanted = IncompleteFilter(after, check_range(limit, "limit", 1, MAX_PAGE))
        return await self._engine.read(incomplete_agents, wanted)

    async def clear(self, agent: str | None = None, *, by: str | None = None) -> list[str]:
        """Stop the agents that are suspect or that failed in a session that has not ended, release what they held, and
        return their ids. Nothing is deleted. A named ``agent`` is stopped whatever its status; if it is running, its
        next call is refused.

        >>> await bus.recovery.clear()                                                # doctest: +SKIP
        ['planner-1']
        """
        request = ClearRequest(name_or_none(agent, "agent"), by)
        cleared: list[str] = []
        more = True
        while more:
            done = await self._engine.write(clear_agents, request)
            cleared += done.agents
            more = done.more
        return cleared

    async def _on_open(self, ask: Ask | None) -> None:
        """Log what was interrupted when a bus opens, and resume what ``ask`` approves. Errors do not fail the open."""
        try:
            await self._interrupt_overdue()
            if not await self._engine.read(recovery_needed, None):
                return
            summary = await self.summary()
            log.warning("%s", describe(summary))
            if ask is not None:
                for session in summary.interrupted:
                    await self._resume(session, ask)
        except AgentBusError as error:
            log.warning("could not check for interrupted sessions: %s", error)

    async def _interrupt_overdue(self) -> None:
        """Interrupt resumed sessions whose agents did not register in time: there may be no monitor to do it."""
        request = await self._engine.read(find_overdue, None)
        while request is not None:
            failed = await self._engine.write(mark_failed, request)
            request = msgspec.structs.replace(request, sessions=()) if failed.more else None

    async def _resume(self, session: str, ask: Ask) -> None:
        """Resume a session if that is the first option and no owner or agent of it is active."""
        try:
            plan = await self.plan(session)
            if plan.record.owned or plan.record.at_work or plan.options[:1] != _first(plan.options, "resume"):
                return
            if await should_resume(ask, plan.record):
                done = await plan.resume()
                if done.changed:
                    log.warning("resumed session %s; waiting for %s", session, join_names(done.agents) or "any agent")
        except AgentBusError as error:
            log.warning("could not resume session %s: %s", session, error)


class RecoveryPlan:
    """The recovery options of a session at the time of planning, made by ``bus.recovery.plan(id)``.

    Each action is one commit. If the session has changed since, it raises PlanOutdated and does nothing.

    >>> plan = await bus.recovery.plan("planning-001")                                # doctest: +SKIP
    >>> print(plan)                                                                   # doctest: +SKIP
    session planning-001 (planning, 40 %) is interrupted: planner-1 failed: its process died
      planner-1 (planner) failed at 40 %; its process died; checkpoint 12 'half'; 3 messages unfinished
    resume: continues it and expects planner-1 again; each continues with its state, checkpoint and mailbox
    abandon: ends it as failed, with your reason
    """

    record: RecoveryRecord
    """Everything the plan is based on, as a record."""

    def __init__(
        self,
        engine: Engine,
        record: RecoveryRecord,
        basis: PlanBasis,
        *,
        max_payload: int,
        max_snapshot: int,
        by: str | None = None,
    ) -> None:
        self.record = record
        self._engine = engine
        self._basis = basis
        self._by = by
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
        """The agents of the session: progress, newest checkpoint, waiting messages.

        >>> [(agent.id, agent.progress, agent.waiting) for agent in plan.agents]      # doctest: +SKIP
        [('planner-1', 40, 3)]
        """
        return self.record.agents

    @property
    def present(self) -> dict[str, str]:
        """Expected documents that exist, by producer.

        >>> plan.present                                                              # doctest: +SKIP
        {'risk-assessor': 'risks'}
        """
        return self.record.present

    @property
    def missing(self) -> dict[str, str]:
        """Expected documents that are missing, by producer.

        >>> plan.missing                                                              # doctest: +SKIP
        {'scope-analyzer': 'planning-scope'}
        """
        return self.record.missing

    @property
    def checkpoints(self) -> Sequence[CheckpointSummary]:
        """Composite checkpoints that ``rollback`` can restore, newest first.

        >>> [(point.id, point.name) for point in plan.checkpoints]                    # doctest: +SKIP
        [(17, 'auto'), (12, 'before-deploy')]
        """
        return self.record.checkpoints

    @property
    def follow_ons(self) -> Sequence[str]:
        """Sessions started from this one by ``follow_on``, newest first.

        >>> plan.follow_ons                                                           # doctest: +SKIP
        ['planning-001-execution']
        """
        return self.record.follow_ons

    @property
    def options(self) -> Sequence[RecoveryOption]:
        """Sensible actions, most likely first; none while an agent of the session is active.

        >>> [option.action for option in plan.options]                                # doctest: +SKIP
        ['resume', 'rollback', 'abandon']
        """
        return self.record.options

    async def resume(self, *, within: float | None = WITHIN) -> Recovered:
        """Resume the session. Its interrupted agents are expected again: one that registers under the same id continues
        with its state, checkpoint and mailbox. An active session is not changed (``changed`` is False).

        This starts no process. An agent that has not registered ``within`` seconds fails with the next sweep or open of
        the bus, and the session is interrupted again. None means no limit.

        >>> (await plan.resume(within=60)).agents                                     # doctest: +SKIP
        ['executor-1', 'planner-1']
        """
        return await self._recover(self._request("resume", within=_deadline(within)))

    async def complete(self) -> Recovered:
        """End the session as completed. Refused while an expected document is missing.

        >>> await plan.complete()                                                     # doctest: +SKIP
        """
        return await self._recover(self._request("complete"))

    async def abandon(self, reason: str) -> Recovered:
        """End the session as failed.

        >>> await plan.abandon("the milestone was dropped")                           # doctest: +SKIP
        """
        return await self._recover(self._request("abandon", reason=check_text(reason, "reason", low=1)))

    async def rollback(self, checkpoint: int | None = None, *, within: float | None = WITHIN) -> Recovered:
        """Restore documents, state and participants from a composite checkpoint (default: the newest), then resume as
        ``resume`` does. The present state is saved as a composite first; ``rollback`` of the result lists the changes.

        >>> (await plan.rollback(17)).rollback.documents                              # doctest: +SKIP
        ['plan']
        """
        deadline = _deadline(within)
        if checkpoint is None:
            if not self.checkpoints:
                raise InvalidInput(reason=f"session {self.session.id!r} has no composite checkpoint to roll back to")
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

        Without an ``id`` the new session is named after this one and the operation, so that a second call raises
        SessionIdTaken. Its ``metadata["follows"]`` names this session. It has no owner yet: enter it with
        ``bus.session(operation, id=done.follow_on)``.

        >>> done = await plan.follow_on("execution", expects={"executor-1": "results"})   # doctest: +SKIP
        >>> async with bus.session("execution", id=done.follow_on) as session:        # doctest: +SKIP
        ...     await session.document("plan").latest()
        """
        check_name(operation, "operation")
        id = _follow_on_id(self.session.id, operation) if id is None else id
        request = session_request(operation, None, milestone, id, expects, metadata, self._max_payload)
        return await self._recover(self._request("follow_on", follow_on=request))

    def _request(self, action: str, **options: Any) -> RecoverRequest:
        return RecoverRequest(self.session.id, action, self._basis, by=self._by, **options)

    async def _recover(self, request: RecoverRequest) -> Recovered:
        return await self._engine.write(recover, request)


def _deadline(seconds: float | None) -> int | None:
    return None if seconds is None else check_seconds(seconds, "within")


def _follow_on_id(session: str, operation: str) -> str:
    """Return an id that is the same for all calls with this session and operation."""
    name = f"{session}-{operation}"
    if len(name) <= 128:
        return name
    return f"{session[:55]}-{operation[:55]}-{sha256(name.encode()).hexdigest()[:16]}"


def describe(summary: RecoverySummary) -> str:
    """Describe interrupted sessions and dead holders in one line for the log."""
    parts: list[str] = []
    if summary.interrupted:
        sessions = [
            f"{session} ({counted} of its agents did not complete)" if counted else session
            for session in summary.interrupted
            for counted in (summary.by_session.get(session, 0),)
        ]
        parts.append(f"interrupted: {join_names(sessions)}; see bus.recovery.plan(session)")
    if summary.dead_holders:
        parts.append(f"failed with work waiting until they register again: {join_names(summary.dead_holders)}")
    return "; ".join(parts)


def _first(options: Sequence[RecoveryOption], action: str) -> Sequence[RecoveryOption]:
    return [option for option in options if option.action == action][:1]


def auto_resume_decider(auto_resume: object) -> Ask | None:
    """Return the function that ``connect(auto_resume=…)`` selects, or None to resume nothing.

    True asks on a terminal and resumes without asking where there is none. A function is called with the RecoveryRecord
    of each interrupted session.
    """
    if auto_resume is None:
        auto_resume = read_flag(AUTO_RESUME)
    if auto_resume is True:
        return ask_on_terminal
    if auto_resume is False:
        return None
    if not callable(auto_resume):
        raise OutOfRange(what="auto_resume", value=auto_resume, allowed="True, False, or a function that decides")
    from agentbus.core.cancellation import check_callback

    check_callback(auto_resume, "auto_resume", "record")
    return auto_resume


async def should_resume(ask: Ask, record: RecoveryRecord) -> bool:
    """Return True if ``ask`` approves resuming the session. An error or an answer other than a bool is logged as no."""
    from asyncio import CancelledError

    from agentbus.core.cancellation import await_user_code, is_being_cancelled, log_failure, unwrap_exit

    session = record.session.id
    try:
        answer: object = await _ask_on_thread(ask, record)
        if inspect.isawaitable(answer):
            answer = await await_user_code(answer)
    except (Exception, CancelledError) as error:
        if is_being_cancelled():
            raise
        # One line per session; the traceback is logged at DEBUG.
        cause = unwrap_exit(error)
        log.warning("session %s not resumed: auto_resume raised %s", session, " ".join(error_text(cause).split()))
        log_failure(log, cause, "auto_resume failed", level=logging.DEBUG)
        return False
    if not isinstance(answer, bool):
        log.warning(
            "session %s not resumed: auto_resume returned %.100s, expected True or False", session, shown(answer, repr)
        )
        return False
    return answer


async def _ask_on_thread(ask: Ask, record: RecoveryRecord) -> object:
    """Call ``ask`` on a daemon thread: waiting for a person must not keep the process from ending."""
    import asyncio

    from agentbus.core.cancellation import call_wrapping_exits

    loop = asyncio.get_running_loop()
    answered: asyncio.Future[object] = loop.create_future()

    def settle(answer: object, error: BaseException | None) -> None:
        if answered.done():
            return  # the caller was cancelled
        if error is None:
            answered.set_result(answer)
        else:
            answered.set_exception(error)

    def run() -> None:
        answer: object = None
        problem: BaseException | None = None
        try:
            answer = call_wrapping_exits(lambda: ask(record))
        except BaseException as error:
            problem = error
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle, answer, problem)

    threading.Thread(target=run, name="agentbus-asking", daemon=True).start()
    return await answered


def ask_on_terminal(record: RecoveryRecord) -> bool:
    """Ask on the terminal; return True where there is none."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return True
    session = record.session
    print(f"Session {session.id} ({session.operation}, {session.progress} %) was interrupted.", file=sys.stderr)
    print("Resume it? [Y/n] ", end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline()
    # No line at all means that the terminal is gone or Ctrl-D was pressed: not a yes.
    return answer.strip().lower() in {"", "y", "yes"} if answer else False
