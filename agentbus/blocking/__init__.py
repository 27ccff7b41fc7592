"""The bus without an event loop, for the command line: the same names, arguments and errors.

Whatever the asynchronous API has is not written a second time: its coroutines only ever wait for the engine, and here
the engine answers at once. ``do`` runs such a coroutine, ``each`` such a generator:

    >>> with open_bus() as bus:                                                       # doctest: +SKIP
    ...     page = bus.do(bus.agents.list(status="running"))
    ...     me = bus.agent("planner-1#3")
    ...     me.send("executor-1", "task_assignment", {"phase": "design"})
    ...     bus.do(me.state.set("scope", {"files": 12}))

Nothing here imports asyncio, anyio, aiosqlite or tenacity, unless the bus is on a server; parts that not every command
needs are imported when asked for.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from agentbus.blocking.driving import Immediate, each, run
from agentbus.clock import Clock, Now, SystemClock
from agentbus.engine.blocking import BlockingEngine
from agentbus.engine.dead_processes import notice_deaths
from agentbus.engine.places import needing_driver, server_url
from agentbus.errors import AgentBusError, UnknownAgent
from agentbus.limits import MAX_PAYLOAD, MAX_SNAPSHOT, check_choice, check_range, check_scope, check_seconds
from agentbus.operations import Op, Operation
from agentbus.operations.lives import last_boot, life_of

if TYPE_CHECKING:
    from agentbus.addresses import Address
    from agentbus.blocking.agent import BlockingAgent
    from agentbus.blocking.waiting import Listening
    from agentbus.bus import Bus
    from agentbus.checking import Checker
    from agentbus.checkpoints import Checkpoints
    from agentbus.engine.interface import Engine
    from agentbus.mailroom import Mailroom
    from agentbus.operations.sessions import Begun
    from agentbus.records import EventRecord, Stats, TypeRecord
    from agentbus.registry import Registry
    from agentbus.services.recovery import Recovery
    from agentbus.sessions import Sessions
    from agentbus.state import State
    from agentbus.tasks.tasks import Tasks
    from agentbus.vocabulary import Vocabulary

R = TypeVar("R")
T = TypeVar("T")

LEASE = 600.0
"""Seconds that a message which a visiting agent received is its own, from its last call on: models think long."""


class BlockingBus:
    """An open bus, used without an event loop. Made by ``open_bus``."""

    def __init__(
        self,
        store: BlockingEngine,
        *,
        max_payload: int = MAX_PAYLOAD,
        max_snapshot: int = MAX_SNAPSHOT,
        lease: float = LEASE,
    ) -> None:
        self.store = store
        self.max_payload = check_range(max_payload, "max_payload", 1, 512 * 1024 * 1024)
        self.max_snapshot = check_range(max_snapshot, "max_snapshot", 1, 512 * 1024 * 1024)
        self.lease = check_seconds(lease, "lease")
        self.engine = cast("Engine", Immediate(store))
        if store.read_only:
            from agentbus.operations.unfinished import refuse_unfinished

            store.read(lambda _, now: refuse_unfinished(now), None)
        elif store.read(last_boot, None) != store.clock.now().boot:
            from agentbus.operations.processes import notice_boot

            store.write(notice_boot, None)
        self.unmarked: AgentBusError | None = None
        """Why processes that were found dead could not be marked so; what they held stays theirs until another can."""
        try:
            self.notice_deaths()
        except AgentBusError as error:
            self.unmarked = error

    def __enter__(self) -> BlockingBus:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of everything."""
        self.store.close()

    @staticmethod
    def do(work: Awaitable[T]) -> T:
        """What a call of the asynchronous API comes to."""
        return run(work)

    @staticmethod
    def each(items: AsyncGenerator[T, None]) -> Iterator[T]:
        """What a generator of the asynchronous API gives, one by one."""
        return each(items)

    def write(self, operation: Operation[R, T], request: R, *, durable: bool | None = None) -> T:
        return self.store.write(operation, request, durable=durable)

    def read(self, question: Callable[[R, Now], Op[T]], request: R) -> T:
        return self.store.read(question, request)

    # Agents

    def agent(self, identity: str) -> BlockingAgent:
        """The agent that calls: ``id#epoch``, or an id, which acts in the life that it is in now."""
        from agentbus.blocking.agent import BlockingAgent, parted

        id, epoch = parted(identity)
        life = self.read(life_of, id)
        if life is None:
            raise UnknownAgent(agent=id)
        return BlockingAgent(self, life, life.epoch if epoch is None else epoch)

    def register(
        self,
        id: str,
        *,
        type: str,
        session: str | None = None,
        pools: Iterable[str | Address] = (),
        topics: Iterable[str | Address] = (),
        takeover: bool = False,
        pid: int | None = None,
        **about: Any,
    ) -> BlockingAgent:
        """Register a visiting agent; the arguments are those of ``Bus.register``.

        With a ``pid`` it lives in that process: when that is gone, the agent has failed.
        """
        from agentbus.blocking.registering import register

        return register(self, id, type, session, pools, topics, takeover, pid, about)

    @cached_property
    def agents(self) -> Registry:
        from agentbus.registry import Registry

        return Registry(self.engine, self.max_payload)

    # Messages

    @cached_property
    def messages(self) -> Mailroom:
        from agentbus.mailroom import Mailroom

        return Mailroom(self.engine)

    @cached_property
    def vocabulary(self) -> Vocabulary:
        from agentbus.vocabulary import Vocabulary

        return Vocabulary(self.max_payload)

    @cached_property
    def checker(self) -> Checker:
        from agentbus.checking import Checker

        return Checker(self.vocabulary)

    def define(
        self,
        what: str,
        *,
        kind: Literal["agent", "message"] = "message",
        description: str = "",
        schema: dict[str, Any] | None = None,
    ) -> None:
        """Add a type to the vocabulary, or change its description or schema."""
        from agentbus.limits import check_text
        from agentbus.operations.vocabulary import define
        from agentbus.vocabulary import definition

        check_choice(kind, "kind", ("agent", "message"))
        self.write(define, definition(what, kind, check_text(description, "description"), schema, self.vocabulary))

    def types(self, kind: Literal["agent", "message"] | None = None) -> list[TypeRecord]:
        """The vocabulary: the built-in types and those that were defined."""
        from agentbus.operations.vocabulary import list_types

        if kind is not None:
            check_choice(kind, "kind", ("agent", "message"))
        return self.read(list_types, kind)

    # What is kept

    def state(self, scope: str) -> State:
        """The entries of any scope. What is written here has no author; ``agent.state_of`` writes as an agent."""
        from agentbus.state import State

        return State(cast("Bus", self), check_scope(scope))

    @cached_property
    def listening(self) -> Listening:
        from agentbus.blocking.waiting import Listening

        return Listening(self.store)

    @cached_property
    def sessions(self) -> Sessions:
        from agentbus.sessions import Sessions

        return Sessions(cast("Bus", self))

    @cached_property
    def tasks(self) -> Tasks:
        from agentbus.tasks.tasks import Tasks

        return Tasks(cast("Bus", self))

    @cached_property
    def checkpoints(self) -> Checkpoints:
        from agentbus.checkpoints import Checkpoints

        return Checkpoints(self.engine, self.max_snapshot)

    def begin(
        self,
        operation: str,
        *,
        milestone: str | None = None,
        id: str | None = None,
        expects: Mapping[str, str] | None = None,
        metadata: dict[str, Any] | None = None,
        member: BlockingAgent | None = None,
    ) -> Begun:
        """Begin a session, or go on with one; the arguments are those of ``Bus.session``. No process owns it: it goes
        on when this one ends, and is interrupted when its agents failed. ``member`` is in it from then on."""
        from agentbus.beginning import begin_request
        from agentbus.operations.sessions import begin_session

        request = begin_request(operation, None, milestone, id, expects, metadata, self.max_payload)
        self.notice_deaths()
        if member is None:
            return self.write(begin_session, request)
        from agentbus.operations import Part, UnitRequest, unit
        from agentbus.operations.joining import JoinRequest, join_session

        joining = Part(join_session, JoinRequest(member.actor, request.session))
        begun: Begun = member.call(unit, UnitRequest((Part(begin_session, request), joining)))[0]
        member.session = begun.session
        return begun

    def notice_deaths(self) -> bool:
        """Mark the processes of this host dead that are, as every opening of a bus does; whether there were any. Their
        agents fail, and what these held is released."""
        return notice_deaths(self.store)

    @cached_property
    def recovery(self) -> Recovery:
        from agentbus.services.recovery import Recovery

        return Recovery(self.engine, self.max_payload, self.max_snapshot)

    def events(
        self,
        *,
        after: int | Literal["now"] = 0,
        follow: bool = False,
        kind: str | None = None,
        subject: str | None = None,
        limit: int | None = None,
    ) -> Iterator[EventRecord]:
        """The audit trail; the arguments are those of ``Bus.events``."""
        from agentbus.events import events

        listening = cast("Any", self.listening)
        return each(events(self.engine, listening, after, follow, kind, subject, limit))

    def stats(self, *, deepest: int = 20) -> Stats:
        """The bus in numbers: counts by status, the deepest queues, sizes."""
        from agentbus.operations.reading import count
        from agentbus.records import Stats

        counts = self.read(count, check_range(deepest, "deepest", 1, 1000))
        return Stats(counts.messages, counts.agents, counts.queues, counts.oldest_waiting, *self.store.sizes())


def open_bus(
    url: str | os.PathLike[str] | None = None,
    *,
    create: bool = False,
    durability: Literal["disk", "process"] = "disk",
    clock: Clock | None = None,
    lock_timeout: float = 30.0,
    **options: Any,
) -> BlockingBus:
    """The bus at a place, as ``agentbus.connect`` finds it; where there is none that is an error, unless ``create``.

    A bus that this user can read and not write is opened to be looked at: ``bus.store.read_only``.
    """
    store = open_store(
        url, create=create, durability=durability, clock=clock, lock_timeout=lock_timeout, look=not create
    )
    try:
        return BlockingBus(store, **options)
    except BaseException:
        store.close()
        raise


def open_store(
    url: str | os.PathLike[str] | None,
    *,
    create: bool = False,
    durability: Literal["disk", "process"] = "disk",
    clock: Clock | None = None,
    lock_timeout: float = 30.0,
    look: bool = False,
) -> BlockingEngine:
    """The store of the bus at a place, with its tables up to date, whatever is in them. Each engine is imported only
    where it is wanted: that of a server has an event loop inside. With ``look``, one that can only be read is taken."""
    check_choice(durability, "durability", ("disk", "process"))
    check_seconds(lock_timeout, "lock_timeout", zero=True)
    server = server_url(url)
    if server is not None:
        with needing_driver():
            from agentbus.engine.postgres.address import parse
            from agentbus.engine.postgres.blocking import BlockingPostgres
        return BlockingPostgres(
            parse(server), create=create, durability=durability, clock=clock, lock_timeout=lock_timeout
        )
    from agentbus.engine.sqlite import home
    from agentbus.engine.sqlite.blocking import BlockingSQLite

    place = home.find_bus(url, create=create)
    if look and (reason := home.only_readable(place)) is not None:
        from agentbus.engine.sqlite.read_only import ReadOnlySQLite

        return ReadOnlySQLite(place, reason, clock=clock or SystemClock(), lock_timeout=lock_timeout)
    return BlockingSQLite(place, durability=durability, clock=clock or SystemClock(), lock_timeout=lock_timeout)


__all__ = ["LEASE", "BlockingBus", "open_bus", "open_store"]
