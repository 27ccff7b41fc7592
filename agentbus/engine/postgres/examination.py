"""What the doctor asks of a server: its version, its settings, and how large the bus is."""

from __future__ import annotations

from agentbus.engine.postgres.address import Address
from agentbus.records import Check


async def examine(address: Address) -> list[Check]:
    return []


async def size(address: Address) -> int:
    return 0
