"""Recovery of interrupted sessions. Each action is one commit, and requires a plan that is still valid."""

from __future__ import annotations

import msgspec

from agentbus.core.clock import Now
from agentbus.core.codec import decode, plain
from agentbus.errors import AgentBusError, PlanOutdated, SessionEnded, SessionIdTaken, UnknownSession, WrongState
from agentbus.operations.documents import remaining_members
from agentbus.operations.events import event, record
from agentbus.operations.protocol import Op, Outcome, Query, run_one, single_operation
from agentbus.operations.recovery_plan import PlanBasis, outline, refusal
from agentbus.operations.session_snapshots import RollbackRequest, roll_back
from agentbus.operations.session_status import ENDED
from agentbus.operations.sessions import (
    ChangeRequest,
    StartSessionRequest,
    change_session,
    read_session_status,
    start_session,
)
from agentbus.records import Recovered, RecoveryRecord, Rollback

_NAMED = 100
"""Agents that an event lists."""


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

    @property
    def data_size(self) -> int:
        return 0 if self.rollback is None else self.rollback.data_size


@single_operation(durable=True)
def recover(request: RecoverRequest, now: Now) -> Op[Outcome[Recovered]]:
    """Resume, complete, abandon or roll back sessions, or start others from their documents.

    Resuming a session that is already active changes nothing, and is not an error.
    """
    found = yield from outline(request.session, now)
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
        error = SessionEnded if status in ENDED and request.action != "follow_on" else WrongState
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
        if current.session.status not in ENDED and not current.missing:
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
    yield from record([event(now.wall, "session_recovered", ("session", done.session), None, **facts)])
