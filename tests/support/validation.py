"""The validator of ours, in short."""

from __future__ import annotations

from typing import Any

from agentbus.schema import compiled, schema_text


def problem(schema: dict[str, Any], value: Any) -> tuple[str, str] | None:
    return compiled(schema_text(schema, "example")).problem(value)


def fits(schema: dict[str, Any], value: Any) -> bool:
    return problem(schema, value) is None
