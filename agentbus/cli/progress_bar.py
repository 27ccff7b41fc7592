"""A progress bar on stderr: on a terminal, where rich is installed. Elsewhere nothing is shown."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Protocol

from agentbus.cli.context import Call
from agentbus.cli.output import escape_control_chars


class Report(Protocol):
    """Called with the amount done, the total, and optionally the current item; from any thread."""

    def __call__(self, done: int, total: int, what: str = "", /) -> None: ...


@contextmanager
def progress_bar(title: str, call: Call) -> Iterator[Report | None]:
    """Show a bar for the duration of a block. Yield None if there is none."""
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
