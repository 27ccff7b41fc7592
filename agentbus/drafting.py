"""From a caller's arguments to a draft: everything that can be checked without the database is checked here."""

from __future__ import annotations

import os
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


class Asked(msgspec.Struct, frozen=True):
    """What a reply must know of the message that it answers."""

    message_id: str
    session: str | None
    correlation: str | None
    reply_to: int | None
    expires: int | None

    def options(self, given: dict[str, Any], wall: int) -> dict[str, Any]:
        """What the reply is sent with, unless the caller says otherwise."""
        options = {"session": self.session, "correlation": self.correlation or self.message_id}
        if self.reply_to is not None and self.expires is not None:
            # Nobody waits for the reply for longer than for the request.
            options["ttl"] = max(1, self.expires - wall) / 1000  # type: ignore[assignment]
        return {**options, **given}

    def reply(self, draft: Draft) -> Draft:
        """The draft as a reply: to where the answer is waited for, and queued even for one that has ended."""
        to = draft.to if self.reply_to is None else self.reply_to
        return msgspec.structs.replace(draft, to=to, reply=True)


def correlation(message_id: object) -> str:
    """What the reply to a request is known by: the same request, sent again, must ask for the same reply."""
    if message_id is None:
        return f"r-{os.urandom(12).hex()}"
    # Imported only here: the command line should start without it.
    from hashlib import sha256

    return f"r-{sha256(str(message_id).encode()).hexdigest()[:24]}"


def backoff(attempts: int) -> float:
    """Seconds until the next attempt: doubling, capped, and spread so that failures do not come back together.

    >>> 0.5 <= backoff(1) <= 1.0 and backoff(50) <= 300.0
    True
    """
    # Imported only here: the command line should start without it.
    from random import uniform

    return min(LONGEST_RETRY, FIRST_RETRY * 2.0 ** min(attempts - 1, 30)) * uniform(0.5, 1.0)  # noqa: S311


FIRST_RETRY = 1.0
LONGEST_RETRY = 300.0
OPTIONS = ("priority", "delay", "ttl", "message_id", "max_attempts", "correlation", "session")
"""What a message may be sent with, besides recipient, type and payload."""
