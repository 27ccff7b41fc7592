"""From a caller's arguments to a draft: everything that can be checked without the database is checked here."""

from __future__ import annotations

from typing import Any

import msgspec

from agentbus.addresses import Address, address
from agentbus.limits import (
    MAX_ATTEMPTS,
    Priority,
    check_message_id,
    check_name,
    check_range,
    check_seconds,
)
from agentbus.operations.messages import Draft
from agentbus.vocabulary import Vocabulary


def draft(
    to: str | Address,
    type: str | msgspec.Struct,
    payload: Any,
    vocabulary: Vocabulary,
    priority: int = Priority.NORMAL.value,
    delay: float | None = None,
    ttl: float | None = None,
    message_id: str | None = None,
    max_attempts: int = MAX_ATTEMPTS,
    correlation: str | None = None,
    session: str | None = None,
) -> Draft:
    """A checked draft. A Struct in place of the type is the payload as well."""
    name, content, defines = vocabulary.content(type, payload)
    return Draft(
        address(to),
        name,
        content,
        check_range(priority, "priority", 0, 9),
        check_range(max_attempts, "max_attempts", 1, 1000),
        0 if delay is None else check_seconds(delay, "delay", zero=True),
        None if ttl is None else check_seconds(ttl, "ttl"),
        None if message_id is None else check_message_id(message_id),
        None if correlation is None else check_name(correlation, "correlation"),
        None,
        None if session is None else check_name(session, "session"),
        False,
        None,
        defines,
    )


OPTIONS = ("priority", "delay", "ttl", "message_id", "max_attempts", "correlation", "session")
"""What a message may be sent with, besides recipient, type and payload."""
