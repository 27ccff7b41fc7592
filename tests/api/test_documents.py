"""Documents: the outputs of a session, their last versions, and their export to files."""

from __future__ import annotations

import asyncio
import json
import os
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentbus import Bus, Session
from agentbus.errors import (
    AgentFenced,
    InvalidInput,
    InvalidPayload,
    LeaseLost,
    Misuse,
    NotWritable,
    PayloadMismatch,
    UnknownDocument,
    WrongState,
)
from agentbus.records import DocumentSummary
from tests.api.helpers import soon, take, worker
from tests.conftest import Engine
from tests.support.cases import each
from tests.support.clock import START, FakeClock


class Plan(msgspec.Struct):
    phases: list[str]
    weeks: int = 1


@pytest.fixture
async def session(bus: Bus) -> AsyncIterator[Session]:
    async with bus.session("planning", id="s") as session:
        yield session


async def test_the_last_saved_value_is_the_document(session: Session, clock: FakeClock) -> None:
    document = session.document("planning_output")
    assert (document.name, document.session) == ("planning_output", "s")
    first = await document.save({"phases": 3}, author="planner-1")
    assert (first.session, first.name, first.version, first.author) == ("s", "planning_output", 1, "planner-1")
    assert (first.created, first.value) == (START, {"phases": 3})
    clock.advance(2)
    second = await document.save({"phases": 4})
    assert (second.version, second.author, second.created) == (2, None, START + 2_000)
    assert second.id > first.id
    assert await document.latest() == {"phases": 4}
    assert await session.document("planning_output").record() == second
    assert await document.record(1) == first
    assert await document.history() == [second, first]


LARGE = "x" * 300_000
VALUES: list[Any] = [
    None, True, 0, -(2**63), 2**64 - 1, 1.5, "", "ünïcödé \U0001f600", [], {}, {"": [None]}, [[["deep"]]],
    LARGE,
]  # fmt: skip


@each("value", VALUES, ids=lambda value: repr(value)[:20])
async def test_a_value_is_read_as_it_was_saved(session: Session, value: Any) -> None:
    document = session.document("x")
    record = await document.save(value)
    assert record.value == value
    assert await document.latest("default") == value
    assert type(await document.latest("default")) is type(value)


@pytest.mark.one_engine
async def test_a_missing_document_gives_the_default(session: Session) -> None:
    assert await session.document("x").latest() is None
    assert await session.document("x").latest([]) == []
    document = session.document("x", default={"phases": 0})
    assert await document.latest() == {"phases": 0}
    assert await document.latest(None) is None
    assert (await document.record(), await document.record(3), await document.history()) == (None, None, [])
    await document.save(None)
    assert await document.latest() is None, "a saved null is a value"


@pytest.mark.one_engine
async def test_a_value_is_read_as_a_type(session: Session) -> None:
    document = session.document("plan")
    assert await document.latest(as_=Plan) is None
    await document.save(Plan(["design"]))
    assert await document.latest() == {"phases": ["design"], "weeks": 1}
    assert await document.latest(as_=Plan) == Plan(["design"])
    with pytest.raises(PayloadMismatch) as mismatch:
        await document.latest(as_=list[int])
    assert mismatch.value.code == "payload_mismatch"
    assert "plan" in str(mismatch.value)
    for odd in ("Plan", 5):
        with pytest.raises(InvalidInput, match="not a type"):
            await document.latest(as_=odd)


@pytest.mark.one_engine
async def test_a_document_is_what_its_value_was_when_it_was_saved(session: Session) -> None:
    """A large one is checked on a thread, while the caller continues."""
    value: list[Any] = [LARGE]
    saving = asyncio.create_task(session.document("x").save(value))
    await asyncio.sleep(0)
    value.append(float("nan"))
    await soon(saving)
    assert await session.document("x").latest() == [LARGE]


async def test_ten_versions_are_kept_and_numbers_continue(session: Session) -> None:
    document = session.document("x")
    for number in range(1, 15):
        assert (await document.save(number)).version == number
    assert [(record.version, record.value) for record in await document.history(100)] == [
        (number, number) for number in range(14, 4, -1)
    ]
    assert [record.version for record in await document.history(3)] == [14, 13, 12]
    assert await document.record(4) is None
    assert (await document.record(5)) is not None


async def test_the_number_of_kept_versions_can_be_set(session: Session) -> None:
    async def versions() -> list[int]:
        return [record.version for record in await session.document("x").history(100)]

    three = session.document("x", keep=3)
    for number in range(5):
        await three.save(number)
    assert await versions() == [5, 4, 3]
    await three.save(5, keep=100)
    assert await versions() == [6, 5, 4, 3]
    await three.save(6, keep=1)
    assert await versions() == [7]
    await three.save(7)
    assert await versions() == [8, 7]


async def test_documents_are_listed_by_name_with_their_newest_version(session: Session, bus: Bus) -> None:
    assert await session.documents() == []
    for number in range(12):
        await session.document("b").save(number)
    await session.document("a").save("x" * 100_000, author="planner-1")
    async with bus.session("other") as other:
        await other.document("c").save(1)
    assert await session.documents() == [
        DocumentSummary("a", 1, "planner-1", START),
        DocumentSummary("b", 12, None, START),
    ]


async def test_expected_documents_are_missing_until_they_are_there(bus: Bus) -> None:
    expects = {"scope-analyzer": "planning-scope", "risk-assessor": "risks", "other": "risks"}
    async with bus.session("planning", id="s", expects=expects) as session:
        assert await session.missing() == expects
        await session.document("risks").save([])
        assert await session.missing() == {"scope-analyzer": "planning-scope"}
        await session.document("planning-scope").save(None)
        assert await session.missing() == {}
    assert await (await bus.sessions.open("s")).missing() == {}


async def test_an_ended_session_is_read_but_not_written(bus: Bus, tmp_path: Path) -> None:
    async with bus.session("planning", id="s") as session:
        await session.document("x").save(1)
    with pytest.raises(WrongState) as wrong:
        await session.document("x").save(2)
    assert (wrong.value.name, wrong.value.status) == ("s", "completed")
    opened = await bus.sessions.open("s")
    assert await opened.document("x").latest() == 1
    assert len(await opened.document("x").history()) == 1
    assert (await opened.document("x").export(tmp_path / "x.json")).read_text() == "1\n"


async def test_documents_survive_reopening_the_bus(engine: Engine) -> None:
    async with engine.connect() as bus:
        with pytest.raises(KeyboardInterrupt):
            async with bus.session("planning", id="s") as session:
                await session.document("x").save({"n": 1}, author="a")
                raise KeyboardInterrupt
    async with engine.connect() as bus, bus.session("planning", id="s") as session:
        assert await session.document("x").latest() == {"n": 1}
        assert (await session.document("x").save({"n": 2})).version == 2


async def test_concurrent_saves_each_get_their_own_version(session: Session, engine: Engine) -> None:
    async with engine.connect() as elsewhere:
        others = await elsewhere.sessions.open("s")
        records = await soon(
            asyncio.gather(
                *(session.document("x", keep=100).save(number) for number in range(40)),
                *(others.document("x", keep=100).save(number) for number in range(40)),
            )
        )
        assert sorted(record.version for record in records) == list(range(1, 81))
        assert {record.version: record.value for record in records} == {
            record.version: record.value for record in await session.document("x").history(100)
        }


async def test_a_year_of_documents_takes_no_more_space_than_ten_days(bus: Bus, session: Session) -> None:
    document = session.document("daily")
    text = "x" * 20_000
    empty = (await bus.stats()).database_bytes
    sizes: dict[int, int] = {}
    for day in range(1, 366):
        record = await document.save({"day": day, "text": text})
        assert record.version == day
        if day % 73 == 0:
            stats = await bus.stats()
            sizes[day] = stats.database_bytes
            history = await document.history(1000)
            assert [entry.version for entry in history] == list(range(day, day - 10, -1))
            assert [entry.value["day"] for entry in history] == [entry.version for entry in history]
            assert (await document.latest())["day"] == day
    # 365 versions of 20 kB would be 7 MB; the next version takes the space of a removed one.
    assert sizes[365] <= sizes[146] + 200_000
    assert sizes[365] < empty + 1_500_000


# Agents that save


async def test_a_unit_saves_documents_with_everything_else(bus: Bus, session: Session) -> None:
    async with session.agent("a", type="worker") as a:
        await a.send("a", "note", "work")
        message = await take(a)
        async with message as unit:
            unit.document("plan", {"n": 1})
            unit.document("plan", {"n": 2})
            unit.document("log", [])
            unit.send("a", "note", "done")
            assert await session.documents() == [], "nothing is written before the end"
        record = await session.document("plan").record()
        assert record is not None
        assert (record.version, record.author, record.value) == (2, "a", {"n": 2})
        assert [entry.version for entry in await session.document("plan").history()] == [2, 1]
        assert (await take(a)).payload == "done"


async def test_documents_of_a_unit_are_saved_in_order_as_they_were_large_or_small(bus: Bus, session: Session) -> None:
    value: list[Any] = [LARGE]
    async with session.agent("a", type="worker") as a, a.unit() as unit:
        for _ in range(2):
            unit.document("plan", value)
            unit.document("plan", "small")
            value.append("later")
    history = await session.document("plan").history()
    assert [record.value for record in reversed(history)] == [[LARGE], "small", [LARGE, "later"], "small"]


async def test_a_message_is_released_if_a_large_document_proves_invalid_at_the_end(bus: Bus, session: Session) -> None:
    async with session.agent("a", type="worker") as a:
        await a.send("a", "note", "work")
        message = await take(a)
        with pytest.raises(InvalidPayload):
            async with message as unit:
                unit.send("a", "note", "done")
                unit.document("plan", [LARGE, float("nan")])
        assert await session.documents() == []
        (record,) = (await bus.messages.list()).items
        assert (record.payload, record.attempts, record.status) == ("work", 1, "scheduled")


async def test_a_document_of_a_unit_that_fails_is_not_saved(bus: Bus, session: Session) -> None:
    async with session.agent("a", type="worker") as a:
        await a.send("a", "note")
        message = await take(a, lease=1)
        await message.ack()
        with pytest.raises(LeaseLost):
            async with a.unit() as unit:
                unit.document("plan", 1)
                unit.ack(message)
        with pytest.raises(ZeroDivisionError):
            async with a.unit() as unit:
                unit.document("plan", 1)
                raise ZeroDivisionError
        assert await session.documents() == []


async def test_a_fenced_agent_cannot_save(bus: Bus, session: Session) -> None:
    old = await worker(bus, "a", session="s")
    new = await worker(bus, "a", session="s", takeover=True)
    with pytest.raises(AgentFenced):
        async with old.unit() as unit:
            unit.document("plan", "stale")
    async with new.unit() as unit:
        unit.document("plan", "fresh", keep=1)
    assert [record.value for record in await session.document("plan").history()] == ["fresh"]
    await new.complete()


@pytest.mark.one_engine
async def test_an_agent_without_a_session_has_no_documents(bus: Bus) -> None:
    a = await worker(bus, "a")
    async with a.unit() as unit:
        with pytest.raises(Misuse):
            unit.document("plan", 1)
        unit.send("a", "note", "the unit still works")
    assert (await take(a)).payload == "the unit still works"


async def test_the_unit_of_an_agent_whose_session_has_ended_is_refused_as_a_whole(bus: Bus) -> None:
    async with bus.session("planning", id="s"):
        a = await worker(bus, "a", session="s")
    with pytest.raises(WrongState):
        async with a.unit() as unit:
            unit.send("a", "note")
            unit.document("plan", 1)
    assert (await bus.stats()).messages == {}


async def test_units_that_save_at_once_each_save(bus: Bus, session: Session) -> None:
    async def one(number: int) -> None:
        async with session.agent(f"a{number}", type="worker") as agent, agent.unit() as unit:
            unit.document("shared", number, keep=100)
            unit.document(f"own-{number}", number)
            unit.progress(number)

    await soon(asyncio.gather(*(one(number) for number in range(30))))
    history = await session.document("shared").history(100)
    assert sorted(record.value for record in history) == list(range(30))
    assert all(record.author == f"a{record.value}" for record in history)
    assert len(await session.documents()) == 31


# Files


@pytest.mark.one_engine
async def test_the_newest_version_is_written_to_a_file_that_only_its_owner_reads(
    session: Session, tmp_path: Path
) -> None:
    document = session.document("plan")
    await document.save({"old": True})
    value = {"phases": ["entwürfe", "build"], "big": 2**63, "exact": 0.1, "empty": {}}
    await document.save(value)
    for path in (tmp_path / "plan.json", str(tmp_path / "plan.json")):
        written = await document.export(path)
        assert written == tmp_path / "plan.json"
        text = written.read_text(encoding="utf-8")
        assert json.loads(text) == value
        assert text.startswith('{\n  "phases": [\n    "entwürfe"')
        assert text.endswith("}\n")
        assert stat.S_IMODE(written.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["plan.json"], "no temporary file is left"


@pytest.mark.one_engine
async def test_a_relative_path_is_below_the_working_directory(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    await session.document("plan").save(1)
    assert await session.document("plan").export("plan.json") == Path("plan.json")
    assert (tmp_path / "plan.json").read_text() == "1\n"


@pytest.mark.one_engine
async def test_an_old_file_is_replaced_as_a_whole_and_a_link_is_not_followed(session: Session, tmp_path: Path) -> None:
    await session.document("plan").save("new")
    other = tmp_path / "other.json"
    other.write_text("untouched")
    link = tmp_path / "plan.json"
    link.symlink_to(other)
    await session.document("plan").export(link)
    assert (link.is_symlink(), link.read_text(), other.read_text()) == (False, '"new"\n', "untouched")


@pytest.mark.one_engine
async def test_a_document_that_is_not_there_is_not_exported(session: Session, tmp_path: Path) -> None:
    with pytest.raises(UnknownDocument) as unknown:
        await session.document("plan", default={}).export(tmp_path / "plan.json")
    assert (unknown.value.code, unknown.value.session, unknown.value.name) == ("unknown_document", "s", "plan")
    assert os.listdir(tmp_path) == []


@pytest.mark.one_engine
async def test_a_path_that_cannot_be_written_is_a_named_error(session: Session, tmp_path: Path) -> None:
    await session.document("plan").save(1)
    (tmp_path / "directory").mkdir()
    (tmp_path / "file").write_text("x")
    for path in (
        tmp_path / "none" / "plan.json", tmp_path / "directory", tmp_path / "file" / "plan.json",
        tmp_path / ("x" * 300),
    ):  # fmt: skip
        with pytest.raises(NotWritable) as refused:
            await session.document("plan").export(path)
        assert refused.value.path == str(path)
    assert sorted(os.listdir(tmp_path)) == ["directory", "file"]
    assert os.listdir(tmp_path / "directory") == []


@pytest.mark.one_engine
@each("path", [None, 5, "a\0b", b"bytes\0", object(), "\ud800x"])
async def test_an_invalid_path_is_refused(session: Session, path: Any) -> None:
    await session.document("plan").save(1)
    with pytest.raises(InvalidInput):
        await session.document("plan").export(path)
