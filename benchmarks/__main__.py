"""Run all benchmarks: ``python -m benchmarks``, or ``make bench``. Markdown tables on stdout, progress on stderr.

A run takes about ten minutes, or one with ``--quick``. ``--only queue`` or ``--only queue.tasks`` selects workloads.
``--results DIRECTORY`` writes every figure as JSON and the tables after each part, and the charts at the end; an
interrupted run keeps its finished parts.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from benchmarks import cli, langgraph, queue, recovery, registry, scale, state, tasks, web, writers
from benchmarks.command import Suite, parser
from benchmarks.run import run

SUITES: tuple[Suite, ...] = (
    queue.SUITE, writers.SUITE, state.SUITE, registry.SUITE, recovery.SUITE, tasks.SUITE, cli.SUITE,
    web.SUITE, langgraph.SUITE, scale.SUITE,
)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    names = [name for suite in SUITES for name in (suite.name, *(f"{suite.name}.{one}" for one in suite.choices))]
    given = parser("python -m benchmarks", __doc__ or "", names).parse_args(arguments)
    requested = [(suite, chosen(suite, given.only)) for suite in SUITES]
    return run(given, [(suite, choices) for suite, choices in requested if choices])


def chosen(suite: Suite, only: Sequence[str] | None) -> list[str]:
    if only is None:
        return [one for one in suite.choices if one not in suite.long]
    return [one for one in suite.choices if suite.name in only or f"{suite.name}.{one}" in only]


if __name__ == "__main__":
    sys.exit(main())
