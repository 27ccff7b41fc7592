"""The limits of one file and of one server, from the results of ``benchmarks.scale``: a table for docs/scaling.md."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.report import RATE, shown, table
from benchmarks.scale import SIZES, SUITE
from benchmarks.workloads import clients, costs, kept, vacuum
from benchmarks.writers import FAIRNESS, WAIT, counted
from benchmarks.writers import RATE as SENDS

HEARTBEAT = 5
"""Seconds between two heartbeats of a process, by default."""
WAITING = 1000
Found = dict[str, Any]


def doubts(found: Found) -> list[str]:
    """Return the reasons not to publish a run of scale."""
    suite = found["suites"]["scale"]
    reasons = [*found["doubts"], *(["it was quick"] if found["quick"] else [])]
    if missing := [
        one for one in SUITE.choices if one not in suite["seconds"] or f"scale.{one}" in found["unmeasured"]
    ]:
        reasons.append(f"without {', '.join(missing)}")
    if reduced := [name for name, given in _given(found).items() if given < SIZES[name].default]:
        reasons.append(f"with a smaller number of {', '.join(reduced)}")
    return reasons + ([] if suite["sound"] else ["scale failed"])


def sizes(found: Found) -> str:
    """Return the sizes of a run as a sentence, and what makes it doubtful."""
    text = ", ".join(f"{name} {given:,.10g}" for name, given in _given(found).items())
    return " ".join([f"Sizes: {text}.", *(f"**Doubtful: {one}.**" for one in doubts(found))])


def limits(results: list[Found]) -> str:
    """Return the limits of a file and of a server as two tables."""
    parts = []
    for title, rows in (("one SQLite file", [*_file(results)]), ("one PostgreSQL server", [*_server(results)])):
        if rows:
            parts.append(table((title, "measured"), rows))
    return "\n\n".join(parts)


def _file(results: list[Found]) -> Iterator[tuple[str, str]]:
    of = {one["workload"]: one for one in results if one["unit"] == SENDS}
    counts = sorted(map(int, of))
    for count in dict.fromkeys((*counts[:1], *counts[-1:])):
        yield f"sends a second, durable to disk, {counted(count)}", shown(of[str(count)]["median"])
    for unit, name in ((WAIT, "longest wait of a send, s"), (FAIRNESS, "fairness (Jain's index)")):
        for one in results:
            if counts and one["unit"] == unit and one["workload"] == str(counts[-1]):
                yield f"{name}, {counts[-1]} processes", shown(one["median"])
    large = [one for one in results if one["workload"] == kept.FILE and not one["contestant"].startswith("few")]
    yield from _calls(results, kept.FILE, large)
    yield from _costs(results, "SQLite")


def _server(results: list[Found]) -> Iterator[tuple[str, str]]:
    rates = [one for one in results if one["unit"] == RATE and one["workload"].startswith(f"{clients.WORKLOAD}-")]
    if rates:
        best = max(rates, key=lambda one: float(one["median"]))
        titles = {one["workload"]: one["title"] for one in results if one["unit"] == clients.P99}
        late = next(one for one in results if one["workload"] == best["workload"] and one["unit"] == clients.P99)
        yield f"messages a second at best, {titles[best['workload']]}", shown(best["median"])
        yield "p99 of send, receive and acknowledgement then, ms", shown(late["median"])
    for one in results:
        if one["workload"].startswith("waiting: "):
            yield f"{one['title']}, {one['unit']}", shown(one["median"])
    large = [one for one in results if one["workload"] == kept.KEPT and one["contestant"] == "kept"]
    yield from _calls(results, kept.KEPT, large)
    load = [one for one in results if one["workload"] == vacuum.WORKLOAD and one["unit"] == RATE]
    if load:
        yield "messages a second with retention running", shown(load[0]["median"])
    for one in results:
        if one["workload"].startswith(f"{vacuum.WORKLOAD}: "):
            yield f"{one['title']}, {one['unit']}", shown(one["median"])
    yield from _costs(results, "PostgreSQL")


def _calls(results: list[Found], workload: str, large: list[Found]) -> Iterator[tuple[str, str]]:
    """Yield a send, a claim and the slowest read of the largest bus, against a small one."""
    if not large:
        return
    key = large[-1]["contestant"]
    few = "few" if workload == kept.KEPT else f"few-{key}"
    of = {(one["contestant"], one["unit"]): one for one in results if one["workload"] == workload}
    slowest = max(kept.READS, key=lambda unit: float(of[key, unit]["median"]))
    for unit in (kept.SEND, kept.CLAIM, slowest):
        call = unit.partition(", ")[2]
        now, before = (shown(of[contestant, unit]["median"]) for contestant in (key, few))
        name = f"slowest read, {call}" if unit == slowest else call
        yield f"{name}, with {large[-1]['title'].partition(': ')[2]}, ms (small bus)", f"{now} ({before})"


def _costs(results: list[Found], engine: str) -> Iterator[tuple[str, str]]:
    of = {one["contestant"]: float(one["median"]) for one in results if one["workload"] == costs.WORKLOAD}
    for term, name in costs.NAMES.items():
        if (cost := of.get(f"{engine} {term}")) is not None:
            yield f"CPU of {name}, µs", shown(cost)
    if message := of.get(f"{engine} message"):
        yield "messages for one second of CPU, by the model", shown(1e6 / message)
    if (agent := of.get(f"{engine} agent")) is not None:
        share = WAITING * agent / (HEARTBEAT * 1e6) * 100
        yield (
            f"{WAITING:,} waiting agents in one process, % of one core, by the model",
            shown(share + of[f"{engine} heartbeat"] / (HEARTBEAT * 1e6) * 100),
        )
    predicted = {
        one["unit"]: one for one in results if one["workload"] == costs.PREDICTED and one["contestant"] == engine
    }
    if predicted:
        figures = [predicted[unit]["median"] for unit in (costs.PREDICTION, costs.MEASUREMENT, costs.ERROR)]
        yield (
            "a run that the model was not fitted to: predicted, measured, error",
            (f"{figures[0]:.2f} s, {figures[1]:.2f} s, {figures[2]:+.0f} %"),
        )


def _given(found: Found) -> dict[str, float]:
    """Return the sizes of the parts that were measured."""
    settings = found["suites"]["scale"]["settings"]
    return {name: float(part[name]) for part in settings.values() for name in part if name in SIZES}
