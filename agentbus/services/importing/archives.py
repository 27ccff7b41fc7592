"""Archives of a bus, read again: those that retention wrote, and those that were exported."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import anyio.to_thread

from agentbus.engine.interface import Engine
from agentbus.errors import ArchiveDiffers, FormatRefused, Outdated, UnknownSession
from agentbus.operations.archives import ArchivedEvent, ArchivedPlace, ArchivedSession, ArchivedType, kind_of
from agentbus.operations.restoring import RestoreRequest, bus_name, restore
from agentbus.services.archive import Read, read
from agentbus.services.importing.tally import FileTally

REFUSALS = (ArchiveDiffers, FormatRefused, Outdated, UnknownSession)
"""What may be wrong with one line; whatever else goes wrong ends the import."""
_TOGETHER = 200
"""Lines that are imported in one transaction."""
_BYTES = 4 * 1024 * 1024
_FIRST = (ArchivedSession, ArchivedType, ArchivedPlace, ArchivedEvent)
"""Other lines refer to these; and events come before the import writes its own, which would take their numbers."""


async def bring_archive(engine: Engine, path: Path, tally: FileTally, tell: Callable[[float], None]) -> None:
    """Put back what an archive has and the bus has not. ``tell`` hears which part of it is done."""
    home = await engine.read(bus_name, None)
    for step, first in enumerate((True, False)):
        place = _Place()
        lines = read(path, engine.holds, place.at)
        try:
            while taken := await anyio.to_thread.run_sync(partial(_take, lines, first)):
                wanted = [one for one in taken if not isinstance(one.line, str)]
                for one in taken:
                    if isinstance(one.line, str):
                        tally.refuse(one.number, one.line)
                # A request each: one that is refused must not hold up its neighbours. The writer puts them together.
                writes = [
                    engine.write(restore, RestoreRequest(one.line, one.size, one.bus is not None and one.bus == home))
                    for one in wanted
                    if not isinstance(one.line, str)
                ]
                outcomes = await asyncio.gather(*writes, return_exceptions=True)
                for one, outcome in zip(wanted, outcomes, strict=True):
                    if isinstance(outcome, REFUSALS):
                        tally.refuse(one.number, str(outcome))
                    elif isinstance(outcome, BaseException):
                        raise outcome
                    elif not isinstance(one.line, str):
                        tally.take(kind_of(one.line), outcome)
                tell((step + place.share) / 2)
        finally:
            lines.close()


class _Place:
    """How far a file is read."""

    share = 0.0

    def at(self, share: float) -> None:
        self.share = share


def _take(lines: Iterator[Read], first: bool) -> list[Read]:
    """The next lines that come first, or those that do not."""
    taken: list[Read] = []
    size = 0
    for one in lines:
        if isinstance(one.line, _FIRST) == first:
            taken.append(one)
            size += one.size
            if len(taken) == _TOGETHER or size > _BYTES:
                break
    return taken
