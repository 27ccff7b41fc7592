"""Accidental and hostile values, and their exact comparison."""

import json
import math
import random
import string
from typing import Any

STRANGE = (
    "", "\0", "a\0b", "\ud800", "x\udfff", "\ufeff", "\U0001f600", "\u202e", "'; DROP TABLE messages; --", "{}", "null",
    "\x7f", "\u2028", "é" * 50, "../../etc/passwd", "NaN", "%s%n", "${HOME}",
)  # fmt: skip
NUMBERS: tuple[Any, ...] = (
    0, -1, 1, 2**31, -(2**31), 2**53, 2**53 + 1, 2**63 - 1, -(2**63), 2**63, 2**64 - 1, 2**64, 2**70, -(2**70),
    0.1, -0.0, 1e308, 5e-324, 1e400, math.nan, math.inf, -math.inf, True, False, None,
)  # fmt: skip
DEPTHS = (1, 2, 5, 127, 128, 129, 500, 1500)
LIMIT = 20_000
"""Bytes that the bus of these tests takes: small, so that its edge is met often."""


def value(chance: random.Random, depth: int = 3) -> Any:
    """Any value."""
    kind = chance.randrange(12)
    if kind == 0:
        return nested(chance.choice(DEPTHS), chance)
    if kind == 1:
        # Around the limit, with the quotes.
        return "x" * (LIMIT + chance.randint(-4, 2))
    if kind == 2:
        return chance.choice((b"bytes", {1, 2}, object(), 1j, {1: 2}, {None: 1}, value, ...))
    if kind in {3, 4}:
        return chance.choice(NUMBERS)
    if kind in {5, 6} or depth == 0:
        return text(chance)
    if kind in {7, 8}:
        return [value(chance, depth - 1) for _ in range(chance.randrange(5))]
    return {text(chance): value(chance, depth - 1) for _ in range(chance.randrange(5))}


def text(chance: random.Random) -> str:
    if chance.random() < 0.4:
        return chance.choice(STRANGE)
    if chance.random() < 0.2:
        return "".join(chr(chance.randrange(0x110000)) for _ in range(chance.randrange(12)))
    return "".join(chance.choices(string.printable, k=chance.randrange(40)))


def nested(depth: int, chance: random.Random) -> Any:
    found: Any = chance.choice((1, "x", None))
    for _ in range(depth):
        found = [found] if chance.random() < 0.5 else {"k": found}
    return found


def written(chance: random.Random) -> str:
    """Text that a person may type as JSON: valid, nearly valid, or anything."""
    kind = chance.randrange(4)
    if kind == 0:
        return text(chance)
    try:
        typed = json.dumps(value(chance), ensure_ascii=chance.random() < 0.5)
    except (TypeError, ValueError, RecursionError):
        return text(chance)
    if kind == 1 and typed:
        place = chance.randrange(len(typed))
        typed = (
            typed[:place] + chance.choice((*STRANGE, "}", "[", '"', ",", "\\")) + typed[place + chance.randrange(3) :]
        )
    return typed


def same(one: Any, other: Any) -> bool:
    """Return True if two values are the same to the last bit."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return repr(one) == repr(other) if isinstance(one, float) else bool(one == other)
