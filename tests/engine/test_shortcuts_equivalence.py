"""The shortcut of a claim or an acknowledgement does what its operation does: two buses get the same calls, and one of
them takes the shortcuts."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, closing
from pathlib import Path
from typing import Any, Protocol

import pytest

import agentbus
from agentbus.core.addresses import Address
from agentbus.core.clock import Now
from agentbus.core.codec import encode
from agentbus.engine.postgres.engine import PostgresEngine
from agentbus.engine.postgres.transaction import TransactionRunner
from agentbus.engine.sqlite import paths
from agentbus.engine.sqlite.blocking import BlockingSQLite
from agentbus.errors import AgentBusError
from agentbus.operations.agent_identity import Registration
from agentbus.operations.agents import EndRequest, RegisterRequest, finish, register
from agentbus.operations.holds import ReleaseHoldsRequest, release_holds
from agentbus.operations.processes import EnterRequest, ListenRequest, enter, listen
from agentbus.operations.protocol import LIVE, Actor, Call, Op, Operation, Outcome
from agentbus.operations.quotas import ChangeQuotasRequest, change_quotas
from agentbus.operations.receive import (
    AckRequest,
    Claim,
    ClaimRequest,
    ExtendRequest,
    RejectRequest,
    ReleaseRequest,
    ack,
    claim,
    extend,
    reject,
    release,
)
from agentbus.operations.rows import Draft, Lease, Profile
from agentbus.operations.send import SendRequest, send
from tests.support.clock import FakeClock
from tests.support.examples import examples
from tests.support.postgres import Schemas, at_schema

STEPS = 300
TABLES = ("messages", "holds", "threads", "events", "agents", "listeners", "counters")
NAMES = ("a", "b", "c")


class Store(Protocol):
    async def run(self, call: Call) -> list[str]:
        """Commit a call and return the channels that it wakes."""

    async def rows(self, table: str) -> list[Any]: ...


class SQLiteBus:
    def __init__(self, engine: BlockingSQLite) -> None:
        self._engine = engine

    async def run(self, call: Call) -> list[str]:
        assert self._engine._runner is not None
        return self._engine._runner.run([call])[0]

    async def rows(self, table: str) -> list[Any]:
        return self._engine._connection.execute(f"SELECT * FROM {table} ORDER BY 1, 2").fetchall()


class PostgresBus:
    def __init__(self, runner: TransactionRunner) -> None:
        self._runner = runner

    async def run(self, call: Call) -> list[str]:
        return list((await self._runner.run([call])).channels)

    async def rows(self, table: str) -> list[Any]:
        connection = await self._runner._connected()
        return [tuple(row) for row in await connection.fetch(f"SELECT * FROM {table} ORDER BY 1, 2")]


@pytest.fixture(params=["sqlite", "postgres"])
def urls(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Two empty buses of one engine."""
    if request.param == "sqlite":
        yield [str(tmp_path / name) for name in ("one", "other")]
        return
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    schemas: Schemas = request.getfixturevalue("schemas")
    names = [schemas.take() for _ in range(2)]
    yield [at_schema(schemas.url, name) for name in names]
    for name in names:
        schemas.give_back(name)


@pytest.fixture
async def stores(urls: list[str], clock: FakeClock) -> AsyncIterator[list[Store]]:
    async with AsyncExitStack() as stack:
        stores: list[Store] = []
        for url in urls:
            if not is_postgres(url):
                engine = BlockingSQLite(paths.find(Path(url)), durability="process", clock=clock, lock_timeout=5)
                stores.append(SQLiteBus(stack.enter_context(closing(engine))))
                continue
            bus = await stack.enter_async_context(agentbus.connect(url, clock=clock, beat_every=3600))
            assert isinstance(bus._engine, PostgresEngine)
            assert bus._engine._writer is not None
            runner = bus._engine._writer._runner
            # As if a process listened to the changes of messages: its own listeners decide.
            runner.is_heard = lambda: True
            stores.append(PostgresBus(runner))
        yield stores


def is_postgres(url: str) -> bool:
    return url.startswith("postgres")


class Pair:
    """Gives each call to both buses, and compares what they do."""

    def __init__(self, stores: list[Store], monkeypatch: pytest.MonkeyPatch) -> None:
        self._stores = stores
        self._monkeypatch = monkeypatch
        self.taken: Counter[tuple[str, str]] = Counter()
        """Results of shortcuts, by operation: ``none`` leaves the call to the operation."""
        self.announced: Counter[str] = Counter()
        """Changes that were announced by a call that took a shortcut."""
        for operation in (claim, ack):
            monkeypatch.setattr(operation, "shortcut", self._counted(operation))

    def _counted(self, operation: Operation[Any, Any]) -> Any:
        shortcut = operation.shortcut
        assert shortcut is not None

        def counted(request: Any, now: Now) -> Op[Outcome[Any] | None]:
            outcome = yield from shortcut(request, now)
            found = "none" if outcome is None else "nothing" if getattr(outcome, "rows", True) == [] else "some"
            self.taken[operation.name, found] += 1
            return outcome

        return counted

    async def write(self, operation: Operation[Any, Any], request: Any) -> Any:
        """Return the outcome, which is the same on both."""
        one, other = (Call(operation, request, operation.durable) for _ in self._stores)
        before = self.taken.copy()
        woken = await self._stores[0].run(one)
        with self._monkeypatch.context() as patch:
            patch.setattr(operation, "shortcut", None)
            expected = await self._stores[1].run(other)
        assert comparable(one.outcome) == comparable(other.outcome), request
        assert woken == expected, request
        if self.taken[operation.name, "some"] > before[operation.name, "some"]:
            self.announced.update(channel.partition("#")[2].partition(" ")[0] for channel in woken)
        return one.outcome

    async def compare(self) -> None:
        for table in TABLES:
            one, other = [await store.rows(table) for store in self._stores]
            assert one == other, table


def comparable(outcome: object) -> object:
    return (type(outcome), outcome.facts) if isinstance(outcome, AgentBusError) else outcome


class Calls:
    """Random calls of three agents, which read mailboxes of their own and two pools."""

    def __init__(self, pair: Pair, seed: int) -> None:
        self.random = random.Random(seed)
        self.held: list[tuple[str, Lease]] = []
        self.done: Counter[str] = Counter()
        self._pair = pair
        self._registered: dict[str, Registration] = {}
        self._process = 0
        self._is_watched = False

    async def begin(self) -> None:
        self._process = (await self._pair.write(enter, EnterRequest("host", 1, "1", None))).process
        for name in NAMES:
            await self._register(name)
        await self._pair.write(change_quotas, ChangeQuotasRequest({"thread": 2}))
        await self._watch()

    async def next(self) -> None:
        """Make one call, sends and claims most often."""
        kinds = {
            self._send: 38, self._claim: 34, self._ack: 20, self._release: 3, self._extend: 2, self._reject: 2,
            self._end: 1, self._change_quotas: 2, self._release_holds: 3, self._watch: 5,
        }  # fmt: skip
        (call,) = self.random.choices(list(kinds), list(kinds.values()))
        outcome = await call()
        self.done[f"{call.__name__}: {type(outcome).__name__}"] += 1

    def _actor(self, name: str) -> Actor:
        epoch = self._registered[name].epoch
        return Actor(name, epoch + (self.random.random() < 0.03))

    async def _register(self, name: str) -> None:
        request = RegisterRequest(
            name, "worker", None, Profile(), kind="visiting", pools=("p", "q"), topics=("t",), takeover=True
        )
        self._registered[name] = await self._pair.write(register, request)

    async def _send(self) -> Any:
        pick = self.random.choice
        kind, name = pick([("agent", pick(NAMES)), ("pool", "p"), ("pool", "q"), ("topic", "t")])
        thread = pick([None, None, "x", "y"])
        draft = Draft(
            Address(kind, name),  # type: ignore[arg-type]
            "note",
            encode(self.random.random(), 1_000),
            pick([0, 5, 5, 9]),
            pick([1, 2, 5]),
            delay=pick([0, 0, 0, 0, 0, 100]),
            ttl=pick([None, None, None, 100, 10_000]),
            correlation=thread,
            follows=None if thread is None else 1,
        )
        outcome = await self._pair.write(send, SendRequest(self._actor(pick(NAMES)), (draft,)))
        self.done["_send: held"] += isinstance(outcome, list) and outcome[0].held
        return outcome

    async def _claim(self) -> Any:
        pick = self.random.choice
        name = pick(NAMES)
        registered = self._registered[name]
        own = (registered.mailbox, *registered.subscriptions.values())
        request = ClaimRequest(
            self._actor(name),
            (),
            pick([own, own, own[:1]]),
            pick([tuple(registered.pools.values()), ()]),
            pick([1, 1, 1, 1, 1, 2]),
            pick([50, 3_000, 30_000, 30_000]),
            self.random.random() < 0.7,
            pick([0] * 8 + [6]),
        )
        outcome = await self._pair.write(claim, request)
        self.held += [(name, row.delivered) for row in outcome.rows] if isinstance(outcome, Claim) else []
        return outcome

    def _lease(self) -> tuple[str, Lease]:
        """Return a lease that was held once, mostly with its holder."""
        if not self.held:
            return "a", (1, 1)
        index = self.random.randrange(len(self.held))
        name, (id, lease) = self.held[index] if self.random.random() < 0.2 else self.held.pop(index)
        name = self.random.choice(NAMES) if self.random.random() < 0.1 else name
        return name, (id, lease + (self.random.random() < 0.05))

    async def _ack(self) -> Any:
        name, lease = self._lease()
        return await self._pair.write(ack, AckRequest(self._actor(name), (lease,)))

    async def _release(self) -> Any:
        name, lease = self._lease()
        delay = self.random.choice([0, 20])
        return await self._pair.write(release, ReleaseRequest(self._actor(name), (lease,), delay))

    async def _extend(self) -> Any:
        name, lease = self._lease()
        return await self._pair.write(extend, ExtendRequest(self._actor(name), (lease,), 50))

    async def _reject(self) -> Any:
        name, lease = self._lease()
        return await self._pair.write(reject, RejectRequest(self._actor(name), (lease,), "wrong"))

    async def _end(self) -> Any:
        name = self.random.choice(NAMES)
        outcome = await self._pair.write(finish, EndRequest(self._actor(name), "completed"))
        if self.random.random() < 0.5:
            # Its calls are refused until it is registered again.
            await self._claim()
        await self._register(name)
        return outcome

    async def _change_quotas(self) -> Any:
        name, value = self.random.choice([("depth", 8), ("depth", None), ("thread", 3), ("thread", 0)])
        return await self._pair.write(change_quotas, ChangeQuotasRequest({name: value}))

    async def _release_holds(self) -> Any:
        return await self._pair.write(release_holds, ReleaseHoldsRequest(self.random.choice("xy"), "operator:o"))

    async def _watch(self) -> Any:
        """Begin or end to listen to the changes of messages."""
        self._is_watched = not self._is_watched
        return await self._pair.write(listen, ListenRequest(self._process, LIVE, self._is_watched))


@pytest.mark.parametrize("seed", range(20 if examples.full else 2))
async def test_a_shortcut_does_what_its_operation_does(
    stores: list[Store], clock: FakeClock, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Same outcome, same channels woken, same rows, whether messages are due, expired, held, leased or lost."""
    pair = Pair(stores, monkeypatch)
    calls = Calls(pair, seed)
    await calls.begin()
    for step in range(STEPS):
        clock.stall(calls.random.choice([0, 0, 0.001, 0.005, 0.05]))
        await calls.next()
        if step % 60 == 0:
            await pair.compare()
    await pair.compare()
    assert calls.done["_send: held"]
    assert calls.done["_ack: LeaseLost"]
    for operation, change in (("claim", "leased"), ("ack", "acked")):
        assert pair.taken[operation, "some"] >= 20
        assert pair.announced[change] >= 3
