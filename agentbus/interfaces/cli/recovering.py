"""Recovering a session: the plan with its options, and carrying one of them out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from agentbus.interfaces.cli.command import Call
from agentbus.interfaces.cli.failures import Usage
from agentbus.interfaces.cli.output import Result, plain
from agentbus.interfaces.cli.sections import Fields, Part, Sections
from agentbus.interfaces.cli.sessions import chosen
from agentbus.services.recovery import WITHIN

if TYPE_CHECKING:
    from agentbus.records import Recovered, RecoveryRecord
    from agentbus.services.recovery import RecoveryPlan

_OPTIONS = {
    "resume": "--resume",
    "complete": "--complete",
    "abandon": "--abandon REASON",
    "rollback": "--rollback {checkpoint}",
    "follow_on": "--follow-on OPERATION",
}


def recover(call: Call) -> Result:
    given = call.arguments
    if given.follow_on_id is not None and given.follow_on is None:
        raise Usage(reason="--follow-on-id names a session that --follow-on begins", advice="give both")
    name = chosen(call)
    plan = call.bus.do(call.bus.recovery.plan(name))
    done = _carried_out(call, plan)
    return _plan(plan.record) if done is None else _done(done)


def _carried_out(call: Call, plan: RecoveryPlan) -> Recovered | None:
    given, do = call.arguments, call.bus.do
    if given.resume:
        return do(plan.resume())
    if given.complete:
        return do(plan.complete())
    if given.abandon is not None:
        return do(plan.abandon(given.abandon))
    if given.rollback is not None:
        return do(plan.rollback(given.rollback))
    if given.follow_on is not None:
        return do(plan.follow_on(given.follow_on, id=given.follow_on_id))
    return None


def _plan(record: RecoveryRecord) -> Result:
    session = record.session
    fields = ("id", "operation", "milestone", "status", "progress", "error", "updated")
    shown: dict[str, Any] = {name: getattr(session, name) for name in fields}
    if session.degraded:
        shown["status"] = "degraded"
    suspects = {agent.id for agent in record.agents if agent.status == "suspect"}
    shown["at_work"] = ", ".join(f"{id} (suspect)" if id in suspects else id for id in record.at_work) or None
    agents = [
        {**msgspec.to_builtins(agent), "checkpoint": None if agent.checkpoint is None else agent.checkpoint.name}
        for agent in record.agents
    ]
    options = [
        {
            "action": option.action,
            "option": _OPTIONS[option.action].format(checkpoint=option.checkpoint),
            "does": option.does,
        }
        for option in record.options
    ]
    return Sections(
        record,
        Fields("session", "", shown),
        Part(
            "agent", "agents",
            ("id", "type", "status:status", "progress:percent", "checkpoint", "waiting", "held"), agents,
        ),
        Part("missing", "missing", ("producer", "document"), _pairs(record.missing)),
        Part("document", "documents", ("name", "version", "author", "created:time"), record.documents),
        Part(
            "meeting", "meetings", ("name", "remaining"),
            [{"name": name, "remaining": ", ".join(members)} for name, members in record.remaining.items()],
        ),
        Part("checkpoint", "composite checkpoints", ("id", "name", "created:time"), record.checkpoints),
        _Options("option", "what can be done, the likeliest first", ("option:command", "does"), options),
        remark=_remark(record),
    )  # fmt: skip


class _Options(Part):
    """People see what to type; programs read the action."""

    def lines(self) -> list[str]:
        return [f"{self.subject}\t{row['action']}\t{plain(row['does'])}" for row in self.rows]


def _remark(record: RecoveryRecord) -> str | None:
    """What helps beside the options, or why there are none."""
    back = [agent for agent in record.agents if agent.status == "failed" or (agent.cut_off and agent.waiting)]
    if record.session.status == "active" and back:
        one = back[0]
        waits = f", and work waits for it ({one.waiting})" if one.waiting else ""
        return (
            f"{one.id} {one.status}{waits}: register it again (agentbus register {one.id} --type {one.type}),"
            f" or set it aside (agentbus recovery clear {one.id})"
        )
    if record.options:
        return None
    if not record.at_work and not record.owned:
        return "nothing can be done: it has ended"
    if all(agent.status == "suspect" for agent in record.agents if agent.id in record.at_work) and not record.owned:
        return f"wait: {', '.join(record.at_work)} may be at work, but is suspect; or agentbus recovery clear"
    return "nothing needs to be done: somebody is at work in it"


def _pairs(found: dict[str, str]) -> list[dict[str, str]]:
    return [{"producer": producer, "document": document} for producer, document in found.items()]


def _done(done: Recovered) -> Result:
    said: dict[str, Any] = {
        "action": done.action,
        "session": done.session,
        "changed": done.changed,
        "agents": ", ".join(done.agents) or None,
        "follow_on": done.follow_on,
    }
    if done.rollback is not None:
        back = done.rollback
        said |= {
            "checkpoint": back.checkpoint,
            "saved": back.saved,
            "documents": ", ".join(back.documents) or None,
            "removed": ", ".join(back.removed) or None,
            "entries": sum(len(keys) for keys in back.state.values()),
            "live": ", ".join(back.live) or None,
        }
    said |= {f"remaining in {meeting}": ", ".join(members) for meeting, members in done.remaining.items()}
    remark = None
    if done.action in {"resume", "rollback"} and done.agents:
        remark = f"it waits for {', '.join(done.agents)}: register them again (agentbus register ID --type TYPE)"
        remark += f" within {WITHIN:g} s, or it is interrupted again"
    if not done.changed:
        remark = "it goes on already: there was nothing to do"
    return Sections(done, Fields("done", "", said), remark=remark)
