"""Payloads of all kinds, for hypothesis: what JSON has, what it has not, and both."""

from __future__ import annotations

import math

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from tests.support.examples import examples

LIMIT = 1_000_000

# The same values in every run, however slow the machine.
thorough = settings(
    max_examples=examples(300), deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)

whole = st.integers(min_value=-(2**63), max_value=2**63 - 1)
text = st.text(st.characters(exclude_categories=["Cs"]))
good = st.recursive(
    st.none() | st.booleans() | whole | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4),
    max_leaves=20,
)
bad = st.one_of(
    st.sampled_from([math.nan, math.inf, -math.inf, "\ud800", "a\udfff", 2**64, -(2**63) - 1, 10**400]),
    st.dictionaries(st.integers() | st.floats() | st.booleans() | st.none(), st.none(), min_size=1, max_size=2),
    st.dictionaries(st.sampled_from(["\ud800", "a\udc00b"]), st.none(), min_size=1),
    st.sampled_from([object(), 1j, ..., type]),
)
anything = st.recursive(
    good | bad,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(text, inner, max_size=3)
        | st.tuples(inner)
        | st.tuples(inner, inner)
    ),
    max_leaves=12,
)
