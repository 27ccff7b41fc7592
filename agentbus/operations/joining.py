"""How an agent goes into a session in the life that it is in."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from agentbus.clock import Now
from agentbus.operations import Actor, Op, Outcome, Query, operation
from agentbus.operations.closed import not_open
from agentbus.operations.events import event, record
from agentbus.operations.fencing import fence
from agentbus.operations.interruptions import interrupt, resume


class JoinRequest(msgspec.Struct, frozen=True):
    """An agent that takes part in a session from now on, and no longer in the one that it was in."""

    actor: Actor
    session: str


@operation(durable=True)
def join_session(requests: Sequence[JoinRequest], now: Now) -> Op[list[Outcome[str | None]]]:
    """Put agents into sessions. The outcome is the open session that one left for it, if it did."""
    refused = yield from fence(request.actor for request in requests)
    outcomes: list[Outcome[str | None]] = []
    for request in requests:
        error = refused.get(request.actor) or (yield from not_open(request.session, "join it"))
        outcomes.append(error or (yield from _join(request, now)))
    return outcomes


def _join(request: JoinRequest, now: Now) -> Op[str | None]:
    agent = request.actor.agent
    ((*_, before),) = yield Query("agent_life", (agent,))
    if before == request.session:
        return None
    yield Query("agent_join_session", (request.session, now.wall, agent))
    left = None if before is None or (yield from not_open(before, "leave it")) else before
    facts = {"session": request.session} if left is None else {"session": request.session, "left": left}
    yield from record([event(now.wall, "agent_joined", ("agent", agent), agent, **facts)])
    yield from resume(request.session, agent, now)
    if left is not None:
        # It may have been the last at work there, after others failed.
        yield from interrupt([], [], None, now, [left])
    return left
