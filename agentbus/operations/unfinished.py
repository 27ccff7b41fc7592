"""A bus that is only part of a copy: how far the copy came, and that nobody else may open it until it is finished."""

from __future__ import annotations

from typing import Any

import msgspec

from agentbus.clock import Now
from agentbus.errors import CopyUnfinished, StoreError
from agentbus.operations import Op, Query

PLACE = "copying"
"""The fact that is there as long as a copy is under way."""


class Place(msgspec.Struct, frozen=True):
    """How far a copy of ``bus`` came: the rows of ``table`` up to the key ``after`` are there, and all of the tables
    before it; no table is left when it is empty. ``source`` and ``target`` are named as people name them."""

    bus: str
    source: str
    target: str
    table: str
    after: tuple[Any, ...] = ()
    rows: int = 0

    @property
    def command(self) -> str:
        """What goes on with it."""
        # Imported only here: every call of the command line comes by.
        from shlex import quote

        return f"agentbus copy {quote(self.source)} {quote(self.target)}"


def read_place(_: None, now: Now) -> Op[Place | None]:
    """How far a copy into this bus came; None if none is under way."""
    rows = yield Query("copy_place")
    if not rows:
        return None
    try:
        return msgspec.json.decode(rows[0][0], type=Place)
    except msgspec.DecodeError as error:
        raise StoreError(
            path="a copy that was not finished", reason=f"how far it came cannot be read: {error}"
        ) from None


def refuse_unfinished(now: Now) -> Op[None]:
    """Whoever opens a bus must find all of it."""
    place = yield from read_place(None, now)
    if place is not None:
        raise CopyUnfinished(path=place.target, source=place.source, command=place.command)
