"""Bars for people who wait: on a terminal, where rich is installed. Elsewhere nothing is shown."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from agentbus.interfaces.cli.command import Call

Report = Callable[[int, int], None]
"""How much is done, and of how much."""


@contextmanager
def bar(title: str, call: Call) -> Iterator[Report | None]:
    """Show how far something is, on stderr, for the length of a block; then it is gone."""
    if call.arguments.quiet or not sys.stderr.isatty() or find_spec("rich") is None:
        yield None
        return
    from agentbus.interfaces.cli.bars import shown

    with shown(title) as report:
        yield report
