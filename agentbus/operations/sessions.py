"""Sessions: how they begin, go on, change their status and end; and what people see of them."""

from __future__ import annotations

from typing import Any

import msgspec

from agentbus.clock import Now
from agentbus.codec import decode, plain
from agentbus.errors import (
    AgentBusError,
    SessionDiffers,
    SessionEnded,
    SessionExists,
    SessionLost,
    UnknownSession,
    WrongState,
)
from agentbus.limits import MAX_ID
from agentbus.operations import Op, Outcome, Query, Row, one_by_one
from agentbus.operations.closed import ENDED, not_open
from agentbus.operations.endings import end
from agentbus.operations.events import event, record
from agentbus.operations.paging import page
from agentbus.operations.processes import Neighbour
from agentbus.records import CutOffSession, Page, SessionRecord

_NAMED = 100
"""Agents that an event names."""
_ACTIONS = {
    # The new status: from which it may come, and what that is called.
    "active": (frozenset({"paused", "interrupted"}), "continue it"),
    "paused": (frozenset({"active"}), "pause it"),
    "interrupted": (frozenset({"active", "paused"}), "interrupt it"),
    "completed": (frozenset({"active", "paused", "interrupted"}), "complete it"),
    "failed": (frozenset({"active", "paused", "interrupted"}), "fail it"),
}


class BeginRequest(msgspec.Struct, frozen=True):
    """A session that this process is in from now on: a new one, or one that was cut off. None leaves what is there.

    Without a process nobody owns it.
    """

    session: str
    operation: str
    process: int | None
    milestone: str | None = None
    expected: dict[str, str] | None = None
    metadata: str | None = None


class Begun(msgspec.Struct, frozen=True):
    """A session that has begun, or goes on."""

    session: str
    operation: str
    milestone: str | None
    continued: bool


class ChangeRequest(msgspec.Struct, frozen=True):
    """A new status. With an ``owner``, only while that process owns the session.

    ``leaving``: the owner leaves its block; a session that has this status already may keep it.
    """

    session: str
    status: str
    reason: str | None = None
    owner: int | None = None
    leaving: bool = False


class SessionProgressRequest(msgspec.Struct, frozen=True):
    """How far a session is."""

    session: str
    percent: int


class SessionFilter(msgspec.Struct, frozen=True):
    """Which sessions to list; None takes all. ``cursor`` is the age and id of the last one seen."""

    status: tuple[str, ...] | None = None
    operation: str | None = None
    milestone: str | None = None
    cursor: tuple[int, str] = (MAX_ID, "")
    limit: int = 100


class Standing(msgspec.Struct, frozen=True):
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
        """Whether a live process is in its block."""
        return self.process_status == "live"

    @property
    def owner(self) -> dict[str, Any] | None:
        if self.process is None or self.pid is None:
            return None
        return msgspec.structs.asdict(Neighbour(self.process, self.host, self.pid, self.started, self.bell))


@one_by_one(durable=True)
def begin_session(request: BeginRequest, now: Now) -> Op[Outcome[Begun]]:
    """Begin sessions, or go on with those that nobody is in any more."""
    standing = yield from standing_of(request.session)
    if standing is None:
        return (yield from _start(request, now))
    error = _cannot_continue(request, standing)
    return error or (yield from _continue(request, standing, now))


@one_by_one(durable=True)
def change_session(request: ChangeRequest, now: Now) -> Op[Outcome[None]]:
    """Change the status of sessions: only as the design allows it, and with a line in the trail."""
    standing = yield from standing_of(request.session)
    if standing is None:
        return UnknownSession(session=request.session)
    if request.owner is not None and standing.process != request.owner:
        holder = "nobody" if standing.pid is None else f"process {standing.pid}"
        return SessionLost(session=request.session, holder=holder)
    before, action = _ACTIONS[request.status]
    if standing.status in before:
        yield from _change(request, standing, now)
    elif request.leaving and standing.status == request.status:
        yield Query("session_disown", (request.session,))
    else:
        error = SessionEnded if standing.status in ENDED else WrongState
        advice = f"that takes one that is {' or '.join(sorted(before))}"
        return error(what="session", name=request.session, status=standing.status, action=action, advice=advice)
    return None


@one_by_one(durable=True)
def advance_session(request: SessionProgressRequest, now: Now) -> Op[Outcome[None]]:
    """Note how far sessions are."""
    rows = yield Query("session_progress", (request.percent, now.wall, request.session))
    return None if rows else (yield from not_open(request.session, "progress"))


# Questions


def get_session(session: str, now: Now) -> Op[SessionRecord | None]:
    rows = yield Query("session_get", (session,))
    return _record(rows[0]) if rows else None


def list_sessions(wanted: SessionFilter, now: Now) -> Op[Page[SessionRecord]]:
    status = None if wanted.status is None else list(wanted.status)
    values = (*wanted.cursor, status, wanted.operation, wanted.milestone, wanted.limit + 1)
    if wanted.status is None or ENDED.intersection(wanted.status):
        rows = yield Query("session_list", values)
    else:
        rows = yield Query("session_list_open", values)
    return page(rows, wanted.limit, _record, lambda session: f"{session.created}.{session.id}")


def cut_off_sessions(_: None, now: Now) -> Op[list[CutOffSession]]:
    """Sessions that were interrupted, those that go on without an agent that failed, and those in which nobody is left
    while work waits."""
    rows = yield Query("session_cut_off")
    found: list[CutOffSession] = []
    for id, milestone, what, status, error, agents, live, failed, *noted, called in rows:
        inactive = now.wall - max(at for at in noted if at is not None)
        if called is not None:
            # What agents do is measured in awake time: a machine that slept makes nobody silent.
            inactive = min(inactive, now.awake - called)
        standing = status if status != "active" else "degraded" if failed else "deserted"
        # The wall clock may have been set back meanwhile.
        found.append(
            CutOffSession(id, milestone, what, standing, max(0, inactive), agents, live, failed, error)
        )  # fmt: skip
    return found


def stale_sessions(silent: int, now: Now) -> Op[list[SessionRecord]]:
    """Open sessions in which nobody did anything for so many milliseconds. What agents do is measured in awake time: a
    machine that slept makes nobody silent."""
    rows = yield Query("session_stale", (now.wall - silent, now.awake - silent, now.awake))
    return [_record(row) for row in rows]


def count_agents(session: str, now: Now) -> Op[dict[str, int]]:
    rows = yield Query("session_counts", (session,))
    return {row[0]: row[1] for row in rows}


def missing(session: str, now: Now) -> Op[dict[str, str]]:
    """Who owes which document that is not there yet."""
    rows = yield Query("session_get", (session,))
    documents = yield Query("document_list", (session,))
    saved = {document[0] for document in documents}
    expected = _record(rows[0]).expected if rows else {}
    return {producer: name for producer, name in expected.items() if name not in saved}


def standing_of(session: str) -> Op[Standing | None]:
    rows = yield Query("session_standing", (session,))
    return Standing(*rows[0]) if rows else None


def _start(request: BeginRequest, now: Now) -> Op[Begun]:
    yield Query(
        "session_insert",
        (
            request.session, request.operation, request.milestone, request.process, plain(request.expected or {}),
            request.metadata or "{}", now.wall, now.wall,
        ),
    )  # fmt: skip
    facts = {"operation": request.operation, "milestone": request.milestone, "process": request.process}
    yield from record([event(now.wall, "session_started", ("session", request.session), None, **facts)])
    return Begun(request.session, request.operation, request.milestone, False)


def _cannot_continue(request: BeginRequest, standing: Standing) -> AgentBusError | None:
    for differs in ("operation", "milestone"):
        given, found = getattr(request, differs), getattr(standing, differs)
        if given != found and given is not None and found is not None:
            return SessionDiffers(session=request.session, differs=differs, found=found, given=given)
    if standing.status in ENDED:
        return SessionEnded(what="session", name=request.session, status=standing.status, action="continue it")
    if standing.owned:
        # Also when it counts as interrupted: its owner, still in the block, may go on with it at any moment.
        return SessionExists(
            session=request.session, status=standing.status, pid=standing.pid, process=standing.owner
        )  # fmt: skip
    return None


def _continue(request: BeginRequest, standing: Standing, now: Now) -> Op[Begun]:
    expected = {**decode(standing.expected), **(request.expected or {})}
    yield Query(
        "session_continue",
        (request.process, request.milestone, plain(expected), request.metadata, now.wall, request.session),
    )
    facts = {"before": standing.status, "process": request.process}
    yield from record([event(now.wall, "session_continued", ("session", request.session), None, **facts)])
    return Begun(request.session, standing.operation, request.milestone or standing.milestone, True)


def _change(request: ChangeRequest, standing: Standing, now: Now) -> Op[None]:
    process = standing.process
    if (request.leaving and request.status == "interrupted") or (request.status == "active" and not standing.owned):
        # Nobody is in its block; an owner that is gone must not interrupt again what was just continued.
        process = None
    error = request.reason if request.status in {"failed", "interrupted"} else None
    ended = now.wall if request.status in ENDED else None
    yield Query("session_change", (request.status, error, now.wall, ended, process, request.session))
    kind = "session_continued" if request.status == "active" else f"session_{request.status}"
    facts: dict[str, Any] = {"before": standing.status}
    if request.reason is not None:
        facts["error" if request.status == "failed" else "reason"] = request.reason
    expected = (yield Query("session_expected", (request.session,))) if request.status in ENDED else []
    stopped = [agent for (agent,) in expected]
    if stopped:
        facts["stopped"] = stopped[:_NAMED]
    yield from record([event(now.wall, kind, ("session", request.session), None, **facts)])
    # Nobody waits any more for those that did not come. After the session, so that their end does not interrupt it.
    yield from end(stopped, "stopped", f"its session {request.status}", None, now)


def _record(row: Row) -> SessionRecord:
    values: list[Any] = list(row)
    values[6] = decode(row[6])
    values[7] = decode(row[7])
    values[12] = bool(row[12])
    return SessionRecord(*values)
