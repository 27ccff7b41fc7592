"""The life of a visiting agent: registering, showing life, ending."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

from agentbus.interfaces.cli.command import Call, Command
from agentbus.interfaces.cli.output import Result, Said
from agentbus.interfaces.cli.values import json_value, seconds


def register(call: Call) -> Result:
    given = call.arguments
    agent = call.bus.register(
        given.id,
        type=given.type,
        pid=given.pid,
        **({} if given.patience is None else {"patience": given.patience}),
        **about(given),
    )
    found = agent.life
    restored = None if found.restored is None else {"id": found.restored.id, "name": found.restored.name}
    data = {
        "agent": agent.identity, "id": agent.id, "epoch": agent.epoch, "session": agent.session,
        "pools": sorted(found.pools), "topics": sorted(found.subscriptions), "restored": restored,
    }  # fmt: skip
    return Said(data, agent.identity)


def about(given: Namespace) -> dict[str, Any]:
    """What the options of ``about_options`` say of an agent."""
    metadata = json_value(given.metadata)
    found = {
        name: value
        for name in ("name", "milestone", "parent", "model", "prompt", "load", "estimate")
        if (value := getattr(given, name)) is not None
    }
    if metadata is not None:
        found["metadata"] = metadata
    if given.capability:
        found["capabilities"] = given.capability
    return {
        "session": given.session, "pools": given.pool or (), "topics": given.topic or (),
        "takeover": given.takeover, **found,
    }  # fmt: skip


def _register(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("id", help="the agent's id")
    add(
        "--type",
        required=True,
        metavar="TYPE",
        help="its type; `agentbus types list --kind agent` shows those there are",
    )
    add(
        "--pid",
        type=int,
        metavar="N",
        help="the process that it lives in: when that is gone, it has failed ($PPID, $$)",
    )
    add("--patience", type=seconds, metavar="S", help="how many seconds it may be silent (1800)")
    about_options(parser)


def about_options(parser: ArgumentParser) -> None:
    """The options of everything that registers an agent."""
    add = parser.add_argument
    add("--session", metavar="ID", help="the session that it takes part in")
    add("--takeover", action="store_true", help="if it is alive elsewhere, end that life")
    add("--pool", action="append", metavar="NAME", help="a pool to take work from; may be given several times")
    add("--topic", action="append", metavar="NAME", help="a topic to get copies from; may be given several times")
    add("--capability", action="append", metavar="NAME", help="what it can do; may be given several times")
    add("--parent", metavar="ID", help="the agent that is told if it fails")
    add("--milestone", metavar="NAME", help="what it works for")
    add("--name", metavar="TEXT", help="a name for people")
    add("--model", metavar="TEXT", help="the model behind it")
    add("--prompt", metavar="TEXT", help="what it was asked to do")
    add("--load", type=int, metavar="N", help="how busy it is, 0 to 100")
    add("--estimate", type=seconds, metavar="S", help="how many seconds it will take")
    add("--metadata", metavar="JSON", help="anything else, a JSON object")


def heartbeat(call: Call) -> Result:
    call.me.heartbeat()
    return _lives(call, "running")


def progress(call: Call) -> Result:
    call.me.progress(call.arguments.percent, call.arguments.note)
    return Said({"agent": call.me.identity, "progress": call.arguments.percent})


def busy(call: Call) -> Result:
    call.me.busy(call.arguments.seconds)
    return Said({"agent": call.me.identity, "busy": call.arguments.seconds})


def complete(call: Call) -> Result:
    call.me.complete()
    return _lives(call, "completed")


def fail(call: Call) -> Result:
    call.me.fail(call.arguments.error)
    return _lives(call, "failed")


def stop(call: Call) -> Result:
    call.me.stop(call.arguments.reason)
    return _lives(call, "stopped")


def _lives(call: Call, status: str) -> Result:
    return Said({"agent": call.me.identity, "status": status})


def _progress(parser: ArgumentParser) -> Any:
    parser.add_argument("percent", type=int, help="0 to 100")
    parser.add_argument("note", nargs="?", help="what you are at")


def _seconds(parser: ArgumentParser) -> Any:
    parser.add_argument("seconds", type=seconds, help="for how long; 0 takes it back")


def _error(parser: ArgumentParser) -> Any:
    parser.add_argument("error", help="why it cannot be done")


def _reason(parser: ArgumentParser) -> Any:
    parser.add_argument("reason", nargs="?", help="why")


_SILENT = "plain output: nothing"

COMMANDS = {
    "register": Command(
        register,
        "Join the bus as a visiting agent: one that calls now and then.",
        "AGENTBUS_AGENT=$(agentbus register coord-001 --type coordinator) && export AGENTBUS_AGENT",
        _register,
        output="plain output: id#epoch, which AGENTBUS_AGENT carries",
    ),
    "heartbeat": Command(
        heartbeat, "Show that you are alive; what you hold stays yours.", "agentbus heartbeat", output=_SILENT
    ),
    "progress": Command(
        progress, "Say how far you are.", "agentbus progress 40 'writing tests'", _progress, output=_SILENT
    ),
    "busy": Command(
        busy, "Say that you will be silent for a while, and that this is all right.", "agentbus busy 600", _seconds,
        output=_SILENT,
    ),
    "complete": Command(complete, "End your life: the work is done.", "agentbus complete", output=_SILENT),
    "fail": Command(
        fail, "End your life: the work cannot be done; your parent is told.",
        "agentbus fail 'the tests cannot be made to pass'", _error, output=_SILENT,
    ),
    "stop": Command(
        stop, "End your life though the work is not done.", "agentbus stop 'out of budget'", _reason, output=_SILENT
    ),
}  # fmt: skip
