"""The vocabulary: the types of agents and messages that there are."""

from __future__ import annotations

from argparse import ArgumentParser

from agentbus.interfaces.cli.command import Call, Command
from agentbus.interfaces.cli.failures import NothingThere
from agentbus.interfaces.cli.output import One, Result, Rows, Said
from agentbus.interfaces.cli.values import JSON_HELP, json_value


def listed(call: Call) -> Result:
    rows = [
        {"name": one.name, "kind": one.kind, "builtin": one.builtin, "schema": one.schema is not None,
         "description": one.description}
        for one in call.bus.types(call.arguments.kind)
    ]  # fmt: skip
    columns = ("name", "kind", "builtin:flag", "schema:flag", "description")
    return Rows(rows, columns, paged=False, empty="there are no such types")


def show(call: Call) -> Result:
    given = call.arguments
    found = [one for one in call.bus.types(given.kind) if one.name == given.name]
    if not found:
        raise NothingThere(
            what=f"there is no type {given.name!r}", advice="`agentbus types list` shows those there are"
        )
    # What is built in was never made.
    return One(found[0], told={"created": found[0].created or None})


def add(call: Call) -> Result:
    given = call.arguments
    call.bus.define(given.name, kind=given.kind, description=given.description, schema=json_value(given.schema))
    return Said({"name": given.name, "kind": given.kind})


def _kind(parser: ArgumentParser) -> None:
    parser.add_argument("--kind", metavar="KIND", help="agent or message (both)")


def _show(parser: ArgumentParser) -> None:
    parser.add_argument("name", help="the type's name")
    _kind(parser)


def _add(parser: ArgumentParser) -> None:
    parser.add_argument("name", help="the type's name")
    parser.add_argument("--kind", default="message", metavar="KIND", help="agent or message (message)")
    parser.add_argument("--description", default="", metavar="TEXT", help="what it is for")
    parser.add_argument(
        "--schema", metavar="JSON", help=f"JSON Schema that payloads of a message type must fit: {JSON_HELP}"
    )


COMMANDS = {
    "types list": Command(
        listed, "List the types of agents and messages.", "agentbus types list --kind message", _kind,
        output="plain output: name, kind, builtin, schema (whether it has one), description",
    ),
    "types show": Command(
        show, "Show a type with its schema.", "agentbus types show deploy_request", _show,
        output="plain output: a line for each field: its name, its value",
    ),
    "types add": Command(
        add, "Add a type, or change its description or schema.",
        "agentbus types add deploy_request --schema '{\"required\": [\"url\"]}'", _add, output="plain output: nothing",
    ),
}  # fmt: skip
