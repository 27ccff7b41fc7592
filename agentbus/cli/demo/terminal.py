"""The demo on a terminal: chapters in colour, and a table of figures. With rich."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

_COLOURS = {"plan": "cyan", "work": "green", "kill -9": "bold red", "monitor": "yellow", "recover": "magenta"}

_NARROW = 60
"""Columns below which the figures are lines, not a table."""


class Narrator:
    """Print the steps on a terminal, each chapter once."""

    def __init__(self, *, on_stderr: bool) -> None:
        self._console = Console(stderr=on_stderr)
        self._chapter = ""

    def __call__(self, chapter: str, text: str) -> None:
        shown = "" if chapter == self._chapter else chapter
        self._chapter = chapter
        line = Text.assemble((f"{shown:<9}", _COLOURS.get(chapter, "")), text)
        self._console.print(line, highlight=True)


def print_summary(rows: list[tuple[str, str, bool | None]], verdict: str, good: bool) -> None:
    """Print the figures, with a mark on those that a guarantee covers."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_column()
    for name, value, kept in rows:
        mark = Text("") if kept is None else Text("✓", style="green") if kept else Text("✗", style="bold red")
        table.add_row(name, value, mark)
    console = Console()
    console.print()
    if console.width < _NARROW:
        # A table would break the words.
        for name, value, kept in rows:
            console.print(f"{name}: {value}{'' if kept is None else ' ✓' if kept else ' ✗'}")
    else:
        console.print(table)
    console.print(Text(f"\n{verdict}", style="bold green" if good else "bold red"))
