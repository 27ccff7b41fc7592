"""The current incarnation of an agent, visits, and clearing of suspicion.

Visiting agents are scripts and models that call occasionally. Each call is a heartbeat, and extends their leases.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from agentbus.core.clock import Now
from agentbus.core.codec import decode
from agentbus.operations.common import fence
from agentbus.operations.events import event, record
from agentbus.operations.protocol import Actor, ExecuteMany, Op, Outcome, Query, Rows, operation

if TYPE_CHECKING:
    from agentbus.records import CheckpointSummary


class Registration(msgspec.Struct, frozen=True):
    """An incarnation of an agent: its epoch, the mailboxes it reads, and the checkpoint of an interrupted one before.

    ``left`` is the open session (and its status) that it left for another without having completed.
    """

    agent: str
    epoch: int
    mailbox: int
    replies: int
    session: str | None
    pools: dict[str, int]
    subscriptions: dict[str, int]
    restored: CheckpointSummary | None = None
    left: tuple[str, str] | None = None


def current_registration(agent: str, now: Now) -> Op[Registration | None]:
    """Return the latest incarnation of an agent; None if there is no such agent."""
    rows = yield Query("agent_incarnation", (agent,))
    if not rows:
        return None
    ((epoch, mailbox, replies, session),) = rows
    rows = yield Query("agent_mailboxes", (agent,))
    return Registration(
        agent,
        epoch,
        mailbox,
        replies,
        session,
        {name: id for kind, name, id in rows if kind == "pool"},
        {name: id for kind, name, id in rows if kind == "subscription"},
    )


def last_boot(_: None, now: Now) -> Op[str | None]:
    """Return the boot in which the bus was last open."""
    rows = yield Query("meta_get", ("boot",))
    return rows[0][0] if rows else None


def processes_of_host(host: str, now: Now) -> Op[Rows]:
    """Return the processes of a host that count as live: id, pid, start time, doorbell."""
    return (yield Query("process_of_host", (host,)))


def clear_suspicion(suspects: dict[str, dict[str, Any]], now: Now) -> Op[None]:
    """Mark suspect agents running again, and record the evidence that is revoked."""
    # Agents of a stalled process could not call: their silence counts from now.
    yield ExecuteMany("agent_recover", [(now.awake, now.wall, agent) for agent in suspects])
    yield from record([
        event(now.wall, "agent_recovered", ("agent", agent), None, evidence=evidence)
        for agent, evidence in suspects.items()
    ])  # fmt: skip


class VisitRequest(msgspec.Struct, frozen=True):
    """Record a call of an agent, whose leases last at least ``duration`` milliseconds from now."""

    row_estimate: ClassVar[int] = 1
    actor: Actor
    duration: int


@operation(durable=False, concurrent=True)
def visit(requests: Sequence[VisitRequest], now: Now) -> Op[list[Outcome[None]]]:
    """Record calls of agents. A suspect one is running again."""
    refused = yield from fence(request.actor for request in requests)
    callers = [request for request in requests if request.actor not in refused]
    yield ExecuteMany("agent_called", [(now.awake, request.actor.agent, request.actor.epoch) for request in callers])
    yield ExecuteMany(
        "message_extend_held", [(now.awake + request.duration, request.actor.agent) for request in callers]
    )
    yield ExecuteMany("item_extend_held", [(now.awake + request.duration, request.actor.agent) for request in callers])
    agents = list(dict.fromkeys(request.actor.agent for request in callers))
    suspects = yield Query("agent_suspected", (agents,))
    if suspects:
        yield from clear_suspicion({agent: decode(evidence) for agent, evidence in suspects}, now)
    return [refused.get(request.actor) for request in requests]
