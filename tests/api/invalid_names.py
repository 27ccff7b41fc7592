"""Invalid names."""

from __future__ import annotations

from typing import Any

BAD = ["", " ", "two words", "tab\t", "newline\n", "nul\0", "x" * 129, "ü", "a\u200bb", "\ud800", "a*b", "a\\b", "a#1"]
NOT_TEXT: list[Any] = [None, 5, True, b"bytes", ["a"], ("a",), object()]


def some(name: Any) -> Any:
    """Where None means that nothing is asked for."""
    return "" if name is None else name
