"""Match regular expressions in time linear in the text, within a budget of steps.

Python's matcher backtracks: some harmless-looking patterns take it exponential time on a text of 60 characters. Here a
pattern is parsed by Python, has the same meaning, and is matched by an automaton. Constructs that an automaton cannot
match (look-around, back references, possessive repeats) and flags are refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any, TypeAlias

MAX_PATTERN = 1000
"""Characters of a pattern."""
MAX_STATES = 1000
"""States of its automaton; a counted repeat has that number of copies of the repeated part."""

_MAX_CACHED = 4096
_CHARACTERS_PER_STEP = 8

# A private module that every version of Python has; a test fails if it moves.
_parser: Any = import_module("re._parser")
_UNBOUNDED = int(_parser.MAXREPEAT)

Test: TypeAlias = Callable[[str], bool]
State: TypeAlias = tuple[str, Any, int]
"""The kind, its argument (a test of the next character, the name of a position, other states), the next state."""

_END = 0
_START, _WORD, _OTHER = range(3)


class Budget:
    """The number of steps that remain. Nested alternatives can multiply work without bound."""

    __slots__ = ("left",)

    def __init__(self, left: int) -> None:
        self.left = left

    def spend(self, steps: int) -> None:
        self.left -= steps
        if self.left < 0:
            raise BudgetExceeded("takes too much work to be checked against its schema")


class BudgetExceeded(Exception):
    """The value cannot be checked within the budget."""


class UnsupportedPattern(ValueError):
    """The pattern is malformed, or cannot be matched in linear time."""


class Pattern:
    """A compiled pattern.

    >>> Pattern("^(a+)+$").search("a" * 60 + "b", Budget(10_000))
    False
    """

    def __init__(self, text: str) -> None:
        if len(text) > MAX_PATTERN:
            raise UnsupportedPattern(f"a pattern may have at most {MAX_PATTERN} characters")
        try:
            tree = _parser.parse(text)
        except (re.error, OverflowError, RecursionError) as error:
            raise UnsupportedPattern(f"invalid pattern: {error}") from None
        if tree.state.flags != re.UNICODE:
            raise UnsupportedPattern("flags are not supported in a pattern")
        self._states: list[State] = [("end", None, _END)]
        self._copies = 0
        self._first = frozenset([self._sequence(tree, _END)])
        self._transitions: dict[tuple[Any, ...], frozenset[int] | None] = {}

    @property
    def size(self) -> int:
        """Return the cost of compiling the pattern: its states and the copies made for repeats."""
        return len(self._states) + self._copies

    def search(self, text: str, budget: Budget) -> bool:
        """Return True if the pattern occurs in the text."""
        budget.spend(1 + len(text) // _CHARACTERS_PER_STEP)
        current = self._first
        transitions = self._transitions
        before = _START
        last = len(text) - 1
        for index, char in enumerate(text):
            key = (current, before, char, index == last)
            if key in transitions:
                following = transitions[key]
            else:
                following = self._step(current, before, char, index == last, budget)
                if len(transitions) >= _MAX_CACHED:
                    transitions.clear()
                transitions[key] = following
            if following is None:
                return True
            current = following
            before = _WORD if _is_word(char) else _OTHER
        return self._step(current, before, "", True, budget) is None

    def _step(
        self, current: frozenset[int], before: int, char: str, last: bool, budget: Budget
    ) -> frozenset[int] | None:
        """Return the states after one more character ("" at the end of the text); None on a match."""
        boundary = (before == _WORD) != (bool(char) and _is_word(char))
        here = {
            "AT_BEGINNING": before == _START,
            "AT_BEGINNING_STRING": before == _START,
            "AT_END": not char or (last and char == "\n"),
            "AT_END_STRING": not char,
            "AT_BOUNDARY": boundary,
            "AT_NON_BOUNDARY": not boundary,
        }
        seen: set[int] = set()
        pending = list(current)
        following = set(self._first)
        while pending:
            number = pending.pop()
            if number in seen:
                continue
            seen.add(number)
            kind, argument, after = self._states[number]
            if kind == "end":
                return None
            if kind == "any of":
                pending.extend(argument)
            elif kind == "at":
                if here[argument]:
                    pending.append(after)
            elif char and argument(char):
                following.add(after)
        budget.spend(len(seen))
        return frozenset(following)

    # From the syntax tree to states, from the last state to the first.

    def _add(self, kind: str, argument: Any, after: int) -> int:
        if len(self._states) >= MAX_STATES:
            raise UnsupportedPattern(f"the pattern is too large: more than {MAX_STATES} states")
        self._states.append((kind, argument, after))
        return len(self._states) - 1

    def _sequence(self, items: Iterable[tuple[Any, Any]], after: int) -> int:
        for operator, argument in reversed(list(items)):
            after = self._item(str(operator), argument, after)
        return after

    def _item(self, operator: str, argument: Any, after: int) -> int:
        if operator in {"MAX_REPEAT", "MIN_REPEAT"}:
            low, high, items = argument
            return self._repeat(low, high, items, after)
        if operator == "BRANCH":
            return self._add("any of", [self._sequence(branch, after) for branch in argument[1]], after)
        if operator == "SUBPATTERN":
            _, added, removed, items = argument
            if added or removed:
                raise UnsupportedPattern("flags are not supported in a pattern")
            return self._sequence(items, after)
        if operator == "AT":
            return self._add("at", str(argument), after)
        test = _test(operator, argument)
        if test is None:
            raise UnsupportedPattern(f"{operator.lower().replace('_', ' ')} is not supported in a pattern")
        return self._add("character", test, after)

    def _repeat(self, low: int, high: int, items: Any, after: int) -> int:
        self._copies += low if high == _UNBOUNDED else high
        if self._copies > 10 * MAX_STATES:
            # Bounds empty groups too: they add no states, and repeating them still takes time.
            raise UnsupportedPattern("the pattern has too many repeats")
        if high == _UNBOUNDED:
            again = self._add("any of", [after], after)
            self._states[again][1].append(self._sequence(items, again))
            after = again
        else:
            end = after
            for _ in range(high - low):
                after = self._add("any of", [self._sequence(items, after), end], end)
        for _ in range(low):
            after = self._sequence(items, after)
        return after


def _is_word(char: str) -> bool:
    return char.isalnum() or char == "_"


_CATEGORIES: dict[str, Test] = {
    "CATEGORY_DIGIT": str.isdecimal,
    "CATEGORY_NOT_DIGIT": lambda char: not char.isdecimal(),
    "CATEGORY_SPACE": str.isspace,
    "CATEGORY_NOT_SPACE": lambda char: not char.isspace(),
    "CATEGORY_WORD": _is_word,
    "CATEGORY_NOT_WORD": lambda char: not _is_word(char),
}


def _test(operator: str, argument: Any) -> Test | None:
    """Return the test of one character that an operator stands for, or None if it is none."""
    if operator == "LITERAL":
        return chr(argument).__eq__
    if operator == "NOT_LITERAL":
        return chr(argument).__ne__
    if operator == "ANY":
        return "\n".__ne__
    if operator == "IN":
        return _character_class(argument)
    return None


def _character_class(items: list[tuple[Any, Any]]) -> Test:
    negated = str(items[0][0]) == "NEGATE"
    singles = {chr(argument) for operator, argument in items if str(operator) == "LITERAL"}
    ranges = [(chr(low), chr(high)) for _, (low, high) in _of_kind(items, "RANGE")]
    categories = [_CATEGORIES[str(name)] for _, name in _of_kind(items, "CATEGORY")]

    def test(char: str) -> bool:
        found = (
            char in singles
            or any(low <= char <= high for low, high in ranges)
            or any(category(char) for category in categories)
        )
        return found != negated

    return test


def _of_kind(items: list[tuple[Any, Any]], kind: str) -> list[tuple[Any, Any]]:
    return [item for item in items if str(item[0]) == kind]
