"""Archives of a bus, read again: those that retention wrote, and those that were exported."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

from agentbus.engine.interface import Engine
from agentbus.errors import ArchiveDiffers, FormatRefused, Outdated, UnknownSession
from agentbus.operations.archives import (
    ArchivedEvent,
    ArchivedPlace,
    ArchivedSession,
    ArchivedType,
    Line,
    bus_name,
    kind_of,
)
from agentbus.operations.restoring import RestoreRequest, restore
from agentbus.services.archive import Limits, Read, read
from agentbus.services.importing.fitting import MISFITS, Fitting
from agentbus.services.importing.tally import FileTally
from agentbus.services.threads import to_its_end

REFUSALS = (ArchiveDiffers, FormatRefused, Outdated, UnknownSession, *MISFITS)
"""What may be wrong with one line; whatever else goes wrong ends the import."""
_TOGETHER = 200
"""Lines that are imported in one transaction."""
_BYTES = 4 * 1024 * 1024
_FIRST = (ArchivedSession, ArchivedType, ArchivedPlace, ArchivedEvent)
"""Other lines refer to these; and events come before the import writes its own, which would take their numbers."""


async def bring_archive(
    engine: Engine, path: Path, limits: Limits, tally: FileTally, tell: Callable[[float], None]
) -> None:
    """Put back what an archive has and the bus has not. ``tell`` hears which part of it is done."""
    home = await engine.read(bus_name, None)
    fitting = Fitting()

    async def put(line: Line, one: Read) -> bool:
        at_home = one.bus is not None and one.bus == home
        return await fitting.written(
            line, lambda fits: engine.write(restore, RestoreRequest(line, one.size, at_home, fits))
        )

    for step, first in enumerate((True, False)):
        place = _Place()
        lines = read(path, engine.holds, limits, place.at)
        try:
            while taken := await to_its_end(_take, lines, first):
                wanted: list[tuple[Line, Read]] = []
                for one in taken:
                    if isinstance(one.line, str):
                        tally.refuse(one.number, one.line)
                    else:
                        wanted.append((one.line, one))
                # A request each: one that is refused must not hold up its neighbours. The writer puts them together.
                outcomes = await asyncio.gather(*(put(*each) for each in wanted), return_exceptions=True)
                for (line, one), outcome in zip(wanted, outcomes, strict=True):
                    if isinstance(outcome, REFUSALS):
                        tally.refuse(one.number, str(outcome))
                    elif isinstance(outcome, BaseException):
                        raise outcome
                    else:
                        tally.take(kind_of(line), outcome)
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
