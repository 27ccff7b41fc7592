"""Patterns are matched by an automaton and mean the same as in Python."""

from __future__ import annotations

import re

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from agentbus.core.jsonschema.linear_regex import Budget, BudgetExceeded, Pattern, UnsupportedPattern
from agentbus.core.jsonschema.validator import MAX_WORK
from tests.support.examples import examples

ATOMS = st.sampled_from(
    ["a", "b", ".", r"\d", r"\w", r"\s", r"\D", r"\W", r"\S", "[ab]", "[^a]", "[a-c1]", r"[\w-]", r"[^\d\s]", "é", "^",
     "$", r"\b", r"\B", r"\A", r"\Z", "", r"\n"]
)  # fmt: skip
REGEXES = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda two: f"(?:{two[0]}|{two[1]})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{0,2}", "{1,}", "*?", "+?", "??"])).map(
            lambda two: f"(?:{two[0]}){two[1]}"
        ),
        inner.map(lambda one: f"({one})"),
    ),
    max_leaves=6,
)


@settings(max_examples=examples(500), deadline=None)
@given(REGEXES, st.text("ab1 \né_-ß٣", max_size=6))
@example("a$", "a\n")
@example(r"a\Z", "a\n")
@example("^a", "\na")
@example("", "")
def test_a_pattern_finds_what_python_finds(pattern: str, text: str) -> None:
    # Before Python 3.14, \B is not found in an empty text, though there is no boundary.
    assume(text or r"\B" not in pattern)
    assert Pattern(pattern).search(text, Budget(MAX_WORK)) == (re.search(pattern, text) is not None)


def test_a_reused_pattern_gives_the_same_results_and_its_cache_is_bounded() -> None:
    pattern = Pattern("^[^x]*$")
    texts = [chr(0x4E00 + n) for n in range(9000)] + ["x", "ax"]
    for _ in range(2):
        assert [text for text in texts if not pattern.search(text, Budget(1000))] == ["x", "ax"]
    assert len(pattern._transitions) < 9000


def test_a_pattern_spends_its_budget() -> None:
    with pytest.raises(BudgetExceeded):
        Pattern("a").search("b" * 100_000, Budget(1000))
    with pytest.raises(UnsupportedPattern):
        Pattern("a*+")
