"""What every bus can do to be kept well: retention, archives, backups, and the doctor."""

from __future__ import annotations

import logging
import os

from agentbus.disk import check_path
from agentbus.engine.interface import Engine
from agentbus.errors import AgentBusError, InvalidInput
from agentbus.limits import check_range
from agentbus.services import doctor
from agentbus.services.retention import Retention, import_archive
from agentbus.upkeep import BackupRecord, Check, ImportReport

log = logging.getLogger("agentbus")

KEEP_BACKUPS = 10


class Keeping:
    """A part of ``Bus``."""

    engine: Engine
    retention: Retention

    async def import_archive(self, path: str | os.PathLike[str]) -> ImportReport:
        """Put back what an archive of ``bus.retention`` has and the bus has not. Twice is the same as once.

        Lines that are damaged, or that belong to another bus, are reported and left out. What comes back is as old as
        it was: the next retention takes it again, so import into a bus of its own to look at it for longer.

        >>> await bus.import_archive(".agentbus/archive/20260101T000000.000Z-1a2b3c4d.jsonl.gz")   # doctest: +SKIP
        """
        return await import_archive(self.engine, path)

    async def backup(self, path: str | os.PathLike[str] | None = None, *, keep: int = KEEP_BACKUPS) -> BackupRecord:
        """A verified copy of the bus while everybody works on: it has all that was committed before it began.

        In ``backups/`` of the bus, where the newest ``keep`` stay; or at a ``path`` that does not exist yet, or in a
        directory. ``agentbus.restore_backup`` reads it again. With ``AGENTBUS_BACKUP_ON_OPEN=1`` every opening makes
        one.

        >>> (await bus.backup()).path                                                 # doctest: +SKIP
        '/home/me/project/.agentbus/backups/bus-20260101T000000.000Z-1a2b3c4d.db'
        """
        check_range(keep, "keep", 1, 1_000_000)
        return await self.engine.backup(None if path is None else check_path(path), keep)

    async def doctor(self) -> list[Check]:
        """Look whether everything is in order: the database, what is in it, the disk, the clock. Changes nothing.

        >>> for check in await bus.doctor():                                          # doctest: +SKIP
        ...     print(check.status, check.name, check.text, check.fix or "")
        """
        return await doctor.examine(self.engine)

    async def _backup_on_open(self) -> None:
        """A bus that cannot be backed up can still be worked with."""
        if _is_set("AGENTBUS_BACKUP_ON_OPEN"):
            try:
                record = await self.backup()
            except AgentBusError as error:
                log.warning("no backup on opening: %s", error)
            else:
                log.info("backed up to %s", record.path)


def _is_set(variable: str) -> bool:
    text = os.environ.get(variable, "").strip().lower()
    if text in {"", "0", "false", "no", "off"}:
        return False
    if text in {"1", "true", "yes", "on"}:
        return True
    raise InvalidInput(reason=f"{variable} is {text!r:.40}, it must be 1 or 0")
