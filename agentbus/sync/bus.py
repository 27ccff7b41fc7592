"""The bus without an event loop, for the command line and scripts: the same names, arguments and errors.

The asynchronous API is not written a second time. Its coroutines only ever wait for the engine, and here the engine
blocks the calling thread. ``do`` runs such a coroutine, ``each`` such a generator:

    >>> with open_bus() as bus:                                                       # doctest: +SKIP
    ...     page = bus.do(bus.agents.list(status="running"))
    ...     me = bus.agent("planner-1#3")
    ...     me.send("executor-1", "task_assignment", {"phase": "design"})
    ...     bus.do(me.state.set("scope", {"files": 12}))

Nothing here imports asyncio, anyio, aiosqlite or tenacity, unless the bus is on a server; parts that few commands need
are imported when they are used.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack, cast

from msgspec.structs import replace

from agentbus import core
from agentbus.core.clock import Clock, Now, SystemClock
from agentbus.core.validation import (
    DURABILITY,
    LOCK_TIMEOUT,
    MAX_PAYLOAD,
    MAX_SNAPSHOT,
    VISITOR_LEASE,
    Durability,
    check_choice,
    check_range,
    check_scope,
    check_seconds,
)
from agentbus.engine.processes import mark_dead_processes
from agentbus.engine.url import require_driver, server_url
from agentbus.errors import AgentBusError, Misuse, UnknownAgent
from agentbus.operations.agent_identity import current_registration, last_boot
from agentbus.operations.protocol import Op, Operation

if TYPE_CHECKING:
    from agentbus.api.agents import AgentOptions, Agents
    from agentbus.api.bus import Bus
    from agentbus.api.checkpoints import Checkpoints
    from agentbus.api.histories import Histories
    from agentbus.api.holds import Holds
    from agentbus.api.messages import Messages
    from agentbus.api.recovery import Recovery
    from agentbus.api.sending import PayloadChecker
    from agentbus.api.sessions import Sessions
    from agentbus.api.state import State
    from agentbus.api.tasks.client import Tasks
    from agentbus.api.types import Vocabulary
    from agentbus.engine.blocking import BlockingEngine, WaitingProcess
    from agentbus.engine.interface import Engine
    from agentbus.operations.sessions import StartedSession
    from agentbus.records import EventRecord, Stats, TypeRecord
    from agentbus.sync.agent import BlockingAgent
    from agentbus.sync.waiters import BlockingWaiters

R = TypeVar("R")
T = TypeVar("T")


class Interrupted(Exception):
    """Another thread interrupted the wait. Nothing is claimed."""


class Interruption:
    """Ends the wait of a bus from another thread: of a receive, a request, or for a change.

    >>> threading.Timer(5, bus.interruption.interrupt).start()                        # doctest: +SKIP
    >>> agent.receive_many(1, timeout=60)                                             # doctest: +SKIP
    Traceback (most recent call last):
    agentbus.sync.bus.Interrupted
    """

    def __init__(self) -> None:
        self.raised = False
        self._process: WaitingProcess | None = None

    def interrupt(self) -> None:
        """Raise Interrupted in the thread that waits, now or when it would wait next."""
        # In this order: the waiting thread first sets its process, then checks the flag.
        self.raised = True
        process = self._process
        if process is not None:
            process.wake()

    def clear(self) -> None:
        """Allow waiting again."""
        self.raised = False

    def check(self) -> None:
        if self.raised:
            raise Interrupted

    @contextmanager
    def applies_to(self, process: WaitingProcess) -> Iterator[None]:
        """Wake this process for the length of a block."""
        self._process = process
        try:
            self.check()
            yield
        finally:
            self._process = None
        self.check()


class SyncEngine:
    """A blocking engine with the interface of an asynchronous one. ``write`` and ``heartbeat`` may be those of a
    visiting agent."""

    process = 0

    def __init__(
        self,
        store: BlockingEngine,
        write: Callable[..., Any] | None = None,
        heartbeat: Callable[[], object] = lambda: None,
        interruption: Interruption | None = None,
    ) -> None:
        self.clock = store.clock
        self._store = store
        self._write = write or store.write
        self._heartbeat = heartbeat
        self._interruption = interruption

    async def write(
        self,
        operation: Operation[R, T],
        request: R,
        *,
        durable: bool | None = None,
        on_abandoned: Callable[[T], None] | None = None,
    ) -> T:
        result: T = self._write(operation, request, durable=durable)
        return result

    async def read(self, question: Callable[[R, Now], Op[T]], request: R) -> T:
        return self._store.read(question, request)

    read_inline = read

    @cached_property
    def waiters(self) -> BlockingWaiters:
        from agentbus.sync.waiters import BlockingWaiters

        return BlockingWaiters(self._store, self._heartbeat, self._interruption)

    def owns_file(self, device: int, inode: int) -> bool:
        return self._store.owns_file(device, inode)

    def remove_bells(self, bells: Iterable[str | None]) -> None:
        self._store.remove_bells(bells)

    async def sizes(self) -> tuple[int, int]:
        return self._store.sizes()


def run(work: Awaitable[T]) -> T:
    """Run a coroutine that never waits for an event loop, and return its result."""
    steps = work.__await__()
    try:
        next(steps)
    except StopIteration as stop:
        result: T = stop.value
        return result
    raise Misuse(reason="this needs an event loop: use agentbus.connect()")


def each(items: AsyncGenerator[T, None]) -> Iterator[T]:
    """Iterate over an asynchronous generator that never waits for an event loop."""
    try:
        while True:
            try:
                item = run(items.__anext__())
            except StopAsyncIteration:
                return
            yield item
    finally:
        run(items.aclose())


class BlockingBus:
    """An open bus, used without an event loop. Made by ``open_bus``."""

    def __init__(
        self,
        store: BlockingEngine,
        *,
        max_payload: int = MAX_PAYLOAD,
        max_snapshot: int = MAX_SNAPSHOT,
        lease: float = VISITOR_LEASE,
    ) -> None:
        core.trace_if_asked()
        self.store = store
        self._max_payload = check_range(max_payload, "max_payload", 1, 512 * 1024 * 1024)
        self._max_snapshot = check_range(max_snapshot, "max_snapshot", 1, 512 * 1024 * 1024)
        self.lease = check_seconds(lease, "lease")
        self.interruption = Interruption()
        self._engine = cast("Engine", SyncEngine(store, interruption=self.interruption))
        if store.read_only:
            from agentbus.operations.copy_position import require_complete_copy

            store.read(lambda _, now: require_complete_copy(now), None)
        elif store.read(last_boot, None) != store.clock.now().boot:
            from agentbus.operations.processes import detect_reboot

            store.write(detect_reboot, None)
        self.unmarked: AgentBusError | None = None
        """The error that kept dead processes from being marked dead; another process has to do it."""
        try:
            self.mark_dead_processes()
        except AgentBusError as error:
            self.unmarked = error

    def __enter__(self) -> BlockingBus:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the store."""
        self.store.close()

    @staticmethod
    def do(work: Awaitable[T]) -> T:
        """Run a call of the asynchronous API, and return its result."""
        return run(work)

    @staticmethod
    def each(items: AsyncGenerator[T, None]) -> Iterator[T]:
        """Iterate over a generator of the asynchronous API."""
        return each(items)

    def write(self, operation: Operation[R, T], request: R, *, durable: bool | None = None) -> T:
        return self.store.write(operation, request, durable=durable)

    def read(self, question: Callable[[R, Now], Op[T]], request: R) -> T:
        return self.store.read(question, request)

    # Agents

    def agent(self, identity: str) -> BlockingAgent:
        """Return the calling agent: ``id#epoch``, or an id, which acts in its current incarnation."""
        from agentbus.core.addresses import split_identity
        from agentbus.sync.agent import BlockingAgent

        id, epoch = split_identity(identity)
        registration = self.read(current_registration, id)
        if registration is None:
            raise UnknownAgent(agent=id)
        return BlockingAgent(self, registration, registration.epoch if epoch is None else epoch)

    def operator(self, name: str) -> BlockingAgent:
        """Return a person, who sends and receives messages as ``operator:NAME`` without being registered."""
        from agentbus.api.messages import register_operator
        from agentbus.sync.agent import BlockingAgent

        found = run(register_operator(self._engine, name))
        return BlockingAgent(self, found, found.epoch, has_called=True)

    def register(self, id: str, *, type: str, pid: int | None = None, **options: Unpack[AgentOptions]) -> BlockingAgent:
        """Register a visiting agent; the options are those of ``Bus.register``.

        With a ``pid`` it belongs to that process: when that ends, the agent has failed.
        """
        from agentbus.api.agents import register_agent, registration
        from agentbus.sync.agent import BlockingAgent

        request = registration(self._max_payload, id, type, None, options, kind="visiting")
        if pid is None:
            found = run(register_agent(self._engine, request))
        else:
            with self._watched_process(pid) as process:
                found = run(register_agent(self._engine, replace(request, process=process)))
        return BlockingAgent(self, found, found.epoch, has_called=True)

    @contextmanager
    def _watched_process(self, pid: int) -> Iterator[int]:
        """Enter a process that others watch; it leaves again if the block raises. The agent refers to it, so it is
        entered first."""
        from agentbus.core import process_info
        from agentbus.errors import InvalidInput
        from agentbus.operations.processes import EnterRequest, LeaveRequest, enter, leave

        check_range(pid, "pid", 1, 2**31 - 1)
        if process_info.is_gone(pid, "", None):
            raise InvalidInput(reason=f"there is no process {pid}")
        host, started = process_info.host_key(), process_info.start_time(pid)
        process = self.write(enter, EnterRequest(host, pid, started, None, watched=True)).process
        try:
            yield process
        except BaseException:
            self.write(leave, LeaveRequest((process,), False, "no agent was registered in it"), durable=False)
            raise

    @cached_property
    def agents(self) -> Agents:
        from agentbus.api.agents import Agents

        return Agents(self._engine, self._max_payload)

    # Messages

    @cached_property
    def messages(self) -> Messages:
        from agentbus.api.messages import Messages

        return Messages(self)

    @cached_property
    def histories(self) -> Histories:
        from agentbus.api.histories import Histories

        return Histories(self._engine, self._max_snapshot)

    @cached_property
    def holds(self) -> Holds:
        from agentbus.api.holds import Holds

        return Holds(self._engine)

    @cached_property
    def _vocabulary(self) -> Vocabulary:
        from agentbus.api.types import Vocabulary

        return Vocabulary(self._max_payload)

    @cached_property
    def _checker(self) -> PayloadChecker:
        from agentbus.api.sending import PayloadChecker

        return PayloadChecker(self._vocabulary)

    def define(
        self,
        what: str,
        *,
        kind: Literal["agent", "message"] = "message",
        description: str = "",
        schema: dict[str, Any] | None = None,
    ) -> None:
        """Define a type, or change its description or schema."""
        from agentbus.api.types import definition
        from agentbus.core.validation import check_text
        from agentbus.operations.types import define

        check_choice(kind, "kind", ("agent", "message"))
        self.write(define, definition(what, kind, check_text(description, "description"), schema, self._vocabulary))

    def types(self, kind: Literal["agent", "message"] | None = None) -> list[TypeRecord]:
        """Return the built-in types and those that were defined."""
        from agentbus.operations.types import list_types

        if kind is not None:
            check_choice(kind, "kind", ("agent", "message"))
        return self.read(list_types, kind)

    # State, sessions, tasks and checkpoints

    def state(self, scope: str) -> State:
        """Return the entries of any scope. Entries written here have no author; ``agent.state_of`` writes as an
        agent."""
        from agentbus.api.state import State

        return State(cast("Bus", self), check_scope(scope))

    @property
    def _listening(self) -> BlockingWaiters:
        return cast("BlockingWaiters", self._engine.waiters)

    @cached_property
    def sessions(self) -> Sessions:
        from agentbus.api.sessions import Sessions

        return Sessions(cast("Bus", self))

    @cached_property
    def tasks(self) -> Tasks:
        from agentbus.api.tasks.client import Tasks

        return Tasks(cast("Bus", self))

    @cached_property
    def checkpoints(self) -> Checkpoints:
        from agentbus.api.checkpoints import Checkpoints

        return Checkpoints(self._engine, self._max_snapshot)

    def start_session(
        self,
        operation: str,
        *,
        milestone: str | None = None,
        id: str | None = None,
        expects: Mapping[str, str] | None = None,
        metadata: dict[str, Any] | None = None,
        member: BlockingAgent | None = None,
    ) -> StartedSession:
        """Start a session, or resume one; the arguments are those of ``Bus.session``. No process owns it: it outlives
        this one, and is interrupted when its agents have failed. ``member`` takes part in it from then on."""
        from agentbus.api.session import session_request
        from agentbus.operations.sessions import start_session

        request = session_request(operation, None, milestone, id, expects, metadata, self._max_payload)
        self.mark_dead_processes()
        if member is None:
            return self.write(start_session, request)
        from agentbus.operations.protocol import Part, UnitRequest, unit
        from agentbus.operations.sessions import JoinRequest, join_session

        joining = Part(join_session, JoinRequest(member._actor, request.session))
        started: StartedSession = member.call(unit, UnitRequest((Part(start_session, request), joining)))[0]
        member.session = started.session
        return started

    def mark_dead_processes(self) -> bool:
        """Mark processes of this host dead that are gone, as every opening of a bus does; return True if there were
        any. Their agents fail, and their leases are released."""
        return mark_dead_processes(self.store)

    @cached_property
    def recovery(self) -> Recovery:
        from agentbus.api.recovery import Recovery

        return Recovery(self._engine, self._max_payload, self._max_snapshot)

    def events(
        self,
        *,
        after: int | Literal["now"] = 0,
        follow: bool = False,
        kind: str | None = None,
        subject: str | None = None,
        limit: int | None = None,
    ) -> Iterator[EventRecord]:
        """Iterate over the audit log; the arguments are those of ``Bus.events``."""
        from agentbus.api.events import events

        listening = cast("Any", self._listening)
        return each(events(self._engine, listening, after, follow, kind, subject, limit))

    def stats(self, *, deepest: int = 20) -> Stats:
        """Return counts by status, the deepest queues, and sizes."""
        from agentbus.operations.lookups import count
        from agentbus.records import Stats

        counts = self.read(count, check_range(deepest, "deepest", 1, 1000))
        return Stats(counts.messages, counts.agents, counts.queues, counts.oldest_waiting, *self.store.sizes())


def open_bus(
    url: str | os.PathLike[str] | None = None,
    *,
    create: bool = False,
    durability: Durability = DURABILITY,
    clock: Clock | None = None,
    lock_timeout: float = LOCK_TIMEOUT,
    max_payload: int = MAX_PAYLOAD,
    max_snapshot: int = MAX_SNAPSHOT,
    lease: float = VISITOR_LEASE,
) -> BlockingBus:
    """Open a bus, which ``agentbus.connect`` would find at the same URL; NoBus if there is none, unless ``create``.

    A bus that this user can read and not write is opened read-only: ``bus.store.read_only``.
    """
    store = open_store(
        url, create=create, durability=durability, clock=clock, lock_timeout=lock_timeout, look=not create
    )
    try:
        return BlockingBus(store, max_payload=max_payload, max_snapshot=max_snapshot, lease=lease)
    except BaseException:
        store.close()
        raise


def open_store(
    url: str | os.PathLike[str] | None,
    *,
    create: bool = False,
    durability: Durability = DURABILITY,
    clock: Clock | None = None,
    lock_timeout: float = LOCK_TIMEOUT,
    look: bool = False,
) -> BlockingEngine:
    """Open the store of a bus, with its tables up to date. Each engine is imported here: that of a server has an event
    loop. With ``look``, one that can only be read is accepted."""
    check_choice(durability, "durability", ("disk", "process"))
    check_seconds(lock_timeout, "lock_timeout", zero=True)
    server = server_url(url)
    if server is not None:
        with require_driver():
            from agentbus.engine.postgres.blocking import BlockingPostgres
            from agentbus.engine.postgres.server import parse
        return BlockingPostgres(
            parse(server), create=create, durability=durability, clock=clock, lock_timeout=lock_timeout
        )
    from agentbus.engine.sqlite import paths
    from agentbus.engine.sqlite.blocking import BlockingSQLite

    location = paths.find_bus(url, create=create)
    if look and (reason := paths.only_readable(location)) is not None:
        from agentbus.engine.sqlite.read_only import ReadOnlySQLite

        return ReadOnlySQLite(location, reason, clock=clock or SystemClock(), lock_timeout=lock_timeout)
    return BlockingSQLite(location, durability=durability, clock=clock or SystemClock(), lock_timeout=lock_timeout)


__all__ = ["BlockingBus", "open_bus", "open_store"]
