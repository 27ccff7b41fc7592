"""The guard of the benchmarks: what it notices, and what it forgives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agentbus.engine import queries
from agentbus.engine.sqlite import inspection
from benchmarks.guard import RATIOS, SLICES, Guard, Ratio, Run, guarded
from benchmarks.progress import Progress

HALF = Ratio("half as fast as the other", "ours", "theirs", 0.5)


def side(rates: Iterator[float]) -> Run:
    return lambda _: next(rates)


def always(rate: float) -> Iterator[float]:
    while True:
        yield rate


def seen(directory: Path, ours: Iterator[float], theirs: Iterator[float], limit: float) -> float:
    guard = Guard(directory, {"ours": side(ours), "theirs": side(theirs)})
    guard.measure([HALF], Progress(), limit)
    return guard.value(HALF)


def test_what_is_fast_enough_is_not_measured_again(tmp_path: Path) -> None:
    assert seen(tmp_path, iter([60.0] * SLICES), iter([100.0] * SLICES), limit=600) == 0.6


def test_slices_that_a_neighbour_disturbed_do_not_count(tmp_path: Path) -> None:
    assert seen(tmp_path, iter([5.0] * SLICES + [60.0]), always(100.0), limit=600) == 0.6


def test_what_stays_slow_has_failed_when_the_time_is_up(tmp_path: Path) -> None:
    assert seen(tmp_path, always(5.0), always(100.0), limit=0.2) == 0.05


def test_a_floor_is_not_passed_because_the_other_side_was_slow_once(tmp_path: Path) -> None:
    assert seen(tmp_path, always(5.0), iter([100.0, *[5.0] * (SLICES - 1)]), limit=0) == 0.05


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    seen(tmp_path, always(60.0), always(100.0), limit=0)
    assert list(tmp_path.iterdir()) == []


def test_looks_that_read_all_named_sql_again_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it happened once, unseen: the cache of the named queries was lost."""
    answered: Callable[..., Any] = inspection.answered

    def without_the_cache(*arguments: Any) -> Any:
        queries.load.__wrapped__("sqlite")
        return answered(*arguments)

    monkeypatch.setattr("agentbus.engine.sqlite.engine.answered", without_the_cache)
    looks = [ratio for ratio in RATIOS if ratio.theirs == "get, raw"]
    found = guarded(looks, limit=0)
    assert len(found) == 5
    assert all(value < ratio.floor / 3 for ratio, value in found.items()), found
