"""The registry as people look at it: listing, showing, finding, deleting agents."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from msgspec import to_builtins

from agentbus.errors import UnknownAgent
from agentbus.interfaces.cli.command import Call, Command
from agentbus.interfaces.cli.failures import NOTHING, missing
from agentbus.interfaces.cli.output import One, Result, Rows
from agentbus.interfaces.cli.values import paging, seconds

if TYPE_CHECKING:
    from agentbus.blocking import BlockingBus
    from agentbus.records import AgentRecord

COLUMNS = ("id", "type", "status:status", "progress:percent", "note", "session", "updated:time", "seen:time")
_PLAIN = "plain output: id, type, status, progress, note, session, updated, seen (when it last called or beat)"


def listed(call: Call) -> Result:
    given = call.arguments
    status = given.status.split(",") if given.status and given.status != "incomplete" else given.status
    page = call.bus.do(
        call.bus.agents.list(
            status=status,
            type=given.type,
            session=given.session,
            parent=given.parent,
            kind=given.kind,
            cursor=given.cursor,
            limit=given.limit,
        )
    )
    return Rows(
        with_seen(call.bus, page.items), COLUMNS, cursor=page.cursor, people=_people, empty="there are no such agents"
    )


def with_seen(bus: BlockingBus, agents: Sequence[AgentRecord]) -> list[dict[str, Any]]:
    """These agents, each with when it last showed life."""
    from agentbus.operations.reading import last_seen

    seen = bus.read(last_seen, agents)
    return [{**to_builtins(agent), "seen": seen[agent.id].at} for agent in agents]


def _people(agent: dict[str, Any]) -> dict[str, Any]:
    """What people see: when it was seen, not when its record was last changed."""
    return {
        "id": agent["id"], "type": agent["type"], "status:status": agent["status"],
        "progress:percent": agent["progress"], "seen:time": agent["seen"], "note": agent["note"],
        "session": agent["session"],
    }  # fmt: skip


def show(call: Call) -> Result:
    record = call.bus.do(call.bus.agents.get(call.arguments.id))
    if record is None:
        raise missing(UnknownAgent(agent=call.arguments.id))
    from agentbus.operations.reading import last_seen

    seen = call.bus.read(last_seen, [record])[record.id]
    fields = {**to_builtins(record), "seen": seen.at}
    # Awake time says nothing to anybody outside the bus.
    return One(fields, told={"busy_until": seen.busy_until}, hidden=("last_call",))


def find(call: Call) -> Result:
    found = call.bus.do(call.bus.agents.find(call.arguments.capability, status=call.arguments.status))
    rows = with_seen(call.bus, found)
    return Rows(rows, COLUMNS, people=_people, code=0 if found else NOTHING, empty="nobody can do that")


def delete(call: Call) -> Result:
    agents: list[str] = call.arguments.id
    for agent in agents:
        if call.bus.do(call.bus.agents.get(agent)) is None:
            raise UnknownAgent(agent=agent)
    gone: list[str] = []
    try:
        for agent in agents:
            call.bus.do(call.bus.agents.delete(agent))
            gone.append(agent)
    finally:
        if gone != agents and gone:
            call.note(f"agentbus: deleted before that: {', '.join(gone)}")
    return _gone(gone)


def clear(call: Call) -> Result:
    return _gone(call.bus.do(call.bus.agents.clear(older_than=call.arguments.older_than)))


def _gone(agents: Sequence[str]) -> Result:
    return Rows(
        [{"id": id, "deleted": True} for id in agents], ("id", "deleted"), paged=False, empty="nobody is deleted"
    )


def _list(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("--status", metavar="S", help="of this status, or of these (a,b); incomplete: all that have not ended")
    add("--type", metavar="TYPE", help="of this type")
    add("--session", metavar="ID", help="of this session")
    add("--parent", metavar="ID", help="of this parent")
    add("--kind", metavar="KIND", help="resident or visiting")
    paging(parser)


def _id(parser: ArgumentParser) -> None:
    parser.add_argument("id", help="the agent's id")


def _ids(parser: ArgumentParser) -> None:
    parser.add_argument("id", nargs="+", help="the id of an agent that has ended, or was only expected")


def _find(parser: ArgumentParser) -> None:
    parser.add_argument("capability", help="what they must be able to do")
    parser.add_argument("--status", default="incomplete", metavar="S", help="of this status (all that have not ended)")


def _clear(parser: ArgumentParser) -> None:
    text = "only those that ended so many seconds ago (0)"
    parser.add_argument("--older-than", type=seconds, default=0, metavar="S", help=text)


COMMANDS = {
    "agents list": Command(listed, "List agents in the order of their ids.",
                           "agentbus agents list --status running", _list, output=_PLAIN),
    "agents show": Command(show, "Show all that is known of an agent.", "agentbus agents show planner-1", _id,
                           output="plain output: a line for each field: its name, its value"),
    "agents find": Command(find, "List the agents that can do something. Exit code 4 if nobody can.",
                           "agentbus agents find python", _find, output=_PLAIN),
    "agents delete": Command(delete, "Delete agents that have ended, with their state and checkpoints.",
                             "agentbus agents delete planner-1", _ids, output="plain output: id, true"),
    "agents clear": Command(clear, "Delete the agents that completed or stopped.",
                            "agentbus agents clear --older-than 3600", _clear, output="plain output: id, true"),
}  # fmt: skip
