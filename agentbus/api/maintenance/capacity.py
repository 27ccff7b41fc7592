"""Capacity of a bus in one file: limits, warnings and advice. Imports nothing heavy, for the command line."""

from __future__ import annotations

from collections.abc import Mapping
from shlex import quote

import msgspec

from agentbus.core.environment import read_number
from agentbus.errors import InvalidInput, OutOfRange
from agentbus.operations.processes import WriterLoad


class CapacityLimits(msgspec.Struct, frozen=True):
    """Limits above which a server is advised: seconds per minute that all writers together wait for the lock, processes
    that have the bus open, and bytes of the database.

    >>> capacity_warnings(WriterLoad(waits=75.0, writers=4), 2**20, CapacityLimits())
    ['writers waited for each other for 75 s of each minute']
    """

    waits: float = 30.0
    writers: float = 32
    size: float = 4 * 1024**3


def capacity_limits(given: Mapping[str, float] | None = None) -> CapacityLimits:
    """Return the limits: those given, else those of the environment (AGENTBUS_OUTGROWN_WAITS …), else the defaults.

    >>> capacity_limits({"writers": 8}).writers
    8
    """
    given = given or {}
    unknown = [name for name in given if name not in CapacityLimits.__struct_fields__]
    if unknown:
        known = ", ".join(CapacityLimits.__struct_fields__)
        raise InvalidInput(reason=f"unknown capacity limit {unknown[0]!r}; known are {known}")
    values = {
        name: given.get(name, read_number(f"AGENTBUS_OUTGROWN_{name.upper()}", default))
        for name, default in zip(CapacityLimits.__struct_fields__, CapacityLimits.__struct_defaults__, strict=True)
    }
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise OutOfRange(what=f"outgrown {name}", value=value, allowed="a number above 0")
    return CapacityLimits(**values)


def capacity_warnings(load: WriterLoad, size: int, limits: CapacityLimits) -> list[str]:
    """Return the reasons why one file is too small, if any."""
    found: list[str] = []
    if load.waits >= limits.waits:
        found.append(f"writers waited for each other for {load.waits:.0f} s of each minute")
    if load.writers >= limits.writers:
        have = "process has" if load.writers == 1 else "processes have"
        found.append(f"{load.writers} {have} it open")
    if size >= limits.size:
        found.append(f"it has {size / 2**20:,.0f} MiB")
    return found


def migration_advice(home: str) -> str:
    """Return the command that moves the bus to a server.

    >>> migration_advice(".agentbus")
    'stop all processes on the bus, then move it to a server: agentbus copy .agentbus postgresql://…'
    """
    return f"stop all processes on the bus, then move it to a server: agentbus copy {quote(home)} postgresql://…"
