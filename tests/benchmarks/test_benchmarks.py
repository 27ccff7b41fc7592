"""The benchmarks run, report unavailable contestants and failures, and publish complete runs only."""

from __future__ import annotations

import io
import json
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import __main__ as everything
from benchmarks import plan, publish, queue
from benchmarks.command import Measure, Measured, Options, Suite, parser
from benchmarks.contestants.queues.catalog import CONTESTANTS, unavailable
from benchmarks.machine import describe
from benchmarks.measure import Case, Results, Series, interleave
from benchmarks.progress import Progress
from benchmarks.report import Check
from benchmarks.run import INTERRUPTED, run

pytestmark = pytest.mark.slow


def test_a_quick_run_writes_its_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue, "QUICK", replace(queue.QUICK, messages=3, quiet=0.05))
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


def test_every_contestant_reports_its_durability_and_availability() -> None:
    assert len({one.key for one in CONTESTANTS}) == len(CONTESTANTS)
    for one in CONTESTANTS:
        assert one.durability
        assert one.workloads
    missing = [one for one in CONTESTANTS if one.missing()]
    assert len(unavailable()) == len(missing)
    assert all(one.title in note for one, note in zip(missing, unavailable(), strict=True))


def test_the_failure_of_another_system_is_reported_and_the_others_continue() -> None:
    def fail() -> float:
        raise ConnectionError("connection refused")

    results = Results()
    theirs = results.add(Series("one", "redis", "lifecycles/s", title="Redis"))
    ours = results.add(Series("one", "agentbus", "lifecycles/s", title="agentbus"))
    interleave([Case(theirs, fail), Case(ours, lambda: 2.0)], 2, 1, Progress())
    assert ours.values == [2.0, 2.0]
    assert results.failures() == ["Redis, one: failed, ConnectionError: connection refused"]
    assert results.ratio("one", "agentbus", "redis") is None
    assert not results.has_own_failures()


def test_a_failure_of_agentbus_does_not_end_the_run_but_is_its_outcome(tmp_path: Path) -> None:
    def measure(options: Options, directory: Path, results: Results, progress: Progress) -> dict[str, Any]:
        if "broken" in options.chosen:
            raise ConnectionError("connection refused")
        series = results.add(Series("works", "agentbus", "lifecycles/s", title="agentbus"))
        interleave([Case(series, lambda: 2.0)], 1, 1, progress)
        return {}

    suite = of(measure, "broken", "works")
    given = parser("", "", suite.choices).parse_args(["--results", str(tmp_path), "--directory", str(tmp_path)])
    assert run(given, [(suite, suite.choices)]) == 1
    found = json.loads((tmp_path / "results.json").read_text())["suites"]["tried"]
    assert found["failures"] == ["tried.broken: failed, ConnectionError: connection refused"]
    assert [one["median"] for one in found["results"]] == [2.0]


def test_an_interrupted_run_keeps_its_measurements(tmp_path: Path) -> None:
    def measure(options: Options, directory: Path, results: Results, progress: Progress) -> dict[str, Any]:
        (chosen,) = options.chosen
        if chosen == "second":
            # The first part is already saved if the process is killed now.
            assert json.loads((tmp_path / "results.json").read_text())["unmeasured"] == ["tried.second", "tried.third"]
            os.kill(os.getpid(), signal.SIGTERM)
        results.add(Series(chosen, "agentbus", "lifecycles/s", [3.0], title="agentbus"))
        return {}

    suite = of(measure, "first", "second", "third")
    given = parser("", "", suite.choices).parse_args(["--results", str(tmp_path), "--directory", str(tmp_path)])
    assert run(given, [(suite, suite.choices)]) == INTERRUPTED
    found = json.loads((tmp_path / "results.json").read_text())
    assert found["unmeasured"] == ["tried.second", "tried.third"]
    assert [one["workload"] for one in found["suites"]["tried"]["results"]] == ["first"]
    assert "Not finished" in (tmp_path / "results.md").read_text()


def test_the_progress_shows_its_position_and_corrects_its_estimate() -> None:
    out, seconds = io.StringIO(), [0.0]
    progress = Progress(100.0, out, lambda: seconds[0])
    progress.part("queue.one", 20.0)
    progress.expect(2)
    progress.say("agentbus")
    seconds[0] = 40.0
    progress.part("queue.tasks", 80.0)
    progress.expect(4)
    progress.say("agentbus")
    assert out.getvalue().splitlines() == [
        "    0 s of about 100 s  [....................]  queue.one: agentbus",
        "   40 s of about 200 s  [####................]  queue.tasks: agentbus",
    ]


def test_every_part_of_a_run_has_its_time_and_their_sum_is_ten_minutes_or_one() -> None:
    parts = [
        f"{suite.name}.{part}" for suite in everything.SUITES for part in suite.parts(everything.chosen(suite, None))
    ]
    assert set(parts) == set(plan.SECONDS)
    for planned, minutes in zip(zip(*plan.SECONDS.values(), strict=True), plan.MINUTES, strict=True):
        assert 0.7 * minutes < sum(planned) / 60 < 1.1 * minutes


def test_a_missed_target_is_reported_as_missed() -> None:
    results = Results()
    for contestant, rate in (("agentbus", 900.0), ("persist-ack", 1000.0)):
        results.add(Series("one", contestant, "lifecycles/s", [rate], title=contestant))
    (found,) = (one for one in queue.checks(results) if one.value is not None)
    assert found.value == pytest.approx(0.9)
    assert found.row()[1:] == ("0.9x", "at least 1x, aim 1.2x", "**not held**")
    assert Check("idle", 0.4, " %", most=0.5).word == "held"
    assert Check("aimed at", 0.9, "x", aim=1).word == "below the aim"
    assert Check("latency", 1.3, "x", most=1.4, aim=1.1).word == "held, above the aim"
    assert Check("latency", 1.1, "x", most=1.4, aim=1.1).word == "held"


def test_a_target_without_its_reference_is_reported_as_not_measured() -> None:
    results = Results()
    results.add(Series("processes", "agentbus", "lifecycles/s", [900.0], title="agentbus"))
    (found,) = queue.checks(results)
    assert found.passed is None
    assert found.row() == ("two processes, against Redis with fsync", "–", "at least 1.4x", "not measured")


def test_publishing_writes_between_the_markers_and_names_the_faster_system(tmp_path: Path) -> None:
    results = Results()
    for contestant, rate, durability in (
        ("agentbus", 900.0, "disk: a send"), ("huey", 1800.0, "disk: a commit"), ("dirq", 9000.0, "nothing is fsynced"),
        ("raw", 9000.0, "disk: a send"),
    ):  # fmt: skip
        results.add(Series("one", contestant, "lifecycles/s", [rate], title=contestant.title(), durability=durability))
    measured = Measured(queue.SUITE, results)
    found = {
        "date": "2026-11-16", "machine": describe(tmp_path), "doubts": [], "quick": False, "unmeasured": [],
        "among": [], "seconds": 60, "suites": {"queue": measured.as_json()},
    }  # fmt: skip
    assert publish.losses(found) == [("Messages: one at a time, lifecycles/s", "900", "Huey 2x")]
    file = tmp_path / "README.md"
    file.write_text(f"before\n{publish.BEGIN}\nthe last run\n{publish.END}\nafter\n", encoding="utf-8")
    publish.write(file, publish.for_readme(found, "results"))
    publish.write(file, publish.for_benchmarks(found, f"# All\n\n## Messages\n\n{measured.markdown()}\n", "results"))
    text = file.read_text(encoding="utf-8")
    assert text.startswith(f"before\n{publish.BEGIN}\n")
    assert text.endswith(f"{publish.END}\nafter\n")
    assert "the last run" not in text
    assert "(results/latency.png)" in text
    assert "| one at a time, against huey" in text


def test_only_a_complete_run_is_published() -> None:
    suites: dict[str, Any] = {}
    for part in plan.SECONDS:
        suite, _, name = part.partition(".")
        suites.setdefault(suite, {"seconds": {}, "sound": True})["seconds"][name] = 1.0
    whole = {"doubts": [], "quick": False, "unmeasured": [], "among": [], "suites": suites}
    assert publish.doubts(whole) == []
    assert publish.doubts({**whole, "quick": True, "unmeasured": ["cli.start"]}) == [
        "it was quick", "without cli.start",
    ]  # fmt: skip
    assert publish.doubts({**whole, "among": ["redis"]}) == ["only among redis"]
    failed = {**suites, "queue": {**suites["queue"], "sound": False}}
    assert publish.doubts({**whole, "suites": failed}) == ["queue failed"]
    without = {name: suite for name, suite in suites.items() if name != "tasks"}
    assert publish.doubts({**whole, "suites": without}) == ["without tasks.steps, tasks.one, tasks.resume"]


def test_the_documents_have_markers_for_published_results() -> None:
    for name in ("README.md", "benchmarks/README.md", "docs/scaling.md"):
        file = publish.ROOT / name
        text = file.read_text(encoding="utf-8")
        assert text.count(publish.BEGIN) == text.count(publish.END) == 1


def of(measure: Measure, *choices: str) -> Suite:
    """Return a suite of the given measurement."""
    return Suite(
        name="tried", title="Tried", about="", choices=choices, rate="lifecycles/s",
        titles={one: one for one in choices}, notes=lambda: [], measure=measure, checks=lambda _: [],
    )  # fmt: skip
