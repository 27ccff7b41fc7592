"""Records of the access of HTTP clients."""

from __future__ import annotations

import msgspec

from agentbus.records.entities import EventRecord, MessageChange


class TokenRecord(msgspec.Struct, frozen=True):
    """A token of an HTTP client, without its secret. ``role`` is read, operate, or ``agent:<id>``; ``operator`` is the
    person who is responsible for it; ``expires`` is a wall time, or None.

    >>> [(token.id, token.role) for token in await bus.tokens.list()]                 # doctest: +SKIP
    [('t-5f2c81', 'read')]
    """

    id: str
    role: str
    operator: str
    created: int
    expires: int | None = None


class LiveChange(msgspec.Struct, frozen=True):
    """A change of the bus since the last one: events, and messages that changed, as they are now. ``missed``: more
    happened than the feed could say, so read again what you show. ``cursor`` resumes after it: the last event and
    message.

    >>> async for change in bus.live(after="120.4711"):                               # doctest: +SKIP
    ...     print(change.cursor, len(change.events), len(change.messages))
    """

    cursor: str
    events: list[EventRecord] = []
    messages: list[MessageChange] = []
    missed: bool = False


class NewToken(msgspec.Struct, frozen=True):
    """A new token. ``secret`` is shown once: the bus stores only its hash.

    >>> (await bus.tokens.create("read", operator="ada")).secret                      # doctest: +SKIP
    'ab_…'
    """

    token: TokenRecord
    secret: str
