"""What a command found, and how it is printed: as JSON, as plain lines, as tables for people.

``--json`` gives ``{"schema_version": 1, "data": …}``. Plain lines are for pipes, and stay as they are: one record a
line, its columns parted by tabs, without a heading; times are milliseconds since 1970, what is not there is ``-``, and
anything that is not a text or a number is JSON. Tables are for terminals, and only where ``rich`` is installed.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from agentbus.interfaces.cli.interrupts import audible
from agentbus.interfaces.cli.texts import harmless

if TYPE_CHECKING:
    from rich.console import RenderableType

SCHEMA_VERSION = 1
_encode = msgspec.json.Encoder().encode


class Result(ABC):
    """What a command found. ``code`` is what it exits with."""

    code: int = 0

    @abstractmethod
    def data(self) -> Any:
        """What ``--json`` gives."""

    @abstractmethod
    def lines(self) -> list[str]:
        """What goes down a pipe."""

    def show(self) -> None:
        """What people see, with rich."""
        print_lines(self.lines())


class Watchable(Result):
    """What a command found that can be looked at again and again."""

    @abstractmethod
    def drawn(self, most: int | None = None) -> RenderableType:
        """What people see, to be drawn in place on a screen of so many lines."""


class Said(Result):
    """Data, and the one line that says it."""

    def __init__(self, data: Any, line: str = "", code: int = 0) -> None:
        self._data = data
        self._line = line
        self.code = code

    def data(self) -> Any:
        return self._data

    def lines(self) -> list[str]:
        return [self._line] if self._line else []


class Text(Result):
    """A text as it is, several lines long."""

    def __init__(self, text: str) -> None:
        self._text = text

    def data(self) -> Any:
        return self._text

    def lines(self) -> list[str]:
        return self._text.splitlines()


class Rows(Watchable):
    """Records of one kind, of which some fields are shown; JSON has only these too, unless ``whole``.

    A field of which people want to see something else is named ``field:kind``; the kinds are status, time (when it
    was), percent, bytes, milliseconds, severity, command, flag, facts, json, prose (which may be folded) and reason
    (prose that is never left out). ``following``: one of many that come one by one, which people see without a heading.
    ``people``: what people see of a record instead, by ``field:kind``.
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
        people: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
        code: int = 0,
        empty: str = "there are none",
    ) -> None:
        self._columns = _named(columns)
        self._rows = [msgspec.to_builtins(item) for item in items]
        self._cursor = cursor
        self._paged = paged
        self._whole = whole
        self._one = one
        self._following = following
        self._people = people
        self._empty = empty
        self.code = code

    def data(self) -> Any:
        rows = self._rows if self._whole else [{name: row.get(name) for name, _ in self._columns} for row in self._rows]
        if self._one:
            return rows[0]
        return {"items": rows, "cursor": self._cursor} if self._paged else rows

    def lines(self) -> list[str]:
        return ["\t".join(plain(row.get(name)) for name, _ in self._columns) for row in self._rows]

    def show(self) -> None:
        from agentbus.interfaces.cli.tables import lines, table

        columns, rows = self._seen()
        if self._following:
            return lines(columns, rows)
        return table(columns, rows, self._empty, self._cursor)

    def drawn(self, most: int | None = None) -> RenderableType:
        from agentbus.interfaces.cli.tables import tabled

        return tabled(*self._seen(), self._empty, self._cursor, most)

    def _seen(self) -> tuple[list[tuple[str, str]], list[dict[str, Any]]]:
        """The columns and rows that people see."""
        if self._people is None or not self._rows:
            return self._columns, self._rows
        seen = [self._people(row) for row in self._rows]
        rows = [{name.partition(":")[0]: value for name, value in row.items()} for row in seen]
        return _named(list(seen[0])), rows


def _named(columns: Sequence[str]) -> list[tuple[str, str]]:
    return [(name, kind) for name, _, kind in (column.partition(":") for column in columns)]


class One(Result):
    """One record with all its fields, a line each: the name, a tab, the value.

    ``told``: what lines and people have in place of what is in the record; ``hidden``: what they do not have.
    """

    def __init__(
        self,
        record: Any,
        kinds: dict[str, str] | None = None,
        code: int = 0,
        told: dict[str, Any] | None = None,
        hidden: Sequence[str] = (),
    ) -> None:
        self._record = msgspec.to_builtins(record)
        self._told = {name: value for name, value in {**self._record, **(told or {})}.items() if name not in hidden}
        self._kinds = kinds or {}
        self.code = code

    def data(self) -> Any:
        return self._record

    def lines(self) -> list[str]:
        return [f"{name}\t{plain(value)}" for name, value in self._told.items()]

    def show(self) -> None:
        from agentbus.interfaces.cli.tables import record

        record(self._told, self._kinds)


def plain(value: Any) -> str:
    """A value as plain lines have it."""
    if value is None:
        return "-"
    if isinstance(value, str):
        # A tab or a line's end in a text would part it.
        return value.replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r")
    if isinstance(value, bool) or not isinstance(value, int | float):
        return _encode(value).decode()
    return str(value)


def bare(value: Any) -> str:
    """A value that is all there is to print: a text as it is, anything else as JSON."""
    return value if isinstance(value, str) else _encode(value).decode()


def emit(result: Result, *, json: bool) -> None:
    """Print what a command found; when this returns, it is out."""
    if json:
        write_json({"data": result.data()})
    elif is_terminal():
        result.show()
        sys.stdout.flush()
    elif sys.stdout.isatty():
        print_lines(result.lines())
        sys.stdout.flush()
    else:
        _write("".join(f"{line}\n" for line in result.lines()).encode())


def print_lines(lines: Sequence[str]) -> None:
    """Lines for people. What others wrote must not make their terminal do something."""
    for line in lines:
        print(harmless(line))


def write_json(fields: dict[str, Any]) -> None:
    """One envelope on a line of its own."""
    _write(_encode({"schema_version": SCHEMA_VERSION, **fields}) + b"\n")


def is_terminal() -> bool:
    """Whether tables can be shown: to a terminal, by rich."""
    if not sys.stdout.isatty():
        return False
    from importlib.util import find_spec

    return find_spec("rich") is not None


def _write(text: bytes) -> None:
    """Write all of it. Where standard output has no buffer (PYTHONUNBUFFERED), a signal cuts a write short."""
    left = memoryview(text)
    with audible():
        while left:
            written = sys.stdout.buffer.write(left)
            if written is None:
                raise BlockingIOError("standard output takes no more, and does not say when it will")
            left = left[written:]
        sys.stdout.flush()
