"""Show the progress of a run on stderr: position, elapsed time and estimated total."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import TextIO

_BAR = 20
_NARROW = 80
_ENOUGH = 10.0
"""Planned seconds that must pass before the estimate uses the observed speed."""


class Progress:
    """Overwrite one line with a bar on a terminal; print lines otherwise.

    A run has parts with planned durations; a part has steps. Without a plan the bar counts the steps.
    """

    def __init__(
        self, planned: float = 0.0, out: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._out = out or sys.stderr
        self._clock = clock
        self._started = clock()
        self._terminal = self._out.isatty()
        self._planned = planned
        self._over = 0.0
        self._name = ""
        self._seconds = 0.0
        self._steps = self._done = 0
        self._share = 0.0

    def part(self, name: str, seconds: float) -> None:
        """Start the next part."""
        self._over += self._seconds
        self._name, self._seconds = name, seconds
        self._steps = self._done = 0
        self._share = 0.0

    def expect(self, steps: int) -> None:
        """Announce ``steps`` more steps of this part."""
        if self._done >= self._steps:
            self._steps = self._done = 0
        self._steps += steps

    def say(self, text: str) -> None:
        """Start the next step."""
        self._done += 1
        if self._steps:
            # Steps announced later make the share smaller; the bar must not move back.
            self._share = min(1.0, max(self._share, (self._done - 1) / self._steps))
        elapsed = self._clock() - self._started
        where = f"{self._name}: " if self._name else ""
        line = f"{elapsed:5.0f} s{self._estimate(elapsed)}  {self._bar()}{where}{text}"
        if self._terminal:
            # A line that is too long could not be overwritten.
            print(f"\r\x1b[K{line[: self._width() - 1]}", end="", file=self._out)
        else:
            print(line, file=self._out)
        self._out.flush()

    def note(self, text: str) -> None:
        """Print a line that stays on the screen."""
        print(f"\r\x1b[K{text}" if self._terminal else text, file=self._out, flush=True)

    def done(self) -> None:
        if self._terminal:
            print("\r\x1b[K", end="", file=self._out)

    def _width(self) -> int:
        try:
            return os.get_terminal_size(self._out.fileno()).columns or _NARROW
        except (OSError, ValueError):
            return _NARROW

    def _estimate(self, elapsed: float) -> str:
        if not self._planned:
            return ""
        over = self._over + self._seconds * self._share
        slower = elapsed / over if over >= _ENOUGH else 1.0
        return f" of about {max(elapsed, elapsed + (self._planned - over) * slower):.0f} s"

    def _bar(self) -> str:
        if self._planned:
            share = (self._over + self._seconds * self._share) / self._planned
        elif self._steps:
            share = (self._done - 1) / self._steps
        else:
            return ""
        full = min(_BAR, int(_BAR * share))
        return f"[{'#' * full}{'.' * (_BAR - full)}]  "
