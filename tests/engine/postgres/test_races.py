"""Rules that SQLite keeps because only one writes at a time, and that must hold where several do."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import anyio
import pytest

import agentbus
from agentbus import Agent, Bus, Receipt, pool
from agentbus.core.clock import Now
from agentbus.core.codec import digest
from agentbus.engine.postgres.connection import Connection, connect
from agentbus.engine.postgres.server import parse
from agentbus.engine.postgres.statements import ask
from agentbus.errors import AgentBusError, AgentExists, AgentFenced, MessageIdConflict, SessionExists, VersionConflict
from agentbus.operations.documents import SaveRequest, save_document
from agentbus.operations.protocol import Op, Query, operation
from agentbus.sync.bus import open_bus
from tests.support.examples import examples
from tests.support.guarded import run
from tests.support.postgres import Schemas, at_schema

COUNT, TURNS = (60, 20) if examples.full else (32, 8)


async def workers(buses: list[Bus], **options: Any) -> list[Agent]:
    return [await bus.register(f"w-{number}", type="worker", **options) for number, bus in enumerate(buses)]


async def outcomes(*calls: Any) -> list[Any]:
    return await asyncio.gather(*calls, return_exceptions=True)


async def test_no_message_of_a_pool_is_given_to_two(buses: list[Bus]) -> None:
    agents = await workers(buses, pools=["p"])
    await agents[0].send_many([(pool("p"), "note", number) for number in range(COUNT)])
    taken: list[int] = []

    async def take(agent: Agent) -> None:
        while (message := await agent.receive(timeout=0.2)) is not None:
            taken.append(message.payload)
            await message.ack()

    async with anyio.create_task_group() as tasks:
        for agent in agents:
            for _ in range(3):
                tasks.start_soon(take, agent)
    assert sorted(taken) == list(range(COUNT))
    assert (await buses[0].stats()).messages == {"acked": COUNT}


async def test_everybody_who_waits_at_a_pool_gets_some_of_what_comes_at_once(url: str) -> None:
    """One that found everything in other hands comes again by itself: the next heartbeat is an hour away."""
    async with AsyncExitStack() as stack:
        buses = [await stack.enter_async_context(agentbus.connect(url, beat_every=3600)) for _ in range(4)]
        agents = await workers(buses, pools=["p"])
        for turn in range(5):
            got: list[Any] = []

            async def take(agent: Agent, got: list[Any] = got) -> None:
                got.append(await agent.receive(timeout=60))

            async with anyio.create_task_group() as tasks:
                for agent in agents:
                    tasks.start_soon(take, agent)
                await anyio.sleep(0.01)
                await agents[0].send_many([(pool("p"), "note", turn)] * len(agents))
            assert all(message is not None for message in got)
            assert len({message.id for message in got}) == len(agents)


@asynccontextmanager
async def looked_at(url: str, most: int) -> AsyncIterator[Connection]:
    """Another transaction has as many messages in hand as it wants to take, and has not taken them yet."""
    connection = await connect(parse(url))
    transaction = connection.transaction()
    await transaction.start()
    try:
        boxes = [row[0] for row in await connection.fetch("SELECT id FROM mailboxes WHERE kind = 'pool'")]
        await ask(connection, Query("message_ready", (boxes, most + 1)))
        yield connection
    finally:
        if not connection.is_closed():
            await connection.close()


def visit(url: str) -> list[Any]:
    """Receive as a command does that does not wait."""
    with open_bus(url) as bus:
        visitor = bus.register("v", type="worker", pools=["p"])
        return [message.payload for message in visitor.receive_many(1)]


async def test_what_another_wants_is_its_own_but_no_more_than_that(buses: list[Bus], url: str) -> None:
    agents = await workers(buses[:1], pools=["p"])
    await agents[0].send_many([(pool("p"), "note", number) for number in range(3)])
    async with looked_at(url, 2):
        message = await agents[0].receive(timeout=0)
        assert message is not None
        assert message.payload == 2


async def test_one_that_does_not_wait_gets_what_another_only_looked_at(buses: list[Bus], url: str) -> None:
    """Also from the command line: that there is nothing is said only if it is so."""
    agents = await workers(buses[:1], pools=["p"])
    await agents[0].send_many([(pool("p"), "note", number) for number in range(2)])
    for number in range(2):
        async with looked_at(url, 2) as connection:
            asyncio.get_running_loop().call_later(0.05, connection.terminate)
            if number:
                assert await asyncio.to_thread(visit, url) == [1]
            else:
                message = await agents[0].receive(timeout=0)
                assert message is not None
                assert message.payload == 0


async def test_the_numbers_of_what_is_sent_together_follow_each_other_and_are_given_once(buses: list[Bus]) -> None:
    agents = await workers(buses)
    sent = await asyncio.gather(
        *(agent.send_many([("w-0", "note", n) for n in range(7)]) for agent in agents for _ in range(TURNS))
    )
    for receipts in sent:
        first = receipts[0].id
        assert first is not None
        assert [receipt.id for receipt in receipts] == list(range(first, first + 7))
    assert len({receipt.id for receipts in sent for receipt in receipts}) == len(agents) * TURNS * 7


async def test_of_many_sends_under_one_id_one_is_written(buses: list[Bus]) -> None:
    agents = await workers(buses)
    for turn in range(TURNS):
        sent = [agent.send("w-0", "note", turn, message_id=f"id-{turn}") for agent in agents for _ in range(2)]
        receipts: list[Receipt] = await asyncio.gather(*sent)
        assert len({receipt.id for receipt in receipts}) == 1
        assert Counter(receipt.duplicate for receipt in receipts)[False] == 1
    assert (await buses[0].stats()).messages == {"queued": TURNS}


async def test_of_many_messages_under_one_id_one_is_written_and_the_others_are_refused(buses: list[Bus]) -> None:
    """Also to other mailboxes, where no unique index would notice."""
    agents = await workers(buses)
    for turn in range(TURNS):
        sent = [agent.send(agent.id, "note", turn, message_id=f"id-{turn}") for agent in agents]
        found = await outcomes(*sent)
        assert Counter(type(one) for one in found) == {Receipt: 1, MessageIdConflict: len(agents) - 1}
    assert (await buses[0].stats()).messages == {"queued": TURNS}


async def test_increments_of_many_add_up_and_versions_never_repeat(buses: list[Bus]) -> None:
    numbers = await asyncio.gather(
        *(bus.state("s").increment(f"k-{turn % 2}") for turn in range(50) for bus in buses)
    )  # fmt: skip
    half = 25 * len(buses)
    assert sorted(numbers) == sorted([*range(1, half + 1), *range(1, half + 1)])
    entries = (await buses[0].state("s").list()).items
    assert [(entry.value, entry.version) for entry in entries] == [(half, half), (half, half)]


async def test_of_many_compare_and_sets_one_wins(buses: list[Bus]) -> None:
    for turn in range(TURNS):
        found = await outcomes(*(bus.state("s").set("k", turn, if_version=turn) for bus in buses))
        assert Counter(isinstance(one, VersionConflict) for one in found) == {True: len(buses) - 1, False: 1}


async def test_a_watcher_misses_no_change(buses: list[Bus]) -> None:
    """A change that is committed later never has a lower number."""
    seen: dict[str, int] = {}
    last = 0

    async def watch() -> None:
        nonlocal last
        async for entry in buses[0].state("s").watch():
            assert entry.change > last
            last = entry.change
            seen[entry.key] = entry.value
            if len(seen) == COUNT:
                return

    async def write(bus: Bus, first: int) -> None:
        for number in range(first, COUNT, len(buses)):
            await bus.state("s").set(f"k-{number}", number)

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch)
            for first, bus in enumerate(buses):
                tasks.start_soon(write, bus, first)
    assert seen == {f"k-{number}": number for number in range(COUNT)}


async def test_a_follower_of_events_misses_none(buses: list[Bus]) -> None:
    found: list[str] = []

    async def follow() -> None:
        last = 0
        async for event in buses[0].events(follow=True, kind="mailbox_declared"):
            assert event.id > last
            last = event.id
            found.append(event.subject)
            if len(found) == COUNT:
                return

    async def write(bus: Bus, first: int) -> None:
        for number in range(first, COUNT, len(buses)):
            await bus.declare(pool(f"p-{number}"))

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(follow)
            for first, bus in enumerate(buses):
                tasks.start_soon(write, bus, first)
    assert sorted(found) == sorted(f"pool:p-{number}" for number in range(COUNT))


async def test_dead_letters_of_many_are_followed_in_their_order(buses: list[Bus]) -> None:
    """Events that are written beside each other, not alone."""
    agents = await workers(buses)
    found: list[str] = []

    async def follow() -> None:
        async for event in buses[0].events(follow=True, kind="message_dead"):
            found.append(event.subject)
            if len(found) == TURNS * len(agents):
                return

    async def write(agent: Agent) -> None:
        for number in range(TURNS):
            await agent.send(agent.id, "note", number, message_id=f"{agent.id}.{number}")
            message = await agent.receive(timeout=5)
            assert message is not None
            await message.reject("no")

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(follow)
            for agent in agents:
                tasks.start_soon(write, agent)
    assert sorted(found) == sorted(f"{agent.id}.{number}" for agent in agents for number in range(TURNS))


async def test_a_document_saved_by_many_has_every_version_once(buses: list[Bus]) -> None:
    async with buses[0].session("planning", id="s") as session:
        request = SaveRequest("s", "plan", "1", digest(b"1"), None, 100)
        saved = await asyncio.gather(*(bus._engine.write(save_document, request) for bus in buses for _ in range(10)))
        assert sorted(record.version for record in saved) == list(range(1, 10 * len(buses) + 1))
        assert (await session.document("plan").latest()) == 1


async def test_of_many_who_register_one_id_one_does(buses: list[Bus]) -> None:
    for turn in range(TURNS):
        found = await outcomes(*(bus.register(f"a-{turn}", type="worker") for bus in buses))
        assert Counter(type(one) for one in found) == {Agent: 1, AgentExists: len(buses) - 1}


async def test_of_many_who_begin_one_session_one_does(buses: list[Bus]) -> None:
    async def begin(bus: Bus, id: str, resume: anyio.Event) -> None:
        async with bus.session("planning", id=id):
            await resume.wait()

    for turn in range(5):
        resume = anyio.Event()
        tasks = [asyncio.ensure_future(begin(bus, f"s-{turn}", resume)) for bus in buses]
        await asyncio.wait(tasks, timeout=10, return_when=asyncio.FIRST_EXCEPTION)
        while sum(task.done() for task in tasks) < len(buses) - 1:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        resume.set()
        found = await outcomes(*tasks)
        assert Counter(type(one) for one in found) == {type(None): 1, SessionExists: len(buses) - 1}


async def test_an_old_life_writes_nothing_after_it_was_taken_over(buses: list[Bus]) -> None:
    """Each number is written by the life that it belongs to, or not at all."""
    sent: list[int] = []

    async def write(agent: Agent) -> None:
        with suppress(AgentFenced):
            for number in range(1000):
                await agent.send("sink", "note", [agent.epoch, number])
                sent.append(agent.epoch)

    await buses[0].register("sink", type="worker")
    async with anyio.create_task_group() as tasks:
        for bus in buses:
            agent = await bus.register("a", type="worker", takeover=True)
            tasks.start_soon(write, agent)
            await anyio.sleep(0.05)
        await agent.stop()
    rows = [record.payload[0] for record in (await buses[0].messages.list(to="sink", limit=1000)).items]
    assert Counter(rows) == Counter(sent)
    # Newest first: no message of a life is newer than one of the next life.
    assert rows == sorted(rows, reverse=True)


async def test_a_mixed_crowd_gets_by_without_an_error(buses: list[Bus]) -> None:
    """Everything at once: whatever deadlocks or conflicts is tried again by itself."""
    agents = await workers(buses, pools=["p"], topics=["t"])

    async def work(agent: Agent, bus: Bus) -> None:
        for number in range(3):
            await agent.send(pool("p"), "note", number)
            await agent.publish("t", "note", number)
            async with agent.unit() as unit:
                unit.state.set("k", number)
                unit.send("w-0", "note", number)
            await bus.state("shared").increment("count")
            await agent.progress(number)
            while (message := await agent.receive(timeout=0)) is not None:
                async with message as unit:
                    unit.state.set("last", message.payload)
            await agent.checkpoint("c", {"n": number}, keep=2)

    with anyio.fail_after(60):
        found = await outcomes(*(work(agent, bus) for agent, bus in zip(agents, buses, strict=True)))
    assert [one for one in found if isinstance(one, AgentBusError | BaseException)] == []
    assert await buses[0].state("shared").get("count") == 3 * len(buses)


async def test_a_failure_while_numbering_messages_blocks_no_other_sender(url: str) -> None:
    """The lock for it is one of the session, which undoing the transaction does not give back."""
    async with agentbus.connect(url, lock_timeout=1) as bus, agentbus.connect(url, lock_timeout=1) as other:
        first, second = await bus.register("a", type="worker"), await other.register("b", type="worker")
        await first.send("b", "note", 0)
        connection = await connect(parse(url))
        try:
            await connection.execute("ALTER SEQUENCE message_ids MAXVALUE 100")
            with pytest.raises(AgentBusError):
                await first.send_many([("b", "note", number) for number in range(200)])
            await connection.execute("ALTER SEQUENCE message_ids NO MAXVALUE")
        finally:
            await connection.close()
        await second.send_many([("a", "note", number) for number in range(3)])


_REFUSE = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'not this'; END $$;
CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON messages DEFERRABLE INITIALLY DEFERRED
FOR EACH ROW EXECUTE FUNCTION refuse();
"""


@pytest.mark.parametrize("heard", [False, True], ids=["no receiver", "receiver"])
async def test_what_the_server_refuses_only_at_the_commit_is_not_acknowledged(schemas: Schemas, heard: bool) -> None:
    """Such as a rule of an administrator that is checked at the end: all is undone then, and no transaction is open."""
    place = at_schema(schemas.url, f"refusing_{heard}")
    async with agentbus.connect(place) as bus, agentbus.connect(place) as other:
        agent, sink = await bus.register("a", type="worker"), await other.register("b", type="worker")
        connection = await connect(parse(place))
        try:
            await connection.execute(_REFUSE)
        finally:
            await connection.close()
        waiting = asyncio.create_task(sink.receive(timeout=60)) if heard else None
        for count in (1, 3):
            with pytest.raises(AgentBusError):
                await agent.send_many([("b", "note", number) for number in range(count)])
        tried = await outcomes(*(agent.send("b", "note", number) for number in range(3)))
        assert all(isinstance(outcome, AgentBusError) for outcome in tried)
        assert (await bus.stats()).messages == {}
        if waiting is not None:
            # The first message that the receiver gets is the first one that was committed.
            await asyncio.to_thread(run, parse(place).dsn, f"DROP TRIGGER refuse ON {parse(place).identifier}.messages")
            await agent.send("b", "note", "committed")
            message = await waiting
            assert message is not None
            assert message.payload == "committed"


async def test_a_transaction_that_loses_a_deadlock_is_done_again_as_a_whole(buses: list[Bus], url: str) -> None:
    begun: list[Any] = []

    @operation(durable=True, concurrent=True)
    def lock_one_after_the_other(requests: Sequence[list[int]], now: Now) -> Op[list[Any]]:
        begun.append(now)
        for id in requests[0]:
            yield Query("message_held", ([id],))
        yield Query("meta_set", ("begun", str(len(begun))))
        return [None]

    agent = await buses[0].register("a", type="worker")
    first, second = [receipt.id or 0 for receipt in await agent.send_many([("a", "note", 1), ("a", "note", 2)])]
    other, observer = await connect(parse(url)), await connect(parse(url))
    try:
        # This one looks for deadlocks later than the bus, which therefore is the one that is undone.
        await other.execute("BEGIN; SET LOCAL deadlock_timeout = '30s'")
        await ask(other, Query("message_held", ([second],)))
        writing = asyncio.ensure_future(buses[0]._engine.write(lock_one_after_the_other, [first, second]))
        with anyio.fail_after(60):
            while not await observer.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            await ask(other, Query("message_held", ([first],)))
            await other.execute("ROLLBACK")
            await writing
        # It may lose more than once: the rows that it frees are not reserved for the other transaction.
        assert len(begun) >= 2
        assert await observer.fetchval("SELECT value FROM meta WHERE key = 'begun'") == str(len(begun))
    finally:
        other.terminate()
        observer.terminate()
