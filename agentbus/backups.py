"""Backups of a bus without opening it: which there are, and how one takes its place."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from agentbus.clock import Clock, SystemClock
from agentbus.disk import check_path
from agentbus.engine.places import server_url
from agentbus.engine.sqlite import home
from agentbus.errors import UseServerTools

if TYPE_CHECKING:
    from agentbus.records import BackupRecord


def restore_backup(backup: str | os.PathLike[str], to: str | os.PathLike[str], *, clock: Clock | None = None) -> Path:
    """Put a backup in the place of a bus, or where none is yet; gives the directory.

    Refused while anybody has that bus open. The backup is copied and verified first, then takes the bus's place in one
    step; one that is refused leaves nothing behind. What was there is kept as ``backups/replaced-….db``. Whatever was
    running when the backup was made counts as interrupted.

    >>> agentbus.restore_backup(".agentbus/backups/bus-….db", ".agentbus")            # doctest: +SKIP
    """
    source = check_path(backup)
    if (server := server_url(to)) is not None:
        from agentbus.engine.postgres.address import parse

        address = parse(server)
        raise UseServerTools(path=address.shown, command=address.restore(str(source)))
    from agentbus.engine.sqlite.restoring import restore

    return restore(source, home.find(to), clock or SystemClock())


def list_backups(url: str | os.PathLike[str] | None) -> list[BackupRecord]:
    """The backups that lie beside a bus, newest first."""
    if (server := server_url(url)) is not None:
        from agentbus.engine.postgres.address import parse

        address = parse(server)
        raise UseServerTools(path=address.shown, command=address.dump(None))
    from agentbus.engine.sqlite.backup import list_backups

    return list_backups(home.find(url))
