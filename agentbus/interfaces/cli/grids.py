"""A table that fits: nothing is cut in two that somebody may want to copy.

Ids, types, statuses, numbers and times stay on one line. Prose is folded between words; if that is not enough, columns
that nothing is in are left out, then the lesser ones, and it says so. The column that the table is there for stays:
the one of the kind ``reason``, or the last that holds prose. A command that does not fit beside its record stands below
it. Where not even that helps, a record is a line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

_PROSE = frozenset({
    "note", "notes", "facts", "payload", "value", "text", "error", "description", "finding", "path", "does", "why",
})  # fmt: skip
"""Columns that may be folded."""
_LESSER = ("attempts", "priority", "session", "milestone", "owner_kind", "actor", "at")
"""Columns that go first, in this order; then those to the right."""
NOTHING = "–"
"""A cell that nothing is in."""
_LEAST = 16
"""Characters that a folded column has at least."""
_COMFORT = 30
"""Characters that the column which the table is there for has, before one that was left out comes back."""
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
        *,
        clipped: bool = False,
    ) -> None:
        """``clipped``: prose has one line, unless it is why the table is there."""
        self._columns = columns
        self._rows = rows
        self._numeric = numeric
        self._title = title
        self._prose = [name in _PROSE or kind in {"json", "prose", "reason"} for name, kind in columns]
        self._kept = self._indispensable()
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
            yield Text(f"not shown here: {', '.join(gone)}; --json has all", style="dim")

    def _tables(self, shown: list[int], below: list[int], headings: list[str], width: int) -> Iterator[RenderableType]:
        """One table; or one for each record, with columns of the same widths, if something stands below each."""
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
            yield from (CommandLine(self._rows[first][column].plain) for column in below)

    def _widths(self, shown: list[int], headings: list[str], width: int) -> dict[int, int]:
        """Return the width of each column. Spare width goes to folded columns: first to the main one, so that none of
        its words is split, then to the narrow ones."""
        spare = width - self._needed(shown, headings)
        least = {column: self._least(column, headings) for column in shown}
        if self._kept is not None and self._kept in least:
            words = (word for row in self._rows for word in row[self._kept].plain.split())
            more = min(spare, max(0, max(map(cell_len, words), default=0) - least[self._kept]))
            least[self._kept] += more
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
            yield from (CommandLine(row[column].plain) for column in below)

    def _indispensable(self) -> int | None:
        """The column that the table is there for."""
        reasons = [i for i, (_, kind) in enumerate(self._columns) if kind == "reason"]
        prose = [i for i, is_prose in enumerate(self._prose) if is_prose and not self._is_empty(i)]
        return next(iter(reasons or prose[-1:]), None)

    def _expendable(self) -> list[int]:
        """Return the columns that can be left out, in this order: never the name or status of a record, prose last."""
        columns = [
            i for i, (name, kind) in enumerate(self._columns)
            if i and i != self._kept and "status" not in (name, kind)
        ]  # fmt: skip
        lesser = [i for name in _LESSER for i in columns if self._columns[i][0] == name]
        others = [i for i in reversed(columns) if i not in lesser]
        return lesser + sorted(others, key=lambda column: self._prose[column])

    def _is_empty(self, column: int) -> bool:
        return all(row[column].plain in {"", NOTHING} for row in self._rows)

    def _drop(self, columns: Sequence[int], shown: list[int], headings: list[str], width: int) -> None:
        """Leave out as many of these as it takes."""
        for column in columns:
            if self._needed(shown, headings) <= width:
                return
            shown.remove(column)

    def _restored(self, columns: Iterable[int], shown: list[int], headings: list[str], width: int) -> list[int]:
        """Return the columns shown, with those of ``columns`` that fit again because a wider one was left out."""
        found = shown
        for column in columns:
            more = sorted({*found, column})
            comfort = 0
            if self._kept in more:
                least = self._least(self._kept, headings)
                comfort = min(self._natural(self._kept, headings), _COMFORT) - least
            if len(more) > len(found) and self._needed(more, headings) + max(0, comfort) <= width:
                found = more
        return found

    def _needed(self, shown: list[int], headings: list[str]) -> int:
        return sum(self._least(column, headings) for column in shown) + _GAP * (len(shown) - 1)

    def _least(self, column: int, headings: list[str]) -> int:
        natural = self._natural(column, headings)
        return min(natural, _LEAST) if self._prose[column] else natural

    def _natural(self, column: int, headings: list[str]) -> int:
        texts = [Text(headings[column]), *(row[column] for row in self._rows)]
        return max((line.cell_len for text in texts for line in text.split("\n", allow_blank=True)), default=0)


class CommandLine:
    """A command to be copied: one that is too long for a line is continued on the next, in the syntax of a shell."""

    def __init__(self, command: str, indent: str = "  ") -> None:
        self._command = command
        self._indent = indent

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        for line in folded_command(self._command, options.max_width, self._indent):
            yield Text(line, style="bold cyan", overflow="fold")


def folded_command(command: str, width: int, indent: str) -> list[str]:
    """The lines of a command on a terminal of this width.

    >>> folded_command("agentbus task reject feature-1 plan --reason 'too large'", 40, "  ")
    ['  agentbus task reject feature-1 plan \\\\', "    --reason 'too large'"]
    """
    if cell_len(indent + command) <= width:
        return [indent + command]
    lines, line = list[str](), ""
    # Within quotes a shell would not take the line's end for nothing.
    for word in re.findall(r"(?:'[^']*'|[^ ])+", command):
        if not line:
            line = indent + word
        elif cell_len(f"{line} {word} \\") > width:
            lines.append(f"{line} \\")
            line = f"{indent}  {word}"
        else:
            line = f"{line} {word}"
    return [*lines, line]
