"""Shorthands for checking one value against one schema."""

from __future__ import annotations

from typing import Any

from agentbus.core.jsonschema import compiled, schema_text


def violation(schema: dict[str, Any], value: Any) -> tuple[str, str] | None:
    return compiled(schema_text(schema, "example")).violation(value)


def matches(schema: dict[str, Any], value: Any) -> bool:
    return violation(schema, value) is None
