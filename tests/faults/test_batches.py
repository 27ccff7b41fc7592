"""Calls that fail in the middle of a shared transaction do not affect the others."""

import asyncio
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

import agentbus
from agentbus import Agent, Bus, Now
from agentbus.errors import AgentBusError, FormatRefused, UnknownRecipient, WrongState
from agentbus.operations.events import event, record
from agentbus.operations.protocol import Op, Operation, Part, Query, UnitRequest, operation, unit
from agentbus.operations.send import SendRequest, send
from tests.faults.rows import integrity, no_process_writes, rows, value

NEIGHBOURS = 40

Write = Callable[[str, Now], Op[None]]


def spoiler(write: Write, seen: list[dict[str, int]]) -> Operation[str, None]:
    """An operation that writes a row for each request, and then does what ``write`` does.

    ``seen`` gets what the same transaction already holds, which proves that there were neighbours in it.
    """

    @operation(durable=True)
    def spoil(requests: Sequence[str], now: Now) -> Op[list[AgentBusError | None]]:
        seen.append(dict((yield Query("message_counts"))))
        for name in requests:
            yield from record([event(now.wall, "spoilt", ("bus", name), None)])
            yield from write(name, now)
        return [None] * len(requests)

    return spoil


def raises_named_error(name: str, now: Now) -> Op[None]:
    yield Query("counter_take", ("message", 1000))
    raise WrongState(what="test", name=name, status="spoilt", action="go on")


def raises_any_error(name: str, now: Now) -> Op[None]:
    yield Query("counter_take", ("message", 1000))
    raise ZeroDivisionError(name)


def breaks_a_check(name: str, now: Now) -> Op[None]:
    yield from record([event(-1, "spoilt", ("bus", name), None)])


def breaks_a_foreign_key(name: str, now: Now) -> Op[None]:
    yield Query("listener_insert", ("mailbox/1", 987_654_321))


def undoes_everything(name: str, now: Now) -> Op[None]:
    """The trigger of the test makes SQLite itself give up the whole transaction, savepoints and all."""
    yield Query("meta_set", ("spoilt", name))


@asynccontextmanager
async def crew(path: Path) -> AsyncIterator[tuple[Bus, Agent, Agent]]:
    async with (
        # No beat may slip into a batch.
        agentbus.connect(path, beat_every=3600) as bus,
        bus.agent("sender", type="worker") as sender,
        bus.agent("receiver", type="worker") as receiver,
    ):
        yield bus, sender, receiver


def drafts(agent: Agent, numbers: Sequence[int], to: str = "receiver") -> SendRequest:
    return SendRequest(agent._actor, tuple(agent._draft(to, "note", n, message_id=f"n-{n}") for n in numbers))


async def outcomes(*calls: Awaitable[Any]) -> list[Any]:
    """All of these were queued in one turn of the loop, so that the writer takes them together."""
    return await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 20)


@pytest.mark.parametrize(
    ("write", "error"),
    [
        (raises_named_error, WrongState),
        (raises_any_error, ZeroDivisionError),
        (breaks_a_check, FormatRefused),
        (breaks_a_foreign_key, FormatRefused),
        (undoes_everything, AgentBusError),
    ],
)
async def test_a_call_that_fails_after_writing_does_not_affect_its_batch(
    tmp_path: Path, write: Write, error: type[Exception]
) -> None:
    seen: list[dict[str, int]] = []
    async with crew(tmp_path) as (bus, sender, receiver):
        with closing(sqlite3.connect(tmp_path / "bus.db", isolation_level=None)) as connection:
            connection.execute(
                "CREATE TRIGGER undo BEFORE INSERT ON meta WHEN NEW.key = 'spoilt'"
                " BEGIN SELECT RAISE(ROLLBACK, 'undone'); END"
            )
        waiting = asyncio.create_task(receiver.receive(timeout=20))
        spoil = spoiler(write, seen)
        results = await outcomes(
            *(bus._engine.write(send, drafts(sender, [n])) for n in range(NEIGHBOURS)),
            bus._engine.write(spoil, "spoilt"),
            *(bus._engine.write(send, drafts(sender, [n])) for n in range(NEIGHBOURS, 2 * NEIGHBOURS)),
        )
        failed = results.pop(NEIGHBOURS)
        assert isinstance(failed, error)
        assert [type(result) for result in results] == [list] * 2 * NEIGHBOURS
        no_process_writes(tmp_path)
        first = await waiting
        assert first is not None
        await first.ack()
        # The bus continues, and its ids are still its own.
        assert (await sender.send("receiver", "note", "after")).duplicate is False
    found = Counter(row[0] for row in rows(tmp_path, "SELECT message_id FROM messages WHERE message_id IS NOT NULL"))
    ids = [receipt.id for (receipt,) in results]
    print(f"one batch of {2 * NEIGHBOURS + 1}: 1 failed, {len(found)} neighbours there, {seen[0]} seen beside it")
    assert seen[0] == {"queued": 2 * NEIGHBOURS}, "it had no neighbours in its transaction; this test proves nothing"
    assert found == {f"n-{n}": 1 for n in range(2 * NEIGHBOURS)}
    assert sorted(ids) == sorted(row[0] for row in rows(tmp_path, "SELECT id FROM messages WHERE message_id NOTNULL"))
    assert value(tmp_path, "SELECT count(*) FROM events WHERE kind = 'spoilt'") == 0
    assert value(tmp_path, "SELECT count(*) FROM meta WHERE key = 'spoilt'") == 0
    assert integrity(tmp_path) == "ok"


async def test_of_many_calls_of_one_operation_only_the_bad_ones_fail(tmp_path: Path) -> None:
    def fails_on_odd(name: str, now: Now) -> Op[None]:
        if int(name) % 2:
            yield from breaks_a_check(name, now)

    seen: list[dict[str, int]] = []
    spoil = spoiler(fails_on_odd, seen)
    async with crew(tmp_path) as (bus, sender, _):
        results = await outcomes(
            *(bus._engine.write(spoil, str(n)) for n in range(NEIGHBOURS)),
            *(bus._engine.write(send, drafts(sender, [n])) for n in range(NEIGHBOURS)),
        )
    assert [isinstance(result, FormatRefused) for result in results[:NEIGHBOURS]] == [n % 2 == 1 for n in range(40)]
    assert all(isinstance(result, list) for result in results[NEIGHBOURS:])
    kept = [row[0] for row in rows(tmp_path, "SELECT subject FROM events WHERE kind = 'spoilt' ORDER BY id")]
    print(f"{NEIGHBOURS} calls of one operation, {NEIGHBOURS // 2} bad: {len(kept)} kept")
    assert kept == [str(n) for n in range(0, NEIGHBOURS, 2)]
    assert value(tmp_path, "SELECT count(*) FROM messages WHERE message_id LIKE 'n-%'") == NEIGHBOURS


@pytest.mark.parametrize("position", [0, 20, 40])
async def test_a_unit_whose_last_part_fails_writes_nothing_and_does_not_affect_its_batch(
    tmp_path: Path, position: int
) -> None:
    async with crew(tmp_path) as (bus, sender, _):
        bad = UnitRequest((
            Part(send, drafts(sender, [100, 101])),
            Part(send, drafts(sender, [102])),
            Part(send, drafts(sender, [103], to="nobody")),
        ))  # fmt: skip
        good = UnitRequest((Part(send, drafts(sender, [200])), Part(send, drafts(sender, [201]))))
        calls = [bus._engine.write(send, drafts(sender, [n])) for n in range(position)]
        calls += [bus._engine.write(unit, bad), bus._engine.write(unit, good)]
        calls += [bus._engine.write(send, drafts(sender, [n])) for n in range(position, NEIGHBOURS)]
        results = await outcomes(*calls)
        assert isinstance(results.pop(position), UnknownRecipient)
        assert all(isinstance(result, list) for result in results)
        no_process_writes(tmp_path)
    found = sorted(row[0] for row in rows(tmp_path, "SELECT message_id FROM messages"))
    assert found == sorted([*(f"n-{n}" for n in range(NEIGHBOURS)), "n-200", "n-201"])


async def test_a_rolled_back_reply_wakes_no_receiver(tmp_path: Path) -> None:
    """The channels of an undone call must not reach a receiver as if a message had come, nor be lost for others."""
    async with crew(tmp_path) as (bus, sender, receiver):
        both = [asyncio.create_task(agent.receive(timeout=20)) for agent in (receiver, sender)]
        bad = UnitRequest((Part(send, drafts(sender, [1])), Part(send, drafts(sender, [2], to="nobody"))))
        results = await outcomes(
            bus._engine.write(unit, bad),
            bus._engine.write(send, drafts(sender, [3])),
            bus._engine.write(send, drafts(sender, [4], to="sender")),
        )
        assert isinstance(results[0], UnknownRecipient)
        received = await outcomes(*both)
        assert [message.payload for message in received] == [3, 4]


@pytest.mark.timeout(30)
async def test_a_damaged_table_raises_and_never_hangs(tmp_path: Path) -> None:
    async with agentbus.connect(tmp_path, beat_every=3600) as bus:
        # Not in a block of its own: that it cannot end in order either is not the question here.
        sender = await bus.register("sender", type="worker")
        with closing(sqlite3.connect(tmp_path / "bus.db", isolation_level=None)) as connection:
            connection.execute("DROP TABLE listeners")
        # It may not be possible to send it; the sender learns the outcome.
        done, _ = await asyncio.wait([asyncio.ensure_future(sender.send("sender", "note", 1))], timeout=30)
        assert done, "the caller hangs"
        (sent,) = done
        assert sent.exception() is None or isinstance(sent.exception(), AgentBusError)
