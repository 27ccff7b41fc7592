"""Connections that only read: as many as are needed, and not for longer."""

from __future__ import annotations

import asyncio

import anyio
import pytest

import agentbus
from agentbus.engine.postgres import readers
from agentbus.engine.postgres.connection import connect
from agentbus.engine.postgres.server import parse


async def test_connections_that_are_not_needed_any_more_are_given_back(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server has a limited number, and many processes may have needed several once."""
    monkeypatch.setattr(readers, "IDLE", 0.2)
    name = parse(url).schema
    other = await connect(parse(url), {"application_name": "other"})

    async def backends() -> int:
        return int(await other.fetchval("SELECT count(*) FROM pg_stat_activity WHERE application_name = $1", name))

    monkeypatch.setitem(_settings(), "application_name", name)
    async with agentbus.connect(url) as bus:
        await asyncio.gather(*(bus.stats() for _ in range(20)))
        with anyio.fail_after(60):
            # One that writes, one that rings, one that reads.
            while await backends() > 3:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert len(await asyncio.gather(*(bus.stats() for _ in range(20)))) == 20
    await other.close()


def _settings() -> dict[str, str]:
    from agentbus.engine.postgres import connection

    return connection._SETTINGS
