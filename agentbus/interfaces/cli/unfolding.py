"""A task as people look at it: all that it came to, in its order, with its sub-tasks; and what they can do about it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from agentbus.interfaces.cli.output import Watchable, plain
from agentbus.operations.task_reading import unsettled_steps

if TYPE_CHECKING:
    from rich.console import RenderableType

    from agentbus.blocking import BlockingBus
    from agentbus.records import ApprovalRecord, EventRecord, StepRecord, TaskRecord

BRIEF = ("id", "name", "workflow", "status", "phase", "progress", "waits", "updated")
STEP = (
    "key", "kind", "status", "attempt", "failures", "progress", "started", "finished", "child", "superseded", "error",
)  # fmt: skip
APPROVAL = ("key", "status", "created", "decided", "by", "auto", "reason", "expires", "superseded")
_DEEPEST = 3
_MOST = 50
"""Sub-tasks of a task whose own steps are looked at."""
_PAGE = 1000
_REASON = "--reason 'why'"
_CHANGED = re.compile(r"\bbus\.tasks\.redo\('[^']*', '([^']*)'\)")
"""The step that WorkflowChanged advises to redo."""
_GOES_ON = frozenset({"task_continued", "task_resumed", "task_redone", "task_restarted"})


class Unfolded(msgspec.Struct, frozen=True):
    """A task with its steps and approvals, and its sub-tasks by their ids, as far as they are looked at."""

    task: TaskRecord
    steps: Sequence[StepRecord]
    approvals: Sequence[ApprovalRecord]
    parts: dict[str, Unfolded]
    halted_by: EventRecord | None = None
    """What halted or stopped it, if it is."""

    def family(self) -> list[Unfolded]:
        """This one, and all that it has started."""
        return [self, *(one for part in self.parts.values() for one in part.family())]


def unfold(bus: BlockingBus, task: TaskRecord, history: bool, depth: int = 0) -> Unfolded:
    """Look at a task, and at those that it has started."""
    steps = bus.do(bus.tasks.steps(task.id, history=history))
    approvals = bus.do(bus.tasks.approvals(task.id, status=None, history=history, limit=1000))
    children = [step.child for step in steps if step.child is not None] if depth < _DEEPEST else []
    parts: dict[str, Unfolded] = {}
    for id in children[-_MOST:]:
        child = bus.do(bus.tasks.get(id))
        if child is not None:
            parts[id] = unfold(bus, child, history, depth + 1)
    return Unfolded(task, steps, approvals, parts, None if depth else _halted_by(bus, task))


def _halted_by(bus: BlockingBus, task: TaskRecord) -> EventRecord | None:
    """Who wanted that a task halts or stops, and why: the trail knows."""
    if task.status not in {"halted", "stopped"} and not task.halting:
        return None
    found: EventRecord | None = None
    for event in bus.events(subject=f"task:{task.id}"):
        if event.kind in {"task_halting", "task_stopped"}:
            found = event
        elif event.kind == "task_halted":
            # A worker carries out what somebody wanted before.
            found = found or event
        elif event.kind in _GOES_ON:
            found = None
    return found


def actions(found: Unfolded) -> list[dict[str, str]]:
    """What people can do so that a task goes on: what for, and the commands."""
    said: list[dict[str, str]] = []

    def say(task: str, about: str, *commands: str) -> None:
        said.extend({"task": task, "about": about, "command": f"agentbus task {command}"} for command in commands)

    for one in found.family():
        id = one.task.id
        if one.task.ended is None:
            for approval in one.approvals:
                if approval.status == "open" and not approval.superseded:
                    about = f"approval:{approval.key}"
                    say(id, about, f"approve {id} {approval.key}", f"reject {id} {approval.key} {_REASON}")
            for step in one.steps:
                if step.status == "unknown" and not step.superseded:
                    again = f"settle {id} {step.key}"
                    say(id, f"step:{step.key}", f"{again} --result JSON", f"{again} --error TEXT", f"{again} --redo")
        if one.task.status == "halted" or one.task.halting:
            say(id, "halting" if one.task.halting else "halted", f"continue {id}")
        elif one.task.status in {"failed", "stopped"} and one.task.parent is None:
            say(id, one.task.status, *_ways_on(one.task))
    return said


def _ways_on(task: TaskRecord) -> list[str]:
    """Return the commands with which a task that failed or was stopped continues."""
    resume = f"resume {task.id}"
    error = task.error
    if error is None:
        return [resume]
    # A sub-task that it could not start has arguments of its own.
    if error.type == "WrongArguments" and error.message.startswith(f"workflow {task.workflow!r} "):
        keywords = " --keywords '{…}'" if task.keywords else ""
        return [f"edit {task.id} --arguments '[…]'{keywords}", resume]
    if error.type == "WorkflowChanged" and (step := _CHANGED.search(error.message)):
        return [f"redo {task.id} {step[1]}", resume]
    return [resume]


def asked(bus: BlockingBus) -> list[dict[str, Any]]:
    """What tasks wait for people for: decisions, and what became of steps that must run only once."""
    found = [_question(one.task, "approval", one.key, one.created, one.expires) for one in _open(bus)]
    unsettled = bus.read(unsettled_steps, _PAGE)
    return found + [_question(task, "step", step, since, None) for task, step, since in unsettled]


def _open(bus: BlockingBus) -> Sequence[ApprovalRecord]:
    return bus.do(bus.tasks.approvals(limit=_PAGE))


def _question(task: str, kind: str, name: str, since: int, expires: int | None) -> dict[str, Any]:
    answer = f"approve {task} {name}" if kind == "approval" else f"settle {task} {name} --result JSON"
    return {
        "task": task, "kind": kind, "name": name, "since": since, "expires": expires,
        "command": f"agentbus task {answer}",
    }  # fmt: skip


class Shown(Watchable):
    """All of a task."""

    def __init__(self, found: Unfolded) -> None:
        self.found = found
        self.actions = actions(found)

    def data(self) -> Any:
        found = self.found
        return {
            "task": found.task,
            "steps": found.steps,
            "approvals": found.approvals,
            "subtasks": [{name: getattr(part.task, name) for name in BRIEF} for part in found.parts.values()],
            "actions": self.actions,
        }

    def lines(self) -> list[str]:
        found = self.found
        rows: list[tuple[Any, ...]] = [("task", *field) for field in msgspec.to_builtins(found.task).items()]
        rows += [("step", *_values(step, STEP)) for step in found.steps]
        rows += [("approval", *_values(approval, APPROVAL)) for approval in found.approvals]
        rows += [("subtask", *_values(part.task, BRIEF)) for part in found.parts.values()]
        rows += [("action", *action.values()) for action in self.actions]
        return ["\t".join(plain(value) for value in row) for row in rows]

    def drawn(self, most: int | None = None) -> RenderableType:
        from agentbus.interfaces.cli.charts import chart

        return chart(self.found, self.actions, most)

    def show(self) -> None:
        from agentbus.interfaces.cli.charts import show

        show(self.drawn())


def _values(record: Any, names: Sequence[str]) -> list[Any]:
    return [msgspec.to_builtins(getattr(record, name)) for name in names]
