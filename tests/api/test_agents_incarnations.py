"""Incarnations of an agent: register, expect, take over; earlier incarnations are fenced."""

from __future__ import annotations

import asyncio

import pytest

from agentbus import Agent, Bus, pool
from agentbus.errors import AgentEnded, AgentExists, AgentFenced, UnknownSession, UnknownType
from tests.api.helpers import known, nothing_for, queued, stored, take, worker
from tests.conftest import Engine
from tests.support.clock import START, FakeClock


async def test_a_registered_agent_has_all_its_given_attributes(bus: Bus) -> None:
    await bus.register(
        "planner-1",
        type="milestone-planner",
        name="The planner",
        milestone="ms-123",
        parent="boss",
        capabilities=["python", "sql"],
        model="a-model",
        prompt="Plan it.\nWell.",
        load=30,
        estimate=90.5,
        metadata={"team": ["x"]},
        patience=120,
    )
    record = await known(bus, "planner-1")
    assert (record.id, record.name, record.type, record.kind) == (
        "planner-1",
        "The planner",
        "milestone-planner",
        "resident",
    )
    assert (record.milestone, record.parent, record.capabilities) == ("ms-123", "boss", ["python", "sql"])
    assert (record.model, record.prompt, record.load, record.estimate) == ("a-model", "Plan it.\nWell.", 30, 90.5)
    assert (record.metadata, record.patience, record.session) == ({"team": ["x"]}, 120, None)
    assert (record.status, record.progress, record.note, record.error) == ("running", 0, None, None)
    assert (record.created, record.started, record.updated, record.ended) == (START, START, START, None)
    assert record.process is not None


@pytest.mark.one_engine
async def test_the_name_of_an_agent_defaults_to_its_id(bus: Bus) -> None:
    await worker(bus, "a")
    record = await known(bus, "a")
    assert (record.name, record.capabilities, record.metadata) == ("a", [], {})


async def test_an_id_that_is_alive_is_refused(bus: Bus, engine: Engine) -> None:
    a = await worker(bus, "a")
    async with engine.connect() as elsewhere:
        for place in (bus, elsewhere):
            with pytest.raises(AgentExists) as exists:
                await worker(place, "a")
            assert exists.value.code == "agent_exists"
            assert (exists.value.agent, exists.value.status) == ("a", "running")
            assert exists.value.pid is not None
            assert "takeover" in (exists.value.fix or "")
    await a.send("a", "note")
    assert (await known(bus, "a")).epoch == a.epoch == 1


async def test_of_many_that_register_one_id_at_once_one_succeeds(bus: Bus, engine: Engine) -> None:
    async with engine.connect() as elsewhere:
        tries = [worker(place, "a") for _ in range(10) for place in (bus, elsewhere)]
        results = await asyncio.gather(*tries, return_exceptions=True)
        assert sum(isinstance(result, Agent) for result in results) == 1
        assert sum(isinstance(result, AgentExists) for result in results) == 19


async def test_a_takeover_fences_the_previous_incarnation(bus: Bus, engine: Engine) -> None:
    old = await worker(bus, "a", pools=["p"])
    await old.send("a", "note", "mine")
    held = await take(old)
    async with engine.connect() as elsewhere:
        new = await worker(elsewhere, "a", takeover=True)
        assert new.epoch == old.epoch + 1
        before = (await bus.stats()).messages
        for action in (
            old.send("a", "note"),
            old.receive(timeout=0),
            old.receive_many(5, timeout=0),
            old.send_many([("a", "note")]),
            old.publish("t", "note"),
            old.request("a", "note", timeout=5),
            old.progress(50),
            old.busy(5),
            old.join("q"),
            old.leave("p"),
            old.subscribe("t"),
            old.ack([held]),
            held.ack(),
            held.nack(),
            held.reject("no"),
            held.extend(60),
            held.reply("note"),
            old.complete(),
            old.fail("x"),
            old.stop(),
        ):
            with pytest.raises(AgentFenced) as fenced:
                await action
            assert (fenced.value.code, fenced.value.agent, fenced.value.epoch) == ("agent_fenced", "a", 1)
        assert (await bus.stats()).messages == before
        assert (await known(bus, "a")).status == "running"
        await new.send("a", "note", "still works")


async def test_of_many_concurrent_takeovers_the_last_stays_alive(bus: Bus) -> None:
    lives = await asyncio.gather(*(worker(bus, "a", takeover=True) for _ in range(10)))
    assert sorted(life.epoch for life in lives) == list(range(1, 11))
    for life in lives:
        if life.epoch == 10:
            await life.send("a", "note")
        else:
            with pytest.raises(AgentFenced):
                await life.send("a", "note")
    assert await queued(bus, "a") == [None]


async def test_a_takeover_inherits_the_mailbox_and_the_held_messages(bus: Bus, engine: Engine) -> None:
    old = await worker(bus, "a", pools=["p"])
    for n in range(3):
        await old.send("a", "note", n)
    await old.send(pool("p"), "note", "pool")
    await take(old)
    async with engine.connect() as elsewhere:
        new = await worker(elsewhere, "a", takeover=True)
        first = await take(new)
        assert (first.payload, first.attempts) == (0, 2)
        assert [(await take(new)).payload for _ in range(3)] == [1, 2, "pool"]


async def test_a_takeover_of_an_id_that_is_not_alive_is_an_ordinary_start(bus: Bus) -> None:
    assert (await worker(bus, "new", takeover=True)).epoch == 1
    await (await worker(bus, "old")).complete()
    assert (await worker(bus, "old", takeover=True)).epoch == 2


@pytest.mark.parametrize("end", ["complete", "fail", "stop"])
async def test_an_ended_id_starts_a_new_incarnation_and_keeps_its_mailbox(bus: Bus, end: str, clock: FakeClock) -> None:
    first, b = await worker(bus, "a", capabilities=["x"], metadata={"k": 1}), await worker(bus, "b")
    await b.send("a", "note", "waits")
    await first.progress(70, "nearly")
    await (first.fail("crashed") if end == "fail" else getattr(first, end)())
    clock.advance(5)
    second = await worker(bus, "a")
    assert second.epoch == first.epoch + 1
    assert (await take(second)).payload == "waits"
    record = await known(bus, "a")
    assert (record.status, record.progress, record.note, record.error, record.ended) == ("running", 0, None, None, None)
    assert (record.capabilities, record.metadata) == (["x"], {"k": 1})
    assert (record.created, record.started) == (START, START + 5_000)
    with pytest.raises(AgentFenced):
        await first.send("a", "note")


async def test_a_new_incarnation_may_have_other_attributes(bus: Bus) -> None:
    await (await worker(bus, "a", capabilities=["x"], load=10)).complete()
    await bus.register("a", type="tester", capabilities=["y", "z"])
    record = await known(bus, "a")
    assert (record.type, record.capabilities, record.load) == ("tester", ["y", "z"], 10)


async def test_an_expected_agent_is_pending_and_its_mailbox_exists(bus: Bus) -> None:
    a = await worker(bus, "a")
    await bus.expect("b", type="tester", milestone="ms-1")
    record = await known(bus, "b")
    assert (record.status, record.type, record.milestone, record.started) == ("pending", "tester", "ms-1", None)
    await a.send("b", "note", "early")
    b = await bus.register("b", type="tester")
    assert (await take(b)).payload == "early"
    record = await known(bus, "b")
    assert (record.status, record.milestone, record.epoch) == ("running", "ms-1", 1)


async def test_expecting_again_is_harmless(bus: Bus) -> None:
    a = await worker(bus, "a")
    await bus.expect("b", type="worker")
    await a.send("b", "note", 1)
    await bus.expect("b", type="worker")
    assert await queued(bus, "b") == [1]


async def test_expecting_an_agent_that_is_running_changes_nothing(bus: Bus) -> None:
    a = await worker(bus, "a")
    await bus.expect("a", type="worker")
    assert (await known(bus, "a")).status == "running"
    await a.send("a", "note")


async def test_expecting_one_that_ended_lets_messages_wait_for_it(bus: Bus) -> None:
    a, b = await worker(bus, "a"), await worker(bus, "b")
    await b.complete()
    with pytest.raises(AgentEnded):
        await a.send("b", "note")
    await bus.expect("b", type="worker")
    await a.send("b", "note", 1)
    with pytest.raises(AgentFenced):
        await b.receive(timeout=0)
    assert (await take(await worker(bus, "b"))).payload == 1


async def test_an_expected_agent_can_be_registered_by_one_only(bus: Bus) -> None:
    await bus.expect("b", type="worker")
    await worker(bus, "b")
    with pytest.raises(AgentExists):
        await worker(bus, "b")


async def test_a_refused_registration_leaves_nothing_behind(bus: Bus) -> None:
    with pytest.raises(UnknownType) as unknown:
        await bus.register("a", type="wroker")
    assert (unknown.value.code, unknown.value.kind, unknown.value.name) == ("unknown_type", "agent", "wroker")
    assert "worker" in str(unknown.value)
    with pytest.raises(UnknownSession) as session:
        await bus.register("a", type="worker", session="none", pools=["p"])
    assert (session.value.code, session.value.session) == ("unknown_session", "none")
    for call in (bus.expect("a", type="wroker"), bus.expect("a", type="worker", session="none")):
        with pytest.raises((UnknownType, UnknownSession)):
            await call
    assert await bus.agents.get("a") is None


async def test_pools_and_topics_of_an_earlier_incarnation_are_kept_only_after_a_failure(bus: Bus) -> None:
    await bus.declare(pool("p"))
    sender = await worker(bus, "sender")
    a = await worker(bus, "a", pools=["p"])
    await a.fail("crashed")
    await sender.send(pool("p"), "note", 1)
    again = await worker(bus, "a")
    assert (await take(again)).payload == 1
    await again.complete()
    await sender.send(pool("p"), "note", 2)
    assert await nothing_for(await worker(bus, "a"))


@pytest.mark.one_engine
async def test_the_handle_exposes_the_identity_of_its_agent(bus: Bus) -> None:
    a = await worker(bus, "a")
    assert (a.id, a.epoch, a.session) == ("a", 1, None)
    assert "a#1" in repr(a)


async def test_incarnations_before_a_deletion_stay_fenced_when_the_agent_returns(bus: Bus) -> None:
    old = await worker(bus, "a")
    await old.fail("declared dead")
    await bus.agents.delete("a")
    await bus.expect("a", type="worker")
    new = await worker(bus, "a")
    assert new.epoch == old.epoch + 1
    for call in (old.progress(1), old.send("a", "note"), old.complete()):
        with pytest.raises(AgentFenced):
            await call
    await new.stop()
    await bus.agents.delete("a")
    assert (await worker(bus, "a")).epoch == new.epoch + 1


async def test_a_deleted_agent_is_fenced(bus: Bus) -> None:
    a = await worker(bus, "a")
    await a.complete()
    await bus.agents.delete("a")
    with pytest.raises(AgentFenced):
        await a.send("a", "note")


async def test_a_message_of_an_earlier_incarnation_cannot_be_settled_by_a_later_one(bus: Bus) -> None:
    a = await worker(bus, "a")
    receipt = await a.send("a", "note")
    held = await take(a)
    await a.fail("crashed")
    await worker(bus, "a")
    with pytest.raises(AgentFenced):
        await held.ack()
    assert (await stored(bus, receipt.message_id)).status == "queued"
