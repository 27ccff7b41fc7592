"""Recovery: the plan of a session and its options, a summary of interrupted work, and clearing of agents."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from typing import TYPE_CHECKING, Any

import msgspec

from agentbus.api.recovery import WITHIN
from agentbus.cli.arguments import paging
from agentbus.cli.commands.sessions import chosen
from agentbus.cli.context import Call, Command
from agentbus.cli.errors import Usage
from agentbus.cli.output import PLAIN, PlainFormat, Result, Rows, table_lines
from agentbus.cli.views import Fields, Part, Sections

if TYPE_CHECKING:
    from agentbus import Bus
    from agentbus.api.recovery import RecoveryPlan
    from agentbus.records import Recovered, RecoveryRecord, RecoverySummary

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
        raise Usage(reason="--follow-on-id requires --follow-on", advice="pass both")
    name = chosen(call)
    plan = call.bus.do(call.bus.recovery.plan(name))
    done = _execute(call, plan)
    return _plan(plan.record) if done is None else _done(done)


def _execute(call: Call, plan: RecoveryPlan) -> Recovered | None:
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
        _Options("option", "options, the likeliest first", ("option:command", "does"), options),
        remark=_remark(record),
    )  # fmt: skip


class _Options(Part):
    """The options: a terminal shows the option to type, plain lines have the action."""

    def lines(self, form: PlainFormat = PLAIN) -> list[str]:
        lines = table_lines((("action", ""), ("does", "")), self.rows, form, self.subject)
        return form.headed(("subject", "action", "does"), lines) if lines else []


def _remark(record: RecoveryRecord) -> str | None:
    """Return advice in addition to the options, or the reason why there are none."""
    back = [agent for agent in record.agents if agent.status == "failed" or (agent.cut_off and agent.waiting)]
    if record.session.status == "active" and back:
        one = back[0]
        waits = f" with {one.waiting} waiting messages" if one.waiting else ""
        return (
            f"{one.id} {one.status}{waits}: register it again (agentbus register {one.id} --type {one.type}),"
            f" or clear it (agentbus recovery clear {one.id})"
        )
    if record.options:
        return None
    if not record.at_work and not record.owned:
        return "no options: the session has ended"
    if all(agent.status == "suspect" for agent in record.agents if agent.id in record.at_work) and not record.owned:
        return f"wait: {', '.join(record.at_work)} is suspect; or clear it: agentbus recovery clear"
    return "no recovery needed: the session is active"


def _pairs(found: dict[str, str]) -> list[dict[str, str]]:
    return [{"producer": producer, "document": document} for producer, document in found.items()]


def _done(done: Recovered) -> Result:
    shown: dict[str, Any] = {
        "action": done.action,
        "session": done.session,
        "changed": done.changed,
        "agents": ", ".join(done.agents) or None,
        "follow_on": done.follow_on,
    }
    if done.rollback is not None:
        back = done.rollback
        shown |= {
            "checkpoint": back.checkpoint,
            "saved": back.saved,
            "documents": ", ".join(back.documents) or None,
            "removed": ", ".join(back.removed) or None,
            "entries": sum(len(keys) for keys in back.state.values()),
            "live": ", ".join(back.live) or None,
        }
    shown |= {f"remaining in {meeting}": ", ".join(members) for meeting, members in done.remaining.items()}
    remark = None
    if done.action in {"resume", "rollback"} and done.agents:
        remark = f"waiting for {', '.join(done.agents)}: register them again (agentbus register ID --type TYPE)"
        remark += f" within {WITHIN:g} s, or the session is interrupted again"
    if not done.changed:
        remark = "the session is already active"
    return Sections(done, Fields("done", "", shown), remark=remark)


COLUMNS = ("id", "type", "status:status", "session", "progress:percent", "note", "updated:time", "error")


def check(call: Call) -> Result:
    """Sweep the bus once, then summarize what was interrupted."""
    from agentbus.cli.async_runner import on_bus

    async def look(bus: Bus) -> RecoverySummary:
        await bus.sweep()
        return await bus.recovery.summary()

    return _summary(on_bus(call, look))


def _summary(found: RecoverySummary) -> Result:
    from agentbus.cli.views import Fields, Part, Sections

    shown: dict[str, Any] = {
        "incomplete": found.incomplete,
        "oldest": found.oldest,
        "recoveries": found.recoveries,
        "success_rate": found.success_rate,
        "mean_time": found.mean_time,
        "median_time": found.median_time,
        "database_bytes": found.database_bytes,
    }
    kinds = {
        "oldest": "milliseconds", "mean_time": "milliseconds", "median_time": "milliseconds", "success_rate": "rate",
        "database_bytes": "bytes",
    }  # fmt: skip
    remark = "nothing interrupted"
    if found.interrupted:
        remark = f"show the options: agentbus session recover {found.interrupted[0]}"
    elif found.dead_holders:
        remark = "register these agents again, or clear them: agentbus recovery clear ID"
    return Sections(
        found,
        Fields("recovery", "", shown, kinds),
        _counts("status", "agents by status", found.by_status, "name:status"),
        _counts("type", "agents by type", found.by_type),
        _counts("session", "agents by session", found.by_session),
        Part("interrupted", "interrupted sessions", ("session",), [{"session": name} for name in found.interrupted]),
        Part("dead", "failed with waiting work", ("agent",), [{"agent": name} for name in found.dead_holders]),
        remark=remark,
    )


def _counts(subject: str, title: str, counts: dict[str, int], column: str = "name") -> Any:
    from agentbus.cli.views import Part

    return Part(subject, title, (column, "agents"), [{"name": name, "agents": n} for name, n in counts.items()])


def listed(call: Call) -> Result:
    page = call.bus.do(call.bus.recovery.agents(cursor=call.arguments.cursor, limit=call.arguments.limit))
    return Rows(page.items, COLUMNS, cursor=page.cursor, terminal=_terminal, empty="no incomplete agents")


def _terminal(agent: dict[str, Any]) -> dict[str, Any]:
    """Return the columns of a terminal: status and error first."""
    columns = ("id", "status:status", "error:reason", "updated:time", "note", "progress:percent", "type", "session")
    return {column: agent[column.partition(":")[0]] for column in columns}


def clear(call: Call) -> Result:
    # --agent names the agent to clear. The environment only names the caller.
    named = call.arguments.id or call.arguments.agent
    name = None if named is None else named.partition("#")[0]
    if name is not None and not call.arguments.force:
        _confirm(call, name)
    found = call.bus.do(call.bus.recovery.clear(name))
    rows = [{"id": agent, "status": "stopped"} for agent in found]
    return Rows(rows, ("id", "status:status"), paged=False, empty="no agents cleared")


def _confirm(call: Call, name: str) -> None:
    """Require a confirmation to clear a running agent."""
    record = call.bus.do(call.bus.agents.get(name))
    if record is None or record.status != "running":
        return
    if not call.arguments.json and sys.stdin.isatty() and sys.stderr.isatty():
        print(f"{name} is running; its next call will be rejected. Clear it? [y/N] ", end="", file=sys.stderr)
        sys.stderr.flush()
        if sys.stdin.readline().strip().lower() in {"y", "yes"}:
            return
    raise Usage(reason=f"{name} is running", advice=f"to clear it anyway: agentbus recovery clear {name} --force")


def _clear(parser: ArgumentParser) -> None:
    parser.add_argument("id", nargs="?", help="agent of any status (default: all suspect or failed agents)")
    parser.add_argument("--force", action="store_true", help="even if it is running: its next call is rejected")


COMMANDS = {
    "recovery check": Command(
        check, "Sweep the bus once, and summarize what was interrupted.", "agentbus recovery check --json",
        output="plain output: by the first column\n  recovery, name, value\n  status, name, agents\n"
        "  type, name, agents\n  session, name, agents\n  interrupted, session\n"
        "  dead, agent (failed with waiting work)\n  remark, advice\ndurations are milliseconds",
        columns=True,
    ),
    "recovery list": Command(
        listed, "List the incomplete agents: those that have not ended, and those that failed or stopped in a session"
        " that has not ended.", "agentbus recovery list", paging,
        output="plain output: id, type, status, session, progress, note, updated, error", columns=True,
    ),
    "recovery clear": Command(
        clear, "Clear the suspect and failed agents: they are stopped and their work is released. Nothing is"
        " deleted.", "agentbus recovery clear planner-1", _clear, output="plain output: id, status (stopped)",
        columns=True,
    ),
}  # fmt: skip
