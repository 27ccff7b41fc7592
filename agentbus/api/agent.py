"""An agent: what a worker does on the bus."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager, suppress
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

import anyio
import msgspec

from agentbus import core
from agentbus.api import checkpoints, documents, receiving, sending
from agentbus.api.deliveries import reach_request, seen_request
from agentbus.api.heartbeat import Renewer, renewal_time
from agentbus.api.message import Handler, Message, check_handler, serve
from agentbus.api.receiving import Mailboxes
from agentbus.api.sending import OPTIONS, SendOptions, draft, draft_from, require_session, send_drafts
from agentbus.api.state import State, StateChangeBuilder
from agentbus.api.unit import Unit
from agentbus.core.addresses import Address, address_names, topic
from agentbus.core.cancellation import fire_and_forget, shielded
from agentbus.core.validation import (
    LEASE,
    MAX_BATCH,
    check_options,
    check_range,
    check_seconds,
    check_text,
    reason_text,
)
from agentbus.errors import (
    AgentBusError,
    AgentFenced,
    DamagedPayload,
    ForeignCheckpoint,
    InvalidInput,
    LeaseLost,
    LockTimeout,
    Misuse,
)
from agentbus.errors.base import shown
from agentbus.operations.agent_identity import Registration
from agentbus.operations.agents import (
    BusyRequest,
    EndRequest,
    MembershipRequest,
    ProgressRequest,
    busy,
    change_membership,
    finish,
    progress,
)
from agentbus.operations.checkpoints import Owner
from agentbus.operations.lookups import pending
from agentbus.operations.processes import ListenRequest, listen
from agentbus.operations.protocol import Actor, Operation, Part, mailbox_channel, reach_channel
from agentbus.operations.receipts import Wakes, declare_reach, mark_seen
from agentbus.operations.receive import (
    AckRequest,
    Claim,
    RejectRequest,
    ReleaseRequest,
    StartDeliveryRequest,
    ack,
    reject,
    release,
    start_delivery,
)
from agentbus.operations.rows import Draft, Lease, MessageRow
from agentbus.operations.send import Receipt
from agentbus.records import Checkpoint, CheckpointSummary

if TYPE_CHECKING:
    from agentbus.api.bus import Bus
    from agentbus.api.sending import Outgoing, PayloadChecker
    from agentbus.api.tasks.items import Items
    from agentbus.core.cancellation import Threads

R = TypeVar("R")
T = TypeVar("T")
log = logging.getLogger("agentbus")


class Agent:
    """A registered agent in one incarnation. Made by ``bus.agent(…)`` or ``bus.register(…)``.

    Every write is fenced by its epoch: after a takeover, the old incarnation can write nothing.

    >>> async with bus.agent("planner-1", type="planner") as planner:                 # doctest: +SKIP
    ...     await planner.send("executor-1", "task_assignment", {"phase": "design"})
    """

    id: str
    """Its id."""
    epoch: int
    """The number of this incarnation; each registration of the id has a higher one."""
    session: str | None
    """The session that it takes part in, if any."""
    ended: bool
    """True once it has completed, failed or stopped."""

    def __init__(self, bus: Bus, registration: Registration) -> None:
        self.id = registration.agent
        self.epoch = registration.epoch
        self.session = registration.session
        self.ended = False
        self._engine = bus._engine
        self._actor = Actor(registration.agent, registration.epoch)
        """Names this incarnation in requests."""
        self._vocabulary = bus._vocabulary
        self._max_snapshot = bus._max_snapshot
        self._active = True
        """True if it has done something since the last heartbeat of the process."""
        self._waiting = 0
        """The number of its calls that wait for a message; waiting counts as activity."""
        self._mailboxes: Mailboxes
        """The mailboxes that it reads."""
        self._replies: int
        """The mailbox that replies to its requests go to."""
        self._bus = bus
        self._restored = registration.restored
        self._receives = False
        """True once it has waited for messages: from then on they wake it at once."""
        self._use(registration)

    def __repr__(self) -> str:
        return f"<Agent {self.id}#{self.epoch}>"

    # Sending

    async def send(
        self, to: str | Address, type: str | msgspec.Struct, payload: Any = None, **options: Unpack[SendOptions]
    ) -> Receipt:
        """Send a message to an agent, a pool or a topic. When this returns, the message is committed.

        A Struct in place of the type is type and payload in one; its first use defines it (see ``Bus.define``).

        ``agentbus.api.sending.SendOptions`` describes the options, such as ``priority``, ``delay`` and ``message_id``.

        >>> await agent.send("executor-1", "task_assignment", {"phase": "design"}, priority=9)   # doctest: +SKIP
        >>> await agent.send(agentbus.pool("executors"), "task_assignment", {"n": 1})            # doctest: +SKIP
        >>> await agent.send("executor-1", Plan(files=12))                                       # doctest: +SKIP
        """
        (receipt,) = await send_drafts(self, draft_from(self, to, type, payload, options))
        return receipt

    async def send_many(self, messages: Iterable[Outgoing]) -> list[Receipt]:
        """Send many messages in one commit: all, or none. An error has the position of the invalid one as ``item``.

        Each message is a ``(to, type, payload)``, a ``(to, Struct)``, or a dict with the arguments of ``send``.

        >>> await agent.send_many([("a", "note", 1), {"to": "b", "type": "note", "priority": 9}])  # doctest: +SKIP
        """
        drafts: list[Draft] = []
        for item, message in enumerate(messages):
            try:
                if isinstance(message, dict):
                    check_options(message, ("to", "type", "payload", *OPTIONS))
                    if not {"to", "type"} <= message.keys():
                        raise TypeError("it has no 'to' or no 'type'")
                    drafts.append(self._draft(**message))
                elif isinstance(message, tuple | list) and 2 <= len(message) <= 3:
                    to, type, payload = (*message, None) if len(message) == 2 else message
                    drafts.append(draft(to, type, payload, self._vocabulary, session=self.session))
                else:
                    raise TypeError(f"it is {shown(message, repr):.80}")
            except AgentBusError as error:
                raise error.__class__(**{**error.facts, "item": item}) from None
            except TypeError as error:
                reason = f"message {item} is not a (to, type, payload) or the arguments of send: {reason_text(error)}"
                raise InvalidInput(reason=reason, item=item) from None
        if not drafts:
            return []
        check_range(len(drafts), "number of messages", 1, MAX_BATCH)
        return await send_drafts(self, *drafts)

    async def publish(
        self, name: str, type: str | msgspec.Struct, payload: Any = None, **options: Unpack[SendOptions]
    ) -> Receipt:
        """Send a copy to each subscriber of a topic; the receipt's ``delivered`` is the number of copies.

        >>> await agent.publish("plans", "note", {"plan": 3})                         # doctest: +SKIP
        """
        (receipt,) = await send_drafts(self, draft_from(self, topic(name), type, payload, options))
        return receipt

    async def request(
        self,
        to: str | Address,
        type: str | msgspec.Struct,
        payload: Any = None,
        *,
        timeout: float,
        **options: Unpack[SendOptions],
    ) -> Message:
        """Send a message and wait for its reply. Raises RequestTimedOut, or RequestDied when it is a dead letter.

        The reply needs no acknowledgement. A request that was not received within ``timeout`` seconds expires.

        >>> answer = await agent.request("executor-1", "coordination_request", {"q": "ready?"}, timeout=30)
        ...                                                                           # doctest: +SKIP
        """
        return await sending.request(self, to, type, payload, timeout, options, self._read_reply)

    # Receiving

    async def receive(self, *, timeout: float | None = None, lease: float = LEASE) -> Message | None:
        """Return the most urgent message of all mailboxes this agent reads, or None after ``timeout`` seconds.

        Without a timeout it waits indefinitely; ``timeout=0`` does not wait.

        >>> message = await agent.receive(timeout=5)                                  # doctest: +SKIP
        """
        messages = await self._receive(1, timeout=timeout, duration=check_seconds(lease, "lease"))
        return messages[0] if messages else None

    async def receive_many(
        self,
        most: int,
        *,
        timeout: float | None = None,
        lease: float = LEASE,
        ack: Iterable[Message] = (),
    ) -> list[Message]:
        """Return up to ``most`` messages at once, most urgent first; an empty list after ``timeout`` seconds.

        The messages ``ack`` are acknowledged in the same commit.

        >>> batch = await agent.receive_many(64, ack=batch)                           # doctest: +SKIP
        """
        done = list(ack)
        messages = await self._receive(
            check_range(most, "most", 1, MAX_BATCH),
            timeout=timeout,
            duration=check_seconds(lease, "lease"),
            done=tuple(message._lease for message in done),
        )
        for message in done:
            message._settled = True
        return messages

    async def pending(self) -> bool:
        """Return True if ``receive`` would find a message now. A fast check that claims nothing.

        >>> await agent.pending()                                                     # doctest: +SKIP
        True
        """
        return bool(await self._engine.read_inline(pending, self._mailboxes.all))

    def inbox(self, *, prefetch: int = 1, lease: float = LEASE) -> AsyncIterator[Message]:
        """Iterate over messages as they arrive, without end.

        With a ``prefetch`` above 1 that many are claimed at once. Those not yet delivered are only reserved: their
        attempts are not counted, and leaving the loop releases them.

        >>> async for message in agent.inbox():                                       # doctest: +SKIP
        ...     async with message:
        ...         await work(message.payload)
        """
        return self._inbox(check_range(prefetch, "prefetch", 1, MAX_BATCH), check_seconds(lease, "lease"))

    async def serve(self, handler: Handler, *, concurrency: int = 1, lease: float = LEASE) -> None:
        """Handle messages until cancelled, ``concurrency`` at a time. An exception of the handler is recorded with the
        message, which is retried later.

        An async handler runs on the event loop. A plain function runs on a thread, where it may block. A thread cannot
        be cancelled: if its lease is lost, it runs to its end, and what it did through the unit is discarded.

        >>> async def handle(message, unit):                                          # doctest: +SKIP
        ...     unit.send(message.sender, "completion_notification", await work(message.payload))
        >>> await agent.serve(handle, concurrency=4)                                  # doctest: +SKIP
        """
        check_range(concurrency, "concurrency", 1, MAX_BATCH)
        check_handler(handler)
        duration = check_seconds(lease, "lease")
        if concurrency == 1:
            return await serve(self, handler, duration)
        try:
            async with anyio.create_task_group() as tasks:
                for _ in range(concurrency):
                    tasks.start_soon(serve, self, handler, duration)
        except BaseExceptionGroup as group:
            # An error that ends one worker ends all of them: a fenced agent, a closed bus.
            raise group.exceptions[0] from None

    async def ack(self, messages: Iterable[Message]) -> None:
        """Acknowledge messages in one commit: all, or none (LeaseLost names the first that is lost).

        >>> await agent.ack(batch)                                                    # doctest: +SKIP
        """
        done = list(messages)
        if done:
            request = AckRequest(self._actor, tuple(message._lease for message in done))
            with core.NO_SPAN if core.tracer is None else core.tracer.settle("ack", done):
                await self._write(ack, request)
            for message in done:
                message._settled = True

    async def seen(self, *messages: str, channel: str, client: str | None = None) -> None:
        """Record that messages (``m-7``, or ``m-7#2`` with its lease) were delivered into the context of this agent, by
        what (``http``, ``hook`` …), and into which session of its client. The first time in a context counts.

        >>> await agent.seen("m-7#1", channel="http")                                 # doctest: +SKIP
        """
        if messages:
            await self._write(mark_seen, seen_request(self._actor, messages, channel, client))

    async def declare_reach(self, wakes: Wakes | None, *, channel: str) -> None:
        """Declare that an adapter delivers messages to this incarnation after every ``tool`` call, or with every
        ``turn``; None withdraws it. A call that waits for messages need not declare that.

        >>> await agent.declare_reach("tool", channel="hook")                         # doctest: +SKIP
        """
        await self._write(declare_reach, reach_request(self._actor, wakes, channel))

    def unit(self) -> Unit:
        """Return a block whose sends, acknowledgements, state, checkpoints, documents and progress are one commit.

        >>> async with agent.unit() as unit:                                          # doctest: +SKIP
        ...     unit.ack(message)
        ...     unit.send("reviewer-1", "note", {"text": "done"})
        """
        return Unit(self, self.session)

    # Work items

    @property
    def items(self) -> Items:
        """The work items that it takes from the list that all agents share.

        >>> item = await agent.items.take(workflow="review", timeout=60)              # doctest: +SKIP
        """
        from agentbus.api.tasks.items import Items

        return Items(self, self._bus._listening, round(LEASE * 1000), self._bus._max_payload, self._bus._renewer)

    # State and checkpoints

    @cached_property
    def state(self) -> State:
        """The agent's own entries; they outlive it, and its next incarnation has them.

        >>> await agent.state.set("scope", {"files": 12}, ttl=3600)                   # doctest: +SKIP
        1
        """
        return State(self._bus, self.id, self)

    async def checkpoint(
        self, name: str, snapshot: Any, **options: Unpack[checkpoints.CheckpointOptions]
    ) -> Checkpoint:
        """Save a named snapshot to resume from, also in another incarnation of this agent.

        Options: ``notes``; ``files``, paths below ``root`` (default: the working directory), whose sizes and hashes
        are stored, not their contents; ``keep``, the number of checkpoints of this name to keep, this one included.
        Each save deletes at most 100 older ones (``bus.checkpoints.prune`` deletes all).

        >>> await agent.checkpoint("after_planning", {"step": 1}, files=["plan.md"])  # doctest: +SKIP
        """
        draft = self._draft_checkpoint(name, snapshot, **options)
        self._active = True
        return await draft.save(self._engine)

    @property
    def restored(self) -> CheckpointSummary | None:
        """The checkpoint to resume from: the newest that the agent saved in this session (or in none, if it is in
        none), if its previous incarnation did not complete; else None.

        >>> last = await agent.restore(id=agent.restored.id) if agent.restored else None   # doctest: +SKIP
        >>> step = last.snapshot["step"] if last else 0                               # doctest: +SKIP
        """
        return self._restored

    async def restore(self, name: str | None = None, *, id: int | None = None) -> Checkpoint | None:
        """Return this agent's newest checkpoint (of that name) of any session, or the one with that id; None if there
        is none. ``restored`` is the one to resume from.

        >>> last = await agent.restore("after_planning")                              # doctest: +SKIP
        >>> step = last.snapshot["step"] if last else 0                               # doctest: +SKIP
        """
        self._active = True
        if id is None:
            return await self._bus.checkpoints.latest(self.id, name)
        if name is not None:
            raise InvalidInput(reason="restore() takes a name or an id, not both")
        found = await self._bus.checkpoints.get(id)
        if found is not None and (found.owner_kind, found.owner) != ("agent", self.id):
            raise ForeignCheckpoint(
                id=id, owner_kind=found.owner_kind, owner=found.owner, agent=self.id, wanted=f"agent {self.id!r}"
            )
        return found

    def checkpoint_every(
        self, seconds: float, make: checkpoints.Make, *, name: str = "auto", keep: int = 10
    ) -> AbstractAsyncContextManager[None]:
        """Save the result of ``make()`` periodically while a block runs, and once more at its end, unless it is
        unchanged. After an exception in the block nothing more is saved.

        ``make`` may be a coroutine function. If it fails, that is logged, and it is called again next time.

        >>> async with agent.checkpoint_every(30, lambda: {"done": done}):            # doctest: +SKIP
        ...     await work()
        """
        return checkpoints.save_periodically(self, seconds, make, name, keep)

    # Pools and topics

    async def join(self, *pools: str | Address) -> None:
        """Take work from these pools too.

        >>> await agent.join("executors")                                             # doctest: +SKIP
        """
        await self._change_membership(pools=address_names(pools, "pool"))

    async def leave(self, *pools: str | Address) -> None:
        """Take no more work from these pools.

        >>> await agent.leave("executors")                                            # doctest: +SKIP
        """
        await self._change_membership(pools=address_names(pools, "pool"), leave=True)

    async def subscribe(self, *topics: str | Address) -> None:
        """Get a copy of every message that is published to these topics from now on.

        >>> await agent.subscribe("plans")                                            # doctest: +SKIP
        """
        await self._change_membership(topics=address_names(topics, "topic"))

    async def unsubscribe(self, *topics: str | Address) -> None:
        """Get no more copies; those not yet received expire.

        >>> await agent.unsubscribe("plans")                                          # doctest: +SKIP
        """
        await self._change_membership(topics=address_names(topics, "topic"), leave=True)

    # Progress and end

    async def progress(self, percent: int, note: str | None = None) -> None:
        """Report the progress of the work, from 0 to 100.

        >>> await agent.progress(40, "writing tests")                                 # doctest: +SKIP
        """
        percent = check_range(percent, "progress", 0, 100)
        note = None if note is None else check_text(note, "note")
        await self._write(progress, ProgressRequest(self._actor, percent, note))

    async def busy(self, seconds: float) -> None:
        """Announce that the agent will be silent for this long, and should not be suspected; 0 revokes it.

        >>> await agent.busy(600)                                                     # doctest: +SKIP
        """
        await self._write(busy, BusyRequest(self._actor, check_seconds(seconds, "seconds", zero=True)))

    async def complete(self) -> None:
        """Mark the agent completed: the work is done.

        >>> await agent.complete()                                                    # doctest: +SKIP
        """
        await self._end("completed", None)

    async def fail(self, error: str) -> None:
        """Mark the agent failed: the work cannot be done. Its parent is notified.

        >>> await agent.fail("the tests cannot be made to pass")                      # doctest: +SKIP
        """
        await self._end("failed", check_text(error, "error"))

    async def stop(self, reason: str | None = None) -> None:
        """Mark the agent stopped, though the work is not done. Recovery does not expect it again.

        >>> await agent.stop()                                                        # doctest: +SKIP
        """
        await self._end("stopped", None if reason is None else check_text(reason, "reason"), on_purpose=True)

    # Internal to the package

    @property
    def _threads(self) -> Threads:
        return self._bus._threads

    @property
    def _checker(self) -> PayloadChecker:
        return self._bus._checker

    @property
    def _renewer(self) -> Renewer:
        return self._bus._renewer

    def _write(
        self,
        operation: Operation[R, T],
        request: R,
        *,
        durable: bool | None = None,
        on_abandoned: Callable[[T], None] | None = None,
    ) -> Awaitable[T]:
        self._active = True
        return self._engine.write(operation, request, durable=durable, on_abandoned=on_abandoned)

    def _draft(
        self, to: str | Address, type: str | msgspec.Struct, payload: Any = None, **options: Unpack[SendOptions]
    ) -> Draft:
        return draft_from(self, to, type, payload, options)

    def _commit(self, parts: tuple[Part, ...]) -> Awaitable[list[Any]]:
        return sending.commit(self, parts)

    def _composer(self, scope: str) -> StateChangeBuilder:
        """Return a builder of state changes whose author is this agent."""
        return StateChangeBuilder(scope, self._bus._max_payload, self._actor)

    def _draft_checkpoint(
        self, name: str, snapshot: Any, **options: Unpack[checkpoints.CheckpointOptions]
    ) -> checkpoints.Draft:
        owner = Owner("agent", self.id)
        return checkpoints.draft(
            owner, name, snapshot, self._max_snapshot, actor=self._actor, session=self.session, **options
        )

    def _draft_document(self, name: str, value: Any, keep: int) -> documents.Draft:
        """Return a draft of a document of the agent's session."""
        session = require_session(self, None)
        return documents.draft(session, name, value, self._max_snapshot, author=self.id, keep=keep, actor=self._actor)

    async def _receive(
        self,
        max_messages: int,
        *,
        timeout: float | None,
        duration: int,
        done: tuple[Lease, ...] = (),
        counted: bool = True,
    ) -> list[Message]:
        def read(row: MessageRow, claimed: int) -> Message | None:
            try:
                return Message(self, row, counted=counted, duration=duration, renew_at=renewal_time(claimed, duration))
            except (DamagedPayload, msgspec.DecodeError) as damage:
                log.warning("%s: message %s: %s", self.id, row.id, damage)
                request = RejectRequest(self._actor, (row.delivered,), str(damage))
                fire_and_forget(self._write(reject, request))
                return None

        if not self._receives and timeout != 0:
            self._receives = True
            channel = reach_channel(self._mailboxes.own[0], self.epoch)
            fire_and_forget(self._engine.write(listen, ListenRequest(self._engine.process, channel, True)))
        return await receiving.receive(
            self, max_messages, read, timeout=timeout, duration=duration, done=done, counted=counted,
            on_abandoned=self._release_claim,
        )  # fmt: skip

    def _release_claim(self, found: Claim) -> None:
        """Release the messages of a claim whose caller was cancelled."""
        leases = tuple(row.delivered for row in found.rows)
        if leases:
            request = ReleaseRequest(self._actor, leases, restore=tuple(row.attempts for row in found.rows))
            with suppress(AgentBusError):
                fire_and_forget(self._engine.write(release, request))

    def _read_reply(self, row: MessageRow) -> Message:
        reply = Message(self, row, counted=False, duration=0, renew_at=0)
        reply._settled = True
        return reply

    async def _inbox(self, prefetch: int, duration: int) -> AsyncIterator[Message]:
        reserved: list[Message] = []
        try:
            while True:
                if not reserved:
                    reserved = await self._receive(prefetch, timeout=None, duration=duration, counted=prefetch == 1)
                    # The acknowledgement of one message starts the next in the same commit.
                    for message, following in pairwise(reserved):
                        message._following = following
                    reserved.reverse()
                if not reserved[-1]._started:
                    with suppress(LeaseLost):
                        following = reserved[-1]
                        attempts = following._row.attempts + 1
                        await self._write(
                            start_delivery, StartDeliveryRequest(self._actor, (following._lease,), attempts)
                        )
                        following._start()
                message = reserved.pop()
                if message._started:
                    yield message
        finally:
            if reserved:
                with shielded(self._engine), suppress(AgentFenced, Misuse, LockTimeout):
                    for message in reserved:
                        # Each by itself: one lost lease must not keep the others from being released.
                        with suppress(LeaseLost):
                            await message._release()

    async def _change_membership(
        self, *, pools: tuple[str, ...] = (), topics: tuple[str, ...] = (), leave: bool = False
    ) -> None:
        request = MembershipRequest(self._actor, self._engine.process, pools, topics, leave)
        self._use(await self._write(change_membership, request))

    def _use(self, registration: Registration) -> None:
        """Read the mailboxes of this registration from now on."""
        self._replies = registration.replies
        self._mailboxes = Mailboxes.of(registration)
        # Calls that wait must listen to the new mailboxes.
        self._engine.waiters.ring_all(mailbox_channel(registration.mailbox))

    async def _end(self, status: str, error: str | None, *, on_purpose: bool = False) -> None:
        await self._write(finish, EndRequest(self._actor, status, error, on_purpose))
        self.ended = True
        self._bus._forget(self)
