"""Signals, for those who have something in hand that a handler must not take from them."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

_INTERRUPTING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Hold back what would interrupt this, until it is done."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _INTERRUPTING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
