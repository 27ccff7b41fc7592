"""The benchmarks run, tell what they left out, and are honest about what they found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import __main__ as everything
from benchmarks import queue
from benchmarks.contestants.queues.everyone import EVERYONE, left_out
from benchmarks.measure import Case, Progress, Results, Series, interleave
from benchmarks.report import Check, markdown

pytestmark = pytest.mark.slow


def test_a_quick_run_is_written_down(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = tmp_path / "results"
    asked = ["--quick", "--directory", str(tmp_path), "--results", str(results)]
    asked += [word for one in ("queue.one", "queue.idle", "writers.2", "registry.lookup-100")
              for word in ("--only", one)]  # fmt: skip
    asked += [word for one in ("agentbus", "files") for word in ("--among", one)]
    assert everything.main(asked) == 0
    found = json.loads((results / "results.json").read_text())
    assert set(found["suites"]) == {"queue", "writers", "registry"}
    measured = {(one["workload"], one["contestant"]) for one in found["suites"]["queue"]["results"]}
    assert {("one", "agentbus"), ("one", "files"), ("idle", "agentbus")} <= measured
    assert all(one["median"] > 0 for one in found["suites"]["queue"]["results"] if one["unit"] == "lifecycles/s")
    assert found["machine"]["cores"] > 0
    assert "| agentbus " in capsys.readouterr().out
    assert not list(tmp_path.glob("agentbus-bench-*"))


def test_everyone_says_how_durable_they_are_and_whether_they_are_there() -> None:
    assert len({one.key for one in EVERYONE}) == len(EVERYONE)
    for one in EVERYONE:
        assert one.durability
        assert one.takes
    missing = [one for one in EVERYONE if one.missing()]
    assert len(left_out()) == len(missing)
    assert all(one.title in note for one, note in zip(missing, left_out(), strict=True))


def test_somebody_elses_failure_is_told_and_the_others_go_on() -> None:
    def fail() -> float:
        raise ConnectionError("nobody there")

    results = Results()
    theirs = results.add(Series("one", "redis", "lifecycles/s", title="Redis"))
    ours = results.add(Series("one", "agentbus", "lifecycles/s", title="agentbus"))
    interleave([Case(theirs, fail), Case(ours, lambda: 2.0)], 2, 1, Progress())
    assert ours.values == [2.0, 2.0]
    assert results.failures() == ["Redis, one: failed, ConnectionError: nobody there"]
    assert results.ratio("one", "agentbus", "redis") is None
    with pytest.raises(ConnectionError):
        interleave([Case(ours, fail)], 1, 1, Progress())


def test_a_promise_that_is_not_held_is_told_as_such() -> None:
    results = Results()
    for contestant, rate in (("agentbus", 900.0), ("persist-ack", 1000.0)):
        results.add(Series("one", contestant, "lifecycles/s", [rate], title=contestant))
    (found,) = queue.checks(results)
    assert found.value == pytest.approx(0.9)
    assert "**FAIL**" in markdown(results, [found], {"one": "one at a time"}, [])
    assert Check("idle", 0.4, " %", most=0.5).passed
