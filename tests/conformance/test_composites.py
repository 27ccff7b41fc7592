"""Composite checkpoints: all that belongs to a session at one moment, and the way back to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from agentbus import Bus, Session, errors
from agentbus.errors import ForeignCheckpoint, SnapshotTooLarge, UnknownCheckpoint, WrongState
from agentbus.records import Rollback
from tests.conformance.cut_off import cut_off, kinds, member, trail
from tests.conformance.helpers import held, take, worker
from tests.conftest import Engine
from tests.support.clock import FakeClock


@pytest.fixture
async def session(bus: Bus) -> AsyncIterator[Session]:
    async with bus.session("execution", id="s") as session:
        yield session
        session.ended = True  # how the tests leave it is their business


async def points(bus: Bus, session: str = "s", name: str | None = None) -> list[str]:
    """The names of the composites there are, newest first."""
    return [point.name for point in (await bus.checkpoints.list(session, name, kind="composite")).items]


async def everything(bus: Bus, session: Session, *agents: str) -> dict[str, Any]:
    """All that a rollback restores, as callers see it."""
    documents = {one.name: await session.document(one.name).latest() for one in await session.documents()}
    states = {agent: {entry.key: entry.value for entry in (await bus.state(agent).list()).items} for agent in agents}
    meeting = await session.participants([])
    return {
        "documents": documents,
        "states": states,
        "session": {entry.key: entry.value for entry in (await session.state.list()).items},
        "meeting": (meeting.members, meeting.finished, meeting.results),
        "progress": (await session.record()).progress,
    }


async def test_a_composite_shows_all_that_belongs_to_the_session(bus: Bus, session: Session) -> None:
    a = await member(bus, "a")
    stranger = await worker(bus, "stranger")
    await stranger.state.set("not", "mine")
    await a.state.set("phase", "design")
    await session.state.set("level", 3)
    checkpoint = await a.checkpoint("half", 1)
    await session.document("plan").save({"x": 1}, author="a")
    meeting = await session.participants(["m", "n"])
    await meeting.finish("m", {"agrees": True})
    receipt = await stranger.send("a", "note", "secret")
    await session.progress(40)
    summary = await session.checkpoint_all("half", notes="so far")
    assert (summary.owner_kind, summary.owner, summary.name, summary.notes) == ("composite", "s", "half", "so far")
    found = await bus.checkpoints.get(summary.id)
    assert found is not None
    whole = found.snapshot
    assert (whole["session"], whole["operation"], whole["progress"]) == ("s", "execution", 40)
    assert [(one["name"], one["version"], one["author"], one["value"]) for one in whole["documents"]] == [
        ("plan", 1, "a", {"x": 1})
    ]
    assert [(one["scope"], one["key"], one["value"]) for one in whole["state"]] == [
        ("session:s", "level", 3), ("a", "phase", "design"),
    ]  # fmt: skip
    assert [(one["member"], one["result"]) for one in whole["participants"]] == [("m", {"agrees": True}), ("n", None)]
    assert [(one["id"], one["checkpoint"]) for one in whole["agents"]] == [("a", checkpoint.id)]
    assert whole["messages"] == [
        {
            "id": 1,
            "message_id": receipt.message_id,
            "sender": "stranger",
            "agent": "a",
            "type": "note",
            "status": "queued",
        }
    ], "listed, without its payload"
    assert summary == (await bus.checkpoints.list("s", kind="composite")).items[0]


async def test_composites_and_snapshots_of_a_session_do_not_mix(bus: Bus, session: Session) -> None:
    await session.checkpoint("n", {"mine": 1})
    for _ in range(3):
        await session.checkpoint_all("n", keep=2)
    own = await session.restore()
    assert own is not None
    assert own.snapshot == {"mine": 1}
    assert len(await points(bus)) == 2
    assert await bus.checkpoints.prune("s", keep=1, kind="composite") == 1
    assert [event.kind for event in await trail(bus)][-1] == "checkpoints_pruned"
    with pytest.raises(errors.OutOfRange):
        await bus.checkpoints.save("s", "n", 1, kind="composite")


async def test_a_rollback_restores_all_of_it_and_says_what_it_changed(
    bus: Bus, session: Session, clock: FakeClock
) -> None:
    a, b = await member(bus, "a"), await member(bus, "b")
    await a.state.set("phase", "design")
    await a.state.set("short", 1, ttl=60, type="temp_data")
    await a.state.set("gone", True)
    await b.state.set("same", [1, 2.50, "ü"])
    await session.state.set("level", 3)
    await session.document("plan").save({"x": 1}, author="a")
    await session.document("same").save(1)
    meeting = await session.participants(["m", "n"])
    await meeting.finish("m", {"agrees": True})
    await session.progress(40)
    then = await a.checkpoint("step", 1)
    waiting = (await b.send("a", "note", "listed")).message_id
    assert waiting is not None
    before = await everything(bus, session, "a", "b")
    versions = [await a.state.entry(key) for key in ("phase", "short", "gone")]
    point = await session.checkpoint_all("half")
    entry = await a.state.entry("short")

    clock.advance(10)
    await a.state.set("phase", "build")
    await a.state.set("short", 2)
    await a.state.delete("gone")
    await a.state.set("new", 1)
    await session.state.set("level", 4)
    await session.document("plan").save({"x": 2})
    await session.document("results").save([])
    await meeting.finish("n", "late")
    await session.participants(["m", "n", "o"])
    await session.progress(90)
    later = await a.checkpoint("step", 2)
    await b.checkpoint("only", 1)
    await (await take(a)).ack()
    after = await everything(bus, session, "a", "b")

    done = await session.rollback(point.id)
    assert await everything(bus, session, "a", "b") == before
    again = done.checkpoints["a"]
    assert done == Rollback(
        "s", point.id, done.saved, ["plan"], ["results"],
        {"a": ["gone", "new", "phase", "short"], "session:s": ["level"]},
        {"participants": ["n", "o"]}, {"a": again}, ["b"], [], ["a", "b"], [waiting],
    )  # fmt: skip
    restored = await a.restore()
    assert restored is not None
    assert (restored.snapshot, restored.id) == (1, again)
    assert then.id < later.id < again
    plan = await session.document("plan").record()
    assert plan is not None
    assert (plan.version, plan.author) == (3, "a"), "versions go on counting"
    assert (await a.state.entry("short")) is not None
    now = await a.state.entry("short")
    assert now is not None
    assert entry is not None
    assert (now.type, now.expires) == ("temp_data", entry.expires), "it expires when it would have"
    for known in versions:
        assert known is not None
        found = await a.state.entry(known.key)
        assert found is not None
        assert found.version > known.version, "versions never repeat"
    event = (await trail(bus))[-1]
    assert (event.kind, event.facts) == (
        "session_rolled_back",
        {"checkpoint": point.id, "saved": done.saved, "documents": 1, "removed": 1, "entries": 5, "participants": 2},
    )

    undone = await session.rollback(done.saved)
    assert await everything(bus, session, "a", "b") == after, "what was there before is a checkpoint too"
    assert undone.documents == ["plan", "results"]


async def test_a_rollback_to_what_is_there_changes_nothing(bus: Bus, session: Session) -> None:
    a = await member(bus, "a")
    await a.state.set("k", {"deep": [1]})
    await session.document("d").save(1)
    await (await session.participants(["m"])).finish("m")
    point = await session.checkpoint_all("p")
    entry = await a.state.entry("k")
    done = await session.rollback(point.id)
    assert (done.documents, done.removed, done.state, done.participants, done.checkpoints) == ([], [], {}, {}, {})
    assert await a.state.entry("k") == entry
    assert [one.version for one in await session.documents()] == [1]


async def test_a_session_lists_its_composites_and_restores_only_its_own_snapshots(bus: Bus, session: Session) -> None:
    await session.checkpoint("half", {"step": 3})
    first = await session.checkpoint_all("first")
    async with session.before("deploy") as second:
        await session.document("d").save(1)
    await session.rollback(first.id)
    assert [point.name for point in (await session.composites()).items] == ["before-rollback", "before-deploy", "first"]
    assert [point.id for point in (await session.composites("before-deploy")).items] == [second.id]
    page = await session.composites(limit=1)
    assert page.cursor is not None
    assert len((await session.composites(cursor=page.cursor)).items) == 2
    assert await session.restore("first") is None, "that is another kind"
    snapshot = await session.restore()
    assert snapshot is not None
    assert snapshot.name == "half"


async def test_versions_of_a_document_that_a_rollback_removed_go_on_counting(bus: Bus, session: Session) -> None:
    point = await session.checkpoint_all("p")
    for value in range(2):
        await session.document("d").save(value)
    assert (await session.rollback(point.id)).removed == ["d"]
    assert await session.document("d").latest() is None
    assert (await session.document("d").save("again")).version == 3
    await session.rollback(point.id)
    assert (await session.document("d").save("once more")).version == 4


async def test_restored_state_has_the_author_that_it_had(bus: Bus, session: Session) -> None:
    a = await member(bus, "a")
    await a.state.set("k", 1)
    await session.state.set("shared", 1)
    point = await session.checkpoint_all("p")
    await bus.state("a").set("k", 2)
    await session.state.set("shared", 2)
    await session.rollback(point.id)
    entry, other = await bus.state("a").entry("k"), await session.state.entry("shared")
    assert entry is not None
    assert other is not None
    assert (entry.value, entry.author, other.value, other.author) == (1, "a", 1, None)


async def test_what_is_too_large_is_refused_before_it_is_composed(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with engine.connect(max_snapshot=1000) as bus, bus.session("execution", id="s") as session:
        a = await member(bus, "a")
        await a.state.set("k", "x" * 600)
        point = await session.checkpoint_all("p")
        await session.state.set("k", "y" * 600, ttl=60)
        monkeypatch.setattr("agentbus.operations.composites._compose", None)
        for action in (session.checkpoint_all("q"), session.rollback(point.id)):
            with pytest.raises(SnapshotTooLarge) as refused:
                await action
            assert refused.value.size == 1204


async def test_what_has_expired_since_is_not_restored(bus: Bus, session: Session, clock: FakeClock) -> None:
    a = await member(bus, "a")
    await a.state.set("short", 1, ttl=5)
    await a.state.set("long", 1, ttl=500)
    point = await session.checkpoint_all("p")
    await a.state.delete("long")
    clock.advance(60)
    assert (await session.rollback(point.id)).state == {"a": ["long"]}
    assert await a.state.get("short") is None
    clock.advance(500)
    assert await a.state.get("long") is None


async def test_agents_that_left_the_session_are_left_alone(bus: Bus, session: Session) -> None:
    a = await member(bus, "a")
    await a.state.set("k", 1)
    point = await session.checkpoint_all("p")
    await a.complete()
    async with bus.session("execution", id="other"):
        moved = await member(bus, "a", "other")
        await moved.state.set("k", 2)
        joined = await member(bus, "joined")
        await joined.state.set("k", 3)
        done = await session.rollback(point.id)
        assert (done.left, done.state, done.live) == (["a"], {}, ["joined"])
        assert (await moved.state.get("k"), await joined.state.get("k")) == (2, 3)


async def test_an_agents_checkpoint_that_is_gone_is_told(bus: Bus, session: Session) -> None:
    a = await member(bus, "a")
    first = await a.checkpoint("n", 1)
    point = await session.checkpoint_all("p")
    await a.checkpoint("n", 2)
    await bus.checkpoints.delete(first.id)
    done = await session.rollback(point.id)
    assert (done.checkpoints, done.ahead) == ({}, ["a"])


async def test_those_who_watch_hear_of_a_rollback(bus: Bus, session: Session) -> None:
    a = await member(bus, "a")
    await a.state.set("k", 1)
    point = await session.checkpoint_all("p")
    await a.state.set("k", 2)
    watching = bus.state("a").watch()
    assert (await anext(watching)).value == 2
    await session.rollback(point.id)
    assert (await anext(watching)).value == 1
    await watching.aclose()


async def test_a_plan_rolls_back_and_resumes_in_one_commit(bus: Bus, engine: Engine) -> None:
    async with cut_off(engine) as (owner, session):
        a = await member(owner, "a")
        await a.state.set("step", 1)
        await a.checkpoint("step", 1)
        point = await session.checkpoint_all("half")
        await a.state.set("step", 2)
        await a.checkpoint("step", 2)
        await session.document("wrong").save(1)
        newest = await session.checkpoint_all("worse")
    plan = await bus.recovery.plan("s")
    assert [one.id for one in plan.checkpoints] == [newest.id, point.id]
    done = await plan.rollback(point.id)
    assert done.rollback is not None
    assert (done.agents, done.rollback.removed, done.rollback.live) == (["a"], ["wrong"], [])
    assert (await held(bus, "s")).status == "active"
    back = await bus.register("a", type="worker")
    assert await back.state.get("step") == 1
    assert back.restored is not None
    checkpoint = await back.restore(id=back.restored.id)
    assert checkpoint is not None
    assert checkpoint.snapshot == 1
    assert await kinds(bus) == ["started", "interrupted", "rolled_back", "continued", "recovered"]


async def test_without_a_checkpoint_named_a_plan_goes_back_to_the_newest(bus: Bus, engine: Engine) -> None:
    async with cut_off(engine) as (_, session):
        await session.document("d").save(1)
        await session.checkpoint_all("first")
        await session.document("d").save(2)
        newest = await session.checkpoint_all("second")
        await session.document("d").save(3)
    done = await (await bus.recovery.plan("s")).rollback()
    assert done.rollback is not None
    assert done.rollback.checkpoint == newest.id
    assert await (await bus.sessions.open("s")).document("d").latest() == 2


# Every so often, and before something major


async def test_composites_are_saved_every_so_often_unless_nothing_changed(
    bus: Bus, session: Session, clock: FakeClock
) -> None:
    a = await member(bus, "a")
    async with session.checkpoint_every(30, keep=3):
        await clock.pass_time(29)
        assert await points(bus) == []
        await clock.pass_time(1)
        assert await points(bus) == ["auto"]
        await a.send("a", "note", "what waits is not what it has come to")
        await clock.pass_time(30)
        assert len(await points(bus)) == 1, "nothing changed"
        await a.state.set("k", 1)
        await clock.pass_time(30)
        assert len(await points(bus)) == 2
        await session.document("d").save(1)
    assert len(await points(bus)) == 3, "once more at the end"


async def test_after_an_exception_nothing_more_is_saved(bus: Bus, session: Session) -> None:
    with pytest.raises(ZeroDivisionError):
        async with session.checkpoint_every(30):
            raise ZeroDivisionError
    assert await points(bus) == []


async def test_saving_ends_with_the_session(
    bus: Bus, session: Session, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with session.checkpoint_every(30):
        await session.complete()
        await clock.pass_time(90)
    assert [record.getMessage() for record in caplog.records if "no more checkpoints" in record.getMessage()] != []
    assert await points(bus) == []


async def test_a_failure_to_save_is_logged_and_tried_again(
    engine: Engine, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        engine.connect(max_snapshot=2000) as bus,
        bus.session("execution", id="s") as session,
        session.checkpoint_every(30),
    ):
        await session.state.set("large", "x" * 3000)
        await clock.pass_time(30)
        assert "no checkpoint 'auto' this time" in caplog.text
        await session.state.delete("large")
        await clock.pass_time(30)
        assert await points(bus) == ["auto"]


async def test_before_something_major_there_is_a_composite(bus: Bus, session: Session) -> None:
    async with session.before("deploy") as point:
        assert (point.name, await points(bus)) == ("before-deploy", ["before-deploy"])
        await session.state.set("deployed", True)
    assert await session.state.get("deployed")
    with pytest.raises(ZeroDivisionError):
        async with session.before("deploy"):
            await session.state.set("deployed", "twice")
            raise ZeroDivisionError
    assert await session.state.get("deployed") == "twice", "it is only rolled back if asked for"


async def test_something_major_that_fails_is_rolled_back_if_asked_for(bus: Bus, session: Session) -> None:
    with pytest.raises(ZeroDivisionError):
        async with session.before("deploy", rollback=True):
            await session.state.set("deployed", True)
            raise ZeroDivisionError
    assert await session.state.get("deployed") is None
    with pytest.raises(KeyError):
        async with session.before("deploy", rollback=True):
            await session.complete()
            raise KeyError  # the exception of the block matters more than a rollback that cannot be done


# Bad input


async def test_a_rollback_to_somebody_elses_checkpoint_is_refused(bus: Bus, session: Session) -> None:
    a = await member(bus, "a")
    async with bus.session("execution", id="other") as other:
        foreign = await other.checkpoint_all("p")
        plain = await other.checkpoint("p", 1)
        of_agent = await a.checkpoint("p", 1)
        own = await session.checkpoint("p", 1)
        await session.document("d").save(1)
        before = await everything(bus, session, "a"), await trail(bus), await points(bus)
        for id in (foreign.id, plain.id, of_agent.id):
            with pytest.raises(ForeignCheckpoint, match="not to session 's'"):
                await session.rollback(id)
        with pytest.raises(WrongState, match="checkpoint_all"):
            await session.rollback(own.id)
        with pytest.raises(UnknownCheckpoint):
            await session.rollback(999)
        for bad in (0, -1, "1", None, True):
            with pytest.raises(errors.OutOfRange):
                await session.rollback(bad)  # type: ignore[arg-type]
        assert (await everything(bus, session, "a"), await trail(bus), await points(bus)) == before


async def test_a_plan_refuses_another_sessions_checkpoint_and_can_still_be_used(bus: Bus, engine: Engine) -> None:
    async with cut_off(engine, "other") as (_, other):
        foreign = await other.checkpoint_all("p")
    async with cut_off(engine) as (_, session):
        point = await session.checkpoint_all("p")
    plan = await bus.recovery.plan("s")
    with pytest.raises(ForeignCheckpoint):
        await plan.rollback(foreign.id)
    assert (await plan.rollback(point.id)).changed


async def test_an_agent_whose_id_is_that_of_the_session_does_not_share_its_checkpoints(
    bus: Bus, session: Session
) -> None:
    namesake = await worker(bus, "s")
    checkpoint = await namesake.checkpoint("p", 1)
    with pytest.raises(ForeignCheckpoint):
        await session.rollback(checkpoint.id)


async def test_an_ended_or_unknown_session_has_no_composites(bus: Bus, session: Session) -> None:
    point = await session.checkpoint_all("p")
    await session.complete()
    with pytest.raises(WrongState):
        await session.checkpoint_all("p")
    with pytest.raises(WrongState):
        await session.rollback(point.id)
    assert await points(bus) == ["p"]


async def test_one_that_is_too_large_is_refused_as_a_whole(engine: Engine) -> None:
    async with engine.connect(max_snapshot=5000) as bus, bus.session("execution", id="s") as session:
        await session.document("d").save("x" * 1000)
        point = await session.checkpoint_all("small")
        await session.state.set("large", "x" * 6000)
        with pytest.raises(SnapshotTooLarge):
            await session.checkpoint_all("large")
        with pytest.raises(SnapshotTooLarge):
            # What is there could not be saved, and would be lost.
            await session.rollback(point.id)
        assert await session.state.get("large") is not None
        assert await points(bus) == ["small"]


@pytest.mark.parametrize(
    "call",
    [
        lambda session: session.checkpoint_all("no name"),
        lambda session: session.checkpoint_all("n", notes=1),
        lambda session: session.checkpoint_all("n", keep=0),
        lambda session: session.before("no name").__aenter__(),
    ],
)
async def test_bad_arguments_are_refused(bus: Bus, session: Session, call: Any) -> None:
    with pytest.raises(errors.InvalidInput):
        await call(session)
    with pytest.raises(errors.InvalidInput):
        session.checkpoint_every(0)
    with pytest.raises(errors.InvalidInput):
        session.checkpoint_every(1, keep=0)
    assert await points(bus) == []


async def test_rollbacks_and_writers_at_once_leave_one_moment_or_the_other(bus: Bus, session: Session) -> None:
    a = await member(bus, "a")

    async def both(number: int) -> None:
        async with a.unit() as unit:
            unit.state.set("n", number)
            unit.document("n", number)

    await both(0)
    point = await session.checkpoint_all("p")

    async def write() -> None:
        for number in range(1, 30):
            await both(number)

    async def back() -> list[Rollback]:
        return [await session.rollback(point.id) for _ in range(10)]

    rollbacks, _ = await asyncio.gather(back(), write())
    assert await a.state.get("n") == await session.document("n").latest()
    for done in rollbacks:
        saved = await bus.checkpoints.get(done.saved)
        assert saved is not None
        assert saved.snapshot["state"][0]["value"] == saved.snapshot["documents"][0]["value"]
        assert bool(done.documents) == bool(done.state)
