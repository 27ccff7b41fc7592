"""Histories: list, show and delete the conversations and runs that agent frameworks store."""

from __future__ import annotations

from argparse import ArgumentParser
from base64 import b64encode
from typing import TYPE_CHECKING, Any

from agentbus.cli.arguments import paging
from agentbus.cli.context import Call, Command
from agentbus.cli.errors import missing
from agentbus.cli.output import Done, Result, Rows, counted
from agentbus.core.validation import MAX_PAGE, check_number_cursor, check_range
from agentbus.errors import UnknownHistory

if TYPE_CHECKING:
    from agentbus.records import History, HistoryItem

_COLUMNS = ("kind", "name", "version", "items", "size:bytes", "updated:time")
_ITEM = ("number", "part", "key", "encoding", "size:bytes", "created:time", "meta:json")


def listed(call: Call) -> Result:
    given = call.arguments
    page = call.bus.do(call.bus.histories.list(given.kind, prefix=given.prefix, cursor=given.cursor, limit=given.limit))
    return Rows(page.items, _COLUMNS, cursor=page.cursor, empty="no histories")


def show(call: Call) -> Result:
    from msgspec import to_builtins

    from agentbus.cli.views import Fields, Part, Sections

    given = call.arguments
    history = _find(call)
    limit = check_range(given.limit, "limit", 1, MAX_PAGE)
    found = call.bus.do(
        call.bus.histories.items(
            history.kind, history.name, part=given.part, key=given.key, after=check_number_cursor(given.cursor),
            limit=limit + 1, bodies=given.bodies,
        )
    )  # fmt: skip
    cursor = str(found[limit - 1].number) if len(found) > limit else None
    fields = to_builtins(history)
    items = [_shown(item, given.bodies) for item in found[:limit]]
    columns = (*_ITEM, "body") if given.bodies else _ITEM
    lines = [{**one, "body": _text(item.body)} for one, item in zip(items, found, strict=False)]
    more = None if cursor is None else f"more items: --cursor {cursor}"
    return Sections(
        {"history": fields, "items": items, "cursor": cursor},
        Fields("history", f"{history.kind} {history.name}", fields, {"size": "bytes", "meta": "json"}),
        Part("item", "items", columns, lines),
        remark=more,
    )


def delete(call: Call) -> Result:
    given = call.arguments
    history = _find(call)
    of = f"history {history.name} ({history.kind})"
    if given.dry_run:
        # A key without a part is one of the part "", as for the deletion.
        part = given.part if given.key is None else given.part or ""
        items = call.bus.histories.items(history.kind, history.name, part=part, key=given.key, bodies=False)
        count = len(call.bus.do(items))
    else:
        keys = None if given.key is None else [given.key]
        count = call.bus.do(call.bus.histories.delete(history.kind, history.name, part=given.part, keys=keys))
    data = {"kind": history.kind, "name": history.name, "items": count, "dry_run": given.dry_run}
    whole = given.part is None and given.key is None
    what = f"{of} with {counted(count, 'item')}" if whole else f"{counted(count, 'item')} of {of}"
    return Done(data, f"{'would delete' if given.dry_run else 'deleted'} {what}", str(count))


def _find(call: Call) -> History:
    given = call.arguments
    history = call.bus.do(call.bus.histories.find(given.kind, given.name))
    if history is None:
        raise missing(UnknownHistory(kind=given.kind, name=given.name))
    return history


def _shown(item: HistoryItem, bodies: bool) -> dict[str, Any]:
    """Return an item for JSON, with its body in base64."""
    from msgspec import to_builtins

    fields: dict[str, Any] = to_builtins(item)
    if not bodies:
        del fields["body"]
    return fields


def _text(body: bytes) -> str:
    """Return a body as text, or in base64 if it is not UTF-8."""
    try:
        return body.decode()
    except UnicodeDecodeError:
        return b64encode(body).decode()


def _list(parser: ArgumentParser) -> None:
    parser.add_argument("kind", nargs="?", help="kind of histories: langgraph, openai … (default: all)")
    parser.add_argument("--prefix", metavar="TEXT", help="only histories whose names start with this text")
    paging(parser)


def _named(parser: ArgumentParser) -> None:
    parser.add_argument("kind", help="kind of the history, from agentbus histories list")
    parser.add_argument("name", help="name of the history")
    parser.add_argument("--part", metavar="TEXT", help="only items of this part")
    parser.add_argument("--key", metavar="TEXT", help="only the item with this key")


def _show(parser: ArgumentParser) -> None:
    _named(parser)
    parser.add_argument("--bodies", action="store_true", help="also print the bodies")
    paging(parser)


def _delete(parser: ArgumentParser) -> None:
    _named(parser)
    parser.add_argument("--dry-run", action="store_true", help="only show how many items would be deleted")


COMMANDS = {
    "histories list": Command(
        listed, "List the conversations and runs that agent frameworks store, ordered by kind and name.",
        "agentbus histories list langgraph --prefix run-", _list,
        output="plain output: kind, name, version, items, size, updated", columns=True,
    ),
    "histories show": Command(
        show, "Show a history and its items. Exit code 4 if it does not exist.",
        "agentbus histories show openai chat-7 --bodies", _show,
        output="plain output: by the first column\n  history, name, value\n"
        "  item, number, part, key, encoding, size, created, meta (JSON), body (with --bodies; base64 if it is no"
        " UTF-8)\nwith --json bodies are in base64",
        columns=True,
    ),
    "histories delete": Command(
        delete, "Delete a history, or only items of it, in one commit. Exit code 4 if the history does not exist.",
        "agentbus histories delete openai chat-7 --dry-run", _delete,
        output="plain output: the number of items",
    ),
}  # fmt: skip
