"""Where no doorbell can be hung up, the database's version is looked at instead."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from pathlib import Path

import anyio
import pytest

import agentbus
from agentbus.engine.sqlite import doorbell


def _no_socket(directory: Path) -> doorbell.Bell:
    raise OSError("sockets do not work here")


async def test_a_bus_without_a_doorbell_receives_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with agentbus.connect(tmp_path, beat_every=3600) as elsewhere:
        monkeypatch.setattr(doorbell, "Bell", _no_socket)
        async with agentbus.connect(tmp_path, beat_every=3600) as bus:
            assert "no doorbell" in caplog.text
            a = await bus.register("a", type="worker")
            b = await elsewhere.register("b", type="worker")
            waiting = asyncio.create_task(a.receive())
            while not a._waiting:
                await anyio.lowlevel.checkpoint()
            await a.progress(1)  # answered after the claim that found nothing
            begun = time.monotonic()
            await b.send("a", "note", 1)
            with anyio.fail_after(60):
                message = await waiting
            print(
                f"heard after {(time.monotonic() - begun) * 1000:.0f} ms, looking every {doorbell.POLL * 1000:.0f} ms"
            )
            assert message is not None
            await message.ack()


def test_a_doorbell_that_disappears_during_a_sweep_is_skipped(tmp_path: Path) -> None:
    """Processes that open a bus at the same time remove the same leftovers."""
    for name in ("1-first", "2-second"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as leftover:
            leftover.bind(str(tmp_path / name))

    class OtherSweep:
        """Removes a doorbell after it was listed, as another process would."""

        def __contains__(self, bell: object) -> bool:
            if str(bell).endswith("1-first"):
                os.unlink(str(bell))
            return False

    doorbell.sweep(tmp_path, OtherSweep())
    assert list(tmp_path.iterdir()) == []
