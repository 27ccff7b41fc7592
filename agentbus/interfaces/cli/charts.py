"""A task drawn for people: what it came to, in its order, with states, times and attempts. With rich."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType
from rich.text import Text

from agentbus.interfaces.cli.failures import typed
from agentbus.interfaces.cli.grids import CommandLine, Grid
from agentbus.interfaces.cli.output import plain
from agentbus.interfaces.cli.screens import Clipped, Screen, Shortenable
from agentbus.interfaces.cli.tables import ago, coloured, span
from agentbus.interfaces.cli.texts import harmless

if TYPE_CHECKING:
    from agentbus.interfaces.cli.unfolding import Unfolded
    from agentbus.records import ApprovalRecord, StepRecord, TaskRecord

_MARKS = {
    "finished": "✓", "approved": "✓", "running": "▶", "retrying": "↻", "failed": "✗", "rejected": "✗", "expired": "✗",
    "interrupted": "!", "unknown": "?", "open": "?", "cancelled": "–",
}  # fmt: skip
_COLUMNS = (("step", ""), ("status", "status"), ("at", ""), ("took", ""), ("note", ""))
_ACTIVE = frozenset({"running", "retrying", "failed", "unknown"})
"""The statuses of steps that are shown first; open approvals are listed below the steps."""
_FEWEST = 2
"""Steps that a screen has in any case."""
_SHOWN = 12
"""Lines of what there is to judge."""
_LONGEST = 160
_CLIPPED = 2
"""Lines of each part of the heading on a screen that is drawn again and again."""
_LINES_OF_QUESTION = 10
"""Lines of such a screen for each question that is shown on it."""


def show(what: RenderableType) -> None:
    """Print it once. What is to be copied is left to the terminal, which folds it without parting it."""
    Console().print(what, crop=False)


def chart(found: Unfolded, actions: Sequence[dict[str, str]], most: int | None = None) -> RenderableType:
    """A task with all that it came to. With ``most``, what fits a screen of that many lines: how it is, what runs, what
    is asked and the commands that answer; then the rest, the latest first."""
    now = time.time_ns() // 1_000_000
    rows = list(_rows(found, "", now))
    heading = [*_heading(found.task, now), *_cause(found)]
    if most is None:
        return Group(*heading, Text(), _drawn_rows([row for row, _ in rows], 0), *_requests(found, actions))
    for row, is_active in rows:
        if not is_active:
            row[-1].no_wrap, row[-1].overflow = True, "ellipsis"
    latest = range(len(rows) - 1, -1, -1)
    ranked = sorted(latest, key=lambda index: not rows[index][1])
    steps = Shortenable(
        len(rows),
        lambda shown: _drawn_rows([rows[index][0] for index in shown], len(rows) - len(shown)),
        ranked,
        _FEWEST,
    )
    # A line is left for the cursor.
    return Screen(
        [*(Clipped(text, _CLIPPED) for text in heading), Text(), steps, *_urgent_requests(found, actions, most)],
        most - 1,
    )


def _drawn_rows(rows: Sequence[Sequence[Text]], left_out: int) -> RenderableType:
    if not rows:
        return Text("nothing was done yet", style="dim")
    grid = Grid(_COLUMNS, rows, [False] * len(_COLUMNS))
    return Group(Text(f"… {left_out} more", style="dim"), grid) if left_out else grid


def _heading(task: TaskRecord, now: int) -> Iterator[Text]:
    named = "" if task.name == task.workflow else harmless(task.name)
    yield Text(f"{task.id}  ", style="bold").append(named, style="")
    status = coloured(task.status)
    if task.waits:
        status.append(f" for {', '.join(task.waits)}")
    for wanted in _wanted(task):
        status.append(f" ({wanted})", style="yellow")
    facts = {
        "workflow": task.workflow, "phase": task.phase, "session": task.session, "part of": task.parent,
        "worker": task.holder, "passes approvals through": "" if task.auto else None,
    }  # fmt: skip
    for name, value in facts.items():
        if value is not None:
            status.append(f" · {name} {value}".rstrip(), style="")
    yield status
    yield Text(" · ".join(_times(task, now)), style="dim")
    if task.error is not None and task.status != "completed":
        yield Text(harmless(typed(f"{task.error.type}: {task.error.message}"))[:1000], style="red")
    if task.status == "completed":
        yield Text("result ", style="dim").append(_short(task.result, 1000), style="")


def _times(task: TaskRecord, now: int) -> list[str]:
    times = [f"started {ago(task.created, now)}"]
    if task.ended is not None:
        times.append(
            f"{task.status} {ago(task.ended, now)}, after {lasted(task.ended - (task.started or task.created))}"
        )
    elif task.due:
        times.append(f"goes on {ago(task.due, now)}")
    if task.progress and task.ended is None:
        times.append(f"{task.progress} %")
    if task.restarts:
        times.append(f"{task.restarted} of {task.restarts} restarts")
    if task.losses and task.ended is None:
        times.append(f"lost {task.losses} of at most {task.max_losses} workers")
    if task.note and task.ended is None:
        times.append(harmless(task.note))
    return times


def _wanted(task: TaskRecord) -> Iterator[str]:
    """Yield what a running task does when the steps that run have ended."""
    if task.redo:
        yield f"redoes {', '.join(task.redo)} when the steps beside it have ended"
    if task.halting:
        yield "halts before its next step"


def _cause(found: Unfolded) -> Iterator[Text]:
    """By whom it was halted or stopped, and why."""
    if found.halted_by is not None:
        who, why = found.halted_by.actor, found.halted_by.facts.get("reason")
        what = "stopped" if found.halted_by.kind == "task_stopped" else "halted"
        said = f"{what} by {who or 'somebody'}" + (f": {why}" if why else "")
        yield Text(_joined([said]), style="yellow")


def _rows(found: Unfolded, indent: str, now: int) -> Iterator[tuple[list[Text], bool]]:
    """A line for each thing that the task came to, and whether it is at work or in need of something; what was done at
    the same time is bracketed."""
    entries: list[Any] = [*found.steps, *found.approvals]
    entries.sort(key=lambda one: (one.position, one.superseded))
    brackets = bracketed([(_began(one), _over(one), getattr(one, "kind", "approval")) for one in entries])
    for entry, bracket in zip(entries, brackets, strict=True):
        yield _row(entry, indent + bracket, now), entry.status in _ACTIVE and not entry.superseded
        part = found.parts.get(getattr(entry, "child", None) or "")
        if part is not None and not entry.superseded:
            rail = "│ " if bracket in {"┌ ", "├ "} else "  "
            yield from _rows(part, f"{indent}{rail}  ", now)


def bracketed(spans: Sequence[tuple[int, int | None, str]]) -> list[str]:
    """Which of these (beginning, end or None, kind) were done at the same time as others. A phase parts them.

    >>> bracketed([(0, 5, "step"), (5, 9, "step"), (6, None, "step"), (7, 8, "step")])
    ['', '┌ ', '├ ', '└ ']
    """
    groups: list[list[int]] = []
    end: int | None = -1
    for index, (began, over, kind) in enumerate(spans):
        if kind == "phase":
            groups.append([index])
            end = -1
        elif end is None or began < end:
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


def _began(entry: Any) -> int:
    return int(entry.started if hasattr(entry, "started") else entry.created)


def _over(entry: Any) -> int | None:
    over: int | None = entry.finished if hasattr(entry, "finished") else entry.decided
    # Nobody waits any more for what is void.
    return _began(entry) if over is None and entry.superseded else over


def _row(entry: StepRecord | ApprovalRecord, prefix: str, now: int) -> list[Text]:
    kind = getattr(entry, "kind", "approval")
    style = "dim" if entry.superseded else ""
    label = entry.key if kind == "step" else f"{kind}:{entry.key}"
    began, over = _began(entry), _over(entry)
    mark = "─" if kind == "phase" else _MARKS.get(entry.status, " ")
    colour = coloured(entry.status)
    step = Text(prefix, style="dim").append(f"{mark} ", style=style or colour.style).append(label, style=style)
    if kind in {"phase", "checkpoint"}:
        return [step, Text(), Text(_clock(began, now), style="dim"), Text(), Text(_void(entry), style="dim")]
    going = entry.status in {"running", "open"}
    took = "" if over is None and not going else lasted((now if over is None else over) - began)
    status = Text(entry.status, style="dim") if entry.superseded else colour
    remark = _of_approval(entry, now) if kind == "approval" else _of_step(entry, now)
    return [step, status, Text(_clock(began, now), style="dim"), Text(took), Text(remark, style=style)]


def _of_step(step: Any, now: int) -> str:
    parts = [_void(step)]
    if step.attempt > 1:
        parts.append(f"attempt {step.attempt}")
    if step.status == "running" and step.progress is not None:
        parts.append(f"{step.progress} %")
    if step.status == "retrying" and step.due is not None:
        parts.append(f"again {ago(step.due, now)}")
    if step.status == "unknown":
        parts.append("its worker went away; it must run only once")
    if step.child is not None:
        parts.append(step.child)
    if step.note:
        parts.append(f"note: {step.note}")
    if step.error is not None and step.status != "finished":
        parts.append(f"{step.error.type}: {step.error.message}")
    if step.status == "finished" and step.child is None and step.result is not None:
        parts.append(_short(step.result))
    return _joined(parts)


def _of_approval(approval: Any, now: int) -> str:
    parts = [_void(approval)]
    if approval.auto:
        parts.append("passed through")
    if approval.by is not None:
        parts.append(f"by {approval.by}")
    if approval.reason:
        parts.append(approval.reason)
    if approval.status == "open" and approval.expires is not None:
        parts.append(f"expires {ago(approval.expires, now)}")
    return _joined(parts)


def _void(entry: Any) -> str:
    return f"void since redo {entry.superseded}" if entry.superseded else ""


def _joined(parts: Sequence[str]) -> str:
    text = harmless("; ".join(part.replace("\n", " ") for part in parts if part))
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _requests(found: Unfolded, actions: Sequence[dict[str, str]]) -> Iterator[Text]:
    """Yield each question to people, its subject, and the commands that answer it."""
    for question, judged, commands in _questions(found, actions):
        yield Text(f"\n{question}", style="bold")
        if judged:
            yield _judged(judged, _SHOWN)
        for command in commands:
            yield Text(f"  {command}", style="bold cyan", no_wrap=True, overflow="ignore")


def _urgent_requests(
    found: Unfolded, actions: Sequence[dict[str, str]], most: int
) -> Iterator[RenderableType | Shortenable]:
    """The same on a screen of ``most`` lines. What there is to judge is shortened; how to answer is not."""
    questions = list(_questions(found, actions))
    few = questions[: max(1, most // _LINES_OF_QUESTION)]
    for question, judged, commands in few:
        yield Text(f"\n{question}", style="bold")
        if judged:
            yield _shortenable(judged, min(_SHOWN, most // 4))
        for command in commands:
            yield CommandLine(command)
    if len(questions) > len(few):
        yield Text(f"… {len(questions) - len(few)} more: agentbus task approvals", style="dim")


def _questions(found: Unfolded, actions: Sequence[dict[str, str]]) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield each question to people, the lines of its subject, and the commands that answer it."""
    shown = {
        (one.task.id, f"approval:{approval.key}"): approval.shown
        for one in found.family()
        for approval in one.approvals
        if approval.status == "open" and not approval.superseded
    }
    commands: dict[tuple[str, str], list[str]] = {}
    for action in actions:
        commands.setdefault((action["task"], action["about"]), []).append(action["command"])
    for about, answers in commands.items():
        yield _asked(*about, found.task.id), _to_judge(shown.get(about)), answers


def _asked(task: str, about: str, top: str) -> str:
    kind, _, name = about.partition(":")
    where = "" if task == top else f" of {task}"
    if kind == "approval":
        return f"{name}{where} waits for a decision"
    if kind == "step":
        return f"nobody knows what became of {name}{where}: say it"
    return f"{task} is {about}" if about != "halting" else f"{task} halts before its next step"


def _to_judge(value: Any) -> list[str]:
    """The lines of what there is to judge, as it was meant to be read."""
    import msgspec

    if value is None:
        return []
    text = value if isinstance(value, str) else msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
    return harmless(text).splitlines()


def _shortenable(lines: Sequence[str], most: int) -> Shortenable:
    """As many of these as there is room for, none of them folded: more of them are seen."""

    def draw(shown: Sequence[int]) -> Text:
        text = _judged(lines, len(shown))
        text.no_wrap, text.overflow = True, "ellipsis"
        return text

    return Shortenable(min(len(lines), most), draw, least=0)


def _judged(lines: Sequence[str], most: int) -> Text:
    more = [f"… {len(lines) - most} more lines; --json has all"] if len(lines) > most else []
    return Text("\n".join(f"  {line[:1000]}" for line in [*lines[:most], *more]))


def _short(value: Any, longest: int = 40) -> str:
    text = harmless(plain(value))
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def _clock(wall: int, now: int) -> str:
    then, today = time.localtime(wall / 1000), time.localtime(now / 1000)
    return time.strftime("%H:%M:%S" if then[:3] == today[:3] else "%d %b %H:%M", then)


def lasted(milliseconds: int) -> str:
    """How long something took.

    >>> lasted(40), lasted(2_500), lasted(90_000), lasted(9_000_000)
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
