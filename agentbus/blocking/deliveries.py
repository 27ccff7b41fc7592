"""A message in the hands of a visiting agent."""

from __future__ import annotations

from typing import Any

import msgspec

from agentbus.codec import check, decode
from agentbus.operations import Row


class Delivery(msgspec.Struct, frozen=True):
    """A message with its lease: ``message_id#number``, by which it is settled. ``wants_reply``: somebody waits for an
    answer."""

    message_id: str
    lease: str | None
    sender: str
    recipient: str
    type: str
    payload: Any
    priority: int
    attempts: int
    session: str | None
    correlation: str | None
    wants_reply: bool
    created: int
    expires: int | None


def delivery(row: Row, recipient: str, *, handed: bool = True) -> Delivery:
    """What a row of a claim says. Raises DamagedPayload."""
    (
        id, message_id, sender, type, text, crc, priority, attempts, lease, session, correlation, reply_to, created, _,
        expires,
    ) = row  # fmt: skip
    name = message_id or f"m-{id}"
    check(text, crc, f"message {name}")
    return Delivery(
        name, f"{name}#{lease + 1}" if handed else None, sender, recipient, type, decode(text), priority,
        attempts + handed, session, correlation, reply_to is not None, created, expires,
    )  # fmt: skip
