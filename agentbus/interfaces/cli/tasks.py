"""Durable tasks as people look at them: which there are, how far they are, what they wait for, what became of them."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import TYPE_CHECKING, Any

from agentbus.errors import UnknownTask
from agentbus.interfaces.cli.command import Call, Command, ending_cleanly
from agentbus.interfaces.cli.directing import COMMANDS as DIRECTING
from agentbus.interfaces.cli.failures import FAILED, NOTHING, missing, typed
from agentbus.interfaces.cli.output import Result, Rows, Said, bare
from agentbus.interfaces.cli.unfolding import Shown, asked, unfold
from agentbus.interfaces.cli.values import paging, seconds, watch_options
from agentbus.interfaces.cli.watching import looked
from agentbus.limits import TASK_ENDED

if TYPE_CHECKING:
    from agentbus.records import TaskRecord

COLUMNS = (
    "id", "workflow", "status:status", "phase", "progress:percent", "waits:json", "session", "updated:time", "name",
)  # fmt: skip
ASKED = ("task", "kind", "name", "since:time", "expires:time", "command:command")
_WAITS = ("waiting", "pending")
_PLAIN = "plain output: id, workflow, status, phase, progress, waits (JSON), session, updated, name"


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
        return Rows(page.items, COLUMNS, cursor=page.cursor, people=_seen, empty="there are no such tasks")

    found = looked(call, look)
    if isinstance(found, int):
        return found
    call.emit(found)
    count = len(asked(call.bus))
    if count:
        call.note(f"{'one waits' if count == 1 else f'{count} wait'} for a person: agentbus task approvals")
    return found.code


def _seen(task: dict[str, Any]) -> dict[str, Any]:
    """What people see: what it waits for without brackets, and its name if that says more."""
    return {
        "id": task["id"], "workflow": task["workflow"], "status:status": task["status"],
        "waits for:reason": ", ".join(task["waits"]) if task["status"] in _WAITS else None, "phase": task["phase"],
        "progress:percent": task["progress"], "session": task["session"], "updated:time": task["updated"],
        "name:prose": None if task["name"] == task["workflow"] else task["name"],
    }  # fmt: skip


def resumable(call: Call) -> Result:
    found = call.bus.do(call.bus.tasks.resumable(limit=call.arguments.limit))
    return Rows(found, COLUMNS, paged=False, people=_seen, empty="nothing was left behind")


def approvals(call: Call) -> Result:
    """All that people are asked, with the commands that answer."""
    return Rows(asked(call.bus), ASKED, paged=False, empty="nobody is asked anything")


def show(call: Call) -> Result | int:
    def look() -> Shown:
        return Shown(unfold(call.bus, _task(call), call.arguments.history))

    return looked(call, look, lambda shown: shown.found.task.status in TASK_ENDED)


def _task(call: Call) -> TaskRecord:
    id = call.arguments.task
    found = call.bus.do(call.bus.tasks.get(id))
    if found is None:
        raise missing(UnknownTask(task=id))
    return found


def wait(call: Call) -> Result:
    """What a task came to, once it has ended."""
    task = _task(call)
    with ending_cleanly():
        ended = call.bus.do(_ended(call, task))
    if ended.status not in TASK_ENDED:
        call.note(f"{ended.id} is {ended.status}; agentbus task show {ended.id}")
        return Said(ended, code=NOTHING)
    if ended.status == "completed":
        return Said(ended, bare(ended.result))
    problem = "" if ended.error is None else f": {typed(f'{ended.error.type}: {ended.error.message}')}"
    call.note(f"{ended.id} {'was' if ended.status == 'stopped' else 'has'} {ended.status}{problem}")
    return Said(ended, code=FAILED)


async def _ended(call: Call, task: TaskRecord) -> TaskRecord:
    from agentbus.limits import check_seconds
    from agentbus.operations.holding import ENDED

    clock = call.bus.engine.clock
    patience = call.arguments.timeout
    deadline = None if patience is None else clock.now().awake + check_seconds(patience, "timeout", zero=True)
    # Listen first, then look: what comes in between rings.
    async with call.bus.listening.to(ENDED) as ear:
        while task.status not in TASK_ENDED:
            left = None if deadline is None else deadline - clock.now().awake
            if left is not None and left <= 0:
                break
            task = _task(call)
            if task.status not in TASK_ENDED:
                await ear.wait(None if left is None else left / 1000)
                task = _task(call)
    return task


def log(call: Call) -> Result | int:
    from agentbus.interfaces.cli.trail import events

    _task(call)
    call.arguments.subject = f"task:{call.arguments.task}"
    return events(call)


def stats(call: Call) -> Result:
    from msgspec import to_builtins

    from agentbus.interfaces.cli.sections import Fields, Part, Sections

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
    add("--workflow", metavar="NAME", help="of this workflow")
    add("--session", metavar="ID", help="of this session")
    add("--parent", metavar="TASK", help="sub-tasks of this one")
    paging(parser)
    watch_options(parser)


def _limit(parser: ArgumentParser) -> None:
    parser.add_argument("--limit", type=int, default=100, metavar="N", help="so many at most (100)")


def _show(parser: ArgumentParser) -> None:
    parser.add_argument("task", help="its id")
    parser.add_argument("--history", action="store_true", help="also what a redo or restart has made void")
    watch_options(parser)


def _wait(parser: ArgumentParser) -> None:
    parser.add_argument("task", help="its id")
    parser.add_argument("--timeout", type=seconds, metavar="S", help="seconds to wait (for ever)")


def _log(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("task", help="its id")
    add("--follow", action="store_true", help="go on with what comes, until Ctrl-C")
    add("--after", metavar="ID", help="events after this one; now: only what comes")
    add("--kind", metavar="KIND", help="of this kind: task_failed, approval_decided …")
    add("--limit", type=int, default=100, metavar="N", help="so many at most (100)")
    add("--max", type=int, metavar="N", help="with --follow: end after so many (never)")


def _stats(parser: ArgumentParser) -> None:
    parser.add_argument("--workflow", metavar="NAME", help="of this workflow (of all)")


LOOKING = {
    "task list": Command(
        listed, "List tasks, newest first.", "agentbus task list --status waiting,halted", _list, output=_PLAIN,
    ),
    "task show": Command(
        show, "Show a task: its steps with their states, times and attempts, its approvals and sub-tasks, and the"
        " commands that answer what it asks. With --watch until it has ended.",
        "agentbus task show feature-1 --watch", _show,
        output="plain output: by the first column\n  task, field, value\n"
        "  step, key, kind (step, task, phase, checkpoint), status, attempt, failures, progress, started, finished,"
        " child, superseded, error (JSON)\n"
        "  approval, key, status, created, decided, by, auto, reason, expires, superseded\n"
        "  subtask, id, name, workflow, status, phase, progress, waits, updated\n  action, task, about, command",
    ),
    "task approvals": Command(
        approvals, "List what tasks ask people: decisions, and what became of steps that must run only once.",
        "agentbus task approvals",
        output="plain output: task, kind (approval, step), name, since, expires, command",
    ),
    "task wait": Command(
        wait, "Wait until a task has ended, and print its result. Exit code 1 if it failed or was stopped, 4 if it has"
        " not ended in time.",
        "agentbus task wait feature-1 --timeout 10m", _wait,
        output="plain output: the result (a text as it is, anything else as JSON)",
    ),
    "task resumable": Command(
        resumable, "List the tasks that were begun and not completed, that nobody is at work on, and that wait for no"
        " person.",
        "agentbus task resumable", _limit, output=_PLAIN,
    ),
    "task log": Command(
        log, "Print what happened to a task, from the audit trail.", "agentbus task log feature-1 --follow", _log,
        output="plain output: id, at, kind, subject kind, subject, actor, facts (JSON)\n"
        "with --follow --json an envelope on each line",
    ),
    "task stats": Command(
        stats, "Show tasks in numbers.", "agentbus task stats --workflow feature", _stats,
        output="plain output: by the first column\n  workflow, name, status, tasks\n  step, status, steps\n"
        "  number, name, value (milliseconds, for times)",
    ),
}  # fmt: skip
COMMANDS = {**LOOKING, **DIRECTING}
