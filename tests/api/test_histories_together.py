"""Writes to several histories commit together or not at all."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentbus import Bus, HistoryPut, HistoryWrite
from agentbus.errors import HistoryConflict, InvalidInput, InvalidName
from tests.conftest import Engine


def write(name: str, text: str = "1", **options: Any) -> HistoryWrite:
    return HistoryWrite(kind="adk", name=name, puts=[HistoryPut(key="k", body=text.encode())], **options)


async def bodies(bus: Bus) -> dict[str, bytes]:
    return {item.history: item.body for item in await bus.histories.items("adk")}


async def test_all_histories_of_a_call_are_written_or_none(bus: Bus) -> None:
    histories = await bus.histories.write_all([write("a", if_version=0, meta={"m": 1}), write("b")])
    assert [(one.name, one.version, one.items, one.meta) for one in histories] == [
        ("a", 1, 1, {"m": 1}), ("b", 1, 1, {}),
    ]  # fmt: skip
    with pytest.raises(HistoryConflict) as conflict:
        await bus.histories.write_all([write("a", "2"), write("c", "2"), write("b", "2", if_version=7)])
    assert (conflict.value.name, conflict.value.found) == ("b", 1)
    assert await bodies(bus) == {"a": b"1", "b": b"1"}
    last = HistoryWrite(kind="adk", name="b", delete=[("", "k")], if_version=1)
    await bus.histories.write_all([write("a", "3"), last])
    assert await bodies(bus) == {"a": b"3"}
    assert await bus.histories.write_all([]) == []


async def test_concurrent_calls_that_share_histories_do_not_mix(engine: Engine) -> None:
    async with engine.connect() as bus, engine.connect() as other:
        names = ["a", "b", "c"]
        calls = [
            one.histories.write_all([write(name, str(number)) for name in (names if number % 2 else names[::-1])])
            for number in range(8)
            for one in (bus, other)
        ]
        single = [other.histories.write("adk", "b", [HistoryPut(body=b"x")]) for _ in range(4)]
        await asyncio.gather(*calls, *single)
        found = {name: await bus.histories.get("adk", name, "k") for name in names}
        assert len({item.body for item in found.values() if item is not None}) == 1
        versions = {one.name: one.version for one in (await bus.histories.list("adk")).items}
        assert versions == {"a": 16, "b": 20, "c": 16}


@pytest.mark.one_engine
async def test_bad_writes_are_refused(bus: Bus) -> None:
    wrong: Any
    for wrong, error in (
        ([write("a"), write("a")], InvalidInput),
        ([write("a"), ("adk", "b")], InvalidInput),
        ("ab", InvalidInput),
        ([write("a"), HistoryWrite(kind="no kind", name="b")], InvalidName),
    ):
        with pytest.raises(error):
            await bus.histories.write_all(wrong)
    assert await bodies(bus) == {}
