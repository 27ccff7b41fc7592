"""The audit trail: one line for each change of status, takeover, deletion or definition, not one per message."""

from __future__ import annotations

from typing import Any

from agentbus.codec import plain
from agentbus.operations import Each, Op, Row, Wake

CHANNEL = "events"


def event(at: int, kind: str, subject: tuple[str, str], actor: str | None, **facts: Any) -> Row:
    """The row of one event; ``subject`` is its kind and its id."""
    return (at, kind, *subject, actor, plain(facts))


def record(events: list[Row]) -> Op[None]:
    if events:
        yield Each("event_insert", events)
        yield Wake((CHANNEL,))
