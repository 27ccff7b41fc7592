"""Draw the charts of a run as PNG and SVG: ``python -m benchmarks.charts results.json DIRECTORY``. Needs matplotlib.

They are sized for a page of about 900 pixels. A panel has at most a dozen bars; the tables have every contestant. Bars
start at zero so that their lengths can be compared; lines have logarithmic axes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.contestants.about import package
from benchmarks.machine import sentence
from benchmarks.report import MODES, RATE

matplotlib = package("matplotlib")
matplotlib.use("Agg")
pyplot = package("matplotlib.pyplot")

OURS, OURS_UNSYNCED, DURABLE, UNSYNCED, LIMIT = "#0b6e4f", "#6bbf9c", "#4c78a8", "#b3c3d9", "#8a8a8a"
SHADES = {
    OURS: "agentbus, fsynced", OURS_UNSYNCED: "agentbus, not fsynced", DURABLE: "others, fsynced",
    UNSYNCED: "others, not fsynced or not at once", LIMIT: "the limit: our statements, no bus",
}  # fmt: skip
LINES = ("#0b6e4f", "#e07b39", "#4c78a8", "#8a5fbf", "#8a8a8a")
SURVIVES = {
    "disk": "disk", "kill -9": "kill -9", "process": "kill -9", "a power cut loses a second": "loses 1 s",
    "a power cut loses up to two minutes": "loses 2 min", "nothing is fsynced": "nothing synced",
    "every hundredth send is fsynced": "every 100th",
}  # fmt: skip
"""Short labels of durability, by the text before the first colon."""
NAMES = {
    "agentbus-process": "agentbus, process", "agentbus-postgres": "agentbus, PostgreSQL", "raw": "raw sqlite3",
    "persist-ack": "persist-queue, SQLite", "persist-file": "persist-queue, files", "aiosqlite": "aiosqlite, plain",
    "aiosqlite-normal": "aiosqlite, NORMAL", "redis": "Redis Streams", "redis-everysec": "Redis Streams",
    "nats": "NATS JetStream", "nats-default": "NATS JetStream", "asyncpg": "Postgres SKIP LOCKED", "huey": "huey",
    "dbos": "DBOS", "files": "JSON files", "files-hasty": "JSON files", "maildir": "Maildir",
}  # fmt: skip
"""Names of contestants, shorter than in the tables."""
ONLY_IN_TABLES = frozenset({"aiosqlite-autocommit", "maildir"})
WAITING = (
    "agentbus", "agentbus-process", "agentbus-postgres", "files", "litequeue", "huey", "aiosqlite", "dbos", "redis",
    "nats", "asyncpg", "procrastinate",
)  # fmt: skip
SMALL = 8.5

Found = list[dict[str, Any]]


def draw(found: dict[str, Any], directory: Path) -> list[Path]:
    """Draw every chart that the results have figures for; return the written files."""
    charts: dict[str, Callable[[dict[str, Found]], Any]] = {
        "throughput": _throughput, "throughput-unsynced": _throughput_unsynced, "latency": _latency, "growth": _growth,
        "writers": _writers, "registry": _registry, "scale-clients": _clients, "scale-size": _size,
        "scale-vacuum": _vacuum, "scale-writers": _more_writers,
    }  # fmt: skip
    results = {name: suite["results"] for name, suite in found["suites"].items()}
    written: list[Path] = []
    style = {"svg.hashsalt": "agentbus", "font.size": 10, "axes.spines.top": False, "axes.spines.right": False,
             "axes.titlesize": 10.5, "axes.titleweight": "bold", "axes.titlelocation": "left"}  # fmt: skip
    machine = found["machine"]
    footer = sentence(machine).split(", aiosqlite")[0]
    with pyplot.rc_context(style):
        for name, chart in charts.items():
            figure = chart(results)
            if figure is not None:
                spread = "Medians; thin lines: the range of the rounds. " if "throughput" in name else "Medians. "
                spread = "" if name == "scale-vacuum" else spread
                figure.text(0.01, 0.01, spread + footer, fontsize=7, color="#666666")
                for kind in ("png", "svg"):
                    written.append(directory / f"{name}.{kind}")
                    plain = {"metadata": {"Date": None}} if kind == "svg" else {}
                    figure.savefig(written[-1], dpi=160, **plain)
                pyplot.close(figure)
    return written


def _throughput(results: dict[str, Found]) -> Any:
    title = "Messages a second, durable to disk: higher is better"
    return _panels(results, title, lambda one: bool(_shade(one) in {OURS, DURABLE, LIMIT}))


def _throughput_unsynced(results: dict[str, Found]) -> Any:
    title = "Messages a second, not fsynced or not at once: higher is better"
    return _panels(results, title, lambda one: bool(_shade(one) in {OURS_UNSYNCED, UNSYNCED}))


def _panels(results: dict[str, Found], title: str, wanted: Callable[[dict[str, Any]], bool]) -> Any:
    """Draw one panel per mode, the fastest contestant on top."""
    series = [
        one
        for one in results.get("queue", [])
        if one["unit"] == RATE and one["workload"] in MODES and one["contestant"] not in ONLY_IN_TABLES and wanted(one)
    ]
    present = [key for key in MODES if any(one["workload"] == key for one in series)]
    if not present:
        return None
    of = {key: sorted((one for one in series if one["workload"] == key), key=_median) for key in present}
    pairs = [present[at : at + 2] for at in range(0, len(present), 2)]
    rows = [max(len(of[key]) for key in pair) for pair in pairs]
    height = 1.35 + sum(0.22 * count + 0.75 for count in rows)
    figure, axes = pyplot.subplots(
        len(pairs), 2, figsize=(9, height), squeeze=False, height_ratios=[count + 1 for count in rows]
    )
    panels = list(axes.flat)
    for axis in panels[len(present) :]:
        axis.remove()
    for axis, key in zip(panels, present, strict=False):
        _bars(axis, of[key])
        axis.set_title(MODES[key])
    _heading(figure, title)
    _legend(figure, series)
    figure.tight_layout(rect=(0, 0.62 / height, 1, 1 - 0.4 / height))
    return figure


def _bars(axis: Any, ranked: Found) -> None:
    values = [one["median"] for one in ranked]
    spread = [[one["median"] - one["low"] for one in ranked], [one["high"] - one["median"] for one in ranked]]
    positions = range(len(ranked))
    axis.barh(
        positions, values, color=[_shade(one) for one in ranked], xerr=spread,
        error_kw={"ecolor": "#444444", "elinewidth": 0.8},
    )  # fmt: skip
    furthest = max(one["high"] for one in ranked)
    for position, one in enumerate(ranked):
        axis.text(one["high"] + furthest * 0.015, position, f"{one['median']:,.0f}", va="center", fontsize=SMALL)
    axis.set_xlim(0, furthest * 1.24)
    axis.set_ylim(-0.6, len(ranked) - 0.4)
    axis.locator_params(axis="x", nbins=4)
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axis.tick_params(axis="x", labelsize=SMALL)
    _names(axis, ranked)


def _names(axis: Any, ranked: Found) -> None:
    """Label the bars with name and durability, agentbus in bold."""
    axis.set_yticks(range(len(ranked)), [f"{_name(one)} ({_durability(one)})" for one in ranked], fontsize=SMALL)
    axis.tick_params(axis="y", length=0)
    for label, one in zip(axis.get_yticklabels(), ranked, strict=True):
        label.set_fontweight("bold" if _is_ours(one) else "normal")


def _name(series: dict[str, Any]) -> str:
    return str(NAMES.get(series["contestant"], series["title"]))


def _durability(series: dict[str, Any]) -> str:
    words = series["durability"].replace(";", ":").split(":")[0]
    return str(SURVIVES.get(words, words))


def _is_ours(series: dict[str, Any]) -> bool:
    return bool(series["contestant"].startswith("agentbus"))


def _median(series: dict[str, Any]) -> float:
    return float(series["median"])


def _shade(series: dict[str, Any]) -> str:
    durable = series["durability"].startswith("disk")
    if _is_ours(series):
        return OURS if durable else OURS_UNSYNCED
    if series["contestant"] == "raw":
        return LIMIT
    return DURABLE if durable else UNSYNCED


def _heading(figure: Any, title: str) -> None:
    inches = figure.get_size_inches()[1]
    figure.text(0.01, 1 - 0.3 / inches, title, fontsize=13, fontweight="bold")


def _legend(figure: Any, series: Found) -> None:
    shades = [shade for shade in SHADES if any(_shade(one) == shade for one in series)]
    handles = [pyplot.Rectangle((0, 0), 1, 1, color=shade) for shade in shades]
    figure.legend(
        handles, [SHADES[shade] for shade in shades], loc="lower center", ncol=len(shades), frameon=False,
        bbox_to_anchor=(0.5, 0.24 / figure.get_size_inches()[1]), fontsize=SMALL,
    )  # fmt: skip


def _latency(results: dict[str, Found]) -> Any:
    """Draw the latency from send to a receiver in another process, and the CPU of waiting."""
    series = [one for one in results.get("queue", []) if one["workload"] == "idle" and one["contestant"] in WAITING]
    if not series:
        return None
    of = {(one["contestant"], one["unit"].split(", ")[-1]): one for one in series}
    order = sorted((key for key, unit in of if unit == "p50"), key=lambda key: -_median(of[key, "p50"]))
    ranked = [of[key, "p50"] for key in order]
    shades = [_shade(one) for one in ranked]
    height = 1.9 + 0.26 * len(ranked)
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, height), sharey=True, width_ratios=(3, 2))
    for position, key in enumerate(order):
        p50, p99 = _median(of[key, "p50"]), _median(of[key, "p99"])
        left.plot([p50, p99], [position, position], color=shades[position], linewidth=1.5)
        left.plot(p50, position, "o", color=shades[position], markersize=6)
        left.plot(p99, position, "|", color=shades[position], markersize=9, markeredgewidth=1.5)
        left.text(p99 * 1.12, position, f"{_short(p50)} – {_short(p99)}", va="center", fontsize=SMALL)
    left.set_xscale("log")
    low, high = left.get_xlim()
    left.set_xlim(low, high * (high / low) ** 0.35)
    _plain_numbers(left.xaxis)
    left.set_title("ms until it is there: ● p50   | p99")
    costs = [_median(of[key, "waiting"]) for key in order]
    right.barh(range(len(order)), costs, color=shades)
    for position, cost in enumerate(costs):
        right.text(max(costs) * 0.015 + cost, position, _short(cost), va="center", fontsize=SMALL)
    right.set_xlim(0, max(costs) * 1.15 or 1)
    right.set_title("waiting: % of one core")
    for axis in (left, right):
        axis.grid(axis="x", color="#eeeeee")
        axis.set_axisbelow(True)
        axis.tick_params(axis="x", labelsize=SMALL)
    _names(left, ranked)
    right.tick_params(axis="y", length=0)
    _heading(figure, "A message to an idle receiver in another process: lower is better")
    _legend(figure, ranked)
    figure.tight_layout(rect=(0, 0.62 / height, 1, 1 - 0.4 / height))
    return figure


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 9.95 else f"{value:.2g}"


def _growth(results: dict[str, Found]) -> Any:
    """Draw the cost of one message by the number of waiting messages."""
    ours = [one for one in results.get("queue", []) if one["workload"] == "growth-single"]
    others = [one for one in results.get("queue", []) if one["workload"] == "growth-others"]
    if not ours:
        return None
    figure, axis = pyplot.subplots(figsize=(9, 5))
    waiting = [one for one in ours if "finished" not in one["title"] and "mailboxes" not in one["title"]]
    _line(
        axis, "agentbus (disk), queued in one mailbox", [(_depth(one["title"]), _median(one)) for one in waiting], OURS
    )
    marks = iter("sD^v")
    for one in (one for one in ours if one not in waiting):
        axis.plot(_depth(one["title"]), one["median"], next(marks), color=OURS, markersize=8, markerfacecolor="none",
                  linestyle="none", label=f"agentbus: {one['title']}")  # fmt: skip
    names = list(dict.fromkeys(one["title"].split(":")[0] for one in others))
    for name, shade in zip(names, LINES[1:], strict=False):
        points = [
            (_depth(one["title"].split(":")[1]), _median(one)) for one in others if one["title"].startswith(f"{name}:")
        ]
        _line(axis, f"{name} (kill -9)", points, shade)
    axis.set_xscale("log")
    axis.set_yscale("log")
    low, high = axis.get_ylim()
    axis.set_ylim(low / 2, high * 3)
    _plain_numbers(axis.xaxis)
    _plain_numbers(axis.yaxis)
    axis.set_xlabel("messages waiting (or finished and kept)")
    axis.set_ylabel("µs to claim and acknowledge one")
    axis.grid(color="#eeeeee", which="major")
    axis.legend(frameon=False, fontsize=SMALL, loc="upper left")
    _heading(figure, "What one message costs among many: lower is better, flat is best")
    figure.tight_layout(rect=(0, 0.04, 1, 0.93))
    return figure


def _line(axis: Any, name: str, points: Sequence[tuple[float, float]], shade: str) -> None:
    ordered = sorted(points)
    axis.plot([x for x, _ in ordered], [y for _, y in ordered], "o-", color=shade, label=name, markersize=5)


def _plain_numbers(axis: Any) -> None:
    """Label decades as 1,000 instead of 10³; on a short axis also label 2 and 5."""
    axis.set_major_formatter(lambda value, _: f"{value:,.3g}" if value < 100 else f"{value:,.0f}")
    low, high = axis.get_view_interval()
    if high / low < 500:
        axis.set_major_locator(package("matplotlib.ticker").LogLocator(subs=(1, 2, 5)))
    axis.set_minor_formatter(lambda value, _: "")


def _depth(title: str) -> float:
    """Return the largest count in the title."""
    return max(float(part.split(maxsplit=1)[0].replace(",", "")) for part in title.split(", "))


def _writers(results: dict[str, Found]) -> Any:
    """Draw throughput, longest wait and fairness by the number of processes."""
    series = results.get("writers", [])
    if not series:
        return None
    units = {
        "sends/s": "sends a second (↑ better)", "s, longest wait": "longest wait, s (↓ better)",
        "Jain's index": "fairness (1 is best)",
    }  # fmt: skip
    figure, axes = pyplot.subplots(1, len(units), figsize=(9, 3.7))
    for axis, (unit, title) in zip(axes, units.items(), strict=True):
        chosen = [one for one in series if one["unit"] == unit]
        for key, shade in zip(dict.fromkeys(one["contestant"] for one in chosen), LINES, strict=False):
            of = [one for one in chosen if one["contestant"] == key]
            name = "agentbus (disk)" if _is_ours(of[0]) else f"{key}, busy handler (disk)"
            _line(axis, name, [(int(one["workload"]), _median(one)) for one in of], shade)
        counts = sorted({int(one["workload"]) for one in chosen})
        axis.set_xscale("log", base=2)
        axis.set_xticks(counts, [str(count) for count in counts], fontsize=SMALL)
        axis.minorticks_off()
        axis.set_xlabel("writer processes", fontsize=SMALL)
        axis.set_title(title)
        axis.grid(color="#eeeeee")
        if "wait" in unit:
            axis.set_yscale("log")
            _plain_numbers(axis.yaxis)
        else:
            axis.set_ylim(bottom=0, top=1.05 if "Jain" in unit else None)
            if "Jain" not in unit:
                axis.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axis.tick_params(axis="y", labelsize=SMALL)
    _below(figure, axes[0], "Many processes write to one file at once", 3.7)
    return figure


def _registry(results: dict[str, Found]) -> Any:
    """Draw answers per second by the number of agents."""
    series = results.get("registry", [])
    if not series:
        return None
    questions = {"lookup": "one agent", "check": "a message for me?", "query": "which are running?"}
    asked = [one for one in questions if any(found["workload"].startswith(f"{one}-") for found in series)]
    figure, ((*axes,),) = pyplot.subplots(1, len(asked), figsize=(9, 3.9), sharey=True, squeeze=False)
    for axis, question in zip(axes, asked, strict=True):
        chosen = [one for one in series if one["workload"].startswith(f"{question}-")]
        for key, shade in zip(dict.fromkeys(one["contestant"] for one in chosen), LINES, strict=False):
            of = [one for one in chosen if one["contestant"] == key]
            points = [(float(one["workload"].split("-")[1]), _median(one)) for one in of]
            _line(axis, of[0]["title"].strip("*"), points, shade)
        axis.set_xscale("log")
        axis.set_yscale("log")
        sizes = sorted({int(one["workload"].split("-")[1]) for one in chosen})
        axis.set_xticks(sizes, [f"{size:,}" for size in sizes])
        axis.minorticks_off()
        _plain_numbers(axis.yaxis)
        axis.set_xlabel("agents", fontsize=SMALL)
        axis.set_title(questions[question])
        axis.tick_params(labelsize=SMALL)
        axis.grid(color="#eeeeee")
    _below(figure, axes[0], "Questions about agents, answers a second: higher is better", 3.9)
    return figure


def _more_writers(results: dict[str, Found]) -> Any:
    """Draw the writers of the benchmark of scale, which are agentbus alone."""
    return _writers({"writers": [one for one in results.get("scale", []) if one["workload"].isdecimal()]})


def _clients(results: dict[str, Found]) -> Any:
    """Draw throughput, latency and CPU of a message by the number of client processes of a server."""
    series = [one for one in results.get("scale", []) if one["workload"].startswith("clients-")]
    if not series:
        return None
    panels = {
        "messages a second (↑ better)": {RATE: "throughput"},
        "latency, ms (↓ better)": {"ms, p50": "p50", "ms, p99": "p99"},
        "CPU of a message, µs": {"µs of CPU in clients": "clients", "µs of CPU in the server": "server"},
    }
    figure, axes = pyplot.subplots(1, len(panels), figsize=(9, 3.4))
    for axis, (title, units) in zip(axes, panels.items(), strict=True):
        for (unit, name), shade in zip(units.items(), LINES, strict=False):
            points = [(float(one["workload"].split("-")[1]), _median(one)) for one in series if one["unit"] == unit]
            _line(axis, name, points, shade)
        counts = sorted({int(one["workload"].split("-")[1]) for one in series})
        axis.set_xscale("log", base=2)
        axis.set_xticks(counts, [str(count) for count in counts], fontsize=SMALL)
        axis.minorticks_off()
        axis.set_ylim(bottom=0)
        axis.set_xlabel("client processes", fontsize=SMALL)
        axis.set_title(title)
        axis.grid(color="#eeeeee")
        axis.tick_params(axis="y", labelsize=SMALL)
        axis.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        if len(units) > 1:
            axis.legend(frameon=False, fontsize=SMALL)
    agents = next(one["title"] for one in series if one["unit"] != RATE).split(" × ")[1]
    _heading(figure, f"Clients of one PostgreSQL server, each with {agents}")
    figure.tight_layout(rect=(0, 0.05, 1, 0.9))
    return figure


def _size(results: dict[str, Found]) -> Any:
    """Draw the time of the common calls, on a small bus and on large ones."""
    workloads = {"kept": "PostgreSQL", "file": "SQLite"}
    series = {
        key: [one for one in results.get("scale", []) if one["workload"] == key] for key in workloads
    }  # fmt: skip
    present = [key for key in workloads if series[key]]
    if not present:
        return None
    height = 4.6
    figure, ((*axes,),) = pyplot.subplots(1, len(present), figsize=(9, height), sharey=True, squeeze=False)
    for axis, key in zip(axes, present, strict=True):
        calls = list(dict.fromkeys(one["unit"] for one in series[key]))[::-1]
        buses = list(dict.fromkeys(one["title"] for one in series[key]))
        if key == "file":
            # Each size has a new file of its own as reference; one of them is enough here.
            buses = buses[:1] + [one for one in buses if "new file" not in one]
        for bus, shade in zip(buses, (LIMIT, OURS, LINES[1], LINES[2], LINES[3]), strict=False):
            of = {one["unit"]: _median(one) for one in series[key] if one["title"] == bus}
            values = [of[call] / 1000 if call.startswith("µs") else of[call] for call in calls]
            name = bus.split(": ", 1)[1].split(", measured")[0]
            axis.plot(values, range(len(calls)), "o", color=shade, markersize=7, label=name, alpha=0.85)
        axis.set_xscale("log")
        _plain_numbers(axis.xaxis)
        axis.set_yticks(range(len(calls)), [call.split(", ", 1)[1] for call in calls], fontsize=SMALL)
        axis.set_title(workloads[key])
        axis.set_xlabel("ms", fontsize=SMALL)
        axis.tick_params(axis="x", labelsize=SMALL)
        axis.grid(color="#eeeeee")
        axis.set_axisbelow(True)
        axis.legend(frameon=False, fontsize=SMALL, loc="upper center", bbox_to_anchor=(0.5, -0.16))
    _heading(figure, "Common calls on a small and on a large bus: lower is better")
    figure.tight_layout(rect=(0, 0.05, 1, 0.93))
    return figure


def _vacuum(results: dict[str, Found]) -> Any:
    """Draw throughput, latency and sizes over the time of a load with retention and autovacuum."""
    series = {one["unit"]: one for one in results.get("scale", []) if one["workload"] == "vacuum"}
    if not series:
        return None
    panels = {
        "messages a second": (RATE,), "latency p99, ms": ("ms, p99",),
        "table and indexes, MB": ("MB, table of messages", "MB, its indexes"), "dead rows": ("dead rows",),
    }  # fmt: skip
    seconds = float(series["ms, p99"]["title"].split(" for ")[1].split(" s")[0].replace(",", ""))
    figure, axes = pyplot.subplots(2, 2, figsize=(9, 5), sharex=True)
    for axis, (title, units) in zip(axes.flat, panels.items(), strict=True):
        for unit, shade in zip(units, LINES, strict=False):
            values = series[unit]["rounds"]
            at = [(number + 1) * seconds / len(values) for number in range(len(values))]
            axis.plot(at, values, color=shade, label=unit.split(", ")[-1])
        axis.set_ylim(bottom=0)
        axis.set_title(title)
        axis.grid(color="#eeeeee")
        axis.tick_params(labelsize=SMALL)
        axis.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        if len(units) > 1:
            axis.legend(frameon=False, fontsize=SMALL)
    for axis in axes[1]:
        axis.set_xlabel("seconds", fontsize=SMALL)
    _heading(figure, "One PostgreSQL server under load, with retention and autovacuum")
    figure.tight_layout(rect=(0, 0.04, 1, 0.93))
    return figure


def _below(figure: Any, axis: Any, title: str, height: float) -> None:
    """Add the heading, and one legend below all panels."""
    handles, names = axis.get_legend_handles_labels()
    figure.legend(handles, names, loc="lower center", ncol=len(names), frameon=False, fontsize=SMALL,
                  bbox_to_anchor=(0.5, 0.2 / height))  # fmt: skip
    _heading(figure, title)
    figure.tight_layout(rect=(0, 0.55 / height, 1, 1 - 0.4 / height))


def main(arguments: Sequence[str]) -> int:
    if len(arguments) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    for path in draw(json.loads(Path(arguments[0]).read_text()), Path(arguments[1])):
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
