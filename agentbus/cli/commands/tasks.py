"""Durable tasks: list, show, wait for and count them."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import TYPE_CHECKING, Any

from agentbus.cli.arguments import paging, seconds, watch_options
from agentbus.cli.commands.task_control import COMMANDS as CONTROL_COMMANDS
from agentbus.cli.commands.task_control import look_for_workers
from agentbus.cli.commands.task_items import COMMANDS as ITEM_COMMANDS
from agentbus.cli.commands.task_signals import COMMANDS as SIGNAL_COMMANDS
from agentbus.cli.context import Call, Command, ending_cleanly
from agentbus.cli.errors import FAILED, NOTHING, missing
from agentbus.cli.output import Notice, Result, Rows, bare, plain
from agentbus.cli.task_tree import TaskView, describe_delay, load_tree
from agentbus.cli.views import show_or_watch
from agentbus.core.validation import TASK_ENDED
from agentbus.errors import UnknownTask

if TYPE_CHECKING:
    from agentbus.api.overview import Question
    from agentbus.records import TaskRecord

COLUMNS = (
    "id", "workflow", "status:status", "phase", "progress:percent", "waits:json", "session", "updated:time", "name",
    "holder", "after:json",
)  # fmt: skip
ASKED = ("task", "kind", "name", "since:time", "expires:time", "command:command", "shown:json")
_SHORT = 200
"""Characters of a value to decide on that a terminal shows in a list."""
_WAITS = ("waiting", "pending")
_PLAIN = (
    "plain output: id, workflow, status, phase, progress, waits (JSON), session, updated, name, holder, after (JSON)"
)


def listed(call: Call) -> Result | int:
    given = call.arguments

    def look() -> Rows:
        page = call.bus.do(
            call.bus.tasks.list(
                status=given.status.split(",") if given.status else None,
                workflow=given.workflow,
                session=given.session,
                parent=given.parent,
                cursor=given.cursor,
                limit=given.limit,
            )
        )
        return Rows(page.items, COLUMNS, cursor=page.cursor, terminal=_terminal, empty="no matching tasks")

    found = show_or_watch(call, look)
    if isinstance(found, int):
        return found
    call.emit(found)
    count = len(_questions(call))
    if count:
        call.note(f"{count} open {'question' if count == 1 else 'questions'}: agentbus task approvals")
    return found.code


def _terminal(task: dict[str, Any]) -> dict[str, Any]:
    """Return the columns of a terminal: waits as text, and the name only if it differs from the workflow."""
    from agentbus.api.overview import describe_waits

    after = {one["task"]: one["status"] for one in task["after"]}
    waits = describe_waits(task["waits"], after) if task["status"] in _WAITS else None
    return {
        "id": task["id"], "workflow": task["workflow"], "status:status": task["status"],
        "waits for:reason": waits or describe_delay(task["status"], task["due"]),
        "phase": task["phase"], "holder": task["holder"],
        "progress:percent": task["progress"], "session": task["session"], "updated:time": task["updated"],
        "name:prose": None if task["name"] == task["workflow"] else task["name"],
    }  # fmt: skip


def resumable(call: Call) -> Result:
    found = call.bus.do(call.bus.tasks.resumable(limit=call.arguments.limit))
    return Rows(found, COLUMNS, paged=False, terminal=_terminal, empty="no resumable tasks")


def approvals(call: Call) -> Result:
    """List the open questions, with the commands that answer them."""
    return Rows(_questions(call), ASKED, paged=False, terminal=_terminal_question, empty="no open approvals")


def _terminal_question(row: dict[str, Any]) -> dict[str, Any]:
    """Return the columns of a terminal; the value to decide on is shortened, ``task show`` has all of it."""
    text = None if row.get("shown") is None else plain(row["shown"])
    short = text if text is None or len(text) <= _SHORT else f"{text[:_SHORT]}…"
    return {**{column: row.get(column.partition(":")[0]) for column in ASKED}, ASKED[-1]: short}


def _questions(call: Call) -> list[Question]:
    from agentbus.api.overview import open_questions

    return call.bus.do(open_questions(call.bus, shown=True))


def show(call: Call) -> Result | int:
    def look() -> TaskView:
        return TaskView(load_tree(call.bus, _task(call), call.arguments.history))

    shown = show_or_watch(call, look, lambda shown: shown.found.task.status in TASK_ENDED)
    if isinstance(shown, int):
        return shown
    call.emit(shown)
    _explain_delay(call, shown.found.task)
    return shown.code


def _explain_delay(call: Call, task: TaskRecord) -> None:
    """Print a note on why nothing happens to a pending task."""
    delay = describe_delay(task.status, task.due)
    if delay is not None:
        call.note(f"{task.id} is {delay}")
    elif task.status == "pending" and not task.manual:
        look_for_workers(call, task.workflow)


def _task(call: Call) -> TaskRecord:
    id = call.arguments.task
    found = call.bus.do(call.bus.tasks.get(id))
    if found is None:
        raise missing(UnknownTask(task=id))
    return found


def wait(call: Call) -> Result:
    """Wait for the end of a task, and print its result."""
    task = _task(call)
    with ending_cleanly():
        ended = call.bus.do(_ended(call, task))
    if ended.status not in TASK_ENDED:
        call.note(f"{ended.id} is {ended.status}; agentbus task show {ended.id}")
        return Notice(ended, code=NOTHING)
    if ended.status == "completed":
        return Notice(ended, bare(ended.result))
    problem = "" if ended.error is None else f": {ended.error.type}: {ended.error.message}"
    call.note(f"{ended.id} {'was' if ended.status == 'stopped' else 'has'} {ended.status}{problem}")
    return Notice(ended, code=FAILED)


async def _ended(call: Call, task: TaskRecord) -> TaskRecord:
    from agentbus.core.validation import check_seconds
    from agentbus.operations.task_ownership import ENDED

    clock = call.bus._engine.clock
    timeout = call.arguments.timeout
    deadline = None if timeout is None else clock.now().awake + check_seconds(timeout, "timeout", zero=True)
    # Listen before reading: a change in between wakes the waiter.
    async with call.bus._listening.to(ENDED) as waiter:
        while task.status not in TASK_ENDED:
            left = None if deadline is None else deadline - clock.now().awake
            if left is not None and left <= 0:
                break
            task = _task(call)
            if task.status not in TASK_ENDED:
                await waiter.wait(None if left is None else left / 1000)
                task = _task(call)
    return task


def log(call: Call) -> Result | int:
    from agentbus.cli.commands.events import events

    _task(call)
    call.arguments.subject = f"task:{call.arguments.task}"
    return events(call)


def stats(call: Call) -> Result:
    from msgspec import to_builtins

    from agentbus.cli.views import Fields, Part, Sections

    found = call.bus.do(call.bus.tasks.statistics(workflow=call.arguments.workflow))
    workflows = [
        {"workflow": name, "status": status, "tasks": count}
        for name, counts in found.workflows.items()
        for status, count in counts.items()
    ]
    steps = [{"status": status, "steps": count} for status, count in found.steps.items()]
    facts = {
        "open_approvals": found.open_approvals, "oldest_pending": found.oldest_pending,
        "mean_duration": None if found.mean_duration is None else round(found.mean_duration),
    }  # fmt: skip
    kinds = {"oldest_pending": "milliseconds", "mean_duration": "milliseconds"}
    return Sections(
        to_builtins(found),
        Part("workflow", "tasks", ("workflow", "status:status", "tasks"), workflows),
        Part("step", "steps", ("status:status", "steps"), steps),
        Fields("number", "", facts, kinds),
    )


def _list(parser: ArgumentParser) -> None:
    add = parser.add_argument
    statuses = "pending, running, waiting, halted, completed, failed or stopped, or several (a,b)"
    add("--status", metavar="S", help=statuses)
    add("--workflow", metavar="NAME", help="workflow")
    add("--session", metavar="ID", help="session")
    add("--parent", metavar="TASK", help="parent task")
    paging(parser)
    watch_options(parser)


def _limit(parser: ArgumentParser) -> None:
    parser.add_argument("--limit", type=int, default=100, metavar="N", help="maximum number of results (default 100)")


def _show(parser: ArgumentParser) -> None:
    parser.add_argument("task", help="its id")
    parser.add_argument("--history", action="store_true", help="include steps invalidated by a redo or restart")
    watch_options(parser)


def _wait(parser: ArgumentParser) -> None:
    parser.add_argument("task", help="its id")
    parser.add_argument("--timeout", type=seconds, metavar="S", help="seconds to wait (default: no limit)")


def _log(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("task", help="its id")
    add("--follow", action="store_true", help="follow new events")
    add("--after", metavar="ID", help="events after this id; now: only new events")
    add("--kind", metavar="KIND", help="kind of event: task_failed, approval_decided …")
    add("--limit", type=int, default=100, metavar="N", help="maximum number of results (default 100)")
    add("--max", type=int, metavar="N", help="with --follow: exit after this number of events")


def _stats(parser: ArgumentParser) -> None:
    parser.add_argument("--workflow", metavar="NAME", help="workflow (default: all)")


COMMANDS = {
    "task list": Command(
        listed, "List tasks, newest first.", "agentbus task list --status waiting,halted", _list, output=_PLAIN,
        columns=True,
    ),
    "task show": Command(
        show, "Show a task: what it waits for, its steps with status, times and attempts, its approvals and sub-tasks,"
        " and the commands that let it continue. With --watch until it has ended.",
        "agentbus task show feature-1 --watch", _show,
        output="plain output: by the first column\n  task, name, value\n"
        "  step, key, kind (step, task, phase, checkpoint, sleep, until, signal, receive, expose), status,"
        " attempt, failures, progress, started, finished,"
        " child, superseded, error (JSON)\n"
        "  approval, key, status, created, decided, by, auto, reason, expires, superseded, shown (JSON)\n"
        "  subtask, id, name, workflow, status, phase, progress, waits, updated\n"
        "  signal, name, signal_id, sender, created (sent and not received)\n  action, task, about, command",
        columns=True,
    ),
    "task approvals": Command(
        approvals, "List the open questions: approvals, and steps whose outcome is unknown.",
        "agentbus task approvals",
        output="plain output: task, kind (approval, step), name, since, expires, command, shown (JSON)", columns=True,
    ),
    "task wait": Command(
        wait, "Wait until a task has ended, and print its result. Exit code 1 if it failed or was stopped, 4 after a"
        " timeout.",
        "agentbus task wait feature-1 --timeout 10m", _wait,
        output="plain output: the result (a string as is, other values as JSON)",
    ),
    "task resumable": Command(
        resumable, "List the tasks that were started and not completed, that no worker runs, and that wait for no"
        " decision.",
        "agentbus task resumable", _limit, output=_PLAIN, columns=True,
    ),
    "task log": Command(
        log, "Print the audit log of a task.", "agentbus task log feature-1 --follow", _log,
        output="plain output: id, at, kind, subject_kind, subject, actor, facts (JSON)\n"
        "with --follow --json one envelope per line", columns=True,
    ),
    "task stats": Command(
        stats, "Show statistics of tasks.", "agentbus task stats --workflow feature", _stats,
        output="plain output: by the first column\n  workflow, workflow, status, tasks\n  step, status, steps\n"
        "  number, name, value (durations in milliseconds)", columns=True,
    ),
}  # fmt: skip
COMMANDS.update(CONTROL_COMMANDS)
COMMANDS.update(SIGNAL_COMMANDS)
COMMANDS.update(ITEM_COMMANDS)
