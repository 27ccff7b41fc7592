"""Hooks of schemathesis: no generated request waits for long."""

from __future__ import annotations

from typing import Any

import schemathesis

POLL = 0.01
"""Seconds that a generated request may wait."""
WAITS = ("/request", "/receive", "/steer", "/items/take", "/receipts", "/result")
"""Endings of the routes that wait ``timeout`` seconds."""


@schemathesis.hook  # type: ignore[untyped-decorator, unused-ignore]
def before_call(context: Any, case: Any, kwargs: dict[str, Any]) -> None:
    """Shorten a valid timeout, also where the request relies on the default."""
    if not case.operation.path.endswith(WAITS):
        return
    fields = case.query if case.operation.method.upper() == "GET" else case.body
    if not isinstance(fields, dict):
        return
    asked = fields.get("timeout", 60)
    if isinstance(asked, int | float) and asked > POLL:
        fields["timeout"] = POLL
