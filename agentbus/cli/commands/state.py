"""State: JSON under a scope and a key."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from agentbus.cli.arguments import JSON_HELP, number, paging, payload, seconds, text_option
from agentbus.cli.context import Call, Command, ending_cleanly
from agentbus.cli.errors import NOTHING, NoIdentity, NothingThere
from agentbus.cli.output import CONFIRMED, Done, Notice, Result, Rows, bare
from agentbus.core.validation import check_range


def _state(call: Call) -> Any:
    """Return the state of the scope that is named, or of the calling agent."""
    scope = call.arguments.of
    if scope is None:
        if call.settings.text("agent") is None:
            raise NoIdentity("; or name the scope: --of SCOPE")
        return call.me.state
    return call.bus.state(scope) if call.visitor is None else call.visitor.state_of(scope)


def get(call: Call) -> Result:
    entry = call.bus.do(_state(call).entry(call.arguments.key))
    if entry is None:
        scope = call.arguments.of or call.me.id
        advice = f"agentbus state list --of {scope} shows the entries"
        raise NothingThere(what=f"{scope} has no entry {call.arguments.key!r}", advice=advice)
    return Notice(entry, bare(entry.value))


def put(call: Call) -> Result:
    given = call.arguments
    version = call.bus.do(
        _state(call).set(given.key, payload(call, "value"), ttl=given.ttl, type=given.type, if_version=given.if_version)
    )
    done = f"set {given.key} of {given.of or call.me.id}, version {version}"
    return Done({"key": given.key, "version": version}, done, str(version))


def increment(call: Call) -> Result:
    given = call.arguments
    total = call.bus.do(_state(call).increment(given.key, given.by, ttl=given.ttl))
    done = f"{given.key} of {given.of or call.me.id} is {total}"
    return Done({"key": given.key, "value": total}, done, str(total))


def delete(call: Call) -> Result:
    given = call.arguments
    existed = call.bus.do(_state(call).delete(given.key, if_version=given.if_version))
    scope = given.of or call.me.id
    done = f"deleted {given.key} of {scope}" if existed else f"{scope} has no entry {given.key}"
    return Done({"key": given.key, "deleted": existed}, done, code=0 if existed else NOTHING)


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
    parser.add_argument("key", help="key of the entry")
    _scope(parser)


def _scope(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--of", metavar="SCOPE", help="an agent id, session:ID, or any name (default: the calling agent)"
    )


def _put(parser: ArgumentParser) -> None:
    _key(parser)
    parser.add_argument("value", help=JSON_HELP)
    text_option(parser)
    parser.add_argument("--ttl", type=seconds, metavar="S", help="time to live in seconds")
    parser.add_argument(
        "--type", default="user_data", metavar="TYPE", help="checkpoint, progress, user_data, system_data or temp_data"
    )
    _version(parser)


def _version(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--if-version", type=int, metavar="N", help="only if the entry has this version; 0: only if it does not exist"
    )


def _increment(parser: ArgumentParser) -> None:
    _key(parser)
    parser.add_argument("by", nargs="?", type=number, default=1, help="the number to add (default 1)")
    parser.add_argument("--ttl", type=seconds, metavar="S", help="time to live in seconds (default: an expiry is kept)")


def _delete(parser: ArgumentParser) -> None:
    _key(parser)
    _version(parser)


def _prefix(parser: ArgumentParser) -> None:
    parser.add_argument("prefix", nargs="?", default="", help="prefix of the keys (default: all)")
    _scope(parser)


def _list(parser: ArgumentParser) -> None:
    _prefix(parser)
    paging(parser)


def _watch(parser: ArgumentParser) -> None:
    _prefix(parser)
    parser.add_argument("--after", type=int, metavar="N", help="resume after this change (the `change` of an entry)")
    parser.add_argument("--max", type=int, metavar="N", help="exit after this number of entries")


COMMANDS = {
    "state get": Command(
        get, "Print the value of an entry. Exit code 4 if it does not exist.",
        "agentbus state get scope --of planner-1", _key,
        output="plain output: the value\n  a string as is: agentbus state set KEY \"$(agentbus state get KEY)\""
        " --text stores it again\n  other values as JSON: the same without --text; --json distinguishes the two",
    ),
    "state set": Command(
        put, "Set an entry, permanently or with a time to live.",
        "agentbus state set scope '{\"files\": 12}' --ttl 3600", _put,
        output="plain output: its version",
    ),
    "state increment": Command(
        increment, "Add a number to an entry, atomically. A missing entry counts as 0.",
        "agentbus state increment build --of counters", _increment, output="plain output: the sum",
    ),
    "state delete": Command(
        delete, "Delete an entry. Exit code 4 if it does not exist.", "agentbus state delete scope", _delete,
        output=CONFIRMED,
    ),
    "state list": Command(
        listed, "List entries, ordered by key.", "agentbus state list phase/ --of session:planning-001",
        _list, output="plain output: key, version, type, updated, expires, value (JSON)", columns=True,
    ),
    "state watch": Command(
        watch, "Print the entries, then follow changes until Ctrl-C.",
        "agentbus state watch --of builds --json", _watch,
        output="plain output: key, version, change, value (- if deleted)\nwith --json one envelope per line",
        columns=True,
    ),
}  # fmt: skip
