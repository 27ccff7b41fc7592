"""Signals that end a command, as exceptions that are raised where they are heard.

The import system swallows an exception that comes at the wrong moment, or leaves a module half made: whoever pressed
Ctrl-C would have pressed it in vain. What comes while something is imported is therefore raised right after.

Python runs a handler between two of its own instructions. A signal that arrives after the last of them and before a
system call that blocks does not interrupt that call: while something is written, a timer does.
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
_AGAIN = 0.2
"""Seconds after which a blocked write is interrupted, again and again."""
_deferred: set[int] = set()
"""Signals that came while something was imported."""

Handler = Callable[[int, FrameType | None], None]


def patient(act: Callable[[int], None]) -> Handler:
    """A handler that acts now, or when what is being imported is whole."""

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
    """Raise what was deferred; and whatever came right before a call that blocks is handled, now that it does not."""
    for number in tuple(_deferred):
        signal.raise_signal(number)


@contextmanager
def audible() -> Iterator[None]:
    """For what may block: a signal is heard within a moment, also one that came right before the call."""
    try:
        before = signal.signal(signal.SIGALRM, _again)
    except ValueError:
        # Not the main thread: signals are no concern of this one.
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
