"""Waits of a workflow: for a time, a signal or a message. The task is released during the wait, unless other
branches of its workflow are busy."""

from __future__ import annotations

from typing import Any

from agentbus.api.tasks.run import Run, Wait
from agentbus.core.validation import MAX_SECONDS, check_number, check_seconds
from agentbus.errors import InvalidInput, SignalTimedOut
from agentbus.operations.task_lookups import Recorded
from agentbus.operations.task_steps import StepIdentity
from agentbus.operations.task_waits import Waited, WaitRequest, has_arrived, wait_step

_LAST_SECOND = 253_402_300_799
"""The last second of the year 9999. A larger number is a time in milliseconds."""


def check_duration(seconds: float, minutes: float, hours: float, days: float) -> int:
    """Return a duration in milliseconds."""
    parts = {"seconds": (seconds, 1), "minutes": (minutes, 60), "hours": (hours, 3600), "days": (days, 86_400)}
    checked = [check_number(value, name, 0, MAX_SECONDS // unit) * unit for name, (value, unit) in parts.items()]
    return check_seconds(sum(checked), "sleep", zero=True)


def check_moment(time: object) -> int:
    """Return a time, an aware datetime or seconds since the epoch, in milliseconds."""
    from datetime import datetime

    if isinstance(time, datetime):
        if time.utcoffset() is None:
            raise InvalidInput(
                reason=f"{time!r} has no time zone, so it names no moment: datetime(…, tzinfo=UTC), or .astimezone()"
            )
        # Its offset or rounding can move it to the year 10000.
        time = max(0.0, time.timestamp())
    if isinstance(time, bool) or not isinstance(time, int | float):
        raise InvalidInput(reason=f"{time!r} is not a time: pass an aware datetime, or seconds since the epoch")
    return round(check_number(time, "time", 0, _LAST_SECOND) * 1000)


async def finish_wait(
    run: Run, kind: str, name: str, *, delay: int | None = None, due: int | None = None
) -> tuple[str, int]:
    """Wait, and return the JSON that the wait recorded, with its checksum. It ends after ``delay`` milliseconds or at
    ``due`` at the latest, counted from when the workflow first came here."""
    with run.busy():
        identity, known = run.locate(kind, name)
        if known is None or known.status not in {"finished", "failed"}:
            waited = await _Waiting(run, identity, known, delay, due).finish()
        else:
            waited = Waited(known.status, None, (str(known.result), known.checksum or 0))
        if waited.status == "failed":
            run.unhandled[identity.key] = None
            raise SignalTimedOut(task=run.claimed.id, name=name, step=identity.key)
        assert waited.result is not None  # noqa: S101 - a finished one has a result
        return waited.result


class _Waiting:
    """A wait that is not over."""

    def __init__(
        self, run: Run, identity: StepIdentity, known: Recorded | None, delay: int | None, due: int | None
    ) -> None:
        self._run = run
        self._identity = identity
        self._known = known
        self._limits = delay, due
        self._due: int | None = None
        self._until: int | None = None
        """Awake time of the end: setting the wall clock back does not prolong a duration."""

    async def finish(self) -> Waited:
        run, identity = self._run, self._identity
        waited = await self._record(new=self._known is None)
        if waited.status == "waiting":
            if self._known is None:
                run.report(identity.kind, identity.key, "waiting")
            now = run.engine.clock.now()
            self._due = waited.due
            if waited.due is not None and identity.kind != "until":
                self._until = now.awake + max(0, waited.due - now.wall)
            waited = await run.wait(Wait(identity.kind, identity.key, waited.due), self._over)
        run.report(identity.kind, identity.key, waited.status)
        return waited

    async def _over(self) -> Waited | None:
        """Return the wait once it is over."""
        run, identity = self._run, self._identity
        now = run.engine.clock.now()
        expired = (self._due is not None and now.wall >= self._due) or (
            self._until is not None and now.awake >= self._until
        )
        wanted = (run.hold.number, identity.kind, identity.name)
        if not expired and (identity.kind in {"sleep", "until"} or not await run.read_inline(has_arrived, wanted)):
            return None
        waited = await self._record(expired=expired)
        return None if waited.status == "waiting" else waited

    async def _record(self, **state: Any) -> Waited:
        """Record the wait, or its end if it is over."""
        run = self._run
        delay, due = self._limits
        ending = run.next_ending()
        request = WaitRequest(
            run.agent._actor, run.hold, self._identity, **{"new": False, **state}, delay=delay, due=due, ending=ending
        )
        waited = await run.write(wait_step, request)
        if waited.status != "waiting":
            run.mark_seen(ending)
        return waited
