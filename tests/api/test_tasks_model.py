"""Tasks against a model: any order of operator actions, workers, crashes and time ends as in the model."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from itertools import count
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import agentbus
from agentbus import Bus, Task
from agentbus.api.tasks.workflow import Workflow
from agentbus.errors import UnknownApproval, UnknownStep, WrongState
from tests.conftest import Engine
from tests.support.clock import FakeClock
from tests.support.examples import examples

PLACES = ("a", "b", "approval:go", "c")
PATIENCE = 100
"""Seconds for which the approval may be open."""
LEASE = 60.0
MOST = 2
"""Workers that the task may lose without progress."""
REFUSED = (WrongState, UnknownStep, UnknownApproval)


class Model:
    """The rules of one task, as plainly as they can be written: two steps, an approval, and a third step."""

    def __init__(self) -> None:
        self.status = "pending"
        self.halting = False
        self.auto = False
        self.worker = False
        self.steps: dict[str, str] = {}
        self.results: dict[str, int] = {}
        self.approval: str | None = None
        self.expires = 0
        self.result: str | None = None
        self.executions: Counter[str] = Counter()
        self.losses = 0

    def seen(self) -> tuple[Any, ...]:
        """Return what can be seen from outside."""
        return (
            self.status,
            self.halting,
            self.result,
            dict(self.steps),
            dict(self.results),
            self.approval,
            dict(self.executions),
            self.losses,
        )

    # What workers do

    def proceed(self, wall: int) -> None:
        """A worker, if there is one, goes as far as it can."""
        if self.status == "waiting" and self.approval == "open" and self.expires <= wall and self.worker:
            self.status = "pending"
        if self.status != "pending" or not self.worker:
            return
        self.status = "running"
        self._run(wall)

    def _run(self, wall: int) -> None:
        for place in PLACES:
            if place == "approval:go":
                if not self._ask(wall):
                    return
                if self.approval != "approved":
                    break
            elif self.steps.get(place) != "finished":
                self._begin(place)
                return
        self._end("completed", str(self.approval))

    def _begin(self, step: str) -> None:
        if self.halting:
            self.status, self.halting = "halted", False
        else:
            self.steps[step] = "running"
            self.executions[step] += 1

    def _ask(self, wall: int) -> bool:
        """Return True if there is an answer."""
        if self.approval is None:
            self.approval = "approved" if self.auto else "open"
            self.expires = wall + PATIENCE * 1000
        if self.approval == "open" and self.expires <= wall:
            self.approval = "expired"
        if self.approval == "open":
            self.status, self.halting = ("halted" if self.halting else "waiting"), False
        return self.approval != "open"

    def _end(self, status: str, result: str | None = None) -> None:
        self.status, self.result, self.halting = status, result, False

    @property
    def at(self) -> str | None:
        """The step that is being executed."""
        return next((step for step, status in self.steps.items() if status == "running"), None)

    def finish(self, good: bool, wall: int) -> None:
        step = str(self.at)
        if good:
            self.losses = 0
            self.steps[step] = "finished"
            self.results[step] = self.executions[step]
            self._run(wall)
        else:
            self.steps[step] = "failed"
            self._end("failed")

    def let_go(self, lost: bool = False) -> None:
        """The worker is gone; ``lost``: without a word."""
        self.worker = False
        if self.status == "running":
            self._interrupt()
            self.losses += lost
            if lost and self.losses >= MOST and not self.halting:
                self._end("failed")
            else:
                self.status, self.halting = ("halted" if self.halting else "pending"), False

    def _interrupt(self) -> None:
        if self.at is not None:
            self.steps[self.at] = "interrupted"

    # What people do: whether it can be done

    def control(self, action: str, step: str, wall: int) -> bool:
        rule: bool = getattr(self, f"_{action}")(step, wall)
        return rule

    def _halt(self, step: str, wall: int) -> bool:
        if self.status == "running":
            self.halting = True
        elif self.status in {"pending", "waiting"}:
            self.status = "halted"
        else:
            return False
        return True

    def _continue_(self, step: str, wall: int) -> bool:
        if self.status == "halted":
            self.status, self.losses = "pending", 0
        elif self.halting:
            self.halting = False
        else:
            return False
        return True

    def _stop(self, step: str, wall: int) -> bool:
        if self.status in {"completed", "failed", "stopped"}:
            return False
        if self.at is not None:
            self.steps[self.at] = "cancelled"
        self._end("stopped")
        return True

    def _resume(self, step: str, wall: int) -> bool:
        if self.status not in {"pending", "halted", "failed", "stopped"}:
            return False
        if self.status == "failed":
            self.steps = {name: status for name, status in self.steps.items() if status != "failed"}
        self.status, self.losses = "pending", 0
        return True

    def _redo(self, step: str, wall: int) -> bool:
        if self.approval is None if step == "approval:go" else step not in self.steps:
            return False
        self._void(PLACES.index(step))
        return True

    def _restart(self, step: str, wall: int) -> bool:
        self._void(0)
        return True

    def _void(self, place: int) -> None:
        for step in PLACES[place:]:
            self.steps.pop(step, None)
            self.results.pop(step, None)
        self._interrupt()
        if place <= PLACES.index("approval:go"):
            self.approval = None
        self.losses = 0
        self._end("pending")

    def _auto(self, step: str, wall: int) -> bool:
        self.auto = not self.auto
        if self.auto and self.approval == "open":
            self._decide("approved")
        return True

    def _approve(self, step: str, wall: int) -> bool:
        return self._answer("approved", wall)

    def _reject(self, step: str, wall: int) -> bool:
        return self._answer("rejected", wall)

    def _answer(self, verdict: str, wall: int) -> bool:
        if self.approval != "open" or self.expires <= wall:
            return False
        self._decide(verdict)
        return True

    def _decide(self, verdict: str) -> None:
        self.approval = verdict
        if self.status == "waiting":
            self.status = "pending"


class Play:
    """The same task on a bus. Its steps end when they are told to."""

    def __init__(self, bus: Bus, clock: FakeClock, id: str) -> None:
        self.bus = bus
        self.clock = clock
        self.id = id
        self.executions: Counter[str] = Counter()
        self.gates: dict[str, asyncio.Future[None]] = {}
        self.workers = count()
        self.worker: asyncio.Task[None] | None = None
        self.flow = self._workflow()

    def _workflow(self) -> Workflow[..., Any]:
        @agentbus.workflow(self.id)
        async def flow(task: Task) -> str:
            await task.step("a", self._step, "a")
            await task.step("b", self._step, "b")
            verdict = await task.approval("go", expires=PATIENCE)
            if not verdict.approved:
                return "expired" if verdict.expired else "rejected"
            await task.step("c", self._step, "c")
            return "approved"

        return flow

    async def _step(self, name: str) -> int:
        self.executions[name] += 1
        number = self.executions[name]
        self.gates[name] = asyncio.get_running_loop().create_future()
        await self.gates[name]
        return number

    def work(self) -> None:
        name = f"{self.id}-w{next(self.workers)}"
        self.worker = asyncio.create_task(self.bus.tasks.run_worker(self.flow, agent=name, lease=LEASE))

    async def quit(self) -> None:
        """The worker is told to end, and lets go."""
        await _ended(self.worker)
        self.worker = None

    async def crash(self) -> None:
        """The worker hangs for longer than its lease; another one takes over before it can say a word."""
        hung = self.worker
        self.clock.stall(LEASE + 1)
        self.work()
        await self.clock.settle()
        await _ended(hung)

    async def control(self, action: str, step: str, model: Model) -> bool:
        tasks = self.bus.tasks
        calls: dict[str, Any] = {
            "redo": lambda: tasks.redo(self.id, step),
            "auto": lambda: tasks.auto(self.id, model.auto),
            "approve": lambda: tasks.approve(self.id, "go", by="ada"),
            "reject": lambda: tasks.reject(self.id, "go", by="ada"),
        }
        try:
            await (calls[action]() if action in calls else getattr(tasks, action)(self.id))
        except REFUSED:
            return False
        return True

    def finish(self, step: str, good: bool) -> None:
        if good:
            self.gates[step].set_result(None)
        else:
            self.gates[step].set_exception(ValueError("broken"))

    async def seen(self) -> tuple[Any, ...]:
        record = await self.bus.tasks.get(self.id)
        assert record is not None
        assert (record.status == "running") == (record.holder is not None)
        steps = await self.bus.tasks.steps(self.id)
        asked = await self.bus.tasks.approvals(self.id, status=None)
        return (
            record.status,
            record.halting,
            record.result,
            {step.key: step.status for step in steps},
            {step.key: step.result for step in steps if step.status == "finished"},
            asked[0].status if asked else None,
            dict(self.executions),
            record.losses,
        )

    async def comes_to(self, expected: tuple[Any, ...], trail: list[Any]) -> None:
        for _ in range(40):
            await self.clock.settle()
            found = await self.seen()
            if found == expected:
                return
        assert found == expected, msgspec.json.encode(trail).decode()


async def _ended(worker: asyncio.Task[None] | None) -> None:
    if worker is not None:
        worker.cancel()
        with suppress(asyncio.CancelledError):
            await worker


WORKERS = st.tuples(st.sampled_from(["work", "work", "quit", "crash"]))
STEPS = st.tuples(st.sampled_from(["good", "good", "good", "bad"]))
CONTROLS = st.tuples(
    st.sampled_from(["halt", "continue_", "stop", "resume", "redo", "restart", "auto", "approve", "reject"]),
    st.sampled_from(PLACES),
)
TIMES = st.tuples(st.just("time"), st.sampled_from([30, 101, 101]))
GOOD, ALONE, YES = ("good",), ("quit",), ("approve", "a")
BEGINNINGS = st.sampled_from([
    [],
    [GOOD],
    [GOOD, GOOD],
    [GOOD, GOOD, ALONE],
    [GOOD, GOOD, ALONE, ("time", 101)],
    [GOOD, GOOD, YES],
    [GOOD, GOOD, YES, GOOD],
    [GOOD, ("bad",)],
])  # fmt: skip
"""Where it becomes interesting."""

_round = count()


@pytest.fixture
async def bus(engine: Engine) -> AsyncIterator[Bus]:
    """A bus with few heartbeats: the rules of a task do not depend on them."""
    async with engine.connect(beat_every=30) as bus:
        yield bus


@settings(
    max_examples=40 if examples.full else 6,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    beginning=BEGINNINGS,
    actions=st.lists(st.one_of(WORKERS, STEPS, STEPS, CONTROLS, CONTROLS, CONTROLS, TIMES), min_size=4, max_size=20),
)
@example(beginning=[GOOD, GOOD, ALONE, ("time", 101)], actions=[YES, ("auto", "a"), ("work",)])
@example(beginning=[GOOD, GOOD, ("stop", "a")], actions=[("auto", "a"), ("resume", "a"), GOOD])
@example(beginning=[GOOD, ("halt", "a")], actions=[("crash",), ("work",), ("continue_", "a"), GOOD])
@example(beginning=[GOOD, ("halt", "a")], actions=[GOOD, YES, ("continue_", "a"), YES, GOOD])
@example(beginning=[GOOD, GOOD, YES, ("bad",)], actions=[("resume", "a"), ("crash",), ("redo", "b"), GOOD, GOOD])
@example(beginning=[GOOD, GOOD, YES, GOOD], actions=[("redo", "approval:go"), ("reject", "a"), ("restart", "a")])
@example(beginning=[GOOD, ("crash",), ("crash",)], actions=[("resume", "a"), ("crash",), GOOD, ("crash",), ("crash",)])
@example(beginning=[("crash",), ("halt", "a"), ("crash",)], actions=[("continue_", "a"), ("crash",), GOOD, GOOD])
async def test_any_sequence_ends_as_the_model_says(
    bus: Bus, clock: FakeClock, beginning: list[Any], actions: list[Any]
) -> None:
    # One bus for all examples, each with a task, a workflow and workers of its own.
    play = Play(bus, clock, f"r{next(_round)}")
    model = Model()
    await bus.tasks.start(play.flow, id=play.id, max_losses=MOST)
    play.work()
    model.worker = True
    model.proceed(clock.now().wall)
    await play.comes_to(model.seen(), [])
    done: list[Any] = []
    for action in [*beginning, *actions]:
        await _act(play, model, clock, action)
        model.proceed(clock.now().wall)
        done.append(action)
        await play.comes_to(model.seen(), done)
    await play.quit()


async def _act(play: Play, model: Model, clock: FakeClock, action: Any) -> None:
    match action:
        case ("work",):
            if not model.worker:
                play.work()
                model.worker = True
        case ("quit",):
            await play.quit()
            model.let_go()
        case ("crash",):
            if model.worker:
                await play.crash()
                model.let_go(lost=True)
                model.worker = True
        case ("good" | "bad" as how,):
            if model.at is not None:
                play.finish(model.at, how == "good")
                model.finish(how == "good", clock.now().wall)
        case ("time", seconds):
            await clock.pass_time(seconds)
        case (name, step):
            expected = model.control(name, step, clock.now().wall)
            assert await play.control(name, step, model) == expected, (name, step, model.seen())
