"""A visiting agent: a script or a model that calls now and then. Each call counts as its heartbeat, and extends its
leases."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, cast

from agentbus import core
from agentbus.api.sending import SendOptions, draft_from, send_drafts
from agentbus.core.validation import MAX_BATCH, check_name, check_range, check_seconds, check_text
from agentbus.errors import AgentBusError
from agentbus.operations.agent_identity import Registration, VisitRequest, visit
from agentbus.operations.protocol import Actor, Operation, Part, UnitRequest, unit
from agentbus.sync.bus import SyncEngine, run

if TYPE_CHECKING:
    from agentbus.api.agent import Agent
    from agentbus.api.bus import Bus
    from agentbus.api.checkpoints import CheckpointOptions
    from agentbus.api.receiving import Mailboxes
    from agentbus.api.sending import PayloadChecker
    from agentbus.api.state import State, StateChangeBuilder
    from agentbus.api.tasks.items import Items
    from agentbus.api.types import Vocabulary
    from agentbus.core.addresses import Address
    from agentbus.engine.interface import Engine
    from agentbus.operations.documents import Saved
    from agentbus.operations.receipts import Wakes
    from agentbus.operations.rows import Delivery, Held
    from agentbus.operations.send import Receipt
    from agentbus.records import Checkpoint
    from agentbus.sync.bus import BlockingBus
    from agentbus.sync.waiters import BlockingWaiters

R = TypeVar("R")
T = TypeVar("T")


class BlockingAgent:
    """A visiting agent in one incarnation. Made by ``bus.agent(…)`` or ``bus.register(…)``."""

    def __init__(self, bus: BlockingBus, registration: Registration, epoch: int, *, has_called: bool = False) -> None:
        self.bus = bus
        self.id = registration.agent
        self.epoch = epoch
        self.session = registration.session
        self.registration = registration

        # As ``Agent`` has them, for the functions that both share.
        self._actor = Actor(registration.agent, epoch)
        self._engine = cast("Engine", SyncEngine(bus.store, self.call, self.heartbeat, bus.interruption))
        self._replies = registration.replies
        self._waiting = 0
        self._active = True
        self._has_called = has_called
        """True once a commit has recorded its visit."""

    @property
    def identity(self) -> str:
        """The value of AGENTBUS_AGENT: ``id#epoch``."""
        return f"{self.id}#{self.epoch}"

    # Calls

    def call(self, operation: Operation[R, T], request: R, *, durable: bool | None = None) -> T:
        """Commit one request; the first also records the visit of this agent."""
        if self._has_called:
            return self.bus.store.write(operation, request, durable=durable)
        parts = request.parts if isinstance(request, UnitRequest) else (Part(operation, request),)
        together = UnitRequest((Part(visit, self._visit()), *parts))
        results = self.bus.store.write(unit, together, durable=together.durable if durable is None else durable)
        self._has_called = True
        return cast(T, results[1:] if isinstance(request, UnitRequest) else results[-1])

    def heartbeat(self) -> None:
        """Record that the agent is alive, and extend its leases."""
        self.bus.store.write(visit, self._visit())
        self._has_called = True

    def called(self) -> None:
        """Record the visit of a command that has only read. It succeeds even if this fails."""
        if not self._has_called:
            with suppress(AgentBusError):
                self.heartbeat()

    def _visit(self) -> VisitRequest:
        return VisitRequest(self._actor, self.bus.lease)

    # Sending

    def send(self, to: str | Address, type: str, payload: Any = None, **options: Unpack[SendOptions]) -> Receipt:
        """Send a message to an agent, a pool or a topic; the options are those of ``Agent.send``."""
        (receipt,) = run(send_drafts(self, draft_from(self, to, type, payload, options)))
        return receipt

    def request(
        self, to: str | Address, type: str, payload: Any = None, *, timeout: float, **options: Unpack[SendOptions]
    ) -> Delivery:
        """Send a message and wait for its reply. Raises RequestTimedOut, or RequestDied when it is a dead letter."""
        from agentbus.api.deliveries import delivery
        from agentbus.api.sending import request

        return run(request(self, to, type, payload, timeout, options, lambda row: delivery(row, self.id, settled=True)))

    # Receiving

    @contextmanager
    def received(self, most: int = 1, *, timeout: float = 0, lease: float | None = None) -> Iterator[list[Delivery]]:
        """Receive up to ``most`` messages for the length of a block. One that raises releases them, and the attempt
        does not count. After the block they stay leased, to be settled."""
        from agentbus.sync.receiving import received

        duration = self.bus.lease if lease is None else check_seconds(lease, "lease")
        with received(self, check_range(most, "most", 1, MAX_BATCH), timeout, duration) as messages:
            yield messages

    def receive_many(self, most: int, *, timeout: float = 0, lease: float | None = None) -> list[Delivery]:
        """Return up to ``most`` messages, most urgent first; an empty list after ``timeout`` seconds."""
        with self.received(most, timeout=timeout, lease=lease) as messages:
            return messages

    def peek(self, most: int = 1) -> list[Delivery]:
        """Return the messages that ``receive`` would return now, without claiming them."""
        from agentbus.sync.receiving import peek

        return peek(self, check_range(most, "most", 1, MAX_BATCH))

    def seen(self, *messages: str, channel: str, client: str | None = None) -> None:
        """Record that messages (``m-7``, or ``m-7#2`` with its lease) were delivered into the context of this agent, by
        what (``hook``, ``mcp`` …), and into which session of its client. The first time in a context counts. Call it
        after the delivery: it must not claim what did not happen."""
        from agentbus.api.deliveries import seen_request
        from agentbus.operations.receipts import mark_seen

        if messages:
            self.call(mark_seen, seen_request(self._actor, messages, channel, client))

    def declare_reach(self, wakes: Wakes | None, *, channel: str) -> None:
        """Declare that an adapter delivers messages to this incarnation after every ``tool`` call, or with every
        ``turn``; None withdraws it. A process that waits for messages need not declare that."""
        from agentbus.api.deliveries import reach_request
        from agentbus.operations.receipts import declare_reach

        self.call(declare_reach, reach_request(self._actor, wakes, channel))

    def in_hand(self, most: int = MAX_BATCH) -> list[Delivery]:
        """Return the messages that it has received and not settled, with their leases."""
        from agentbus.api.deliveries import in_hand

        self.heartbeat()
        return run(in_hand(self, check_range(most, "most", 1, MAX_BATCH)))

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until ``receive`` would return a message; return False after ``timeout`` seconds without one."""
        from agentbus.sync.receiving import wait

        return wait(self, timeout)

    # Settling

    def held(self, *messages: str) -> list[Held]:
        """Return the messages with these names (``m-7``, or ``m-7#2`` with its lease), all of them leased to it."""
        from agentbus.api.deliveries import held_messages

        return run(held_messages(self, messages))

    def ack(self, *messages: str) -> list[str]:
        """Acknowledge messages in one commit: all, or none. Return those that it had acknowledged before."""
        from agentbus.api.deliveries import held_or_acked, leases
        from agentbus.operations.receive import AckRequest, ack

        held, before = run(held_or_acked(self, messages))
        with core.NO_SPAN if core.tracer is None else core.tracer.settle("ack", held, self._mailboxes.addresses):
            self.call(ack, AckRequest(self._actor, leases(held)))
        return before

    def nack(self, *messages: str, delay: float | None = None, error: str | None = None) -> list[str]:
        """Release messages, to be retried after ``delay`` seconds (default: exponential backoff). Return those whose
        last attempt it was: they became dead letters."""
        from agentbus.api.deliveries import leases
        from agentbus.api.receiving import nack_request
        from agentbus.operations.receive import release

        held = self.held(*messages)
        attempts = max((one.attempts for one in held), default=1)
        request = nack_request(self._actor, leases(held), attempts, delay, error)
        with core.NO_SPAN if core.tracer is None else core.tracer.settle("nack", held, self._mailboxes.addresses):
            self.call(release, request)
        return [name for name, one in zip(messages, held, strict=True) if one.is_last_attempt]

    def reject(self, *messages: str, error: str) -> None:
        """Make messages dead letters at once, without a retry."""
        from agentbus.api.deliveries import leases
        from agentbus.operations.receive import RejectRequest, reject

        held = self.held(*messages)
        request = RejectRequest(self._actor, leases(held), check_text(error, "error"))
        with core.NO_SPAN if core.tracer is None else core.tracer.settle("reject", held, self._mailboxes.addresses):
            self.call(reject, request)

    def extend(self, *messages: str, seconds: float) -> None:
        """Extend leases to this many seconds from now."""
        from agentbus.api.deliveries import leases
        from agentbus.operations.receive import ExtendRequest, extend

        duration = check_seconds(seconds, "lease")
        self.call(extend, ExtendRequest(self._actor, leases(self.held(*messages)), duration))

    def reply(
        self, message: str, type: str, payload: Any = None, *, ack: bool = True, **options: Unpack[SendOptions]
    ) -> Receipt:
        """Reply to the sender of a message; with ``ack`` acknowledge it in the same commit, if it is leased."""
        from agentbus.api.deliveries import reply_context
        from agentbus.api.sending import commit
        from agentbus.operations.receive import AckRequest
        from agentbus.operations.receive import ack as acknowledge
        from agentbus.operations.send import SendRequest, send

        held, sender, context = run(reply_context(self, message))
        given = cast("SendOptions", {name: value for name, value in options.items() if value is not None})
        draft = context.draft(self, sender, type, payload, given)
        parts: tuple[Part, ...] = (Part(send, SendRequest(self._actor, (draft,))),)
        if ack and held.status == "leased":
            parts = (Part(acknowledge, AckRequest(self._actor, ((held.id, held.lease),))), *parts)
        receipts: list[Receipt] = run(commit(self, parts))[-1]
        return receipts[0]

    # State, checkpoints and documents

    @property
    def state(self) -> State:
        """Its own entries."""
        return self.state_of(self.id)

    def state_of(self, scope: str) -> State:
        """Return the entries of another scope, changed by this agent."""
        from agentbus.api.state import State
        from agentbus.core.validation import check_scope

        return State(cast("Bus", self), check_scope(scope), cast("Agent", self))

    def checkpoint(self, name: str, snapshot: Any, **options: Unpack[CheckpointOptions]) -> Checkpoint:
        """Save a named snapshot to resume from; the options are those of ``Agent.checkpoint``."""
        from agentbus.api.checkpoints import draft
        from agentbus.operations.checkpoints import Owner

        owner = Owner("agent", self.id)
        checked = draft(
            owner, name, snapshot, self.bus._max_snapshot, actor=self._actor, session=self.session, **options
        )
        return run(checked.save(self._engine))

    def document(self, name: str, value: Any, *, keep: int, session: str | None = None) -> Saved:
        """Save a new version of a document of its session, or of another; it is the author."""
        from agentbus.api.documents import draft
        from agentbus.api.sending import require_session
        from agentbus.operations.documents import save_document

        session = require_session(self, session)
        checked = draft(session, name, value, self.bus._max_snapshot, author=self.id, keep=keep, actor=self._actor)
        return self.call(save_document, run(checked.prepare()))

    # Work items

    @cached_property
    def items(self) -> Items:
        """The work items that it takes from the list that all agents share; its calls are run by ``bus.do``."""
        from agentbus.api.tasks.items import Items

        return Items(self, self._listening, self.bus.lease, self.bus._max_payload)

    # Progress and end

    def progress(self, percent: int, note: str | None = None) -> None:
        """Report the progress of the work, from 0 to 100."""
        from agentbus.operations.agents import ProgressRequest, progress

        percent = check_range(percent, "progress", 0, 100)
        note = None if note is None else check_text(note, "note")
        self.call(progress, ProgressRequest(self._actor, percent, note))

    def busy(self, seconds: float) -> None:
        """Announce that the agent will be silent for this long, and should not be suspected; 0 revokes it. Its leases
        are extended for that time."""
        from agentbus.operations.agents import BusyRequest, busy

        duration = check_seconds(seconds, "seconds", zero=True)
        parts = (
            Part(visit, VisitRequest(self._actor, max(duration, self.bus.lease))),
            Part(busy, BusyRequest(self._actor, duration)),
        )
        self.bus.store.write(unit, UnitRequest(parts))
        self._has_called = True

    def join(self, session: str) -> str | None:
        """Take part in a session from now on, in the same incarnation; return the open session that it left."""
        from agentbus.operations.sessions import JoinRequest, join_session

        left = self.call(join_session, JoinRequest(self._actor, check_name(session, "session")))
        self.session = session
        return left

    def complete(self) -> None:
        """Mark the agent completed: the work is done."""
        self._end("completed", None)

    def fail(self, error: str) -> None:
        """Mark the agent failed: the work cannot be done. Its parent is notified."""
        self._end("failed", check_text(error, "error"))

    def stop(self, reason: str | None = None) -> None:
        """Mark the agent stopped, though the work is not done."""
        self._end("stopped", None if reason is None else check_text(reason, "reason"))

    def _end(self, status: str, error: str | None) -> None:
        from agentbus.operations.agents import EndRequest, finish

        self.call(finish, EndRequest(self._actor, status, error))

    # As ``Agent`` has them, for the functions that both share

    async def _write(
        self,
        operation: Operation[R, T],
        request: R,
        *,
        durable: bool | None = None,
        on_abandoned: Callable[[T], None] | None = None,
    ) -> T:
        return self.call(operation, request, durable=durable)

    @property
    def _vocabulary(self) -> Vocabulary:
        return self.bus._vocabulary

    @property
    def _checker(self) -> PayloadChecker:
        return self.bus._checker

    @property
    def _max_payload(self) -> int:
        return self.bus._max_payload

    @cached_property
    def _mailboxes(self) -> Mailboxes:
        from agentbus.api.receiving import Mailboxes

        return Mailboxes.of(self.registration).declaring(self.epoch)

    @property
    def _listening(self) -> BlockingWaiters:
        return cast("BlockingWaiters", self._engine.waiters)

    def _composer(self, scope: str) -> StateChangeBuilder:
        """Return a builder of state changes whose author is this agent."""
        from agentbus.api.state import StateChangeBuilder

        return StateChangeBuilder(scope, self._max_payload, self._actor)
