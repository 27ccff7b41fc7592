"""Signals, for those who have something in hand that a handler must not take from them."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_INTERRUPTING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Hold back what would interrupt this, until it is done."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _INTERRUPTING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def postponed(stop: Callable[[], object]) -> Iterator[None]:
    """What a signal does is done after the block, which ``stop`` is asked to end: an exception that a handler raised in
    the middle of a driver written in C has torn down the whole process."""
    heard: list[int] = []

    def hear(number: int, frame: FrameType | None) -> None:
        heard.append(number)
        stop()

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: handler for number in _INTERRUPTING if callable(handler := signal.getsignal(number))}
    try:
        for number in before:
            signal.signal(number, hear)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for late in heard:
            signal.raise_signal(late)
