"""Callers cancelled at any moment: acknowledged calls are stored, nothing is half done."""

import asyncio
import random
from collections import Counter
from collections.abc import Coroutine, Iterable
from pathlib import Path
from typing import Any

import pytest
from anyio.lowlevel import checkpoint

import agentbus
from agentbus import Agent
from agentbus.operations.protocol import Operation
from agentbus.operations.receive import AckRequest, ack
from tests.faults.rows import integrity, no_process_writes, rows, value
from tests.support.figures import Figure, Scale

SENDS = 10_000
RECEIVES = 1_500
MOMENTS = (0.0, 0.0, 0.0003, 0.001, 0.003)
"""Seconds into a call, or until one returns."""
SEED = 20_240_611


async def storm(calls: Iterable[Coroutine[Any, Any, None]], rng: random.Random) -> int:
    """Start the calls bit by bit, and cancel a third of them, each at a random moment of its life. Says how many."""
    tasks: list[asyncio.Task[None]] = []
    live: list[asyncio.Task[None]] = []
    owed = 0.0
    hit = 0
    for call in calls:
        tasks.append(asyncio.create_task(call))
        owed += 1 / 3
        if rng.random() < 0.9:
            continue
        # From here on all of them have begun: some wait, some are being written, some are being answered.
        live += tasks[-30:]
        await checkpoint()
        await asyncio.wait(tasks[-30:], timeout=rng.choice(MOMENTS), return_when=asyncio.FIRST_COMPLETED)
        rng.shuffle(live)
        live = [task for task in live if not task.done()]
        while owed >= 1 and live:
            victim = live.pop()
            if not victim.cancelling() and victim.cancel():
                owed -= 1
                hit += 1
    _, stuck = await asyncio.wait(tasks, timeout=60)
    assert not stuck, f"{len(stuck)} calls are never answered"
    assert all(task.cancelled() or task.exception() is None for task in tasks)
    return hit


@pytest.mark.slow
@pytest.mark.fault(9)
async def test_a_cancel_storm_loses_no_acknowledged_send_and_doubles_none(
    tmp_path: Path, figure: Figure, scale: Scale
) -> None:
    rng = random.Random(scale.seed(SEED))
    sends = scale(2_000, SENDS, 10 * SENDS)
    acknowledged: set[int] = set()
    async with (
        agentbus.connect(tmp_path, beat_every=3600) as bus,
        bus.agent("sender", type="worker") as sender,
        bus.agent("receiver", type="worker") as receiver,
    ):

        async def one(number: int) -> None:
            await sender.send("receiver", "note", number, message_id=f"s-{number}")
            acknowledged.add(number)

        hit = await storm((one(n) for n in range(sends)), rng)
        await bus.stats()
        no_process_writes(tmp_path)
        there = Counter(row[0] for row in rows(tmp_path, "SELECT message_id FROM messages"))
        lost = [n for n in acknowledged if there[f"s-{n}"] != 1]
        doubled = [name for name, times in there.items() if times > 1]
        unheard = f"{len(there) - len(acknowledged)} committed though cancelled"
        figure(unheard, cancelled=hit, acknowledged=len(acknowledged), lost=len(lost), duplicated=len(doubled))
        assert hit >= sends // 4
        assert not lost
        assert not doubled

        receipts = await asyncio.gather(
            *(sender.send("receiver", "note", n, message_id=f"s-{n}") for n in range(sends))
        )
        assert sum(receipt.duplicate for receipt in receipts) == len(there)
        assert value(tmp_path, "SELECT count(*) FROM messages") == sends
        assert value(tmp_path, "SELECT count(DISTINCT message_id) FROM messages") == sends
        no_process_writes(tmp_path)

        message = await receiver.receive(timeout=30)
        assert message is not None
        await message.ack()
    assert integrity(tmp_path) == "ok"


@pytest.mark.slow
@pytest.mark.fault(9)
async def test_a_cancelled_receive_releases_its_message_uncounted(tmp_path: Path, figure: Figure, scale: Scale) -> None:
    rng = random.Random(scale.seed(SEED + 1))
    handled: Counter[int] = Counter()
    attempts: list[int] = []
    async with (
        agentbus.connect(tmp_path, beat_every=3600) as bus,
        bus.agent("sender", type="worker") as sender,
        bus.agent("receiver", type="worker") as receiver,
    ):
        await sender.send_many([("receiver", "note", n) for n in range(RECEIVES)])

        async def one(agent: Agent) -> None:
            message = await agent.receive()
            assert message is not None
            # Not cancelled from here on: the acknowledgement is what makes it ours.
            handled[message.payload] += 1
            attempts.append(message.attempts)
            await asyncio.shield(message.ack())

        hit = 0
        left = RECEIVES
        while left:
            hit += await storm((one(receiver) for _ in range(left)), rng)
            # Shielded acknowledgements of cancelled receivers may still be under way.
            await bus._engine.write(*_nothing(receiver))
            left = value(tmp_path, "SELECT count(*) FROM messages WHERE status <> 'acked'")
        doubled = {n: times for n, times in handled.items() if times > 1}
        lost = RECEIVES - len(handled)
        figure("receives", cancelled=hit, acknowledged=len(handled), lost=lost, duplicated=len(doubled))
        assert hit > RECEIVES // 4
        assert len(handled) == RECEIVES
        assert not doubled
        assert set(attempts) == {1}
        no_process_writes(tmp_path)


async def test_a_receive_cancelled_during_its_delivery_releases_the_message_at_once(tmp_path: Path) -> None:
    """The claim is committed and answered, but the task is cancelled before it runs again."""
    async with (
        agentbus.connect(tmp_path, beat_every=3600) as bus,
        bus.agent("receiver", type="worker") as receiver,
    ):
        await receiver.send("receiver", "note", 1)
        # After a batch of several, a call waits for those that come in the same turn of the loop.
        await asyncio.gather(bus.define("one"), bus.define("two"))
        # A neighbour in the batch, answered just before the claim: its callback runs before the receiver does.
        receiving = asyncio.create_task(receiver.receive())
        neighbour = asyncio.ensure_future(bus._engine.write(*_nothing(receiver)))
        neighbour.add_done_callback(lambda _: receiving.cancel())
        await asyncio.wait([receiving], timeout=30)
        assert receiving.cancelled()
        assert value(tmp_path, "SELECT lease FROM messages") == 1, "nothing was claimed; this test proves nothing"

        message = await receiver.receive(timeout=30)
        assert message is not None, "no agent has it, and none can get it"
        assert message.attempts == 1
        await message.ack()


def _nothing(agent: Agent) -> tuple[Operation[AckRequest, bool], AckRequest]:
    """An acknowledgement of nothing: it is answered after everything that was queued before it."""
    return ack, AckRequest(agent._actor, ())
