"""The bus: an open connection to the store, the process's beat, and the way to everything else."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from types import TracebackType
from typing import Any, Literal

import anyio
from msgspec import Struct

from agentbus import events as trail
from agentbus.addresses import Address, check_agent
from agentbus.agent import Agent
from agentbus.aside import running_loop
from agentbus.checking import Checker
from agentbus.checkpoints import Checkpoints
from agentbus.engine.interface import Engine
from agentbus.errors import AgentBusError, AgentExists, AgentFenced, InvalidInput, Misuse, UnknownType
from agentbus.explaining import explained
from agentbus.handle import Handle
from agentbus.limits import (
    check_choice,
    check_name,
    check_range,
    check_scope,
    check_seconds,
    check_text,
    error_text,
    name_or_none,
)
from agentbus.listening import Listening
from agentbus.mailroom import Mailroom
from agentbus.operations import Actor
from agentbus.operations.agents import (
    DeclareRequest,
    EndRequest,
    RegisterRequest,
    declare,
    finish,
    register,
)
from agentbus.operations.lives import Registration
from agentbus.operations.processes import LeaveRequest, Neighbour, leave
from agentbus.operations.reading import count
from agentbus.operations.vocabulary import define, list_types
from agentbus.parting import farewell, unheeded
from agentbus.pulse import Pulse
from agentbus.records import EventRecord, Stats, TypeRecord
from agentbus.registry import Registry, profile, registration
from agentbus.renewal import Renewer
from agentbus.services.asking import Ask
from agentbus.services.presence import strike_off
from agentbus.services.quotas import Quotas
from agentbus.services.recovery import Recovery
from agentbus.services.retention import Retention
from agentbus.services.threads import Threads
from agentbus.session import Session
from agentbus.session_block import block
from agentbus.sessions import Sessions
from agentbus.state import State
from agentbus.tasks.tasks import Tasks
from agentbus.upkeep import Upkeep
from agentbus.vocabulary import Vocabulary, definition
from agentbus.watchdog import MAX_BLOCKED

log = logging.getLogger("agentbus")


class Bus(Upkeep):
    """An open bus. Made by ``connect``. ``bus.agents`` is the registry, ``bus.sessions`` all sessions,
    ``bus.messages`` all messages, ``bus.checkpoints`` all checkpoints, ``bus.tasks`` all durable tasks,
    ``bus.recovery`` what was cut off, ``bus.retention`` what goes, ``bus.quotas`` what may come.

    >>> async with agentbus.connect() as bus:                                         # doctest: +SKIP
    ...     async with bus.agent("worker-1", type="worker") as worker:
    ...         message = await worker.receive(timeout=5)
    """

    renewer: Renewer

    def __init__(
        self,
        engine: Engine,
        *,
        max_payload: int,
        max_snapshot: int,
        beat_every: float,
        max_blocked: float = MAX_BLOCKED,
        ask: Ask | None = None,
    ) -> None:
        self.engine = engine
        engine.beat_every = beat_every
        self.max_payload = max_payload
        self.vocabulary = Vocabulary(max_payload)
        self.checker = Checker(self.vocabulary)
        self.max_snapshot = max_snapshot
        self.agents = Registry(engine, max_payload)
        self.sessions = Sessions(self)
        self.messages = Mailroom(engine)
        self.checkpoints = Checkpoints(engine, max_snapshot)
        self.recovery = Recovery(engine, max_payload, max_snapshot)
        self.retention = Retention(engine)
        self.tasks = Tasks(self)
        self.quotas = Quotas(engine)
        self.listening = Listening(engine)
        self.beat_every = beat_every
        self._ask = ask
        self.threads = Threads()
        self._pulse = Pulse(engine, beat_every, max_blocked)
        self.watchdog = self._pulse.watchdog
        self._opened = False

    async def __aenter__(self) -> Bus:
        if self._opened:
            raise Misuse(reason="this bus was opened before; connect() again")
        running_loop()
        self._opened = True
        try:
            entry = await self.engine.open()
            await strike_off(self.engine, entry.neighbours)
            self.renewer = await self._pulse.start()
            await self._backup_on_open()
            await self.recovery._at_start(self._ask)
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._opened:
            return
        try:
            self.engine.check()
        except Misuse as misuse:
            # Only the process and the event loop that opened the bus can close it.
            if error is None:
                raise
            log.warning("the bus was not closed: %s", misuse)
            return
        ending = await self._close()
        if isinstance(ending, Exception) and error is None:
            raise ending

    async def _close(self) -> BaseException | None:
        """Stop everything, whatever happened; what ended the background, if something did."""
        left = not self.engine.process
        with anyio.CancelScope(shield=True):
            # While leases are still renewed.
            await self.threads.finish()
            ending = await self._pulse.stop()
            if self.engine.process:
                # What takes too long is written when the engine is closed: otherwise the agents would count as alive.
                with suppress(AgentBusError):
                    left = await farewell(self.engine, self._leave())
            if not left or not self.engine.process:
                self.engine.hurry()
            await self.engine.close(left=left)
        return ending

    async def _leave(self) -> None:
        await self.engine.write(leave, LeaveRequest((self.engine.process,), False, "the bus was closed"))

    # Sessions

    def session(
        self,
        operation: str,
        *,
        milestone: str | None = None,
        id: str | None = None,
        expects: Mapping[str, str] | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> AbstractAsyncContextManager[Session]:
        """A session for the length of a block: one coordinated operation with its agents and what they make.

        Leaving the block ends it: completed; failed, with the error, after an exception; interrupted when cancelled.
        The ``id`` of one that was cut off goes on with it (``session.continued``); if its owner is alive, that is an
        error. ``expects`` says who owes which document: ``session.missing()`` lists what is not there yet.

        >>> async with bus.session("planning", milestone="ms-123", id="planning-001",           # doctest: +SKIP
        ...                        expects={"scope-analyzer": "planning-scope"}) as session:
        ...     await session.progress(10)
        """
        return block(self, operation, milestone, id, expects, metadata)

    # Agents

    @asynccontextmanager
    async def agent(self, id: str, *, type: str, **options: Any) -> AsyncIterator[Agent]:
        """Register an agent for the length of a block; the options are those of ``register``.

        Leaving the block ends its life: completed; failed, with the error, after an exception; stopped when cancelled.

        >>> async with bus.agent("executor-1", type="executor", pools=["executors"]) as executor:   # doctest: +SKIP
        ...     async for message in executor.inbox():
        ...         ...
        """
        agent = await self.register(id, type=type, **options)
        try:
            yield agent
            if not agent.ended:
                await agent.complete()
        except BaseException as error:
            await farewell(self.engine, _give_up(agent, error))
            raise
        finally:
            self._forget(agent)

    async def register(
        self,
        id: str,
        *,
        type: str,
        session: str | None = None,
        pools: Iterable[str | Address] = (),
        topics: Iterable[str | Address] = (),
        takeover: bool = False,
        **about: Any,
    ) -> Agent:
        """Register an agent that lives in this process until it is ended, or the bus is closed.

        ``about``: name, milestone, parent, capabilities, model, prompt, load, estimate (seconds), metadata, patience
        (seconds). An id that ended before starts a new life, with its state and mailbox kept, and in its old session if
        that is open and no other is named (``agent.restored`` says what it goes on from); one that is alive elsewhere
        is an error, unless ``takeover`` fences the old life.

        >>> worker = await bus.register("worker-1", type="worker", capabilities=["python"])   # doctest: +SKIP
        """
        request = registration(
            self.max_payload, id, type, self.engine.process, about,
            session=session, pools=pools, topics=topics, takeover=takeover,
        )  # fmt: skip
        try:
            life = await self._register(request)
        except AgentExists as exists:
            if exists.process is None or not await strike_off(self.engine, [Neighbour(**exists.process)]):
                raise
            life = await self._register(request)
        agent = Agent(self, life)
        self._pulse.handles.add(agent)
        return agent

    async def expect(
        self, id: str, *, type: str, session: str | None = None, within: float | None = None, **about: Any
    ) -> None:
        """Announce an agent that will come: it is pending, and its mailbox exists. If you start it now, say within how
        many seconds it must register: it is spawning, and a monitor fails it if it never comes.

        >>> await bus.expect("executor-1", type="executor")                           # doctest: +SKIP
        """
        request = RegisterRequest(
            check_agent(id),
            check_name(type, "agent type"),
            None,
            profile(self.max_payload, about, "session"),
            session=name_or_none(session, "session"),
            within=None if within is None else check_seconds(within, "within"),
        )
        await self._register(request)

    async def declare(self, *addresses: Address) -> None:
        """Make pools and topics exist before anyone joins them.

        >>> await bus.declare(agentbus.pool("executors"), agentbus.topic("plans"))    # doctest: +SKIP
        """
        for place in addresses:
            if not isinstance(place, Address) or place.kind == "agent":
                raise InvalidInput(reason=f"{place!r} is not a pool or a topic; agents are announced with expect()")
        await self.engine.write(
            declare,
            DeclareRequest(
                tuple(place.name for place in addresses if place.kind == "pool"),
                tuple(place.name for place in addresses if place.kind == "topic"),
            ),
        )

    async def define(
        self,
        what: str | type[Struct],
        *,
        kind: Literal["agent", "message"] = "message",
        description: str = "",
        schema: dict[str, Any] | None = None,
    ) -> None:
        """Add a type to the vocabulary, or change its description or schema.

        Payloads of a message type with a JSON ``schema`` are checked against it whenever one is sent, by whomever;
        ``agentbus.schema`` says what it may have. A Struct stands for the type that its tag names (or its class, in
        snake case), with its own schema, and this bus reads messages of that type as this Struct.

        >>> await bus.define("deploy_request", description="please deploy this")      # doctest: +SKIP
        >>> await bus.define("deploy_result", schema={"required": ["url"]})           # doctest: +SKIP
        >>> await bus.define(Plan)                                                    # doctest: +SKIP
        """
        check_choice(kind, "kind", ("agent", "message"))
        request = definition(what, kind, check_text(description, "description"), schema, self.vocabulary)
        await self.engine.write(define, request)
        self.vocabulary.remember([request])

    async def types(self, kind: Literal["agent", "message"] | None = None) -> list[TypeRecord]:
        """The vocabulary: the built-in types and those that were defined.

        >>> [type.name for type in await bus.types("agent")]                          # doctest: +SKIP
        ['coordinator', 'estimation-agent', 'executor', …]
        """
        if kind is not None:
            check_choice(kind, "kind", ("agent", "message"))
        return await self.engine.read(list_types, kind)

    def state(self, scope: str) -> State:
        """The entries of any scope: an agent's (its id), or one that you name. What is written here has no author.

        The scope of an agent's id is that agent's state, and goes when the agent is deleted: take another name for what
        shall stay.

        >>> await bus.state("planner-1").get("scope")                                 # doctest: +SKIP
        {'files': 12}
        >>> await bus.state("builds").increment("count")                              # doctest: +SKIP
        17
        """
        return State(self, check_scope(scope))

    async def stats(self, *, deepest: int = 20) -> Stats:
        """The bus in numbers: counts by status, the deepest queues, sizes.

        >>> (await bus.stats()).messages                                              # doctest: +SKIP
        {'acked': 120, 'queued': 3}
        """
        counts = await self.engine.read(count, check_range(deepest, "deepest", 1, 1000))
        database, log_size = await self.engine.sizes()
        return Stats(counts.messages, counts.agents, counts.queues, counts.oldest_waiting, database, log_size)

    def events(
        self,
        *,
        after: int | Literal["now"] = 0,
        follow: bool = False,
        kind: str | None = None,
        subject: str | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[EventRecord]:
        """The audit trail in its order: who changed what, when.

        ``after`` is the id of the last event that you know; "now" skips all that there are when the reading begins.
        With ``follow`` it goes on for ever, with what other processes do as well. ``subject`` is written like
        ``agent:planner-1``.

        >>> async for event in bus.events(after=last, follow=True):                   # doctest: +SKIP
        ...     print(event.id, event.kind, event.subject, event.actor, event.facts)
        """
        return trail.events(self.engine, self.listening, after, follow, kind, subject, limit)

    def _forget(self, agent: Handle) -> None:
        """An agent ended: the process no longer beats for it."""
        self._pulse.handles.discard(agent)

    async def _register(self, request: RegisterRequest) -> Registration:
        orphaned = self._stop_orphan if request.alive else None
        try:
            registration = await self.engine.write(register, request, orphaned=orphaned)
        except UnknownType as error:
            raise await explained(self.engine, error) from None
        if registration.left is not None:
            session, status = registration.left
            log.warning("%s left session %s, which is %s and no longer has this agent", request.agent, session, status)
        return registration

    def _stop_orphan(self, registration: Registration) -> None:
        """Whoever registered it was cancelled: nobody has a handle that could end it."""
        actor = Actor(registration.agent, registration.epoch)
        request = EndRequest(actor, "stopped", "cancelled while registering")
        with suppress(AgentBusError):
            unheeded(self.engine.write(finish, request))


async def _give_up(agent: Agent, error: BaseException) -> None:
    """After an exception it failed; when cancelled it is stopped."""
    try:
        if isinstance(error, Exception):
            await agent.fail(error_text(error))
        else:
            await agent._end("stopped", None)
    except (AgentFenced, Misuse):
        log.debug("%s had ended already", agent.id)
    except AgentBusError as problem:
        # The exception of the block matters more.
        log.warning("%s could not be ended: %s", agent.id, problem)
