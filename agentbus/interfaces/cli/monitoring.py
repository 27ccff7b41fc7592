"""The monitor: sweeps alongside the agents, and prints what it finds.

Opening a bus notices processes that died; what comes of that is told of as if the monitor had found it.
"""

from __future__ import annotations

from argparse import ArgumentParser
from typing import TYPE_CHECKING, Any

from agentbus.interfaces.cli.command import Call, Command
from agentbus.interfaces.cli.output import Result, Rows
from agentbus.interfaces.cli.values import seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentbus import Bus
    from agentbus.records import EventRecord, Finding, Sweep

_COUNTED = {
    "process_dead": "processes_dead",
    "agent_failed": "agents_failed",
    "session_interrupted": "sessions_interrupted",
}
COLUMNS = ("at:time", "severity:severity", "kind", "subject", "text")


def monitor(call: Call) -> Result | int:
    if call.arguments.once:
        return _once(call)
    from agentbus.interfaces.cli.looping import on_bus
    from agentbus.services.findings import from_events

    given = call.arguments
    last = _last_event(call)

    def tell(finding: Finding) -> None:
        call.emit(Rows([finding], COLUMNS, paged=False, whole=True, one=True, following=True))

    async def watch(bus: Bus) -> None:
        earlier = from_events(await _noticed(bus, last))
        async with bus.monitor(interval=given.interval, log_file=given.log, **_rules(given)) as found:
            _log(bus, given.log, earlier)
            call.note(f"watching every {given.interval:g} s; Ctrl-C ends it")
            for one in await bus.sessions.cut_off():
                call.note(f"{one.session} is {one.status}; agentbus session recover {one.session}")
            # Printed here, not in a callback: what cannot be printed must end the command.
            for finding in earlier:
                tell(finding)
            async for finding in found.findings():
                tell(finding)

    on_bus(call, watch)
    return 0


def _once(call: Call) -> Result:
    from msgspec.structs import replace

    from agentbus.interfaces.cli.looping import on_bus
    from agentbus.interfaces.cli.sections import Part, Sections
    from agentbus.services.findings import from_events

    given = call.arguments
    last = _last_event(call)

    async def sweep(bus: Bus) -> Sweep:
        noticed = await _noticed(bus, last)
        swept = await bus.sweep(**_rules(given))
        counts = dict(swept.counts)
        for event in noticed:
            if event.kind in _COUNTED:
                counts[_COUNTED[event.kind]] += 1
        found = replace(swept, counts=counts, findings=[*from_events(noticed), *swept.findings])
        _log(bus, given.log, found.findings)
        return found

    found = on_bus(call, sweep)
    done = [{"name": name, "count": count} for name, count in found.counts.items() if count]
    return Sections(
        found,
        Part("finding", "", COLUMNS, found.findings),
        Part("count", "what was done", ("name", "count"), done),
        empty=None if done or found.findings else "all is well",
    )


def _last_event(call: Call) -> int:
    """The newest event before the bus is opened: only its store is, which notices nothing."""
    from agentbus.blocking import open_store
    from agentbus.operations.events import last_event

    settings = call.settings
    store = open_store(settings["url"], durability=settings["durability"], lock_timeout=settings["lock_timeout"])
    try:
        return store.read(last_event, None)
    finally:
        store.close()


async def _noticed(bus: Bus, last: int) -> list[EventRecord]:
    """What happened when the bus was opened."""
    return [event async for event in bus.events(after=last)]


def _log(bus: Bus, path: str | None, findings: Sequence[Finding]) -> None:
    if path is not None:
        from agentbus.services.monitor import write_log

        write_log(bus.engine, path, findings)


def _rules(given: Any) -> dict[str, Any]:
    return {
        "suspect_after": given.suspect_after,
        "fail_after": given.fail_after,
        "fail_stuck_after": given.fail_stuck_after,
    }


def _monitor(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("--interval", type=seconds, default=5, metavar="S", help="seconds between two sweeps (5)")
    add("--suspect-after", type=seconds, default=60, metavar="S", help="seconds of silence that make suspect (60)")
    add(
        "--fail-after", type=seconds, default=300, metavar="S",
        help="seconds of silence after which a suspect agent that cannot be seen has failed (300)",
    )  # fmt: skip
    add("--fail-stuck-after", type=seconds, metavar="S", help="the same for one whose process is there (never)")
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
