"""Recovery of interrupted sessions: plans, and the actions that they offer.

A plan records its basis (``PlanBasis``). Each action is one commit, and requires a plan whose basis has not changed.
"""

from __future__ import annotations

import re
from collections import Counter

import msgspec

from agentbus.core.clock import Now
from agentbus.core.codec import decode, plain
from agentbus.core.validation import MAX_ID
from agentbus.errors import AgentBusError, PlanOutdated, SessionEnded, SessionIdTaken, UnknownSession, WrongState
from agentbus.operations.common import LIVE, SESSION_ENDED
from agentbus.operations.documents import remaining_members
from agentbus.operations.events import event, record
from agentbus.operations.protocol import Op, Outcome, Query, run_one, single_operation
from agentbus.operations.session_snapshots import KIND, RollbackRequest, roll_back
from agentbus.operations.sessions import (
    ChangeRequest,
    StartSessionRequest,
    change_session,
    get_session,
    read_session_status,
    start_session,
)
from agentbus.records import (
    CheckpointSummary,
    DocumentSummary,
    Recovered,
    RecoveryAgent,
    RecoveryOption,
    RecoveryRecord,
    RecoverySummary,
    Rollback,
)
from agentbus.records.recovery import join_names

_NAMED = 100
"""Sessions and agents that a summary lists, and agents that an event lists."""
_SMALL = 256
"""Rows that a summary may read on the event loop's own thread."""
_MAX_CHECKPOINTS = 20
"""Composite checkpoints that a plan lists."""
_PHRASES = {
    "resume": "resume it",
    "complete": "complete it",
    "rollback": "roll it back",
    "follow_on": "start another from it",
    "abandon": "abandon it",
}
_ORDER = ("resume", "rollback", "complete", "follow_on", "abandon")
_PLANNED = ("complete", "follow_on", "resume", "rollback", "abandon")
"""The order for a plan whose documents are complete."""
_planning = re.compile(r"(^|[^a-z])(plan|planning|planner)([^a-z]|$)", re.IGNORECASE).search


class PlanBasis(msgspec.Struct, frozen=True):
    """The basis of a plan: the session, its agents (id, status, epoch) and its documents (name, version)."""

    status: str
    updated: int
    process: int | None
    agents: tuple[tuple[str, str, int], ...]
    documents: tuple[tuple[str, int], ...]

    def difference(self, present: PlanBasis) -> str | None:
        """Return the change since then, or None."""
        if self.status != present.status:
            return f"it was {self.status} and is {present.status}"
        if self.agents != present.agents:
            return "its agents are not what they were"
        if self.documents != present.documents:
            return "its documents are not what they were"
        return None if self == present else "it was continued"


def outline_session(session_id: str, now: Now) -> Op[tuple[RecoveryRecord, PlanBasis] | None]:
    """Return the state of a session that determines the possible actions, without counters and details."""
    session = yield from get_session(session_id, now)
    current = yield from read_session_status(session_id)
    if session is None or current is None:
        return None
    agents = yield Query("agent_of_session", (session_id,))
    documents = yield Query("document_list", (session_id,))
    tasks = yield Query("task_open_of_session", (session_id,))
    saved = {row[0] for row in documents}
    record = RecoveryRecord(
        session,
        [
            RecoveryAgent(
                id,
                type,
                status,
                progress,
                note,
                error,
                None,
                0,
                0,
                [task for task, _, holder in tasks if holder == id],
                status == "failed" or (status == "stopped" and not on_purpose),
            )
            for id, type, status, _, progress, note, error, _, on_purpose in agents
        ],
        {producer: name for producer, name in session.expected.items() if name in saved},
        {producer: name for producer, name in session.expected.items() if name not in saved},
        [DocumentSummary(*row) for row in documents],
        [],
        [row[0] for row in agents if row[2] in LIVE],
        current.owned,
        [],
        [],
        {task: status for task, status, _ in tasks},
    )
    basis = PlanBasis(
        session.status,
        session.updated,
        session.process,
        tuple((row[0], row[2], row[3]) for row in agents),
        tuple((row[0], row[1]) for row in documents),
    )
    return record, basis


def plan(session_id: str, now: Now) -> Op[tuple[RecoveryRecord, PlanBasis] | None]:
    """Return the state of a session, and the possible actions."""
    found = yield from outline_session(session_id, now)
    if found is None:
        return None
    record, basis = found
    rows = yield Query("session_follow_ons", (session_id, _MAX_CHECKPOINTS))
    follow_ons = [follow_on for (follow_on,) in rows]
    rows = yield Query("checkpoint_latest_of", (session_id,))
    newest = {row[2]: CheckpointSummary(*row) for row in rows}
    rows = yield Query("message_open_counts", (session_id,))
    unfinished = {agent: (waiting, held) for agent, waiting, held in rows}
    points = yield Query("checkpoint_history", (KIND, session_id, MAX_ID, _MAX_CHECKPOINTS))
    remaining = yield from remaining_members(session_id)
    agents: list[RecoveryAgent] = []
    for agent in record.agents:
        waiting, held = unfinished.get(agent.id, (0, 0))
        checkpoint = newest.get(agent.id)
        agents.append(msgspec.structs.replace(agent, checkpoint=checkpoint, waiting=waiting, held=held))
    whole = msgspec.structs.replace(
        record, agents=agents, checkpoints=[CheckpointSummary(*row) for row in points], follow_ons=follow_ons,
        remaining=remaining,
    )  # fmt: skip
    return msgspec.structs.replace(whole, options=options(whole)), basis


def refusal(record: RecoveryRecord, action: str) -> tuple[str, str] | None:
    """Return why an action is impossible, phrased to follow "cannot", and the fix; None if it is possible."""
    session, words = record.session, _PHRASES[action]
    if session.status in SESSION_ENDED:
        if action != "follow_on":
            return words, "plan again: an ended session has at most a follow-on"
    elif action != "resume":
        if record.at_work:
            return (
                f"{words}: {', '.join(record.at_work[:3])} of it is at work",
                "end its agents first, or wait for them",
            )
        if record.owned:
            advice = "leave that to the process, end the process, or wait until it is gone"
            return f"{words}: a live process is in its block", advice
    if action == "complete" and record.missing:
        advice = "save what is missing, then plan again; or abandon the session"
        return f"{words}: {', '.join(record.missing.values())} is missing", advice
    if action == "follow_on" and not record.documents:
        return f"{words}: it has no documents", "save one first, then plan again"
    return None


def options(record: RecoveryRecord) -> list[RecoveryOption]:
    """Return the sensible actions, most likely first."""
    session, found = record.session, dict[str, RecoveryOption]()
    possible = [action for action in _PHRASES if refusal(record, action) is None]
    back = [agent.id for agent in record.agents if agent.cut_off]
    for action in possible:
        if action == "resume" and session.status != "active":
            does = f"continues it{_expecting(back)}; each continues with its state, checkpoint and mailbox"
            found[action] = RecoveryOption(action, (does if back else "continues it") + _continuing(record.remaining))
        elif action == "complete":
            what = "every expected document is there" if record.present else "nothing is expected of it"
            found[action] = RecoveryOption(action, f"ends it as completed: {what}")
        elif action == "rollback" and record.checkpoints:
            point = record.checkpoints[0]
            others = f" (or another of {len(record.checkpoints)})" if len(record.checkpoints) > 1 else ""
            does = (
                f"restores documents, state and participants as of checkpoint {point.id} {point.name!r}{others},"
                f" then continues it{_expecting(back)}"
            )
            found[action] = RecoveryOption(action, does, point.id)
        elif action == "follow_on":
            ends = "" if session.status in SESSION_ENDED or record.missing else ", and ends this one as completed"
            names = ", ".join(document.name for document in record.documents[:5])
            new = f"another session (there is {record.follow_ons[0]})" if record.follow_ons else "a new session"
            found[action] = RecoveryOption(action, f"starts {new} with a copy of {names}{ends}")
        elif action == "abandon":
            found[action] = RecoveryOption(action, "ends it as failed, with your reason")
    planned = _planning(session.operation) is not None and bool(record.present) and not record.missing
    return [found[action] for action in (_PLANNED if planned else _ORDER) if action in found]


def _expecting(agents: list[str]) -> str:
    return f" and expects {join_names(agents)} again" if agents else ""


def _continuing(remaining: dict[str, list[str]]) -> str:
    meetings = [f"{meeting} continues with {join_names(members)}" for meeting, members in remaining.items()]
    return f"; {'; '.join(meetings)}" if meetings else ""


def recovery_needed(_: None, now: Now) -> Op[bool]:
    """Return whether anything requires recovery."""
    interrupted = yield Query("recovery_interrupted", (1,))
    return bool(interrupted or (yield Query("recovery_dead_holders", (1,))))


def is_small(_: None, now: Now) -> Op[bool]:
    """Return whether a summary takes only a fraction of a millisecond."""
    rows = yield Query("recovery_beyond", (_SMALL,))
    return not rows


def summarize(_: None, now: Now) -> Op[RecoverySummary]:
    """Summarize interrupted work and past recoveries. The caller adds the size of the database."""
    agents = yield Query("recovery_incomplete")
    interrupted = yield Query("recovery_interrupted", (_NAMED,))
    holders = yield Query("recovery_dead_holders", (_NAMED,))
    history = yield Query("recovery_history")
    # The wall clock may have been set back meanwhile.
    times = sorted(max(0, then - cut) for cut, _, then, _ in history if then is not None)
    endings = [_outcome(went_on, final) for _, went_on, _, final in history]
    known = [succeeded for succeeded in endings if succeeded is not None]
    return RecoverySummary(
        len(agents),
        dict(Counter([row[0] for row in agents])),
        dict(Counter([row[1] for row in agents])),
        dict(Counter([row[2] for row in agents if row[2] is not None])),
        max(0, now.wall - min(row[3] for row in agents)) if agents else None,
        [session for (session,) in interrupted],
        [agent for (agent,) in holders],
        0,
        len(times),
        sum(known) / len(known) if known else None,
        round(sum(times) / len(times)) if times else None,
        _median(times) if times else None,
    )


def _median(times: list[int]) -> int:
    """Return the median of sorted numbers."""
    return (times[(len(times) - 1) // 2] + times[len(times) // 2]) // 2


def _outcome(went_on: str | None, final: str | None) -> bool | None:
    """Return whether a recovery succeeded; None while that is open, or the session is still interrupted."""
    if went_on == "session_continued":
        return None if final is None else final == "session_completed"
    return None if went_on is None else went_on == "session_completed"


class RecoverRequest(msgspec.Struct, frozen=True):
    """An action on a session, valid while the session matches the basis of the plan.

    ``reason`` belongs to an abandonment, ``rollback`` to a rollback, ``follow_on`` to a new session, whose milestone
    and metadata are completed here. After a resumption or rollback an agent must register ``within`` this many
    milliseconds; None: no deadline.
    """

    session: str
    action: str
    basis: PlanBasis
    reason: str | None = None
    rollback: RollbackRequest | None = None
    follow_on: StartSessionRequest | None = None
    within: int | None = None
    by: str | None = None

    @property
    def data_size(self) -> int:
        return 0 if self.rollback is None else self.rollback.data_size


@single_operation(durable=True)
def recover(request: RecoverRequest, now: Now) -> Op[Outcome[Recovered]]:
    """Resume, complete, abandon or roll back sessions, or start others from their documents.

    Resuming a session that is already active changes nothing, and is not an error.
    """
    found = yield from outline_session(request.session, now)
    if found is None:
        return UnknownSession(session=request.session)
    current, present = found
    if request.action == "resume" and current.session.status == "active":
        return Recovered("resume", request.session, False, [])
    error = yield from _validate(request, current, present)
    return error or (yield from _recover(request, current, now))


def _validate(request: RecoverRequest, current: RecoveryRecord, present: PlanBasis) -> Op[AgentBusError | None]:
    reason = request.basis.difference(present)
    if reason is not None:
        return PlanOutdated(session=request.session, reason=reason)
    refused = refusal(current, request.action)
    if refused is not None:
        action, advice = refused
        status = current.session.status
        error = SessionEnded if status in SESSION_ENDED and request.action != "follow_on" else WrongState
        return error(what="session", name=request.session, status=status, action=action, advice=advice)
    if request.follow_on is not None:
        other = yield from read_session_status(request.follow_on.session)
        if other is not None:
            return SessionIdTaken(session=request.follow_on.session, operation=other.operation, status=other.status)
    return None


def _recover(request: RecoverRequest, current: RecoveryRecord, now: Now) -> Op[Outcome[Recovered]]:
    rolled_back: Rollback | None = None
    follow_on: str | None = None
    agents: list[str] = []
    remaining: dict[str, list[str]] = {}
    if request.rollback is not None:
        outcome = yield from roll_back(request.rollback, now)
        if isinstance(outcome, AgentBusError):
            return outcome
        rolled_back = outcome
    if request.action in {"resume", "rollback"}:
        agents = yield from _resume(current, request.within, now)
        # After the rollback, which may have changed the members that have finished.
        remaining = yield from remaining_members(request.session)
    elif request.action == "complete":
        agents = yield from _end_session(current, "completed", None, now)
    elif request.action == "abandon":
        agents = yield from _end_session(current, "failed", request.reason, now)
    elif request.follow_on is not None:
        follow_on = yield from _follow_on(request.follow_on, current, now)
        if current.session.status not in SESSION_ENDED and not current.missing:
            agents = yield from _end_session(current, "completed", None, now)
        else:
            yield Query("session_touch", (now.wall, request.session))
    done = Recovered(request.action, request.session, True, agents, follow_on, rolled_back, remaining)
    yield from _record_event(request, current, done, now)
    return done


def _resume(current: RecoveryRecord, within: int | None, now: Now) -> Op[list[str]]:
    """Continue a session, and expect its interrupted agents again; if it had none, any agent."""
    session = current.session
    if session.status != "active":
        yield from run_one(change_session, ChangeRequest(session.id, "active"), now)
    deadline = None if within is None else now.awake + within
    rows = yield Query("agent_expect_again", (now.wall, session.id, now.awake, deadline))
    if not rows and deadline is not None:
        yield Query("session_await", (deadline, session.id))
    return sorted(id for (id,) in rows)


def _end_session(current: RecoveryRecord, status: str, reason: str | None, now: Now) -> Op[list[str]]:
    """End a session, and stop its agents that never registered."""
    yield from run_one(change_session, ChangeRequest(current.session.id, status, reason), now)
    return [agent.id for agent in current.agents if agent.status in {"pending", "spawning"}]


def _follow_on(request: StartSessionRequest, current: RecoveryRecord, now: Now) -> Op[str]:
    """Start a session without an owner, with copies of the documents: they outlive the old session."""
    session = current.session
    origin = {
        "session": session.id,
        "operation": session.operation,
        "documents": {document.name: document.version for document in current.documents},
    }
    metadata = plain({**decode(request.metadata or "{}"), "follows": origin})
    milestone = request.milestone or session.milestone
    new = msgspec.structs.replace(request, milestone=milestone, metadata=metadata)
    yield from run_one(start_session, new, now)
    yield Query("document_copy", (request.session, now.wall, session.id))
    return request.session


def _record_event(request: RecoverRequest, current: RecoveryRecord, done: Recovered, now: Now) -> Op[None]:
    facts: dict[str, object] = {
        "action": done.action, "before": current.session.status, "agents": done.agents[:_NAMED],
    }  # fmt: skip
    if done.rollback is not None:
        facts["checkpoint"] = done.rollback.checkpoint
    if request.reason is not None:
        facts["reason"] = request.reason
    if done.follow_on is not None:
        facts["follow_on"] = done.follow_on
    yield from record([event(now.wall, "session_recovered", ("session", done.session), request.by, **facts)])
