"""Recovery: what is done with a session that was cut off. Each is one commit, and needs a plan that still holds."""

from __future__ import annotations

import msgspec

from agentbus.clock import Now
from agentbus.codec import decode, plain
from agentbus.errors import AgentBusError, PlanOutdated, SessionEnded, SessionIdTaken, UnknownSession, WrongState
from agentbus.operations import Op, Outcome, Query, carry_out, one_by_one
from agentbus.operations.closed import ENDED
from agentbus.operations.composites import RollbackRequest, roll_back
from agentbus.operations.events import event, record
from agentbus.operations.participants import remaining_members
from agentbus.operations.prospects import Basis, outline, refusal
from agentbus.operations.sessions import BeginRequest, ChangeRequest, begin_session, change_session, standing_of
from agentbus.records import Recovered, RecoveryRecord, Rollback

_NAMED = 100
"""Agents that an event names."""


class RecoverRequest(msgspec.Struct, frozen=True):
    """Something to be done with a session, if it is still what the plan was made of.

    ``reason`` belongs to an abandonment, ``rollback`` to a rollback, ``follow_on`` to a new session, whose milestone
    and metadata are completed here. After a resumption or a rollback somebody must come ``within`` so many
    milliseconds; None: whenever they like.
    """

    session: str
    action: str
    basis: Basis
    reason: str | None = None
    rollback: RollbackRequest | None = None
    follow_on: BeginRequest | None = None
    within: int | None = None

    @property
    def weight(self) -> int:
        return 0 if self.rollback is None else self.rollback.weight


@one_by_one(durable=True)
def recover(request: RecoverRequest, now: Now) -> Op[Outcome[Recovered]]:
    """Resume, complete, abandon or roll back sessions, or start others from what they made.

    A session that goes on already is not resumed again, whoever did it; that is no error.
    """
    found = yield from outline(request.session, now)
    if found is None:
        return UnknownSession(session=request.session)
    standing, present = found
    if request.action == "resume" and standing.session.status == "active":
        return Recovered("resume", request.session, False, [])
    error = yield from _cannot(request, standing, present)
    return error or (yield from _recover(request, standing, now))


def _cannot(request: RecoverRequest, standing: RecoveryRecord, present: Basis) -> Op[AgentBusError | None]:
    reason = request.basis.difference(present)
    if reason is not None:
        return PlanOutdated(session=request.session, reason=reason)
    refused = refusal(standing, request.action)
    if refused is not None:
        action, advice = refused
        status = standing.session.status
        error = SessionEnded if status in ENDED and request.action != "follow_on" else WrongState
        return error(what="session", name=request.session, status=status, action=action, advice=advice)
    if request.follow_on is not None:
        other = yield from standing_of(request.follow_on.session)
        if other is not None:
            return SessionIdTaken(session=request.follow_on.session, operation=other.operation, status=other.status)
    return None


def _recover(request: RecoverRequest, standing: RecoveryRecord, now: Now) -> Op[Outcome[Recovered]]:
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
        agents = yield from _resume(standing, request.within, now)
        # After the rollback, which may have changed who has finished.
        remaining = yield from remaining_members(request.session)
    elif request.action == "complete":
        agents = yield from _close(standing, "completed", None, now)
    elif request.action == "abandon":
        agents = yield from _close(standing, "failed", request.reason, now)
    elif request.follow_on is not None:
        follow_on = yield from _follow_on(request.follow_on, standing, now)
        if standing.session.status not in ENDED and not standing.missing:
            agents = yield from _close(standing, "completed", None, now)
        else:
            yield Query("session_touch", (now.wall, request.session))
    done = Recovered(request.action, request.session, True, agents, follow_on, rolled_back, remaining)
    yield from _note(request, standing, done, now)
    return done


def _resume(standing: RecoveryRecord, within: int | None, now: Now) -> Op[list[str]]:
    """The session goes on, and waits for its agents whose life was cut off; if it had none, for anybody."""
    session = standing.session
    if session.status != "active":
        yield from carry_out(change_session, ChangeRequest(session.id, "active"), now)
    deadline = None if within is None else now.awake + within
    rows = yield Query("agent_expect_again", (now.wall, session.id, now.awake, deadline))
    if not rows and deadline is not None:
        yield Query("session_await", (deadline, session.id))
    return sorted(id for (id,) in rows)


def _close(standing: RecoveryRecord, status: str, reason: str | None, now: Now) -> Op[list[str]]:
    """The session ends, and with it the wait for its agents that did not come."""
    yield from carry_out(change_session, ChangeRequest(standing.session.id, status, reason), now)
    return [agent.id for agent in standing.agents if agent.status in {"pending", "spawning"}]


def _follow_on(request: BeginRequest, standing: RecoveryRecord, now: Now) -> Op[str]:
    """A new session that nobody owns yet, with copies of the documents: they stay when the old session goes."""
    session = standing.session
    origin = {
        "session": session.id,
        "operation": session.operation,
        "documents": {document.name: document.version for document in standing.documents},
    }
    metadata = plain({**decode(request.metadata or "{}"), "follows": origin})
    milestone = request.milestone or session.milestone
    new = msgspec.structs.replace(request, milestone=milestone, metadata=metadata)
    yield from carry_out(begin_session, new, now)
    yield Query("document_copy", (request.session, now.wall, session.id))
    return request.session


def _note(request: RecoverRequest, standing: RecoveryRecord, done: Recovered, now: Now) -> Op[None]:
    facts: dict[str, object] = {
        "action": done.action, "before": standing.session.status, "agents": done.agents[:_NAMED],
    }  # fmt: skip
    if done.rollback is not None:
        facts["checkpoint"] = done.rollback.checkpoint
    if request.reason is not None:
        facts["reason"] = request.reason
    if done.follow_on is not None:
        facts["follow_on"] = done.follow_on
    yield from record([event(now.wall, "session_recovered", ("session", done.session), None, **facts)])
