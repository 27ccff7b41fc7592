"""The charts of a run, as PNG and SVG: ``python -m benchmarks.charts results.json DIRECTORY``. Needs matplotlib."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.contestants.about import package
from benchmarks.machine import sentence
from benchmarks.report import RATE

matplotlib = package("matplotlib")
matplotlib.use("Agg")
pyplot = package("matplotlib.pyplot")

OURS, DURABLE, HASTY, LIMIT = "#0b6e4f", "#4c78a8", "#b9c6d8", "#8a8a8a"
"""Ourselves, those that are as durable, those that are less, and the limit."""
SHADES = {
    OURS: "agentbus", DURABLE: "fsynced", HASTY: "not fsynced, or not at once", LIMIT: "the limit: our statements alone"
}  # fmt: skip
LINES = ("#0b6e4f", "#e07b39", "#4c78a8", "#8a5fbf", "#8a8a8a")

Found = list[dict[str, Any]]


def draw(found: dict[str, Any], directory: Path) -> list[Path]:
    """All charts that the results have figures for."""
    charts: dict[str, Callable[[dict[str, Found]], Any]] = {
        "throughput": _throughput, "latency": _latency, "growth": _growth, "writers": _writers, "registry": _registry,
    }  # fmt: skip
    results = {name: suite["results"] for name, suite in found["suites"].items()}
    written: list[Path] = []
    style = {"svg.hashsalt": "agentbus", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False}
    with pyplot.rc_context(style):
        for name, chart in charts.items():
            figure = chart(results)
            if figure is not None:
                figure.text(0.01, 0.005, sentence(found["machine"]), fontsize=6, color="#666666")
                for kind in ("png", "svg"):
                    written.append(directory / f"{name}.{kind}")
                    plain = {"metadata": {"Date": None}} if kind == "svg" else {}
                    figure.savefig(written[-1], dpi=130, **plain)
                pyplot.close(figure)
    return written


def _throughput(results: dict[str, Found]) -> Any:
    """A panel for each way of working, the fastest on top."""
    titles = {"one": "one at a time", "tasks": "32 tasks", "batches": "batches of 64", "processes": "two processes"}
    series = [one for one in results.get("queue", []) if one["unit"] == RATE and one["workload"] in titles]
    present = [key for key in titles if any(one["workload"] == key for one in series)]
    if not present:
        return None
    figure, axes = pyplot.subplots(2, 2, figsize=(11, 8.2), squeeze=False)
    panels = list(axes.flat)
    for axis in panels[len(present) :]:
        axis.remove()
    for axis, key in zip(panels, present, strict=False):
        ranked = sorted((one for one in series if one["workload"] == key), key=lambda one: float(one["median"]))
        _bars(axis, ranked, "{:,.0f}")
        axis.set_title(titles[key], loc="left", fontweight="bold")
    figure.suptitle("Messages sent, received and acknowledged a second", x=0.01, ha="left", fontweight="bold")
    _legend(figure, series)
    figure.tight_layout(rect=(0, 0.05, 1, 0.98))
    return figure


def _bars(axis: Any, ranked: Found, form: str) -> None:
    values = [one["median"] for one in ranked]
    spread = [[one["median"] - one["low"] for one in ranked], [one["high"] - one["median"] for one in ranked]]
    axis.barh(
        [one["title"] for one in ranked], values, color=[_shade(one) for one in ranked], xerr=spread,
        error_kw={"ecolor": "#444444", "elinewidth": 0.8},
    )  # fmt: skip
    furthest = max(one["high"] for one in ranked)
    for place, one in enumerate(ranked):
        axis.text(one["high"] + furthest * 0.012, place, form.format(one["median"]), va="center", fontsize=7)
    axis.set_xlim(0, furthest * 1.14)
    axis.tick_params(axis="y", labelsize=7.5, length=0)
    axis.locator_params(axis="x", nbins=6)
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    for label, one in zip(axis.get_yticklabels(), ranked, strict=True):
        label.set_fontweight("bold" if _shade(one) == OURS else "normal")


def _shade(series: dict[str, Any]) -> str:
    if series["contestant"].startswith("agentbus"):
        return OURS
    if series["contestant"] == "raw":
        return LIMIT
    return DURABLE if series["durability"].startswith("disk") else HASTY


def _legend(figure: Any, series: Found) -> None:
    shades = [shade for shade in SHADES if any(_shade(one) == shade for one in series)]
    handles = [pyplot.Rectangle((0, 0), 1, 1, color=shade) for shade in shades]
    figure.legend(
        handles, [SHADES[shade] for shade in shades], loc="lower center", ncol=len(shades), frameon=False,
        bbox_to_anchor=(0.5, 0.015),
    )  # fmt: skip


def _latency(results: dict[str, Found]) -> Any:
    """From the call of send to the receiver in another process, and what waiting costs."""
    series = [one for one in results.get("queue", []) if one["workload"] == "idle"]
    if not series:
        return None
    of = {(one["contestant"], one["unit"].split(", ")[-1]): one for one in series}
    order = sorted((key for key, unit in of if unit == "p50"), key=lambda key: -float(of[key, "p50"]["median"]))
    names = [of[key, "p50"]["title"] for key in order]
    shades = [_shade(of[key, "p50"]) for key in order]
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 5.6), sharey=True, width_ratios=(3, 2))
    for place, key in enumerate(order):
        p50, p99 = of[key, "p50"]["median"], of[key, "p99"]["median"]
        left.plot([p50, p99], [place, place], color=shades[place], linewidth=1.5)
        left.plot(p50, place, "o", color=shades[place], markersize=6)
        left.plot(p99, place, "|", color=shades[place], markersize=9, markeredgewidth=1.5)
        left.text(p99 * 1.12, place, f"{p50:.2g} – {p99:.2g}", va="center", fontsize=7)
    left.set_yticks(range(len(names)), names)
    left.set_xscale("log")
    left.set_xlim(right=left.get_xlim()[1] * 2.5)
    _plain_numbers(left.xaxis)
    left.set_title("a message to one who waits, ms: ● p50  | p99", loc="left", fontweight="bold")
    costs = [of[key, "waiting"]["median"] for key in order]
    right.barh(range(len(names)), costs, color=shades)
    for place, cost in enumerate(costs):
        right.text(max(costs) * 0.012 + cost, place, f"{cost:.2g}", va="center", fontsize=7)
    right.set_title("waiting, % of one core", loc="left", fontweight="bold")
    for axis in (left, right):
        axis.tick_params(axis="y", labelsize=8, length=0)
        axis.grid(axis="x", color="#eeeeee")
        axis.set_axisbelow(True)
    _legend(figure, series)
    figure.tight_layout(rect=(0, 0.07, 1, 1))
    return figure


def _growth(results: dict[str, Found]) -> Any:
    """What one message costs, by how many wait."""
    ours = [one for one in results.get("queue", []) if one["workload"] == "growth-single"]
    others = [one for one in results.get("queue", []) if one["workload"] == "growth-others"]
    if not ours:
        return None
    figure, axis = pyplot.subplots(figsize=(8, 4.6))
    waiting = [one for one in ours if "finished" not in one["title"] and "mailboxes" not in one["title"]]
    _line(axis, "agentbus", [(_first_number(one["title"]), one["median"]) for one in waiting], LINES[0])
    for one, mark in ((one, mark) for one in ours for word, mark in (("finished", "s"), ("mailboxes", "D"))
                      if word in one["title"]):  # fmt: skip
        depth = max(_first_number(part) for part in one["title"].split(", "))
        axis.plot(depth, one["median"], mark, color=LINES[0], markersize=7, markerfacecolor="none",
                  label=f"agentbus: {one['title']}")  # fmt: skip
    names = list(dict.fromkeys(one["title"].split(":")[0] for one in others))
    for name, shade in zip(names, LINES[1:], strict=False):
        points = [one for one in others if one["title"].startswith(f"{name}:")]
        _line(axis, name, [(_first_number(one["title"].split(":")[1]), one["median"]) for one in points], shade)
    axis.set_xscale("log")
    axis.set_yscale("log")
    _plain_numbers(axis.xaxis)
    _plain_numbers(axis.yaxis)
    axis.set_xlabel("messages waiting (or finished and kept)")
    axis.set_ylabel("µs to claim and acknowledge one")
    axis.set_title("What one message costs among many", loc="left", fontweight="bold")
    axis.grid(color="#eeeeee", which="major")
    axis.legend(frameon=False, fontsize=8)
    figure.tight_layout(rect=(0, 0.025, 1, 1))
    return figure


def _line(axis: Any, name: str, points: Sequence[tuple[float, float]], shade: str) -> None:
    ordered = sorted(points)
    axis.plot([x for x, _ in ordered], [y for _, y in ordered], "o-", color=shade, label=name, markersize=5)


def _plain_numbers(axis: Any) -> None:
    """1,000 and not 10³, and only where a decade begins, unless that would be hardly anywhere."""
    axis.set_major_formatter(lambda value, _: f"{value:,.3g}" if value < 100 else f"{value:,.0f}")
    low, high = axis.get_view_interval()
    if high / low < 500:
        axis.set_major_locator(package("matplotlib.ticker").LogLocator(subs=(1, 2, 5)))
    axis.set_minor_formatter(lambda value, _: "")


def _first_number(text: str) -> float:
    return float(text.split(maxsplit=1)[0].replace(",", ""))


def _writers(results: dict[str, Found]) -> Any:
    """Throughput, the longest wait and fairness, by the number of processes."""
    series = results.get("writers", [])
    if not series:
        return None
    units = {
        "sends/s": "sends a second",
        "s, longest wait": "longest wait, s",
        "Jain's index": "fairness (1: all the same)",
    }
    figure, axes = pyplot.subplots(1, len(units), figsize=(11, 3.8))
    for axis, (unit, title) in zip(axes, units.items(), strict=True):
        chosen = [one for one in series if one["unit"] == unit]
        for key, shade in zip(dict.fromkeys(one["contestant"] for one in chosen), LINES, strict=False):
            of = [one for one in chosen if one["contestant"] == key]
            name = (
                of[0]["title"]
                .removesuffix(" processes")
                .removesuffix(" process")
                .removesuffix(f", {of[0]['workload']}")
            )
            _line(axis, name, [(int(one["workload"]), one["median"]) for one in of], shade)
        counts = sorted({int(one["workload"]) for one in chosen})
        axis.set_xscale("log", base=2)
        axis.set_xticks(counts, [str(count) for count in counts])
        axis.set_xlabel("writer processes")
        axis.set_title(title, loc="left", fontweight="bold")
        axis.grid(color="#eeeeee")
        if "wait" in unit:
            axis.set_yscale("log")
            _plain_numbers(axis.yaxis)
        else:
            axis.set_ylim(bottom=0, top=1.05 if "Jain" in unit else None)
    axes[0].legend(frameon=False, fontsize=8)
    figure.tight_layout(rect=(0, 0.03, 1, 1))
    return figure


def _registry(results: dict[str, Found]) -> Any:
    """Answers a second, by how many agents there are."""
    series = results.get("registry", [])
    if not series:
        return None
    questions = {"lookup": "one agent", "check": "any message for me?", "query": "which executors are running?"}
    asked = [one for one in questions if any(found["workload"].startswith(f"{one}-") for found in series)]
    figure, ((*axes,),) = pyplot.subplots(1, len(asked), figsize=(11, 3.8), sharey=True, squeeze=False)
    for axis, question in zip(axes, asked, strict=True):
        chosen = [one for one in series if one["workload"].startswith(f"{question}-")]
        for key, shade in zip(dict.fromkeys(one["contestant"] for one in chosen), LINES, strict=False):
            of = [one for one in chosen if one["contestant"] == key]
            points = [(float(one["workload"].split("-")[1]), one["median"]) for one in of]
            _line(axis, of[0]["title"].strip("*"), points, shade)
        axis.set_xscale("log")
        axis.set_yscale("log")
        _plain_numbers(axis.xaxis)
        _plain_numbers(axis.yaxis)
        axis.set_xlabel("agents")
        axis.set_title(questions[question], loc="left", fontweight="bold")
        axis.grid(color="#eeeeee")
    axes[0].set_ylabel("answers a second")
    axes[-1].legend(frameon=False, fontsize=8)
    figure.tight_layout(rect=(0, 0.03, 1, 1))
    return figure


def main(arguments: Sequence[str]) -> int:
    if len(arguments) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    for path in draw(json.loads(Path(arguments[0]).read_text()), Path(arguments[1])):
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
