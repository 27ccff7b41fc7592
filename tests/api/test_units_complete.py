"""A unit with every part: acknowledgement, messages, state, checkpoint, document and progress, or none of them."""

from __future__ import annotations

import asyncio
import random
import types
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from agentbus import Bus, Message
from tests.api.helpers import eventually, known, queued, stored, take
from tests.api.unit_contents import (
    AT_THE_END,
    SPOILING,
    Finding,
    Spoil,
    Way,
    World,
    be_taken_over,
    end_the_session,
    in_a_unit,
    in_the_block,
    lose_the_lease,
    world_on,
)
from tests.conftest import Engine
from tests.support.clock import FakeClock

ways = pytest.mark.parametrize("way", [in_the_block, in_a_unit])


@pytest.fixture
async def world(bus: Bus, clock: FakeClock, tmp_path: Path) -> AsyncIterator[World]:
    async with world_on(bus, clock, tmp_path) as world:
        yield world


@ways
async def test_every_part_is_committed_when_the_block_ends(world: World, way: Way) -> None:
    message = await world.message()
    before = await world.look()
    async with way(world, message) as unit:
        world.fill(unit, message)
        assert await world.look() == before, "nothing is written before the end"
    assert await world.all_of(message)
    bus = world.bus
    assert await world.a.state.get("draft") is None
    assert await world.a.state.get("handled") == 1
    for scope, key in (("a", "last"), ("a", "handled"), ("shared", "by"), ("session:s", "phase")):
        entry = await bus.state(scope).entry(key)
        assert entry is not None
        assert (entry.author, entry.version) == ("a", 1)
    checkpoint = await world.a.restore("half")
    assert checkpoint is not None
    assert (checkpoint.session, [file.path for file in checkpoint.files]) == ("s", ["plan.md"])
    assert [check.status for check in await bus.checkpoints.verify(checkpoint, world.root)] == ["ok"]
    document = await world.session.document("output").record()
    assert document is not None
    assert (document.author, document.version) == ("a", 1)
    assert (await known(bus, "a")).progress == 50
    reply = await take(world.rival)
    assert (reply.type, reply.payload, reply.correlation, reply.session) == ("coordination_response", "new", "c", "s")
    assert [type.name for type in await bus.types("message") if not type.builtin] == ["deploy_result", "finding"]


@ways
async def test_many_consecutive_units_all_count(world: World, way: Way) -> None:
    for number in range(1, 13):
        message = await world.message()
        async with way(world, message) as unit:
            world.fill(unit, message, number)
        assert await world.all_of(message, number)
    assert await world.a.state.get("handled") == 12
    assert [record.version for record in await world.session.document("output").history()] == list(range(12, 2, -1))
    assert len((await world.bus.checkpoints.list("a")).items) == 12


# What can go wrong


@pytest.fixture
async def tight(engine: Engine, clock: FakeClock, tmp_path: Path) -> AsyncIterator[World]:
    """The same world on a bus that takes only small snapshots."""
    async with engine.connect(max_snapshot=10_000) as bus, world_on(bus, clock, tmp_path) as world:
        yield world


@pytest.mark.parametrize(
    ("way", "first"),
    [
        pytest.param(in_the_block, True, id="first in the block", marks=pytest.mark.one_engine),
        pytest.param(in_the_block, False, id="last in the block"),
        pytest.param(in_a_unit, False, id="in a unit", marks=pytest.mark.one_engine),
    ],
)
async def test_any_failing_part_rolls_the_unit_back_and_releases_the_message(
    tight: World, way: Way, first: bool
) -> None:
    world = tight
    # Another agent has the message; with the others due it could take one of those.
    await _fail_with(world, way, first, lose_the_lease)
    failed = [await _fail_with(world, way, first, spoil) for spoil in EXPECTED if spoil not in LAST]
    failed.append(await _fail_with(world, way, first, be_taken_over))
    world.clock.advance(2)
    for number in range(len(failed)):
        again = await take(world.a)
        failed.remove(again.message_id)
        async with again as unit:
            world.fill(unit, again, f"again-{number}")
        assert await world.all_of(again, f"again-{number}")
    assert failed == []
    await _fail_with(world, way, first, end_the_session)


EXPECTED = dict(SPOILING)
LAST = {lose_the_lease, be_taken_over, end_the_session}
"""These change more than the unit: each has its place in the order."""


async def _fail_with(world: World, way: Way, first: bool, spoil: Spoil) -> str:
    """Handle a message in a unit that fails, check that it left nothing, and return the id of the message."""
    message = await world.message()
    before: dict[str, Any] = {}
    with pytest.raises(EXPECTED[spoil]) as refused:
        async with way(world, message) as unit:
            if not first:
                world.fill(unit, message)
            try:
                await spoil(world, message, unit)
            finally:
                # What the spoiling itself did is not the unit's.
                before = await world.look()
            if first:
                world.fill(unit, message)
    name = getattr(spoil, "__name__", "")
    assert await world.look() == before, f"{name}: something was written though {refused.value}"
    record = await stored(world.bus, message.message_id)
    if spoil is lose_the_lease:
        assert (record.status, record.holder) == ("leased", "rival")
    elif spoil in LAST:
        pass
    elif way is in_a_unit:
        assert (record.status, record.holder) == ("leased", "a"), f"{name}: its holder decides what becomes of it"
        await message.nack(delay=1)
    else:
        assert (record.status, record.attempts) == ("scheduled", 1), name
        assert type(refused.value).__name__ in (record.error or ""), name
    return message.message_id


# Many at once


async def at_once(
    world: World, messages: list[Message], spoilt: dict[int, Spoil], start: int = 0
) -> list[BaseException | None]:
    """Handle all of these, numbered from ``start``, each in a block of its own; the blocks end in the same moment."""
    ready = 0
    go = asyncio.Event()

    async def handle(number: int, message: Message) -> None:
        nonlocal ready
        async with message as unit:
            unit.reply(message, "coordination_response", number)
            unit.send("b", "note", number)
            unit.send("b", Finding(number))
            unit.publish("t", "note", number)
            unit.state.increment("handled")
            unit.state.set(f"n/{number}", number, if_version=0)
            unit.state_of("session:s").set(f"n/{number}", number)
            (world.root / f"{number}.md").write_text(str(number))
            unit.checkpoint(f"n-{number}", number, files=[f"{number}.md"], root=world.root)
            unit.document(f"n-{number}", number)
            unit.progress(number)
            if number in spoilt:
                await spoilt[number](world, message, unit)
            # The files are hashed here, so that nothing is left to do at the end but the commit.
            await unit._prepare()
            ready += 1
            if ready == len(messages):
                go.set()
            await go.wait()

    tasks = (handle(number, message) for number, message in enumerate(messages, start))
    return await asyncio.gather(*tasks, return_exceptions=True)


async def written(world: World) -> list[set[int]]:
    """The numbers of the units, as each kind of part tells them."""
    bus, session = world.bus, world.session
    return [
        {record.payload for record in (await bus.messages.list(type="coordination_response", limit=1000)).items},
        {n for n in await queued(bus, "b") if isinstance(n, int)},
        {n["files"] for n in await queued(bus, "b") if isinstance(n, dict) and "files" in n},
        {
            record.payload
            for record in (await bus.messages.list(sender="a", type="note", limit=1000)).items
            if record.recipient == "topic:t"
        },
        {entry.value for entry in (await world.a.state.list("n/")).items},
        {entry.value for entry in (await session.state.list("n/")).items},
        {int(summary.name[2:]) for summary in (await bus.checkpoints.list("a")).items},
        {int(document.name[2:]) for document in await session.documents()},
    ]


async def test_units_that_end_together_are_all_whole(world: World) -> None:
    messages = [await world.message(number) for number in range(10)]
    assert await at_once(world, messages, {}) == [None] * 10
    assert await written(world) == [set(range(10))] * 8
    assert await world.a.state.get("handled") == 10
    assert (await known(world.bus, "a")).progress in range(10)
    assert {(await stored(world.bus, message.message_id)).status for message in messages} == {"acked"}


async def test_of_units_that_end_together_only_the_one_that_fails_is_undone(world: World) -> None:
    whole: set[int] = set()
    for start, (spoil, expected) in zip(count(0, 4), AT_THE_END, strict=False):
        name = getattr(spoil, "__name__", "")
        numbers = range(start, start + 4)
        bad = start + 2
        messages = [await world.message(number) for number in numbers]
        results = await at_once(world, messages, {bad: spoil}, start)
        assert [type(result) for result in results] == [expected if n == bad else type(None) for n in numbers], name
        whole |= set(numbers) - {bad}
        assert await written(world) == [whole] * 8, name
        assert await world.a.state.get("handled") == len(whole)
        statuses = [(await stored(world.bus, message.message_id)).status for message in messages]
        assert statuses == ["scheduled" if n == bad else "acked" for n in numbers], name
        world.clock.advance(2)
        again = await take(world.a)
        assert (again.payload, again.attempts) == (bad, 2), name
        await again.ack()


async def test_units_that_all_fail_in_another_way_leave_nothing(world: World) -> None:
    spoilt = {number: spoil for number, (spoil, _) in enumerate(AT_THE_END)}
    messages = [await world.message(number) for number in range(len(AT_THE_END))]
    results = await at_once(world, messages, spoilt)
    assert [type(result) for result in results] == [expected for _, expected in AT_THE_END]
    assert await written(world) == [set()] * 8
    assert await world.a.state.get("handled") is None
    assert "finding" not in [type.name for type in await world.bus.types("message")]


async def test_any_of_many_rounds_may_fail_and_the_sums_are_right(world: World) -> None:
    seed = 20_240_701
    chance = random.Random(seed)
    print("seed", seed)
    whole: set[int] = set()
    for round in range(4):
        messages = [await world.message(number) for number in range(10)]
        spoilt = {n: chance.choice(AT_THE_END)[0] for n in range(10) if chance.random() < 0.3}
        results = await at_once(world, messages, spoilt)
        good = {n for n, result in enumerate(results) if result is None}
        # An entry that must not exist yet can only be made once.
        assert good == set(range(10)) - set(spoilt) - whole, f"round {round}"
        whole |= good
        assert await world.a.state.get("handled") == len(whole)
        assert (await written(world))[2:] == [whole] * 6
        world.clock.advance(100)
        await world.a.ack(await world.a.receive_many(100, timeout=0))


# Cancelled


@types.coroutine
def cancelled_at(work: Coroutine[Any, Any, None], wait: int, turns: int) -> Generator[Any, Any, None]:
    """Run a coroutine, and cancel it when it has been at its ``wait``-th await for ``turns`` turns of the loop."""
    task = asyncio.current_task()
    assert task is not None
    loop = asyncio.get_running_loop()

    def cancel_later(left: int) -> None:
        if left:
            loop.call_soon(cancel_later, left - 1)
        elif not task.done():
            task.cancel()

    step: Callable[[], Any] = lambda: work.send(None)  # noqa: E731
    seen = 0
    while True:
        try:
            yielded = step()
        except StopIteration:
            return
        seen += 1
        if seen == wait:
            cancel_later(turns)
        try:
            yield yielded
        except BaseException as error:
            step = lambda error=error: work.throw(error)  # type: ignore[misc]  # noqa: E731
        else:
            step = lambda: work.send(None)  # noqa: E731


@ways
async def test_cancelled_at_any_await_a_unit_is_all_or_nothing(world: World, way: Way) -> None:
    outcomes: set[bool] = set()
    number = 0
    for wait in range(1, 5):
        for turns in (0, 1, 3, 8, 21, 2000):
            number += 1
            message = await world.message(number)

            async def work(message: Message = message, number: int = number) -> None:
                async with way(world, message) as unit:
                    world.fill(unit, message, number)

            async def cancelled(wait: int = wait, turns: int = turns, work: Any = work) -> None:
                await cancelled_at(work(), wait, turns)

            with suppress(asyncio.CancelledError):
                await asyncio.create_task(cancelled())
            await world.clock.settle()
            whole = await world.all_of(message, number)
            outcomes.add(whole)
            if not whole:
                record = await stored(world.bus, message.message_id)
                expected = "leased" if way is in_a_unit else "queued"
                assert (record.status, record.attempts) == (expected, int(way is in_a_unit)), (wait, turns)
                held = message if way is in_a_unit else await take(world.a)
                await held.ack()
    assert outcomes == {True, False}, "cancelled at the wrong moments; this test proves nothing"


async def test_cancelled_while_its_commit_waits_for_another_it_is_withdrawn(world: World) -> None:
    message = await world.message()

    async def work() -> None:
        async with message as unit:
            unit.state.set("last", 1)
            unit.document("output", 1)

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await eventually(world.clock, lambda: True)
    assert await world.a.state.get("last") is None
    assert await world.session.document("output").latest() is None
    again = await take(world.a)
    assert (again.message_id, again.attempts) == (message.message_id, 1)
