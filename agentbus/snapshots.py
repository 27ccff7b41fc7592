"""Large values without holding up the event loop: their JSON is looked through, hashed and read on a thread."""

from __future__ import annotations

from typing import Any

from agentbus.aside import aside
from agentbus.codec import LARGE, Snapshot, decode, open_snapshot


async def settled(snapshot: Snapshot) -> tuple[str, str]:
    """Its text and SHA-256, or the error that a closer look gives."""
    return await aside(snapshot.settle) if snapshot.large else snapshot.settle()


async def reread(text: str) -> Any:
    """The value of a snapshot as everybody will read it: not the caller's own, which may go on changing."""
    return decode(text) if len(text) <= LARGE else await aside(decode, text)


async def opened(text: str, checksum: str, what: str, as_: Any = None) -> Any:
    """The value of a stored snapshot, once its checksum is found right; as a type of the caller's, if one is given."""
    if len(text) <= LARGE:
        return open_snapshot(text, checksum, what, as_)
    return await aside(open_snapshot, text, checksum, what, as_)
