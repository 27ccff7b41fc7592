"""Visiting agents (register, heartbeat, progress, end), and the registry (list, show, find, delete)."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from msgspec import to_builtins

from agentbus.cli.arguments import option, paging, seconds
from agentbus.cli.context import Call, Command
from agentbus.cli.errors import NOTHING, missing
from agentbus.cli.output import CONFIRMED, Done, One, Result, Rows
from agentbus.errors import UnknownAgent
from agentbus.operations.common import LIVE

if TYPE_CHECKING:
    from agentbus.api.agents import ProfileOptions
    from agentbus.records import AgentRecord
    from agentbus.sync.bus import BlockingBus


def register(call: Call) -> Result:
    given = call.arguments
    agent = call.bus.register(
        given.id,
        type=given.type,
        pid=given.pid,
        **({} if given.patience is None else {"patience": given.patience}),
        **about(call),
    )
    found = agent.registration
    restored = None if found.restored is None else {"id": found.restored.id, "name": found.restored.name}
    data = {
        "agent": agent.identity, "id": agent.id, "epoch": agent.epoch, "session": agent.session,
        "pools": sorted(found.pools), "topics": sorted(found.subscriptions), "restored": restored,
    }  # fmt: skip
    return Done(data, f"registered {agent.identity}", agent.identity)


def expect(call: Call) -> Result:
    from agentbus.api.agents import expectation, register_agent

    given = call.arguments
    known = call.bus.do(call.bus.agents.get(given.id))
    options = cast("ProfileOptions", _profile(call))
    request = expectation(call.bus._max_payload, given.id, given.type, given.session, given.within, options)
    found = call.bus.do(register_agent(call.bus._engine, request))
    record = call.bus.do(call.bus.agents.get(found.agent))
    status = None if record is None else record.status
    if known is not None and known.status in LIVE:
        done = f"{found.agent} is registered already"
    else:
        done = f"expecting {found.agent}" + ("" if given.within is None else f" within {given.within:g} s")
    return Done({"agent": found.agent, "status": status, "within": given.within}, done)


def _expect(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("id", help="the agent's id")
    add("--type", required=True, metavar="TYPE", help="agent type (see agentbus types list)")
    add("--within", type=seconds, metavar="S", help="a monitor marks it failed if it has not registered by then")
    profile_options(parser)


def about(call: Call) -> dict[str, Any]:
    """Return the arguments of ``register`` that the options of ``about_options`` give."""
    given = call.arguments
    return {
        "session": given.session, "pools": given.pool or (), "topics": given.topic or (),
        "takeover": given.takeover, **_profile(call),
    }  # fmt: skip


def _profile(call: Call) -> dict[str, Any]:
    given = call.arguments
    metadata = option(call, given.metadata)
    found = {
        name: value
        for name in ("name", "milestone", "parent", "model", "prompt", "load", "estimate")
        if (value := getattr(given, name)) is not None
    }
    if metadata is not None:
        found["metadata"] = metadata
    if given.capability:
        found["capabilities"] = given.capability
    return found


def _register(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("id", help="the agent's id")
    add(
        "--type",
        required=True,
        metavar="TYPE",
        help="its type (see agentbus types list --kind agent)",
    )
    add(
        "--pid",
        type=int,
        metavar="N",
        help="the process that it belongs to ($PPID, $$); when it ends, the agent is marked failed",
    )
    add("--patience", type=seconds, metavar="S", help="seconds of silence before it is marked failed (default 1800)")
    about_options(parser)


def about_options(parser: ArgumentParser) -> None:
    """Add the options of every command that registers an agent."""
    add = parser.add_argument
    add("--takeover", action="store_true", help="take over from an incarnation that is running elsewhere")
    add("--pool", action="append", metavar="NAME", help="pool to consume from; can be repeated")
    add("--topic", action="append", metavar="NAME", help="topic to subscribe to; can be repeated")
    profile_options(parser)


def profile_options(parser: ArgumentParser) -> None:
    """Add the options that describe an agent."""
    add = parser.add_argument
    add("--session", metavar="ID", help="the session that it joins")
    add("--capability", action="append", metavar="NAME", help="capability of the agent; can be repeated")
    add("--parent", metavar="ID", help="the agent that is notified if it fails")
    add("--milestone", metavar="NAME", help="milestone of its work")
    add("--name", metavar="TEXT", help="display name")
    add("--model", metavar="TEXT", help="model that drives it")
    add("--prompt", metavar="TEXT", help="prompt of the agent")
    add("--load", type=int, metavar="N", help="load, 0 to 100")
    add("--estimate", type=seconds, metavar="S", help="estimated duration in seconds")
    add("--metadata", metavar="JSON", help="further data, a JSON object")


def heartbeat(call: Call) -> Result:
    call.me.heartbeat()
    data = {"agent": call.me.identity, "status": "running"}
    return Done(data, f"recorded a heartbeat of {call.me.identity}", "")


def progress(call: Call) -> Result:
    call.me.progress(call.arguments.percent, call.arguments.note)
    done = f"recorded {call.arguments.percent} % for {call.me.identity}"
    # Called often, by programs whose output is read: only a terminal gets the sentence.
    return Done({"agent": call.me.identity, "progress": call.arguments.percent}, done, "")


def busy(call: Call) -> Result:
    call.me.busy(call.arguments.seconds)
    duration = call.arguments.seconds
    done = f"{call.me.identity} is busy for {duration:g} s" if duration else f"{call.me.identity} is busy no more"
    return Done({"agent": call.me.identity, "busy": duration}, done, "")


def complete(call: Call) -> Result:
    call.me.complete()
    return _ended(call, "completed", f"completed {call.me.identity}")


def fail(call: Call) -> Result:
    call.me.fail(call.arguments.error)
    return _ended(call, "failed", f"marked {call.me.identity} failed")


def stop(call: Call) -> Result:
    call.me.stop(call.arguments.reason)
    return _ended(call, "stopped", f"stopped {call.me.identity}")


def _ended(call: Call, status: str, done: str) -> Result:
    return Done({"agent": call.me.identity, "status": status}, done)


def _progress(parser: ArgumentParser) -> Any:
    parser.add_argument("percent", type=int, help="0 to 100")
    parser.add_argument("note", nargs="?", help="note on the current work")


def _seconds(parser: ArgumentParser) -> Any:
    parser.add_argument("seconds", type=seconds, help="expected silence; 0 cancels it")


def _error(parser: ArgumentParser) -> Any:
    parser.add_argument("error", help="the error")


def _reason(parser: ArgumentParser) -> Any:
    parser.add_argument("reason", nargs="?", help="the reason")


_SILENT = "plain output: nothing"
COLUMNS = ("id", "type", "status:status", "progress:percent", "note", "session", "updated:time", "seen:time")
_PLAIN = "plain output: id, type, status, progress, note, session, updated, seen (last call or heartbeat)"


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
        with_seen(call.bus, page.items), COLUMNS, cursor=page.cursor, terminal=_terminal, empty="no matching agents"
    )


def with_seen(bus: BlockingBus, agents: Sequence[AgentRecord]) -> list[dict[str, Any]]:
    """Return agents, each with the time of its last sign of life."""
    from agentbus.operations.lookups import last_seen

    seen = bus.read(last_seen, agents)
    return [{**to_builtins(agent), "seen": seen[agent.id].at} for agent in agents]


def _terminal(agent: dict[str, Any]) -> dict[str, Any]:
    """Return the columns of a terminal: the last sign of life instead of the last change of the record."""
    return {
        "id": agent["id"], "type": agent["type"], "status:status": agent["status"],
        "progress:percent": agent["progress"], "seen:time": agent["seen"], "note": agent["note"],
        "session": agent["session"],
    }  # fmt: skip


def show(call: Call) -> Result:
    record = call.bus.do(call.bus.agents.get(call.arguments.id))
    if record is None:
        raise missing(UnknownAgent(agent=call.arguments.id))
    from agentbus.operations.lookups import last_seen
    from agentbus.operations.processes import get_pid

    seen = call.bus.read(last_seen, [record])[record.id]
    pid = None if record.process is None else call.bus.read(get_pid, record.process)
    fields = {**to_builtins(record), "seen": seen.at, "pid": pid}
    # The awake clock means nothing outside the bus.
    return One(fields, shown={"busy_until": seen.busy_until}, hidden=("last_call",))


def find(call: Call) -> Result:
    found = call.bus.do(call.bus.agents.find(call.arguments.capability, status=call.arguments.status))
    rows = with_seen(call.bus, found)
    return Rows(rows, COLUMNS, terminal=_terminal, code=0 if found else NOTHING, empty="no matching agents")


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
            call.note(f"agentbus: deleted before the error: {', '.join(gone)}")
    return _gone(gone)


def clear(call: Call) -> Result:
    return _gone(call.bus.do(call.bus.agents.clear(older_than=call.arguments.older_than)))


def _gone(agents: Sequence[str]) -> Result:
    rows = [{"id": id, "deleted": True} for id in agents]
    return Rows(rows, ("id", "deleted"), paged=False, terminal=_deleted, empty="no agents deleted")


def _deleted(row: dict[str, Any]) -> dict[str, Any]:
    return {"deleted": row["id"]}


def _list(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("--status", metavar="S", help="status, or several (a,b); incomplete: all that have not ended")
    add("--type", metavar="TYPE", help="agent type")
    add("--session", metavar="ID", help="session")
    add("--parent", metavar="ID", help="parent agent")
    add("--kind", metavar="KIND", help="resident or visiting")
    paging(parser)


def _id(parser: ArgumentParser) -> None:
    parser.add_argument("id", help="the agent's id")


def _ids(parser: ArgumentParser) -> None:
    parser.add_argument("id", nargs="+", help="id of an agent that has ended, or was only announced")


def _find(parser: ArgumentParser) -> None:
    parser.add_argument("capability", help="required capability")
    parser.add_argument("--status", default="incomplete", metavar="S", help="status (default: all that have not ended)")


def _clear(parser: ArgumentParser) -> None:
    text = "minimum age in seconds since they ended (default 0)"
    parser.add_argument("--older-than", type=seconds, default=0, metavar="S", help=text)


COMMANDS = {
    "register": Command(
        register,
        "Register a visiting agent, which acts by commands.",
        "AGENTBUS_AGENT=$(agentbus register coord-001 --type coordinator) && export AGENTBUS_AGENT",
        _register,
        output="plain output: id#epoch, the value for AGENTBUS_AGENT",
    ),
    "expect": Command(
        expect, "Announce an agent that will register later: it is pending, and its mailbox exists. With --within it is"
        " spawning.",
        "agentbus expect exec-001 --type executor --within 60", _expect, output=CONFIRMED,
    ),
    "heartbeat": Command(
        heartbeat, "Send a heartbeat. It extends the leases that the agent holds.", "agentbus heartbeat",
        output=_SILENT,
    ),
    "progress": Command(
        progress, "Report progress.", "agentbus progress 40 'writing tests'", _progress, output=_SILENT
    ),
    "busy": Command(
        busy, "Announce a period of silence, during which the agent is not marked failed.", "agentbus busy 600",
        _seconds, output=_SILENT,
    ),
    "complete": Command(complete, "Mark this agent completed.", "agentbus complete", output=CONFIRMED),
    "fail": Command(
        fail, "Mark this agent failed and notify its parent.",
        "agentbus fail 'the tests cannot be made to pass'", _error, output=CONFIRMED,
    ),
    "stop": Command(
        stop, "Mark this agent stopped: it ends before its work is done.", "agentbus stop 'out of budget'", _reason,
        output=CONFIRMED,
    ),
    "agents list": Command(listed, "List agents, ordered by id.",
                           "agentbus agents list --status running", _list, output=_PLAIN, columns=True),
    "agents show": Command(show, "Show all fields of an agent.", "agentbus agents show planner-1", _id,
                           output="plain output: one line per field: name, value", columns=True),
    "agents find": Command(find, "List the agents with a capability. Exit code 4 if there is none.",
                           "agentbus agents find python", _find, output=_PLAIN, columns=True),
    "agents delete": Command(delete, "Delete agents that have ended, with their state and checkpoints.",
                             "agentbus agents delete planner-1", _ids, output="plain output: id, deleted (true)",
                             columns=True),
    "agents clear": Command(clear, "Delete the agents that completed or stopped.",
                            "agentbus agents clear --older-than 3600", _clear,
                            output="plain output: id, deleted (true)", columns=True),
}  # fmt: skip
