"""Sessions: start, continuation, changes of status, joining and queries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from agentbus.core.clock import Now
from agentbus.core.codec import decode, plain
from agentbus.core.validation import MAX_ID, PAGE_SIZE
from agentbus.errors import (
    AgentBusError,
    SessionDiffers,
    SessionEnded,
    SessionExists,
    SessionLost,
    UnknownSession,
    WrongState,
)
from agentbus.operations.agent_status import end, interrupt, resume
from agentbus.operations.common import SESSION_ENDED, closed_session_error, fence, page
from agentbus.operations.events import event, record
from agentbus.operations.processes import PeerProcess
from agentbus.operations.protocol import Actor, Op, Outcome, Query, Row, operation, single_operation
from agentbus.records import CutOffSession, Page, SessionRecord

_NAMED = 100
"""Agents that an event lists."""
_ACTIONS = {
    # New status: the statuses it may follow, and the name of the action.
    "active": (frozenset({"paused", "interrupted"}), "continue it"),
    "paused": (frozenset({"active"}), "pause it"),
    "interrupted": (frozenset({"active", "paused"}), "interrupt it"),
    "completed": (frozenset({"active", "paused", "interrupted"}), "complete it"),
    "failed": (frozenset({"active", "paused", "interrupted"}), "fail it"),
}


class JoinRequest(msgspec.Struct, frozen=True):
    """Move an agent into a session, from the one it was in."""

    actor: Actor
    session: str


@operation(durable=True)
def join_session(requests: Sequence[JoinRequest], now: Now) -> Op[list[Outcome[str | None]]]:
    """Move agents into sessions. The outcome is the open session that the agent left, if any."""
    refused = yield from fence(request.actor for request in requests)
    outcomes: list[Outcome[str | None]] = []
    for request in requests:
        error = refused.get(request.actor) or (yield from closed_session_error(request.session, "join it"))
        outcomes.append(error or (yield from _join(request, now)))
    return outcomes


def _join(request: JoinRequest, now: Now) -> Op[str | None]:
    agent = request.actor.agent
    ((*_, before),) = yield Query("agent_incarnation", (agent,))
    if before == request.session:
        return None
    yield Query("agent_join_session", (request.session, now.wall, agent))
    left = None if before is None or (yield from closed_session_error(before, "leave it")) else before
    facts = {"session": request.session} if left is None else {"session": request.session, "left": left}
    yield from record([event(now.wall, "agent_joined", ("agent", agent), agent, **facts)])
    yield from resume(request.session, agent, now)
    if left is not None:
        # It may have been the last live agent there, after others failed.
        yield from interrupt([], [], None, now, [left])
    return left


class StartSessionRequest(msgspec.Struct, frozen=True):
    """Start a session owned by this process, or continue an interrupted one. None leaves the present value.

    Without a process the session has no owner.
    """

    session: str
    operation: str
    process: int | None
    milestone: str | None = None
    expected: dict[str, str] | None = None
    metadata: str | None = None


class StartedSession(msgspec.Struct, frozen=True):
    """A session that was started or continued."""

    session: str
    operation: str
    milestone: str | None
    continued: bool


class ChangeRequest(msgspec.Struct, frozen=True):
    """Change the status of a session; with an ``owner``, only while that process owns it.

    ``leaving``: the owner leaves its block; a session that already has this status may retain it.
    """

    session: str
    status: str
    reason: str | None = None
    owner: int | None = None
    leaving: bool = False
    by: str | None = None


class SessionProgressRequest(msgspec.Struct, frozen=True):
    """Set the progress of a session."""

    session: str
    percent: int


class SessionFilter(msgspec.Struct, frozen=True):
    """Selects sessions; None matches all. ``cursor`` is the creation time and id of the last one seen."""

    status: tuple[str, ...] | None = None
    operation: str | None = None
    milestone: str | None = None
    cursor: tuple[int, str] = (MAX_ID, "")
    limit: int = PAGE_SIZE


class SessionStatus(msgspec.Struct, frozen=True):
    """A session, and the process that owns it."""

    operation: str
    milestone: str | None
    status: str
    expected: str
    process: int | None
    process_status: str | None
    host: str
    pid: int | None
    started: str
    bell: str | None

    @property
    def owned(self) -> bool:
        """Return whether a live process is in its block."""
        return self.process_status == "live"

    @property
    def owner(self) -> dict[str, Any] | None:
        if self.process is None or self.pid is None:
            return None
        return msgspec.structs.asdict(PeerProcess(self.process, self.host, self.pid, self.started, self.bell))


@single_operation(durable=True)
def start_session(request: StartSessionRequest, now: Now) -> Op[Outcome[StartedSession]]:
    """Start sessions, or continue those without a live owner."""
    current = yield from read_session_status(request.session)
    if current is None:
        return (yield from _insert_session(request, now))
    error = _cannot_continue(request, current)
    return error or (yield from _continue(request, current, now))


@single_operation(durable=True)
def change_session(request: ChangeRequest, now: Now) -> Op[Outcome[None]]:
    """Change the status of sessions by the allowed transitions, and record an event."""
    current = yield from read_session_status(request.session)
    if current is None:
        return UnknownSession(session=request.session)
    if request.owner is not None and current.process != request.owner:
        holder = "no process" if current.pid is None else f"process {current.pid}"
        return SessionLost(session=request.session, holder=holder)
    before, action = _ACTIONS[request.status]
    if current.status in before:
        yield from _change(request, current, now)
    elif request.leaving and current.status == request.status:
        yield Query("session_disown", (request.session,))
    else:
        error = SessionEnded if current.status in SESSION_ENDED else WrongState
        advice = f"it must be {' or '.join(sorted(before))}"
        return error(what="session", name=request.session, status=current.status, action=action, advice=advice)
    return None


@single_operation(durable=True)
def advance_session(request: SessionProgressRequest, now: Now) -> Op[Outcome[None]]:
    """Record the progress of sessions."""
    rows = yield Query("session_progress", (request.percent, now.wall, request.session))
    return None if rows else (yield from closed_session_error(request.session, "progress"))


def get_session(session: str, now: Now) -> Op[SessionRecord | None]:
    rows = yield Query("session_get", (session,))
    return _record(rows[0]) if rows else None


def list_sessions(wanted: SessionFilter, now: Now) -> Op[Page[SessionRecord]]:
    status = None if wanted.status is None else list(wanted.status)
    values = (*wanted.cursor, status, wanted.operation, wanted.milestone, wanted.limit + 1)
    if wanted.status is None or SESSION_ENDED.intersection(wanted.status):
        rows = yield Query("session_list", values)
    else:
        rows = yield Query("session_list_open", values)
    return page(rows, wanted.limit, _record, lambda session: f"{session.created}.{session.id}")


def interrupted_sessions(_: None, now: Now) -> Op[list[CutOffSession]]:
    """Return sessions that were interrupted, active ones with a failed agent, and those without agents while work
    waits."""
    rows = yield Query("session_recoverable")
    found: list[CutOffSession] = []
    for id, milestone, what, status, error, agents, live, failed, *noted, called in rows:
        inactive = now.wall - max(at for at in noted if at is not None)
        if called is not None:
            # Activity of agents is measured in awake time: sleep of the machine is not silence.
            inactive = min(inactive, now.awake - called)
        current = status if status != "active" else "degraded" if failed else "deserted"
        # The wall clock may have been set back meanwhile.
        found.append(
            CutOffSession(id, milestone, what, current, max(0, inactive), agents, live, failed, error)
        )  # fmt: skip
    return found


def stale_sessions(silent: int, now: Now) -> Op[list[SessionRecord]]:
    """Return open sessions without activity for ``silent`` milliseconds. Activity of agents is measured in awake time:
    sleep of the machine is not silence."""
    rows = yield Query("session_stale", (now.wall - silent, now.awake - silent, now.awake))
    return [_record(row) for row in rows]


def count_agents(session: str, now: Now) -> Op[dict[str, int]]:
    rows = yield Query("session_counts", (session,))
    return {row[0]: row[1] for row in rows}


def missing_documents(session: str, now: Now) -> Op[dict[str, str]]:
    """Return the expected documents that do not exist yet, by producer."""
    rows = yield Query("session_get", (session,))
    documents = yield Query("document_list", (session,))
    saved = {document[0] for document in documents}
    expected = _record(rows[0]).expected if rows else {}
    return {producer: name for producer, name in expected.items() if name not in saved}


def read_session_status(session: str) -> Op[SessionStatus | None]:
    rows = yield Query("session_owner", (session,))
    return SessionStatus(*rows[0]) if rows else None


def _insert_session(request: StartSessionRequest, now: Now) -> Op[StartedSession]:
    yield Query(
        "session_insert",
        (
            request.session, request.operation, request.milestone, request.process, plain(request.expected or {}),
            request.metadata or "{}", now.wall, now.wall,
        ),
    )  # fmt: skip
    facts = {"operation": request.operation, "milestone": request.milestone, "process": request.process}
    yield from record([event(now.wall, "session_started", ("session", request.session), None, **facts)])
    return StartedSession(request.session, request.operation, request.milestone, False)


def _cannot_continue(request: StartSessionRequest, current: SessionStatus) -> AgentBusError | None:
    for differs in ("operation", "milestone"):
        given, found = getattr(request, differs), getattr(current, differs)
        if given != found and given is not None and found is not None:
            return SessionDiffers(session=request.session, differs=differs, found=found, given=given)
    if current.status in SESSION_ENDED:
        return SessionEnded(what="session", name=request.session, status=current.status, action="continue it")
    if current.owned:
        # Also if it is interrupted: its owner, still in the block, may continue it at any moment.
        return SessionExists(
            session=request.session, status=current.status, pid=current.pid, process=current.owner
        )  # fmt: skip
    return None


def _continue(request: StartSessionRequest, current: SessionStatus, now: Now) -> Op[StartedSession]:
    expected = {**decode(current.expected), **(request.expected or {})}
    yield Query(
        "session_continue",
        (request.process, request.milestone, plain(expected), request.metadata, now.wall, request.session),
    )
    facts = {"before": current.status, "process": request.process}
    yield from record([event(now.wall, "session_continued", ("session", request.session), None, **facts)])
    return StartedSession(request.session, current.operation, request.milestone or current.milestone, True)


def _change(request: ChangeRequest, current: SessionStatus, now: Now) -> Op[None]:
    process = current.process
    if (request.leaving and request.status == "interrupted") or (request.status == "active" and not current.owned):
        # No process is in its block; a missing owner must not interrupt the session again.
        process = None
    error = request.reason if request.status in {"failed", "interrupted"} else None
    ended = now.wall if request.status in SESSION_ENDED else None
    yield Query("session_change", (request.status, error, now.wall, ended, process, request.session))
    kind = "session_continued" if request.status == "active" else f"session_{request.status}"
    facts: dict[str, Any] = {"before": current.status}
    if request.reason is not None:
        facts["error" if request.status == "failed" else "reason"] = request.reason
    expected = (yield Query("session_expected", (request.session,))) if request.status in SESSION_ENDED else []
    stopped = [agent for (agent,) in expected]
    if stopped:
        facts["stopped"] = stopped[:_NAMED]
    yield from record([event(now.wall, kind, ("session", request.session), request.by, **facts)])
    # Stop agents that never registered, after the session, so that their end does not interrupt it.
    yield from end(stopped, "stopped", f"its session {request.status}", None, now)


def _record(row: Row) -> SessionRecord:
    values: list[Any] = list(row)
    values[6] = decode(row[6])
    values[7] = decode(row[7])
    values[12] = bool(row[12])
    return SessionRecord(*values)
