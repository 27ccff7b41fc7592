"""The description of an error that other programs receive: code, message, fix and facts; and its HTTP status."""

from __future__ import annotations

from math import ceil
from typing import Any

import msgspec

from agentbus.errors import AgentBusError

_MAX_CHARACTERS = 2000
_MAX_FACTS = 20_000
"""Characters of JSON that the facts of a problem may have."""
RETRY_AFTER = 1
"""Seconds after which a refused or failed request is worth another attempt, unless the error knows better."""


class Problem(msgspec.Struct, frozen=True):
    """An error as a program reads it: a stable code, a message, and the fix or None."""

    code: str
    message: str
    fix: str | None


class HTTPProblem(msgspec.Struct, frozen=True):
    """An error as an HTTP client reads it (RFC 9457): ``code`` is stable, ``detail`` says what happened, ``fix`` says
    what to do, ``facts`` are the values that the message is made of."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    fix: str | None = None
    facts: dict[str, Any] = {}


def describe_error(error: AgentBusError, *, for_shell: bool = False) -> Problem:
    """Return the description of an error, with the fix for the API, or with ``for_shell`` for the command line."""
    fix = error.shell_fix if for_shell else error.fix
    return Problem(error.code, _printable(str(error.args[0])), None if fix is None else _printable(fix))


def describe_for_http(error: AgentBusError) -> HTTPProblem:
    """Return the problem that an HTTP response carries, with the fix for the command line: its words are those of the
    routes, and a client may be written in any language.

    >>> from agentbus.errors import UnknownTask
    >>> found = describe_for_http(UnknownTask(task="t-1"))
    >>> found.status, found.code, found.facts
    (404, 'unknown_task', {'task': 't-1'})
    """
    described = describe_error(error, for_shell=True)
    return HTTPProblem(
        type=f"urn:agentbus:problem:{described.code}",
        title=described.code.replace("_", " "),
        status=http_status(error),
        detail=described.message,
        code=described.code,
        fix=described.fix,
        facts=_plain_facts(error.facts),
    )


def http_status(error: AgentBusError) -> int:
    """Return the HTTP status of an error: the one mapping, for every route.

    >>> from agentbus.errors import LeaseLost, QueueFull
    >>> http_status(LeaseLost(message_id="m-7")), http_status(QueueFull(address="pool:p"))
    (409, 429)
    """
    own = getattr(error, "http_status", None)
    if own is not None:
        # An error of the HTTP interface itself.
        return int(own)
    from agentbus import errors

    # The first match counts: a subclass before its base.
    statuses: tuple[tuple[type[AgentBusError] | tuple[type[AgentBusError], ...], int], ...] = (
        ((errors.PayloadTooLarge, errors.SnapshotTooLarge), 413),
        (errors.NotAnOperator, 403),
        (errors.NotRecipient, 403),
        (errors.InvalidInput, 422),
        (errors.NotFound, 404),
        (errors.QuotaExceeded, 429),
        (errors.Conflict, 409),
        ((errors.RequestFailed, errors.TaskFailure), 409),
        (errors.BusClosed, 503),
        (errors.Misuse, 409),
        ((errors.BackupFailed, errors.FormatRefused), 409),
        (errors.NotWritable, 403),
        (errors.NotADatabase, 500),
        (errors.StoreError, 503),
    )
    return next((status for kind, status in statuses if isinstance(error, kind)), 500)


def retry_after(error: AgentBusError) -> int | None:
    """Return the seconds after which the same request is worth another attempt; None if it is not."""
    if http_status(error) not in {429, 503}:
        return None
    wait = error.facts.get("wait")
    return max(RETRY_AFTER, ceil(wait)) if isinstance(wait, int | float) else RETRY_AFTER


def _plain_facts(facts: dict[str, Any]) -> dict[str, Any]:
    """Return the facts as JSON that every client can read; those that are too long are left out."""
    found: dict[str, Any] = {}
    left = _MAX_FACTS
    for name, value in facts.items():
        try:
            encoded = msgspec.json.encode(_cleaned(value), enc_hook=str)
        except (TypeError, ValueError, RecursionError, OverflowError):
            continue
        left -= len(encoded)
        if left < 0:
            break
        found[name] = msgspec.json.decode(encoded)
    return found


def _cleaned(value: Any) -> Any:
    return _printable(value) if isinstance(value, str) else value


def _printable(text: str) -> str:
    """Return a text of bounded length that every encoding of Unicode can represent."""
    shown = text if len(text) <= _MAX_CHARACTERS else f"{text[:_MAX_CHARACTERS]}… ({len(text)} characters)"
    return shown.encode(errors="backslashreplace").decode()
