"""What keeps a bus in order, as the bus hands it out: the monitor, and its single sweep."""

from __future__ import annotations

import os

from agentbus.engine.interface import Engine
from agentbus.errors import OutOfRange
from agentbus.limits import check_range, check_seconds
from agentbus.operations.liveness import Rules
from agentbus.records import Sweep
from agentbus.services.findings import Thresholds
from agentbus.services.monitor import Callback, Monitor, check_callback
from agentbus.services.sweeping import Sweeper

_MOST = 1_000_000_000


class Upkeep:
    """The part of a bus that looks after it."""

    engine: Engine
    beat_every: float

    def monitor(
        self,
        *,
        interval: float = 5.0,
        suspect_after: float = 60.0,
        fail_after: float = 300.0,
        fail_stuck_after: float | None = None,
        deep_queue: int = 1000,
        log_file: str | os.PathLike[str] | None = None,
        on_finding: Callback | None = None,
    ) -> Monitor:
        """A monitor for the length of a block: every ``interval`` seconds it sweeps, as ``sweep`` does, and tells what
        it finds to ``on_finding`` (which may be async), to whoever iterates over ``monitor.findings()``, to the logger
        ``agentbus.monitor`` and to ``log_file``. Any number of them may run.

        >>> async with bus.monitor(fail_stuck_after=600, log_file="monitor.log", on_finding=print):   # doctest: +SKIP
        ...     await work()
        """
        seconds = check_seconds(interval, "interval") / 1000
        sweeper = self._sweeper(suspect_after, fail_after, fail_stuck_after, deep_queue)
        if on_finding is not None:
            check_callback(on_finding)
        return Monitor(self.engine, sweeper, interval=seconds, log_file=log_file, on_finding=on_finding)

    async def sweep(
        self,
        *,
        suspect_after: float = 60.0,
        fail_after: float = 300.0,
        fail_stuck_after: float | None = None,
        deep_queue: int = 1000,
    ) -> Sweep:
        """Go over the bus once: fail the agents of processes that died; suspect those that were silent for
        ``suspect_after`` seconds of awake time, and fail them ``fail_after`` where their process cannot be seen, or
        ``fail_stuck_after`` (never, by default) where it is there; free and expire what nobody claims; tidy the log.

        >>> [finding.text for finding in (await bus.sweep()).findings]                # doctest: +SKIP
        ['planner-1 failed: its process died']
        """
        return await self._sweeper(suspect_after, fail_after, fail_stuck_after, deep_queue).sweep()

    def _sweeper(
        self, suspect_after: float, fail_after: float, fail_stuck_after: float | None, deep_queue: int
    ) -> Sweeper:
        least = check_seconds(suspect_after, "suspect_after")
        if least < 2000 * self.beat_every:
            # Else everybody would be suspect between two beats.
            allowed = f"at least twice the time between beats, which is {self.beat_every:g} s"
            raise OutOfRange(what="suspect_after", value=suspect_after, allowed=allowed)
        rules = Rules(
            least,
            _later(fail_after, "fail_after", least),
            None if fail_stuck_after is None else _later(fail_stuck_after, "fail_stuck_after", least),
        )
        return Sweeper(self.engine, rules, Thresholds(queue=check_range(deep_queue, "deep_queue", 1, _MOST)))


def _later(value: float, what: str, least: int) -> int:
    milliseconds = check_seconds(value, what)
    if milliseconds < least:
        raise OutOfRange(what=what, value=value, allowed="seconds, not less than suspect_after")
    return milliseconds
