"""Backups and archives that a bus has beside it, by their names."""

from __future__ import annotations

import os
import re
from pathlib import Path

import msgspec

from agentbus.engine.sqlite.home import Home

_MOMENT = r"([0-9]{8}T[0-9]{6}\.[0-9]{3}Z)-[0-9a-f]{8}"
_BACKUP = re.compile(rf"bus-{_MOMENT}\.db").fullmatch
_ARCHIVE = re.compile(rf"{_MOMENT}\.jsonl\.gz").fullmatch


class Relic(msgspec.Struct, frozen=True):
    """A backup or an archive that a bus has beside it, and the moment that its name tells."""

    path: Path
    moment: str
    backup: bool

    def advice(self, home: Home) -> str:
        """What to do with it when the bus itself is gone."""
        if self.backup:
            return (
                f"there is a backup: close the bus everywhere, then "
                f"agentbus.restore_backup({str(self.path)!r}, {str(home.directory)!r})"
            )
        return f"there is no backup, but an archive of what was old: await bus.import_archive({str(self.path)!r})"


def backups(home: Home) -> list[Relic]:
    """The backups of a bus, newest first, as their names say."""
    found = ((path, _BACKUP(path.name)) for path in _entries(home.backups))
    return sorted((Relic(path, name[1], True) for path, name in found if name), key=_moment, reverse=True)


def newest_relic(home: Home) -> Relic | None:
    """The newest backup; if there is none, the newest archive."""
    found = ((path, _ARCHIVE(path.name)) for path in _entries(home.archive))
    archives = sorted((Relic(path, name[1], False) for path, name in found if name), key=_moment)
    return next(iter([*backups(home), *archives[-1:]]), None)


def _moment(relic: Relic) -> str:
    return relic.moment


def _entries(folder: Path) -> list[Path]:
    """The plain files of a folder. A link is none of the bus's own, and a pipe would hold up who opens it."""
    try:
        with os.scandir(folder) as found:
            return sorted(folder / entry.name for entry in found if entry.is_file(follow_symlinks=False))
    except OSError:
        return []
