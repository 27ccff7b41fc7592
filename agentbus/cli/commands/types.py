"""The types of agents and messages."""

from __future__ import annotations

from argparse import ArgumentParser

from agentbus.cli.arguments import JSON_HELP, json_value
from agentbus.cli.context import Call, Command
from agentbus.cli.errors import NothingThere, echoed
from agentbus.cli.output import CONFIRMED, Done, One, Result, Rows


def listed(call: Call) -> Result:
    rows = [
        {"name": one.name, "kind": one.kind, "builtin": one.builtin, "schema": one.schema is not None,
         "description": one.description}
        for one in call.bus.types(call.arguments.kind)
    ]  # fmt: skip
    columns = ("name", "kind", "builtin:flag", "schema:flag", "description")
    return Rows(rows, columns, paged=False, empty="no matching types")


def show(call: Call) -> Result:
    given = call.arguments
    found = [one for one in call.bus.types(given.kind) if one.name == given.name]
    if not found:
        raise NothingThere(what=f"no type {echoed(given.name)}", advice="agentbus types list shows the types")
    # A built-in type has no time of creation.
    return One(found[0], shown={"created": found[0].created or None})


def add(call: Call) -> Result:
    given = call.arguments
    call.bus.define(given.name, kind=given.kind, description=given.description, schema=json_value(given.schema))
    return Done({"name": given.name, "kind": given.kind}, f"defined the {given.kind} type {given.name}")


def _kind(parser: ArgumentParser) -> None:
    parser.add_argument("--kind", metavar="KIND", help="agent or message (default: both)")


def _show(parser: ArgumentParser) -> None:
    parser.add_argument("name", help="name of the type")
    _kind(parser)


def _add(parser: ArgumentParser) -> None:
    parser.add_argument("name", help="name of the type")
    parser.add_argument("--kind", default="message", metavar="KIND", help="agent or message (default message)")
    parser.add_argument("--description", default="", metavar="TEXT", help="description")
    parser.add_argument("--schema", metavar="JSON", help=f"JSON Schema for the payloads of a message type: {JSON_HELP}")


COMMANDS = {
    "types list": Command(
        listed, "List the types of agents and messages.", "agentbus types list --kind message", _kind,
        output="plain output: name, kind, builtin, schema (true or false), description", columns=True,
    ),
    "types show": Command(
        show, "Show a type with its schema.", "agentbus types show deploy_request", _show,
        output="plain output: one line per field: name, value", columns=True,
    ),
    "types add": Command(
        add, "Add a type, or change its description or schema.",
        "agentbus types add deploy_request --schema '{\"required\": [\"url\"]}'", _add,
        output=CONFIRMED,
    ),
}  # fmt: skip
