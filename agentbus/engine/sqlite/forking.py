"""What a forked child must let go of: the parent's locks and sockets are not its own."""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Forgets(Protocol):
    """Something that holds a descriptor which a child must not keep open."""

    def forget(self) -> None: ...


_held: weakref.WeakSet[Forgets] = weakref.WeakSet()
_generation = 0


def forget_in_child(holder: Forgets) -> None:
    _held.add(holder)


def generation() -> int:
    """Another number in each forked child."""
    return _generation


def _after_fork() -> None:
    global _generation  # noqa: PLW0603
    _generation += 1
    for holder in list(_held):
        holder.forget()


os.register_at_fork(after_in_child=_after_fork)
