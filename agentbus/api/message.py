"""A message that an agent has received: leased, to be settled; and the loop of one worker of ``Agent.serve``."""

from __future__ import annotations

import asyncio
import builtins
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, cast, overload

import msgspec

from agentbus import core
from agentbus.api.block import AsyncOnly
from agentbus.api.heartbeat import renewal_time
from agentbus.api.receiving import nack_request
from agentbus.api.sending import SendOptions, reply_draft
from agentbus.api.types import PayloadType
from agentbus.api.unit import Unit
from agentbus.core.cancellation import (
    await_user_code,
    call,
    is_async,
    is_foreign_cancellation,
    log_failure,
    shielded,
    unwrap_exit,
)
from agentbus.core.codec import decode, decode_as
from agentbus.core.validation import check_seconds, check_text, error_text
from agentbus.errors import AgentBusError, AgentFenced, InvalidInput, LeaseLost, LockTimeout, Misuse
from agentbus.operations.protocol import Actor, Operation, Part
from agentbus.operations.receive import (
    AckRequest,
    DeliveryStart,
    ExtendRequest,
    RejectRequest,
    ReleaseRequest,
    Settlement,
    ack,
    check_delivery,
    extend,
    reject,
    release,
)
from agentbus.operations.rows import Lease, MessageRow
from agentbus.operations.send import Receipt, SendRequest, send

if TYPE_CHECKING:
    from agentbus.api.agent import Agent
    from agentbus.core.trace_context import Span

T = TypeVar("T")
log = logging.getLogger("agentbus")

_NOT_DECODED = object()
_RETRY_AFTER = 1.0
"""Seconds until a claim that failed for a transient reason is tried again."""


class Message(AsyncOnly):
    """A message that this agent has received, under a lease.

    Settle it with ``ack``, ``nack`` or ``reject``, or work in its block: the lease is renewed inside, and at the end
    the acknowledgement and everything done through the unit are one commit.

    >>> async with message as unit:                                                   # doctest: +SKIP
    ...     unit.send(message.sender, "completion_notification", {"done": message.payload})

    An exception in the block releases the message with backoff, and propagates.
    """

    id: int
    """Its number on the bus."""
    message_id: str
    """The id that its sender gave it, or ``m-`` and its number."""
    type: str
    """Its type."""
    sender: str
    """The agent that sent it."""
    recipient: str
    """The address it was sent to: this agent, ``pool:name`` or ``topic:name``."""
    priority: int
    """From 0 to 9, 9 is the most urgent."""
    attempts: int
    """Its deliveries, this one included."""
    session: str | None
    """Its session, if any."""
    correlation: str | None
    """A name that it shares with the messages it belongs to."""
    created: int
    """When it was sent, in milliseconds of wall-clock time."""
    headers: dict[str, str]
    """Its metadata, text to text; may be empty."""

    _block_form = "async with message as unit:"

    __slots__ = (
        "_agent",
        "_deferred",
        "_duration",
        "_following",
        "_lease",
        "_loss",
        "_payload",
        "_payload_type",
        "_renew_at",
        "_row",
        "_settled",
        "_span",
        "_started",
        "_task",
        "_unit",
        "attempts",
        "correlation",
        "created",
        "headers",
        "id",
        "message_id",
        "priority",
        "recipient",
        "sender",
        "session",
        "type",
    )

    def __init__(self, agent: Agent, row: MessageRow, *, counted: bool, duration: int, renew_at: int) -> None:
        row.verify()
        self._row = row
        self.id = row.id
        self.message_id = row.public_id
        self.sender = row.sender
        self.recipient = agent._mailboxes.addresses.get(row.mailbox, agent.id)
        self.type = row.type
        self.headers = row.decode_headers()
        self.priority = row.priority
        self.session = row.session
        self.correlation = row.correlation
        self.created = row.created
        self._payload_type: PayloadType | None = agent._vocabulary.payload_types.get(row.type)
        # A payload that does not match its Struct must still be received and settled, so a Struct is decoded on access.
        self._payload: Any = decode(row.payload) if self._payload_type is None else _NOT_DECODED
        self.attempts = row.attempts + counted
        self._lease: Lease = row.delivered
        self._duration = duration
        """Milliseconds of the lease; 0 if it has none, as the reply to a request."""
        self._renew_at = renew_at
        self._started = counted
        """False while it is only reserved by a prefetch."""
        self._settled = False
        self._deferred = False
        """True if ``serve`` acknowledges it with its next claim."""
        self._following: Message | None = None
        """The next reserved message, which starts when this one is acknowledged."""
        self._agent = agent
        self._unit: Unit | None = None
        self._task: asyncio.Task[Any] | None = None
        self._loss: AgentBusError | None = None

    def __repr__(self) -> str:
        return f"<Message {self.message_id} {self.type} from {self.sender}>"

    @property
    def payload(self) -> Any:
        """The content: plain JSON, or a Struct if one of this type was defined or sent through this bus.

        Raises PayloadMismatch if it does not match that Struct; ``raw`` and ``decode`` still read it.

        >>> message.payload                                                           # doctest: +SKIP
        Plan(files=12)
        """
        if self._payload is _NOT_DECODED and self._payload_type is not None:
            self._payload = self.decode(self._payload_type.struct)
        return self._payload

    @property
    def raw(self) -> Any:
        """The content as plain JSON, whatever its type.

        >>> message.raw                                                               # doctest: +SKIP
        {'files': 12}
        """
        return decode(self._row.payload)

    @overload
    def decode(self, as_: builtins.type[T]) -> T: ...
    @overload
    def decode(self, as_: Any) -> Any: ...
    def decode(self, as_: Any) -> Any:
        """Decode the content as a Struct, or any other type that msgspec supports. Raises PayloadMismatch.

        >>> message.decode(Plan)                                                      # doctest: +SKIP
        Plan(files=12)
        """
        return decode_as(self._row.payload, as_, f"the payload of {self.message_id}")

    @property
    def _actor(self) -> Actor:
        return self._agent._actor

    async def ack(self) -> None:
        """Acknowledge it: it will not be delivered again.

        >>> await message.ack()                                                       # doctest: +SKIP
        """
        if self._duration == 0:
            return  # the reply to a request is settled when it is taken
        following = self._following
        start = None
        if following is not None and not following._started:
            start = DeliveryStart(following._lease, following._row.attempts + 1)
        with core.NO_SPAN if core.tracer is None else core.tracer.settle("ack", (self,)):
            started = await self._agent._write(ack, AckRequest(self._agent._actor, (self._lease,), start))
        self._settled = True
        if start is not None and following is not None and started:
            following._start()

    async def nack(self, delay: float | None = None, error: str | None = None) -> None:
        """Release it, to be retried after ``delay`` seconds (default: exponential backoff).

        After the last attempt it becomes a dead letter, with ``error``.

        >>> await message.nack(delay=5, error="the model was overloaded")             # doctest: +SKIP
        """
        request = nack_request(self._agent._actor, (self._lease,), self.attempts, delay, error)
        with core.NO_SPAN if core.tracer is None else core.tracer.settle("nack", (self,)):
            await self._agent._write(release, request)
        self._settled = True

    async def reject(self, error: str) -> None:
        """Make it a dead letter at once, without a retry.

        >>> await message.reject("the payload names a file that never existed")       # doctest: +SKIP
        """
        request = RejectRequest(self._actor, (self._lease,), check_text(error, "error"))
        with core.NO_SPAN if core.tracer is None else core.tracer.settle("reject", (self,)):
            await self._agent._write(reject, request)
        self._settled = True

    async def extend(self, seconds: float) -> None:
        """Extend the lease to this many seconds from now.

        >>> await message.extend(120)                                                 # doctest: +SKIP
        """
        self._duration = check_seconds(seconds, "lease")
        now = self._agent._engine.clock.now().awake
        await self._agent._write(*self._renewing())
        self._renew_at = renewal_time(now, self._duration)
        self._agent._renewer.reschedule(self)

    async def reply(self, type: str | msgspec.Struct, payload: Any = None, **options: Unpack[SendOptions]) -> Receipt:
        """Reply to the sender. This does not settle the message; ``unit.reply`` does both in one commit.

        If the message was delivered again since, LeaseLost is raised: the answer is that of the later holder.

        >>> await message.reply("coordination_response", {"ready": True})             # doctest: +SKIP
        """
        draft = reply_draft(self._agent, self, type, payload, options)
        check = Part(check_delivery, Settlement(self._actor, (self._lease,)))
        *_, (receipt,) = await self._agent._commit((check, Part(send, SendRequest(self._actor, (draft,)))))
        return cast("Receipt", receipt)

    def _start(self) -> None:
        """Note that a reserved message is delivered: the attempt counts."""
        self._started = True
        self.attempts = self._row.attempts + 1

    async def _release(self) -> None:
        """Release it without counting the attempt."""
        await self._agent._write(release, ReleaseRequest(self._actor, (self._lease,), restore=(self._row.attempts,)))

    def _renewing(self) -> tuple[Operation[ExtendRequest, None], ExtendRequest]:
        """Return the operation that renews the lease, and its request."""
        return extend, ExtendRequest(self._actor, (self._lease,), self._duration)

    def _title(self, task: asyncio.Task[Any] | None) -> str | None:
        """Return its name for the log; None if a task is given that does not work in its block."""
        return f"message {self.message_id} of {self._actor.agent}" if task is None or task is self._task else None

    def _lease_age(self) -> float:
        """Return the seconds since it was claimed, or its lease renewed."""
        claimed = self._renew_at - self._duration // 3
        return max(0, self._agent._engine.clock.now().awake - claimed) / 1000

    def _is_lost(self) -> bool:
        """Return True if its lease was lost while its block was open."""
        return self._loss is not None

    def _lose(self, error: AgentBusError) -> None:
        """End the block, which then raises ``error``: the lease is lost."""
        self._loss = error
        if self._task is not None:
            self._task.cancel()

    async def __aenter__(self) -> Unit:
        if self._settled:
            raise LeaseLost(message_id=self.message_id, status="settled", holder="no agent")
        if self._task is not None:
            raise Misuse(reason=f"the block of {self.message_id} is open already")
        # Renewal would start on the event loop of the caller.
        self._agent._engine.check()
        # Not a cancel scope: the task that leaves the block may not be the one that entered it (a closed generator).
        self._task = asyncio.current_task()
        self._unit = Unit(self._agent, self.session)._begin()
        self._span: Span | None = None
        if core.tracer is not None:
            self._span = core.tracer.process(self)
            self._span.begin()
        self._agent._renewer.add(self)
        return self._unit

    def __aexit__(
        self, kind: builtins.type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Coroutine[Any, Any, None]:
        return self._leave(error) if self._span is None else self._leave_traced(error, self._span)

    async def _leave_traced(self, error: BaseException | None, span: Span) -> None:
        try:
            await self._leave(error)
        except BaseException as refusal:
            span.end(refusal)
            raise
        span.end(error)

    async def _leave(self, error: BaseException | None) -> None:
        unit, self._unit = self._unit, None
        assert unit is not None  # noqa: S101 - set on entering
        unit._end()
        problem = None
        if error is None and not unit._prepared:
            # While the lease is still renewed: hashing large files takes time.
            error = problem = await _problem_of(unit._prepare())
        self._agent._renewer.discard(self)
        task, self._task = self._task, None
        assert task is not None  # noqa: S101
        if self._loss is not None:
            others = task.uncancel()
            if error is None or (isinstance(error, asyncio.CancelledError) and not others):
                raise self._loss
        elif error is not None:
            if not self._settled:
                await self._release_after(error)
        elif not (self._deferred and unit._empty):  # then serve() acknowledges it with its next claim
            await self._finish(unit)
        if problem is not None:
            raise problem

    async def _finish(self, unit: Unit) -> None:
        """Commit the acknowledgement with everything in the unit; if that is refused, release the message."""
        try:
            if self._settled:
                await unit._commit()
            elif unit._empty:
                await self.ack()
            else:
                await unit._commit(self)
        except (LeaseLost, AgentFenced, Misuse):
            raise
        except BaseException as refusal:
            if not self._settled:
                await self._release_after(refusal)
            raise

    async def _release_after(self, error: BaseException) -> None:
        """Release it. After an exception the attempt counts; after a cancellation or an interrupt it does not."""
        with shielded(self._agent._engine):
            try:
                if isinstance(error, Exception) or is_foreign_cancellation(error):
                    await self.nack(error=error_text(unwrap_exit(error)))
                else:
                    await self._release()
                    self._settled = True
            except LeaseLost:
                log.debug("the lease on %s was lost before it was released", self.message_id)
            except AgentBusError as problem:
                # The exception of the block matters more, and the lease expires by itself.
                log.warning("%s could not be released: %s", self.message_id, problem)


async def _problem_of(work: Awaitable[object]) -> BaseException | None:
    try:
        await work
    except BaseException as problem:
        return problem
    return None


Handler = Callable[[Message, Unit], object]
"""Handles a message: an async function, or a plain one, which is called on a thread."""


def check_handler(handler: object) -> None:
    """Raise InvalidInput for a handler that cannot be called with a message and a unit."""
    if not callable(handler):
        raise InvalidInput(reason="the handler is not callable")
    try:
        inspect.signature(handler).bind(None, None)
    except TypeError:
        raise InvalidInput(reason="the handler must take two arguments: handler(message, unit)") from None
    except ValueError:
        return  # some callables have no signature


async def serve(agent: Agent, handler: Handler, duration: int) -> None:
    """Handle messages one at a time until cancelled. A plain acknowledgement is committed with the next claim."""
    done: tuple[Lease, ...] = ()
    on_loop: Callable[[Message, Unit], Awaitable[object]] | None = None
    if is_async(handler):
        on_loop = cast(Callable[[Message, Unit], Awaitable[object]], handler)
    try:
        while True:
            try:
                (message,) = await agent._receive(1, timeout=None, duration=duration, done=done)
            except LeaseLost as error:
                log.warning("%s: %s", agent.id, error)
                done = ()
                continue
            except AgentBusError as error:
                if not error.transient:
                    raise
                log.warning("%s, trying again: %s", agent.id, error)
                await agent._engine.waiters.listen(()).wait(_RETRY_AFTER)
                continue
            done = ()
            message._deferred = True
            try:
                async with message as unit:
                    if on_loop is None:
                        await call(agent._threads, f"the handler of {message.message_id}", handler, message, unit,
                                   is_abandoned=message._is_lost)  # fmt: skip
                    else:
                        await await_user_code(on_loop(message, unit))
            except (Exception, asyncio.CancelledError) as error:
                ours = isinstance(error, AgentFenced) and error.agent == agent.id
                if ours or (isinstance(error, asyncio.CancelledError) and not is_foreign_cancellation(error)):
                    raise
                log_failure(log, error, "%s: the handler failed on %s", agent.id, message.message_id)
            else:
                done = () if message._settled else (message._lease,)
    finally:
        # The handler has finished with it. If the claim was committed, this acknowledgement is too late, and harmless.
        if done:
            with shielded(agent._engine), suppress(LeaseLost, AgentFenced, Misuse, LockTimeout):
                await agent._write(ack, AckRequest(agent._actor, done))
