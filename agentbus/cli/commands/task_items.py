"""The list of work that agents share: what is ready, and items that an agent takes, finishes, fails or releases."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from typing import TYPE_CHECKING, Any

from agentbus.cli.arguments import JSON_HELP, payload, seconds, text_option
from agentbus.cli.context import Call, Command, ending_cleanly
from agentbus.cli.errors import NOTHING, Usage
from agentbus.cli.output import CONFIRMED, Done, Notice, Result, Rows

if TYPE_CHECKING:
    from agentbus.api.tasks.items import WorkItem

READY = ("id", "workflow", "priority", "manual:flag", "name:prose", "note:prose")
TAKEN = ("lease", "workflow", "priority", "name", "input:json", "note")
_FIELDS = ("id", "workflow", "priority", "name", "session", "context", "progress", "note", "losses", "created")


def ready(call: Call) -> Result:
    given = call.arguments
    found = call.bus.do(
        call.bus.tasks.ready(workflow=given.workflow, manual=True if given.manual else None, limit=given.limit)
    )
    code = 0 if found else NOTHING
    return Rows(found, READY, paged=False, code=code, empty="nothing can be taken now: agentbus task list")


def take(call: Call) -> Result | int:
    given = call.arguments
    me = call.me
    if given.held:
        if given.task is not None or given.workflow is not None:
            raise Usage(reason="--held lists all items of the agent", advice="remove the id and --workflow")
        me.heartbeat()
        return _taken(list(call.bus.do(me.items.held())), "no items held")
    if given.task is not None and given.workflow is not None:
        raise Usage(reason="an id and --workflow exclude each other", advice="pass one of them")
    if sys.__stdout__ is None:
        raise Usage(reason="standard output is closed: the item would be lost", advice="remove >&-")
    item: WorkItem | None = None
    # An item that could not be printed is released.
    with ending_cleanly():
        try:
            with me._listening.signals_blocked():
                taking = me.items.take(given.task, workflow=given.workflow, timeout=given.wait, lease=given.lease)
                item = call.bus.do(taking)
            result = _taken([] if item is None else [item], "no item is ready")
            call.emit(result)
        except BaseException:
            if item is not None:
                call.bus.do(item._release_if_new())
            raise
    return result.code


def _taken(items: list[WorkItem], empty: str) -> Result:
    rows = [{"lease": item.lease, "input": item.input, **_fields(item)} for item in items]
    return Rows(rows, TAKEN, paged=False, whole=True, code=0 if items else NOTHING, empty=empty)


def _fields(item: WorkItem) -> dict[str, Any]:
    return {name: getattr(item.task, name) for name in _FIELDS}


def finish(call: Call) -> Result:
    given = call.arguments
    if not call.bus.do(call.me.items.finish(given.item, payload(call, "result"))):
        call.note(f"{given.item} was finished before")
    return _settled(given.item, "completed", "finished")


def fail(call: Call) -> Result:
    given = call.arguments
    status = call.bus.do(call.me.items.fail(given.item, given.reason))
    if status == "pending":
        call.note(f"{given.item} is retried later")
    return _settled(given.item, status, "failed")


def release(call: Call) -> Result:
    given = call.arguments
    return _settled(given.item, call.bus.do(call.me.items.release(given.item, given.note)), "released")


def progress(call: Call) -> Result:
    given = call.arguments
    call.bus.do(call.me.items.progress(given.item, given.percent, given.note))
    return Notice({"task": _id(given.item), "progress": given.percent, "note": given.note})


def _settled(item: str, status: str, done: str) -> Result:
    return Done({"task": _id(item), "status": status}, f"{done} {_id(item)}")


def _id(item: str) -> str:
    return item.partition("#")[0]


def _ready(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("--workflow", metavar="NAME", help="only this workflow or kind of work")
    add("--manual", action="store_true", help="only work items, which agents take")
    add("--limit", type=int, default=100, metavar="N", help="maximum number of results (default 100)")


def _take(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("task", nargs="?", help="its id (default: the most urgent item, then the oldest)")
    add("--workflow", metavar="NAME", help="only this kind of work")
    add("--wait", type=seconds, default=0, metavar="S", help="seconds to wait for an item (default 0)")
    add("--held", action="store_true", help="show the items that were taken and not settled, with their leases")
    add("--lease", type=seconds, metavar="S", help="lease in seconds (default 600); every call of the agent extends it")


def _item(parser: ArgumentParser) -> None:
    parser.add_argument("item", help="its id, or the lease from agentbus task take")


def _finish(parser: ArgumentParser) -> None:
    _item(parser)
    parser.add_argument("result", nargs="?", help=f"the result: {JSON_HELP}")
    text_option(parser)


def _fail(parser: ArgumentParser) -> None:
    _item(parser)
    parser.add_argument("reason", help="the reason, stored with the item")


def _release(parser: ArgumentParser) -> None:
    _item(parser)
    parser.add_argument("--note", metavar="TEXT", help="the state of the work, for the agent that takes it next")


def _progress(parser: ArgumentParser) -> None:
    _item(parser)
    parser.add_argument("percent", type=int, help="0 to 100")
    parser.add_argument("note", nargs="?", help="the state of the work")


COMMANDS = {
    "task ready": Command(
        ready, "List what can be taken now, most urgent first: work items by agents, tasks by workers. Exit code 4 if"
        " there is nothing.",
        "agentbus task ready --manual", _ready, output="plain output: id, workflow, priority, manual, name, note",
        columns=True,
    ),
    "task take": Command(
        take, "Take a work item of the shared list: the most urgent one that is ready, or the named one. No other agent"
        " gets it until it is released, or its lease ends. Exit code 4 if there is none.",
        "agentbus task take --wait 60 --json", _take,
        output="plain output: lease, workflow, priority, name, input (JSON), note", columns=True,
    ),
    "task finish": Command(
        finish, "Finish a work item with a result. Tasks that wait for it become ready.",
        "agentbus task finish review-1 '{\"approved\": true}'", _finish, output=CONFIRMED,
    ),
    "task fail": Command(
        fail, "Fail a work item: the work cannot be done.", "agentbus task fail review-1 'the file does not exist'",
        _fail, output=CONFIRMED,
    ),
    "task release": Command(
        release, "Release a work item for another agent.",
        "agentbus task release review-1 --note 'the parser is done, the tests are missing'", _release, output=CONFIRMED,
    ),
    "task progress": Command(
        progress, "Report the progress of a work item, with a note on the state of the work.",
        "agentbus task progress review-1 40 'the parser is done'", _progress, output="plain output: nothing",
    ),
}  # fmt: skip
