"""The guard of the benchmarks detects regressions and tolerates noise."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agentbus.engine import queries
from agentbus.engine.sqlite import connection
from benchmarks.guard import RATIOS, SLICES, Guard, Ratio, Run, measure_ratios
from benchmarks.progress import Progress
from benchmarks.telemetry import hooked_functions, instructions, messages, without_hooks
from tests.support.traces import traced

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


def test_a_floor_that_is_met_is_not_measured_again(tmp_path: Path) -> None:
    assert seen(tmp_path, iter([60.0] * SLICES), iter([100.0] * SLICES), limit=600) == 0.6


def test_slices_disturbed_by_another_process_do_not_count(tmp_path: Path) -> None:
    assert seen(tmp_path, iter([5.0] * SLICES + [60.0]), always(100.0), limit=600) == 0.6


def test_a_floor_that_is_never_met_fails_when_the_time_is_up(tmp_path: Path) -> None:
    assert seen(tmp_path, always(5.0), always(100.0), limit=0.2) == 0.05


def test_a_floor_is_not_passed_because_the_reference_was_slow_once(tmp_path: Path) -> None:
    assert seen(tmp_path, always(5.0), iter([100.0, *[5.0] * (SLICES - 1)]), limit=0) == 0.05


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    seen(tmp_path, always(60.0), always(100.0), limit=0)
    assert list(tmp_path.iterdir()) == []


def test_point_reads_that_reparse_all_named_sql_are_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """A regression that happened once: the cache of the named queries was lost."""
    run_read: Callable[..., Any] = connection.run_read

    def without_the_cache(*arguments: Any) -> Any:
        queries.load.__wrapped__("sqlite")
        return run_read(*arguments)

    monkeypatch.setattr("agentbus.engine.sqlite.engine.run_read", without_the_cache)
    # Each read parses all named SQL again: short laps show it too.
    monkeypatch.setattr("benchmarks.guard.SECONDS", 0.02)
    monkeypatch.setattr("benchmarks.guard.POINT_READS", 2)
    monkeypatch.setattr("benchmarks.guard.SLICES", 1)
    looks = [ratio for ratio in RATIOS if ratio.theirs == "get, raw"]
    found = measure_ratios(looks, limit=0)
    assert len(found) == 5
    assert all(value < ratio.floor / 3 for ratio, value in found.items()), found


def test_a_hook_of_telemetry_that_does_more_than_check_is_detected() -> None:
    (ratio,) = [ratio for ratio in RATIOS if ratio.ours == "hooks"]
    with traced(None):
        assert measure_ratios([ratio], limit=0)[ratio] < ratio.floor
    assert all("tracer" not in without_hooks(one).co_names for one in hooked_functions())


def test_the_instructions_of_a_message_do_not_depend_on_the_speed_of_its_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow batch moves the next ones to the thread of the writer, where no instructions are counted."""
    found = []
    for number, seconds in enumerate((-1.0, 600.0)):
        monkeypatch.setattr("agentbus.engine.sqlite.writer._MAX_INLINE_SECONDS", seconds)
        found.append(messages(instructions, tmp_path / str(number)))
    # A millisecond that ends within a message adds or removes a few.
    assert found[0] == pytest.approx(found[1], rel=0.01)
