"""The monitor: sweep the bus periodically, and print the findings.

Opening a bus detects dead processes. What follows from that is reported as a finding of the monitor.
"""

from __future__ import annotations

from argparse import ArgumentParser
from typing import TYPE_CHECKING, Any

from agentbus.cli.arguments import seconds
from agentbus.cli.context import Call, Command
from agentbus.cli.output import Result, Rows
from agentbus.core.validation import FAIL_AFTER, SUSPECT_AFTER, SWEEP_INTERVAL

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
    from agentbus.api.monitor import findings_of
    from agentbus.cli.async_runner import on_bus

    given = call.arguments
    last = _last_event(call)

    def print_finding(finding: Finding) -> None:
        call.emit(Rows([finding], COLUMNS, paged=False, whole=True, one=True, following=True))

    async def watch(bus: Bus) -> None:
        earlier = findings_of(await _events_since(bus, last))
        async with bus.monitor(interval=given.interval, log_file=given.log, **_rules(given)) as found:
            _log(bus, given.log, earlier)
            call.note(f"watching every {given.interval:g} s; Ctrl-C ends it")
            for one in await bus.sessions.cut_off():
                call.note(f"{one.session} is {one.status}; agentbus session recover {one.session}")
            # Printed here, not in a callback: what cannot be printed must end the command.
            for finding in earlier:
                print_finding(finding)
            async for finding in found.findings():
                print_finding(finding)

    on_bus(call, watch)
    return 0


def _once(call: Call) -> Result:
    from msgspec.structs import replace

    from agentbus.api.monitor import findings_of
    from agentbus.cli.async_runner import on_bus
    from agentbus.cli.views import Part, Sections
    from agentbus.errors import InvalidSettings

    given = call.arguments
    last = _last_event(call)

    async def sweep(bus: Bus) -> Sweep:
        noticed = await _events_since(bus, last)
        swept = await bus.sweep(**_rules(given))
        counts = dict(swept.counts)
        for event in noticed:
            if event.kind in _COUNTED:
                counts[_COUNTED[event.kind]] += 1
        found = replace(swept, counts=counts, findings=[*findings_of(noticed), *swept.findings])
        _log(bus, given.log, found.findings)
        try:
            await bus.notifications.deliver(found.findings)
        except InvalidSettings as error:
            call.note(f"agentbus: notifications are off: {error}")
        return found

    found = on_bus(call, sweep)
    done = [{"name": name, "count": count} for name, count in found.counts.items() if count]
    return Sections(
        found,
        Part("finding", "", COLUMNS, found.findings),
        Part("count", "changes", ("name", "count"), done),
        empty=None if done or found.findings else "no problems found",
    )


def _last_event(call: Call) -> int:
    """Return the newest event before the bus is opened: opening its store alone detects nothing."""
    from agentbus.operations.events import last_event
    from agentbus.sync.bus import open_store

    settings = call.settings
    store = open_store(settings["url"], durability=settings["durability"], lock_timeout=settings["lock_timeout"])
    try:
        return store.read(last_event, None)
    finally:
        store.close()


async def _events_since(bus: Bus, last: int) -> list[EventRecord]:
    """Return the events since the bus was opened."""
    return [event async for event in bus.events(after=last)]


def _log(bus: Bus, path: str | None, findings: Sequence[Finding]) -> None:
    if path is not None:
        from agentbus.api.monitor import write_log

        write_log(bus._engine, path, findings)


def _rules(given: Any) -> dict[str, Any]:
    return {
        "suspect_after": given.suspect_after,
        "fail_after": given.fail_after,
        "fail_stuck_after": given.fail_stuck_after,
    }


def _monitor(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("--interval", type=seconds, default=SWEEP_INTERVAL, metavar="S", help="seconds between sweeps (default 5)")
    add(
        "--suspect-after",
        type=seconds,
        default=SUSPECT_AFTER,
        metavar="S",
        help="seconds of silence before an agent is suspect (default 60)",
    )
    add(
        "--fail-after", type=seconds, default=FAIL_AFTER, metavar="S",
        help="seconds of silence before an agent without a visible process is marked failed (default 300)",
    )  # fmt: skip
    add(
        "--fail-stuck-after",
        type=seconds,
        metavar="S",
        help="the same for an agent with a live process (default: never)",
    )
    add("--log", metavar="FILE", help="also append the findings to this file")
    add("--once", action="store_true", help="sweep once and exit")


COMMANDS = {
    "monitor": Command(
        monitor,
        "Detect dead agents and interrupted sessions, release their work and deliver notifications, until Ctrl-C.",
        "agentbus monitor --interval 2 --log monitor.log", _monitor,
        output="plain output: at, severity, kind, subject, text\nwith --json one envelope per line\n"
        "with --once, by the first column:\n  finding, at, severity, kind, subject, text\n  count, name, count",
        columns=True,
    ),
}  # fmt: skip
