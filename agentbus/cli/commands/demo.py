"""``agentbus demo``: a team of real processes that is killed and recovers, narrated as it runs."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from agentbus.cli.arguments import seconds
from agentbus.cli.context import Call, Command, ending_cleanly
from agentbus.cli.errors import DONE, FAILED
from agentbus.cli.output import PLAIN, PlainFormat, Result, is_terminal, plain
from agentbus.core.validation import check_seconds

if TYPE_CHECKING:
    from agentbus.cli.demo.story import Figures

_COLOURS = {"plan": "cyan", "work": "green", "kill -9": "bold red", "monitor": "yellow", "recover": "magenta"}
_NARROW = 60
"""Columns below which the figures are lines, not a table."""


def demo(call: Call) -> Result:
    """Run the demo on a temporary bus, or on the one that --url names."""
    import secrets
    import tempfile

    from agentbus.cli.demo.team import Processes

    pace = call.arguments.pace
    check_seconds(pace, "pace")
    processes = Processes()
    with ending_cleanly():
        try:
            if call.settings.sources["url"] == "option":
                return Closing(_run_story(call, processes, call.settings["url"], f"-{secrets.token_hex(2)}", pace))
            with tempfile.TemporaryDirectory(prefix="agentbus-demo-") as directory:
                try:
                    return Closing(_run_story(call, processes, directory, "", pace))
                finally:
                    # A process that still writes would prevent the removal of the directory.
                    processes.close()
        finally:
            processes.close()


def _run_story(call: Call, processes: Any, url: str, suffix: str, pace: float) -> Figures:
    import logging

    import anyio

    from agentbus.api.bus import connect
    from agentbus.cli.demo.story import Story
    from agentbus.cli.signals import interrupts_left_to_loop

    logging.getLogger("agentbus").addHandler(logging.NullHandler())
    logging.getLogger("agentbus").propagate = False
    narrate = _narrator(call)

    async def run() -> Figures:
        async with connect(url, auto_resume=False) as bus:
            return await Story(bus, processes, url, suffix, pace, narrate).run()

    with interrupts_left_to_loop():
        return anyio.run(run)


def _narrator(call: Call) -> Callable[[str, str], None]:
    """Return the output of the narration: standard output, or with --json notes on standard error."""
    if call.arguments.json:
        return lambda chapter, text: call.note(f"{chapter}\t{text}")
    if is_terminal():
        return Narrator(on_stderr=False)
    return lambda chapter, text: print(f"{chapter}\t{text}", flush=True)


class Closing(Result):
    """The figures of the run. It failed if a guarantee was violated."""

    def __init__(self, figures: Figures) -> None:
        self._figures = figures
        self.code = DONE if figures.holds else FAILED

    def data(self) -> Any:
        import msgspec

        return {**msgspec.to_builtins(self._figures), "holds": self._figures.holds}

    def lines(self, form: PlainFormat = PLAIN) -> list[str]:
        lines = [f"result\t{name}\t{plain(value)}" for name, value in self.data().items()]
        return form.headed(("subject", "name", "value"), lines)

    def show(self) -> None:
        figures = self._figures
        rows = [
            ("tasks planned", str(figures.planned), None),
            ("completed", str(figures.done), figures.undone == 0),
            ("deliveries, including redeliveries", str(figures.deliveries), None),
            ("acknowledged", str(figures.acknowledged), None),
            ("acknowledged and lost", str(figures.lost), figures.lost == 0),
            ("completed twice", str(figures.twice), figures.twice == 0),
            ("seconds until a death was detected", f"{figures.noticed:.2f}", None),
            ("seconds until the session was marked interrupted", f"{figures.interrupted:.2f}", None),
            ("session", figures.session, figures.session == "completed"),
        ]
        verdict = (
            f"No acknowledged work was lost or repeated ({figures.seconds:.0f} s)."
            if figures.holds
            else "A guarantee was violated."
        )
        print_summary(rows, verdict, figures.holds)
        sys.stdout.flush()


class Narrator:
    """Print the steps on a terminal, with rich: each chapter once, in colour."""

    def __init__(self, *, on_stderr: bool) -> None:
        from rich.console import Console

        self._console = Console(stderr=on_stderr)
        self._chapter = ""

    def __call__(self, chapter: str, text: str) -> None:
        from rich.text import Text

        shown = "" if chapter == self._chapter else chapter
        self._chapter = chapter
        line = Text.assemble((f"{shown:<9}", _COLOURS.get(chapter, "")), text)
        self._console.print(line, highlight=True)


def print_summary(rows: list[tuple[str, str, bool | None]], verdict: str, good: bool) -> None:
    """Print the figures with rich, with a mark on those that a guarantee covers."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_column()
    for name, value, kept in rows:
        mark = Text("") if kept is None else Text("✓", style="green") if kept else Text("✗", style="bold red")
        table.add_row(name, value, mark)
    console = Console()
    console.print()
    if console.width < _NARROW:
        # A table would wrap within words.
        for name, value, kept in rows:
            console.print(f"{name}: {value}{'' if kept is None else ' ✓' if kept else ' ✗'}")
    else:
        console.print(table)
    console.print(Text(f"\n{verdict}", style="bold green" if good else "bold red"))


def _demo(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--pace", type=seconds, default=1, metavar="S", help="duration of each task in seconds (default 1)"
    )


COMMANDS = {
    "demo": Command(
        demo,
        "Run a 20-second demo: a team of real processes loses a worker, then all processes, and recovers.",
        "agentbus demo",
        _demo,
        output="plain output: chapter, event; then `result`, name, value. Exit code 1 if a guarantee was violated",
    ),
}
