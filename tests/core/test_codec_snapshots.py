"""Snapshots of checkpoints and documents: the same JSON as payloads; large ones do not block the loop."""

from __future__ import annotations

import gc
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import pytest
from hypothesis import given

import agentbus
from agentbus import Agent, Bus, Session
from agentbus.core import codec
from agentbus.core.codec import LARGE, encode, snapshot, verify_snapshot
from agentbus.errors import DamagedPayload, InvalidInput, InvalidPayload, PayloadMismatch, SnapshotTooLarge
from tests.support.payloads import LIMIT, anything, good, thorough


class Plan(msgspec.Struct):
    phases: list[str]


@contextmanager
def everything_is_large() -> Iterator[None]:
    with patch.object(codec, "LARGE", -1):
        yield


def taken(value: Any) -> str | type[InvalidInput]:
    try:
        return snapshot(value, LIMIT).settle()[0]
    except InvalidInput as error:
        return type(error)


@thorough
@given(anything)
def test_a_snapshot_is_the_json_that_a_payload_would_be_large_or_small(value: Any) -> None:
    try:
        expected: str | type[InvalidInput] = encode(value, LIMIT)[0]
    except InvalidInput as error:
        expected = type(error)
    assert taken(value) == expected
    with everything_is_large():
        assert taken(value) == expected


@thorough
@given(good)
def test_a_snapshot_is_opened_as_it_was(value: Any) -> None:
    text, checksum = snapshot(value, LIMIT).settle()
    assert checksum == sha256(text.encode()).hexdigest()
    assert verify_snapshot(text, checksum, "it") == value
    with everything_is_large():
        assert verify_snapshot(text, checksum, "it") == value


def test_what_changes_after_a_snapshot_was_taken_is_not_in_it() -> None:
    value: dict[str, Any] = {"text": "x" * LARGE, "list": [1]}
    large = snapshot(value, 2 * LARGE)
    value["list"].append(float("nan"))
    value["new"] = object()
    assert verify_snapshot(*large.settle(), "it") == {"text": "x" * LARGE, "list": [1]}


def test_what_was_wrong_when_a_snapshot_was_taken_is_found_though_it_was_mended_since() -> None:
    value: dict[str, Any] = {"text": "x" * LARGE, "number": float("nan")}
    large = snapshot(value, 2 * LARGE)
    value["number"] = 1
    with pytest.raises(InvalidPayload):
        large.settle()


def test_the_limit_is_exact() -> None:
    assert snapshot("x" * 8, 10).settle()[0] == '"xxxxxxxx"'
    with pytest.raises(SnapshotTooLarge) as refused:
        snapshot("x" * 9, 10)
    assert (refused.value.size, refused.value.limit) == (11, 10)


@pytest.mark.parametrize("size", [1, 2 * LARGE])
def test_another_checksum_is_damage(size: int) -> None:
    with pytest.raises(DamagedPayload) as damaged:
        verify_snapshot('"' + "x" * size + '"', "0" * 64, "checkpoint 7")
    assert damaged.value.what == "checkpoint 7"


@pytest.mark.parametrize("size", [1, 2 * LARGE])
def test_a_snapshot_is_opened_as_a_type_or_refused_by_name(size: int) -> None:
    plan = Plan(["x" * size])
    taken = snapshot(plan, 3 * LARGE).settle()
    assert verify_snapshot(*taken, "it") == {"phases": plan.phases}
    assert verify_snapshot(*taken, "it", Plan) == plan
    with pytest.raises(PayloadMismatch) as mismatch:
        verify_snapshot(*taken, "version 3 of it", list[int])
    assert mismatch.value.what == "version 3 of it"
    with pytest.raises(InvalidInput, match="not a type to read it as"):
        verify_snapshot(*taken, "it", "Plan")
    with pytest.raises(DamagedPayload):
        verify_snapshot(taken[0], "0" * 64, "it", Plan)


def test_the_garbage_collector_of_the_program_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("enable", "disable", "freeze"):
        monkeypatch.setattr(gc, name, lambda: pytest.fail("it is the program's business"))
    text, checksum = snapshot("x" * LARGE, 2 * LARGE).settle()
    assert verify_snapshot(text, checksum, "it") == "x" * LARGE


@pytest.mark.parametrize("size", [1, 2 * LARGE])
async def test_what_saving_gives_back_is_what_was_stored(bus: Bus, size: int) -> None:
    value: dict[str, Any] = {"steps": [("x" * size, 1)]}
    stored = {"steps": [["x" * size, 1]]}
    a = await bus.register("a", type="worker")
    async with bus.session("planning") as session:
        checkpoint = await a.checkpoint("c", value)
        document = await session.document("d").save(value)
        value["steps"].append("later")
        assert checkpoint.snapshot == document.value == stored
        assert checkpoint == await a.restore()
        assert document == await session.document("d").record()


Work = Callable[[Session, Agent, str], Awaitable[object]]


async def _checkpoint_in_a_unit(session: Session, agent: Agent, value: str) -> None:
    async with agent.unit() as unit:
        unit.checkpoint("n", value)


async def _document_in_a_unit(session: Session, agent: Agent, value: str) -> None:
    async with agent.unit() as unit:
        unit.document("n", value)


SAVING: dict[str, Work] = {
    "checkpoint": lambda session, agent, value: agent.checkpoint("n", value),
    "checkpoint of a session": lambda session, agent, value: session.checkpoint("n", value),
    "checkpoint in a unit": _checkpoint_in_a_unit,
    "document": lambda session, agent, value: session.document("n").save(value),
    "document in a unit": _document_in_a_unit,
}
READING: dict[str, Work] = {
    "restore": lambda session, agent, value: agent.restore(),
    "latest": lambda session, agent, value: session.document("n").latest(),
    "latest as a type": lambda session, agent, value: session.document("n").latest(as_=str),
    "record": lambda session, agent, value: session.document("n").record(1),
    "history": lambda session, agent, value: session.document("n").history(),
}


@pytest.mark.parametrize(("size", "aside"), [(1000, False), (LARGE + 1, True)])
async def test_only_a_large_snapshot_is_looked_through_and_read_on_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, aside: bool
) -> None:
    here = threading.get_ident()
    places: list[bool] = []
    settle, opening = codec.Snapshot.settle, verify_snapshot

    def settled(self: codec.Snapshot) -> tuple[str, str]:
        places.append(threading.get_ident() != here)
        return settle(self)

    def opened(*args: Any) -> Any:
        places.append(threading.get_ident() != here)
        return opening(*args)

    monkeypatch.setattr(codec.Snapshot, "settle", settled)
    monkeypatch.setattr(codec, "verify_snapshot", opened)
    async with (
        agentbus.connect(tmp_path) as bus,
        bus.session("planning") as session,
        session.agent("a", type="worker") as agent,
    ):
        for name, use in (SAVING | READING).items():
            await use(session, agent, "x" * size)
            assert places, name
            assert set(places) == {aside}, name
            places.clear()
