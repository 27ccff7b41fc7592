"""A result of several parts: some fields, and lists of what belongs to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from agentbus.interfaces.cli.output import Result, plain


class Part:
    """Records of one kind. On plain lines each begins with the ``subject``; people see them under a ``title``."""

    def __init__(self, subject: str, title: str, columns: Sequence[str], items: Sequence[Any]) -> None:
        self.subject = subject
        self.title = title
        self.columns = [(name, kind) for name, _, kind in (column.partition(":") for column in columns)]
        self.rows: list[dict[str, Any]] = [msgspec.to_builtins(item) for item in items]

    def lines(self) -> list[str]:
        names = [name for name, _ in self.columns]
        return ["\t".join((self.subject, *(plain(row.get(name)) for name in names))) for row in self.rows]


class Fields(Part):
    """Some fields of one record, a line each."""

    def __init__(self, subject: str, title: str, record: dict[str, Any], kinds: dict[str, str] | None = None) -> None:
        super().__init__(subject, title, ("name", "value"), [{"name": n, "value": v} for n, v in record.items()])
        self.kinds = kinds or {}


class Sections(Result):
    """All of it; ``data`` is what JSON has."""

    def __init__(
        self, data: Any, *parts: Part, code: int = 0, remark: str | None = None, empty: str | None = None
    ) -> None:
        self._data = data
        self.parts = parts
        self.code = code
        self.remark = remark
        """A sentence that helps whoever asked."""
        self._empty = empty
        """What people see where there is nothing to see."""

    def data(self) -> Any:
        return self._data

    def lines(self) -> list[str]:
        found = [line for part in self.parts for line in part.lines()]
        return found if self.remark is None else [*found, f"remark\t{self.remark}"]

    def show(self) -> None:
        from agentbus.interfaces.cli.tables import sections

        sections(self.parts, self.remark or self._empty)
