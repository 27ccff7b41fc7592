"""Write the results of a run into the documents: ``python -m benchmarks.publish [RESULTS]``.

``RESULTS`` is the directory that ``python -m benchmarks --results`` filled, by default ``benchmarks/results``. Tables
and charts go into ``benchmarks/README.md``, the main chart into ``README.md``, each between two markers; nothing else
changes. A run of ``benchmarks.scale`` goes into ``docs/scaling.md`` instead. A quick, incomplete or doubtful run is
published only with ``--anyway``.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import plan, scaling
from benchmarks.machine import sentence
from benchmarks.report import MODES, Check, shown, table, targets

ROOT = Path(__file__).parent.parent
BEGIN, END = "<!-- written by benchmarks.publish -->", "<!-- until here -->"
CHARTS = {
    "Messages": ("throughput", "throughput-unsynced", "latency", "growth"),
    "Many processes write": ("writers",),
    "The registry": ("registry",),
}
"""The charts under each heading of the tables."""
ALT = {
    "throughput": "Messages a second, durable to disk, by contestant",
    "throughput-unsynced": "Messages a second, not fsynced, by contestant",
    "latency": "How long a message takes to an idle receiver, and what waiting costs",
    "growth": "What one message costs, from a thousand to a million of them",
    "writers": "Throughput, longest wait and fairness of 1 to 64 writer processes",
    "registry": "Answers a second, from 100 to 10,000 agents",
    "scale-clients": "Throughput, latency and CPU of client processes of one server",
    "scale-size": "The time of common calls on a small and on a large bus",
    "scale-vacuum": "Throughput, latency and sizes of a server under load, over time",
    "scale-writers": "Throughput, longest wait and fairness of 1 to 128 writer processes",
}
MAIN = (
    "agentbus", "agentbus-process", "agentbus-postgres", "files", "persist-ack", "huey", "litequeue", "aiosqlite",
    "dbos", "redis", "nats", "asyncpg", "procrastinate", "raw",
)  # fmt: skip
CLEARLY = 1.05
"""The minimum factor that counts as faster."""
LIMIT = "raw"
TARGETS = "benchmarks/README.md#targets"
Found = dict[str, Any]


def doubts(found: Found) -> list[str]:
    """Return the reasons not to publish a run."""
    reasons = [*found["doubts"], *(["it was quick"] if found["quick"] else [])]
    measured = {f"{name}.{part}" for name, suite in found["suites"].items() for part in suite["seconds"]}
    if missing := [part for part in plan.SECONDS if part not in measured or part in found["unmeasured"]]:
        reasons.append(f"without {', '.join(missing)}")
    if found["among"]:
        reasons.append(f"only among {', '.join(found['among'])}")
    return reasons + [f"{name} failed" for name, suite in found["suites"].items() if not suite["sound"]]


def main_table(found: Found) -> str:
    """Return the main contestants as rows and the modes as columns."""
    of = {(one["contestant"], one["workload"], one["unit"]): one for one in _results(found, "queue")}
    rows = []
    for key in MAIN:
        cells = [_cell(of.get((key, way, "lifecycles/s"))) for way in MODES]
        about = next((one for (contestant, *_), one in of.items() if contestant == key), None)
        if about is not None:
            name = f"**{about['title']}**" if key.startswith("agentbus") else about["title"]
            rows.append((name, *cells, _cell(of.get((key, "idle", "ms, p50"))), about["durability"]))
    return table(("messages a second", *MODES.values(), "idle p50, ms", "what survives"), rows) if rows else ""


def losses(found: Found) -> list[tuple[str, str, str]]:
    """Return where a contestant of the same durability is faster: the workload, our figure, the factors."""
    rows: list[tuple[str, str, str]] = []
    for suite in found["suites"]:
        results = _results(found, suite)
        for workload, unit in dict.fromkeys((one["workload"], one["unit"]) for one in results):
            if unit.endswith("/s") or unit == "ms, p50":
                group = [one for one in results if (one["workload"], one["unit"]) == (workload, unit)]
                rows += _faster_contestants(
                    _about(found, suite, workload, unit), group, better_is_more=unit.endswith("/s")
                )
    return rows


def _faster_contestants(what: str, group: Sequence[Found], *, better_is_more: bool) -> Iterator[tuple[str, str, str]]:
    for durable in (True, False):
        alike = [one for one in group if one["durability"].startswith("disk") == durable]
        ours = [one["median"] for one in alike if one["contestant"] in {"agentbus", "agentbus-process"}]
        if not ours:
            continue
        faster = [
            (one["median"] / ours[0] if better_is_more else ours[0] / one["median"], one["title"])
            for one in alike
            if not one["contestant"].startswith("agentbus") and one["contestant"] != LIMIT
        ]
        factors = [f"{title} {times:.2g}x" for times, title in sorted(faster, reverse=True) if times > CLEARLY]
        if factors:
            also = "" if durable or not any(one["durability"].startswith("disk") for one in group) else ", not fsynced"
            yield f"{what}{also}", shown(ours[0]), ", ".join(factors)


def _about(found: Found, suite: str, workload: str, unit: str) -> str:
    titles = found["suites"][suite]["titles"]
    if unit == "ms, p50":
        return "idle p50, ms"
    return f"{found['suites'][suite]['title']}: {titles.get(workload, workload)}, {unit}"


def for_readme(found: Found, charts: str) -> str:
    """Return the main chart, the machine, and how many targets are held."""
    checks = _checks(found)
    held = sum(one.passed is True for one in checks)
    figures = f"{_measured_on(found)} {held} of {len(checks)} [performance targets]({TARGETS}) are held in this run."
    return f"![{ALT['throughput']}]({charts}/throughput.png)\n\n{figures}"


def for_benchmarks(found: Found, tables: str, charts: str) -> str:
    """Return everything: the main table, targets, where others are faster, each suite's tables with its charts."""
    _, *sections = tables.split("\n## ")
    parts = [_measured_on(found), main_table(found), "### Targets\n\n" + targets(_checks(found))]
    if lost := losses(found):
        head = ("", "agentbus", "faster, at the same durability")
        parts.append("### Where others are faster\n\n" + table(head, lost))
    for section in sections:
        title, _, body = section.partition("\n")
        if title != "Targets":
            pictures = [f"![{ALT[one]}]({charts}/{one}.png)" for one in CHARTS.get(title, ())]
            parts.append("\n\n".join([f"### {title}", *pictures, body.strip()]))
    return "\n\n".join(part for part in parts if part)


def write(file: Path, text: str) -> None:
    """Replace the text between the two markers."""
    before, begin, rest = file.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{file} has no {BEGIN} … {END}")
    file.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}", encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.publish", description=__doc__)
    parser.add_argument("results", type=Path, nargs="?", default=ROOT / "benchmarks" / "results")
    parser.add_argument("--anyway", action="store_true", help="publish a doubtful run, too")
    given = parser.parse_args(arguments)
    if ROOT / "benchmarks" not in given.results.resolve().parents:
        parser.error(f"{given.results} is not below benchmarks/: the documents could not show its charts")
    found = json.loads((given.results / "results.json").read_text(encoding="utf-8"))
    if "scale" in found["suites"]:
        return publish_scale(found, given.results, given.anyway)
    if (reasons := doubts(found)) and not given.anyway:
        print(f"not published: {'; '.join(reasons)} (--anyway publishes it)", file=sys.stderr)
        return 1
    tables = (given.results / "results.md").read_text(encoding="utf-8")
    for file, text in (
        (ROOT / "README.md", for_readme(found, _path(given.results, ROOT))),
        (ROOT / "benchmarks" / "README.md", for_benchmarks(found, tables, _path(given.results, ROOT / "benchmarks"))),
    ):
        write(file, text)
        print(file)
    return 0


def publish_scale(found: Found, results: Path, anyway: bool) -> int:
    """Write a run of ``benchmarks.scale`` into its page."""
    if (reasons := scaling.doubts(found)) and not anyway:
        print(f"not published: {'; '.join(reasons)} (--anyway publishes it)", file=sys.stderr)
        return 1
    tables = (results / "results.md").read_text(encoding="utf-8").partition("\n## Scale\n")[2].partition("\n## ")[0]
    charts = _path(results, ROOT / "docs")
    pictures = [f"![{ALT[one]}]({charts}/{one}.png)" for one in ALT if (results / f"{one}.png").exists()]
    limits = scaling.limits(found["suites"]["scale"]["results"])
    text = [f"Measured {found['date']} on {sentence(found['machine'])}. {scaling.sizes(found)}", limits, *pictures]
    write(ROOT / "docs" / "scaling.md", "\n\n".join([*text, "### All figures", tables.strip()]))
    print(ROOT / "docs" / "scaling.md")
    return 0


def _path(results: Path, document: Path) -> str:
    return Path(os.path.relpath(results.resolve(), document)).as_posix()


def _measured_on(found: Found) -> str:
    doubtful = "".join(f" **Doubtful: {one}.**" for one in doubts(found))
    return f"Measured {found['date']} in {found['seconds'] / 60:.0f} minutes on {sentence(found['machine'])}.{doubtful}"


def _results(found: Found, suite: str) -> list[Found]:
    results: list[Found] = found["suites"].get(suite, {"results": []})["results"]
    return results


def _checks(found: Found) -> list[Check]:
    return [
        Check(**{name: value for name, value in one.items() if name != "passed"})
        for suite in found["suites"].values()
        for one in suite["checks"]
    ]


def _cell(series: Found | None) -> str:
    return "–" if series is None else shown(series["median"])


if __name__ == "__main__":
    sys.exit(main())
