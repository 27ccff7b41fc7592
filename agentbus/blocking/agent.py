"""A visiting agent: it calls now and then. Every call shows that it is alive, and extends what it holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar, cast

from agentbus.blocking.driving import Immediate, run
from agentbus.errors import AgentBusError, AlreadySettled, InvalidName, LeaseLost, UnknownMessage
from agentbus.keeping import Keeper
from agentbus.limits import MAX_ATTEMPTS, MAX_BATCH, Priority, check_name, check_range, check_seconds, check_text
from agentbus.operations import Actor, Operation, Part, UnitRequest, unit
from agentbus.operations.lives import Registration
from agentbus.operations.visits import VisitRequest, visit
from agentbus.sending import Sender

if TYPE_CHECKING:
    from agentbus.addresses import Address
    from agentbus.blocking import BlockingBus
    from agentbus.blocking.deliveries import Delivery
    from agentbus.blocking.waiting import Listening
    from agentbus.bus import Bus
    from agentbus.checking import Checker
    from agentbus.engine.interface import Engine
    from agentbus.handle import Handle
    from agentbus.operations.documents import Saved
    from agentbus.operations.leases import Held, Lease
    from agentbus.operations.messages import Receipt
    from agentbus.records import Checkpoint
    from agentbus.state import Composer, State

R = TypeVar("R")
T = TypeVar("T")

_SETTLED = {"acked": "acked by you", "dead": "made a dead letter in your hands"}
"""What became of a message that its last holder settled."""


class BlockingAgent(Sender, Keeper):
    """A visiting agent in one of its lives. Made by ``bus.agent(…)`` or ``bus.register(…)``."""

    def __init__(self, bus: BlockingBus, life: Registration, epoch: int) -> None:
        self.bus = bus
        self.id = life.agent
        self.epoch = epoch
        self.session = life.session
        self.actor = Actor(life.agent, epoch)
        self.life = life
        self.engine = cast("Engine", Immediate(bus.store, self.call))
        self.vocabulary = bus.vocabulary
        self.max_payload = bus.max_payload
        self.max_snapshot = bus.max_snapshot
        self.active = True
        self._has_called = False

    @property
    def identity(self) -> str:
        """What AGENTBUS_AGENT carries."""
        return f"{self.id}#{self.epoch}"

    @property
    def checker(self) -> Checker:
        return self.bus.checker

    def call(self, operation: Operation[R, T], request: R, *, durable: bool | None = None) -> T:
        """Commit one request, and with it that this agent called."""
        if self._has_called:
            return self.bus.store.write(operation, request, durable=durable)
        asked = request.parts if isinstance(request, UnitRequest) else (Part(operation, request),)
        together = UnitRequest((Part(visit, self._visit()), *asked))
        results = self.bus.store.write(unit, together, durable=together.durable if durable is None else durable)
        self._has_called = True
        return cast(T, results[1:] if isinstance(request, UnitRequest) else results[-1])

    def heartbeat(self) -> None:
        """Show that it is alive; what it holds stays its own for longer."""
        self.bus.store.write(visit, self._visit())
        self._has_called = True

    def called(self) -> None:
        """Note that it called, if nothing that it did has noted it. What it only asked for is answered anyway."""
        if not self._has_called:
            with suppress(AgentBusError):
                self.heartbeat()

    def has_called(self) -> None:
        """What was just written has noted it."""
        self._has_called = True

    def _visit(self) -> VisitRequest:
        return VisitRequest(self.actor, self.bus.lease)

    # Sending

    def send(
        self,
        to: str | Address,
        type: str,
        payload: Any = None,
        *,
        priority: int = Priority.NORMAL.value,
        delay: float | None = None,
        ttl: float | None = None,
        message_id: str | None = None,
        max_attempts: int = MAX_ATTEMPTS,
        correlation: str | None = None,
        session: str | None = None,
    ) -> Receipt:
        """Send a message to an agent, a pool or a topic; the arguments are those of ``Agent.send``."""
        message = self.draft(
            to, type, payload, priority=priority, delay=delay, ttl=ttl, message_id=message_id,
            max_attempts=max_attempts, correlation=correlation, session=session,
        )  # fmt: skip
        (receipt,) = run(self.send_drafts(message))
        return receipt

    def request(self, to: str | Address, type: str, payload: Any = None, *, timeout: float, **options: Any) -> Delivery:
        """Send a message and wait for its reply. Raises RequestTimedOut, or RequestDied when it is a dead letter."""
        from agentbus.blocking.requesting import request

        return request(self, to, type, payload, timeout, options)

    # Receiving

    @contextmanager
    def received(self, most: int = 1, *, timeout: float = 0, lease: float | None = None) -> Iterator[list[Delivery]]:
        """Up to ``most`` messages, for the length of a block: one that raises gives them back, as if they had not
        been handed out. They stay leased after it, to be settled."""
        from agentbus.blocking.receiving import received

        duration = self.bus.lease if lease is None else check_seconds(lease, "lease")
        with received(self, check_range(most, "most", 1, MAX_BATCH), timeout, duration) as messages:
            yield messages

    def receive_many(self, most: int, *, timeout: float = 0, lease: float | None = None) -> list[Delivery]:
        """Up to ``most`` messages at once, most urgent first; an empty list after ``timeout`` seconds."""
        with self.received(most, timeout=timeout, lease=lease) as messages:
            return messages

    def peek(self, most: int = 1) -> list[Delivery]:
        """What ``receive`` would give now. Nothing is taken."""
        from agentbus.blocking.receiving import peek

        return peek(self, check_range(most, "most", 1, MAX_BATCH))

    def in_hand(self, most: int = MAX_BATCH) -> list[Delivery]:
        """What it received and has not settled, with its leases."""
        from agentbus.blocking.receiving import in_hand

        return in_hand(self, check_range(most, "most", 1, MAX_BATCH))

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is worth calling ``receive``; False if it was not, for ``timeout`` seconds."""
        from agentbus.blocking.receiving import wait

        return wait(self, timeout)

    # Settling

    def held(self, messages: Sequence[str]) -> list[Held]:
        """The messages of these names (``m-7``, or ``m-7#2`` with the number of the lease), all of them its own."""
        from agentbus.operations.leases import holdings

        mine = self.bus.read(holdings, self.id)
        found: list[Held] = []
        for name in messages:
            message_id, number = parted(name, "message_id")
            one = next((held for held in mine if (held.message_id or f"m-{held.id}") == message_id), None)
            if one is None or number not in {None, one.lease}:
                raise self._not_held(message_id, number)
            found.append(one)
        return found

    def _not_held(self, message_id: str, number: int | None) -> AgentBusError:
        from agentbus.operations.leases import letter

        found = self.bus.read(letter, (message_id, self.id))
        if found is None:
            return UnknownMessage(message_id=message_id)
        held, _ = found
        if held.status in _SETTLED and held.holder == self.id and number in {None, held.lease}:
            what, advice = _SETTLED[held.status], "nothing is left to do"
            return AlreadySettled(message_id=message_id, status=held.status, what=what, advice=advice, holder="nobody")
        if held.status in {"queued", "scheduled"} and number == held.lease:
            what, advice = "given back", "it is nobody's: receive it again, if it is for you"
            return AlreadySettled(message_id=message_id, status=held.status, what=what, advice=advice, holder="nobody")
        holder = held.holder if held.status == "leased" else None
        return LeaseLost(message_id=message_id, status=held.status, holder=holder or "nobody")

    def ack(self, *messages: str) -> list[str]:
        """Acknowledge messages in one commit: all, or none. Says which of them it had acknowledged before."""
        from agentbus.operations.leases import AckRequest, ack

        held: list[Held] = []
        before: list[str] = []
        for message in messages:
            try:
                held += self.held([message])
            except AlreadySettled as settled:
                if settled.facts["status"] != "acked":
                    raise
                before.append(message)
        self.call(ack, AckRequest(self.actor, leases(held)))
        return before

    def nack(self, *messages: str, delay: float | None = None, error: str | None = None) -> None:
        """Give messages back, to be tried again after ``delay`` seconds (by default longer with each attempt)."""
        from agentbus.drafting import backoff
        from agentbus.operations.leases import ReleaseRequest, release

        held = self.held(messages)
        seconds = backoff(max((one.attempts for one in held), default=1)) if delay is None else delay
        error = None if error is None else check_text(error, "error")
        pause = check_seconds(seconds, "delay", zero=True)
        self.call(release, ReleaseRequest(self.actor, leases(held), pause, error))

    def reject(self, *messages: str, error: str) -> None:
        """Make dead letters of messages at once: trying again would not help."""
        from agentbus.operations.leases import RejectRequest, reject

        request = RejectRequest(self.actor, leases(self.held(messages)), check_text(error, "error"))
        self.call(reject, request)

    def extend(self, *messages: str, seconds: float) -> None:
        """Hold leases for so many seconds from now."""
        from agentbus.operations.leases import ExtendRequest, extend

        duration = check_seconds(seconds, "lease")
        self.call(extend, ExtendRequest(self.actor, leases(self.held(messages)), duration))

    def reply(self, message: str, type: str, payload: Any = None, *, ack: bool = True, **options: Any) -> Receipt:
        """Answer whoever sent a message; unless ``ack`` is False, acknowledge it in the same commit, if it is held."""
        from agentbus.blocking.requesting import reply

        return reply(self, message, type, payload, ack, options)

    # State

    def composer(self, scope: str) -> Composer:
        """Makes changes of state whose author is this agent."""
        from agentbus.state import Composer

        return Composer(scope, self.max_payload, self.actor)

    @property
    def state(self) -> State:
        """Its own entries."""
        return self.state_of(self.id)

    def state_of(self, scope: str) -> State:
        """The entries of another scope, changed by this agent."""
        from agentbus.limits import check_scope
        from agentbus.state import State

        return State(cast("Bus", self), check_scope(scope), cast("Handle", self))

    @property
    def listening(self) -> Listening:
        from agentbus.blocking.waiting import Listening

        return Listening(self.bus.store, self.heartbeat)

    # What it keeps

    def checkpoint(self, name: str, snapshot: Any, **options: Any) -> Checkpoint:
        """Save a named snapshot to go on from later; the options are those of ``Agent.checkpoint``."""
        return run(self.draft_checkpoint(name, snapshot, **options).save(self.engine))

    def document(self, name: str, value: Any, *, keep: int, session: str | None = None) -> Saved:
        """Save a new version of a document of its session, or of another; it is the author."""
        from agentbus.operations.documents import save_document

        return self.call(save_document, run(self.draft_document(name, value, keep, session).finished()))

    # Its own life

    def progress(self, percent: int, note: str | None = None) -> None:
        """Say how far the work is, from 0 to 100."""
        from agentbus.operations.agents import ProgressRequest, progress

        percent = check_range(percent, "progress", 0, 100)
        note = None if note is None else check_text(note, "note")
        self.call(progress, ProgressRequest(self.actor, percent, note))

    def busy(self, seconds: float) -> None:
        """Say that it will be silent for so long and that this is all right; 0 takes it back. What it holds stays its
        own for that time."""
        from agentbus.operations.agents import BusyRequest, busy

        duration = check_seconds(seconds, "seconds", zero=True)
        parts = (
            Part(visit, VisitRequest(self.actor, max(duration, self.bus.lease))),
            Part(busy, BusyRequest(self.actor, duration)),
        )
        self.bus.store.write(unit, UnitRequest(parts))
        self._has_called = True

    def join(self, session: str) -> str | None:
        """Take part in a session from now on, in the same life; says which open one it left for it."""
        from agentbus.operations.joining import JoinRequest, join_session

        left = self.call(join_session, JoinRequest(self.actor, check_name(session, "session")))
        self.session = session
        return left

    def complete(self) -> None:
        """The work is done; the agent's life ends."""
        self._end("completed", None)

    def fail(self, error: str) -> None:
        """The work cannot be done; the agent's life ends, its parent is told."""
        self._end("failed", check_text(error, "error"))

    def stop(self, reason: str | None = None) -> None:
        """End the agent's life though the work is not done."""
        self._end("stopped", None if reason is None else check_text(reason, "reason"))

    def _end(self, status: str, error: str | None) -> None:
        from agentbus.operations.agents import EndRequest, finish

        self.call(finish, EndRequest(self.actor, status, error))


def leases(held: Iterable[Held]) -> tuple[Lease, ...]:
    return tuple((one.id, one.lease) for one in held)


def parted(name: str, what: str = "agent") -> tuple[str, int | None]:
    """A name and the number after it, as in ``planner-1#3``: which life of an agent, which lease of a message."""
    plain, mark, number = name.partition("#")
    if mark and not (number.isascii() and number.isdigit() and len(number) <= 18):
        rule = f"write the {what} alone, or with a number: {plain or what}#3"
        raise InvalidName(what=what, name=name, rule=rule)
    return check_name(plain, what), int(number) if mark else None
