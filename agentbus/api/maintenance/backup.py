"""List and restore backups of a bus that is not open."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from agentbus.core.clock import Clock, SystemClock
from agentbus.core.files import check_path
from agentbus.engine.sqlite import paths
from agentbus.engine.url import server_url
from agentbus.errors import UseServerTools

if TYPE_CHECKING:
    from agentbus.records import BackupRecord


def restore_backup(backup: str | os.PathLike[str], to: str | os.PathLike[str], *, clock: Clock | None = None) -> Path:
    """Replace a bus by a backup, or create the bus from it, and return the directory.

    Refused while a process has the bus open. The backup is copied and verified first, then replaces the bus atomically;
    a refused one leaves nothing behind. The old database stays as ``backups/replaced-….db``. Agents and sessions that
    were running when the backup was made count as interrupted.

    >>> agentbus.restore_backup(".agentbus/backups/bus-….db", ".agentbus")            # doctest: +SKIP
    """
    source = check_path(backup)
    if (server := server_url(to)) is not None:
        from agentbus.engine.postgres.server import parse

        address = parse(server)
        raise UseServerTools(path=address.shown, command=address.restore(str(source)))
    from agentbus.engine.sqlite.restore import restore

    return restore(source, paths.find(to), clock or SystemClock())


def list_backups(url: str | os.PathLike[str] | None) -> list[BackupRecord]:
    """Return the backups of a bus, newest first."""
    if (server := server_url(url)) is not None:
        from agentbus.engine.postgres.server import parse

        address = parse(server)
        raise UseServerTools(path=address.shown, command=address.dump(None))
    from agentbus.engine.sqlite.backup import list_backups

    return list_backups(paths.find(url))
