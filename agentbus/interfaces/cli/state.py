"""State: JSON under a scope and a key."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from agentbus.interfaces.cli.command import Call, Command
from agentbus.interfaces.cli.failures import NOTHING
from agentbus.interfaces.cli.output import Result, Said, plain
from agentbus.interfaces.cli.values import JSON_HELP, json_value, number


def _state(call: Call) -> Any:
    """The state that is meant: one's own, or of the scope that was named; changed by whoever calls."""
    scope = call.arguments.of
    if scope is None:
        return call.me.state
    return call.bus.state(scope) if call.visitor is None else call.visitor.state_of(scope)


def get(call: Call) -> Result:
    entry = call.bus.do(_state(call).entry(call.arguments.key))
    if entry is None:
        return Said(None, code=NOTHING)
    return Said(entry, plain(entry.value))


def put(call: Call) -> Result:
    given = call.arguments
    value = json_value(given.value)
    version = call.bus.do(
        _state(call).set(given.key, value, ttl=given.ttl, type=given.type, if_version=given.if_version)
    )
    return Said({"key": given.key, "version": version}, str(version))


def _key(parser: ArgumentParser) -> None:
    parser.add_argument("key", help="the entry's key")
    _scope(parser)


def _scope(parser: ArgumentParser) -> None:
    parser.add_argument("--of", metavar="SCOPE", help="an agent's id, session:ID, or any name (yours)")


def _put(parser: ArgumentParser) -> None:
    _key(parser)
    parser.add_argument("value", help=JSON_HELP)
    parser.add_argument("--ttl", type=number, metavar="S", help="it expires after so many seconds")
    parser.add_argument(
        "--type", default="user_data", metavar="TYPE", help="checkpoint, progress, user_data, system_data or temp_data"
    )
    _version(parser)


def _version(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--if-version", type=int, metavar="N", help="only if this is its version; 0: only if it is not there"
    )


COMMANDS = {
    "state get": Command(
        get, "Print the value of an entry. Exit code 4 if it is not there.", "agentbus state get scope --of planner-1",
        _key, output="plain output: the value (a text as it is, anything else as JSON)",
    ),
    "state set": Command(
        put, "Set an entry, for good or for a while.", "agentbus state set scope '{\"files\": 12}' --ttl 3600", _put,
        output="plain output: its version",
    ),
}  # fmt: skip
