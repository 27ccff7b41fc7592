"""The result of a command, and its output: as JSON, as plain lines, or as tables.

``--json`` prints ``{"schema_version": 1, "data": …}``. Plain lines are stable: one record per line, tab-separated
columns, a line with their names only with ``--header``; times are ISO 8601 in UTC, with ``--epoch`` milliseconds since
1970; an absent value is ``-``, values other than strings and numbers are JSON, control characters are escaped. Tables
are for terminals, where ``rich`` is installed.
"""

from __future__ import annotations

import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from agentbus.cli.signals import interruptible

if TYPE_CHECKING:
    from rich.console import RenderableType


def escape_control_chars(text: str) -> str:
    r"""Return a text with its control characters escaped, so that a terminal does not interpret them.

    >>> escape_control_chars("\x1b[2Jgone")
    '\\x1b[2Jgone'
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one in "\n\t" else ascii(one)[1:-1] for one in text)


def escape_in_json(text: str) -> str:
    r"""Return the JSON of a value with the characters in its strings escaped that a terminal interprets or does not
    show. It stays the JSON of the same value.

    >>> print(escape_in_json('"\x9b2J\u202e\U000e0041"'))
    "\u009b2J\u202e\udb40\udc41"
    """
    if text.isprintable():
        return text
    for one in {one for one in set(text) if not one.isprintable()}:
        text = text.replace(one, "\\u" + one.encode("utf-16-be").hex(" ", 2).replace(" ", "\\u"))
    return text


SCHEMA_VERSION = 1
TIMES = frozenset({
    "created", "updated", "ended", "started", "finished", "expires", "due", "seen", "busy_until", "decided", "at",
    "since", "leased_at",
})  # fmt: skip
"""Fields that are times, in records of which all fields are shown."""
_BREAKING = (*range(0x7F, 0xA0), 0x2028, 0x2029)
"""Characters beyond those that JSON escapes that end a line for some programs, or that a terminal interprets."""
_ESCAPED = {code: ascii(chr(code))[1:-1] for code in (*range(0x20), 0x5C, *_BREAKING)}
_encode = msgspec.json.Encoder().encode


class PlainFormat(msgspec.Struct, frozen=True):
    """The form of plain lines: with a line of column names, and with times as milliseconds since 1970."""

    header: bool = False
    epoch: bool = False

    @property
    def chosen(self) -> bool:
        """Return True if an option asks for plain lines, which a terminal then gets as well."""
        return self.header or self.epoch

    def headed(self, names: Sequence[str], lines: list[str]) -> list[str]:
        """Return the lines, after one with the names of the columns if that is wanted."""
        return ["\t".join(names), *lines] if self.header else lines


PLAIN = PlainFormat()


class Result(ABC):
    """The result of a command. ``code`` is the exit code."""

    code: int = 0

    @abstractmethod
    def data(self) -> Any:
        """Return the data for ``--json``."""

    @abstractmethod
    def lines(self, form: PlainFormat = PLAIN) -> list[str]:
        """Return the plain lines."""

    def show(self) -> None:
        """Print on a terminal, with rich."""
        print_lines(self.lines())


class Watchable(Result):
    """A result that ``--watch`` can redraw."""

    @abstractmethod
    def drawn(self, max_lines: int | None = None) -> RenderableType:
        """Return the output for a terminal; with ``max_lines``, for a screen of that height."""


class Notice(Result):
    """Data, and the line that summarizes it."""

    def __init__(self, data: Any, line: str = "", code: int = 0) -> None:
        self._data = data
        self._line = line
        self.code = code

    def data(self) -> Any:
        return self._data

    def lines(self, form: PlainFormat = PLAIN) -> list[str]:
        return [self._line] if self._line else []


class Done(Notice):
    """The result of an action: data, and a sentence that says what was done.

    ``line`` replaces the sentence where the output is not a terminal: an id or a number that scripts use, or columns.
    """

    def __init__(self, data: Any, sentence: str, line: str | tuple[str, ...] | None = None, code: int = 0) -> None:
        columns = line if isinstance(line, tuple) else (sentence if line is None else line,)
        super().__init__(data, "\t".join(map(plain, columns)), code)
        self._sentence = sentence
        self.confirms = line is None
        """True if the plain line is the sentence, which --quiet leaves out."""

    def show(self) -> None:
        print_lines([self._sentence])


CONFIRMED = "plain output: a sentence that says what was done"
"""The help on the output of such an action."""


def counted(count: int, what: str) -> str:
    """Return a number of things.

    >>> counted(1, "message"), counted(3, "message")
    ('1 message', '3 messages')
    """
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def listing(names: Sequence[str]) -> str:
    """Return the first names of a list that may be long.

    >>> listing(["build", "test"])
    'build, test'
    >>> listing([f"w-{number}" for number in range(300)])[-19:]
    'w-19 and 280 others'
    """
    rest = len(names) - _LISTED
    # "and 1 other" would be as long as its name.
    return ", ".join(names) if rest <= 1 else f"{', '.join(names[:_LISTED])} and {rest} others"


_LISTED = 20
"""Names of a list that are shown."""


class Text(Result):
    """A text of several lines."""

    def __init__(self, text: str) -> None:
        self._text = text

    def data(self) -> Any:
        return self._text

    def lines(self, form: PlainFormat = PLAIN) -> list[str]:
        return self._text.splitlines()


class Rows(Watchable):
    """Records of one kind, with some of their fields; JSON has the same fields, or with ``whole`` all.

    ``field:kind`` determines how a terminal shows a field; the kinds are status, time, percent, bytes, milliseconds,
    severity, command, flag, facts, json, prose (can be folded) and reason (prose that is never dropped). ``following``:
    one record of a stream, shown without a heading. ``terminal`` maps a record to the columns of a terminal, by
    ``field:kind``.
    """

    def __init__(
        self,
        items: Sequence[Any],
        columns: Sequence[str],
        *,
        cursor: str | None = None,
        paged: bool = True,
        whole: bool = False,
        one: bool = False,
        following: bool = False,
        terminal: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
        code: int = 0,
        empty: str = "no results",
    ) -> None:
        self._columns = _named(columns)
        self._rows = [msgspec.to_builtins(item) for item in items]
        self._cursor = cursor
        self._paged = paged
        self._whole = whole
        self._one = one
        self._following = following
        self._terminal = terminal
        self._empty = empty
        self.code = code

    def data(self) -> Any:
        rows = self._rows if self._whole else [{name: row.get(name) for name, _ in self._columns} for row in self._rows]
        if self._one:
            return rows[0]
        return {"items": rows, "cursor": self._cursor} if self._paged else rows

    def lines(self, form: PlainFormat = PLAIN) -> list[str]:
        return form.headed([name for name, _ in self._columns], table_lines(self._columns, self._rows, form))

    def show(self) -> None:
        from agentbus.cli.rich_output import lines, table

        columns, rows = self._terminal_columns()
        if self._following:
            return lines(columns, rows)
        return table(columns, rows, self._empty, self._cursor)

    def drawn(self, max_lines: int | None = None) -> RenderableType:
        from agentbus.cli.rich_output import draw_table

        return draw_table(*self._terminal_columns(), self._empty, self._cursor, max_lines)

    def _terminal_columns(self) -> tuple[list[tuple[str, str]], list[dict[str, Any]]]:
        """Return the columns and rows of a terminal."""
        if self._terminal is None or not self._rows:
            return self._columns, self._rows
        seen = [self._terminal(row) for row in self._rows]
        rows = [{name.partition(":")[0]: value for name, value in row.items()} for row in seen]
        return _named(list(seen[0])), rows


def _named(columns: Sequence[str]) -> list[tuple[str, str]]:
    return [(name, kind) for name, _, kind in (column.partition(":") for column in columns)]


class One(Result):
    """One record with all its fields, one per line: name, tab, value.

    ``shown`` replaces values in lines and on terminals; ``hidden`` names fields that only JSON has.
    """

    def __init__(
        self,
        record: Any,
        kinds: dict[str, str] | None = None,
        code: int = 0,
        shown: dict[str, Any] | None = None,
        hidden: Sequence[str] = (),
    ) -> None:
        self._record = msgspec.to_builtins(record)
        self._shown = {name: value for name, value in {**self._record, **(shown or {})}.items() if name not in hidden}
        self._kinds = kinds or {}
        self.code = code

    def data(self) -> Any:
        return self._record

    def lines(self, form: PlainFormat = PLAIN) -> list[str]:
        found = [f"{name}\t{plain(value, self._kind(name), form)}" for name, value in self._shown.items()]
        return form.headed(("name", "value"), found)

    def _kind(self, name: str) -> str:
        return self._kinds.get(name, "time" if name in TIMES else "")

    def show(self) -> None:
        from agentbus.cli.rich_output import record

        record(self._shown, self._kinds)


def table_lines(
    columns: Sequence[tuple[str, str]], rows: Sequence[dict[str, Any]], form: PlainFormat, *before: str
) -> list[str]:
    """Return the lines of records; ``before`` are columns that all lines start with."""
    return ["\t".join((*before, *(plain(row.get(name), kind, form) for name, kind in columns))) for row in rows]


def plain(value: Any, kind: str = "", form: PlainFormat = PLAIN) -> str:
    r"""Return a value for a plain line.

    >>> plain("one\ttwo\x1b"), plain(1_000, "time"), plain(None)
    ('one\\ttwo\\x1b', '1970-01-01T00:00:01.000Z', '-')
    """
    if value is None:
        return "-"
    if isinstance(value, str):
        # Tabs and newlines separate columns and lines.
        return value.translate(_ESCAPED)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return escape_in_json(_encode(value).decode())
    return iso_time(value) if kind == "time" and not form.epoch else str(value)


def iso_time(milliseconds: float) -> str:
    """Return a time in UTC.

    >>> iso_time(1_767_225_600_250)
    '2026-01-01T00:00:00.250Z'
    """
    whole = int(milliseconds)
    try:
        return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(whole // 1000))}.{whole % 1000:03d}Z"
    except (OverflowError, ValueError, OSError):
        return str(whole)


def bare(value: Any) -> str:
    """Return a value that is the whole output: a string as is, other values as JSON."""
    return value if isinstance(value, str) else escape_in_json(_encode(value).decode())


def emit(result: Result, *, json: bool, form: PlainFormat = PLAIN, quiet: bool = False) -> None:
    """Print a result, and flush. ``quiet``: without the sentence that confirms an action."""
    if json:
        write_json({"data": result.data()})
    elif quiet and isinstance(result, Done) and result.confirms:
        return
    elif is_terminal() and not form.chosen and not (quiet and isinstance(result, Done)):
        result.show()
        sys.stdout.flush()
    elif sys.stdout.isatty():
        print_lines(result.lines(form))
        sys.stdout.flush()
    else:
        # The name of a file that is not UTF-8 is printed as it is.
        _write("".join(f"{line}\n" for line in result.lines(form)).encode(errors="surrogateescape"))


def print_lines(lines: Sequence[str]) -> None:
    """Print lines on a terminal, with control characters escaped."""
    for line in lines:
        print(escape_control_chars(line))


def write_json(fields: dict[str, Any]) -> None:
    """Print an envelope on its own line."""
    _write(f"{escape_in_json(_encode({'schema_version': SCHEMA_VERSION, **fields}).decode())}\n".encode())


def is_terminal() -> bool:
    """Return whether tables can be shown: on a terminal, with rich."""
    if not sys.stdout.isatty():
        return False
    from importlib.util import find_spec

    return find_spec("rich") is not None


def _write(text: bytes) -> None:
    """Write all bytes. Where standard output is unbuffered (PYTHONUNBUFFERED), a signal interrupts a write."""
    left = memoryview(text)
    with interruptible():
        while left:
            written = sys.stdout.buffer.write(left)
            if written is None:
                raise BlockingIOError("standard output is non-blocking and full")
            left = left[written:]
        sys.stdout.flush()
