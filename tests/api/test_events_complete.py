"""The complete audit log: kind, subject, actor and facts in commit order, without payloads."""

from __future__ import annotations

import asyncio
import os
from typing import Any, Literal

import msgspec
import pytest

from agentbus import Bus
from agentbus.errors import AgentBusError, PayloadMismatch, WrongState
from agentbus.operations.events import KINDS
from agentbus.records import EventRecord
from tests.api.event_story import SECRET, Story, line
from tests.api.helpers import eventually, running, stored, take, worker
from tests.conftest import Engine
from tests.support.clock import FakeClock


async def trail(bus: Bus, **options: Any) -> list[EventRecord]:
    return [event async for event in bus.events(**options)]


async def test_one_pass_reads_the_whole_audit_log(bus: Bus) -> None:
    told = await Story(bus).tell()
    found = await trail(bus)
    assert [line(event) for event in found] == told
    assert [event.id for event in found] == list(range(1, len(found) + 1))
    assert SECRET not in str(found)
    left = set(KINDS) - {event.kind for event in found}
    # What a monitor finds is told in test_liveness; retention, archives, backups and copies have tests of their own,
    # as has the command line.
    by_monitor = {"process_dead", "process_back", "agent_suspected", "agent_recovered"}
    kept = {"session_deleted", "history_deleted", "retention_applied", "retention_changed", "archive_imported"}
    replaced = {"bus_restored", "bus_copied"}
    set_apart = {"quotas_changed", "agent_renamed", "thread_held", "thread_released", "thread_discarded"}
    notified = {"condition_reported", "notification_dead"}
    by_visitors = {"agent_joined", "agent_busy", "token_created", "token_revoked"}
    # Tasks have a story of their own.
    by_tasks = {kind for kind in KINDS if kind.startswith(("task_", "step_", "approval_"))}
    assert left == by_monitor | kept | replaced | by_visitors | set_apart | by_tasks | notified, (
        "the story forgot something"
    )


async def test_followers_of_this_and_another_bus_receive_every_event(engine: Engine, clock: FakeClock) -> None:
    async with engine.connect() as bus, engine.connect() as other:
        here: list[EventRecord] = []
        there: list[EventRecord] = []

        async def follow(bus: Bus, seen: list[EventRecord]) -> None:
            async for event in bus.events(follow=True):
                seen.append(event)

        async with running(follow(bus, here)), running(follow(other, there)):
            told = await Story(bus).tell()
            await eventually(clock, lambda: len(here) >= len(told) and len(there) >= len(told))
        assert [line(event) for event in here] == told
        assert there == here == await trail(other)


async def test_each_subject_can_be_filtered(bus: Bus) -> None:
    told = await Story(bus).tell()
    for subject in {one[1] for one in told}:
        found = [line(event) for event in await trail(bus, subject=subject)]
        assert found == [one for one in told if one[1] == subject]
    for kind in {one[0] for one in told}:
        assert [line(event) for event in await trail(bus, kind=kind)] == [one for one in told if one[0] == kind]


async def test_a_dead_process_leaves_an_event_for_everything_it_held(engine: Engine) -> None:
    async with engine.connect() as old:
        process = old._engine.process
        block = old.session("planning", id="s")
        await block.__aenter__()
        a = await worker(old, "a", session="s")
        await a.send("a", "note", {"text": SECRET}, max_attempts=1, message_id="last-try")
        await take(a)
        before = len(await trail(old))
        async with engine.connect(clock=FakeClock(boot="boot-2")) as bus:
            found = [line(event) for event in await trail(bus, after=before)]
            assert (await stored(bus, "last-try")).status == "dead"
    reason = "the machine was restarted"
    known = {"verdict": "rebooted", "process": process, "pid": os.getpid(), "alive": False}
    assert found[0][:2] == ("message_dead", "message:last-try")
    assert SECRET not in str(found)
    assert found[1:] == [
        ("agent_failed", "agent:a", "by", None, {"error": reason, "evidence": {**known, "progress": 0}}),
        ("session_interrupted", "session:s", "by", None, {"before": "active", "reason": reason}),
        ("process_dead", f"process:{process}", "by", None, {"reason": reason, "evidence": known}),
    ]


async def test_a_rolled_back_unit_leaves_no_event_and_a_committed_one_only_its_definition(bus: Bus) -> None:
    class Report(msgspec.Struct):
        text: str

    async with bus.session("planning", id="s"):
        a = await worker(bus, "a", session="s")
        before = len(await trail(bus))
        for to in ("nobody", "a"):
            try:
                async with a.unit() as unit:
                    unit.send("a", Report(SECRET))
                    unit.state.set("k", SECRET)
                    unit.checkpoint("c", SECRET)
                    unit.document("d", SECRET)
                    unit.send(to, "note", SECRET)
            except AgentBusError:
                assert len(await trail(bus)) == before
        found = [line(event) for event in await trail(bus, after=before)]
        assert found == [("type_defined", "vocabulary:message/report", "by", "a", {"schema": True})]


async def test_the_audit_log_is_in_commit_order(engine: Engine) -> None:
    """A reader that has read up to an event has missed none before it, with any number of writers."""
    async with engine.connect() as one, engine.connect() as two:
        seen: list[int] = []
        writing = asyncio.gather(
            *(bus.expect(f"{name}{n}", type="worker") for n in range(40) for name, bus in (("x", one), ("y", two)))
        )
        while not writing.done() or len(seen) < 80:
            seen += [event.id for event in await trail(one, after=seen[-1] if seen else 0)]
        await writing
    assert seen == list(range(1, 81))


class Choice(msgspec.Struct):
    kind: Literal["a", "b"]


@pytest.mark.one_engine
async def test_the_error_of_an_unreadable_payload_does_not_contain_it(bus: Bus, engine: Engine) -> None:
    a = await worker(bus, "a")
    await bus.define(Choice)
    async with engine.connect() as other:
        await other.define("choice", schema={"type": "object"})
        b = await worker(other, "b")
        await b.send("a", "choice", {"kind": SECRET}, max_attempts=1)
    message = await take(a)
    with pytest.raises(PayloadMismatch):
        async with message:
            print(message.payload)
    record = await stored(bus, message.message_id)
    assert (record.status, "PayloadMismatch" in (record.error or "")) == ("dead", True)
    assert SECRET not in str(await trail(bus))


@pytest.mark.one_engine
async def test_the_error_of_a_value_of_the_wrong_type_does_not_contain_it(bus: Bus) -> None:
    async with bus.session("planning", id="s") as session:
        a = await worker(bus, "a", session="s")
        await a.state.set("k", {"kind": SECRET})
        await session.document("d").save({"kind": SECRET})
        await a.send_many({"to": "a", "type": "note", "max_attempts": 1} for _ in range(2))
        for read in (a.state.get("k", as_=Choice), session.document("d").latest(as_=Choice)):
            with pytest.raises(PayloadMismatch):
                async with await take(a):
                    await read
    assert len(await trail(bus, kind="message_dead")) == 2
    assert SECRET not in str(await trail(bus))


@pytest.mark.one_engine
async def test_the_error_of_a_sum_out_of_range_does_not_contain_it(bus: Bus) -> None:
    a = await worker(bus, "a")
    await a.state.set("n", 2**63 - 12_345)
    await a.send("a", "note", max_attempts=1)
    with pytest.raises(WrongState):
        async with await take(a) as unit:
            unit.state.increment("n", 2**62)
    assert str(2**63 - 12_345) not in str(await trail(bus))
