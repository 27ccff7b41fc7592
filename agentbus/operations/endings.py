"""How an agent's life ends, whoever ends it: its leases are freed, its parent is told, the trail is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentbus.clock import Now
from agentbus.codec import plain, plain_payload
from agentbus.limits import Priority
from agentbus.operations import BUS, Each, Op, Query, Wake, mailbox_channel
from agentbus.operations.events import event, record
from agentbus.operations.evidence import Evidence
from agentbus.operations.fencing import standings
from agentbus.operations.holding import free_held_by
from agentbus.operations.interruptions import interrupt
from agentbus.operations.leases import Held, take_back
from agentbus.operations.messages import Draft, post


def end(
    agents: Sequence[str],
    status: str,
    error: str | None,
    actor: str | None,
    now: Now,
    evidence: Mapping[str, Evidence] | None = None,
    processes: Sequence[int] = (),
) -> Op[list[str]]:
    """End these live agents; if they were judged, on this evidence. Says which sessions are interrupted by it, or by
    these ``processes`` having ended for the same reason.

    A failed one may come back: it keeps its pools and subscriptions, and its mailbox goes on filling. A completed or
    stopped one gives them up.
    """
    if agents:
        yield from _end(list(agents), status, error, actor, now, evidence or {})
    return (yield from interrupt(agents, processes, error, now)) if agents or processes else []


def _end(
    ids: list[str], status: str, error: str | None, actor: str | None, now: Now, judged: Mapping[str, Evidence]
) -> Op[None]:
    rows = yield Query("message_held_by", (ids,))
    yield Each(
        "agent_end",
        [(status, error, now.wall, plain(judged[agent]) if agent in judged else None, agent) for agent in ids],
    )
    # Whoever still waits for a message in this life must hear that it is over.
    lives = yield from standings(ids)
    yield Wake([mailbox_channel(life.mailbox) for life in lives.values()])
    own = [mailbox_channel(box) for life in lives.values() for box in (life.mailbox, life.replies)]
    yield Query("listener_remove", (own,))
    reason = f"it {'was ' * (status == 'stopped')}{status}"
    yield from take_back([Held(*row) for row in rows], reason, now)
    yield Query("workflow_forget", (ids,))
    # A restart of the machine is no fault of the tasks that ran; nor is an end in order.
    rebooted = {id for id in ids if id in judged and judged[id].verdict == "rebooted"}
    found = [id for id in ids if id in judged and id not in rebooted]
    yield from free_held_by(found, error or reason, now, lost=status == "failed")
    yield from free_held_by([id for id in ids if id not in judged], reason, now, lost=status == "failed")
    yield from free_held_by(list(rebooted), reason, now, lost=False)
    if status == "failed":
        yield from _tell_parents(ids, error, now)
    else:
        gone = yield Query("subscription_delete", (ids,))
        mailboxes = [mailbox for (mailbox,) in gone]
        if mailboxes:
            yield Query("message_expire_all", (now.wall, "the subscription ended", mailboxes))
        yield Query("pool_leave_all", (ids,))
    yield from record([
        event(now.wall, f"agent_{status}", ("agent", agent), actor, **_facts(error, judged.get(agent)))
        for agent in ids
    ])  # fmt: skip
    if status == "failed":
        yield Query("session_trouble", (ids,))


def _facts(error: str | None, evidence: Evidence | None) -> dict[str, Any]:
    facts: dict[str, Any] = {"error": error} if error else {}
    return facts if evidence is None else {**facts, "evidence": evidence}


def _tell_parents(agents: list[str], error: str | None, now: Now) -> Op[None]:
    """An error report in the mailbox of each parent that can still read it."""
    rows = yield Query("agent_parents", (agents,))
    yield from post(
        [
            Draft(
                to=mailbox,
                type="error_report",
                payload=plain_payload({"agent": agent, "status": "failed", "error": error}),
                priority=Priority.HIGH,
                max_attempts=10,
                session=session,
            )
            for agent, mailbox, session in rows
        ],
        BUS,
        now,
    )
