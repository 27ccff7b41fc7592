"""What keeps a bus in order, as the bus hands it out: monitor and sweep, archives, backups, the doctor."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping

from agentbus.disk import check_path
from agentbus.engine.interface import Engine, Progress
from agentbus.errors import AgentBusError, OutOfRange
from agentbus.limits import check_range, check_seconds
from agentbus.operations.liveness import Rules
from agentbus.records import BackupRecord, Check, ExportReport, ImportReport, Sweep
from agentbus.services import doctor, importing
from agentbus.services.archive import Limits
from agentbus.services.callbacks import check_callback
from agentbus.services.exporting import export
from agentbus.services.findings import Thresholds
from agentbus.services.monitor import Callback, Chore, Monitor
from agentbus.services.outgrowing import bounds
from agentbus.services.retention import Retention, apply_when_due
from agentbus.services.sweeping import Sweeper
from agentbus.services.threads import Threads
from agentbus.settings import switched_on

log = logging.getLogger("agentbus")

KEEP_BACKUPS = 10
_MOST = 1_000_000_000
_LOOK_FOR_RETENTION_EVERY = 60.0
"""Seconds between two looks whether it is time to apply retention."""


class Upkeep:
    """The part of a bus that looks after it."""

    engine: Engine
    beat_every: float
    max_payload: int
    max_snapshot: int
    retention: Retention
    threads: Threads

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
        ``agentbus.monitor`` and to ``log_file``. About once an hour, but not in its first ``interval``, it applies
        ``bus.retention``, unless somebody else did. Any number of monitors may run.

        >>> async with bus.monitor(fail_stuck_after=600, log_file="monitor.log", on_finding=print):   # doctest: +SKIP
        ...     await work()
        """
        seconds = check_seconds(interval, "interval") / 1000
        sweeper = self._sweeper(suspect_after, fail_after, fail_stuck_after, deep_queue)
        if on_finding is not None:
            check_callback(on_finding, "on_finding", "finding")
        chore = Chore("retention", _LOOK_FOR_RETENTION_EVERY, lambda: apply_when_due(self.engine))
        return Monitor(
            self.engine, sweeper, interval=seconds, log_file=log_file, on_finding=on_finding, chores=(chore,),
            threads=self.threads,
        )  # fmt: skip

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

    async def import_path(
        self, path: str | os.PathLike[str], *, progress: importing.Progress | None = None
    ) -> ImportReport:
        """Bring in what people have today: a folder of JSON files (agents, sessions, checkpoints, outputs, loose temp
        files), an SQLite database of hand-made coordination, or an archive. Twice is the same as once.

        What is there already is never changed. Agents that were running come in as failed, sessions that were active
        as interrupted, and nobody is told; messages that were not read wait. Names that the bus does not take are
        changed, unknown types defined; the report says what was left out, and why. ``progress`` hears (done, total,
        file) in bytes.

        >>> report = await bus.import_path("old/state")                               # doctest: +SKIP
        >>> report.imported, report.problems                                          # doctest: +SKIP
        ({'agent': 12, 'state': 3}, [ImportProblem(file='x.json', line=0, reason='it is empty', taken=False)])
        """
        limits = Limits(self.max_payload, self.max_snapshot)
        return await importing.import_path(self.engine, path, limits, progress)

    async def export(
        self,
        path: str | os.PathLike[str],
        *,
        session: str | None = None,
        progress: importing.Progress | None = None,
    ) -> ExportReport:
        """Write the bus, or one session with its agents and all that belongs to them, to a file that ``import_path``
        reads: at a ``path`` that does not exist yet, or in a folder.

        Everybody works on meanwhile: what changes is written as it is when its turn comes. ``bus.backup`` is the copy
        of one moment. ``progress`` hears (done, total, kind) in rows.

        >>> (await bus.export("planning-001.jsonl.gz", session="planning-001")).exported   # doctest: +SKIP
        {'session': 1, 'agent': 3, 'document': 2, 'checkpoint': 9, 'message': 14, 'event': 12}
        """
        return await export(self.engine, path, session, progress)

    async def import_archive(self, path: str | os.PathLike[str]) -> ImportReport:
        """Put back what an archive of ``bus.retention`` has and the bus has not. Twice is the same as once.

        Lines are reported and left out that are damaged, whose id or name is something else here by now, or that
        belong to an earlier session of the same name, or an earlier life of an agent that is alive. An empty bus takes
        the archive of any other. What comes back is as old as it was, and goes with the next retention: to look at it
        for longer, import it into a bus of its own.

        >>> await bus.import_archive(".agentbus/archive/20260101T000000.000Z-1a2b3c4d.jsonl.gz")   # doctest: +SKIP
        """
        limits = Limits(self.max_payload, self.max_snapshot)
        return await importing.import_archive(self.engine, path, limits)

    async def backup(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        keep: int = KEEP_BACKUPS,
        progress: Progress | None = None,
    ) -> BackupRecord:
        """A verified copy of the bus while everybody works on: it has all that was committed before it began.

        In ``backups/`` of the bus, where the newest ``keep`` stay; or at a ``path`` that does not exist yet, or in a
        directory. ``agentbus.restore_backup`` reads it again. ``progress`` is told how much is done and of how much,
        from another thread. With ``AGENTBUS_BACKUP_ON_OPEN=1`` every opening makes one.

        A cancelled call leaves a whole backup under its final name, or none. The thread that copies gives up at its
        next step; until then there is a hidden ``.agentbus-….unfinished`` file, which is not listed, restored or
        counted. The bus is not closed before the thread is through; what a killed process leaves, the next backup
        removes.

        >>> (await bus.backup()).path                                                 # doctest: +SKIP
        '/home/me/project/.agentbus/backups/bus-20260101T000000.000Z-1a2b3c4d.db'
        """
        check_range(keep, "keep", 1, 1_000_000)
        return await self.engine.backup(None if path is None else check_path(path), keep, progress)

    async def doctor(self, *, outgrown: Mapping[str, float] | None = None) -> list[Check]:
        """Look whether everything is in order: the database, what is in it, the disk, the clock. Changes nothing, and
        holds nobody up. ``agentbus.doctor`` does the same for a bus that is not, or cannot be, opened.

        ``outgrown`` says from where on a bus is too much for one file: ``waits`` (seconds of each minute that writers
        wait for each other, all together: 30), ``writers`` (processes that have it open: 32), ``size`` (bytes: 4 GiB).
        By default AGENTBUS_OUTGROWN_WAITS, _WRITERS and _SIZE say it.

        >>> for check in await bus.doctor():                                          # doctest: +SKIP
        ...     print(check.status, check.name, check.text, check.fix or "")
        """
        return await doctor.examine(self.engine, bounds(outgrown))

    async def _backup_on_open(self) -> None:
        """A bus that cannot be backed up can still be worked with."""
        if switched_on("AGENTBUS_BACKUP_ON_OPEN"):
            try:
                record = await self.backup()
            except AgentBusError as error:
                log.warning("no backup on opening: %s", error)
            else:
                log.info("backed up to %s", record.path)


def _later(value: float, what: str, least: int) -> int:
    milliseconds = check_seconds(value, what)
    if milliseconds < least:
        raise OutOfRange(what=what, value=value, allowed="seconds, not less than suspect_after")
    return milliseconds
