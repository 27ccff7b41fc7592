"""Values that are not JSON, in all the ways that are known, and some that barely are."""

from __future__ import annotations

import math
from typing import Any

import msgspec


class Point(msgspec.Struct):
    """A payload with a type of its own."""

    x: float
    y: float = 0.0


def nested(depth: int, kind: str = "list") -> Any:
    """Return N lists, dicts, or both in turn, nested."""
    value: Any = 1
    for level in range(depth):
        as_list = kind == "list" or (kind == "mixed" and level % 2)
        value = [value] if as_list else {"k": value}
    return value


def endless() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


NOT_JSON: dict[str, Any] = {
    "nan": math.nan,
    "infinity": math.inf,
    "negative infinity": -math.inf,
    "nan in a list": [1, [math.nan]],
    "nan in a dict": {"a": {"b": math.nan}},
    "nan in a tuple": (1, math.nan),
    "nan in a set": {math.nan},
    "nan in a Struct": Point(math.nan),
    "nan in a Struct in a list": [Point(1.0), Point(1.0, math.inf)],
    "lone surrogate": "\ud800",
    "lone surrogate inside": {"a": ["x\udfffy"]},
    "lone surrogate in a key": {"\ud800": 1},
    "over 64 bits": 2**64,
    "under 64 bits": -(2**63) - 1,
    "far over 64 bits": [10**400],
    "too long to be written": {"n": 10**5000},
    "129 lists deep": nested(129, "list"),
    "129 dicts deep": nested(129, "dict"),
    "129 deep, mixed": nested(129, "mixed"),
    "100,000 deep": nested(100_000, "list"),
    "endless": endless(),
    "number as key": {1: "a"},
    "None as key": {None: "a"},
    "truth as key": {True: "a"},
    "tuple as key": {(1, 2): "a"},
    "object": object(),
    "object inside": {"a": [object()]},
    "function": len,
    "complex": 1j,
    "generator": (n for n in range(3)),
    "raw text that is no JSON": msgspec.Raw(b"NaN"),
    "raw number out of range": msgspec.Raw(b"[1e999]"),
    "raw bytes that are no text": msgspec.Raw(b'"\xff"'),
}
"""Values that no payload, state, document or checkpoint can be."""
