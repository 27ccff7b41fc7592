"""A visiting agent with an event loop: a program that calls now and then, over HTTP for example. Each call counts as
its heartbeat, and extends its leases.

``sync.agent`` is the same without an event loop, for the command line; both share the functions of ``api.sending``,
``api.receiving`` and ``api.deliveries``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, cast

import msgspec

from agentbus import core
from agentbus.api import checkpoints, documents, receiving, sending
from agentbus.api.deliveries import (
    delivery,
    held_messages,
    held_or_acked,
    in_hand,
    leases,
    reach_request,
    reply_context,
    seen_request,
)
from agentbus.api.receiving import Mailboxes, nack_request
from agentbus.api.sending import SendOptions, draft_from, require_session, send_drafts
from agentbus.api.state import State, StateChangeBuilder
from agentbus.api.tasks.items import Items
from agentbus.core.cancellation import fire_and_forget
from agentbus.core.validation import (
    KEEP_VERSIONS,
    MAX_BATCH,
    VISITOR_LEASE,
    check_name,
    check_range,
    check_scope,
    check_seconds,
    check_text,
    name_or_none,
)
from agentbus.errors import AgentBusError, DamagedPayload
from agentbus.operations.agent_identity import Registration, VisitRequest, visit
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
from agentbus.operations.documents import save_document
from agentbus.operations.protocol import Actor, Operation, Part, UnitRequest, mailbox_channel, unit
from agentbus.operations.receipts import Wakes, declare_reach, mark_seen
from agentbus.operations.receive import (
    AckRequest,
    ExtendRequest,
    RejectRequest,
    ReleaseRequest,
    ack,
    extend,
    list_ready,
    reject,
    release,
)
from agentbus.operations.rows import Delivery, MessageRow
from agentbus.operations.send import Receipt, SendRequest, send
from agentbus.operations.sessions import JoinRequest, join_session

if TYPE_CHECKING:
    from agentbus.api.agent import Agent
    from agentbus.api.bus import Bus
    from agentbus.api.sending import PayloadChecker
    from agentbus.api.types import Vocabulary
    from agentbus.core.addresses import Address
    from agentbus.operations.documents import Saved
    from agentbus.records import Checkpoint

R = TypeVar("R")
T = TypeVar("T")


class Visitor:
    """A visiting agent in one incarnation. Made by ``bus.visitor(…)`` or ``bus.register_visitor(…)``.

    >>> visitor = await bus.visitor("planner-1", epoch=3)                             # doctest: +SKIP
    >>> await visitor.send("executor-1", "task_assignment", {"phase": "design"})      # doctest: +SKIP
    """

    id: str
    """Its id."""
    epoch: int
    """The number of the incarnation that it acts in."""
    session: str | None
    """The session that it takes part in, if any."""

    def __init__(
        self, bus: Bus, registration: Registration, epoch: int, *, lease: float = VISITOR_LEASE, visited: bool = False
    ) -> None:
        self.id = registration.agent
        self.epoch = epoch
        self.session = registration.session
        self._registration = registration

        # As ``Agent`` has them, for the functions that both share.
        self._actor = Actor(registration.agent, epoch)
        self._engine = bus._engine
        self._replies = registration.replies
        self._waiting = 0
        self._active = True
        self._bus = bus
        self._lease = check_seconds(lease, "lease")
        self._visited = visited
        """True once a commit has recorded this visit."""
        self._rows: list[MessageRow] = []
        """The messages that this object has claimed."""

    def __repr__(self) -> str:
        return f"<Visitor {self.id}#{self.epoch}>"

    # Calls

    async def _write(
        self,
        operation: Operation[R, T],
        request: R,
        *,
        durable: bool | None = None,
        on_abandoned: Callable[[T], None] | None = None,
    ) -> T:
        """Commit one request; the first also records the visit of this agent."""
        if self._visited:
            return await self._engine.write(operation, request, durable=durable, on_abandoned=on_abandoned)
        is_unit = isinstance(request, UnitRequest)
        parts = request.parts if isinstance(request, UnitRequest) else (Part(operation, request),)
        together = UnitRequest((Part(visit, self._visit()), *parts))

        def own(results: list[Any]) -> T:
            return cast(T, results[1:] if is_unit else results[-1])

        results = await self._engine.write(
            unit,
            together,
            durable=together.durable if durable is None else durable,
            on_abandoned=None if on_abandoned is None else lambda results: on_abandoned(own(results)),
        )
        self._visited = True
        return own(results)

    async def heartbeat(self) -> None:
        """Record that the agent is alive, and extend its leases.

        >>> await visitor.heartbeat()                                                 # doctest: +SKIP
        """
        await self._engine.write(visit, self._visit())
        self._visited = True

    def _visit(self) -> VisitRequest:
        return VisitRequest(self._actor, self._lease)

    # Sending

    async def send(self, to: str | Address, type: str, payload: Any = None, **options: Unpack[SendOptions]) -> Receipt:
        """Send a message to an agent, a pool or a topic; the options are those of ``Agent.send``.

        >>> await visitor.send("executor-1", "note", {"n": 1}, message_id="order-7")  # doctest: +SKIP
        """
        (receipt,) = await send_drafts(self, draft_from(self, to, type, payload, options))
        return receipt

    async def request(
        self, to: str | Address, type: str, payload: Any = None, *, timeout: float, **options: Unpack[SendOptions]
    ) -> Delivery:
        """Send a message and wait for its reply. Raises RequestTimedOut, or RequestDied when it is a dead letter.

        >>> await visitor.request("executor-1", "coordination_request", {"q": "ready?"}, timeout=30)   # doctest: +SKIP
        """
        async with self._bus._listening.to(mailbox_channel(self._replies)):
            return await sending.request(
                self, to, type, payload, timeout, options, lambda row: delivery(row, self.id, settled=True)
            )

    # Receiving

    async def receive(self, most: int = 1, *, timeout: float = 0, lease: float | None = None) -> list[Delivery]:
        """Return up to ``most`` messages, most urgent first; an empty list after ``timeout`` seconds.

        >>> deliveries = await visitor.receive(10, timeout=30)                        # doctest: +SKIP
        """
        duration = self._lease if lease is None else check_seconds(lease, "lease")
        check_range(most, "most", 1, MAX_BATCH)
        check_seconds(timeout, "timeout", zero=True)
        found = await self._receive(most, 0, duration)
        if found or not timeout:
            return found
        async with AsyncExitStack() as stack:
            # Other processes ring this one only for the channels that it has announced.
            for channel in self._mailboxes.channels:
                await stack.enter_async_context(self._bus._listening.to(channel))
            return await self._receive(most, timeout, duration)

    async def _receive(self, most: int, timeout: float, duration: int) -> list[Delivery]:
        def read(row: MessageRow, claimed: int) -> Delivery | None:
            try:
                found = delivery(row, self._mailboxes.addresses[row.mailbox])
            except (DamagedPayload, msgspec.DecodeError) as damage:
                request = RejectRequest(self._actor, (row.delivered,), str(damage))
                fire_and_forget(self._engine.write(reject, request))
                return None
            self._rows.append(row)
            return found

        return await receiving.receive(
            self, most, read, timeout=timeout, duration=duration, on_abandoned=lambda claim: self._release(claim.rows)
        )

    def abandon(self) -> None:
        """Release what this object has received: its caller is gone. The attempts do not count.

        >>> visitor.abandon()                                                         # doctest: +SKIP
        """
        self._release(self._rows)
        self._rows = []

    def _release(self, rows: Sequence[MessageRow]) -> None:
        if rows:
            taken = tuple(row.delivered for row in rows)
            request = ReleaseRequest(self._actor, taken, restore=tuple(row.attempts for row in rows))
            with suppress(AgentBusError):
                fire_and_forget(self._engine.write(release, request))

    async def peek(self, most: int = 1) -> list[Delivery]:
        """Return the messages that ``receive`` would return now, without claiming them.

        >>> await visitor.peek(10)                                                    # doctest: +SKIP
        """
        check_range(most, "most", 1, MAX_BATCH)
        await self.heartbeat()
        rows = await self._engine.read(list_ready, (self._mailboxes.all, most))
        return [delivery(row, self._mailboxes.addresses[row.mailbox], leased=False) for row in rows]

    async def seen(self, *messages: str, channel: str, client: str | None = None) -> None:
        """Record that messages (``m-7``, or ``m-7#2`` with its lease) were delivered into the context of this agent, by
        what (``http``, ``hook`` …), and into which session of its client. The first time in a context counts.

        >>> await visitor.seen("m-7#1", channel="http")                               # doctest: +SKIP
        """
        if messages:
            await self._write(mark_seen, seen_request(self._actor, messages, channel, client))

    async def declare_reach(self, wakes: Wakes | None, *, channel: str) -> None:
        """Declare that an adapter delivers messages to this incarnation after every ``tool`` call, or with every
        ``turn``; None withdraws it. A call that waits for messages need not declare that.

        >>> await visitor.declare_reach("tool", channel="hook")                       # doctest: +SKIP
        """
        await self._write(declare_reach, reach_request(self._actor, wakes, channel))

    async def in_hand(self, most: int = MAX_BATCH) -> list[Delivery]:
        """Return the messages that it has received and not settled, with their leases.

        >>> [one.lease for one in await visitor.in_hand()]                            # doctest: +SKIP
        ['m-7#1']
        """
        check_range(most, "most", 1, MAX_BATCH)
        await self.heartbeat()
        return await in_hand(self, most)

    # Settling

    async def ack(self, *messages: str) -> list[str]:
        """Acknowledge messages (``m-7``, or ``m-7#2`` with its lease) in one commit: all, or none. Return those that it
        had acknowledged before.

        >>> await visitor.ack("m-7#1", "m-8#1")                                       # doctest: +SKIP
        []
        """
        held, before = await held_or_acked(self, messages)
        with core.NO_SPAN if core.tracer is None else core.tracer.settle("ack", held, self._mailboxes.addresses):
            await self._write(ack, AckRequest(self._actor, leases(held)))
        return before

    async def nack(self, *messages: str, delay: float | None = None, error: str | None = None) -> list[str]:
        """Release messages, to be retried after ``delay`` seconds (default: exponential backoff). Return those whose
        last attempt it was: they became dead letters.

        >>> await visitor.nack("m-7#1", delay=5, error="the model was overloaded")    # doctest: +SKIP
        []
        """
        held = await held_messages(self, messages)
        attempts = max((one.attempts for one in held), default=1)
        request = nack_request(self._actor, leases(held), attempts, delay, error)
        with core.NO_SPAN if core.tracer is None else core.tracer.settle("nack", held, self._mailboxes.addresses):
            await self._write(release, request)
        return [name for name, one in zip(messages, held, strict=True) if one.is_last_attempt]

    async def reject(self, *messages: str, error: str) -> None:
        """Make messages dead letters at once, without a retry.

        >>> await visitor.reject("m-7#1", error="no such file")                       # doctest: +SKIP
        """
        checked = check_text(error, "error")
        held = await held_messages(self, messages)
        with core.NO_SPAN if core.tracer is None else core.tracer.settle("reject", held, self._mailboxes.addresses):
            await self._write(reject, RejectRequest(self._actor, leases(held), checked))

    async def extend(self, *messages: str, seconds: float) -> None:
        """Extend leases to this many seconds from now.

        >>> await visitor.extend("m-7#1", seconds=600)                                # doctest: +SKIP
        """
        duration = check_seconds(seconds, "lease")
        # The visit itself extends every lease to its own duration: the named ones come after it.
        held = await held_messages(self, messages)
        await self._write(extend, ExtendRequest(self._actor, leases(held), duration))

    async def reply(
        self, message: str, type: str, payload: Any = None, *, settle: bool = True, **options: Unpack[SendOptions]
    ) -> Receipt:
        """Reply to the sender of a message; with ``settle`` acknowledge it in the same commit, if it is leased.

        >>> await visitor.reply("m-7#1", "coordination_response", {"ready": True})    # doctest: +SKIP
        """
        held, sender, context = await reply_context(self, message)
        given = cast("SendOptions", {name: value for name, value in options.items() if value is not None})
        draft = context.draft(self, sender, type, payload, given)
        parts: tuple[Part, ...] = (Part(send, SendRequest(self._actor, (draft,))),)
        if settle and held.status == "leased":
            parts = (Part(ack, AckRequest(self._actor, ((held.id, held.lease),))), *parts)
        receipts: list[Receipt] = (await sending.commit(self, parts))[-1]
        return receipts[0]

    # State, checkpoints and documents

    def state(self, scope: str | None = None) -> State:
        """Return its own entries, or those of another scope, changed by this agent.

        >>> await visitor.state().set("phase", "design")                              # doctest: +SKIP
        1
        """
        return State(self._bus, check_scope(self.id if scope is None else scope), cast("Agent", self))

    async def checkpoint(
        self, name: str, snapshot: Any, *, notes: str = "", keep: int | None = None
    ) -> Checkpoint:  # fmt: skip
        """Save a named snapshot to resume from. It refers to no files: the caller may be on another machine.

        >>> await visitor.checkpoint("half", {"step": 3})                             # doctest: +SKIP
        """
        draft = checkpoints.draft(
            Owner("agent", self.id), name, snapshot, self._bus._max_snapshot, actor=self._actor, session=self.session,
            notes=notes, keep=keep,
        )  # fmt: skip
        await self.heartbeat()
        return await draft.save(self._engine)

    async def document(
        self, name: str, value: Any, *, session: str | None = None, keep: int = KEEP_VERSIONS
    ) -> Saved:  # fmt: skip
        """Save a new version of a document of its session, or of another; it is the author.

        >>> await visitor.document("plan", {"phases": 3})                             # doctest: +SKIP
        """
        owner = require_session(self, session)
        checked = documents.draft(
            owner, name, value, self._bus._max_snapshot, author=self.id, keep=keep, actor=self._actor
        )  # fmt: skip
        return await self._write(save_document, await checked.prepare())

    # Work items

    @cached_property
    def items(self) -> Items:
        """The work items that it takes from the list that all agents share.

        >>> item = await visitor.items.take(workflow="review", timeout=30)            # doctest: +SKIP
        """
        return Items(self, self._bus._listening, self._lease, self._bus._max_payload)

    # Membership, progress and end

    async def join(self, session: str) -> str | None:
        """Take part in a session from now on, in the same incarnation; return the open session that it left.

        >>> await visitor.join("planning-001")                                        # doctest: +SKIP
        """
        left = await self._write(join_session, JoinRequest(self._actor, check_name(session, "session")))
        self.session = session
        return left

    async def change_membership(
        self, *, pools: Sequence[str] = (), topics: Sequence[str] = (), leave: bool = False
    ) -> Registration:
        """Join, or leave, pools and topics.

        >>> await visitor.change_membership(pools=["executors"])                      # doctest: +SKIP
        """
        from agentbus.core.addresses import address_names

        request = MembershipRequest(
            self._actor, None, address_names(pools, "pool"), address_names(topics, "topic"), leave
        )  # fmt: skip
        self._registration = await self._write(change_membership, request)
        self.__dict__.pop("_mailboxes", None)
        return self._registration

    async def progress(self, percent: int, note: str | None = None) -> None:
        """Report the progress of the work, from 0 to 100.

        >>> await visitor.progress(40, "writing tests")                               # doctest: +SKIP
        """
        percent = check_range(percent, "progress", 0, 100)
        note = None if note is None else check_text(note, "note")
        await self._write(progress, ProgressRequest(self._actor, percent, note))

    async def busy(self, seconds: float) -> None:
        """Announce that the agent will be silent for this long, and should not be suspected; 0 revokes it. Its leases
        are extended for that time.

        >>> await visitor.busy(600)                                                   # doctest: +SKIP
        """
        duration = check_seconds(seconds, "seconds", zero=True)
        parts = (
            Part(visit, VisitRequest(self._actor, max(duration, self._lease))),
            Part(busy, BusyRequest(self._actor, duration)),
        )
        await self._engine.write(unit, UnitRequest(parts))
        self._visited = True

    async def complete(self, *, by: str | None = None) -> None:
        """Mark the agent completed: the work is done. The audit log shows the operator ``by`` instead of the agent.

        >>> await visitor.complete()                                                  # doctest: +SKIP
        """
        await self._end("completed", None, by)

    async def fail(self, error: str, *, by: str | None = None) -> None:
        """Mark the agent failed: the work cannot be done. Its parent is notified. The audit log shows the operator
        ``by`` instead of the agent.

        >>> await visitor.fail("the tests cannot be made to pass")                    # doctest: +SKIP
        """
        await self._end("failed", check_text(error, "error"), by)

    async def stop(self, reason: str | None = None, *, by: str | None = None) -> None:
        """Mark the agent stopped, though the work is not done. The audit log shows the operator ``by`` instead of the
        agent.

        >>> await visitor.stop("out of budget")                                       # doctest: +SKIP
        """
        await self._end("stopped", None if reason is None else check_text(reason, "reason"), by)

    async def _end(self, status: str, error: str | None, by: str | None) -> None:
        await self._write(finish, EndRequest(self._actor, status, error, by=name_or_none(by, "operator")))

    # As ``Agent`` has them, for the functions that both share

    @property
    def _vocabulary(self) -> Vocabulary:
        return self._bus._vocabulary

    @property
    def _checker(self) -> PayloadChecker:
        return self._bus._checker

    @cached_property
    def _mailboxes(self) -> Mailboxes:
        return Mailboxes.of(self._registration).declaring(self.epoch)

    def _composer(self, scope: str) -> StateChangeBuilder:
        """Return a builder of state changes whose author is this agent."""
        return StateChangeBuilder(scope, self._bus._max_payload, self._actor)
