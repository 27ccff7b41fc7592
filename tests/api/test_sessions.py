"""Sessions: start, end with their block, change status, and list."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable

import anyio
import pytest

from agentbus import Bus, Session
from agentbus.errors import AgentBusError, SessionExists, UnknownSession, WrongState
from tests.api.helpers import held, known, running, soon, take, worker
from tests.conftest import Engine
from tests.support.cases import each
from tests.support.clock import START, FakeClock


async def test_a_session_starts_active_and_its_block_completes_it(bus: Bus, clock: FakeClock) -> None:
    async with bus.session(
        "planning", milestone="ms-1", id="p-1", expects={"planner-1": "plan"}, metadata={"team": ["x"]}
    ) as session:
        assert (session.id, session.operation, session.milestone, session.continued) == (
            "p-1",
            "planning",
            "ms-1",
            False,
        )
        assert "p-1" in repr(session)
        record = await session.record()
        assert (record.status, record.progress, record.error, record.ended) == ("active", 0, None, None)
        assert (record.operation, record.milestone) == ("planning", "ms-1")
        assert (record.expected, record.metadata) == ({"planner-1": "plan"}, {"team": ["x"]})
        assert record.process == bus._engine.process
        clock.advance(3)
    record = await held(bus, "p-1")
    assert (record.status, record.error) == ("completed", None)
    assert (record.created, record.updated, record.ended) == (START, START + 3_000, START + 3_000)


@pytest.mark.one_engine
async def test_a_session_without_an_id_gets_one_from_its_operation(bus: Bus) -> None:
    async with bus.session("planning") as first, bus.session("planning") as second:
        assert re.fullmatch(r"planning-[0-9a-f]{12}", first.id)
        assert first.id != second.id
    async with bus.session("x" * 128) as long:
        assert len(long.id) == 128


@pytest.mark.one_engine
async def test_leaving_the_block_by_an_exception_fails_the_session_and_propagates(bus: Bus) -> None:
    with pytest.raises(ZeroDivisionError):
        async with bus.session("planning", id="s"):
            raise ZeroDivisionError("by zero")
    record = await held(bus, "s")
    assert (record.status, record.error, record.ended) == ("failed", "ZeroDivisionError: by zero", START)


@pytest.mark.one_engine
async def test_leaving_the_block_by_cancellation_interrupts_the_session(bus: Bus) -> None:
    with anyio.CancelScope() as scope:
        async with bus.session("planning", id="s"):
            scope.cancel()
            await anyio.sleep_forever()
    assert scope.cancelled_caught
    record = await held(bus, "s")
    assert (record.status, record.process, record.ended) == ("interrupted", None, None)


async def test_cancelling_its_task_stops_its_agents_and_interrupts_the_session(bus: Bus, clock: FakeClock) -> None:
    async def live() -> None:
        async with bus.session("planning", id="s") as session, session.agent("a", type="worker") as a:
            await a.receive()

    async with running(live()) as task:
        await clock.settle()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert (await held(bus, "s")).status == "interrupted"
    assert (await known(bus, "a")).status == "stopped"


@pytest.mark.one_engine
@each("way", [KeyboardInterrupt, SystemExit])
async def test_ctrl_c_interrupts_the_session(bus: Bus, way: type[BaseException]) -> None:
    with pytest.raises(way):
        async with bus.session("planning", id=way.__name__):
            raise way
    record = await held(bus, way.__name__)
    assert (record.status, record.error) == ("interrupted", way.__name__)


async def test_a_session_cancelled_during_its_start_does_not_stay_active(bus: Bus, clock: FakeClock) -> None:
    async def begin(number: int) -> None:
        async with bus.session("planning", id=f"s{number}"):
            await anyio.sleep_forever()

    for turns in range(20):
        task = asyncio.create_task(begin(turns))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    await clock.settle()
    assert {record.status for record in (await bus.sessions.list()).items} <= {"interrupted"}
    # And each can be continued.
    for record in (await bus.sessions.list()).items:
        async with bus.session("planning", id=record.id) as session:
            assert session.continued


async def test_a_session_that_was_ended_inside_its_block_stays_as_it_ended(bus: Bus) -> None:
    async with bus.session("planning", id="s") as session:
        await session.fail("no budget")
    async with bus.session("planning", id="t") as session:
        await session.complete()
    with pytest.raises(ZeroDivisionError):
        async with bus.session("planning", id="u") as session:
            await session.complete()
            raise ZeroDivisionError
    assert [(await held(bus, id)).status for id in "stu"] == ["failed", "completed", "completed"]
    assert (await held(bus, "s")).error == "no budget"


async def test_the_owner_gets_an_error_at_the_end_if_another_caller_ended_it_otherwise(bus: Bus) -> None:
    async with bus.session("planning", id="s"):
        await (await bus.sessions.open("s")).complete()
    with pytest.raises(WrongState) as wrong:
        async with bus.session("planning", id="t"):
            await (await bus.sessions.open("t")).fail("no budget")
    assert (wrong.value.name, wrong.value.status) == ("t", "failed")
    with pytest.raises(ZeroDivisionError):
        async with bus.session("planning", id="u"):
            await (await bus.sessions.open("u")).complete()
            raise ZeroDivisionError
    assert (await held(bus, "u")).status == "completed"


# Taking part


async def test_opening_a_session_joins_it_without_owning_it(bus: Bus, engine: Engine) -> None:
    async with bus.session("planning", milestone="m", id="s"):
        async with engine.connect() as elsewhere:
            session = await elsewhere.sessions.open("s")
            assert (session.id, session.operation, session.milestone) == ("s", "planning", "m")
            assert not session.continued
            await session.progress(30)
            async with session.agent("a", type="worker") as a:
                assert a.session == "s"
        record = await held(bus, "s")
        assert (record.status, record.progress, record.process) == ("active", 30, bus._engine.process)


async def test_a_session_that_is_not_there_cannot_be_opened(bus: Bus) -> None:
    with pytest.raises(UnknownSession) as unknown:
        await bus.sessions.open("none")
    assert unknown.value.session == "none"
    assert await bus.sessions.get("none") is None


async def test_its_agents_belong_to_it_and_are_counted_by_status(bus: Bus) -> None:
    async with bus.session("planning", id="s") as session, bus.session("other") as other:
        assert await session.counts() == {}
        await session.expect("later", type="worker", capabilities=["python"])
        async with session.agent("a", type="worker"), session.agent("b", type="worker", load=5) as b:
            async with other.agent("c", type="worker"):
                pass
            assert b.session == "s"
            assert (await known(bus, "b")).load == 5
            assert await session.counts() == {"pending": 1, "running": 2}
        assert await session.counts() == {"pending": 1, "completed": 2}
        assert (await known(bus, "later")).session == "s"
        await b_sends(bus, session)


async def b_sends(bus: Bus, session: Session) -> None:
    """A message of its agent carries the session."""
    b = await worker(bus, "b", session=session.id)
    await b.send("b", "note", 1)
    assert (await take(b)).session == session.id


@each("end", ["complete", "fail"])
async def test_no_agent_registers_in_an_ended_session(bus: Bus, end: str) -> None:
    async with bus.session("planning", id=end) as session:
        await (session.complete() if end == "complete" else session.fail("x"))
        with pytest.raises(WrongState):
            async with session.agent("a", type="worker"):
                pytest.fail("this block must not run")
        with pytest.raises(WrongState):
            await session.expect("a", type="worker")
    assert await bus.agents.get("a") is None


# Its status


STEPS: dict[str, Callable[[Session], Awaitable[None]]] = {
    "paused": lambda session: session.pause("why"),
    "active": lambda session: session.continue_(),
    "completed": lambda session: session.complete(),
    "failed": lambda session: session.fail("why"),
}
ALLOWED = {
    ("active", "paused"), ("paused", "active"), ("interrupted", "active"),
    ("active", "completed"), ("paused", "completed"), ("interrupted", "completed"),
    ("active", "failed"), ("paused", "failed"), ("interrupted", "failed"),
}  # fmt: skip


async def _in(bus: Bus, status: str, id: str) -> Session:
    """Return an opened session in this status, without an owner."""
    with pytest.raises(KeyboardInterrupt):
        async with bus.session("planning", id=id):
            raise KeyboardInterrupt
    session = await bus.sessions.open(id)
    if status != "interrupted":
        await session.continue_()
    if status not in {"interrupted", "active"}:
        await STEPS[status](session)
    assert (await session.record()).status == status
    return session


@each("before", ["active", "paused", "interrupted", "completed", "failed"])
@each("after", list(STEPS))
async def test_a_status_is_reached_only_from_where_it_may_be(
    bus: Bus, clock: FakeClock, before: str, after: str
) -> None:
    session = await _in(bus, before, f"{before}-{after}")
    record = await session.record()
    clock.advance(5)
    now = clock.now().wall
    if (before, after) in ALLOWED:
        await STEPS[after](session)
        changed = await session.record()
        assert (changed.status, changed.updated) == (after, now)
        assert changed.error == ("why" if after == "failed" else None)
        assert changed.ended == (now if after in {"completed", "failed"} else None)
    else:
        with pytest.raises(WrongState) as wrong:
            await STEPS[after](session)
        code = "session_ended" if before in {"completed", "failed"} else "wrong_state"
        assert (wrong.value.code, wrong.value.status) == (code, before)
        assert await session.record() == record


async def test_of_many_concurrent_endings_of_a_session_one_succeeds(bus: Bus) -> None:
    async with bus.session("planning", id="s"):
        sessions = [await bus.sessions.open("s") for _ in range(20)]
        outcomes = await asyncio.gather(*(session.complete() for session in sessions), return_exceptions=True)
        assert outcomes.count(None) == 1
        assert all(outcome is None or isinstance(outcome, WrongState) for outcome in outcomes)


async def test_progress_is_kept_until_the_session_has_ended(bus: Bus, clock: FakeClock) -> None:
    async with bus.session("planning", id="s") as session:
        clock.advance(1)
        for percent in (0, 40, 100, 10):
            await session.progress(percent)
            assert (await session.record()).progress == percent
        assert (await session.record()).updated == START + 1_000
        await session.pause()
        await session.progress(50)
    with pytest.raises(WrongState):
        await session.progress(60)
    assert (await held(bus, "s")).progress == 50


# Looking at them


async def test_sessions_are_listed_newest_first_page_by_page(bus: Bus, clock: FakeClock) -> None:
    for number in range(5):
        async with bus.session("planning", milestone=f"m-{number % 2}", id=f"s{number}"):
            pass
        clock.advance(number % 2)  # some of them in the same millisecond
    page = await bus.sessions.list(limit=2)
    seen = list(page.items)
    while page.cursor is not None:
        page = await bus.sessions.list(limit=2, cursor=page.cursor)
        seen += page.items
    assert [record.id for record in seen] == ["s4", "s3", "s2", "s1", "s0"]
    assert seen[0] == await bus.sessions.get("s4")


async def test_sessions_are_listed_by_status_operation_and_milestone(bus: Bus) -> None:
    async def ids(**wanted: object) -> set[str]:
        return {record.id for record in (await bus.sessions.list(**wanted)).items}  # type: ignore[arg-type]

    async with bus.session("planning", id="a", milestone="m"), bus.session("building", id="b") as b:
        async with bus.session("planning", id="c"):
            pass
        await b.pause()
        assert await ids() == {"a", "b", "c"}
        assert await ids(status="completed") == {"c"}
        assert await ids(status=["active", "paused"]) == {"a", "b"}
        assert await ids(status=[]) == set()
        assert await ids(operation="planning") == {"a", "c"}
        assert await ids(milestone="m", status="active") == {"a"}
        assert await ids(milestone="none") == set()


async def test_many_sessions_at_once_are_all_there(bus: Bus) -> None:
    async def one(number: int) -> None:
        async with bus.session("planning", id=f"s{number}") as session:
            await session.progress(number)
            if number % 3 == 0:
                await session.fail("x")

    await soon(asyncio.gather(*(one(number) for number in range(24))))
    records = (await bus.sessions.list(limit=100)).items
    assert {record.id: (record.status, record.progress) for record in records} == {
        f"s{number}": ("completed" if number % 3 else "failed", number) for number in range(24)
    }


async def test_of_two_concurrent_starts_of_one_session_one_succeeds(bus: Bus) -> None:
    begun: list[Session] = []

    async def one() -> None:
        async with bus.session("planning", id="s") as session:
            begun.append(session)
            await anyio.sleep_forever()

    async with running(one()) as first, running(one()) as second:
        (done,), _ = await asyncio.wait([first, second], return_when=asyncio.FIRST_COMPLETED, timeout=10)
        assert isinstance(done.exception(), SessionExists)
        assert len(begun) == 1


async def test_a_session_survives_reopening_the_bus(engine: Engine) -> None:
    async with engine.connect() as bus, bus.session("planning", id="s") as session:
        await session.progress(70)
    async with engine.connect() as bus:
        record = await held(bus, "s")
        assert (record.status, record.progress) == ("completed", 70)
        assert await (await bus.sessions.open("s")).counts() == {}


@pytest.mark.one_engine
@each("call", ["record", "counts", "documents", "missing", "progress", "pause", "complete"])
async def test_a_session_call_on_a_closed_bus_is_a_named_error(engine: Engine, call: str) -> None:
    async with engine.connect() as bus:
        block = bus.session("planning", id="s")
        session = await block.__aenter__()
    with pytest.raises(AgentBusError) as closed:
        await (session.progress(5) if call == "progress" else getattr(session, call)())
    assert closed.value.code == "bus_closed"
    with pytest.raises(AgentBusError):
        await block.__aexit__(None, None, None)


@each("gap", range(4))
async def test_a_block_that_is_cancelled_twice_still_ends_its_session_and_agent(bus: Bus, gap: int) -> None:
    id = f"p{gap}"
    inside = asyncio.Event()

    async def work() -> None:
        async with bus.session("planning", id=id), bus.agent(id, type="worker"):
            inside.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await inside.wait()
    others = [asyncio.create_task(bus.state("busy").set(f"k-{number}", number)) for number in range(5)]
    task.cancel()
    for _ in range(gap):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task, *others])

    async def left() -> bool:
        session, agent = await bus.sessions.get(id), await bus.agents.get(id)
        return session is not None and session.status == "interrupted" and agent is not None and agent.ended is not None

    with anyio.fail_after(60):
        while not await left():  # noqa: ASYNC110 - what has to end here has no event
            await asyncio.sleep(0.01)
    async with bus.session("planning", id=id) as session:
        assert session.continued
