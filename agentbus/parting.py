"""Letting go on the way out: what must still be written when a block is left by an exception or a cancellation.

It is shielded from the cancellation, but it must not hold up the exit: where another process holds the lock, the
first that waits in vain makes the engine hurry, so that everything after it gives up at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import anyio

from agentbus.engine.interface import Engine

PATIENCE = 1.0


@contextmanager
def parting(engine: Engine) -> Iterator[None]:
    with anyio.move_on_after(PATIENCE, shield=True) as scope:
        yield
    if scope.cancelled_caught:
        engine.hurry()
