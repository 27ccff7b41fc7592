"""Metrics: what they count, that both formats are valid, that their number is bounded, and that counters only grow."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import agentbus
from agentbus import Bus, Task, pool
from agentbus.api.metrics import OPENMETRICS, PROMETHEUS, collect, render
from agentbus.records import MetricFamily, MetricSample
from tests.api.helpers import take, worker
from tests.api.task_workers import work_off
from tests.conftest import Engine
from tests.support.clock import FakeClock
from tests.support.prometheus import check_metrics, parsed, value


@agentbus.workflow("asking")
async def asking(task: Task, _: Any) -> bool:
    return (await task.approval("plan", show=1)).approved


async def test_metrics_tell_what_waits_since_when_and_what_failed(bus: Bus, engine: Engine, clock: FakeClock) -> None:
    a = await worker(bus, "a", pools=["build"])
    b = await worker(bus, "b")
    await bus.declare(pool("idle"))
    await asyncio.gather(*(a.send(pool("build"), "note", n) for n in range(3)), a.send(pool("idle"), "note"))
    again = await take(a)
    await again.nack(delay=0)
    clock.advance(10)
    await a.send("b", "note", 1, delay=60)
    await a.send("b", "note", 2)
    again = await take(a)
    await (await take(b)).reject("no")
    await bus.tasks.start(asking, None)
    await work_off(bus, asking)
    await bus.tasks.start(asking, None)
    await a.state.set("k", 1)
    async with bus.session("planning"):
        await engine.tamper("UPDATE sessions SET status = 'interrupted'")
        clock.advance(5)
        text = render(await bus.metrics())
    found = parsed(text)
    assert parsed(render(await bus.metrics(), OPENMETRICS), OPENMETRICS).keys() == found.keys()
    queue, oldest = "agentbus_queue_messages", "agentbus_queue_oldest_seconds"
    assert again.attempts == 2
    assert value(found, queue, kind="pool", pool="build", status="queued") == 2
    assert value(found, queue, kind="pool", pool="build", status="leased") == 1
    assert value(found, queue, kind="pool", pool="idle", status="queued") == 1
    assert value(found, queue, kind="agent", status="scheduled") == 1
    assert value(found, queue, kind="agent", status="queued") == 0
    assert value(found, queue, kind="topic", status="queued") == 0
    assert value(found, oldest, kind="pool", pool="build") == 15
    assert value(found, oldest, kind="agent") == 0
    assert value(found, "agentbus_pool_members", pool="build") == 1
    assert value(found, "agentbus_pool_members", pool="idle") == 0
    assert value(found, "agentbus_messages_leased_again") == 1
    assert value(found, "agentbus_dead_letters") == 1
    assert value(found, "agentbus_agents", status="running") == 2
    assert value(found, "agentbus_agents", status="failed") == 0
    assert value(found, "agentbus_agents_live", type="worker") == 2
    assert value(found, "agentbus_tasks", status="waiting") == 1
    assert value(found, "agentbus_tasks", status="pending") == 1
    assert value(found, "agentbus_tasks_ready", workflow="asking") == 1
    assert value(found, "agentbus_tasks_ready_oldest_seconds", workflow="asking") == 5
    assert value(found, "agentbus_approvals_waiting") == 1
    assert value(found, "agentbus_approvals_oldest_seconds") == 5
    assert value(found, "agentbus_sessions", status="interrupted") == 1
    assert value(found, "agentbus_sessions", status="active") == 0
    assert value(found, "agentbus_sessions_interrupted_oldest_seconds") == 5
    assert value(found, "agentbus_processes") == 1
    assert value(found, "agentbus_messages_sent_total") == 6
    assert value(found, "agentbus_state_changes_total") >= 1
    assert value(found, "agentbus_database_bytes") > 0
    assert value(found, "agentbus_write_batch_calls_count") >= 1
    assert value(found, "agentbus_write_commit_seconds_sum", synced="true") > 0
    check_metrics(text)


async def test_the_number_of_series_is_bounded_and_no_agent_is_named(bus: Bus) -> None:
    for number in range(25):
        await bus.define(f"type-{number}", kind="agent")
    # A pool that has the name of all others is among them.
    pools = [f"p-{number}" for number in range(24)] + ["other"]
    agents = await asyncio.gather(
        *(
            bus.register(f"hidden-{number}", type=f"type-{number}", pools=pools[number : number + 1])
            for number in range(25)
        )
    )
    sent = [agents[0].send(pool(name), "note", n) for number, name in enumerate(pools) for n in range(1 + number % 3)]
    await asyncio.gather(*sent)
    text = render(await bus.metrics())
    found = parsed(text)
    depths = {dict(labels)["pool"]: n for labels, n in found["agentbus_queue_messages"].items()
              if dict(labels).get("status") == "queued" and dict(labels)["kind"] == "pool"}  # fmt: skip
    assert len(depths) == 21
    assert sum(depths.values()) == len(sent)
    types = found["agentbus_agents_live"]
    assert len(types) == 21
    assert types[(("type", "other"),)] == 5
    assert "hidden-" not in text
    assert sum(len(samples) for samples in found.values()) < 300


async def test_counters_of_the_store_only_grow(engine: Engine) -> None:
    """Over a restart, and after messages and dead letters were deleted."""
    seen: list[float] = []
    for _ in range(2):
        async with engine.connect() as bus:
            a = await worker(bus, "a")
            await a.send("a", "note")
            await (await take(a)).ack()
            await bus.messages.purge(status="acked")
            seen.append(value(parsed(render(await collect(bus, None))), "agentbus_messages_sent_total"))
    assert seen == [1, 2]


@pytest.mark.one_engine
async def test_the_metrics_of_another_process_are_not_those_of_this_one(bus: Bus) -> None:
    families = await collect(bus, "here")
    assert {family.scope for family in families} == {"bus"}
    assert {family.scope for family in await bus.metrics()} == {"bus", "process"}


HOSTILE = ['a"b', "a\\", "a\\n\nb", "{}=,#", "\r\t\0", "ä→😀", "\ud800", " ", 'x",y="z']


@pytest.mark.parametrize("format", [PROMETHEUS, OPENMETRICS])
def test_a_hostile_name_stays_one_label(format: str) -> None:
    samples = [MetricSample(number, {"pool": name}) for number, name in enumerate(HOSTILE)]
    family = MetricFamily("agentbus_depth", "gauge", 'Depth "of"\na \\pool.', samples)
    text = render([family], format)
    assert len(text.splitlines() if format != PROMETHEUS else text.split("\n")) >= len(HOSTILE)
    found = parsed(text, format)["agentbus_depth"]
    wanted = [name.encode(errors="replace").decode() for name in HOSTILE]
    assert [(dict(labels)["pool"], number) for labels, number in found.items()] == [
        (name, number) for number, name in enumerate(wanted)
    ]
    if format == PROMETHEUS:
        check_metrics(text)
