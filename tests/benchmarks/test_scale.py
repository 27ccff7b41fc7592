"""The benchmark of scale runs at a tiny size, and its cost model finds the costs that there are."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from benchmarks import scaling
from benchmarks.cost_model import Costs, Load, Observation, fit
from benchmarks.run import main
from benchmarks.scale import SUITE
from benchmarks.workloads.fleet import Meet, Work, fleet

pytestmark = pytest.mark.slow


def measured(tmp_path: Path, *words: str) -> dict[str, Any]:
    """Run parts of the suite; return what it wrote."""
    tiny = ["--quick", "--seconds", "0.2", "--agents", "4", "--directory", str(tmp_path), "--results", str(tmp_path)]
    assert main(SUITE, [*tiny, *words]) == 0
    found: dict[str, Any] = json.loads((tmp_path / "results.json").read_text())["suites"]["scale"]
    assert found["sound"]
    return found


@pytest.mark.parametrize(
    ("part", "workload", "unit"),
    [
        ("clients", "clients-1", "lifecycles/s"),
        ("waiting", "waiting: memory of the clients", "MB"),
        ("kept", "kept", "ms, send"),
        ("vacuum", "vacuum: messages that retention archived and deleted", "rows"),
    ],
)
def test_a_server_is_measured(tmp_path: Path, part: str, workload: str, unit: str) -> None:
    found = measured(tmp_path, "--only", part, "--clients", "1", "--waiting", "8", "--messages", "100")
    figures = [one["median"] for one in found["results"] if (one["workload"], one["unit"]) == (workload, unit)]
    assert figures
    assert min(figures) > 0
    assert found["settings"][part]["messages"] == 100


def test_a_file_is_measured_and_its_costs_predict_another_run(tmp_path: Path) -> None:
    words = [word for part in ("writers", "file", "costs") for word in ("--only", part)]
    found = measured(tmp_path, *words, "--processes", "2", "--among", "agentbus")
    units = {(one["workload"], one["contestant"], one["unit"]) for one in found["results"]}
    assert {("2", "agentbus", "sends/s"), ("2", "agentbus", "Jain's index"), ("file", "0.01", "ms, counts")} <= units
    assert {("prediction", "SQLite", unit) for unit in ("CPU s, predicted", "CPU s, measured", "% error")} <= units
    assert found["checks"][0]["name"] == "cost model, SQLite: error of the prediction"
    assert "| sends a second, durable to disk, 2 processes" in (limits := scaling.limits(found["results"]))
    assert "| messages for one second of CPU, by the model" in limits
    assert "| a run that the model was not fitted to: predicted, measured, error" in limits


async def die(number: int, meet: Meet) -> None:
    if number == 1:
        os._exit(3)
    await meet()


async def fail(number: int, meet: Meet) -> None:
    if number == 1:
        raise ConnectionError("connection refused")
    await meet()


@pytest.mark.parametrize(
    ("work", "error"), [(die, "1 of 3 processes did not answer"), (fail, "ConnectionError: connection refused")]
)
def test_the_end_of_one_process_ends_the_measurement_of_all(work: Work, error: str) -> None:
    with pytest.raises(RuntimeError, match=error), fleet(work, 3) as processes:
        processes.meet()


def test_a_run_that_is_reduced_or_incomplete_is_doubtful() -> None:
    sizes = {name: size.default for name, size in SUITE.sizes.items()}
    seconds = dict.fromkeys(SUITE.choices, 60.0)
    suite: dict[str, Any] = {"seconds": seconds, "sound": True, "settings": {"kept": sizes}}
    whole: dict[str, Any] = {"doubts": [], "quick": False, "unmeasured": [], "suites": {"scale": suite}}
    assert scaling.doubts(whole) == []
    suite["settings"] = {"kept": {**sizes, "messages": 1000}}
    assert scaling.doubts(whole) == ["with a smaller number of messages"]
    del seconds["file"]
    assert scaling.doubts({**whole, "unmeasured": ["scale.costs"]})[0] == "without file, costs"


COSTS = Costs(message=200e-6, heartbeat=1e-3, agent=5e-6)
LOADS = (Load(0, 100, 0), Load(0, 100, 50_000), Load(10_000, 10, 1000), Load(500, 50, 9000))


def test_the_costs_of_exact_observations_are_found() -> None:
    found = fit([Observation("", load, COSTS.predict(load)) for load in LOADS])
    assert found.each() == pytest.approx(COSTS.each())
    assert found.error(Observation("", LOADS[0], 0.05)) == pytest.approx(1.0)


def test_an_idle_run_counts_as_much_as_a_busy_one() -> None:
    busy = [Observation("", load, COSTS.predict(load)) for load in LOADS[2:]] * 3
    idle = Observation("", Load(0, 1, 0), COSTS.heartbeat * 1.01)
    assert fit([*busy, idle]).heartbeat == pytest.approx(COSTS.heartbeat, rel=0.02)


def test_a_cost_too_small_to_be_seen_is_zero_and_not_negative() -> None:
    free = Costs(message=200e-6, heartbeat=1e-3, agent=0.0)
    observed = [Observation("", load, free.predict(load) * (0.99 if load.agents > 10_000 else 1)) for load in LOADS]
    found = fit(observed)
    assert found.agent == 0.0
    assert found.message == pytest.approx(free.message, rel=0.02)


def test_observations_that_do_not_determine_a_cost_are_refused() -> None:
    with pytest.raises(ValueError, match="do not determine"):
        fit([Observation("", Load(0, 1, 0), 1.0)])
