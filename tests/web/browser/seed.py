"""Data of a believable team, made through the public API: agents, messages, tasks, sessions and state of the last hour.

``python -m tests.web.browser.seed BUS`` fills a bus and keeps its agents alive until Ctrl-C, to look at the dashboard
with ``agentbus serve --url BUS``.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from asyncio import AbstractEventLoop
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from typing import Any

import agentbus
from agentbus.core.clock import SystemClock, Timer


class LateClock:
    """The clock of the machine, late by a number of seconds that shrinks to 0: what is done now happened then."""

    def __init__(self, late: float) -> None:
        self._clock = SystemClock()
        self.late = late

    def now(self) -> agentbus.Now:
        found = self._clock.now()
        return agentbus.Now(found.wall - round(self.late * 1000), found.awake, found.boot)

    def call_later(self, loop: AbstractEventLoop, seconds: float, callback: Callable[[], None]) -> Timer:
        return self._clock.call_later(loop, seconds, callback)

    def advance(self, seconds: float) -> None:
        self.late = max(0.0, self.late - seconds)


PLAN = {
    "summary": "Rate-limit the public search endpoint",
    "steps": ["token bucket per API key in Redis", "429 with Retry-After", "dashboard of rejected requests"],
    "risk": "medium",
    "files": 7,
    "breaking": False,
}


_elapse: list[Callable[[float], None]] = []
"""Lets time pass during a step."""


def _take(seconds: float) -> None:
    for one in _elapse:
        one(seconds)


async def _plan(request: str) -> dict[str, Any]:
    _take(45)
    return {**PLAN, "request": request}


async def _work(part: str) -> dict[str, Any]:
    _take(6 + len(part) * 4)
    return {"part": part, "lines": 40 + len(part) * 7}


async def _flaky(task: agentbus.Task) -> str:
    _take(20)
    if task.attempt < 3:
        raise TimeoutError("the staging cluster did not answer within 30 s")
    return "green"


async def _broken(path: str) -> None:
    raise ValueError(f"{path}: 3 of 214 assertions failed")


class Team:
    """A bus, its clock, and the agents that stay."""

    def __init__(self, bus: agentbus.Bus, clock: LateClock | None) -> None:
        self.bus = bus
        self.clock = clock
        self.stack = AsyncExitStack()
        self.agents: dict[str, agentbus.Agent] = {}
        self.random = random.Random(7)

    def later(self, seconds: float) -> None:
        if self.clock is not None:
            self.clock.advance(seconds)


@agentbus.workflow("feature", phases=["planning", "building", "review"])
async def feature(task: agentbus.Task, request: str) -> str:
    await task.phase("planning")
    await task.step("research", _work, "prior art")
    plan = await task.step("plan", _plan, request)
    await task.approval("plan", show=plan)
    await task.phase("building")
    for part in ("limiter", "middleware", "metrics"):
        await task.step(f"build-{part}", _work, part)
    await task.step("integration-tests", _flaky, task, retries=4, backoff=0.01)
    await task.phase("review")
    await task.approval("release", show={"diff": "+412 −96", "tests": "214 passed", "reviewers": ["reviewer-1"]})
    await task.step("deploy", _work, "canary")
    return "released"


@agentbus.workflow("nightly-evaluation")
async def evaluation(task: agentbus.Task, suite: str) -> str:
    await task.step("collect", _work, suite)
    await task.step("score", _broken, f"evals/{suite}.jsonl")
    return suite


@agentbus.workflow("digest")
async def digest(task: agentbus.Task, topic: str) -> str:
    await task.step("read", _work, topic)
    await task.step("summarize", _work, topic)
    return f"{topic}: done"


WORKFLOWS: list[Any] = [feature, evaluation, digest]


async def fill(team: Team) -> None:
    """Fill the bus with the last hour of a team."""
    bus = team.bus
    _elapse[:] = [team.later]
    await bus.define("researcher", kind="agent", description="reads and summarizes")
    session = await bus.sessions.start(
        "release-2.4", id="release-2.4", milestone="M7", expects={"planner-1": "plan", "reviewer-1": "review"},
        metadata={"branch": "release/2.4", "ticket": "SRCH-1182"},
    )  # fmt: skip

    async def agent(id: str, type: str, **options: Any) -> agentbus.Agent:
        team.agents[id] = found = await bus.register(id, type=type, **options)
        team.later(3)
        return found

    planner = await agent("planner-1", "planner", session="release-2.4", model="large-4", name="Lead planner",
                          capabilities=["planning", "estimation"], metadata={"repo": "search-api"})  # fmt: skip
    reviewer = await agent(
        "reviewer-1", "reviewer", session="release-2.4", model="large-4", capabilities=["python", "security"]
    )
    researcher = await agent("researcher-1", "researcher", model="small-2", session="release-2.4")
    executors = [
        await agent(f"executor-{number}", "executor", session="release-2.4", parent="planner-1", model="medium-3",
                    pools=["executors"], capabilities=["python", "go"])
        for number in range(1, 7)
    ]  # fmt: skip
    await agent("monitor-bot", "worker", topics=["alerts"])
    plan = session.document("plan")
    for version, text in enumerate((
        "# Plan\n\n1. Token bucket per API key\n2. Return 429\n3. Metrics\n",
        "# Plan\n\n1. Token bucket per API key, in Redis\n2. Return 429 with Retry-After\n3. Metrics\n4. Canary\n",
        "# Plan\n\n1. Token bucket per API key, in Redis\n2. 429 with Retry-After\n3. Metrics, alert\n4. Canary, 1 h\n",
    ), 1):  # fmt: skip
        await plan.save(text, author="planner-1" if version != 2 else "reviewer-1")
        team.later(60)
    await session.document("risks").save(
        {"redis outage": "fail open", "hot keys": "per-shard buckets"}, author="reviewer-1"
    )
    await session.participants(["planner-1", "reviewer-1", "researcher-1"], name="design-review")
    await session.finish_member("planner-1", {"agrees": True}, meeting="design-review")
    await session.checkpoint_all("before-build", notes="after the design review")

    for id, percent, note in (("planner-1", 80, "waiting for the review"), ("reviewer-1", 35, "reading middleware.go"),
                              ("researcher-1", 100, "done with prior art"), ("executor-1", 60, "writing limiter tests"),
                              ("executor-2", 45, "wiring the middleware"), ("executor-3", 20, "metrics endpoint"),
                              ("executor-4", 5, "cloning the repository")):  # fmt: skip
        await team.agents[id].progress(percent, note)
    kinds = ("task_assignment", "coordination_request", "progress_update", "note")
    for number in range(90):
        sender = team.random.choice([planner, reviewer, researcher])
        target = agentbus.pool("executors") if number % 3 else team.random.choice(executors).id
        await sender.send(
            target, kinds[number % 4], {"part": f"part-{number}", "estimate_s": number * 3},
            priority=team.random.choice([3, 5, 5, 7]), session="release-2.4",
        )  # fmt: skip
        team.later(team.random.uniform(1, 8))
        worker = executors[number % 6]
        if number < 80 and (message := await worker.receive(timeout=0)) is not None:
            team.later(team.random.uniform(2, 35))
            if number % 17 == 5:
                await message.reject("the patch does not apply: conflict in limiter.go")
            else:
                done = {"task": message.payload["part"]}
                await worker.send("planner-1", "completion_notification", done, correlation=message.message_id)
                await message.ack()
        if number % 2 and (answer := await planner.receive(timeout=0)) is not None:
            team.later(team.random.uniform(1, 6))
            await answer.ack()
    while (message := await planner.receive(timeout=0)) is not None:
        await message.ack()
    await bus.declare(agentbus.pool("gpu"))
    for number in range(3):
        await planner.send(agentbus.pool("gpu"), "note", {"train": f"ranker-{number}"})
    await planner.state.set("plan/limits", {"per_key": 100, "window_s": 60, "burst": 9007199254740993})
    await planner.state.set("phase", "building")
    await reviewer.state.set("checklist", ["headers", "tests", "docs"])
    await session.state.set("branch", "release/2.4")
    turns = [{"role": "user", "content": "Which limits apply?"}, {"role": "assistant", "content": "100 per key."}]
    puts = [agentbus.HistoryPut(body=json.dumps(one).encode(), meta={"role": one["role"]}) for one in turns]
    await bus.histories.write("openai", "support/chat-7", puts, meta={"model": "small"})
    await bus.state("feature-flags").set("search.rate_limit", {"on": True, "share": 0.1})
    await planner.checkpoint("after_planning", {"step": 3, "open": ["metrics"]}, notes="plan v3 approved")
    await executors[5].fail("RuntimeError: git clone: connection reset by peer")

    features = {
        "rate-limit": "Rate-limit the search endpoint",
        "login-form": "New login form",
        "dark-mode": "Dark mode for the docs",
    }
    for id, name in features.items():
        await bus.tasks.start(feature, name.lower(), id=id, name=name, session="release-2.4")
        team.later(4)
    await bus.tasks.start(evaluation, "ranking", id="eval-ranking", name="Nightly ranking evaluation")
    for topic in ("issues", "pull-requests", "incidents"):
        await bus.tasks.start(digest, topic, id=f"digest-{topic}")
    await work(team)
    team.later(120)
    await bus.tasks.approve("rate-limit", "plan", by="ada", reason="good, keep it behind the flag")
    await bus.tasks.reject("dark-mode", "plan", by="grace", reason="after the release")
    await work(team)
    await bus.tasks.redo(
        "rate-limit", "build-metrics", by="ada", note="expose a histogram", reason="the counter is not enough"
    )
    await work(team)

    await bus.sessions.start("migration", id="db-migration", milestone="M8", expects={"migrator-1": "report"})
    migrator = await bus.register("migrator-1", type="executor", session="db-migration", model="medium-3")
    await migrator.progress(40, "copying table orders")
    await migrator.checkpoint("orders", {"table": "orders", "row": 812_000})
    await migrator.fail("OperationalError: server closed the connection unexpectedly")
    if team.clock is not None:
        team.clock.late = 0
    for worker in executors[:3]:
        await worker.receive(timeout=0, lease=3000)
    await executors[1].busy(900)


async def work(team: Team) -> None:
    """Run tasks until every one waits or has ended."""
    await team.bus.tasks.run_worker(*WORKFLOWS, concurrency=1, agent="worker-1", until_idle=True)


async def traffic(team: Team) -> None:
    """Send, receive and acknowledge for as long as the program runs."""
    planner = team.agents["planner-1"]
    executors = [team.agents[f"executor-{number}"] for number in range(4, 6)]
    busy = [
        team.agents[id] for id in ("planner-1", "reviewer-1", "researcher-1", *(f"executor-{n}" for n in range(1, 6)))
    ]
    while True:
        for one in busy:
            record = await team.bus.agents.get(one.id)
            if record is not None:
                await one.progress(min(95, record.progress + team.random.randrange(2)), record.note)
        await planner.send(agentbus.pool("executors"), "note", {"part": team.random.randrange(1000)})
        for worker in executors:
            if (message := await worker.receive(timeout=0)) is not None:
                await asyncio.sleep(team.random.uniform(1, 4))
                await message.ack()
        await asyncio.sleep(team.random.uniform(3, 8))


async def main(url: str) -> None:
    clock = LateClock(55 * 60)
    async with agentbus.connect(url, clock=clock) as bus:
        team = Team(bus, clock)
        await fill(team)
        sys.stdout.write("seeded\n")
        sys.stdout.flush()
        await traffic(team)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(main(sys.argv[1]))
