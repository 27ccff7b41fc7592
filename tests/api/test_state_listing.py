"""Lists of state: in the order of the keys, by prefix, page by page."""

from __future__ import annotations

import asyncio

from agentbus import Bus
from tests.support.cases import each


async def test_a_list_is_in_the_order_of_the_keys(bus: Bus) -> None:
    state = bus.state("s")
    for key in ("b", "a/2", "a/10", "a", "A", "a-", "b/1", "z"):
        await state.set(key, key)
    await bus.state("t").set("a/other", 1)
    assert [entry.key for entry in (await state.list()).items] == ["A", "a", "a-", "a/10", "a/2", "b", "b/1", "z"]
    assert [entry.key for entry in (await state.list("a")).items] == ["a", "a-", "a/10", "a/2"]
    assert [entry.value for entry in (await state.list("a/")).items] == ["a/10", "a/2"]
    assert (await state.list("a/3")).items == []


@each("prefix", ["_", "a_", "A", "a.", "z"])
async def test_a_prefix_is_taken_literally(bus: Bus, prefix: str) -> None:
    keys = ["a", "axb", "a_b", "a_b/1", "A", "Ab", "_", "_x", "a.b", "zz", "z"]
    for key in keys:
        await bus.state("s").set(key, 1)
    found = [entry.key for entry in (await bus.state("s").list(prefix)).items]
    assert found == sorted(key for key in keys if key.startswith(prefix))


async def test_a_long_list_comes_in_pages(bus: Bus) -> None:
    state = bus.state("s")
    keys = [f"k/{n:03}" for n in range(25)] + ["k", "l", "j/9"]
    await asyncio.gather(*(state.set(key, 1) for key in keys))
    found: list[str] = []
    cursor: str | None = None
    sizes = []
    while True:
        page = await state.list("k", cursor=cursor, limit=10)
        sizes.append(len(page.items))
        found += [entry.key for entry in page.items]
        cursor = page.cursor
        if cursor is None:
            break
    assert found == ["k", *(f"k/{n:03}" for n in range(25))]
    assert sizes == [10, 10, 6]
    assert (await state.list("k", limit=26)).cursor is None


async def test_paging_continues_after_its_last_entry_was_deleted(bus: Bus) -> None:
    state = bus.state("s")
    for key in "abcd":
        await state.set(key, 1)
    page = await state.list(limit=2)
    await state.delete("b")
    assert [entry.key for entry in (await state.list(cursor=page.cursor)).items] == ["c", "d"]
    assert [entry.key for entry in (await state.list("d", cursor="a")).items] == ["d"]


async def test_deleted_entries_are_not_listed(bus: Bus) -> None:
    state = bus.state("s")
    for key in "abc":
        await state.set(key, 1)
    await state.delete("b")
    assert [entry.key for entry in (await state.list()).items] == ["a", "c"]
