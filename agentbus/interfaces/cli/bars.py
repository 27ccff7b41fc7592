"""Bars that show how far something is: on a terminal, where rich is installed. Elsewhere nothing is shown."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Protocol

from agentbus.interfaces.cli.command import Call


class Report(Protocol):
    """Hears how much is done, of how much, and (where there is more to say) with what; from any thread."""

    def __call__(self, done: int, total: int, what: str = "", /) -> None: ...


@contextmanager
def bar(title: str, call: Call) -> Iterator[Report | None]:
    """A bar on stderr, which is for people, for the length of a block; then it is gone."""
    if call.arguments.quiet or not sys.stderr.isatty() or find_spec("rich") is None:
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    from agentbus.interfaces.cli.texts import harmless

    columns = (
        TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn(),
        TextColumn("{task.fields[what]}", style="dim", markup=False),
    )  # fmt: skip
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(title, total=None, what="")

        def report(done: int, total: int, what: str = "", /) -> None:
            shown.update(task, completed=done, total=total, what=harmless(what)[-60:])

        yield report
