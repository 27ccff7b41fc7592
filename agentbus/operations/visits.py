"""Visiting agents: scripts and models that call now and then. Every call counts as a beat, and extends their leases."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import msgspec

from agentbus.clock import Now
from agentbus.codec import decode
from agentbus.operations import Actor, Each, Op, Outcome, Query, operation
from agentbus.operations.fencing import fence
from agentbus.operations.returning import acquit


class VisitRequest(msgspec.Struct, frozen=True):
    """An agent calls; what it holds is its own for ``duration`` milliseconds from now, at least."""

    touches: ClassVar[int] = 1
    actor: Actor
    duration: int


@operation(durable=False, beside=True)
def visit(requests: Sequence[VisitRequest], now: Now) -> Op[list[Outcome[None]]]:
    """Note that agents called. A suspect one is running again."""
    refused = yield from fence(request.actor for request in requests)
    callers = [request for request in requests if request.actor not in refused]
    yield Each("agent_called", [(now.awake, request.actor.agent, request.actor.epoch) for request in callers])
    yield Each("message_extend_held", [(now.awake + request.duration, request.actor.agent) for request in callers])
    agents = list(dict.fromkeys(request.actor.agent for request in callers))
    suspects = yield Query("agent_suspected", (agents,))
    if suspects:
        yield from acquit({agent: decode(evidence) for agent, evidence in suspects}, now)
    return [refused.get(request.actor) for request in requests]
