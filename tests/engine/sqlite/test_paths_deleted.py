"""A bus that is deleted while it is open."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

import agentbus
from agentbus.errors import DatabaseGone


async def test_the_watchdog_makes_no_new_bus_where_one_was_deleted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = tmp_path / "bus"
    with pytest.raises(DatabaseGone):
        async with agentbus.connect(place) as bus, bus.agent("a", type="worker") as agent:
            await agent.send("a", "note")
            message = await agent.receive(lease=1)
            assert message is not None
            async with message:
                shutil.rmtree(place)
                give_up = time.monotonic() + 60
                # The loop is blocked until the watchdog has tried to renew the lease.
                while "could not be renewed" not in caplog.text and not place.exists():
                    assert time.monotonic() < give_up
                    time.sleep(0.01)  # noqa: ASYNC251 - the loop is to be blocked
    assert not place.exists()
    assert str(DatabaseGone(path=place / "bus.db").args[0]) in caplog.text
