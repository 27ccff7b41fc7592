"""Bars that show how far something is, on a terminal and with rich; they go when it is done."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn


@contextmanager
def bar(title: str) -> Iterator[Callable[[int, int, str], None]]:
    """What hears how much of how much is done, and with what; on standard error, which is for people."""
    columns = (
        TextColumn("[bold]{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn(),
        TextColumn("{task.fields[what]}", style="dim", markup=False),
    )  # fmt: skip
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(title, total=None, what="")

        def tell(done: int, total: int, what: str) -> None:
            shown.update(task, completed=done, total=total, what=what[-60:])

        yield tell
