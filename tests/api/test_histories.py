"""Histories: what frameworks store of conversations, written atomically, in order, with bounded pages."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

import agentbus
from agentbus import Bus, History, HistoryItem, HistoryPut, HistoryWrite, RetentionPolicy
from agentbus.errors import (
    AgentBusError,
    HistoryConflict,
    InvalidInput,
    InvalidName,
    InvalidPayload,
    OutOfRange,
    PayloadTooLarge,
    SnapshotTooLarge,
    UnknownHistory,
    VersionConflict,
    WrongState,
)
from tests.conftest import Engine
from tests.support.cases import each
from tests.support.clock import FakeClock

LAST = "\U0010ffff"
HOSTILE = [
    "'; DROP TABLE histories; --",
    "a b",
    "%_[]*?",
    "\x01\x7f\n",
    "é\u0301",
    LAST * 512,
    '"\\',
    "{}",
    "../..",
    "x" * 512,
]


def put(key: str | None = None, body: bytes = b"{}", **options: Any) -> HistoryPut:
    return HistoryPut(key=key, body=body, **options)


def keys(items: list[HistoryItem]) -> list[str]:
    return [item.key for item in items]


async def written(bus: Bus, name: str, *named: str, kind: str = "k", part: str = "") -> History:
    return await bus.histories.write(kind, name, [put(key, key.encode(), part=part) for key in named])


async def test_a_history_has_numbered_items_under_parts_and_keys(bus: Bus, clock: FakeClock) -> None:
    puts = [put("b", b"\x00\xff", part="p", encoding="msgpack", meta={"n": 1}), put(None, b"one"), put("a", b"")]
    history = await bus.histories.write("k", "h", puts, meta={"user": "ada"})
    now = clock.now().wall
    assert history == History("k", "h", 1, 3, 5, now, now, {"user": "ada"})
    assert await bus.histories.find("k", "h") == history
    assert await bus.histories.items("k", "h") == [
        HistoryItem("h", "p", "b", 1, "msgpack", {"n": 1}, 2, now, b"\x00\xff"),
        HistoryItem("h", "", "00000000000000000002", 2, "json", {}, 3, now, b"one"),
        HistoryItem("h", "", "a", 3, "json", {}, 0, now, b""),
    ]
    assert await bus.histories.get("k", "h", "b") is None
    found = await bus.histories.get("k", "h", "b", "p")
    assert found is not None
    assert (found.number, found.body) == (1, b"\x00\xff")
    clock.advance(5)
    # The same key is replaced and keeps its number; replace=False leaves it alone; a deleted one gets a new number.
    puts = [put("b", b"new", part="p"), put("a", b"ignored", replace=False), put("00000000000000000002", b"again")]
    history = await bus.histories.write("k", "h", puts, delete=[("", "00000000000000000002"), ("", "none")])
    assert (history.version, history.items, history.size, history.created) == (2, 3, 8, now)
    assert (history.updated, history.meta) == (now + 5000, {"user": "ada"})
    items = await bus.histories.items("k", "h")
    assert [(item.key, item.number, item.body) for item in items] == [
        ("b", 1, b"new"),
        ("a", 3, b""),
        ("00000000000000000002", 4, b"again"),
    ]
    assert [item.created - now for item in items] == [0, 0, 5000]
    assert (await bus.histories.write("k", "h", [put()], meta={})).meta == {}
    assert keys(await bus.histories.items("k", "h"))[-1] == "00000000000000000005"


async def test_a_write_that_is_refused_writes_nothing(bus: Bus) -> None:
    await written(bus, "h", "a")
    for refused in (
        bus.histories.write("k", "h", [put("b"), put("00000000000000000009")], delete=[("", "a")]),
        bus.histories.write("k", "h", [put("b")], delete=[("", "a")], meta={"x": 1}, if_version=0),
        bus.histories.write("k", "other", [put("b")], if_version=1),
        bus.histories.copy("k", "h", "h"),
        bus.histories.copy("k", "none", "other"),
    ):
        with pytest.raises(AgentBusError):
            await refused
    assert (await bus.histories.list()).items == [await bus.histories.find("k", "h")]
    assert keys(await bus.histories.items("k")) == ["a"]
    history = await bus.histories.find("k", "h")
    assert history is not None
    assert (history.version, history.meta) == (1, {})


async def test_of_concurrent_writers_with_one_version_one_succeeds(engine: Engine, bus: Bus) -> None:
    async with engine.connect() as second, engine.connect() as third:
        await race((bus, second, third))


async def race(buses: tuple[Bus, ...]) -> None:
    """Let 20 writers on several buses write the same histories."""
    bus = buses[0]

    async def writer(number: int) -> bool:
        try:
            await buses[number % 3].histories.write("k", "h", [put(f"{number}-a"), put(f"{number}-b")], if_version=0)
        except VersionConflict as error:
            return not isinstance(error, HistoryConflict) or (error.facts["expected"], error.facts["found"]) != (0, 1)
        return True

    assert Counter(await asyncio.gather(*map(writer, range(20)))) == {True: 1, False: 19}
    assert len({key.split("-")[0] for key in keys(await bus.histories.items("k", "h"))}) == 1

    async def increment(number: int) -> None:
        own = buses[number % 3].histories
        while True:
            history = await own.find("k", "count")
            count = 0 if history is None else history.meta["n"]
            version = 0 if history is None else history.version
            try:
                await own.write("k", "count", [put()], meta={"n": count + 1}, if_version=version)
            except HistoryConflict:
                continue
            return

    await asyncio.gather(*map(increment, range(20)))
    history = await bus.histories.find("k", "count")
    assert history is not None
    assert (history.version, history.items, history.meta) == (20, 20, {"n": 20})
    # Those that are committed together number their items without gaps.
    await asyncio.gather(*(buses[n % 3].histories.write("k", "many", [put(), put()]) for n in range(20)))
    assert [item.number for item in await bus.histories.items("k", "many")] == list(range(1, 41))


@each("name", HOSTILE)
async def test_any_text_is_a_name_a_part_and_a_key(name: str, bus: Bus) -> None:
    part = name[:100]
    key = name[:400] + "k"
    await bus.histories.write("k", name, [put(key, b"1", part=part, meta={name: name})])
    await written(bus, "zz", "k")
    item = await bus.histories.get("k", name, key, part)
    assert item is not None
    assert item.meta == {name: name}
    for found in (
        await bus.histories.items("k", name, key=key),
        await bus.histories.items("k", name, key_prefix=name[:400]),
        await bus.histories.items("k", name, part=part, by="key"),
        await bus.histories.items("k", where={name: name}),
        await bus.histories.items("k", where={name: name}, by="key"),
    ):
        assert found == [item]
    assert [one.name for one in (await bus.histories.list("k", prefix=name)).items] == [name]
    assert (await bus.histories.copy("k", name, "copy")).items == 1
    assert await bus.histories.delete("k", "copy") == 1
    assert await bus.histories.delete("k", name, part=part, keys=[key]) == 1
    assert await bus.histories.delete("k", name) == 0
    assert await bus.histories.find("k", name) is None


async def test_items_are_filtered_and_ordered(bus: Bus) -> None:
    for name, names in (("b", "cab"), ("a", "ac"), ("c", "")):
        await written(bus, name, *names)
    await bus.histories.write("k", "b", [put("b", part="p", meta={"step": 1, "run": "x"})])
    await bus.histories.write("k", "b", [put("ab", part="p", meta={"step": 12, "run": {"x": "y"}})])
    await written(bus, "a", "a", kind="other")
    items = bus.histories.items

    async def found(name: str | None = None, **options: Any) -> str:
        return " ".join(f"{item.history}{item.part}{item.key}" for item in await items("k", name, **options))

    assert await found("b") == "bc ba bb bpb bpab"
    assert await found("b", newest_first=True) == "bpab bpb bb ba bc"
    assert await found("b", after=2) == "bb bpb bpab"
    assert await found("b", after=2, newest_first=True, limit=2) == "bpab bpb"
    assert await found("b", part="p") == "bpb bpab"
    assert await found("b", part="p", by="key") == "bpab bpb"
    assert await found("b", part="", by="key", newest_first=True) == "bc bb ba"
    assert await found("b", part="", by="key", newest_first=True, before_key="c", limit=1) == "bb"
    assert await found("b", by="key") == "ba bpab bb bpb bc"
    assert await found("b", by="key", newest_first=True, before_key="bb") == "bpb bb bpab ba"
    assert await found("b", key="b") == "bb bpb"
    assert await found("b", key_prefix="a") == "ba bpab"
    assert await found("b", key_prefix="a", key="b") == ""
    assert await found() == "aa ac bc ba bb bpb bpab"
    assert await found(newest_first=True) == "bpab bpb bb ba bc ac aa"
    assert await found(by="key") == "aa ba bpab bb bpb ac bc"
    assert await found(by="key", newest_first=True, limit=3) == "bc ac bpb"
    assert await found(by="key", part="", before_key="c") == "aa ba bb"
    assert await found(where={"step": 1}) == "bpb"
    assert await found(where={"step": 1.0}) == await found(where={"step": True}) == await found(where={"x": "y"}) == ""
    assert await found("b", where={"step": 1, "run": "x"}) == "bpb"
    assert await found("b", where={"run": {"x": "y"}}, by="key") == "bpab"
    assert await found("none") == await found("c") == ""
    without = await items("k", "b", bodies=False)
    assert {item.body for item in without} == {b""}
    assert [item.size for item in without] == [1, 1, 1, 2, 2]


async def test_long_lists_are_read_in_pages(bus: Bus) -> None:
    count = 450
    large = b"x" * 70_000
    for history in ("a", "b"):
        puts = [
            put(f"{n % 7}-{n:03}", large if n in {3, 300} else b"", part="p" * (n % 2), meta={"n": n % 50})
            for n in range(count)
        ]
        await bus.histories.write("k", history, puts)
    for options in ({}, {"part": "p"}, {"by": "key"}, {"by": "key", "part": "p"}):
        for name in ("a", None):
            up = await bus.histories.items("k", name, **options)  # type: ignore[arg-type]
            down = await bus.histories.items("k", name, newest_first=True, **options)  # type: ignore[arg-type]
            assert down == up[::-1]
            assert len({(item.history, item.part, item.key) for item in up}) == len(up)
            assert len(up) == count * (1 if name else 2) // (2 if "part" in options else 1)
            assert await bus.histories.items("k", name, limit=220, **options) == up[:220]  # type: ignore[arg-type]
    some = await bus.histories.items("k", where={"n": 3}, limit=17)
    assert [(item.history, item.number) for item in some][8:10] == [("a", 404), ("b", 4)]
    assert len(some) == 17
    assert (await bus.histories.items("k", "a", where={"n": 0}))[-1].number == 401
    assert [item.number for item in await bus.histories.items("k", "a") if item.body == large] == [4, 301]
    found = await bus.histories.get("k", "a", "3-003", "p")
    assert found is not None
    assert found.body == large


async def test_histories_are_listed_by_kind_and_name(bus: Bus, clock: FakeClock) -> None:
    for kind, name in (("b", "x"), ("a", "run-2"), ("a", "run-1"), ("a", "other")):
        clock.advance(1)
        await bus.histories.write(kind, name, [put(body=b"123")], meta={"of": name[:3]})
    names: list[str] = []
    cursor: str | None = None
    while cursor is not None or not names:
        page = await bus.histories.list(limit=1, cursor=cursor)
        names += [f"{one.kind} {one.name}" for one in page.items]
        cursor = page.cursor
    assert names == ["a other", "a run-1", "a run-2", "b x"]
    assert [one.name for one in (await bus.histories.list("a", prefix="run-")).items] == ["run-1", "run-2"]
    assert [one.name for one in (await bus.histories.list(where={"of": "run"}, limit=2)).items] == ["run-1", "run-2"]
    page = await bus.histories.list("a", where={"of": "run"}, limit=1)
    assert page.cursor == "a run-1"
    assert [one.name for one in (await bus.histories.list("a", where={"of": "run"}, cursor=page.cursor)).items] == [
        "run-2"
    ]
    kinds = await bus.histories.kinds()
    assert [(one.kind, one.histories, one.items, one.size) for one in kinds] == [("a", 3, 3, 9), ("b", 1, 1, 3)]
    assert kinds[0].updated == clock.now().wall


async def test_items_parts_and_histories_are_deleted(bus: Bus) -> None:
    await written(bus, "h", "a", "b", "c")
    await written(bus, "h", "a", "b", part="p")
    assert await bus.histories.delete("k", "h", keys=["a", "a", "none"]) == 1
    assert await bus.histories.delete("k", "h", part="p", keys=["a"]) == 1
    assert await bus.histories.delete("k", "h", part="none") == 0
    history = await bus.histories.find("k", "h")
    assert history is not None
    assert (history.version, history.items, history.size) == (4, 3, 3)
    assert await bus.histories.delete("k", "h", part="p") == 1
    assert keys(await bus.histories.items("k", "h")) == ["b", "c"]
    assert await bus.histories.delete("k", "none") == 0
    assert await bus.histories.delete("k", "h") == 2
    (event,) = [event async for event in bus.events(kind="history_deleted")]
    assert event.facts == {"history_kind": "k", "history": "h", "items": 2, "size": 2}


async def test_a_history_that_is_written_again_reuses_no_version(bus: Bus) -> None:
    await written(bus, "h", "a")
    old = await written(bus, "h", "b")
    await bus.histories.delete("k", "h")
    with pytest.raises(HistoryConflict):
        await bus.histories.write("k", "h", [put("c")], if_version=old.version)
    new = await bus.histories.write("k", "h", [put("c")], if_version=0)
    assert new.version == old.version + 1
    await bus.histories.delete("k", "h")
    # Retention and copies neither.
    assert (await bus.histories.copy("k", (await written(bus, "other", "a")).name, "h")).version == new.version + 1
    await bus.retention.apply(policy=RetentionPolicy(histories=0))
    assert (await bus.histories.list()).items == []
    writes = [HistoryWrite(kind="k", name=name) for name in ("h", "other")]
    assert {one.version for one in await bus.histories.write_all(writes)} == {new.version + 2}


async def test_a_history_is_copied(bus: Bus, clock: FakeClock) -> None:
    await bus.histories.write("k", "h", [put("a", b"1", part="p"), put("b")], meta={"m": 1}, delete=[])
    await bus.histories.write("k", "h", delete=[("", "b")])
    await bus.histories.write("k", "empty", meta={"old": 1})
    clock.advance(9)
    for target, version in (("new", 1), ("empty", 2)):
        copy = await bus.histories.copy("k", "h", target)
        assert (copy.version, copy.items, copy.size, copy.meta) == (version, 1, 1, {"m": 1})
        (item,) = await bus.histories.items("k", target)
        assert (item.history, item.part, item.key, item.number, item.body) == (target, "p", "a", 1, b"1")
        # A number is not used again.
        await bus.histories.write("k", target, [put()])
        assert (await bus.histories.items("k", target))[-1].number == 3
    with pytest.raises(WrongState, match="not empty"):
        await bus.histories.copy("k", "h", "new")
    with pytest.raises(UnknownHistory):
        await bus.histories.copy("k", "none", "newer")


@pytest.mark.one_engine
async def test_bad_input_is_refused(bus: Bus) -> None:
    histories = bus.histories
    long = LAST * 400
    for expected, call in (
        (InvalidName, histories.write("", "h")),
        (InvalidName, histories.write("k" * 65, "h")),
        (InvalidName, histories.find("a b", "h")),
        (OutOfRange, histories.write("k", "")),
        (OutOfRange, histories.write("k", "a\0b")),
        (OutOfRange, histories.write("k", "\ud800")),
        (OutOfRange, histories.write("k", "h" * 513)),
        (OutOfRange, histories.write("k", "h", [put("")])),
        (OutOfRange, histories.write("k", "h", [put("k" * 513)])),
        (OutOfRange, histories.write("k", "h", [put("k", part="p" * 513)])),
        (OutOfRange, histories.write("k", "h", [put(long, part=long)])),
        (OutOfRange, histories.write("k", "h", [put("k", encoding="")])),
        (InvalidName, histories.write("k", "h", [put("0" * 19 + "1")])),
        (InvalidInput, histories.write("k", "h", [put("k", "text")])),  # type: ignore[arg-type]
        (InvalidInput, histories.write("k", "h", [{"key": "k"}])),  # type: ignore[list-item]
        (InvalidInput, histories.write("k", "h", put("k"))),  # type: ignore[arg-type]
        (InvalidInput, histories.write("k", "h", delete=["k"])),  # type: ignore[list-item]
        (InvalidInput, histories.write("k", "h", meta=[])),  # type: ignore[arg-type]
        (InvalidPayload, histories.write("k", "h", meta={"x": float("nan")})),
        (PayloadTooLarge, histories.write("k", "h", meta={"x": "y" * 65_536})),
        (PayloadTooLarge, histories.write("k", "h", [put("k", meta={"x": "y" * 65_536})])),
        (SnapshotTooLarge, histories.write("k", "h", [put("k", b"x" * (16 * 1024 * 1024 + 1))])),
        (OutOfRange, histories.write("k", "h", [put()] * 10_001)),
        (OutOfRange, histories.write("k", "h", delete=[("", "k")] * 100_001)),
        (OutOfRange, histories.delete("k", "h", keys=["k"] * 100_001)),
        (OutOfRange, histories.write("k", "h", if_version=-1)),
        (OutOfRange, histories.items("k", "h", limit=0)),
        (OutOfRange, histories.items("k", "h", after=-1)),
        (OutOfRange, histories.items("k", "h", by="created")),  # type: ignore[arg-type]
        (InvalidInput, histories.items("k", "h", where="x")),  # type: ignore[arg-type]
        (OutOfRange, histories.list(cursor="x")),
        (OutOfRange, histories.list(limit=0)),
        (InvalidInput, histories.delete("k", "h", keys="abc")),
    ):
        with pytest.raises(expected):
            await call
    assert (await histories.list()).items == []


@pytest.mark.one_engine
def test_histories_are_used_without_an_event_loop(engine: Engine) -> None:
    with agentbus.sync.connect(engine.url) as bus:
        written = bus.histories.write("k", "h", [put("a", b"x" * 300_000), put()], meta={"m": 1})
        assert bus.histories.find("k", "h") == written == bus.histories.list().items[0]
        assert [len(item.body) for item in bus.histories.items("k", "h")] == [300_000, 2]
        assert bus.histories.copy("k", "h", "copy").items == bus.histories.delete("k", "h") == 2
        with pytest.raises(HistoryConflict):
            bus.histories.write("k", "copy", if_version=7)
