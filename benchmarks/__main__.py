"""All benchmarks: ``python -m benchmarks``, or ``make bench``. Tables in Markdown on stdout, progress on stderr.

About ten minutes, or one with ``--quick``. ``--only queue`` or ``--only queue.tasks`` picks. ``--results DIRECTORY``
writes every figure as JSON, the tables, and the charts.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import cli, queue, recovery, registry, report, state, tasks, writers
from benchmarks.command import Measured, Options, Suite, arena, parser, rounds
from benchmarks.contestants.versions import versions

SUITES: tuple[Suite, ...] = (
    queue.SUITE, writers.SUITE, state.SUITE, registry.SUITE, recovery.SUITE, tasks.SUITE,
    cli.SUITE,
)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    names = [name for suite in SUITES for name in (suite.name, *(f"{suite.name}.{one}" for one in suite.choices))]
    options = parser("python -m benchmarks", __doc__ or "", names)
    options.add_argument(
        "--results", type=Path, metavar="DIRECTORY", help="write results.json, results.md and the charts there"
    )
    given = options.parse_args(arguments)
    begun = time.monotonic()
    with arena(given.directory) as (directory, machine, doubtful, progress):
        measured: list[Measured] = []
        for suite in SUITES:
            chosen = _chosen(suite, given.only)
            if chosen:
                asked = Options(given.quick, chosen, given.rounds or rounds(given.quick), given.among)
                fresh = directory / suite.name
                fresh.mkdir()
                measured.append(suite.run(asked, fresh, progress))
    parts = [report.heading(machine, doubtful)]
    parts += [f"## {one.suite.title}\n\n{one.markdown()}" for one in measured]
    text = "\n\n".join(parts) + "\n"
    print(text)
    found: dict[str, Any] = {
        "machine": machine, "versions": versions(), "doubts": doubtful,
        "quick": given.quick, "seconds": round(time.monotonic() - begun),
        "suites": {one.suite.name: one.as_json() for one in measured},
    }  # fmt: skip
    if given.json is not None:
        given.json.write_text(json.dumps(found, indent=2) + "\n")
    if given.results is not None:
        _publish(given.results, found, text)
    return 0


def _chosen(suite: Suite, only: Sequence[str] | None) -> list[str]:
    if only is None:
        return [one for one in suite.choices if one not in suite.long]
    return [one for one in suite.choices if suite.name in only or f"{suite.name}.{one}" in only]


def _publish(directory: Path, found: dict[str, Any], text: str) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "results.json").write_text(json.dumps(found, indent=1) + "\n")
    (directory / "results.md").write_text(f"# What was measured\n\n{text}")
    try:
        from benchmarks.charts import draw
    except ImportError:
        print("matplotlib is not installed: no charts (pip install 'agentbus[bench]')", file=sys.stderr)
    else:
        draw(found, directory)


if __name__ == "__main__":
    sys.exit(main())
