"""Events: the audit log records every change in commit order and delivers it to every follower."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from agentbus import Bus, pool, topic
from agentbus.errors import AgentBusError, BusClosed, UnknownRecipient
from agentbus.operations.events import KINDS
from agentbus.records import EventRecord
from tests.api.helpers import eventually, running, soon, take, worker
from tests.conftest import Engine
from tests.support.cases import each
from tests.support.clock import START, FakeClock


async def trail(bus: Bus, **options: Any) -> list[EventRecord]:
    return [event async for event in bus.events(**options)]


async def kinds(bus: Bus, **options: Any) -> list[tuple[str, str]]:
    return [(event.kind, event.subject) for event in await trail(bus, **options)]


async def newest(bus: Bus) -> EventRecord:
    return (await trail(bus))[-1]


# What is recorded


async def test_the_incarnations_of_an_agent_are_in_the_audit_log(bus: Bus, clock: FakeClock) -> None:
    await bus.expect("a", type="worker")
    await worker(bus, "a")
    clock.advance(5)
    second = await worker(bus, "a", takeover=True)
    await second.fail("the model is gone")
    third = await worker(bus, "a")
    await third.complete()
    fourth = await worker(bus, "a")
    await fourth.stop("lunch")
    await bus.agents.delete("a")
    found = await trail(bus)
    assert [event.kind for event in found] == [
        "agent_expected", "agent_registered", "agent_taken_over", "agent_failed", "agent_registered",
        "agent_completed", "agent_registered", "agent_stopped", "agent_deleted",
    ]  # fmt: skip
    assert {(event.subject_kind, event.subject) for event in found} == {("agent", "a")}
    assert [event.id for event in found] == list(range(1, 10))
    assert [event.at for event in found[:3]] == [START, START, START + 5_000]
    assert [event.actor for event in found] == ["a"] * 8 + [None]
    assert [event.facts for event in found] == [
        {"epoch": 0, "type": "worker", "before": None},
        {"epoch": 1, "type": "worker", "before": "pending"},
        {"epoch": 2, "type": "worker", "before": "running"},
        {"error": "the model is gone"},
        {"epoch": 3, "type": "worker", "before": "failed"},
        {},
        {"epoch": 4, "type": "worker", "before": "completed"},
        {"error": "lunch"},
        {"checkpoints": 0},
    ]


async def test_the_agents_of_a_dead_process_are_marked_failed(engine: Engine, clock: FakeClock) -> None:
    async with engine.connect() as old:
        await worker(old, "a")
        reboot = FakeClock(boot="boot-2")
        async with engine.connect(clock=reboot) as bus:
            found = (await trail(bus))[1:]
    assert [(event.kind, event.subject_kind, event.actor) for event in found] == [
        ("agent_failed", "agent", None),
        ("process_dead", "process", None),
    ]
    known = {"verdict": "rebooted", "process": 1, "pid": os.getpid(), "alive": False}
    assert [event.facts for event in found] == [
        {"error": "the machine was restarted", "evidence": {**known, "progress": 0}},
        {"reason": "the machine was restarted", "evidence": known},
    ]


async def test_dead_letters_requeued_or_purged_are_one_line_with_the_count(bus: Bus, clock: FakeClock) -> None:
    a = await worker(bus, "a")
    ids = []
    for _ in range(3):
        await a.send("a", "note", {"secret": "payload"})
        message = await take(a)
        ids.append(message.message_id)
        await message.reject("it cannot be done")
    dead = await trail(bus, kind="message_dead")
    assert [(event.subject, event.actor) for event in dead] == [(id, "a") for id in ids]
    assert dead[0].facts == {"type": "note", "error": "it cannot be done"}
    await bus.messages.requeue(*ids)
    event = await newest(bus)
    assert (event.kind, event.subject_kind, event.subject) == ("messages_requeued", "bus", "messages")
    assert event.facts == {"count": 3, "attempts": dict.fromkeys(ids, 1)}
    for _ in range(3):
        await (await take(a)).reject("still not")
    clock.advance(10)
    assert await bus.messages.purge(status="dead", older_than=5) == 3
    event = await newest(bus)
    assert (event.kind, event.subject_kind, event.subject) == ("messages_purged", "bus", "messages")
    assert event.facts == {"count": 3, "status": "dead", "before": START + 5_000}
    await bus.messages.purge()
    assert await newest(bus) == event, "a purge that deleted nothing leaves no event"
    assert "payload" not in str(await trail(bus))


async def test_definitions_and_declarations_are_in_the_audit_log_once(bus: Bus) -> None:
    for _ in range(2):
        await bus.define("deploy_request", description="please deploy this")
        await bus.define("deployer", kind="agent")
        await bus.declare(pool("p"), topic("t"), pool("p"))
    found = [(event.kind, event.subject_kind, event.subject) for event in await trail(bus)]
    assert found == [
        ("type_defined", "vocabulary", "message/deploy_request"),
        ("type_defined", "vocabulary", "agent/deployer"),
        ("mailbox_declared", "mailbox", "pool:p"),
        ("mailbox_declared", "mailbox", "topic:t"),
    ]


async def test_deleted_checkpoints_are_in_the_audit_log_and_saved_ones_are_not(bus: Bus) -> None:
    a = await worker(bus, "a")
    for n in range(4):
        await a.checkpoint("n", n, keep=3)
    assert (await newest(bus)).kind == "agent_registered"
    saved = await a.checkpoint("m", 1)
    await bus.checkpoints.delete(saved.id)
    event = await newest(bus)
    assert (event.kind, event.subject_kind, event.subject) == ("checkpoint_deleted", "checkpoint", str(saved.id))
    assert event.facts == {"owner_kind": "agent", "owner": "a", "name": "m"}
    await bus.checkpoints.prune("a", keep=1)
    event = await newest(bus)
    assert (event.kind, event.subject_kind, event.subject) == ("checkpoints_pruned", "agent", "a")
    assert event.facts == {"count": 2, "name": None, "keep": 1}


async def test_successful_messages_leave_no_event(bus: Bus) -> None:
    a = await worker(bus, "a")
    before = await trail(bus)
    for n in range(5):
        await a.send("a", "note", n)
        async with await take(a) as unit:
            unit.progress(50)
    await a.send("a", "note")
    await (await take(a)).nack(delay=0)
    assert await trail(bus) == before


async def test_refused_calls_leave_no_event(bus: Bus) -> None:
    a = await worker(bus, "a")
    before = await trail(bus)
    with pytest.raises(UnknownRecipient):
        async with a.unit() as unit:
            unit.checkpoint("n", 1)
            unit.send("nobody", "note")
    for call in (bus.checkpoints.delete(9), bus.agents.delete("a"), bus.messages.requeue("m-9")):
        with suppress(AgentBusError):
            await call
    assert await trail(bus) == before


# Reading it


async def test_the_audit_log_is_read_in_order_at_any_length(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentbus.api.events._PAGE", 50)
    await asyncio.gather(*(bus.expect(f"a{n:04}", type="worker") for n in range(123)))
    found = await trail(bus)
    assert [event.id for event in found] == list(range(1, 124))
    assert {event.subject for event in found} == {f"a{n:04}" for n in range(123)}
    for after, limit in ((0, 1), (0, 50), (0, 51), (70, 53), (123, 5), (500, None), (119, 100)):
        expected = found[after : None if limit is None else after + limit]
        assert await trail(bus, after=after, limit=limit) == expected


async def test_the_audit_log_is_filtered_by_kind_and_subject(bus: Bus) -> None:
    a, b = await worker(bus, "a"), await worker(bus, "b")
    await a.complete()
    await b.complete()
    assert await kinds(bus, kind="agent_completed") == [("agent_completed", "a"), ("agent_completed", "b")]
    assert await kinds(bus, subject="agent:a") == [("agent_registered", "a"), ("agent_completed", "a")]
    assert await kinds(bus, subject="agent:a", kind="agent_completed") == [("agent_completed", "a")]
    assert await kinds(bus, subject="agent:a", after=1) == [("agent_completed", "a")]
    assert await kinds(bus, kind="agent_completed", after=3, limit=1) == [("agent_completed", "b")]
    assert await kinds(bus, subject="agent:nobody") == []
    assert await kinds(bus, subject="session:a") == []
    await bus.define("odd:name/x")
    assert await kinds(bus, subject="vocabulary:message/odd:name/x") == [("type_defined", "message/odd:name/x")]


@each("kind", sorted(KINDS))
async def test_every_kind_can_be_filtered(bus: Bus, kind: str) -> None:
    assert await trail(bus, kind=kind) == []


# Following it


async def follow(bus: Bus, seen: list[EventRecord], **options: Any) -> None:
    async for event in bus.events(follow=True, **options):
        seen.append(event)


async def test_followers_receive_every_event_once_and_in_order(bus: Bus, clock: FakeClock) -> None:
    await bus.expect("before", type="worker")
    first: list[EventRecord] = []
    second: list[EventRecord] = []
    async with running(follow(bus, first)), running(follow(bus, second, after=1)):
        await eventually(clock, lambda: len(first) == 1)
        await asyncio.gather(*(bus.expect(f"a{n}", type="worker") for n in range(50)))
        await eventually(clock, lambda: len(first) == 51 and len(second) == 50)
        for n in range(50, 60):
            await bus.expect(f"a{n}", type="worker")
        await eventually(clock, lambda: len(first) == 61 and len(second) == 60)
    assert [event.id for event in first] == list(range(1, 62))
    assert second == first[1:]


async def test_a_follower_receives_events_of_another_bus(engine: Engine, clock: FakeClock) -> None:
    async with engine.connect() as bus, engine.connect() as other:
        seen: list[EventRecord] = []
        async with running(follow(bus, seen)):
            for n in range(5):
                await other.expect(f"a{n}", type="worker")
                await eventually(clock, lambda n=n: len(seen) == n + 1)  # type: ignore[misc]
            assert [event.subject for event in seen] == [f"a{n}" for n in range(5)]


async def test_now_skips_past_events(bus: Bus, clock: FakeClock) -> None:
    await bus.expect("before", type="worker")
    assert await trail(bus, after="now") == []
    seen: list[EventRecord] = []
    async with running(follow(bus, seen, after="now")):
        await clock.settle()
        await bus.expect("after", type="worker")
        await eventually(clock, lambda: len(seen) == 1)
    assert seen[0].subject == "after"


async def test_a_filtered_follower_receives_only_matching_events(bus: Bus, clock: FakeClock) -> None:
    seen: list[EventRecord] = []
    async with running(follow(bus, seen, kind="agent_failed", subject="agent:b")):
        a, b = await worker(bus, "a"), await worker(bus, "b")
        await a.fail("one")
        await b.fail("two")
        await eventually(clock, lambda: len(seen) == 1)
    assert [(event.kind, event.subject) for event in seen] == [("agent_failed", "b")]


async def test_following_ends_with_its_limit(bus: Bus) -> None:
    await bus.expect("a", type="worker")

    async def three() -> list[str]:
        return [event.subject async for event in bus.events(follow=True, limit=3)]

    async with running(three()) as task:
        await bus.expect("b", type="worker")
        await bus.expect("c", type="worker")
        await bus.expect("d", type="worker")
        assert await soon(task) == ["a", "b", "c"]


async def test_a_follower_ends_when_the_bus_is_closed(engine: Engine, clock: FakeClock) -> None:
    seen: list[EventRecord] = []
    async with engine.connect() as bus:
        task = asyncio.create_task(follow(bus, seen))
        await bus.expect("a", type="worker")
        await eventually(clock, lambda: len(seen) == 1)
    with pytest.raises(BusClosed):
        await soon(task)


async def test_a_follower_that_leaves_is_unregistered(bus: Bus, clock: FakeClock) -> None:
    await bus.expect("a", type="worker")
    stream = bus.events(follow=True)
    async for _ in stream:
        break
    assert isinstance(stream, AsyncIterator)
    await stream.aclose()  # type: ignore[attr-defined]
    await clock.settle()
    await bus.expect("b", type="worker")
    assert [event.subject for event in await trail(bus)] == ["a", "b"]


async def test_a_checkpoint_with_files_leaves_no_contents_in_the_audit_log(bus: Bus, tmp_path: Path) -> None:
    (tmp_path / "plan.md").write_text("top secret")
    a = await worker(bus, "a")
    saved = await a.checkpoint("n", {"top": "secret"}, files=["plan.md"], root=tmp_path, notes="secret notes")
    await bus.checkpoints.delete(saved.id)
    assert "secret" not in str(await trail(bus))
