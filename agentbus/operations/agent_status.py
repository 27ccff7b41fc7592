"""The end of an agent, and interruption and resumption of sessions.

Ending an agent releases its leases and tasks, notifies its parent, and records an event.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from agentbus.core.clock import Now
from agentbus.core.codec import plain, plain_payload
from agentbus.core.validation import Priority
from agentbus.operations.common import Evidence, read_agent_statuses
from agentbus.operations.events import event, record
from agentbus.operations.protocol import BUS, ExecuteMany, Op, Query, Wake, mailbox_channel, reach_channel
from agentbus.operations.receive import take_back
from agentbus.operations.rows import Draft, Held
from agentbus.operations.send import post
from agentbus.operations.task_ownership import release_tasks_of


class _Cause(msgspec.Struct, frozen=True):
    """The state of a session that was just interrupted: its owner; the agent that failed last, its error, and how many
    others failed; whether a deadline to resume it has passed."""

    session: str
    process: int | None
    owned: bool
    agent: str | None
    error: str | None
    others: int
    overdue: bool

    def reason(self, processes: Sequence[int], why: str | None) -> str:
        """Return the reason of the interruption. ``why`` is the reason for which ``processes`` ended."""
        if self.process in processes and why is not None:
            return why.replace("its process", "its own process", 1)
        gone = self.process is not None and not self.owned
        if self.agent is not None:
            who = f"{self.agent} and {self.others} more" if self.others else self.agent
            return f"{who} failed: {self.error or 'no reason was given'}{'; its own process is gone too' * gone}"
        if self.overdue:
            return "it was resumed, and no agent registered in time"
        return "its own process is gone, and none of its agents is live any more"


def interrupt(
    agents: Sequence[str], processes: Sequence[int], why: str | None, now: Now, sessions: Sequence[str] = ()
) -> Op[list[str]]:
    """Interrupt sessions without a live agent, among those of ``agents``, those that ``processes`` own, and
    ``sessions``. ``why`` is the reason for which the processes ended. Return the interrupted ones.

    A session is interrupted if it is active, has no live agent, and an agent of it failed or its owner's process is
    gone; or if it was resumed, and no agent registered in time. A paused session is left alone. A failure before the
    session was last continued does not count. A session whose owner is gone need not have had an agent.
    """
    rows = yield Query("session_interrupt", (now.wall, list(agents), list(processes), list(sessions), now.awake))
    if not rows:
        return []
    found = yield Query("session_causes", ([session for (session,) in rows], now.awake))
    causes = [
        _Cause(session, process, status == "live", agent, error, others, bool(overdue))
        for session, process, status, agent, error, others, overdue in found
    ]
    reasons = {cause.session: cause.reason(processes, why) for cause in causes}
    yield ExecuteMany("session_reason", [(reason, session) for session, reason in reasons.items()])
    yield from record([
        event(now.wall, "session_interrupted", ("session", session), None, before="active", reason=reason)
        for session, reason in reasons.items()
    ])  # fmt: skip
    return list(reasons)


def resume(session: str, agent: str, now: Now) -> Op[None]:
    """Continue an interrupted session because an agent registers in it.

    Earlier failures and a missing owner still count: when this agent ends and leaves others behind, the session is
    interrupted again.
    """
    rows = yield Query("session_resume", (now.wall, session))
    if rows:
        subject = ("session", session)
        yield from record([event(now.wall, "session_continued", subject, agent, before="interrupted")])
    yield Query("session_attended", (session,))


def end(
    agents: Sequence[str],
    status: str,
    error: str | None,
    actor: str | None,
    now: Now,
    evidence: Mapping[str, Evidence] | None = None,
    processes: Sequence[int] = (),
) -> Op[list[str]]:
    """End live agents, with the evidence if the bus detected their failure. Return the sessions that are interrupted by
    it, or by the end of ``processes`` for the same reason.

    A failed agent retains its pools and subscriptions, and its mailbox still accepts messages. A completed or stopped
    one leaves them.
    """
    if agents:
        yield from _end(list(agents), status, error, actor, now, evidence or {})
    return (yield from interrupt(agents, processes, error, now)) if agents or processes else []


def _end(
    ids: list[str], status: str, error: str | None, actor: str | None, now: Now, evidence: Mapping[str, Evidence]
) -> Op[None]:
    rows = yield Query("message_held_by", (ids,))
    yield ExecuteMany(
        "agent_end",
        [(status, error, now.wall, plain(evidence[agent]) if agent in evidence else None, agent) for agent in ids],
    )
    # Wake receivers of these agents: they are fenced now.
    statuses = yield from read_agent_statuses(ids)
    yield Wake([mailbox_channel(one.mailbox) for one in statuses.values()])
    own = [mailbox_channel(box) for one in statuses.values() for box in (one.mailbox, one.replies)]
    own += [reach_channel(one.mailbox, one.epoch) for one in statuses.values()]
    yield Query("listener_remove", (own,))
    reason = f"it {'was ' * (status == 'stopped')}{status}"
    yield from take_back([Held(*row) for row in rows], reason, now)
    yield Query("workflow_forget", (ids,))
    # Neither a reboot nor an orderly end counts as a loss of the tasks that ran.
    rebooted = {id for id in ids if id in evidence and evidence[id].verdict == "rebooted"}
    found = [id for id in ids if id in evidence and id not in rebooted]
    yield from release_tasks_of(found, error or reason, now, lost=status == "failed")
    yield from release_tasks_of([id for id in ids if id not in evidence], reason, now, lost=status == "failed")
    yield from release_tasks_of(list(rebooted), reason, now, lost=False)
    if status == "failed":
        yield from _notify_parents(ids, error, now)
    else:
        gone = yield Query("subscription_delete", (ids,))
        mailboxes = [mailbox for (mailbox,) in gone]
        if mailboxes:
            yield Query("message_expire_all", (now.wall, "the subscription ended", mailboxes))
        yield Query("pool_leave_all", (ids,))
    yield from record([
        event(now.wall, f"agent_{status}", ("agent", agent), actor, **_facts(error, evidence.get(agent)))
        for agent in ids
    ])  # fmt: skip
    if status == "failed":
        yield Query("session_trouble", (ids,))


def _facts(error: str | None, evidence: Evidence | None) -> dict[str, Any]:
    facts: dict[str, Any] = {"error": error} if error else {}
    return facts if evidence is None else {**facts, "evidence": evidence}


def _notify_parents(agents: list[str], error: str | None, now: Now) -> Op[None]:
    """Send an error report to each parent that can still read it."""
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
