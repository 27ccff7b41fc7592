"""Operators, the people who send messages: a mailbox and the name ``operator:NAME``, without registration, epoch or
heartbeat."""

from __future__ import annotations

from agentbus.core.clock import Now
from agentbus.operations.agent_identity import Registration
from agentbus.operations.common import OPERATOR_EPOCH
from agentbus.operations.protocol import ExecuteMany, Op, Outcome, Query, single_operation

_KINDS = ("agent", "replies")


def find_operator(sender: str, now: Now) -> Op[Registration | None]:
    """Return the mailboxes of a person, None before the first message. ``sender`` is ``operator:NAME``."""
    boxes: list[int] = []
    for kind in _KINDS:
        rows = yield Query("mailbox_find", (kind, sender, sender))
        if not rows:
            return None
        boxes.append(rows[0][0])
    mailbox, replies = boxes
    return Registration(sender, OPERATOR_EPOCH, mailbox, replies, None, {}, {})


@single_operation(durable=False)
def enter_operator(sender: str, now: Now) -> Op[Outcome[Registration]]:
    """Create the mailboxes of a person. The commit of the first message makes them durable too."""
    yield ExecuteMany("mailbox_ensure", [(kind, sender, sender, now.wall) for kind in _KINDS])
    found = yield from find_operator(sender, now)
    assert found is not None  # noqa: S101 - they were created before
    return found
