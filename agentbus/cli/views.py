"""Results of several parts; ``--watch``: redraw in place on a terminal, print repeatedly elsewhere; progress bars."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec

from agentbus.cli.context import Call, ending_cleanly
from agentbus.cli.output import (
    PLAIN,
    TIMES,
    PlainFormat,
    Result,
    Watchable,
    escape_control_chars,
    is_terminal,
    plain,
    table_lines,
)
from agentbus.errors import AgentBusError

if TYPE_CHECKING:
    from rich.console import RenderableType


class Part:
    """Records of one kind. Plain lines start with the ``subject``; a terminal shows a ``title``."""

    def __init__(self, subject: str, title: str, columns: Sequence[str], items: Sequence[Any]) -> None:
        self.subject = subject
        self.title = title
        self.columns = [(name, kind) for name, _, kind in (column.partition(":") for column in columns)]
        self.rows: list[dict[str, Any]] = [msgspec.to_builtins(item) for item in items]

    def lines(self, form: PlainFormat = PLAIN) -> list[str]:
        names = ("subject", *(name for name, _ in self.columns))
        return form.headed(names, table_lines(self.columns, self.rows, form, self.subject)) if self.rows else []


class Fields(Part):
    """Fields of one record, one per line."""

    def __init__(self, subject: str, title: str, record: dict[str, Any], kinds: dict[str, str] | None = None) -> None:
        super().__init__(subject, title, ("name", "value"), [{"name": n, "value": v} for n, v in record.items()])
        self.kinds = kinds or {}

    def lines(self, form: PlainFormat = PLAIN) -> list[str]:
        kinds = dict.fromkeys(TIMES, "time") | self.kinds
        found = [
            "\t".join((self.subject, row["name"], plain(row["value"], kinds.get(row["name"], ""), form)))
            for row in self.rows
        ]
        return form.headed(("subject", "name", "value"), found) if found else []


class Sections(Result):
    """Several parts; ``data`` is the data for JSON."""

    def __init__(
        self, data: Any, *parts: Part, code: int = 0, remark: str | None = None, empty: str | None = None
    ) -> None:
        self._data = data
        self.parts = parts
        self.code = code
        self.remark = remark
        """Advice for the reader."""
        self._empty = empty
        """The text of an empty result on a terminal."""

    def data(self) -> Any:
        return self._data

    def lines(self, form: PlainFormat = PLAIN) -> list[str]:
        found = [line for part in self.parts for line in part.lines(form)]
        return found if self.remark is None else [*found, f"remark\t{self.remark}"]

    def show(self) -> None:
        from agentbus.cli.rich_output import sections

        sections(self.parts, self.remark or self._empty)


R = TypeVar("R", bound=Watchable)


def show_or_watch(call: Call, query: Callable[[], R], over: Callable[[R], bool] = lambda _: False) -> R | int:
    """Return the result of ``query``; with --watch, print it repeatedly until ``over``."""
    if not call.arguments.watch:
        return query()
    import time

    from agentbus.core.validation import check_seconds

    pause = check_seconds(call.arguments.interval, "interval") / 1000
    found: list[R] = []

    def again() -> R:
        if found:
            # Opening the bus detected dead processes; detect those that die later.
            with suppress(AgentBusError):
                call.bus.mark_dead_processes()
        found[:] = [query()]
        return found[0]

    with ending_cleanly():
        if is_terminal() and not call.arguments.json:
            from agentbus.cli.rich_output import live

            def drawn(lines: int) -> RenderableType:
                return again().drawn(lines)

            live(drawn, pause, lambda: over(found[0]))
            return found[0].code
        while True:
            call.emit(again())
            if over(found[0]):
                return found[0].code
            time.sleep(pause)


class Report(Protocol):
    """Called with the amount done, the total, and optionally the current item; from any thread."""

    def __call__(self, done: int, total: int, what: str = "", /) -> None: ...


@contextmanager
def progress_bar(title: str, call: Call) -> Iterator[Report | None]:
    """Show a bar on stderr during a block: on a terminal, where rich is installed; elsewhere yield None."""
    if call.arguments.quiet or not sys.stderr.isatty() or find_spec("rich") is None:
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn(),
        TextColumn("{task.fields[what]}", style="dim", markup=False),
    )  # fmt: skip
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(title, total=None, what="")

        def report(done: int, total: int, what: str = "", /) -> None:
            shown.update(task, completed=done, total=total, what=escape_control_chars(what)[-60:])

        yield report
