"""The position of an unfinished copy into a bus. Every process reads it when it opens the bus."""

from __future__ import annotations

from typing import Any

import msgspec

from agentbus.core.clock import Now
from agentbus.errors import CopyUnfinished, StoreError
from agentbus.operations.protocol import Op, Query

COPY_POSITION = "copying"
"""The meta key that exists while a copy is unfinished."""


class CopyPosition(msgspec.Struct, frozen=True):
    """The position of a copy of ``bus``: the tables before ``table`` are complete, and ``table`` up to the key
    ``after``; an empty ``table`` means all are. ``source`` and ``target`` are URLs for display."""

    bus: str
    source: str
    target: str
    table: str
    after: tuple[Any, ...] = ()
    rows: int = 0

    @property
    def command(self) -> str:
        """Return the command that resumes the copy."""
        # Imported only here: every command loads this module.
        from shlex import quote

        return f"agentbus copy {quote(self.source)} {quote(self.target)}"


def read_copy_position(_: None, now: Now) -> Op[CopyPosition | None]:
    """Return the position of an unfinished copy into this bus, or None."""
    rows = yield Query("copy_position")
    if not rows:
        return None
    try:
        return msgspec.json.decode(rows[0][0], type=CopyPosition)
    except msgspec.DecodeError as error:
        raise StoreError(path="an unfinished copy", reason=f"its position cannot be read: {error}") from None


def require_complete_copy(now: Now) -> Op[None]:
    """Refuse to open a bus whose copy is unfinished."""
    position = yield from read_copy_position(None, now)
    if position is not None:
        raise CopyUnfinished(path=position.target, source=position.source, command=position.command)
