"""kill -9 at any moment: no acknowledged send is lost, and no message is under two live leases."""

import asyncio
import random
import sqlite3
import threading
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

import agentbus
from tests.faults.rows import integrity, no_process_writes, rows, value
from tests.support.figures import Figure, Scale
from tests.support.processes import Team, Worker

SEED = 20_240_613
IN_QUEUE = "mailbox = (SELECT id FROM mailboxes WHERE kind = 'pool')"

# Every change of a message's status, in the order of the commits, with the wall milliseconds at which it was made.
AUDIT = """
CREATE TABLE audit (
    id INTEGER PRIMARY KEY, at REAL, message INTEGER, was TEXT, became TEXT, lease INTEGER, held_by TEXT, holds TEXT
);
CREATE TRIGGER audit_messages AFTER UPDATE OF status ON messages
BEGIN
    INSERT INTO audit (at, message, was, became, lease, held_by, holds)
    VALUES (
        (julianday('now') - 2440587.5) * 86400000, NEW.id, OLD.status, NEW.status, NEW.lease, OLD.holder, NEW.holder
    );
END;
"""


def watch(bus: Path) -> None:
    with closing(sqlite3.connect(bus / "bus.db", timeout=10, isolation_level=None)) as connection:
        connection.executescript(AUDIT)


class Storm:
    """Workers that are killed at random and replaced; knows when each was killed."""

    def __init__(self, bus: Path, team: Team, rng: random.Random, workers: int) -> None:
        self._bus = bus
        self._team = team
        self._rng = rng
        self._started = 0
        self.killed: dict[str, float] = {}
        self.done: list[tuple[int, int]] = []
        self.claimed = 0
        self.workers = [self._start() for _ in range(workers)]

    def kill_one(self) -> None:
        """Kill a worker after some claims, and start another; now and then kill that one while it opens the bus."""
        place = self._rng.randrange(len(self.workers))
        for _ in range(self._rng.randint(1, 12)):
            self._note(self.workers[place][1].line())
        self._kill(*self.workers[place])
        self.workers[place] = self._start()
        if self._rng.random() < 0.25:
            name, worker = self.workers[place]
            worker.expect("opening")
            threading.Event().wait(self._rng.uniform(0, 0.1))
            self._kill(name, worker)
            self.workers[place] = self._start()

    def finish(self) -> None:
        for name, worker in self.workers:
            self._kill(name, worker)

    def _start(self) -> tuple[str, Worker]:
        self._started += 1
        name = f"worker-{self._started}"
        return name, self._team.start("worker_pool", self._bus, name)

    def _kill(self, name: str, worker: Worker) -> None:
        # Taken before the kill: its messages are taken away later.
        self.killed[name] = time.time() * 1000
        worker.kill()
        for line in worker.said():
            self._note(line)

    def _note(self, line: str) -> None:
        word, *numbers = line.split()
        if word == "done":
            self.done.append((int(numbers[0]), int(numbers[1])))
        self.claimed += word == "claimed"


def leases_of_live_holders_lost(bus: Path, killed: dict[str, float]) -> list[str]:
    """Every hand-out that met a live lease.

    A lease ends when its holder acknowledges, or is dead. (It never runs out: it is longer than the test.) So a message
    may go from leased to queued only after its holder was killed, and never from leased to leased.
    """
    wrong: list[str] = []
    leases: dict[int, int] = {}
    for at, message, was, became, lease, held_by, holds in rows(
        bus, "SELECT at, message, was, became, lease, held_by, holds FROM audit ORDER BY id"
    ):
        if became == "leased":
            if was != "queued" or lease != leases.get(message, 0) + 1:
                wrong.append(f"message {message}: lease {lease} for {holds}, but it was {was} by {held_by}")
            leases[message] = lease
        elif was == "leased" and became != "acked":
            # A millisecond is what SQLite's clock is exact to.
            if held_by not in killed or at < killed[held_by] - 1:
                wrong.append(f"message {message}: taken from {held_by}, which was alive, at {at}")
        elif became == "acked" and (was != "leased" or lease != leases.get(message)):
            wrong.append(f"message {message}: acked from {was} with lease {lease}")
    return wrong


@pytest.mark.slow
@pytest.mark.fault(1)
def test_workers_killed_at_random_lose_nothing_and_share_no_lease(
    tmp_path: Path, team: Team, figure: Figure, scale: Scale
) -> None:
    rng = random.Random(seed := scale.seed(SEED))
    kills = scale(10, 200, 2000)
    bus = tmp_path / "bus"
    driver = team.start("worker_driver", bus)
    driver.expect("ready")
    watch(bus)
    storm = Storm(bus, team, rng, scale(3, 6))
    # Whether a worker that is killed holds a message is chance, so the number of kills depends on it too.
    again = f"SELECT count(*) FROM messages WHERE attempts > 1 AND {IN_QUEUE}"
    deadline = time.monotonic() + scale(60, 1200, 3000)
    while len(storm.killed) < kills or value(bus, again) < scale(1, 5):
        assert time.monotonic() < deadline, f"{len(storm.killed)} kills, {value(bus, again)} messages delivered again"
        storm.kill_one()
    driver.tell("stop")
    said = driver.finish(60)
    storm.finish()

    sent = [int(line.split()[1]) for line in said if line.startswith("sent")]
    results = Counter(int(line.split()[1]) for line in said if line.startswith("result"))
    statuses = dict(rows(bus, f"SELECT status, count(*) FROM messages WHERE {IN_QUEUE} GROUP BY status"))
    acked = {
        (message, lease) for message, lease in rows(bus, "SELECT message, lease FROM audit WHERE became = 'acked'")
    }
    lost = [number for number in sent if not results[number]]
    doubled = [number for number, times in results.items() if times > 1]
    wrong = leases_of_live_holders_lost(bus, storm.killed)
    figure(
        kills=len(storm.killed),
        acknowledged=len(sent),
        lost=len(lost),
        duplicated=len(doubled),
        leases_of_live_holders_lost=len(wrong),
        delivered_again=value(bus, again),
    )
    print(f"seed {seed}")
    assert not lost
    assert not doubled
    assert not wrong
    assert statuses == {"acked": len(sent)}
    assert set(storm.done) <= acked, "an acknowledgement returned to a worker, and is not stored"
    no_process_writes(bus)
    assert integrity(bus) == "ok"


@pytest.mark.slow
@pytest.mark.fault(1)
@pytest.mark.parametrize("durability", ["disk", "process"])
def test_a_sender_killed_at_any_moment_loses_no_acknowledged_send_and_can_retry(
    tmp_path: Path, team: Team, figure: Figure, scale: Scale, durability: str
) -> None:
    rng = random.Random(scale.seed(SEED + 1))
    bus = tmp_path / "bus"
    acknowledged: set[int] = set()
    kills = 0
    while kills < scale(4, 20, 300):
        # As a program does that was restarted: continue with the first send it has no receipt for, under the same id.
        sender = team.start("worker_sender", bus, len(acknowledged), durability)
        for _ in range(rng.randint(1, 80)):
            acknowledged.add(int(sender.expect("sent")))
        threading.Event().wait(rng.uniform(0, 0.01))
        sender.kill()
        kills += 1
        acknowledged.update(int(line.split()[1]) for line in sender.said() if line.startswith("sent"))
        there = Counter(row[0] for row in rows(bus, "SELECT message_id FROM messages"))
        lost = [number for number in acknowledged if not there[f"n-{number}"]]
        assert not lost
        assert acknowledged == set(range(len(acknowledged)))
        assert len(there) <= len(acknowledged) + 1
    doubled = [name for name, times in there.items() if times > 1]
    note = f"senders, durability {durability}"
    figure(note, kills=kills, acknowledged=len(acknowledged), lost=len(lost), duplicated=len(doubled))
    assert not doubled
    assert rows(bus, "SELECT id FROM messages WHERE message_id <> 'n-' || json_extract(payload, '$.number')") == []
    no_process_writes(bus)
    assert integrity(bus) == "ok"


@pytest.mark.parametrize("reaped", [True, False], ids=["reaped", "unreaped"])
def test_a_killed_worker_counts_as_dead_whether_it_was_reaped_or_not(tmp_path: Path, team: Team, reaped: bool) -> None:
    """Its parent may not have waited for it yet: then its pid still exists, but the process does not."""
    bus = tmp_path / "bus"
    driver = team.start("worker_driver", bus)
    driver.expect("ready")
    first = team.start("worker_hold", bus, "first")
    held = first.expect("holding")
    if reaped:
        first.kill()
    else:
        first.kill_unreaped()
    # The next process that opens the bus marks the dead one; its message is the oldest again.
    second = team.start("worker_hold", bus, "second")
    assert second.expect("holding") == held


async def test_a_killed_worker_is_detected_by_other_processes_within_a_heartbeat(tmp_path: Path, team: Team) -> None:
    """No process opens the bus again, and the lease is long: the processes that have it open check each other."""
    path = tmp_path / "bus"
    async with (
        agentbus.connect(path, beat_every=0.2) as bus,
        bus.agent("second", type="worker", pools=["jobs"]) as second,
    ):
        first = team.start("worker_hold", path, "first")
        await asyncio.to_thread(first.expect, "ready")
        await second.send(agentbus.pool("jobs"), "task_assignment", {"number": 1})
        held = await asyncio.to_thread(first.expect, "holding")
        first.kill()
        begun = time.monotonic()
        message = await second.receive(timeout=20)
        print(f"noticed after {time.monotonic() - begun:.2f} s")
        assert message is not None
        assert message.message_id == held
        await message.ack()
        record = await bus.agents.get("first")
        assert record is not None
        assert (record.status, record.error) == ("failed", "its process died")
