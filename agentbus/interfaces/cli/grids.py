"""A table that fits: nothing is cut in two that somebody may want to copy.

Ids, types, statuses, numbers and times stay on one line. What is prose is folded between words; if that is not enough,
the lesser columns are left out, and it says so. Where not even that helps, a record is a line.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

_PROSE = frozenset({"note", "notes", "facts", "payload", "value", "text", "error", "description", "finding", "path"})
"""Columns that may be folded."""
_LESSER = ("attempts", "priority", "session", "milestone", "actor")
"""Columns that go first, in this order; then those to the right."""
_LEAST = 16
"""Characters that a folded column has at least."""
_GAP = 2
NARROW = 30
"""A terminal of so few columns has no room for tables."""


class Grid:
    """Cells in columns, drawn in the width that there is."""

    def __init__(
        self,
        columns: Sequence[tuple[str, str]],
        rows: Sequence[Sequence[Text]],
        numeric: Sequence[bool],
        title: str | None = None,
    ) -> None:
        self._columns = columns
        self._rows = rows
        self._numeric = numeric
        self._title = title
        self._prose = [name in _PROSE or kind in {"json", "prose"} for name, kind in columns]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        width = options.max_width
        shown = list(range(len(self._columns)))
        headings = [name.replace("_", " ") for name, _ in self._columns]
        if self._needed(shown, headings) > width:
            headings = [heading.replace(" ", "\n") for heading in headings]
        for column in self._expendable():
            if self._needed(shown, headings) <= width:
                break
            shown.remove(column)
        if width <= NARROW or self._needed(shown, headings) > width:
            yield from self._lines()
            return
        yield self._table(shown, headings, width)
        gone = [heading.replace("\n", " ") for i, heading in enumerate(headings) if i not in shown]
        if gone:
            yield Text(f"not shown here: {', '.join(gone)}; --json has all", style="dim")

    def _table(self, shown: list[int], headings: list[str], width: int) -> Table:
        found = Table(
            title=self._title, title_justify="left", header_style="bold", box=None, pad_edge=False
        )  # fmt: skip
        spare = width - self._needed(shown, headings)
        for column in shown:
            wanted, least = self._natural(column, headings), self._least(column, headings)
            more = min(wanted - least, spare)
            spare -= more
            found.add_column(
                headings[column],
                width=least + more,
                no_wrap=not self._prose[column],
                overflow="fold",
                justify="right" if self._numeric[column] else "left",
            )
        for row in self._rows:
            found.add_row(*(row[column] for column in shown))
        return found

    def _lines(self) -> Iterator[RenderableType]:
        if self._title:
            yield Text(self._title, style="italic")
        for row in self._rows:
            yield Text("  ").join(row)

    def _expendable(self) -> list[int]:
        """What can be left out, in this order: neither what a record is called nor how it is."""
        columns = [i for i, (name, kind) in enumerate(self._columns) if i and "status" not in (name, kind)]
        lesser = [i for name in _LESSER for i in columns if self._columns[i][0] == name]
        return lesser + [i for i in reversed(columns) if i not in lesser]

    def _needed(self, shown: list[int], headings: list[str]) -> int:
        return sum(self._least(column, headings) for column in shown) + _GAP * (len(shown) - 1)

    def _least(self, column: int, headings: list[str]) -> int:
        natural = self._natural(column, headings)
        return min(natural, _LEAST) if self._prose[column] else natural

    def _natural(self, column: int, headings: list[str]) -> int:
        texts = [Text(headings[column]), *(row[column] for row in self._rows)]
        return max((line.cell_len for text in texts for line in text.split("\n", allow_blank=True)), default=0)
