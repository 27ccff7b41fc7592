"""Output on a terminal, with rich: tables that fit its width, screens that fit its height, colours by status.

In a table, ids, types, statuses, numbers and times stay on one line, to be copied. Prose is folded between words; if
that is not enough, empty columns are dropped, then less important ones, with a note. The main column stays: the one of
kind ``reason``, or the last with prose. A command that does not fit is printed below its record. In the last resort a
record is a line. On a screen of limited height, lists drop rows so that the important parts fit.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from agentbus.api.overview import describe_waits
from agentbus.cli.output import TIMES, escape_control_chars, plain

if TYPE_CHECKING:
    from agentbus.cli.views import Part

_PROSE = frozenset({
    "note", "notes", "facts", "payload", "value", "text", "error", "description", "finding", "path", "does", "why",
})  # fmt: skip
"""Columns that can be folded."""
_LESSER = ("attempts", "priority", "session", "milestone", "owner_kind", "actor", "at")
"""Columns that are dropped first, in this order; then those to the right."""
NOTHING = "–"
"""The text of an empty cell."""
_MIN_WIDTH = 16
"""Minimum width of a folded column."""
_COMFORT = 30
"""Width of the main column before a dropped column is restored."""
_GAP = 2
NARROW = 30
"""Width of a terminal up to which records are lines, not tables."""


class Grid:
    """A table drawn in the width of the terminal."""

    def __init__(
        self,
        columns: Sequence[tuple[str, str]],
        rows: Sequence[Sequence[Text]],
        numeric: Sequence[bool],
        title: str | None = None,
        *,
        clipped: bool = False,
    ) -> None:
        """``clipped``: prose has one line, except in the main column."""
        self._columns = columns
        self._rows = rows
        self._numeric = numeric
        self._title = title and escape_control_chars(title)
        self._prose = [name in _PROSE or kind in {"json", "names", "prose", "reason"} for name, kind in columns]
        self._main = self._main_column()
        self._clipped = [clipped and prose and columns[i][1] != "reason" for i, prose in enumerate(self._prose)]
        self._commands = [i for i, (_, kind) in enumerate(columns) if i and kind == "command"]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        width = options.max_width
        shown = list(range(len(self._columns)))
        headings = [name.replace("_", " ") for name, _ in self._columns]
        below = self._commands if self._needed(shown, headings) > width else []
        shown = [column for column in shown if column not in below]
        expendable = [column for column in self._expendable() if column in shown]
        empty = [column for column in reversed(expendable) if self._is_empty(column)]
        self._drop(empty, shown, headings, width)
        if self._needed(shown, headings) > width:
            headings = [heading.replace(" ", "\n") for heading in headings]
        full = [column for column in expendable if column not in empty]
        self._drop(full, shown, headings, width)
        shown = self._restored(reversed(full), shown, headings, width)
        if width <= NARROW or self._needed(shown, headings) > width:
            yield from self._lines(below)
            return
        yield from self._tables(shown, below, headings, width)
        seen = {*shown, *empty, *below}
        gone = [heading.replace("\n", " ") for i, heading in enumerate(headings) if i not in seen]
        if gone:
            yield Text(f"not shown: {', '.join(gone)}; --json has all", style="dim")

    def _tables(self, shown: list[int], below: list[int], headings: list[str], width: int) -> Iterator[RenderableType]:
        """Yield one table; or one per record, with equal column widths, if a command is below each."""
        widths = self._widths(shown, headings, width)
        for first in range(0, len(self._rows), 1 if below else max(1, len(self._rows))):
            found = Table(
                title=None if first else self._title,
                title_justify="left",
                header_style="bold",
                box=None,
                pad_edge=False,
                show_header=not first,
            )
            for column in shown:
                found.add_column(
                    headings[column],
                    width=widths[column],
                    no_wrap=not self._prose[column] or self._clipped[column],
                    overflow="ellipsis" if self._clipped[column] else "fold",
                    justify="right" if self._numeric[column] else "left",
                )
            rows = self._rows[first : first + 1] if below else self._rows
            for row in rows:
                found.add_row(*(row[column] for column in shown))
            yield found
            commands = [self._rows[first][column].plain for column in below] if self._rows else []
            yield from (CommandLine(command) for command in commands if command != NOTHING)

    def _widths(self, shown: list[int], headings: list[str], width: int) -> dict[int, int]:
        """Return the width of each column. Spare width goes to folded columns: first to the main one, so that none of
        its words is split, then to the narrow ones."""
        spare = width - self._needed(shown, headings)
        least = {column: self._least(column, headings) for column in shown}
        if self._main is not None and self._main in least:
            words = (word for row in self._rows for word in row[self._main].plain.split())
            more = min(spare, max(0, max(map(cell_len, words), default=0) - least[self._main]))
            least[self._main] += more
            spare -= more
        wishes = sorted((self._natural(column, headings) - least[column], column) for column in shown)
        for index, (wish, column) in enumerate(wishes):
            more = min(wish, spare // (len(wishes) - index))
            least[column] += more
            spare -= more
        return least

    def _lines(self, below: list[int]) -> Iterator[RenderableType]:
        if self._title:
            yield Text(self._title, style="italic")
        for row in self._rows:
            yield Text("  ").join(text for column, text in enumerate(row) if column not in below)
            yield from (CommandLine(row[column].plain) for column in below if row[column].plain != NOTHING)

    def _main_column(self) -> int | None:
        """Return the main column."""
        reasons = [i for i, (_, kind) in enumerate(self._columns) if kind == "reason"]
        prose = [i for i, is_prose in enumerate(self._prose) if is_prose and not self._is_empty(i)]
        return next(iter(reasons or prose[-1:]), None)

    def _expendable(self) -> list[int]:
        """Return the columns that can be dropped, in order: never the name or status of a record, prose last."""
        columns = [
            i for i, (name, kind) in enumerate(self._columns)
            if i and i != self._main and "status" not in (name, kind)
        ]  # fmt: skip
        lesser = [i for name in _LESSER for i in columns if self._columns[i][0] == name]
        others = [i for i in reversed(columns) if i not in lesser]
        return lesser + sorted(others, key=lambda column: self._prose[column])

    def _is_empty(self, column: int) -> bool:
        return all(row[column].plain in {"", NOTHING} for row in self._rows)

    def _drop(self, columns: Sequence[int], shown: list[int], headings: list[str], width: int) -> None:
        """Drop as many of these columns as necessary."""
        for column in columns:
            if self._needed(shown, headings) <= width:
                return
            shown.remove(column)

    def _restored(self, columns: Iterable[int], shown: list[int], headings: list[str], width: int) -> list[int]:
        """Return the columns shown, with those of ``columns`` that fit again after a wider one was dropped."""
        found = shown
        for column in columns:
            more = sorted({*found, column})
            comfort = 0
            if self._main in more:
                least = self._least(self._main, headings)
                comfort = min(self._natural(self._main, headings), _COMFORT) - least
            if len(more) > len(found) and self._needed(more, headings) + max(0, comfort) <= width:
                found = more
        return found

    def _needed(self, shown: list[int], headings: list[str]) -> int:
        return sum(self._least(column, headings) for column in shown) + _GAP * (len(shown) - 1)

    def _least(self, column: int, headings: list[str]) -> int:
        natural = self._natural(column, headings)
        return min(natural, _MIN_WIDTH) if self._prose[column] else natural

    def _natural(self, column: int, headings: list[str]) -> int:
        texts = [Text(headings[column]), *(row[column] for row in self._rows)]
        return max((line.cell_len for text in texts for line in text.split("\n", allow_blank=True)), default=0)


class CommandLine:
    """A command to copy. A long one continues on the next line in the syntax of a shell."""

    def __init__(self, command: str, indent: str = "  ") -> None:
        self._command = command
        self._indent = indent

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        for line in fold_command(self._command, options.max_width, self._indent):
            yield Text(line, style="bold cyan", overflow="fold")


def fold_command(command: str, width: int, indent: str) -> list[str]:
    """Return the lines of a command on a terminal of this width.

    >>> fold_command("agentbus task reject feature-1 plan --reason 'too large'", 40, "  ")
    ['  agentbus task reject feature-1 plan \\\\', "    --reason 'too large'"]
    """
    if cell_len(indent + command) <= width:
        return [indent + command]
    lines, line = list[str](), ""
    # A backslash within quotes would not continue the line.
    for word in re.findall(r"(?:'[^']*'|[^ ])+", command):
        if not line:
            line = indent + word
        elif cell_len(f"{line} {word} \\") > width:
            lines.append(f"{line} \\")
            line = f"{indent}  {word}"
        else:
            line = f"{line} {word}"
    return [*lines, line]


class Shortenable:
    """A list that can be shown in part.

    ``draw`` draws the items at sorted positions, and notes how many are missing. ``ranked``: the positions, the most
    important first. ``least``: the minimum number of items. ``use``: lists of lower use are emptied first.
    """

    def __init__(
        self,
        count: int,
        draw: Callable[[Sequence[int]], RenderableType],
        ranked: Sequence[int] | None = None,
        least: int = 1,
        use: int = 0,
    ) -> None:
        self._draw = draw
        self._ranked = range(count) if ranked is None else ranked
        self.count = count
        self.least = min(least, count)
        self.use = use

    def drawn(self, count: int) -> RenderableType:
        """Draw this number of items."""
        return self._draw(sorted(self._ranked[:count]))


class Screen:
    """Parts drawn in a limited number of lines: the longest list is shortened repeatedly."""

    def __init__(self, parts: Sequence[RenderableType | Shortenable], lines: int) -> None:
        self._parts = parts
        self._lines = lines
        self._fitted: dict[int, list[RenderableType]] = {}
        """Drawn parts by width: a screen is drawn several times between updates."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        if options.max_width not in self._fitted:
            self._fitted[options.max_width] = self._fit(console, options)
        yield from self._fitted[options.max_width]

    def _fit(self, console: Console, options: ConsoleOptions) -> list[RenderableType]:
        lists = {i: part for i, part in enumerate(self._parts) if isinstance(part, Shortenable)}
        # An item has at least one line.
        counts = {i: min(part.count, max(part.least, self._lines)) for i, part in lists.items()}
        drawn = [part.drawn(counts[i]) if isinstance(part, Shortenable) else part for i, part in enumerate(self._parts)]
        heights = [_height(part, console, options) for part in drawn]
        while (over := sum(heights) - self._lines) > 0:
            several = [i for i, part in lists.items() if counts[i] > max(1, part.least)]
            single = [i for i, part in lists.items() if counts[i] > part.least]
            if several:
                chosen = max(several, key=lambda i: heights[i])
                counts[chosen] = max(1, lists[chosen].least, counts[chosen] - max(1, over // (2 * len(lists))))
            elif single:
                chosen = min(single, key=lambda i: lists[i].use)
                counts[chosen] = 0
            else:
                break
            drawn[chosen] = lists[chosen].drawn(counts[chosen])
            heights[chosen] = _height(drawn[chosen], console, options)
        return drawn


class Clipped:
    """A text cut after some lines."""

    def __init__(self, text: Text, lines: int) -> None:
        self._text = text
        self._lines = lines

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        width = options.max_width
        lines = self._text.wrap(console, width)
        shown = list(lines[: self._lines])
        if len(lines) > self._lines:
            shown[-1].truncate(max(1, width - 1))
            shown[-1].append("…")
        yield Text("\n").join(shown)


def _height(part: RenderableType, console: Console, options: ConsoleOptions) -> int:
    return len(console.render_lines(part, options.update(height=None), pad=False))


_COLOURS = {
    "running": "green", "active": "green", "completed": "blue", "acked": "blue", "ok": "green",
    "suspect": "yellow", "degraded": "yellow", "paused": "yellow", "scheduled": "cyan", "queued": "cyan",
    "leased": "green", "pending": "cyan", "spawning": "cyan", "failed": "red", "dead": "red", "interrupted": "red",
    "expired": "magenta", "stopped": "dim", "changed": "yellow", "vanished": "red",
    "outside": "red", "unreadable": "red", "warning": "yellow", "error": "red", "info": "green",
    "waiting": "yellow", "halted": "yellow", "open": "bold yellow", "unknown": "red", "retrying": "yellow",
    "finished": "green", "approved": "green", "rejected": "red", "cancelled": "dim",
}  # fmt: skip
_NO_NUMBERS = frozenset({"time", "flag", "status"})


def table(columns: Sequence[tuple[str, str]], rows: Sequence[dict[str, Any]], empty: str, cursor: str | None) -> None:
    """Print records as a table."""
    Console().print(draw_table(columns, rows, empty, cursor))


def draw_table(
    columns: Sequence[tuple[str, str]],
    rows: Sequence[dict[str, Any]],
    empty: str,
    cursor: str | None,
    max_lines: int | None = None,
) -> RenderableType:
    """Return a table of records; with ``max_lines``, in that number of lines."""
    if not rows:
        return Text(empty, style="dim")
    more = [] if cursor is None else [Text(escape_control_chars(f"more results: --cursor {cursor}"), style="dim")]
    return (
        Screen([shortenable(columns, rows), *more], max_lines - 1) if max_lines else Group(grid(columns, rows), *more)
    )


def shortenable(
    columns: Sequence[tuple[str, str]], rows: Sequence[dict[str, Any]], title: str | None = None, use: int = 0
) -> Shortenable:
    """Return a table that can drop rows. One with a title can drop all."""

    def draw(shown: Sequence[int]) -> RenderableType:
        if not shown:
            return Text(f"{title}: {len(rows)}", style="dim")
        some = grid(columns, [rows[index] for index in shown], title, clipped=True)
        left = len(rows) - len(shown)
        return Group(some, Text(f"… {left} more", style="dim")) if left else some

    return Shortenable(len(rows), draw, least=0 if title else 1, use=use)


def lines(columns: Sequence[tuple[str, str]], rows: Sequence[dict[str, Any]]) -> None:
    """Print records of a stream, one line each, with the time of day and without empty fields."""
    console = Console()
    for row in rows:
        parts = [
            Text(f"{time.strftime('%H:%M:%S', time.localtime(row[name] / 1000))}", style="dim")
            if kind == "time"
            else cell(row[name].replace("\n", " ") if isinstance(row[name], str) else row[name], kind or name)
            for name, kind in columns
            if row.get(name) not in (None, {})
        ]
        console.print(Text("  ").join(parts), soft_wrap=True)


def sections(parts: Sequence[Part], remark: str | None) -> None:
    """Print several tables, without the empty ones."""
    console = Console()
    first = True
    for part in parts:
        if not part.rows:
            continue
        if not first:
            console.print()
        first = False
        if part.title:
            # The title of a table would be folded to its width.
            console.print(Text(escape_control_chars(part.title), style="italic"))
        kinds = getattr(part, "kinds", None)
        if kinds is not None:
            record({row["name"]: row["value"] for row in part.rows}, kinds)
        else:
            console.print(grid(part.columns, part.rows))
    if remark is not None:
        remark = escape_control_chars(remark)
        console.print(Text(remark, style="dim") if first else Text(f"\n{remark}", style="dim"))


def grid(
    columns: Sequence[tuple[str, str]],
    rows: Sequence[dict[str, Any]],
    title: str | None = None,
    *,
    clipped: bool = False,
) -> Grid:
    """Return a table of records."""
    cells = [[cell(row.get(name), kind or name) for name, kind in columns] for row in rows]
    numeric = [
        kind not in _NO_NUMBERS
        and name not in TIMES
        and all(isinstance(row.get(name), int | float | None) for row in rows)
        and any(row.get(name) is not None for row in rows)
        for name, kind in columns
    ]
    return Grid(columns, cells, numeric, title, clipped=clipped)


def record(fields: dict[str, Any], kinds: dict[str, str]) -> None:
    """Print a record, one line per non-empty field."""
    console = Console()
    found = Table(box=None, show_header=False, pad_edge=False)
    found.add_column(style="bold", no_wrap=True)
    found.add_column(overflow="fold")
    for name, value in fields.items():
        if value in (None, "", {}, []):
            continue
        heading, shown = Text(name.replace("_", " "), style="bold"), cell(value, kinds.get(name, name))
        if console.width <= NARROW:
            console.print(Text("  ").join([heading, shown]))
        else:
            found.add_row(heading, shown)
    if found.row_count:
        console.print(found)


def cell(value: Any, kind: str) -> Text:
    """Return a value as a cell."""
    if value is None:
        return Text(NOTHING, style="dim")
    if isinstance(value, str):
        value = escape_control_chars(value)
    if kind == "status":
        return coloured(str(value))
    if (kind == "time" or kind in TIMES) and isinstance(value, int):
        return Text(ago(value), style="dim")
    if kind in {"progress", "percent"}:
        return Text(f"{value} %")
    if kind in _NUMBERS and not isinstance(value, str):
        return _NUMBERS[kind](value)
    if kind in {"severity", "event"}:
        colour = _COLOURS.get(str(value)) or _COLOURS.get(str(value).rpartition("_")[2], "")
        return Text(f"{value:<7}" if kind == "severity" else str(value), style=colour)
    if kind == "facts":
        facts = " ".join(f"{name}={plain(one)}" for name, one in value.items() if one not in (None, {}, []))
        return Text(escape_control_chars(facts) or NOTHING)
    if kind == "command":
        return Text(str(value), style="bold cyan")
    if kind == "names":
        return Text(escape_control_chars(", ".join(value)) or NOTHING)
    return Text(value if isinstance(value, str) else plain(value))


def coloured(status: str) -> Text:
    """Return a status in its colour."""
    return Text(status, style=_COLOURS.get(status, ""))


def size(count: int) -> str:
    """Return bytes in a readable unit.

    >>> size(812), size(123_456_789)
    ('812 B', '117.7 MiB')
    """
    amount = float(count)
    for unit in ("B", "KiB", "MiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} GiB"


_NUMBERS: dict[str, Callable[[Any], Text]] = {
    "bytes": lambda value: Text(size(value)),
    "milliseconds": lambda value: Text(span(value / 1000)),
    "rate": lambda value: Text(f"{value:.0%}"),
    "flag": lambda value: Text("yes" if value else NOTHING, style="" if value else "dim"),
}
"""Formats of numbers by kind."""


def ago(wall: int, now: int | None = None) -> str:
    """Return a time relative to now.

    >>> ago(0, 90_000), ago(90_000, 0)
    ('1 min ago', 'in 1 min')
    """
    seconds = ((time.time_ns() // 1_000_000 if now is None else now) - wall) / 1000
    text = span(abs(seconds))
    return f"{text} ago" if seconds >= 0 else f"in {text}"


def span(seconds: float) -> str:
    """Return a duration in its largest unit.

    >>> span(7), span(7200), span(200_000)
    ('7 s', '2 h', '2 d')
    """
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds // length:.0f} {unit}"
    return f"{seconds:.0f} s"


_AGENTS = (
    ("id", ""),
    ("type", ""),
    ("status", "status"),
    ("progress", "percent"),
    ("seen", "time"),
    ("note", ""),
    ("session", ""),
)
_FAILED = (("kind", ""), ("name", ""), ("status", "status"), ("at", "time"), ("reason", "reason"))
_WAITING = (("kind", ""), ("name", ""), ("since", "time"), ("what", "reason"), ("command", "command"))
_SESSIONS = (
    ("id", ""),
    ("operation", ""),
    ("milestone", ""),
    ("status", "status"),
    ("progress", "percent"),
    ("updated", "time"),
)
_TASKS = (
    ("id", ""),
    ("workflow", ""),
    ("status", "status"),
    ("phase", ""),
    ("progress", "percent"),
    ("waits for", "reason"),
    ("updated", "time"),
)
_FEW = 5
"""Failures of a kind that are named."""
_HISTORIES = (("kind", ""), ("histories", ""), ("items", ""), ("size", "bytes"), ("updated", "time"))
_USE = ("settings", "histories", "sessions", "agents", "tasks", "failed", "waiting")
"""The parts that a small screen drops first."""
_SHOW = "agentbus agents show, task show, session status, messages dead"
_SETTINGS = (("setting", ""), ("value", ""), ("source", ""))


def print_overview(found: dict[str, Any], settings: dict[str, Any] | None) -> None:
    """Print an overview once."""
    Console().print(draw_overview(found, settings))


def live(draw: Callable[[int], RenderableType], pause: float, over: Callable[[], bool]) -> None:
    """Redraw in place until ``over`` or Ctrl-C."""
    console = Console()
    with Live(draw(console.height), console=console, refresh_per_second=4) as screen:
        while not over():
            time.sleep(pause)
            screen.update(draw(console.height))


def draw_overview(
    found: dict[str, Any], settings: dict[str, Any] | None = None, max_lines: int | None = None
) -> RenderableType:
    """Return the tables of an overview, without the empty ones: what failed, what waits, then the rest. With
    ``max_lines``, in that number of lines."""
    parts: list[RenderableType | Shortenable] = []

    def add(columns: Sequence[tuple[str, str]], rows: Sequence[dict[str, Any]], title: str) -> None:
        parts.append(shortenable(columns, rows, title, _USE.index(title)) if max_lines else grid(columns, rows, title))

    failed, left = _few(found["failed"])
    if failed:
        add(_FAILED, failed, "failed")
        parts.append(Text(f"{f'{left} more; ' if left else ''}details: {_SHOW}", style="dim"))
    if found["waiting"]:
        add(_WAITING, found["waiting"], "waiting")
    if not failed and not found["waiting"]:
        parts.append(Text("nothing failed, nothing waits", style="green"))
    parts.append(_counts(found))
    if found["agents"]:
        add(_AGENTS, found["agents"], "agents")
    if found["sessions"]:
        sessions = [{**one, "status": "degraded" if one["degraded"] else one["status"]} for one in found["sessions"]]
        add(_SESSIONS, sessions, "sessions")
    if found["outgrown"]["why"]:
        why = "; ".join(found["outgrown"]["why"])
        parts.append(
            Text(f"the bus exceeds the capacity of one file: {why}\n→ {found['outgrown']['fix']}", style="yellow")
        )
    if found["tasks"]:
        tasks = [{**one, "waits for": describe_waits(one["waits"]) or None} for one in found["tasks"]]
        add(_TASKS, tasks, "tasks")
    if found["histories"]:
        add(_HISTORIES, found["histories"], "histories")
    if settings is not None:
        rows = [{"setting": name, **one} for name, one in settings.items()]
        add(_SETTINGS, rows, "settings")
    apart = [item for part in parts for item in (part, Text())]
    # On a screen, only the cursor is below the last part.
    return Screen(apart[:-1], max_lines - 1) if max_lines else Group(*apart)  # type: ignore[arg-type]


def _few(failures: Sequence[dict[str, Any]]) -> tuple[list[dict[str, Any]], int]:
    """Return the first failures of each kind, and the number of the others."""
    kinds: dict[str, list[dict[str, Any]]] = {}
    for one in failures:
        kinds.setdefault(one["kind"], []).append(one)
    shown = [one for ones in kinds.values() for one in ones[:_FEW]]
    return shown, len(failures) - len(shown)


def _counts(found: dict[str, Any]) -> Text:
    counts = found["counts"]
    return Text(
        "; ".join(
            f"{what}: " + (", ".join(f"{count} {status}" for status, count in counts[what].items()) or "none")
            for what in ("agents", "messages")
        )
    )
