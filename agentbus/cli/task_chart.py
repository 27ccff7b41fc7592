"""A task on a terminal, with rich: its steps in order, with status, times and attempts."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from rich.console import Console, Group, RenderableType
from rich.text import Text

from agentbus.api.overview import describe_waits
from agentbus.cli.output import escape_control_chars, plain
from agentbus.cli.rich_output import Clipped, CommandLine, Grid, Screen, Shortenable, ago, coloured, span

if TYPE_CHECKING:
    from agentbus.cli.task_tree import TaskTree
    from agentbus.records import ApprovalRecord, StepRecord, TaskRecord

_MARKS = {
    "finished": "✓", "approved": "✓", "running": "▶", "retrying": "↻", "failed": "✗", "rejected": "✗", "expired": "✗",
    "interrupted": "!", "unknown": "?", "open": "?", "cancelled": "–", "waiting": "…",
}  # fmt: skip
_COLUMNS = (("step", ""), ("status", "status"), ("at", ""), ("took", ""), ("note", ""))
_ACTIVE = frozenset({"running", "retrying", "failed", "unknown", "waiting"})
"""Statuses of steps that are shown first; open approvals are listed below the steps."""
_INSTANT = frozenset({"phase", "checkpoint", "expose"})
"""Kinds of steps that take no time."""
_MIN_STEPS = 2
"""Minimum number of steps on a screen."""
_SUBJECT_LINES = 12
"""Lines of the subject of a question."""
_MAX_NOTE = 160
_HEADING_LINES = 2
"""Lines of each part of the heading on a screen."""
_LINES_PER_QUESTION = 10
"""Lines of a screen for each question on it."""


def show(what: RenderableType) -> None:
    """Print once. Commands to copy are folded by the terminal, which does not split them."""
    Console().print(what, crop=False)


def chart(found: TaskTree, actions: Sequence[dict[str, str]], max_lines: int | None = None) -> RenderableType:
    """Return the chart of a task. With ``max_lines``, what fits a screen: its status, running steps, and questions with
    the commands that answer; then the rest, the latest first."""
    now = time.time_ns() // 1_000_000
    rows = list(_rows(found, "", now))
    heading = [*_heading(found.task, now), *_cause(found), *_signals(found, now)]
    if max_lines is None:
        steps_drawn = () if found.task.manual else (Text(), _drawn_rows([row for row, _ in rows], 0))
        return Group(*heading, *steps_drawn, *_requests(found, actions))
    for row, is_active in rows:
        if not is_active:
            row[-1].no_wrap, row[-1].overflow = True, "ellipsis"
    latest = range(len(rows) - 1, -1, -1)
    ranked = sorted(latest, key=lambda index: not rows[index][1])
    steps = Shortenable(
        len(rows),
        lambda shown: _drawn_rows([rows[index][0] for index in shown], len(rows) - len(shown)),
        ranked,
        _MIN_STEPS,
    )
    # One line is left for the cursor.
    return Screen(
        [
            *(Clipped(text, _HEADING_LINES) for text in heading),
            Text(),
            steps,
            *_urgent_requests(found, actions, max_lines),
        ],
        max_lines - 1,
    )


def _drawn_rows(rows: Sequence[Sequence[Text]], left_out: int) -> RenderableType:
    if not rows:
        return Text("no steps yet", style="dim")
    grid = Grid(_COLUMNS, rows, [False] * len(_COLUMNS))
    return Group(Text(f"… {left_out} more", style="dim"), grid) if left_out else grid


def _heading(task: TaskRecord, now: int) -> Iterator[Text]:
    named = "" if task.name == task.workflow else escape_control_chars(task.name)
    yield Text(f"{task.id}  ", style="bold").append(named, style="")
    status = coloured(task.status)
    if task.waits:
        waits = describe_waits(task.waits, {one.task: one.status for one in task.after})
        status.append(f" {waits}" if waits.startswith("after ") else f" for {waits}")
    for wanted in _wanted(task):
        status.append(f" ({wanted})", style="yellow")
    facts = {
        "work" if task.manual else "workflow": task.workflow, "phase": task.phase, "session": task.session,
        "part of": task.parent, "agent" if task.manual else "worker": task.holder,
        "automatic approvals": "" if task.auto else None,
    }  # fmt: skip
    for name, value in facts.items():
        if value is not None:
            status.append(f" · {name} {value}".rstrip(), style="")
    yield status
    yield Text(" · ".join(_times(task, now)), style="dim")
    if task.manual and task.arguments:
        yield Text("input ", style="dim").append(_short(task.arguments[0], 1000), style="")
    if task.error is not None and task.status != "completed":
        yield Text(escape_control_chars(f"{task.error.type}: {task.error.message}")[:1000], style="red")
    if task.status == "completed":
        yield Text("result ", style="dim").append(_short(task.result, 1000), style="")


def _times(task: TaskRecord, now: int) -> list[str]:
    times = [f"started {ago(task.created, now)}"]
    if task.ended is not None:
        times.append(
            f"{task.status} {ago(task.ended, now)}, after {duration(task.ended - (task.started or task.created))}"
        )
    elif task.due:
        times.append(f"continues {ago(task.due, now)}")
    if task.progress and task.ended is None:
        times.append(f"{task.progress} %")
    if task.restarts:
        times.append(f"{task.restarted} of {task.restarts} restarts")
    if task.losses and task.ended is None:
        times.append(f"{task.losses} of {task.max_losses} workers lost")
    if task.note and task.ended is None:
        times.append(escape_control_chars(task.note))
    return times


def _wanted(task: TaskRecord) -> Iterator[str]:
    """Yield the requests that a running task executes after its running steps."""
    if task.redo:
        yield f"redoes {', '.join(task.redo)} after the concurrent steps"
    if task.halting:
        yield "halts when it is released" if task.manual else "halts before its next step"


def _cause(found: TaskTree) -> Iterator[Text]:
    """Yield who halted or stopped the task, and why."""
    if found.halted_by is not None:
        who, why = found.halted_by.actor, found.halted_by.facts.get("reason")
        what = "stopped" if found.halted_by.kind == "task_stopped" else "halted"
        text = f"{what} by {who or 'unknown'}" + (f": {why}" if why else "")
        yield Text(_joined([text]), style="yellow")


def _signals(found: TaskTree, now: int) -> Iterator[Text]:
    """Yield the signals that the task has not received."""
    if found.signals:
        sent = [
            f"{one.name} ({ago(one.created, now)}{f', by {one.sender}' if one.sender else ''})" for one in found.signals
        ]
        yield Text(_joined([f"signals not received: {', '.join(sent)}"]), style="yellow")


def _rows(found: TaskTree, indent: str, now: int) -> Iterator[tuple[list[Text], bool]]:
    """Yield a row for each step and approval, and whether it is active. Concurrent ones are bracketed."""
    entries: list[Any] = [*found.steps, *found.approvals]
    entries.sort(key=lambda one: (one.position, one.superseded))
    brackets = brackets_of([(_start_of(one), _end_of(one), getattr(one, "kind", "approval")) for one in entries])
    for entry, bracket in zip(entries, brackets, strict=True):
        yield _row(entry, indent + bracket, now), entry.status in _ACTIVE and not entry.superseded
        part = found.parts.get(getattr(entry, "child", None) or "")
        if part is not None and not entry.superseded:
            rail = "│ " if bracket in {"┌ ", "├ "} else "  "
            yield from _rows(part, f"{indent}{rail}  ", now)


def brackets_of(spans: Sequence[tuple[int, int | None, str]]) -> list[str]:
    """Return the brackets that mark concurrent spans (start, end or None, kind). A phase separates them.

    >>> brackets_of([(0, 5, "step"), (5, 9, "step"), (6, None, "step"), (7, 8, "step")])
    ['', '┌ ', '├ ', '└ ']
    """
    groups: list[list[int]] = []
    end: int | None = -1
    for index, (start, over, kind) in enumerate(spans):
        if kind == "phase":
            groups.append([index])
            end = -1
        elif end is None or start < end:
            groups[-1].append(index)
            end = None if end is None or over is None else max(end, over)
        else:
            groups.append([index])
            end = over
    found = [""] * len(spans)
    for group in groups:
        if len(group) > 1:
            for index in group:
                found[index] = "├ "
            found[group[0]], found[group[-1]] = "┌ ", "└ "
    return found


def _start_of(entry: Any) -> int:
    return int(entry.started if hasattr(entry, "started") else entry.created)


def _end_of(entry: Any) -> int | None:
    over: int | None = entry.finished if hasattr(entry, "finished") else entry.decided
    # A superseded entry is not awaited any more.
    return _start_of(entry) if over is None and entry.superseded else over


def _row(entry: StepRecord | ApprovalRecord, prefix: str, now: int) -> list[Text]:
    kind = getattr(entry, "kind", "approval")
    style = "dim" if entry.superseded else ""
    # A wait without a name of its own is named by its kind: sleep, until#2.
    label = entry.key if kind in {"step", entry.name} else f"{kind}:{entry.key}"
    start, end = _start_of(entry), _end_of(entry)
    mark = "─" if kind == "phase" else _MARKS.get(entry.status, " ")
    colour = coloured(entry.status)
    step = Text(prefix, style="dim").append(f"{mark} ", style=style or colour.style).append(label, style=style)
    if kind in _INSTANT:
        return [step, Text(), Text(_clock(start, now), style="dim"), Text(), Text(_instant_note(entry), style="dim")]
    going = entry.status in {"running", "open", "waiting"}
    took = "" if end is None and not going else duration((now if end is None else end) - start)
    status = Text(entry.status, style="dim") if entry.superseded else colour
    remark = _approval_note(entry, now) if kind == "approval" else _step_note(entry, now)
    return [step, status, Text(_clock(start, now), style="dim"), Text(took), Text(remark, style=style)]


def _step_note(step: Any, now: int) -> str:
    parts = [_superseded_note(step)]
    if step.attempt > 1:
        parts.append(f"attempt {step.attempt}")
    if step.status == "running" and step.progress is not None:
        parts.append(f"{step.progress} %")
    if step.status == "retrying" and step.due is not None:
        parts.append(f"retry {ago(step.due, now)}")
    if step.status == "waiting":
        parts.append(_wait_note(step, now))
    if step.status == "unknown":
        parts.append("its worker died; the step must run only once")
    if step.child is not None:
        parts.append(step.child)
    if step.note:
        parts.append(f"note: {step.note}")
    if step.error is not None and step.status != "finished":
        parts.append(f"{step.error.type}: {step.error.message}")
    if step.status == "finished" and step.child is None and step.result is not None:
        parts.append(_short(step.result["payload"] if step.kind == "receive" else step.result))
    return _joined(parts)


def _wait_note(step: Any, now: int) -> str:
    """Return what a wait is for, or when it ends at the latest."""
    if step.due is None:
        return ""
    what = "until" if step.kind in {"sleep", "until"} else "times out"
    return f"{what} {_clock(step.due, now)}, {ago(step.due, now)}"


def _instant_note(entry: Any) -> str:
    """Return the note of a step that takes no time."""
    value = _short(entry.result) if entry.kind == "expose" else ""
    return _joined([_superseded_note(entry), value])


def _approval_note(approval: Any, now: int) -> str:
    parts = [_superseded_note(approval)]
    if approval.auto:
        parts.append("approved automatically")
    if approval.by is not None:
        parts.append(f"by {approval.by}")
    if approval.reason:
        parts.append(approval.reason)
    if approval.status == "open" and approval.expires is not None:
        parts.append(f"expires {ago(approval.expires, now)}")
    return _joined(parts)


def _superseded_note(entry: Any) -> str:
    return f"superseded by redo {entry.superseded}" if entry.superseded else ""


def _joined(parts: Sequence[str]) -> str:
    text = escape_control_chars("; ".join(part.replace("\n", " ") for part in parts if part))
    return text if len(text) <= _MAX_NOTE else f"{text[: _MAX_NOTE - 1]}…"


def _requests(found: TaskTree, actions: Sequence[dict[str, str]]) -> Iterator[Text]:
    """Yield each question, its subject, and the commands that answer it."""
    for question, subject, commands in _questions(found, actions):
        yield Text(f"\n{question}", style="bold")
        if subject:
            yield _subject(subject, _SUBJECT_LINES)
        for command in commands:
            yield Text(f"  {command}", style="bold cyan", no_wrap=True, overflow="ignore")


def _urgent_requests(
    found: TaskTree, actions: Sequence[dict[str, str]], max_lines: int
) -> Iterator[RenderableType | Shortenable]:
    """Yield the questions for a screen. Their subjects are shortened, the commands are not."""
    questions = list(_questions(found, actions))
    few = questions[: max(1, max_lines // _LINES_PER_QUESTION)]
    for question, subject, commands in few:
        yield Text(f"\n{question}", style="bold")
        if subject:
            yield _shortenable(subject, min(_SUBJECT_LINES, max_lines // 4))
        for command in commands:
            yield CommandLine(command)
    if len(questions) > len(few):
        yield Text(f"… {len(questions) - len(few)} more: agentbus task approvals", style="dim")


def _questions(found: TaskTree, actions: Sequence[dict[str, str]]) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield each question, the lines of its subject, and the commands that answer it."""
    shown = {
        (one.task.id, f"approval:{approval.key}"): approval.shown
        for one in found.all_tasks()
        for approval in one.approvals
        if approval.status == "open" and not approval.superseded
    }
    commands: dict[tuple[str, str], list[str]] = {}
    for action in actions:
        commands.setdefault((action["task"], action["about"]), []).append(action["command"])
    for about, answers in commands.items():
        yield _question(*about, found.task.id), _subject_lines(shown.get(about)), answers


def _question(task: str, about: str, top: str) -> str:
    kind, _, name = about.partition(":")
    where = "" if task == top else f" of {task}"
    if kind == "approval":
        return f"{name}{where} is awaiting a decision"
    if kind == "signal":
        return f"{task} waits for the signal {name}"
    if about == "message":
        return f"{task} waits for a message"
    if kind == "step":
        return f"the outcome of {name}{where} is unknown: settle it"
    if kind == "after":
        return f"{task} waits for {name}, which cannot complete by itself"
    return f"{task} is {about}" if about != "halting" else f"{task} halts before its next step"


def _subject_lines(value: Any) -> list[str]:
    """Return the lines of the subject of a question."""

    if value is None:
        return []
    text = value if isinstance(value, str) else msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
    return escape_control_chars(text).splitlines()


def _shortenable(lines: Sequence[str], max_lines: int) -> Shortenable:
    """Return lines that can be shortened. They are not folded, so that more of them fit."""

    def draw(shown: Sequence[int]) -> Text:
        text = _subject(lines, len(shown))
        text.no_wrap, text.overflow = True, "ellipsis"
        return text

    return Shortenable(min(len(lines), max_lines), draw, least=0)


def _subject(lines: Sequence[str], max_lines: int) -> Text:
    more = [f"… {len(lines) - max_lines} more lines; --json has all"] if len(lines) > max_lines else []
    return Text("\n".join(f"  {line[:1000]}" for line in [*lines[:max_lines], *more]))


def _short(value: Any, longest: int = 40) -> str:
    text = escape_control_chars(plain(value))
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def _clock(wall: int, now: int) -> str:
    then, today = time.localtime(wall / 1000), time.localtime(now / 1000)
    return time.strftime("%H:%M:%S" if then[:3] == today[:3] else "%d %b %H:%M", then)


def duration(milliseconds: int) -> str:
    """Return a duration in one or two units.

    >>> duration(40), duration(2_500), duration(90_000), duration(9_000_000)
    ('40 ms', '2.5 s', '1 min 30 s', '2 h 30 min')
    """
    if milliseconds < 1000:
        return f"{max(0, milliseconds)} ms"
    if milliseconds < 60_000:
        return f"{milliseconds / 1000:.1f} s"
    seconds = milliseconds // 1000
    for unit, length, smaller, part in (("d", 86_400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if seconds >= length:
            rest = seconds % length // part
            return f"{seconds // length} {unit}" + (f" {rest} {smaller}" if rest else "")
    return span(seconds)
