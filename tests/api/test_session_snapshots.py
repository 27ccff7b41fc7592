"""Composite checkpoints: everything of a session at one moment, and the rollback to it."""

from __future__ import annotations

import pytest

from agentbus import Bus, Session, errors
from agentbus.errors import SnapshotTooLarge
from agentbus.records import Rollback
from tests.api.helpers import held, take, worker
from tests.api.interrupted_sessions import cut_off, kinds, member, trail
from tests.api.snapshot_helpers import everything, points
from tests.conftest import Engine
from tests.support.clock import FakeClock


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
    assert (whole["session"], whole["operation"], whole["progress"]) == ("s", "planning", 40)
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


async def test_a_rollback_restores_everything_and_reports_its_changes(
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


async def test_a_rollback_to_the_current_state_changes_nothing(bus: Bus, session: Session) -> None:
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


async def test_versions_of_a_document_continue_after_a_rollback_removed_it(bus: Bus, session: Session) -> None:
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


async def test_a_snapshot_that_is_too_large_is_refused_before_it_is_composed(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with engine.connect(max_snapshot=1000) as bus, bus.session("execution", id="s") as session:
        a = await member(bus, "a")
        await a.state.set("k", "x" * 600)
        point = await session.checkpoint_all("p")
        await session.state.set("k", "y" * 600, ttl=60)
        monkeypatch.setattr("agentbus.operations.session_snapshots._compose", None)
        for action in (session.checkpoint_all("q"), session.rollback(point.id)):
            with pytest.raises(SnapshotTooLarge) as refused:
                await action
            assert refused.value.size == 1204


async def test_expired_state_is_not_restored(bus: Bus, session: Session, clock: FakeClock) -> None:
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


async def test_agents_that_left_the_session_are_unchanged(bus: Bus, session: Session) -> None:
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


async def test_a_missing_checkpoint_of_an_agent_is_reported(bus: Bus, session: Session) -> None:
    a = await member(bus, "a")
    first = await a.checkpoint("n", 1)
    point = await session.checkpoint_all("p")
    await a.checkpoint("n", 2)
    await bus.checkpoints.delete(first.id)
    done = await session.rollback(point.id)
    assert (done.checkpoints, done.ahead) == ({}, ["a"])


async def test_watchers_receive_the_changes_of_a_rollback(bus: Bus, session: Session) -> None:
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


async def test_a_plan_without_a_named_checkpoint_uses_the_newest(bus: Bus, engine: Engine) -> None:
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
