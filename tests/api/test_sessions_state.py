"""State and checkpoints of a session, until it ends."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from agentbus import Bus, Session
from agentbus.errors import (
    ForeignCheckpoint,
    InvalidName,
    InvalidPayload,
    OutOfRange,
    SnapshotTooLarge,
    UnknownFile,
    UnknownSession,
    UnsafePath,
    VersionConflict,
    WrongState,
)
from agentbus.records import StateEntry
from tests.api.helpers import eventually, held, running, soon, worker
from tests.conftest import Engine
from tests.support.clock import FakeClock

LONG = "s" * 128


# State


async def test_a_session_has_state_of_its_own(bus: Bus, session: Session, clock: FakeClock) -> None:
    state = session.state
    assert await state.set("phase", "design") == 1
    assert await state.set("phase", "build", if_version=1) == 2
    with pytest.raises(VersionConflict) as conflict:
        await state.set("phase", "test", if_version=1)
    assert (conflict.value.scope, conflict.value.found) == ("session:s", 2)
    assert await state.increment("round", 2) == 2
    assert await state.delete("round") is True
    assert await state.set("lease", 1, ttl=10) == 1
    assert [entry.key for entry in (await state.list()).items] == ["lease", "phase"]
    assert [entry.key for entry in (await state.list("ph")).items] == ["phase"]
    entry = await state.entry("phase")
    assert entry is not None
    assert (entry.scope, entry.value, entry.version, entry.author) == ("session:s", "build", 2, None)
    clock.stall(10)
    assert await state.get("lease") is None
    assert await state.set("lease", 2, if_version=0) == 2


async def test_session_state_is_visible_to_all_participants(bus: Bus, session: Session, engine: Engine) -> None:
    await session.state.set("phase", "design")
    async with engine.connect() as other:
        joined = await other.sessions.open("s")
        assert await joined.state.get("phase") == "design"
        assert await other.state("session:s").get("phase") == "design"
        assert await joined.state.set("phase", "build", if_version=1) == 2
    assert await session.state.get("phase") == "build"


async def test_an_agent_of_the_same_id_has_other_state(bus: Bus, session: Session) -> None:
    agent = await worker(bus, "s", session="s")
    await agent.state.set("k", "the agent's")
    await session.state.set("k", "the session's")
    await bus.state("bus").set("k", "anybody's")
    assert await agent.state.get("k") == await bus.state("s").get("k") == "the agent's"
    assert await session.state.get("k") == "the session's"
    await agent.complete()
    await bus.agents.delete("s")
    assert await session.state.get("k") == "the session's", "it is not the agent's to take along"
    with pytest.raises(InvalidName):
        await worker(bus, "session:s")
    with pytest.raises(InvalidName):
        await bus.expect("session:s", type="worker")


async def test_the_longest_name_of_a_session_has_state_too(bus: Bus) -> None:
    async with bus.session("planning", id=LONG) as session:
        assert await session.state.set("k", 1) == 1
        assert (await session.checkpoint("c", 1)).owner == LONG
    with pytest.raises(InvalidName):
        bus.state(f"session:{LONG}x")
    with pytest.raises(InvalidName):
        bus.state("session:")


@pytest.mark.parametrize("end", ["complete", "fail"])
async def test_the_state_of_an_ended_session_is_read_only(bus: Bus, session: Session, engine: Engine, end: str) -> None:
    await session.state.set("k", 1)
    await (session.complete() if end == "complete" else session.fail("no budget"))
    async with engine.connect() as other:
        joined = await other.sessions.open("s")
        for state in (session.state, joined.state, bus.state("session:s")):
            for change in (state.set("k", 2), state.set("new", 2), state.delete("k"), state.increment("k")):
                with pytest.raises(WrongState) as refused:
                    await change
                assert (refused.value.what, refused.value.name) == ("session", "s")
            assert await state.get("k") == 1
            assert [entry.key for entry in (await state.list()).items] == ["k"]
    seen = session.state.watch()
    assert (await soon(anext(seen))).value == 1
    await seen.aclose()


async def test_a_session_that_does_not_exist_has_no_state(bus: Bus) -> None:
    state = bus.state("session:nowhere")
    for change in (state.set("k", 1), state.delete("k"), state.increment("k")):
        with pytest.raises(UnknownSession):
            await change
    assert await state.get("k") is None
    assert (await state.list()).items == []


@pytest.mark.parametrize("how", ["paused", "interrupted"])
async def test_a_session_that_can_resume_keeps_its_state_and_accepts_changes(
    bus: Bus, engine: Engine, how: str
) -> None:
    async with engine.connect() as owner:
        block = owner.session("planning", id="s")
        session = await block.__aenter__()  # and never left: its owner just goes away
        await session.state.set("phase", "design")
        if how == "paused":
            await session.pause()
    assert (await held(bus, "s")).status == how
    assert await bus.state("session:s").set("phase", "build") == 2
    async with bus.session("planning", id="s") as again:
        assert again.continued
        assert await again.state.get("phase") == "build"
        assert await again.state.set("phase", "test", if_version=2) == 3


async def test_of_batched_changes_only_those_of_ended_sessions_are_refused(bus: Bus) -> None:
    async with bus.session("planning", id="over") as over:
        await over.state.set("k", 0)
    async with bus.session("planning", id="open") as session:
        scopes = ["session:over", "session:open", "session:nowhere", "plain"]
        changes = (bus.state(scope).increment(f"k{n}") for n in range(5) for scope in scopes)
        results = await asyncio.gather(*changes, return_exceptions=True)
        kinds = [type(result).__name__ if isinstance(result, Exception) else result for result in results]
        assert kinds == ["SessionEnded", 1, "UnknownSession", 1] * 5
        assert len((await session.state.list()).items) == 5


async def test_watchers_of_a_session_receive_its_state_only(engine: Engine, clock: FakeClock) -> None:
    async with engine.connect() as bus, engine.connect() as other, bus.session("planning", id="s") as session:
        seen: list[StateEntry] = []

        async def watch() -> None:
            async for entry in (await other.sessions.open("s")).state.watch("phase"):
                seen.append(entry)

        async with running(watch()):
            await session.state.set("phase/1", "design")
            await bus.state("s").set("phase/1", "of another scope")
            await session.state.set("note", "not asked for")
            await eventually(clock, lambda: len(seen) == 1)
            agent = await worker(bus, "a", session="s")
            async with agent.unit() as unit:
                unit.state_of("session:s").set("phase/2", "build")
            await eventually(clock, lambda: len(seen) == 2)
            await session.state.delete("phase/1")
            await eventually(clock, lambda: len(seen) == 3)
        assert [(entry.key, entry.value, entry.author, entry.deleted) for entry in seen] == [
            ("phase/1", "design", None, False),
            ("phase/2", "build", "a", False),
            ("phase/1", None, None, True),
        ]
        assert [entry.change for entry in seen] == sorted({entry.change for entry in seen})


# Checkpoints


async def test_a_session_has_checkpoints_of_its_own(bus: Bus, session: Session, tmp_path: Path) -> None:
    (tmp_path / "plan.md").write_text("the plan")
    assert await session.restore() is None
    first = await session.checkpoint("half", {"step": 1}, notes="so far", files=["plan.md"], root=tmp_path)
    assert (first.owner_kind, first.owner, first.session, first.notes) == ("session", "s", "s", "so far")
    second = await session.checkpoint("half", {"step": 2}, keep=1)
    other = await session.checkpoint("other", None)
    assert await session.restore() == other
    assert await session.restore("half") == second
    assert await session.restore("nothing") is None
    assert await bus.checkpoints.get(first.id) is None, "only one was to be kept"
    listed = (await bus.checkpoints.list("s", kind="session")).items
    assert [(one.id, one.owner_kind) for one in listed] == [(other.id, "session"), (second.id, "session")]


@pytest.mark.one_engine
async def test_the_files_of_a_sessions_checkpoint_are_checked(bus: Bus, session: Session, tmp_path: Path) -> None:
    (tmp_path / "plan.md").write_text("the plan")
    (tmp_path / "notes.md").write_text("some notes")
    saved = await session.checkpoint("half", 1, files=["plan.md", "notes.md"], root=tmp_path)
    assert await session.restore("half") == saved
    (tmp_path / "plan.md").write_text("another plan")
    (tmp_path / "notes.md").unlink()
    checks = await bus.checkpoints.verify(saved, tmp_path)
    assert {check.path: check.status for check in checks} == {"plan.md": "changed", "notes.md": "vanished"}


@pytest.mark.one_engine
async def test_an_invalid_checkpoint_of_a_session_is_refused(engine: Engine, tmp_path: Path) -> None:
    async with engine.connect(max_snapshot=1000) as bus, bus.session("planning", id="s") as session:
        with pytest.raises(SnapshotTooLarge):
            await session.checkpoint("c", "x" * 2000)
        with pytest.raises(InvalidPayload):
            await session.checkpoint("c", float("inf"))
        with pytest.raises(InvalidName):
            await session.checkpoint("no name", 1)
        with pytest.raises(OutOfRange):
            await session.checkpoint("c", 1, keep=0)
        with pytest.raises(UnknownFile):
            await session.checkpoint("c", 1, files=["nothing.md"], root=tmp_path)
        with pytest.raises(UnsafePath):
            await session.checkpoint("c", 1, files=["/etc/passwd"], root=tmp_path)
        assert (await bus.checkpoints.list()).items == []


async def test_checkpoints_of_agents_and_of_other_sessions_are_not_its_own(bus: Bus, session: Session) -> None:
    agent = await worker(bus, "s", session="s")
    of_agent = await agent.checkpoint("c", "the agent's")
    async with bus.session("planning", id="other") as other:
        of_other = await other.checkpoint("c", "the other's")
        assert await session.restore("c") is None
        of_session = await session.checkpoint("c", "the session's")
        assert await session.restore("c") == of_session
        assert await agent.restore("c") == of_agent
        assert await other.restore("c") == of_other
    for foreign in (of_session, of_other):
        with pytest.raises(ForeignCheckpoint) as refused:
            await agent.restore(id=foreign.id)
        assert (refused.value.owner_kind, refused.value.owner) == ("session", foreign.owner)
    await agent.complete()
    await bus.agents.delete("s")
    assert await bus.checkpoints.get(of_agent.id) is None
    assert await session.restore("c") == of_session, "it is not the agent's to take along"


async def test_a_continued_session_restores_its_checkpoint(bus: Bus, engine: Engine) -> None:
    async with engine.connect() as owner:
        block = owner.session("planning", id="s")
        session = await block.__aenter__()  # and never left: its owner just goes away
        await session.checkpoint("half", {"step": 3})
    assert (await held(bus, "s")).status == "interrupted"
    await bus.checkpoints.save("s", "late", {"step": 4}, kind="session")
    async with bus.session("planning", id="s") as again:
        last = await again.restore("half")
        assert last is not None
        assert (again.continued, last.snapshot) == (True, {"step": 3})
        await again.checkpoint("half", {"step": 5})
    assert (await held(bus, "s")).status == "completed"


@pytest.mark.parametrize("end", ["complete", "fail"])
async def test_the_checkpoints_of_an_ended_session_are_read_only(bus: Bus, session: Session, end: str) -> None:
    saved = await session.checkpoint("c", 1)
    await (session.complete() if end == "complete" else session.fail("no budget"))
    joined = await bus.sessions.open("s")
    for save in (
        session.checkpoint("c", 2),
        joined.checkpoint("c", 2),
        bus.checkpoints.save("s", "c", 2, kind="session"),
    ):
        with pytest.raises(WrongState):
            await save
    assert await joined.restore() == await session.restore("c") == saved
    with pytest.raises(UnknownSession):
        await bus.checkpoints.save("nowhere", "c", 1, kind="session")
    assert await bus.checkpoints.prune("s", keep=0, kind="session") == 1, "cleaning up is allowed"
