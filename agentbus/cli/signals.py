"""Signals that end a command, raised as exceptions at a safe moment.

The import system swallows an exception at the wrong moment, or leaves a module half initialized: Ctrl-C would have no
effect. A signal during an import is therefore raised right after it.

Python runs a handler between two of its instructions. A signal that arrives after the last one before a blocking system
call does not interrupt the call: during a write, a timer does.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""Signals that end a command cleanly, besides Ctrl-C."""
_IMPORT_SYSTEM = "<frozen importlib._bootstrap>"
_SOON = 0.005
_AGAIN = 0.2
"""Seconds between interruptions of a blocked write."""
_deferred: set[int] = set()
"""Signals that arrived during an import."""

Handler = Callable[[int, FrameType | None], None]


def deferring(act: Callable[[int], None]) -> Handler:
    """Return a handler that acts at once, or after the import that is running."""

    def handle(number: int, frame: FrameType | None) -> None:
        while frame is not None:
            if frame.f_code.co_filename == _IMPORT_SYSTEM:
                _deferred.add(number)
                signal.signal(signal.SIGALRM, _again)
                signal.setitimer(signal.ITIMER_REAL, _SOON, _AGAIN)
                return
            frame = frame.f_back
        if number in _deferred:
            _deferred.remove(number)
            if not _deferred:
                signal.setitimer(signal.ITIMER_REAL, 0)
        act(number)

    return handle


def _again(*_: object) -> None:
    """Raise deferred signals. The timer itself interrupts a blocking call, so that pending handlers run."""
    for number in tuple(_deferred):
        signal.raise_signal(number)


@contextmanager
def interruptible() -> Iterator[None]:
    """Make a blocking call respond to signals, also to one that arrived right before it."""
    try:
        before = signal.signal(signal.SIGALRM, _again)
    except ValueError:
        # Only the main thread handles signals.
        yield
        return
    timer = signal.setitimer(signal.ITIMER_REAL, _AGAIN, _AGAIN)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, signal.SIG_DFL if before is None else before)
        _again()


def _interrupt(number: int) -> None:
    raise KeyboardInterrupt


interrupt = deferring(_interrupt)
"""The handler of Ctrl-C in a command."""


@contextmanager
def interrupts_left_to_loop() -> Iterator[None]:
    """Restore the default handler of Ctrl-C, with which an event loop cancels its task."""
    ours = signal.getsignal(signal.SIGINT) is interrupt
    if ours:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGINT, interrupt)
