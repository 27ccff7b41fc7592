"""State: JSON under a scope and a key."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from agentbus.interfaces.cli.command import Call, Command, ending_cleanly
from agentbus.interfaces.cli.failures import NOTHING, NothingThere
from agentbus.interfaces.cli.output import Result, Rows, Said, bare
from agentbus.interfaces.cli.values import JSON_HELP, paging, seconds, text_option, value
from agentbus.limits import check_range


def _state(call: Call) -> Any:
    """The state that is meant: one's own, or of the scope that was named; changed by whoever calls."""
    scope = call.arguments.of
    if scope is None:
        return call.me.state
    return call.bus.state(scope) if call.visitor is None else call.visitor.state_of(scope)


def get(call: Call) -> Result:
    entry = call.bus.do(_state(call).entry(call.arguments.key))
    if entry is None:
        scope = call.arguments.of or call.me.id
        advice = f"`agentbus state list --of {scope}` shows those there are"
        raise NothingThere(what=f"{scope} has no entry {call.arguments.key!r}", advice=advice)
    return Said(entry, bare(entry.value))


def put(call: Call) -> Result:
    given = call.arguments
    version = call.bus.do(
        _state(call).set(given.key, value(given, "value"), ttl=given.ttl, type=given.type, if_version=given.if_version)
    )
    return Said({"key": given.key, "version": version}, str(version))


def delete(call: Call) -> Result:
    given = call.arguments
    existed = call.bus.do(_state(call).delete(given.key, if_version=given.if_version))
    return Said({"key": given.key, "deleted": existed}, code=0 if existed else NOTHING)


def listed(call: Call) -> Result:
    given = call.arguments
    page = call.bus.do(_state(call).list(given.prefix, cursor=given.cursor, limit=given.limit))
    return Rows(
        page.items, ("key", "version", "type", "updated:time", "expires:time", "value:json"), cursor=page.cursor
    )


def watch(call: Call) -> int:
    given = call.arguments
    left = None if given.max is None else check_range(given.max, "--max", 1, 1_000_000_000)
    with ending_cleanly():
        for entry in call.bus.each(_state(call).watch(given.prefix, after=given.after)):
            call.emit(Rows([entry], ("key", "version", "change", "value:json"), paged=False, whole=True, one=True))
            left = None if left is None else left - 1
            if left is not None and left <= 0:
                break
    return 0


def _key(parser: ArgumentParser) -> None:
    parser.add_argument("key", help="the entry's key")
    _scope(parser)


def _scope(parser: ArgumentParser) -> None:
    parser.add_argument("--of", metavar="SCOPE", help="an agent's id, session:ID, or any name (yours)")


def _put(parser: ArgumentParser) -> None:
    _key(parser)
    parser.add_argument("value", help=JSON_HELP)
    text_option(parser)
    parser.add_argument("--ttl", type=seconds, metavar="S", help="it expires after so many seconds")
    parser.add_argument(
        "--type", default="user_data", metavar="TYPE", help="checkpoint, progress, user_data, system_data or temp_data"
    )
    _version(parser)


def _version(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--if-version", type=int, metavar="N", help="only if this is its version; 0: only if it is not there"
    )


def _delete(parser: ArgumentParser) -> None:
    _key(parser)
    _version(parser)


def _prefix(parser: ArgumentParser) -> None:
    parser.add_argument("prefix", nargs="?", default="", help="what the keys begin with (all)")
    _scope(parser)


def _list(parser: ArgumentParser) -> None:
    _prefix(parser)
    paging(parser)


def _watch(parser: ArgumentParser) -> None:
    _prefix(parser)
    parser.add_argument("--after", type=int, metavar="N", help="go on after this change, the `change` of an entry")
    parser.add_argument("--max", type=int, metavar="N", help="end after so many entries (never)")


COMMANDS = {
    "state get": Command(
        get, "Print the value of an entry. Exit code 4 if it is not there.", "agentbus state get scope --of planner-1",
        _key, output="plain output: the value\n  a text as it is: agentbus state set KEY \"$(agentbus state get KEY)\""
        " --text sets it again\n  anything else as JSON: the same without --text; --json tells which of both it is",
    ),
    "state set": Command(
        put, "Set an entry, for good or for a while.", "agentbus state set scope '{\"files\": 12}' --ttl 3600", _put,
        output="plain output: its version",
    ),
    "state delete": Command(
        delete, "Delete an entry. Exit code 4 if it was not there.", "agentbus state delete scope", _delete,
        output="plain output: nothing",
    ),
    "state list": Command(
        listed, "List entries in the order of their keys.", "agentbus state list phase/ --of session:planning-001",
        _list, output="plain output: key, version, type, updated, expires, value",
    ),
    "state watch": Command(
        watch, "Print what is there, then every change as it comes, until Ctrl-C.",
        "agentbus state watch --of builds --json", _watch,
        output="plain output: key, version, change, value (- if it is gone); with --json an envelope on each line",
    ),
}  # fmt: skip
