"""Recovery as a whole: what was cut off, which agents, and setting those aside that nobody waits for."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from typing import TYPE_CHECKING, Any

from agentbus.interfaces.cli.command import Call, Command
from agentbus.interfaces.cli.failures import Usage
from agentbus.interfaces.cli.output import Result, Rows
from agentbus.interfaces.cli.values import paging

if TYPE_CHECKING:
    from agentbus import Bus
    from agentbus.records import RecoverySummary

COLUMNS = ("id", "type", "status:status", "session", "progress:percent", "note", "updated:time", "error")


def check(call: Call) -> Result:
    """Go over the bus once, as a monitor does, then say what was cut off."""
    from agentbus.interfaces.cli.looping import on_bus

    async def look(bus: Bus) -> RecoverySummary:
        await bus.sweep()
        return await bus.recovery.summary()

    return _summary(on_bus(call, look))


def _summary(found: RecoverySummary) -> Result:
    from agentbus.interfaces.cli.sections import Fields, Part, Sections

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
    remark = "nothing was cut off"
    if found.interrupted:
        remark = f"agentbus session recover {found.interrupted[0]} shows what can be done"
    elif found.dead_holders:
        remark = "register those agents again, or set them aside: agentbus recovery clear ID"
    return Sections(
        found,
        Fields("recovery", "", shown, kinds),
        _counts("status", "agents by status", found.by_status, "name:status"),
        _counts("type", "agents by type", found.by_type),
        _counts("session", "agents by session", found.by_session),
        Part("interrupted", "interrupted sessions", ("session",), [{"session": name} for name in found.interrupted]),
        Part("dead", "failed while work waits for them", ("agent",), [{"agent": name} for name in found.dead_holders]),
        remark=remark,
    )


def _counts(subject: str, title: str, counts: dict[str, int], column: str = "name") -> Any:
    from agentbus.interfaces.cli.sections import Part

    return Part(subject, title, (column, "agents"), [{"name": name, "agents": n} for name, n in counts.items()])


def listed(call: Call) -> Result:
    page = call.bus.do(call.bus.recovery.agents(cursor=call.arguments.cursor, limit=call.arguments.limit))
    return Rows(page.items, COLUMNS, cursor=page.cursor, people=_people, empty="no agent is incomplete")


def _people(agent: dict[str, Any]) -> dict[str, Any]:
    """What people see: first how it is and why."""
    columns = ("id", "status:status", "error:reason", "updated:time", "note", "progress:percent", "type", "session")
    return {column: agent[column.partition(":")[0]] for column in columns}


def clear(call: Call) -> Result:
    # Here --agent says whom: whoever names an agent does not mean all of them. The environment only says who calls.
    named = call.arguments.id or call.arguments.agent
    name = None if named is None else named.partition("#")[0]
    if name is not None and not call.arguments.force:
        _ask(call, name)
    found = call.bus.do(call.bus.recovery.clear(name))
    rows = [{"id": agent, "status": "stopped"} for agent in found]
    return Rows(rows, ("id", "status:status"), paged=False, empty="nobody was set aside")


def _ask(call: Call, name: str) -> None:
    """One that is at work is set aside only if that is meant."""
    record = call.bus.do(call.bus.agents.get(name))
    if record is None or record.status != "running":
        return
    if not call.arguments.json and sys.stdin.isatty() and sys.stderr.isatty():
        print(f"{name} is running; its next call would be refused. Set it aside? [y/N] ", end="", file=sys.stderr)
        sys.stderr.flush()
        if sys.stdin.readline().strip().lower() in {"y", "yes"}:
            return
    raise Usage(reason=f"{name} is running", advice=f"if you mean it: agentbus recovery clear {name} --force")


def _clear(parser: ArgumentParser) -> None:
    parser.add_argument("id", nargs="?", help="only this agent, whatever its status (all that are suspect or failed)")
    parser.add_argument("--force", action="store_true", help="also if it is running: its next call is refused")


COMMANDS = {
    "recovery check": Command(
        check, "Go over the bus once, as a monitor does, and say what was cut off.", "agentbus recovery check --json",
        output="plain output: by the first column\n  recovery, field, value\n  status, name, agents\n"
        "  type, name, agents\n  session, id, agents\n  interrupted, session\n  dead, agent (failed while work waits)\n"
        "  remark, what to do\ntimes are milliseconds",
    ),
    "recovery list": Command(
        listed, "List the incomplete agents: those that have not ended, and those that failed or stopped in a session"
        " that goes on or is interrupted.", "agentbus recovery list", paging,
        output="plain output: id, type, status, session, progress, note, updated, error",
    ),
    "recovery clear": Command(
        clear, "Set aside the agents that are suspect or failed: they are stopped, what they held goes back. Nothing is"
        " deleted.", "agentbus recovery clear planner-1", _clear, output="plain output: id, stopped",
    ),
}  # fmt: skip
