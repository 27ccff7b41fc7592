"""``agentbus demo``: the story, told as it happens."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from agentbus.interfaces.cli.command import Call, Command, ending_cleanly
from agentbus.interfaces.cli.failures import DONE, FAILED
from agentbus.interfaces.cli.output import Result, is_terminal, plain
from agentbus.interfaces.cli.values import seconds
from agentbus.limits import check_seconds

if TYPE_CHECKING:
    from agentbus.interfaces.demo.story import Figures


def demo(call: Call) -> Result:
    """On a bus of its own, which is gone afterwards; or on the one that is named."""
    import secrets
    import tempfile

    from agentbus.interfaces.demo.stage import Stage

    pace = call.arguments.pace
    check_seconds(pace, "pace")
    stage = Stage()
    with ending_cleanly():
        try:
            if call.settings.sources["url"] == "option":
                return Closing(_told(call, stage, call.settings["url"], f"-{secrets.token_hex(2)}", pace))
            with tempfile.TemporaryDirectory(prefix="agentbus-demo-") as directory:
                try:
                    return Closing(_told(call, stage, directory, "", pace))
                finally:
                    # Whoever still writes would keep the directory from going.
                    stage.close()
        finally:
            stage.close()


def _told(call: Call, stage: Any, url: str, suffix: str, pace: float) -> Figures:
    import logging

    import anyio

    from agentbus.interfaces.cli.interrupts import left_to_the_loop
    from agentbus.interfaces.demo.story import Story
    from agentbus.opening import connect

    logging.getLogger("agentbus").addHandler(logging.NullHandler())
    logging.getLogger("agentbus").propagate = False
    tell = _teller(call)

    async def run() -> Figures:
        async with connect(url, auto_resume=False) as bus:
            return await Story(bus, stage, url, suffix, pace, tell).run()

    with left_to_the_loop():
        return anyio.run(run)


def _teller(call: Call) -> Callable[[str, str], None]:
    """The story is what is asked for; with --json it is a note beside the data."""
    if call.arguments.json:
        return lambda chapter, text: call.note(f"{chapter}\t{text}")
    if is_terminal():
        from agentbus.interfaces.demo.showing import Teller

        return Teller(on_stderr=False)
    return lambda chapter, text: print(f"{chapter}\t{text}", flush=True)


class Closing(Result):
    """What it came to. It has failed if the promise was not kept."""

    def __init__(self, figures: Figures) -> None:
        self._figures = figures
        self.code = DONE if figures.holds else FAILED

    def data(self) -> Any:
        import msgspec

        return {**msgspec.to_builtins(self._figures), "holds": self._figures.holds}

    def lines(self) -> list[str]:
        return [f"result\t{name}\t{plain(value)}" for name, value in self.data().items()]

    def show(self) -> None:
        from agentbus.interfaces.demo.showing import close

        figures = self._figures
        rows = [
            ("tasks planned", str(figures.planned), None),
            ("done", str(figures.done), figures.undone == 0),
            ("handed out, with what the dead had in their hands", str(figures.deliveries), None),
            ("acknowledged to a worker", str(figures.acknowledged), None),
            ("of these lost", str(figures.lost), figures.lost == 0),
            ("done twice", str(figures.twice), figures.twice == 0),
            ("seconds until one death was noticed", f"{figures.noticed:.2f}", None),
            ("seconds until the session counted as interrupted", f"{figures.interrupted:.2f}", None),
            ("session", figures.session, figures.session == "completed"),
        ]
        verdict = (
            f"Nothing acknowledged was lost, nothing was done twice ({figures.seconds:.0f} s)."
            if figures.holds
            else "The promise was not kept."
        )
        close(rows, verdict, figures.holds)
        sys.stdout.flush()


def _demo(parser: ArgumentParser) -> None:
    parser.add_argument("--pace", type=seconds, default=1, metavar="S", help="seconds that each task takes (1)")


COMMANDS = {
    "demo": Command(
        demo,
        "Watch a team work, lose a worker, lose everybody, and go on: with real processes, on a bus of its own.",
        "agentbus demo",
        _demo,
        output="plain output: chapter, what happened; then `result`, name, value. Exit code 1 if a promise was broken",
    ),
}
