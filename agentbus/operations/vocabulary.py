"""The vocabulary: which names agents and messages may have as their type."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from agentbus.clock import Now
from agentbus.operations import Op, Outcome, Query, operation
from agentbus.operations.events import event, record


class DefineRequest(msgspec.Struct, frozen=True):
    """A type to be known from now on."""

    kind: str
    name: str
    description: str


@operation(durable=True)
def define(requests: Sequence[DefineRequest], now: Now) -> Op[list[Outcome[None]]]:
    """Add types to the vocabulary."""
    for request in requests:
        known = yield Query("type_known", (request.kind, [request.name]))
        yield Query("type_define", (request.kind, request.name, request.description, now.wall))
        if not known:
            subject = ("vocabulary", f"{request.kind}/{request.name}")
            yield from record([event(now.wall, "type_defined", subject, None)])
    return [None] * len(requests)
