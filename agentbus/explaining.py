"""What was meant: near matches for a misspelt name. Looked up after the failure, not under the write lock."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TypeVar

from agentbus.engine.interface import Engine
from agentbus.errors import UnknownRecipient, UnknownType
from agentbus.operations.reading import near_matches

T = TypeVar("T")


async def explained(engine: Engine, write: Awaitable[T]) -> T:
    """Await a write; if it fails for a name that nobody knows, say which names are near."""
    try:
        return await write
    except (UnknownRecipient, UnknownType) as error:
        subject = "type" if isinstance(error, UnknownType) else "recipient"
        near = await engine.read(near_matches, (subject, error.kind, error.name))
        raise type(error)(**{**error.facts, "near": near}) from None
