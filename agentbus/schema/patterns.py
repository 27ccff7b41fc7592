"""Regular expressions that never take long: matched by an automaton, in time linear in the text.

Python's own matcher tries alternatives one after the other; some harmless-looking patterns take it longer than the age
of the universe for a text of 60 characters. A pattern is read as Python reads it, and means the same. What an
automaton cannot do (look-around, back references, possessive repeats) and flags are refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any, TypeAlias

from agentbus.schema.work import Work

MAX_PATTERN = 1000
"""Characters of a pattern."""
MOST_STATES = 1000
"""States of its automaton; a repeat of so many times has as many copies of what is repeated."""

_MOST_REMEMBERED = 4096
_CHARACTERS_PER_STEP = 8

# Not a public module, though it has been there in every version of Python: a test fails should it move.
_parser: Any = import_module("re._parser")
_MANY = int(_parser.MAXREPEAT)

Test: TypeAlias = Callable[[str], bool]
State: TypeAlias = tuple[str, Any, int]
"""Its kind, what it needs (a test of the next character, a name of a place, other states), and the state after it."""

_END = 0
_START, _WORD, _OTHER = range(3)


class Unsupported(ValueError):
    """A pattern that is wrong, or that cannot be matched in linear time."""


class Pattern:
    """A compiled pattern.

    >>> Pattern("^(a+)+$").search("a" * 60 + "b", Work(10_000))
    False
    """

    def __init__(self, text: str) -> None:
        if len(text) > MAX_PATTERN:
            raise Unsupported(f"a pattern may have {MAX_PATTERN} characters")
        try:
            tree = _parser.parse(text)
        except (re.error, OverflowError, RecursionError) as error:
            raise Unsupported(f"the pattern cannot be read: {error}") from None
        if tree.state.flags != re.UNICODE:
            raise Unsupported("a pattern may have no flags")
        self._states: list[State] = [("end", None, _END)]
        self._copies = 0
        self._first = frozenset([self._sequence(tree, _END)])
        self._remembered: dict[tuple[Any, ...], frozenset[int] | None] = {}

    def search(self, text: str, work: Work) -> bool:
        """Whether the pattern is anywhere in the text."""
        work.spend(1 + len(text) // _CHARACTERS_PER_STEP)
        current = self._first
        remembered = self._remembered
        before = _START
        last = len(text) - 1
        for index, char in enumerate(text):
            key = (current, before, char, index == last)
            if key in remembered:
                following = remembered[key]
            else:
                following = self._step(current, before, char, index == last, work)
                if len(remembered) >= _MOST_REMEMBERED:
                    remembered.clear()
                remembered[key] = following
            if following is None:
                return True
            current = following
            before = _WORD if _is_word(char) else _OTHER
        return self._step(current, before, "", True, work) is None

    def _step(self, current: frozenset[int], before: int, char: str, last: bool, work: Work) -> frozenset[int] | None:
        """The states after one more character (none at the end of the text); None if the pattern was found."""
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
        waiting = list(current)
        following = set(self._first)
        while waiting:
            number = waiting.pop()
            if number in seen:
                continue
            seen.add(number)
            kind, need, after = self._states[number]
            if kind == "end":
                return None
            if kind == "any of":
                waiting.extend(need)
            elif kind == "at":
                if here[need]:
                    waiting.append(after)
            elif char and need(char):
                following.add(after)
        work.spend(len(seen))
        return frozenset(following)

    # From the tree of the pattern to states, from the last to the first.

    def _add(self, kind: str, need: Any, after: int) -> int:
        if len(self._states) >= MOST_STATES:
            raise Unsupported(f"the pattern is too large: more than {MOST_STATES} states")
        self._states.append((kind, need, after))
        return len(self._states) - 1

    def _sequence(self, items: Iterable[tuple[Any, Any]], after: int) -> int:
        for operator, argument in reversed(list(items)):
            after = self._item(str(operator), argument, after)
        return after

    def _item(self, operator: str, argument: Any, after: int) -> int:
        if operator in {"MAX_REPEAT", "MIN_REPEAT"}:
            least, most, items = argument
            return self._repeat(least, most, items, after)
        if operator == "BRANCH":
            return self._add("any of", [self._sequence(branch, after) for branch in argument[1]], after)
        if operator == "SUBPATTERN":
            _, added, removed, items = argument
            if added or removed:
                raise Unsupported("a pattern may have no flags")
            return self._sequence(items, after)
        if operator == "AT":
            return self._add("at", str(argument), after)
        test = _test(operator, argument)
        if test is None:
            raise Unsupported(f"a pattern may not have {operator.lower().replace('_', ' ')}")
        return self._add("character", test, after)

    def _repeat(self, least: int, most: int, items: Any, after: int) -> int:
        self._copies += least if most == _MANY else most
        if self._copies > 10 * MOST_STATES:
            # Also of what has no states: nothing, repeated often enough, would take for ever too.
            raise Unsupported("the pattern repeats something too often")
        if most == _MANY:
            again = self._add("any of", [after], after)
            self._states[again][1].append(self._sequence(items, again))
            after = again
        else:
            end = after
            for _ in range(most - least):
                after = self._add("any of", [self._sequence(items, after), end], end)
        for _ in range(least):
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
    """Which characters fit, or None for what is no test of a character."""
    if operator == "LITERAL":
        return chr(argument).__eq__
    if operator == "NOT_LITERAL":
        return chr(argument).__ne__
    if operator == "ANY":
        return "\n".__ne__
    if operator == "IN":
        return _one_of(argument)
    return None


def _one_of(items: list[tuple[Any, Any]]) -> Test:
    negated = str(items[0][0]) == "NEGATE"
    singles = {chr(argument) for operator, argument in items if str(operator) == "LITERAL"}
    ranges = [(chr(low), chr(high)) for operator, (low, high) in _of_kind(items, "RANGE")]
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
