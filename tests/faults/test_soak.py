"""Random operations in four processes under kill -9: every returned call is durable."""

import asyncio
import json
import os
import random
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

import agentbus
from agentbus import Bus
from agentbus.records import StateEntry
from tests.faults.rows import integrity, no_process_writes, rows, value
from tests.faults.test_kills import watch
from tests.support.figures import Figure, Scale
from tests.support.processes import Team, Worker

SEED = os.environ.get("AGENTBUS_SOAK_SEED", "20240703")
SECONDS = float(os.environ.get("AGENTBUS_SOAK_SECONDS", "0"))
PROCESSES = 4
NOTED = ("set", "version", "document", "checkpoint", "sent", "handled", "giving", "deleted", "finished")


class Soak:
    """The processes, when each was killed, and what they noted."""

    def __init__(self, short: Path, team: Team) -> None:
        self.bus = short / "bus"
        self.log = short / "log"
        self._team = team
        self._lives = 0
        self.killed: dict[str, float] = {}
        self.living: dict[str, Worker] = {}
        self.notes: dict[str, list[list[Any]]] = defaultdict(list)

    def start(self) -> None:
        self._lives += 1
        name = f"w{self._lives}"
        self.living[name] = self._team.start("worker_soak", self.bus, self.log, name, SEED)

    def kill(self, name: str) -> None:
        # Taken before the kill: its messages are taken away later.
        self.killed[name] = time.time() * 1000
        self.living.pop(name).kill()

    def is_enough(self) -> bool:
        """Return whether every kind of call was noted often enough."""
        kinds = Counter(line[2 : line.index('"', 2)] for line in self.log.read_text().splitlines())
        return all(kinds[kind] >= 3 for kind in NOTED)

    def read(self) -> None:
        for text in self.log.read_text().splitlines():
            kind, *facts = json.loads(text)
            self.notes[kind].append(facts)


async def storm(soak: Soak, chance: random.Random, seconds: float, kills: int) -> list[StateEntry]:
    """Run it for so long, and on a busy machine longer; return what a watcher of the shared state received."""
    seen: list[StateEntry] = []
    end = asyncio.Event()

    async def look_on(bus: Bus) -> None:
        async for entry in bus.state("shared").watch():
            seen.append(entry)
            if entry.key == "end":
                end.set()

    async with agentbus.connect(soak.bus, beat_every=0.5) as bus, bus.session("soaking", id="soak") as session:
        await bus.declare(agentbus.pool("jobs"), agentbus.topic("news"))
        await bus.expect("sink", type="worker")
        watch(soak.bus)
        looking = asyncio.create_task(look_on(bus))
        for _ in range(PROCESSES):
            soak.start()
        for worker in soak.living.values():
            await asyncio.to_thread(worker.expect, "begun")
        begun = time.monotonic()
        while (took := time.monotonic() - begun) < seconds or len(soak.killed) < kills or not soak.is_enough():
            assert took < seconds + 60, "hardly anything is done; this test proves little"
            await asyncio.sleep(chance.uniform(0.1, 0.6) if seconds > 3 else chance.uniform(0.05, 0.2))
            soak.kill(chance.choice(list(soak.living)))
            soak.start()
        for name in list(soak.living):
            soak.kill(name)
        # The last that they did must still reach the watcher.
        await bus.state("shared").set("end", True)
        await asyncio.wait_for(end.wait(), 30)
        looking.cancel()
        await session.complete()
    return seen


def wrong_leases(soak: Soak) -> list[str]:
    """Every hand-out that met a live lease: one that its holder neither gave back nor left behind by dying."""
    given = Counter(message for (message,) in soak.notes["giving"])
    wrong: list[str] = []
    leases: dict[int, int] = {}
    for at, message, was, became, lease, held_by, holds in rows(
        soak.bus, "SELECT at, message, was, became, lease, held_by, holds FROM audit ORDER BY id"
    ):
        if became == "leased":
            if was != "queued" or lease != leases.get(message, 0) + 1:
                wrong.append(f"message {message}: lease {lease} for {holds}, but it was {was} by {held_by}")
            leases[message] = lease
        elif was == "leased" and became != "acked":
            if held_by in soak.killed and at >= soak.killed[held_by] - 1:
                continue
            given[message] -= 1
            if given[message] < 0:
                wrong.append(f"message {message}: taken from {held_by}, which was alive")
        elif became == "acked" and was == "leased" and lease != leases.get(message):
            wrong.append(f"message {message}: acked with lease {lease}")
    return wrong


def check_watched(soak: Soak, seen: list[StateEntry]) -> None:
    changes = [entry.change for entry in seen]
    assert changes == sorted(set(changes)), "changes come in their order, and once"
    versions: dict[str, int] = {}
    for entry in seen:
        last = versions.get(entry.key, 0)
        if entry.deleted:
            assert entry.version >= last, entry
        else:
            assert entry.version > last, f"{entry} after version {last}"
        versions[entry.key] = entry.version
    given = Counter((key, version) for key, version in soak.notes["version"] if key != "ghost")
    assert not [one for one, times in given.items() if times > 1], "a version was given out twice"
    final = dict(rows(soak.bus, "SELECT key, version FROM state WHERE scope = 'shared'"))
    for key, version in given:
        assert version <= final[key]


def check_kept(soak: Soak) -> None:
    """Everything that returned is there."""
    notes, bus = soak.notes, soak.bus
    state = {(scope, key): text for scope, key, text in rows(bus, "SELECT scope, key, value FROM state")}
    assert not [(scope, key) for scope, key in notes["set"] if state.get((scope, key)) != json.dumps(key)]
    documents = {
        (name, version): text for name, version, text in rows(bus, "SELECT name, version, value FROM documents")
    }
    assert not [one for one in notes["document"] if documents.get((one[0], one[1])) != json.dumps(one[2])]
    checkpoints = dict(rows(bus, "SELECT id, snapshot FROM checkpoints"))
    assert not [one for one in notes["checkpoint"] if checkpoints.get(one[0]) != json.dumps(one[1])]
    messages = dict(rows(bus, "SELECT message_id, status FROM messages WHERE message_id IS NOT NULL"))
    assert not [name for (name,) in notes["sent"] if name not in messages]
    members = {member for (member,) in rows(bus, "SELECT member FROM participants WHERE finished IS NOT NULL")}
    assert {member for (member,) in notes["finished"]} <= members
    agents = {agent for (agent,) in rows(bus, "SELECT id FROM agents")}
    for (name,) in notes["deleted"]:
        assert name not in agents
        assert state.get((name, "k")) is None
    owners = {owner for (owner,) in rows(bus, "SELECT owner FROM checkpoints WHERE owner_kind = 'agent'")}
    assert not owners & {name for (name,) in notes["deleted"]}


def check_units(soak: Soak) -> None:
    """Each job was handled once: what its unit wrote is there exactly as often as it is acknowledged."""
    notes, bus = soak.notes, soak.bus
    in_pool = "mailbox = (SELECT id FROM mailboxes WHERE kind = 'pool' AND name = 'jobs')"
    acked = {name for (name,) in rows(bus, f"SELECT message_id FROM messages WHERE {in_pool} AND status = 'acked'")}
    results = {name for (name,) in rows(bus, "SELECT message_id FROM messages WHERE message_id GLOB 'result-*'")}
    assert results == {f"result-{name}" for name in acked}
    assert json.loads(value(bus, "SELECT value FROM state WHERE scope = 'shared' AND key = 'handled'")) == len(acked)
    assert value(bus, "SELECT count(*) FROM checkpoints WHERE name = 'u'") == len(acked)
    assert value(bus, "SELECT count(*) FROM documents WHERE name = 'u'") == len(acked)
    assert {name for name, _ in notes["handled"]} <= acked
    snapshots = {json.loads(text) for (text,) in rows(bus, "SELECT snapshot FROM checkpoints WHERE name = 'u'")}
    assert {made for _, made in notes["handled"]} <= snapshots
    assert value(bus, "SELECT count(*) FROM checkpoints WHERE name = 'never'") == 0
    assert value(bus, "SELECT count(*) FROM messages WHERE payload = '\"never\"'") == 0
    for key, kind in (("count", "counted"), ("sum", "summed")):
        found = json.loads(value(bus, "SELECT value FROM state WHERE scope = 'shared' AND key = ?", key))
        # One of each task may have been committed by those who were killed before they could note it.
        assert len(notes[kind]) <= found <= len(notes[kind]) + 3 * len(soak.killed)


@pytest.mark.slow
@pytest.mark.fault(26)
async def test_returned_calls_are_durable_while_processes_are_killed_all_the_time(
    short: Path, team: Team, figure: Figure, scale: Scale
) -> None:
    chance = random.Random(SEED)
    soak = Soak(short, team)
    seen = await storm(soak, chance, SECONDS or scale(0.5, 6.0, 60.0), kills := scale(6, 10))
    soak.read()
    counts = {kind: len(facts) for kind, facts in sorted(soak.notes.items())}
    print(f"seed {SEED}: {len(soak.killed)} kills, {len(seen)} changes seen, noted: {counts}")
    figure(f"while processes called everything: {sum(counts.values()):,} calls returned", kills=len(soak.killed))
    assert not soak.notes["crash"], soak.notes["crash"][0][0]
    assert len(soak.killed) >= kills
    for kind in NOTED:
        assert len(soak.notes[kind]) >= 3, f"hardly any {kind}; this test proves little"
    no_process_writes(soak.bus)
    assert integrity(soak.bus) == "ok"
    assert wrong_leases(soak) == []
    check_watched(soak, seen)
    check_kept(soak)
    check_units(soak)
