"""How a session is begun, with and without an event loop: what is asked for, checked."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from agentbus.codec import encode_metadata
from agentbus.limits import check_expected, check_name, name_or_none
from agentbus.operations.sessions import BeginRequest


def begin_request(
    operation: str,
    process: int | None,
    milestone: str | None,
    id: str | None,
    expects: Mapping[str, str] | None,
    metadata: dict[str, Any] | None,
    limit: int,
) -> BeginRequest:
    """A checked request for a session that ``process`` owns, or nobody; without an id it gets one."""
    check_name(operation, "operation")
    return BeginRequest(
        f"{operation[:115]}-{secrets.token_hex(6)}" if id is None else check_name(id, "session"),
        operation,
        process,
        name_or_none(milestone, "milestone"),
        None if expects is None else check_expected(expects),
        None if metadata is None else encode_metadata(metadata, limit),
    )
