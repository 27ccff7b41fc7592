"""Tables for people: colours by status, relative times. The only place that imports rich."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from agentbus.interfaces.cli.output import plain

_COLOURS = {
    "running": "green", "active": "green", "completed": "blue", "acked": "blue", "ok": "green",
    "suspect": "yellow", "degraded": "yellow", "paused": "yellow", "scheduled": "cyan", "queued": "cyan",
    "leased": "green", "pending": "cyan", "spawning": "cyan", "failed": "red", "dead": "red", "interrupted": "red",
    "expired": "magenta", "stopped": "dim", "changed": "yellow", "vanished": "red",
}  # fmt: skip
_TIMES = frozenset({"created", "updated", "ended", "started", "finished", "expires", "due"})


def table(columns: Sequence[tuple[str, str]], rows: Sequence[dict[str, Any]], empty: str, cursor: str | None) -> None:
    """Records in a table."""
    console = Console()
    if not rows:
        console.print(Text(empty, style="dim"))
        return
    console.print(grid(columns, rows))
    if cursor is not None:
        console.print(Text(f"there are more: --cursor {cursor}", style="dim"))


def grid(columns: Sequence[tuple[str, str]], rows: Sequence[dict[str, Any]], title: str | None = None) -> Table:
    """A table of records, to be printed or put into another."""
    found = Table(title=title, title_justify="left", header_style="bold", box=None, pad_edge=False)
    for name, _ in columns:
        found.add_column(name.replace("_", " "), overflow="fold")
    for row in rows:
        found.add_row(*(cell(row.get(name), kind or name) for name, kind in columns))
    return found


def record(fields: dict[str, Any], kinds: dict[str, str]) -> None:
    """One record, a line for each field that it has."""
    found = Table(box=None, show_header=False, pad_edge=False)
    found.add_column(style="bold")
    found.add_column(overflow="fold")
    for name, value in fields.items():
        if value is not None:
            found.add_row(name.replace("_", " "), cell(value, kinds.get(name, name)))
    Console().print(found)


def cell(value: Any, kind: str) -> Text:
    """A value as people see it."""
    if value is None:
        return Text("–", style="dim")
    if kind == "status":
        return Text(str(value), style=_COLOURS.get(str(value), ""))
    if (kind == "time" or kind in _TIMES) and isinstance(value, int):
        return Text(ago(value), style="dim")
    if kind in {"progress", "percent"}:
        return Text(f"{value} %")
    return Text(value if isinstance(value, str) else plain(value))


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
