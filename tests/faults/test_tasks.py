"""Durable tasks with real processes: killed, raced for, stopped and continued under operator control."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import agentbus
from agentbus.errors import UnknownApproval, UnknownStep, WrongState
from tests.faults.rows import integrity, lock_held, no_process_writes, rows, value
from tests.faults.worker_tasks import JOBS, STEPS, six
from tests.support.figures import Figure, Scale
from tests.support.processes import PATIENCE, Team, Worker, eventually

SEED = 20_241_116
TOTAL = sum(range(1, STEPS + 1))


class Place:
    """A bus, and the file in which every execution of a step leaves a line."""

    def __init__(self, directory: Path, team: Team) -> None:
        self.bus = directory / "bus"
        self._file = directory / "effects"
        self._file.touch()
        self._team = team

    def nursery(self) -> Worker:
        """Start a process that forks a new one for each order."""
        worker = self._team.start("worker_tasks", self.bus, self._file)
        worker.expect("ready")
        return worker

    def begin(self, nursery: Worker, **orders: Any) -> int:
        """Have a process work until there is nothing to do, or it is killed; its pid."""
        nursery.tell(json.dumps(orders))
        return int(nursery.expect("pid"))

    async def run(self, nursery: Worker, **orders: Any) -> int:
        """The same, and wait for its end; how it ended."""
        await asyncio.to_thread(self.begin, nursery, **orders)
        return await ended(nursery)

    def lines(self, word: str) -> list[list[str]]:
        found = [line.split() for line in self._file.read_text().splitlines()]
        return [words for first, *words in found if first == word]

    def executions(self) -> Counter[tuple[str, str]]:
        """Return the number of executions by task and step."""
        return Counter((task, step) for task, step, *_ in self.lines("begun"))

    def finished(self) -> dict[str, tuple[str, str]]:
        """The steps that are finished, those too that a redo made void, by the token of the execution."""
        found = rows(
            self.bus,
            "SELECT json_extract(steps.result, '$.token'), tasks.id, steps.key FROM steps "
            "JOIN tasks ON tasks.number = steps.task WHERE steps.status = 'finished' AND steps.kind = 'step'",
        )
        return {token: (task, key) for token, task, key in found}

    def counting(self) -> set[tuple[str, str]]:
        """The steps that are finished and count."""
        found = rows(
            self.bus,
            "SELECT tasks.id, steps.key FROM steps JOIN tasks ON tasks.number = steps.task "
            "WHERE steps.status = 'finished' AND steps.superseded = 0 AND steps.kind = 'step'",
        )
        return {(task, key) for task, key in found}

    def sent(self) -> Counter[str]:
        """Return what was sent with the results, by token."""
        return Counter(
            token
            for (token,) in rows(
                self.bus, "SELECT json_extract(payload, '$.token') FROM messages WHERE type = 'completion_notification'"
            )
        )

    def takers(self) -> Counter[str]:
        """Return how many times each worker took a task."""
        return Counter(actor for (actor,) in rows(self.bus, "SELECT actor FROM events WHERE kind = 'task_running'"))

    def again(self) -> list[str]:
        """Steps that were executed again when they were finished: an attempt was noted after the one of the result, or
        another one's result has taken its place, and what was sent with the first is still there."""
        attempts = {token: int(attempt) for _, _, attempt, token in self.lines("begun")}
        found = rows(
            self.bus,
            "SELECT json_extract(result, '$.token'), attempt FROM steps WHERE status = 'finished' AND kind = 'step'",
        )
        noted = [token for token, attempt in found if attempts[token] != attempt]
        return noted + sorted(self.sent().keys() - self.finished().keys())

    def check(self) -> None:
        """Every finished step has its message, once, and no other execution has one; the database is in order."""
        finished = self.finished()
        assert self.sent() == Counter(dict.fromkeys(finished, 1))
        begun = {token: (task, step) for task, step, _, token in self.lines("begun")}
        assert finished.items() <= begun.items()
        assert not self.again()
        no_process_writes(self.bus)
        assert integrity(self.bus) == "ok"


async def ended(nursery: Worker) -> int:
    """Wait for the process of a nursery; return its exit status."""
    return int((await asyncio.to_thread(nursery.expect, "ended")).split()[0])


@pytest.fixture
def place(short: Path, team: Team) -> Place:
    return Place(short, team)


async def started(place: Place, *ids: str, **options: Any) -> None:
    async with agentbus.connect(place.bus) as bus:
        await bus.declare(JOBS)
        for id in ids:
            await bus.tasks.start(six, id=id, **options)


def results(place: Place) -> dict[str, tuple[str, str]]:
    return {id: (status, result) for id, status, result in rows(place.bus, "SELECT id, status, result FROM tasks")}


def wrong(place: Place) -> int:
    """Return the number of tasks without the expected result."""
    return sum(ending != ("completed", str(TOTAL)) for ending in results(place).values())


@pytest.mark.slow
@pytest.mark.fault(25)
async def test_killed_at_every_boundary_inside_every_step_and_while_its_result_is_committed(
    place: Place, figure: Figure, scale: Scale
) -> None:
    seed = scale.seed(SEED)
    rng = random.Random(seed)
    tasks = [f"t{number}" for number in range(scale(1, 10, 100))]
    nursery = place.nursery()
    kills = committed = 0
    for task in tasks:
        await started(place, task)
        for number in range(1, STEPS + 1):
            for point in (["inside", number], ["finishing", number, rng.uniform(0, 0.003)], ["boundary", number]):
                before, done = place.executions(), place.counting()
                assert await place.run(nursery, kill=point) == -9, f"not killed at {point}"
                kills += 1
                committed += point[0] == "finishing" and (task, f"s{number}") in place.counting()
                after = place.executions()
                assert all(after[step] == before[step] for step in done), f"finished, and executed again at {point}"
        assert await place.run(nursery) == 0
    executions = sum(place.executions().values())
    figure(
        f"at every boundary, in every step and while its result is committed (seed {seed}; {committed} of "
        f"{len(tasks) * STEPS} were)",
        kills=kills, steps_finished=len(place.finished()), executed_again=len(place.again()),
        wrong_results=wrong(place),
    )  # fmt: skip
    assert kills == len(tasks) * STEPS * 3
    assert results(place) == {id: ("completed", str(TOTAL)) for id in tasks}
    # Killed inside once, and perhaps once more before the result was committed: no other execution.
    assert executions == len(tasks) * STEPS * 3 - committed
    place.check()


# Several workers


@pytest.mark.slow
@pytest.mark.fault(25)
async def test_workers_that_race_for_one_task_run_it_once(place: Place, figure: Figure, scale: Scale) -> None:
    """All of them sleep when a task is started, and all are woken by the same bell."""
    await started(place)
    nurseries = [place.nursery() for _ in range(2)]
    names = [f"racer-{number}" for number in range(len(nurseries))]
    pids = [
        await asyncio.to_thread(place.begin, nursery, name=name, until_idle=False)
        for nursery, name in zip(nurseries, names, strict=True)
    ]
    wanted, races = scale(20, 300, 3000), 0
    deadline = time.monotonic() + scale(60, 600, 3000)
    async with agentbus.connect(place.bus) as bus:
        await until(lambda: value(place.bus, "SELECT count(*) FROM agents WHERE status = 'running'") == len(names))
        # The scheduler decides which of them is first, so one may win no race for a while.
        while races < wanted or (place.takers().keys() != set(names) and time.monotonic() < deadline):
            await bus.tasks.start(six, id=f"t{races}")
            assert await bus.tasks.result(f"t{races}", timeout=PATIENCE) == TOTAL
            races += 1
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    won = place.takers()
    shares = " and ".join(str(won[name]) for name in names)
    figure(f"two workers raced for {races} tasks ({shares})", taken_twice=sum(won.values()) - races)
    assert place.executions() == {(f"t{n}", f"s{s}"): 1 for n in range(races) for s in range(1, STEPS + 1)}
    assert sum(won.values()) == races
    assert min(won[name] for name in names) > 0, "one of them was always first; this test proves little"
    place.check()


@pytest.mark.slow
@pytest.mark.fault(25)
async def test_many_tasks_on_four_workers_are_each_done_once(place: Place, figure: Figure, scale: Scale) -> None:
    batch, workers, count = scale(40, 1000), 4, 0
    # In the small size none of them can take all of the work before the others come, unless one is not scheduled.
    orders: dict[str, Any] = scale({"concurrency": 10, "pause": 0.1}, {"concurrency": 32})
    await started(place)
    async with agentbus.connect(place.bus) as bus:
        nurseries = [place.nursery() for _ in range(workers)]
        pids = [await asyncio.to_thread(place.begin, nursery, until_idle=False, **orders) for nursery in nurseries]
        await until(lambda: value(place.bus, "SELECT count(*) FROM agents WHERE status = 'running'") == workers)
        begun = time.monotonic()
        unfinished = "SELECT count(*) FROM tasks WHERE status <> 'completed'"
        while count < batch or (len(place.takers()) < workers and time.monotonic() - begun < 60):
            numbers = range(count, count + batch)
            await asyncio.gather(*(bus.tasks.start(six, 1000 * n, id=f"t{n}") for n in numbers))
            await asyncio.to_thread(eventually, lambda: not value(place.bus, unfinished), "every task is done", 90)
            count += batch
        took = time.monotonic() - begun
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    assert [await ended(nursery) for nursery in nurseries] == [-9] * workers
    taken = place.takers()
    again = sum(place.executions().values()) - count * STEPS
    figure(f"{count:,} tasks of {STEPS} steps on {workers} processes in {took:.1f} s", executed_again=again)
    assert results(place) == {f"t{n}": ("completed", str(1000 * n + TOTAL)) for n in range(count)}
    assert set(place.executions().values()) == {1}
    assert sum(taken.values()) == count
    assert len(taken) == workers, "they did not share the work"
    place.check()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["lease", "takeover"])
async def test_a_stalled_worker_whose_task_was_reassigned_writes_nothing(place: Place, how: str) -> None:
    await started(place, "t")
    first, second = place.nursery(), place.nursery()
    lease = 1.0 if how == "lease" else 3600.0
    gate = place.bus.with_name("gate")
    pid = await asyncio.to_thread(place.begin, first, name="first", hold=str(gate), lease=lease, until_idle=False)
    await asyncio.to_thread(first.expect, "inside")
    # Not in the middle of a write: it would keep the lock.
    with lock_held(place.bus):
        os.kill(pid, signal.SIGSTOP)
    executed = sum(place.executions().values())
    if how == "takeover":
        async with agentbus.connect(place.bus) as bus, bus.agent("first", type="worker", takeover=True):
            assert await place.run(second, name="second") == 0
    else:
        await until(lambda: lapsed(place))
        assert await place.run(second, name="second") == 0
    assert results(place) == {"t": ("completed", str(TOTAL))}
    before = rows(place.bus, "SELECT * FROM steps"), rows(place.bus, "SELECT * FROM tasks"), place.sent()
    gate.touch()
    os.kill(pid, signal.SIGCONT)
    if how == "takeover":
        assert await ended(first) == 1, "it gets the error that it is not that agent any more"
    else:
        # It lost only the task, and continues with others.
        async with agentbus.connect(place.bus) as bus:
            await bus.tasks.start(six, id="next")
            assert await bus.tasks.result("next", timeout=20) == TOTAL
        takers = rows(place.bus, "SELECT actor FROM events WHERE kind = 'task_running' ORDER BY id")
        assert takers[-1] == ("first",)
        os.kill(pid, signal.SIGKILL)
    steps = rows(place.bus, "SELECT * FROM steps WHERE task = (SELECT number FROM tasks WHERE id = 't')")
    assert steps == before[0]
    assert rows(place.bus, "SELECT * FROM tasks WHERE id = 't'") == before[1]
    assert sum(place.executions().values()) >= executed + STEPS
    assert before[2].items() <= place.sent().items()
    place.check()


def lapsed(place: Place) -> bool:
    held_until: int = value(place.bus, "SELECT lease_until FROM tasks WHERE id = 't'")
    return time.clock_gettime(time.CLOCK_MONOTONIC) * 1000 > held_until


# People


@pytest.mark.slow
async def test_an_operator_approves_while_no_worker_runs_and_the_requesting_one_is_dead(place: Place) -> None:
    await started(place, "t", keywords={"asks": True})
    nursery = place.nursery()
    pid = await asyncio.to_thread(place.begin, nursery, until_idle=False)
    await until(lambda: results(place)["t"][0] == "waiting")
    os.kill(pid, signal.SIGKILL)
    assert await ended(nursery) == -9
    async with agentbus.connect(place.bus) as bus:
        (asked,) = await bus.tasks.approvals()
        assert (asked.task, asked.key, asked.shown) == ("t", "go", 6)
        await bus.tasks.approve("t", by="ada")
    assert results(place)["t"][0] == "pending"
    assert await place.run(nursery) == 0
    assert results(place)["t"] == ("completed", str(TOTAL))
    assert set(place.executions().values()) == {1}
    place.check()


CONTROLS: dict[str, Callable[[agentbus.Bus, str, random.Random], Awaitable[Any]]] = {
    "halt": lambda bus, task, rng: bus.tasks.halt(task, by="ada"),
    "continue": lambda bus, task, rng: bus.tasks.continue_(task, by="ada"),
    "stop": lambda bus, task, rng: bus.tasks.stop(task, by="ada"),
    "resume": lambda bus, task, rng: bus.tasks.resume(task, by="ada"),
    "restart": lambda bus, task, rng: bus.tasks.restart(task, by="ada"),
    "redo": lambda bus, task, rng: bus.tasks.redo(task, f"s{rng.randint(1, STEPS)}", note="again", by="ada"),
    "auto": lambda bus, task, rng: bus.tasks.auto(task, rng.random() < 0.5, by="ada"),
    "edit": lambda bus, task, rng: bus.tasks.edit(task, settings={"n": rng.random()}, by="ada"),
    "approve": lambda bus, task, rng: bus.tasks.approve(task, by="ada"),
    "reject": lambda bus, task, rng: bus.tasks.reject(task, by="ada"),
}


async def control(bus: agentbus.Bus, tasks: list[str], rng: random.Random, done: asyncio.Event) -> Counter[str]:
    """Do whatever people can do, until told to stop; how often that was done, and how often refused."""
    made: Counter[str] = Counter()
    while not done.is_set():
        name = rng.choice(list(CONTROLS))
        try:
            await CONTROLS[name](bus, rng.choice(tasks), rng)
            made["done"] += 1
        except (WrongState, UnknownStep, UnknownApproval):
            made["refused"] += 1
        await asyncio.sleep(rng.uniform(0, 0.02))
    return made


@pytest.mark.slow
@pytest.mark.fault(25)
async def test_kills_during_random_operator_actions_lose_nothing(place: Place, figure: Figure, scale: Scale) -> None:
    seed = scale.seed(SEED + 1)
    rng = random.Random(seed)
    tasks = [f"t{number}" for number in range(6)]
    await started(place, *tasks, keywords={"asks": True})
    nurseries = [place.nursery() for _ in range(2)]
    wanted, kills = scale(10, 200, 1000), 0
    deadline = time.monotonic() + scale(60, 1200, 3000)
    made: Counter[str] = Counter()
    async with agentbus.connect(place.bus) as bus:
        # Which of the actions find a finished step to redo is chance, so the number of turns depends on it too.
        while kills < wanted or (len(place.finished()) == len(place.counting()) and time.monotonic() < deadline):
            done = asyncio.Event()
            people = asyncio.create_task(control(bus, tasks, random.Random(seed + kills), done))
            orders = [
                {"after": rng.uniform(0, 0.06), "pause": rng.choice([0, 0, 0.002]), "until_idle": False}
                for _ in nurseries
            ]
            assert [
                *await asyncio.gather(
                    *(place.run(nursery, **order) for nursery, order in zip(nurseries, orders, strict=True))
                )
            ] == [-9] * len(nurseries), [nursery.errors()[-3000:] for nursery in nurseries]
            kills += len(nurseries)
            done.set()
            made += await people
        for task in tasks:
            await at_an_end(bus, task)
    assert await place.run(nurseries[0]) == 0
    finished = place.finished()
    attempts = value(place.bus, "SELECT sum(attempt) FROM steps WHERE kind = 'step'")
    figure(
        f"while operators made {made['done']:,} changes, and {made['refused']:,} were refused (seed {seed})",
        kills=kills, steps_finished=len(finished), executed_again=len(place.again()), wrong_results=wrong(place),
    )  # fmt: skip
    assert results(place) == {id: ("completed", str(TOTAL)) for id in tasks}
    # Each execution is an attempt that was noted before it began.
    assert sum(place.executions().values()) <= attempts
    assert len(finished) > len(tasks) * STEPS, "hardly a step was redone; this test proves little"
    place.check()


async def at_an_end(bus: agentbus.Bus, task: str) -> None:
    """Let a task continue from any state, without an approval."""
    await bus.tasks.auto(task, True)
    record = await bus.tasks.get(task)
    assert record is not None
    if record.status in {"halted", "failed", "stopped"}:
        await bus.tasks.resume(task)
    elif record.halting:
        await bus.tasks.continue_(task)


async def until(condition: Callable[[], bool]) -> None:
    await asyncio.to_thread(eventually, condition, "the condition of the test")
