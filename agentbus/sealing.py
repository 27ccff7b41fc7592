"""Large values on their way to the store and back: JSON with a SHA-256, made beside the event loop if it is long."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import anyio.to_thread

from agentbus.codec import decode, decode_as, encode
from agentbus.errors import DamagedPayload, PayloadTooLarge, SnapshotTooLarge

LARGE = 256 * 1024
"""JSON from this many bytes on is not worked on by the event loop's own thread."""
_EACH = 16
"""What an item counts in bytes, whatever it is: encoding many small ones takes its time too."""


def seal(value: Any, limit: int) -> tuple[str, str]:
    """JSON text of ``value`` and its SHA-256, or a named error."""
    try:
        text, _ = encode(value, limit)
    except PayloadTooLarge as error:
        raise SnapshotTooLarge(**error.facts) from None
    return text, sha256(text.encode()).hexdigest()


async def seal_aside(value: Any, limit: int) -> tuple[str, str]:
    """The same; in a thread if the value looks large."""
    return await anyio.to_thread.run_sync(seal, value, limit) if looks_large(value) else seal(value, limit)


def unseal(text: str, checksum: str, what: str, type: Any = None) -> Any:
    """The value of a JSON text that matches its SHA-256, else DamagedPayload; as a type of the caller's, if given."""
    if sha256(text.encode()).hexdigest() != checksum:
        raise DamagedPayload(what=what)
    return decode(text) if type is None else decode_as(text, type, what)


async def unseal_aside(text: str, checksum: str, what: str, type: Any = None) -> Any:
    """The same; in a thread if the text is long."""
    if len(text) < LARGE:
        return unseal(text, checksum, what, type)
    return await anyio.to_thread.run_sync(unseal, text, checksum, what, type)


def looks_large(value: Any) -> bool:
    """Whether the JSON of a value is likely to be long. Gives up counting, and says yes, where it cannot be seen."""
    left, size = [value], 0
    while left:
        item = left.pop()
        if isinstance(item, str):
            size += len(item)
        elif isinstance(item, dict | list | tuple):
            size += len(item) * _EACH
            if size < LARGE:
                left.extend(item.values() if isinstance(item, dict) else item)
        elif not (item is None or isinstance(item, int | float)):
            return True
        if size >= LARGE:
            return True
    return False
