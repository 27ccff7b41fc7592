"""Errors with a fix: common mistakes of new users."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from agentbus import Agent, Bus
from agentbus.core.validation import check_text
from agentbus.errors import (
    AgentBusError,
    InvalidInput,
    InvalidName,
    InvalidPayload,
    NotWritable,
    OutOfRange,
    UnknownAgent,
    UnknownCheckpoint,
    UnknownMessage,
    UnreadableFile,
    WrongState,
)
from tests.api.helpers import refusing, worker
from tests.support.cases import each


class Plan(Struct):
    files: int


@pytest.fixture
async def a(bus: Bus) -> Agent:
    return await worker(bus, "a")


@pytest.mark.one_engine
@pytest.mark.parametrize("members", [None, 5, object()])
async def test_members_that_are_no_list(bus: Bus, a: Agent, members: Any) -> None:
    async with bus.session("planning", id="s") as session:
        async with refusing(bus, a, InvalidName) as refused:
            await session.participants(members)
        assert refused.value.fix == "give a list of names"
        await session.participants([])


@pytest.mark.one_engine
@each(("option", "names"), [("pools", None), ("pools", 5), ("topics", None), ("capabilities", 5)])
async def test_names_that_are_no_list(bus: Bus, a: Agent, option: str, names: Any) -> None:
    async with refusing(bus, a, InvalidName) as refused:
        await bus.register("b", type="worker", **{option: names})
    assert refused.value.fix == "give a list of names"


@pytest.mark.one_engine
async def test_a_root_that_does_not_exist(bus: Bus, a: Agent, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name, said in (("nope", "the root does not exist"), ("file", "the root is not a directory")):
        async with refusing(bus, a, UnreadableFile) as refused:
            await a.checkpoint("n", 1, files=["plan.md"], root=tmp_path / name)
        assert (refused.value.root, refused.value.reason) == (str(tmp_path / name), said)
        assert "root=" in (refused.value.fix or "")


@pytest.mark.one_engine
async def test_a_document_cannot_be_exported_to_a_directory(
    bus: Bus, a: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with bus.session("planning", id="s") as session:
        await session.document("plan").save(1)
        for place in (".", tmp_path, "/"):
            async with refusing(bus, a, NotWritable) as refused:
                await session.document("plan").export(place)
            assert "it is a directory; name a file in it" in str(refused.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.one_engine
async def test_there_is_no_checkpoint_to_verify(bus: Bus, a: Agent) -> None:
    checkpoint: Any = await a.restore("none")
    async with refusing(bus, a, InvalidInput) as refused:
        await bus.checkpoints.verify(checkpoint)
    assert "None" in str(refused.value)


async def test_an_entry_that_cannot_be_added_to_is_named_with_its_scope(bus: Bus, a: Agent) -> None:
    state = bus.state("builds")
    await state.set("count", "many")
    async with refusing(bus, a, WrongState) as refused:
        await state.increment("count")
    assert (refused.value.scope, refused.value.name) == ("builds", "count")
    assert str(refused.value).startswith("state of builds, 'count' is not a number: cannot add to it")
    assert "set it to a number first" in (refused.value.fix or "")
    await state.set("count", 2**63 - 1)
    with pytest.raises(WrongState) as beyond:
        await state.increment("count")
    assert (beyond.value.scope, "64 bits" in (beyond.value.fix or "")) == ("builds", True)


@pytest.mark.one_engine
@each("owed", [["x", "y"], None, 5, {"x": 1}])
async def test_a_producer_has_one_expected_document(bus: Bus, a: Agent, owed: Any) -> None:
    async with refusing(bus, a, InvalidName) as refused, bus.session("planning", id="s", expects={"a": owed}):
        pass
    assert "one document for each producer" in (refused.value.fix or "")
    assert "'a'" in str(refused.value)
    assert await bus.sessions.get("s") is None


@pytest.mark.one_engine
async def test_the_fix_of_an_invalid_payload_points_to_the_last_definition(bus: Bus, a: Agent) -> None:
    await bus.define("plan", schema={"required": ["documents"]})
    await a.send("a", "note")
    async with refusing(bus, a, InvalidPayload) as refused:
        await a.send("a", "plan", {"files": 1})
    assert refused.value.fix is not None
    assert "'plan'" in refused.value.fix


@pytest.mark.one_engine
async def test_the_error_of_an_unsupported_payload_names_the_supported_types(bus: Bus, a: Agent) -> None:
    async with refusing(bus, a, InvalidPayload) as refused:
        await a.send("a", "note", float("nan"))
    assert "finite numbers" in (refused.value.fix or "")
    async with refusing(bus, a, InvalidPayload) as misbuilt:
        await a.send("a", Plan(files="twelve"))  # type: ignore[arg-type]
    assert "declared type" in (misbuilt.value.fix or "")


@pytest.mark.one_engine
async def test_every_not_found_and_wrong_state_error_has_a_fix(bus: Bus, a: Agent) -> None:
    await a.send("a", "note", message_id="alive")
    calls: list[tuple[Callable[[], Awaitable[object]], type[AgentBusError], str]] = [
        (lambda: bus.agents.delete("nobody"), UnknownAgent, "bus.agents.list()"),
        (lambda: bus.agents.delete("a"), WrongState, "end it first"),
        (lambda: bus.messages.requeue("nothing"), UnknownMessage, "bus.messages.list()"),
        (lambda: bus.messages.requeue("alive"), WrongState, "only dead letters"),
        (lambda: bus.checkpoints.verify(99), UnknownCheckpoint, "bus.checkpoints.list()"),
    ]
    for call, kind, said in calls:
        with pytest.raises(kind) as refused:
            await call()
        assert said in (refused.value.fix or "")


@pytest.mark.one_engine
async def test_the_error_of_a_refused_pause_names_the_status_it_needs(bus: Bus) -> None:
    async with bus.session("planning", id="s") as session:
        await session.pause()
        with pytest.raises(WrongState) as refused:
            await session.pause()
        assert refused.value.fix == "it must be active"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "error is ''"),
        (None, "error is None"),
        (7, "error is 7"),
        (["x"], "error is 'list'"),
        ("x" * 100_001, f"error is '{'x' * 60}… (100001 characters)'"),
    ],
)
def test_a_text_that_is_refused_is_shown(text: Any, said: str) -> None:
    with pytest.raises(OutOfRange) as refused:
        check_text(text, "error", low=1)
    assert str(refused.value).startswith(said)
    assert refused.value.allowed == "a text of 1 to 100000 characters"
