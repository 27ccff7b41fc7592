"""The monitor: sweeps alongside the agents, and prints what it finds."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import TYPE_CHECKING, Any

from agentbus.interfaces.cli.command import Call, Command
from agentbus.interfaces.cli.output import Result, Rows
from agentbus.interfaces.cli.values import number

if TYPE_CHECKING:
    from agentbus.records import Sweep

COLUMNS = ("at:time", "severity:severity", "kind", "subject", "text")


def monitor(call: Call) -> Result | int:
    if call.arguments.once:
        return _once(call)
    from agentbus.interfaces.cli.looping import connected, run

    given = call.arguments

    async def watch() -> None:
        async with (
            connected(call) as bus,
            bus.monitor(interval=given.interval, log_file=given.log, **_rules(given)) as found,
        ):
            call.note(f"watching every {given.interval:g} s; Ctrl-C ends it")
            for one in await bus.sessions.cut_off():
                call.note(f"{one.session} is {one.status}; agentbus session recover {one.session}")
            # Printed here, not in a callback: what cannot be printed must end the command.
            async for finding in found.findings():
                call.emit(Rows([finding], COLUMNS, paged=False, whole=True, one=True, following=True))

    run(watch)
    return 0


def _once(call: Call) -> Result:
    from agentbus.interfaces.cli.looping import connected, run
    from agentbus.interfaces.cli.sections import Part, Sections

    given = call.arguments

    async def sweep() -> Sweep:
        async with connected(call) as bus:
            found = await bus.sweep(**_rules(given))
            if given.log is not None:
                from agentbus.services.monitor import write_log

                write_log(bus.engine, given.log, found.findings)
            return found

    found = run(sweep)
    done = [{"name": name, "count": count} for name, count in found.counts.items() if count]
    return Sections(
        found,
        Part("finding", "", COLUMNS, found.findings),
        Part("count", "what was done", ("name", "count"), done),
        remark=None if done or found.findings else "all is well",
    )


def _rules(given: Any) -> dict[str, Any]:
    return {
        "suspect_after": given.suspect_after,
        "fail_after": given.fail_after,
        "fail_stuck_after": given.fail_stuck_after,
    }


def _monitor(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("--interval", type=number, default=5, metavar="S", help="seconds between two sweeps (5)")
    add("--suspect-after", type=number, default=60, metavar="S", help="seconds of silence that make suspect (60)")
    add(
        "--fail-after", type=number, default=300, metavar="S",
        help="seconds of silence after which a suspect agent that cannot be seen has failed (300)",
    )  # fmt: skip
    add(
        "--fail-stuck-after", type=number, metavar="S",
        help="the same for one whose process is there (never)",
    )  # fmt: skip
    add("--log", metavar="FILE", help="add what is found to this file as well, a line each")
    add("--once", action="store_true", help="sweep once, and end")


COMMANDS = {
    "monitor": Command(
        monitor, "Watch over the bus: notice who died and what was interrupted, free what they held, until Ctrl-C.",
        "agentbus monitor --interval 2 --log monitor.log", _monitor,
        output="plain output: at, severity, kind, subject, text; with --json an envelope on each line\n"
        "with --once, by the first column:\n  finding, at, severity, kind, subject, text\n  count, name, count",
    ),
}  # fmt: skip
