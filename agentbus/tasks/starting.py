"""How a task is begun, with and without an event loop: what is asked for, checked."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from agentbus.codec import decode, encode
from agentbus.errors import InvalidInput
from agentbus.limits import check_name, check_range, check_seconds, check_text, name_or_none
from agentbus.operations.tasks import MAX_LOSSES, StartRequest
from agentbus.tasks.workflow import Workflow, name_of

MAX_RESTARTS = 1000
MOST_LOSSES = 1000
MAX_NAME = 200
_CUT = 110


def start_request(
    workflow: Workflow[..., Any] | str,
    arguments: Sequence[Any],
    keywords: Mapping[str, Any] | None,
    limit: int,
    *,
    id: str | None,
    name: str | None,
    session: str | None,
    auto: bool,
    context: Mapping[str, Any] | None,
    settings: Mapping[str, Any] | None,
    restarts: int,
    backoff: float,
    delay: float | None,
    max_losses: int = MAX_LOSSES,
    parent: str | None = None,
    by: str | None = None,
) -> StartRequest:
    """A checked request for a task; without an id it gets one."""
    title = name_of(workflow)
    given = dict(keywords or {})
    encoded = encode({"arguments": list(arguments), "keywords": given}, limit)
    if isinstance(workflow, Workflow):
        workflow.check_arguments(**decode(encoded[0]))
    return StartRequest(
        f"{title[:_CUT]}-{secrets.token_hex(6)}" if id is None else check_name(id, "task"),
        title,
        title if name is None else check_text(name, "name", MAX_NAME, low=1),
        encoded,
        name_or_none(session, "session"),
        check_switch(auto, "auto"),
        encode_notes(context or {}, "context", limit),
        encode_notes(settings or {}, "settings", limit),
        check_range(restarts, "restarts", 0, MAX_RESTARTS),
        check_seconds(backoff, "backoff", zero=True),
        0 if delay is None else check_seconds(delay, "delay", zero=True),
        parent,
        by,
        check_range(max_losses, "max_losses", 1, MOST_LOSSES),
    )


def encode_notes(value: Mapping[str, Any], what: str, limit: int) -> str:
    """JSON of what people wish a task to know."""
    if not isinstance(value, Mapping):
        raise InvalidInput(reason=f"{what} must be a dict")
    return encode(dict(value), limit)[0]


def check_switch(value: object, what: str) -> bool:
    if not isinstance(value, bool):
        raise InvalidInput(reason=f"{what} must be True or False")
    return value
