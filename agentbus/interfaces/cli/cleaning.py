"""Cleaning up: ending sessions that everybody left, then archiving and removing what is old enough."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import to_builtins
from msgspec.structs import replace

from agentbus.errors import PlanOutdated, WrongState
from agentbus.interfaces.cli.bars import bar
from agentbus.interfaces.cli.command import Call
from agentbus.interfaces.cli.looping import on_bus
from agentbus.interfaces.cli.output import Result
from agentbus.interfaces.cli.sections import Fields, Part, Sections
from agentbus.limits import check_seconds

if TYPE_CHECKING:
    from agentbus import Bus, RetentionPolicy

_DAY = 24 * 3600
_FOR_DAYS = ("messages", "dead_letters", "agents", "sessions", "tasks", "events", "processes", "tombstones")


def cleanup(call: Call) -> Result:
    given = call.arguments
    ended: list[str] = []
    left: dict[str, str] = {}

    async def work(bus: Bus) -> Any:
        policy = _policy(await bus.retention.policy(), given.failed_sessions, given.keep_days)
        if given.stale is not None:
            await _end_stale(bus, given.stale, given.dry_run, ended, left)
        if given.dry_run:
            return await bus.retention.apply(dry_run=True, policy=policy)
        with bar("cleaning up", call) as report:
            return await bus.retention.apply(policy=policy, progress=report)

    found = on_bus(call, work)
    removed = [{"kind": kind, "count": count} for kind, count in found.removed.items()]
    would = "would be " if given.dry_run else ""
    archive = {} if found.archive is None else {"path": found.archive, "bytes": found.archive_bytes}
    return Sections(
        {**to_builtins(found), "ended": ended, "left": left},
        Part("ended", f"sessions that {would or 'were '}ended", ("session",), [{"session": name} for name in ended]),
        Part(
            "left", "stale sessions that stay as they are", ("session", "why"),
            [{"session": name, "why": why} for name, why in left.items()],
        ),
        Part("removed", f"{would}removed", ("kind", "count"), removed),
        Fields("archive", "archive", archive, {"bytes": "bytes"}),
        empty=None if removed or ended else "nothing is old enough",
    )  # fmt: skip


def _policy(policy: RetentionPolicy, failed_sessions: float | None, keep_days: float | None) -> RetentionPolicy:
    """The policy of the bus, with what was said for this time."""
    changes: dict[str, Any] = {}
    if keep_days is not None:
        seconds = keep_days * _DAY
        check_seconds(seconds, "keep-days in seconds", zero=True)
        changes = dict.fromkeys(_FOR_DAYS, seconds)
        changes["checkpoints_daily"] = int(keep_days)
    if failed_sessions is not None:
        check_seconds(failed_sessions * 3600, "failed-sessions in seconds", zero=True)
        changes["failed_sessions"] = failed_sessions * 3600
    return replace(policy, **changes)


async def _end_stale(bus: Bus, minutes: float, dry_run: bool, ended: list[str], left: dict[str, str]) -> None:
    """Those in which nobody did anything for so long. Where somebody still counts as live, that is not for us."""
    if not dry_run:
        await bus.sweep()
    for session in await bus.sessions.stale(minutes):
        if session.status == "paused":
            left[session.id] = "it was paused"
            continue
        plan = await bus.recovery.plan(session.id)
        if plan.record.at_work or (session.status == "active" and plan.record.owned):
            left[session.id] = f"{', '.join(plan.record.at_work[:3]) or 'its process'} still counts as live"
            continue
        try:
            if not dry_run:
                await plan.abandon(f"nobody did anything in it for {minutes:g} minutes")
        except (PlanOutdated, WrongState) as error:
            left[session.id] = str(error.args[0])
        else:
            ended.append(session.id)
