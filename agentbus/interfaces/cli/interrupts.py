"""Signals that end a command, as exceptions that are raised where they are heard.

The import system swallows an exception that comes at the wrong moment, or leaves a module half made: whoever pressed
Ctrl-C would have pressed it in vain. What comes while something is imported is therefore raised right after.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""What ends a command in order, besides Ctrl-C."""
_IMPORT_SYSTEM = "<frozen importlib._bootstrap>"
_SOON = 0.005

Handler = Callable[[int, FrameType | None], None]


def patient(act: Callable[[int], None]) -> Handler:
    """A handler that acts now, or when what is being imported is whole."""

    def handle(number: int, frame: FrameType | None) -> None:
        while frame is not None:
            if frame.f_code.co_filename == _IMPORT_SYSTEM:
                signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(number))
                signal.setitimer(signal.ITIMER_REAL, _SOON)
                return
            frame = frame.f_back
        act(number)

    return handle


def _interrupt(number: int) -> None:
    raise KeyboardInterrupt


interrupt = patient(_interrupt)
"""What Ctrl-C does in a command."""


@contextmanager
def left_to_the_loop() -> Iterator[None]:
    """An event loop cancels its task at Ctrl-C, if nobody has changed what Ctrl-C does."""
    ours = signal.getsignal(signal.SIGINT) is interrupt
    if ours:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGINT, interrupt)
