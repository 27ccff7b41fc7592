"""What checks are made of: a function of the value, the work it may still take, and how deep it is."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeAlias

_identifier = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*").fullmatch
_LONGEST = 60
_MOST_KEYS = 16


class Work:
    """How many steps may still be taken. Alternatives inside alternatives can multiply without bound."""

    __slots__ = ("left",)

    def __init__(self, left: int) -> None:
        self.left = left

    def spend(self, steps: int) -> None:
        self.left -= steps
        if self.left < 0:
            raise TooMuch("takes too much work to be checked against its schema")


class TooMuch(Exception):
    """This value cannot be checked with so much work."""


class Problem:
    """Why a value does not fit, and where: the keys and positions are put in from the inside out."""

    __slots__ = ("keys", "reason")

    def __init__(self, reason: str) -> None:
        self.reason = reason
        self.keys: list[str | int] = []

    def under(self, key: str | int) -> Problem:
        self.keys.append(key)
        return self

    @property
    def place(self) -> str:
        """A JSON path.

        >>> Problem("…").under(3).under("files").under("$odd").place
        '$["$odd"].files[3]'
        """
        keys = self.keys[::-1]
        shown = "".join(_step(key) for key in keys[:_MOST_KEYS])
        return f"${shown}{'…' if len(keys) > _MOST_KEYS else ''}"


def _step(key: str | int) -> str:
    if isinstance(key, int):
        return f"[{key}]"
    short = shortened(key)
    return f".{short}" if _identifier(short) else f'["{short}"]'


def shortened(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


Check: TypeAlias = Callable[[Any, Work, int], Problem | None]


def anything(value: Any, work: Work, depth: int) -> Problem | None:
    """What fits every value."""
    return None
