"""Records of notifications out of the bus."""

from __future__ import annotations

from typing import Any

import msgspec


class Notification(msgspec.Struct, frozen=True, kw_only=True):
    """A notification as a webhook receives it and a command reads it on standard input. It has names and ids, and no
    payload: ``question`` (what an approval shows) and ``error`` only if the user's settings include them.

    ``id`` is the same for every attempt, so that a receiver can discard a repetition. ``count`` events are its cause,
    ``event`` is the last of them; ``dropped`` events before it were not notified, because too many had piled up.

    >>> notification.kind, notification.text                                          # doctest: +SKIP
    ('approval_requested', 'task deploy-7 waits for approval ship')
    """

    schema_version: int = 1
    id: str
    kind: str
    severity: str
    text: str
    at: int
    subject: str
    bus: str
    bus_id: str
    notifier: str
    event: int
    count: int = 1
    dropped: int = 0
    session: str | None = None
    workflow: str | None = None
    facts: dict[str, Any] = {}
    question: str | None = None
    error: str | None = None


class NotifierRecord(msgspec.Struct, frozen=True):
    """The progress of a notifier on this bus. ``name`` has the form owner/name. ``status`` is idle, delivering, or
    retrying (after an attempt that failed; ``due`` is the wall time of the next one). ``delivered``, ``dead`` (given
    up after the last attempt) and ``dropped`` (too many had piled up) count since ``created``.

    >>> [(one.name, one.status) for one in await bus.notifications.list()]            # doctest: +SKIP
    [('ada@laptop/ops', 'idle')]
    """

    name: str
    status: str
    delivered: int
    dead: int
    dropped: int
    attempts: int
    due: int | None
    error: str | None
    created: int
    updated: int


class NotificationAttempt(msgspec.Struct, frozen=True):
    """One attempt to deliver a notification. ``error`` is None if it was delivered; ``output`` is the start of what a
    command printed.

    >>> (await bus.notifications.test("ops")).error is None                           # doctest: +SKIP
    True
    """

    notifier: str
    id: str
    kind: str
    error: str | None = None
    output: str | None = None
