"""Waits of tasks with real processes: killed before and after every write of a sleep, a signal and a message."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

import agentbus
from tests.faults.rows import integrity, no_process_writes, rows
from tests.faults.worker_waits import NOTES
from tests.support.figures import Figure, Scale
from tests.support.processes import Team, Worker

RESULT = ["e", {"m": 1}, "l", None]
NOTED = dict(zip(("early", "message", "late", "none"), RESULT, strict=True))
_MAX_WRITES = 60
"""More than a process makes."""


async def run(nursery: Worker, kill: list[Any]) -> int:
    """Have a process work until there is nothing to do, or it is killed; how it ended."""
    nursery.tell(json.dumps(kill))
    return int(await asyncio.to_thread(nursery.expect, "ended"))


@pytest.mark.slow
@pytest.mark.fault(25)
async def test_a_wait_is_over_once_wherever_its_worker_is_killed(
    short: Path, team: Team, figure: Figure, scale: Scale
) -> None:
    place = short / "bus"
    async with agentbus.connect(place) as bus:
        await bus.declare(NOTES)
        sender = await bus.register("sender", type="worker")
        nursery = team.start("worker_waits", place)
        nursery.expect("ready")
        kills = 0
        tasks: list[str] = []
        every = scale(4, 1, 1)
        for point in ("before", "after"):
            for number in range(1, _MAX_WRITES, every):
                task = f"{point}-{number}"
                await bus.tasks.start("waits", id=task)
                await bus.tasks.signal(task, "early", "e")
                await sender.send(f"task:{task}", "note", {"m": 1})
                first = await run(nursery, [point, number])
                # A process that was killed before it came to the wait has the signal before it waits.
                await bus.tasks.signal(task, "late", "l", signal_id="once")
                assert (await bus.tasks.signal(task, "late", "l", signal_id="once")).duplicate
                second = await run(nursery, [point, number])
                kills += (first == -9) + (second == -9)
                tasks.append(task)
                while (await bus.tasks.wait(task, timeout=0)) is None:
                    assert await run(nursery, []) == 0
                if (first, second) == (0, 0):
                    break
            else:
                pytest.fail("a process makes more writes than that")
        for task in tasks:
            assert await bus.tasks.result(task) == RESULT, task
            assert await bus.tasks.query(task, "stage") == "over"
    figure("before and after every write of a task that waits", kills=kills, tasks=len(tasks), wrong_results=0)
    assert kills > len(tasks)
    no_process_writes(place)
    assert integrity(place) == "ok"
    found = rows(
        place, "SELECT payload FROM messages JOIN mailboxes ON mailboxes.id = mailbox WHERE kind = 'pool' ORDER BY 1"
    )
    noted = [json.loads(payload) for (payload,) in found]
    for task in tasks:
        assert {note["name"]: note["value"] for note in noted if note["task"] == task} == NOTED, task
    assert len(noted) == len(tasks) * len(NOTED)
    # Each signal and each message was received by one step that counts.
    taken = "SELECT count(*), count(DISTINCT task || ' ' || position) FROM signals WHERE position IS NOT NULL"
    assert rows(place, taken) == [(2 * len(tasks), 2 * len(tasks))]
    acked = "SELECT messages.status, count(*) FROM messages JOIN mailboxes ON mailboxes.id = mailbox "
    assert rows(place, f"{acked} WHERE kind = 'task' GROUP BY 1") == [("acked", len(tasks))]
    assert rows(place, "SELECT count(*) FROM steps WHERE status NOT IN ('finished') OR superseded > 0") == [(0,)]
