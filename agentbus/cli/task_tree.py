"""A task with its steps, approvals and sub-tasks, and the commands that let it continue."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from agentbus.api.overview import TaskOverview
from agentbus.cli.output import PLAIN, TIMES, PlainFormat, Watchable, iso_time, plain
from agentbus.operations.task_lookups import UnreceivedSignal, unreceived_signals

if TYPE_CHECKING:
    from rich.console import RenderableType

    from agentbus.records import ApprovalRecord, EventRecord, StepRecord, TaskRecord
    from agentbus.sync.bus import BlockingBus

BRIEF = TaskOverview.__struct_fields__
STEP = (
    "key", "kind", "status", "attempt", "failures", "progress", "started", "finished", "child", "superseded", "error",
)  # fmt: skip
APPROVAL = ("key", "status", "created", "decided", "by", "auto", "reason", "expires", "superseded", "shown")
SIGNAL = UnreceivedSignal.__struct_fields__
_MAX_DEPTH = 3
_MAX_SUBTASKS = 50
"""Sub-tasks of a task whose own steps are loaded."""
_MAX_SIGNALS = 100
_REASON = "--reason 'why'"
_CONTINUES = frozenset({"task_continued", "task_resumed", "task_redone", "task_restarted"})


class TaskTree(msgspec.Struct, frozen=True):
    """A task with its steps and approvals, and its sub-tasks by id, as far as they were loaded."""

    task: TaskRecord
    steps: Sequence[StepRecord]
    approvals: Sequence[ApprovalRecord]
    parts: dict[str, TaskTree]
    halted_by: EventRecord | None = None
    """The event that halted or stopped it."""
    signals: Sequence[UnreceivedSignal] = ()
    """The signals that it has not received; not of sub-tasks."""

    def all_tasks(self) -> list[TaskTree]:
        """Return this task and all its sub-tasks."""
        return [self, *(one for part in self.parts.values() for one in part.all_tasks())]


def load_tree(bus: BlockingBus, task: TaskRecord, history: bool, depth: int = 0) -> TaskTree:
    """Load a task and its sub-tasks."""
    steps = bus.do(bus.tasks.steps(task.id, history=history))
    approvals = bus.do(bus.tasks.approvals(task.id, status=None, history=history, limit=1000))
    children = [step.child for step in steps if step.child is not None] if depth < _MAX_DEPTH else []
    parts: dict[str, TaskTree] = {}
    for id in children[-_MAX_SUBTASKS:]:
        child = bus.do(bus.tasks.get(id))
        if child is not None:
            parts[id] = load_tree(bus, child, history, depth + 1)
    if depth:
        return TaskTree(task, steps, approvals, parts)
    signals = bus.do(bus._engine.read(unreceived_signals, (task.id, _MAX_SIGNALS)))
    return TaskTree(task, steps, approvals, parts, _halted_by(bus, task), signals)


def describe_delay(status: str, due: int | None) -> str | None:
    """Return until when a pending task is delayed, in words; None if it is not.

    >>> describe_delay("pending", 4_102_444_800_000), describe_delay("pending", 0)
    ('delayed until 2100-01-01T00:00:00.000Z', None)
    """
    if status != "pending" or not due or due <= time.time_ns() // 1_000_000:
        return None
    return f"delayed until {iso_time(due)}"


def _halted_by(bus: BlockingBus, task: TaskRecord) -> EventRecord | None:
    """Return the event of the audit log that halted or stopped a task."""
    if task.status not in {"halted", "stopped"} and not task.halting:
        return None
    found: EventRecord | None = None
    for event in bus.events(subject=f"task:{task.id}"):
        if event.kind in {"task_halting", "task_stopped"}:
            found = event
        elif event.kind == "task_halted":
            # A worker carries out an earlier request.
            found = found or event
        elif event.kind in _CONTINUES:
            found = None
    return found


def actions(found: TaskTree) -> list[dict[str, str]]:
    """Return the commands that let a task continue, each with its subject."""
    return [
        {"task": one.task.id, "about": about, "command": f"agentbus {command}"}
        for one in found.all_tasks()
        for about, command in (*_answers(one), *_dependency_commands(one.task), *_control_commands(one.task))
    ]


def _answers(found: TaskTree) -> Iterator[tuple[str, str]]:
    """Yield the commands that answer what a task asks or waits for."""
    id = found.task.id
    if found.task.ended is not None:
        return
    for approval in found.approvals:
        if approval.status == "open" and not approval.superseded:
            about = f"approval:{approval.key}"
            yield about, f"task approve {id} {approval.key}"
            yield about, f"task reject {id} {approval.key} {_REASON}"
    for step in found.steps:
        if step.status == "unknown" and not step.superseded:
            for answer in ("--result JSON", "--error TEXT", "--redo"):
                yield f"step:{step.key}", f"task settle {id} {step.key} {answer}"
        elif step.status == "waiting" and step.kind == "signal":
            yield f"signal:{step.name}", f"task signal {id} {step.name} JSON"
        elif step.status == "waiting" and step.kind == "receive":
            yield "message", f"send task:{id} TYPE JSON"


def _dependency_commands(task: TaskRecord) -> Iterator[tuple[str, str]]:
    """Yield the commands that end the wait for dependencies that cannot complete by themselves."""
    for one in task.after:
        if task.status == "waiting" and one.completed is None:
            if one.status in {"failed", "stopped"}:
                yield f"after:{one.task}", f"task resume {one.task}"
            if one.status in {"failed", "stopped", "deleted"}:
                yield f"after:{one.task}", f"task edit {task.id} --no-after {one.task}"


def _control_commands(task: TaskRecord) -> Iterator[tuple[str, str]]:
    if task.manual and task.status == "pending":
        yield "ready", f"task take {task.id}"
    if task.status == "halted" or task.halting:
        yield "halting" if task.halting else "halted", f"task continue {task.id}"
    elif task.status in {"failed", "stopped"} and task.parent is None:
        for command in _commands_to_continue(task):
            yield task.status, f"task {command}"


def _commands_to_continue(task: TaskRecord) -> list[str]:
    """Return the commands with which a task that failed or was stopped continues."""
    resume = f"resume {task.id}"
    error = task.error
    if error is None:
        return [resume]
    # A sub-task that it could not start has arguments of its own.
    if error.type == "WrongArguments" and error.message.startswith(f"workflow {task.workflow!r} "):
        keywords = " --keywords '{…}'" if task.keywords else ""
        return [f"edit {task.id} --arguments '[…]'{keywords}", resume]
    if error.type == "WorkflowChanged" and error.step is not None:
        return [f"redo {task.id} {error.step}", resume]
    return [resume]


class TaskView(Watchable):
    """A task with everything that belongs to it."""

    def __init__(self, found: TaskTree) -> None:
        self.found = found
        self.actions = actions(found)

    def data(self) -> Any:
        found = self.found
        return {
            "task": found.task,
            "steps": found.steps,
            "approvals": found.approvals,
            "subtasks": [{name: getattr(part.task, name) for name in BRIEF} for part in found.parts.values()],
            "signals": found.signals,
            "actions": self.actions,
        }

    def lines(self, form: PlainFormat = PLAIN) -> list[str]:
        found = self.found
        # 0: it can be taken at once.
        fields = {**msgspec.to_builtins(found.task), "due": found.task.due or None}
        task = [f"task\t{name}\t{plain(value, _kind(name), form)}" for name, value in fields.items()]
        lines = form.headed(("subject", "name", "value"), task)
        for subject, names, records in (
            ("step", STEP, found.steps), ("approval", APPROVAL, found.approvals),
            ("subtask", BRIEF, [part.task for part in found.parts.values()]), ("signal", SIGNAL, found.signals),
        ):  # fmt: skip
            if records:
                rows = ["\t".join((subject, *_values(record, names, form))) for record in records]
                lines += form.headed(("subject", *names), rows)
        if self.actions:
            rows = ["\t".join(("action", *map(plain, action.values()))) for action in self.actions]
            lines += form.headed(("subject", *self.actions[0]), rows)
        return lines

    def drawn(self, max_lines: int | None = None) -> RenderableType:
        from agentbus.cli.task_chart import chart

        return chart(self.found, self.actions, max_lines)

    def show(self) -> None:
        from agentbus.cli.task_chart import show

        show(self.drawn())


def _values(record: Any, names: Sequence[str], form: PlainFormat) -> list[str]:
    return [plain(msgspec.to_builtins(getattr(record, name)), _kind(name), form) for name in names]


def _kind(name: str) -> str:
    return "time" if name in TIMES else ""
