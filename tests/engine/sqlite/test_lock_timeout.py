"""The write lock held for too long by another process: an error that says by which, nothing written, and then on."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

import anyio
import pytest

import agentbus
from agentbus.core import cancellation
from agentbus.errors import LockTimeout
from tests.api.helpers import count, take, worker
from tests.engine.sqlite.lock_holder import held_elsewhere


async def test_opening_says_which_process_holds_the_lock(tmp_path: Path) -> None:
    async with agentbus.connect(tmp_path) as bus:
        await worker(bus, "a")
    with held_elsewhere(tmp_path) as pid:
        with pytest.raises(LockTimeout) as refused:
            async with agentbus.connect(tmp_path, lock_timeout=0.2):
                pytest.fail("this block must not run")
        assert refused.value.code == "lock_timeout"
        assert refused.value.pid == pid
        assert refused.value.waited >= 0.2
        assert str(pid) in str(refused.value)
        assert refused.value.transient
    async with agentbus.connect(tmp_path, lock_timeout=30) as bus:
        assert await bus.agents.get("a") is not None


async def test_a_write_names_the_lock_holder_and_succeeds_after_it(tmp_path: Path) -> None:
    async with agentbus.connect(tmp_path, lock_timeout=0.2) as bus:
        a = await worker(bus, "a")
        with held_elsewhere(tmp_path) as pid:
            with pytest.raises(LockTimeout) as refused:
                await a.send("a", "note", "too early")
            assert refused.value.pid == pid
            assert await count(bus) == 0, "reading needs no lock"
        await a.send("a", "note", "in time")
        assert (await take(a)).payload == "in time"
        assert await count(bus) == 1


async def test_a_new_bus_says_it_too(tmp_path: Path) -> None:
    with held_elsewhere(tmp_path) as pid:
        with pytest.raises(LockTimeout) as refused:
            async with agentbus.connect(tmp_path, lock_timeout=0.2):
                pytest.fail("this block must not run")
        assert refused.value.pid == pid


async def test_closing_does_not_wait_for_the_lock_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cancellation, "SHUTDOWN_TIMEOUT", 0.1)
    async with AsyncExitStack() as stack:
        bus = await stack.enter_async_context(agentbus.connect(tmp_path, lock_timeout=60))
        await worker(bus, "a")
        with held_elsewhere(tmp_path), anyio.fail_after(15):
            await stack.aclose()
    async with agentbus.connect(tmp_path) as bus:
        await worker(bus, "b")


async def test_a_bus_closed_while_the_lock_is_held_is_marked_dead_though_its_program_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a server that opens the bus for each job: the next one must get the agent and continue its session."""
    monkeypatch.setattr(cancellation, "SHUTDOWN_TIMEOUT", 0.1)
    async with AsyncExitStack() as stack:
        bus = await stack.enter_async_context(agentbus.connect(tmp_path))
        session = bus.session("planning", id="p")
        await session.__aenter__()
        await bus.register("a", type="worker")
        with held_elsewhere(tmp_path):
            await stack.aclose()
    async with agentbus.connect(tmp_path) as bus:
        await bus.register("a", type="worker")
        async with bus.session("planning", id="p") as again:
            assert again.continued
    assert not list((tmp_path / "bells").glob("*"))
