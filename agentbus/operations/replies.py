"""Replies: matched to their request by correlation, read by whoever asked and by nobody else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import msgspec

from agentbus.clock import Now
from agentbus.operations import Actor, Op, Outcome, Query, Row, operation
from agentbus.operations.claims import tend
from agentbus.operations.fencing import fence


class ReplyRequest(msgspec.Struct, frozen=True):
    """Is there a reply to the request with this correlation? ``again``: also one that was handed over before."""

    touches: ClassVar[int] = 1
    actor: Actor
    mailbox: int
    correlation: str
    again: bool = False


@operation(durable=False, last=True, beside=True)
def take_reply(requests: Sequence[ReplyRequest], now: Now) -> Op[list[Outcome[Row | None]]]:
    """Hand each reply to the one that asked. It is done with that; who asks again under the same id gets it again."""
    refused = yield from fence(request.actor for request in requests)
    # Replies that came too late for their request are read by nobody; they expire here.
    yield from tend(list({request.mailbox for request in requests}), now)
    outcomes: list[Outcome[Row | None]] = []
    for request in requests:
        if request.actor in refused:
            outcomes.append(refused[request.actor])
            continue
        rows = yield Query("reply_take", (now.wall, request.mailbox, request.correlation))
        if not rows and request.again:
            rows = yield Query("reply_again", (request.mailbox, request.correlation))
        outcomes.append(rows[0] if rows else None)
    return outcomes
