"""Whether a bus outgrows one file, and what to do then. Imports nothing that the command line starts without."""

from __future__ import annotations

from collections.abc import Mapping
from shlex import quote

import msgspec

from agentbus.errors import InvalidInput, OutOfRange
from agentbus.operations.outgrowing import Crowd
from agentbus.settings import number


class Bounds(msgspec.Struct, frozen=True):
    """From where on a server would do better: seconds of each minute that writers wait for the lock, all together;
    processes that have the bus open; bytes of the database.

    >>> outgrown(Crowd(waits=75.0, writers=4), 2**20, Bounds())
    ['writers waited for each other for 75 s of each minute']
    """

    waits: float = 30.0
    writers: float = 32
    size: float = 4 * 1024**3


def bounds(given: Mapping[str, float] | None = None) -> Bounds:
    """The bounds that hold: those given, else those of the environment (AGENTBUS_OUTGROWN_WAITS …), else our own.

    >>> bounds({"writers": 8}).writers
    8
    """
    given = given or {}
    unknown = [name for name in given if name not in Bounds.__struct_fields__]
    if unknown:
        known = ", ".join(Bounds.__struct_fields__)
        raise InvalidInput(reason=f"a bus is not outgrown by {unknown[0]!r}; there are {known}")
    values = {
        name: given.get(name, number(f"AGENTBUS_OUTGROWN_{name.upper()}", default))
        for name, default in zip(Bounds.__struct_fields__, Bounds.__struct_defaults__, strict=True)
    }
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise OutOfRange(what=f"outgrown {name}", value=value, allowed="a number above 0")
    return Bounds(**values)


def outgrown(crowd: Crowd, size: int, bounds: Bounds) -> list[str]:
    """Why one file is too small; nothing if it is not."""
    found: list[str] = []
    if crowd.waits >= bounds.waits:
        found.append(f"writers waited for each other for {crowd.waits:.0f} s of each minute")
    if crowd.writers >= bounds.writers:
        have = "process has" if crowd.writers == 1 else "processes have"
        found.append(f"{crowd.writers} {have} it open")
    if size >= bounds.size:
        found.append(f"it has {size / 2**20:,.0f} MiB")
    return found


def way_out(home: str) -> str:
    """What to do about it.

    >>> way_out(".agentbus")
    'move it to a server, while nobody has it open: agentbus copy .agentbus postgresql://…'
    """
    return f"move it to a server, while nobody has it open: agentbus copy {quote(home)} postgresql://…"
