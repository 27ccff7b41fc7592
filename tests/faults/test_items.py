"""The shared list of work under kill -9: no item is held twice at the same time, and none is lost."""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import chain
from pathlib import Path

import anyio
import pytest

import agentbus
from tests.faults.worker_items import AGENTS
from tests.support.processes import Team

ITEMS = 200
PROCESSES = 5
KILLED = 2


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
def test_fifty_agents_take_two_hundred_items_while_some_are_killed(
    engine: str, short: Path, team: Team, request: pytest.FixtureRequest
) -> None:
    place = str(short / "bus") if engine == "sqlite" else request.getfixturevalue("url")
    asyncio.run(_share(place, team))


async def _share(place: str, team: Team) -> None:
    async with agentbus.connect(place, beat_every=0.3) as bus:
        await bus.tasks.add("open", id="gate")
        jobs = [bus.tasks.add("job", number, id=f"i-{number}", after=["gate"]) for number in range(ITEMS)]
        await asyncio.gather(*jobs)
        keeper = await bus.register("keeper", type="worker")
        gate = await keeper.items.take("gate")
        assert gate is not None
        workers = [team.start("worker_items", place, f"p{number}") for number in range(PROCESSES)]
        for worker in workers:
            await asyncio.to_thread(worker.expect, "ready")
        # All items become ready in one commit, and 50 agents wait for them.
        await gate.finish()
        # None finishes its first item before each has one: however they are scheduled, those to be killed hold some.
        held = [[await asyncio.to_thread(worker.expect, "holding") for _ in range(AGENTS)] for worker in workers]
        for worker in workers[KILLED:]:
            worker.tell("finish")
        for worker in workers[:KILLED]:
            worker.kill()
        with anyio.fail_after(60):
            for number in range(ITEMS):
                assert await bus.tasks.result(f"i-{number}") == number
        for worker in workers[KILLED:]:
            worker.kill()
        taken, completed = await _history(bus)
        assert completed == Counter({"gate": 1, **{f"i-{number}": 1 for number in range(ITEMS)}})
        again = {item for item, times in taken.items() if times > 1}
        assert again == set(chain(*held[:KILLED])), "what the killed processes held is taken again, and nothing else"


async def _history(bus: agentbus.Bus) -> tuple[Counter[str], Counter[str]]:
    """Return the number of times each item was taken and completed; none while another agent held it."""
    held: set[str] = set()
    taken: Counter[str] = Counter()
    completed: Counter[str] = Counter()
    async for event in bus.events():
        if event.kind == "task_running":
            assert event.subject not in held, f"{event.subject} was taken twice"
            held.add(event.subject)
            taken[event.subject] += 1
        elif event.kind in {"task_pending", "task_completed"}:
            held.discard(event.subject)
            completed[event.subject] += event.kind == "task_completed"
    return taken, +completed
