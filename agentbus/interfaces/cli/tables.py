"""Tables for people: colours by status, relative times. With rich."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from agentbus.interfaces.cli.grids import NARROW, NOTHING, Grid
from agentbus.interfaces.cli.output import plain
from agentbus.interfaces.cli.screens import Screen, Shortenable
from agentbus.interfaces.cli.texts import harmless

if TYPE_CHECKING:
    from agentbus.interfaces.cli.sections import Part

_COLOURS = {
    "running": "green", "active": "green", "completed": "blue", "acked": "blue", "ok": "green",
    "suspect": "yellow", "degraded": "yellow", "paused": "yellow", "scheduled": "cyan", "queued": "cyan",
    "leased": "green", "pending": "cyan", "spawning": "cyan", "failed": "red", "dead": "red", "interrupted": "red",
    "expired": "magenta", "stopped": "dim", "changed": "yellow", "vanished": "red",
    "outside": "red", "unreadable": "red", "warning": "yellow", "error": "red", "info": "green",
    "waiting": "yellow", "halted": "yellow", "open": "bold yellow", "unknown": "red", "retrying": "yellow",
    "finished": "green", "approved": "green", "rejected": "red", "cancelled": "dim",
}  # fmt: skip
_TIMES = frozenset({"created", "updated", "ended", "started", "finished", "expires", "due", "seen", "busy_until"})
_NO_NUMBERS = frozenset({"time", "flag", "status"})


def table(columns: Sequence[tuple[str, str]], rows: Sequence[dict[str, Any]], empty: str, cursor: str | None) -> None:
    """Records in a table."""
    Console().print(tabled(columns, rows, empty, cursor))


def tabled(
    columns: Sequence[tuple[str, str]],
    rows: Sequence[dict[str, Any]],
    empty: str,
    cursor: str | None,
    most: int | None = None,
) -> RenderableType:
    """The same, to be printed; with ``most``, in that many lines."""
    if not rows:
        return Text(empty, style="dim")
    more = [] if cursor is None else [Text(f"there are more: --cursor {cursor}", style="dim")]
    return Screen([shortenable(columns, rows), *more], most - 1) if most else Group(grid(columns, rows), *more)


def shortenable(
    columns: Sequence[tuple[str, str]], rows: Sequence[dict[str, Any]], title: str | None = None, use: int = 0
) -> Shortenable:
    """A table that has fewer rows where there is no room for all; one with a title has none, if need be."""

    def draw(shown: Sequence[int]) -> RenderableType:
        if not shown:
            return Text(f"{title}: {len(rows)}", style="dim")
        some = grid(columns, [rows[index] for index in shown], title, clipped=True)
        left = len(rows) - len(shown)
        return Group(some, Text(f"… {left} more", style="dim")) if left else some

    return Shortenable(len(rows), draw, least=0 if title else 1, use=use)


def lines(columns: Sequence[tuple[str, str]], rows: Sequence[dict[str, Any]]) -> None:
    """Records that come one by one, a line each: with the time of day, since they are new, and only what they have."""
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
    """Several tables, one below the other; empty ones are left out."""
    console = Console()
    first = True
    for part in parts:
        if not part.rows:
            continue
        if not first:
            console.print()
        first = False
        if part.title:
            # Not the table's own title, which would be folded to the width of the table.
            console.print(Text(part.title, style="italic"))
        kinds = getattr(part, "kinds", None)
        if kinds is not None:
            record({row["name"]: row["value"] for row in part.rows}, kinds)
        else:
            console.print(grid(part.columns, part.rows))
    if remark is not None:
        console.print(Text(remark, style="dim") if first else Text(f"\n{remark}", style="dim"))


def grid(
    columns: Sequence[tuple[str, str]],
    rows: Sequence[dict[str, Any]],
    title: str | None = None,
    *,
    clipped: bool = False,
) -> Grid:
    """A table of records, to be printed or put into another."""
    cells = [[cell(row.get(name), kind or name) for name, kind in columns] for row in rows]
    numeric = [
        kind not in _NO_NUMBERS
        and name not in _TIMES
        and all(isinstance(row.get(name), int | float | None) for row in rows)
        and any(row.get(name) is not None for row in rows)
        for name, kind in columns
    ]
    return Grid(columns, cells, numeric, title, clipped=clipped)


def record(fields: dict[str, Any], kinds: dict[str, str]) -> None:
    """One record, a line for each field that has something in it."""
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
    """A value as people see it."""
    if value is None:
        return Text(NOTHING, style="dim")
    if kind == "status":
        return coloured(str(value))
    if (kind == "time" or kind in _TIMES) and isinstance(value, int):
        return Text(ago(value), style="dim")
    if kind in {"progress", "percent"}:
        return Text(f"{value} %")
    if kind in _WORDS and not isinstance(value, str):
        return _WORDS[kind](value)
    if kind in {"severity", "event"}:
        colour = _COLOURS.get(str(value)) or _COLOURS.get(str(value).rpartition("_")[2], "")
        return Text(f"{value:<7}" if kind == "severity" else str(value), style=colour)
    if kind == "facts":
        facts = " ".join(f"{name}={plain(one)}" for name, one in value.items() if one not in (None, {}, []))
        return Text(harmless(facts) or NOTHING)
    if kind == "command":
        return Text(str(value), style="bold cyan")
    return Text(harmless(value) if isinstance(value, str) else plain(value))


def coloured(status: str) -> Text:
    """A status in its colour."""
    return Text(status, style=_COLOURS.get(status, ""))


def size(count: int) -> str:
    """Bytes, in a unit that leaves few digits.

    >>> size(812), size(123_456_789)
    ('812 B', '117.7 MiB')
    """
    amount = float(count)
    for unit in ("B", "KiB", "MiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} GiB"


_WORDS: dict[str, Callable[[Any], Text]] = {
    "bytes": lambda value: Text(size(value)),
    "milliseconds": lambda value: Text(span(value / 1000)),
    "rate": lambda value: Text(f"{value:.0%}"),
    "flag": lambda value: Text("yes" if value else NOTHING, style="" if value else "dim"),
}
"""How numbers of some kinds are said."""


def ago(wall: int, now: int | None = None) -> str:
    """How long ago something was, or in how long it will be.

    >>> ago(0, 90_000), ago(90_000, 0)
    ('1 min ago', 'in 1 min')
    """
    seconds = ((time.time_ns() // 1_000_000 if now is None else now) - wall) / 1000
    text = span(abs(seconds))
    return f"{text} ago" if seconds >= 0 else f"in {text}"


def span(seconds: float) -> str:
    """A length of time in its largest unit.

    >>> span(7), span(7200), span(200_000)
    ('7 s', '2 h', '2 d')
    """
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds // length:.0f} {unit}"
    return f"{seconds:.0f} s"
