"""What was meant: near matches for a misspelt name. Looked up after the failure, not under the write lock."""

from __future__ import annotations

from agentbus.engine.interface import Engine
from agentbus.errors import UnknownRecipient, UnknownType
from agentbus.operations.reading import near_matches


async def explained(engine: Engine, error: UnknownRecipient | UnknownType) -> UnknownRecipient | UnknownType:
    """The error, with the names that are near the one that nobody knows."""
    subject = "type" if isinstance(error, UnknownType) else "recipient"
    near = await engine.read(near_matches, (subject, error.kind, error.name))
    return type(error)(**{**error.facts, "near": near})
