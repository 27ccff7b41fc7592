"""Messages between real processes arrive by notification, not by polling."""

import asyncio
import sqlite3
import stat
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from statistics import median
from zlib import crc32

import pytest

import agentbus
from agentbus import SystemClock
from agentbus.core.clock import Timer
from tests.faults.rows import lock_held
from tests.support.processes import Team

REQUESTS = 20
FROZEN = 60
"""Agents of a frozen process: many more than notifications fit into its socket."""
PROMPT = 5.0
"""Seconds, on a busy machine too; the heartbeat, which is the only polling, comes once an hour here."""


class Listening(SystemClock):
    """The system's clock; reports when a wait of ``seconds`` begins."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds
        self.waiting = asyncio.Event()

    def call_later(self, loop: asyncio.AbstractEventLoop, seconds: float, callback: Callable[[], None]) -> Timer:
        if abs(seconds - self._seconds) < 1:
            self.waiting.set()
        return super().call_later(loop, seconds, callback)


def sockets(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if stat.S_ISSOCK(path.lstat().st_mode)]


@pytest.mark.parametrize("deep", [False, True], ids=["short path", "path too long for a socket"])
async def test_request_and_reply_between_processes_need_no_polling(
    short: Path, runtime: Path, team: Team, deep: bool
) -> None:
    path = short / "bus" / ("deep-" * 24 if deep else "")
    async with (
        agentbus.connect(path, beat_every=3600) as bus,
        bus.agent("asker", type="worker") as asker,
    ):
        team.start("worker_echo", path, "echo").expect("ready")
        assert len(sockets(runtime)) == (2 if deep else 0)
        assert len(sockets(path)) == (0 if deep else 2)
        times: list[float] = []
        for number in range(REQUESTS):
            begun = time.perf_counter()
            reply = await asker.request("echo", "coordination_request", number, timeout=20)
            times.append(time.perf_counter() - begun)
            assert reply.payload == {"echo": number, "by": "echo"}
        print(f"{REQUESTS} round trips: p50 {median(times) * 1e3:.1f} ms, longest {max(times) * 1e3:.1f} ms")
        assert median(times) < PROMPT


async def test_a_pool_of_processes_shares_the_work_and_wakes_at_once(short: Path, team: Team) -> None:
    async with (
        agentbus.connect(short / "bus", beat_every=3600) as bus,
        bus.agent("asker", type="worker") as asker,
    ):
        names = [f"echo-{number}" for number in range(3)]
        for worker in [team.start("worker_echo", short / "bus", name) for name in names]:
            worker.expect("ready")
        served: Counter[str] = Counter()
        times: list[float] = []

        async def ask(number: int) -> None:
            begun = time.perf_counter()
            reply = await asker.request(agentbus.pool("jobs"), "task_assignment", number, timeout=20)
            times.append(time.perf_counter() - begun)
            assert reply.payload["echo"] == number
            served[reply.payload["by"]] += 1

        for number in range(REQUESTS):
            await ask(number)
        alone = median(times)
        # The scheduler decides which of the woken processes is first, so one may get nothing for a while.
        bursts = 0
        deadline = time.monotonic() + 60
        while bursts < REQUESTS // 10 or (set(served) != set(names) and time.monotonic() < deadline):
            await asyncio.gather(*(ask(number) for number in range(10)))
            bursts += 1
        print(f"{sum(served.values())} jobs: {dict(served)}, p50 of one by one {alone * 1e3:.1f} ms")
        assert alone < PROMPT
        assert sum(served.values()) == REQUESTS + 10 * bursts
        assert set(served) == set(names), "an agent of the pool never got anything"


async def test_a_message_without_a_notification_is_found_by_the_next_heartbeat(tmp_path: Path) -> None:
    """As if its sender had been killed between its commit and its bell."""
    clock = Listening(30)
    async with (
        agentbus.connect(tmp_path, beat_every=0.2, clock=clock) as bus,
        bus.agent("receiver", type="worker") as receiver,
    ):
        receiving = asyncio.create_task(receiver.receive(timeout=30))
        await asyncio.wait_for(clock.waiting.wait(), 30)
        begun = time.monotonic()
        with closing(sqlite3.connect(tmp_path / "bus.db", isolation_level=None, timeout=30)) as connection:
            connection.execute(
                "INSERT INTO messages"
                " (id, mailbox, sender, type, checksum, priority, status, max_attempts, created, payload)"
                " SELECT 1000, mailbox, 'ghost', 'note', ?, 5, 'queued', 5, 0, '7' FROM agents",
                (crc32(b"7"),),
            )
        message = await asyncio.wait_for(receiving, 30)
        took = time.monotonic() - begun
        print(f"1 message without a bell, 0 lost, found after {took * 1000:.0f} ms with a beat of 200 ms")
        assert message is not None
        assert message.payload == 7
        assert took < 10
        await message.ack()


async def test_notifications_that_met_a_full_queue_are_repeated(short: Path, team: Team) -> None:
    """A frozen process: only the first few bells fit into its socket; each of the others is for another agent."""
    count = 60
    path = short / "bus"
    many = team.start("worker_many", path, count)
    for _ in range(count):
        many.expect("waiting")
    async with (
        agentbus.connect(path, beat_every=3600) as bus,
        bus.agent("sender", type="worker") as sender,
    ):
        # One message has gone the whole way, so all that came before it waits: agents receive in the order they came.
        await sender.send(f"agent-{count - 1}", "note", "warm")
        assert many.expect("got").split()[0] == str(count - 1)
        with lock_held(path):
            many.stop()
        for number in range(count - 1):
            await sender.send(f"agent-{number}", "note", number)
        many.resume()
        begun = time.monotonic()
        got = [await asyncio.to_thread(many.expect, "got") for _ in range(count - 1)]
        took = time.monotonic() - begun
        print(f"{count - 1} commits to a frozen process: {len(got)} received, {took * 1000:.0f} ms after it went on")
        assert sorted(int(line.split()[0]) for line in got) == list(range(count - 1))
        assert took < 10
    many.finish()


async def test_a_stopped_process_does_not_delay_the_sender(short: Path, team: Team) -> None:
    """Its bell stays full for as long as it is frozen; ringing it again must not keep a core busy."""
    path = short / "bus"
    many = team.start("worker_many", path, FROZEN)
    for _ in range(FROZEN):
        many.expect("waiting")
    async with (
        agentbus.connect(path, beat_every=3600) as bus,
        bus.agent("sender", type="worker") as sender,
    ):
        with lock_held(path):
            many.stop()
        for number in range(FROZEN):
            await sender.send(f"agent-{number}", "note", number)
        begun, since = time.process_time(), time.monotonic()
        assert await sender.receive(timeout=0.5) is None
        busy, took = time.process_time() - begun, time.monotonic() - since
        print(f"{FROZEN} commits to a frozen process: then {busy / took * 100:.1f} % of a core")
        assert busy < 0.3 * took
        many.resume()
        for _ in range(FROZEN):
            await asyncio.to_thread(many.expect, "got")
    many.finish()
