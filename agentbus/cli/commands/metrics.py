"""Metrics of the bus, for Prometheus: printed, or written to a file for a textfile collector."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import TYPE_CHECKING, Any

from agentbus.cli.context import Call, Command
from agentbus.cli.output import PLAIN, Done, PlainFormat, Result

if TYPE_CHECKING:
    from agentbus.records import MetricFamily

FILE_MODE = 0o644
"""Another user runs the collector. The file has counts, and names of pools, types and workflows."""


class Exposition(Result):
    """Metrics as text; as JSON, the families."""

    def __init__(self, families: list[MetricFamily], text: str) -> None:
        self._families = families
        self._text = text

    def data(self) -> Any:
        import msgspec

        return msgspec.to_builtins(self._families)

    def lines(self, form: PlainFormat = PLAIN) -> list[str]:
        # Not splitlines, which knows other ends of a line than the format does.
        return self._text.removesuffix("\n").split("\n")


def metrics(call: Call) -> Result:
    from agentbus.api.metrics import collect, render

    given = call.arguments
    families = call.bus.do(collect(call.bus, call.bus.store.home))
    text = render(families, given.format)
    if given.output is None:
        return Exposition(families, text)
    from agentbus.core.files import check_target, replace_file

    target = check_target(given.output)
    replace_file(target, text.encode(), FILE_MODE)
    series = sum(len(family.samples) for family in families)
    return Done({"path": str(target), "series": series}, f"wrote {series} series to {target}", str(target))


def _metrics(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--format",
        choices=("prometheus", "openmetrics"),
        default="prometheus",
        help="prometheus (text 0.0.4, the default; what a textfile collector reads) or openmetrics (1.0)",
    )
    add("--output", metavar="FILE", help="replace this file atomically, readable by all users (mode 0644)")


COMMANDS = {
    "metrics": Command(
        metrics,
        "Print metrics of the bus for Prometheus: queues, leases, dead letters, agents, tasks, approvals and sizes.",
        "agentbus metrics --output /var/lib/node_exporter/agentbus.prom",
        _metrics,
        output="plain output: the metrics as text; with --output, the path of the file\n"
        "with --json the families: name, type, help, samples, unit, scope",
    ),
}
