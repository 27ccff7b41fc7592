"""A message in the hands of its receiver: leased, to be settled."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, overload

import msgspec

from agentbus.codec import check, decode, decode_as
from agentbus.drafting import Asked, backoff
from agentbus.errors import AgentBusError, AgentFenced, LeaseLost, Misuse
from agentbus.limits import check_seconds, check_text, error_text
from agentbus.operations import Actor, Operation, Row
from agentbus.operations.leases import AckRequest, Beginning, ExtendRequest, Lease, extend
from agentbus.operations.messages import Draft, Receipt
from agentbus.parting import is_stray, parting
from agentbus.services.callbacks import raised
from agentbus.unit import Unit
from agentbus.vocabulary import Form

if TYPE_CHECKING:
    from agentbus.handle import Handle

T = TypeVar("T")
log = logging.getLogger("agentbus")

_UNREAD = object()


class Message:
    """A message that was handed to this agent, under a lease.

    ``payload`` is its content (a Struct, if this bus knows one of its type), ``type``, ``sender`` and ``recipient`` say
    what it is and between whom, ``message_id`` names it, ``priority``, ``attempts`` (this hand-over included),
    ``session``, ``correlation`` and ``created`` (wall milliseconds) are what they say.

    Settle it with ``ack``, ``nack`` or ``reject``, or work in its block: the lease is renewed inside, and at the end
    the acknowledgement and everything done through the unit are one commit.

    >>> async with message as unit:                                                   # doctest: +SKIP
    ...     unit.send(message.sender, "completion_notification", {"done": message.payload})

    An exception in the block gives the message back with backoff, and propagates.
    """

    __slots__ = (
        "_agent",
        "_form",
        "_loss",
        "_payload",
        "_task",
        "_text",
        "_unit",
        "attempts",
        "before",
        "begun",
        "correlation",
        "created",
        "deferred",
        "duration",
        "expires",
        "following",
        "id",
        "lease",
        "mailbox",
        "message_id",
        "priority",
        "recipient",
        "renew_at",
        "reply_to",
        "sender",
        "session",
        "settled",
        "type",
    )

    def __init__(self, agent: Handle, row: Row, *, counted: bool, duration: int, renew_at: int) -> None:
        (
            self.id, message_id, self.sender, self.type, self._text, crc, self.priority, attempts, lease, self.session,
            self.correlation, self.reply_to, self.created, self.mailbox, self.expires,
        ) = row  # fmt: skip
        self.recipient = agent.address_of(self.mailbox)
        self.message_id: str = message_id or f"m-{self.id}"
        check(self._text, crc, f"message {self.message_id}")
        self._form: Form | None = agent.vocabulary.forms.get(self.type)
        # Of a type that has a form only when it is read: one that does not fit must still be received and settled.
        self._payload: Any = decode(self._text) if self._form is None else _UNREAD
        self.before: int = attempts
        self.attempts: int = attempts + counted
        self.lease: Lease = (self.id, lease + 1)
        self.duration = duration
        self.renew_at = renew_at
        self.begun = counted
        self.settled = False
        self.deferred = False
        self.following: Message | None = None
        self._agent = agent
        self._unit: Unit | None = None
        self._task: asyncio.Task[Any] | None = None
        self._loss: AgentBusError | None = None

    def __repr__(self) -> str:
        return f"<Message {self.message_id} {self.type} from {self.sender}>"

    @property
    def payload(self) -> Any:
        """The content: plain JSON, or a Struct if one of this type was defined or sent through this bus.

        Raises PayloadMismatch if it does not fit that Struct; ``raw`` and ``decode`` read it otherwise.

        >>> message.payload                                                           # doctest: +SKIP
        Plan(files=12)
        """
        if self._payload is _UNREAD and self._form is not None:
            self._payload = self.decode(self._form.struct)
        return self._payload

    @property
    def raw(self) -> Any:
        """The content as plain JSON, whatever its type.

        >>> message.raw                                                               # doctest: +SKIP
        {'files': 12}
        """
        return decode(self._text)

    @overload
    def decode(self, as_: type[T]) -> T: ...
    @overload
    def decode(self, as_: Any) -> Any: ...
    def decode(self, as_: Any) -> Any:
        """The content read as a Struct, or any other type that msgspec knows. PayloadMismatch if it does not fit.

        >>> message.decode(Plan)                                                      # doctest: +SKIP
        Plan(files=12)
        """
        return decode_as(self._text, as_, f"the payload of {self.message_id}")

    @property
    def actor(self) -> Actor:
        return self._agent.actor

    async def ack(self) -> None:
        """Mark it as done; it will not be delivered again.

        >>> await message.ack()                                                       # doctest: +SKIP
        """
        if self.duration == 0:
            return  # the reply to a request: it was handed over and done in one step
        following = self.following
        begin = None
        if following is not None and not following.begun:
            begin = Beginning(following.lease, following.before + 1)
        begun = await self._agent.settle(AckRequest(self._agent.actor, (self.lease,), begin))
        self.settled = True
        if begin is not None and following is not None and begun:
            following.begin()

    async def nack(self, delay: float | None = None, error: str | None = None) -> None:
        """Give it back, to be tried again after ``delay`` seconds (by default longer with each attempt).

        After the last attempt it becomes a dead letter, with ``error``.

        >>> await message.nack(delay=5, error="the model was overloaded")             # doctest: +SKIP
        """
        seconds = backoff(self.attempts) if delay is None else delay
        error = None if error is None else check_text(error, "error")
        await self._agent.release([self], delay=check_seconds(seconds, "delay", zero=True), error=error)
        self.settled = True

    async def reject(self, error: str) -> None:
        """Make it a dead letter at once: trying again would not help.

        >>> await message.reject("the payload names a file that never existed")       # doctest: +SKIP
        """
        await self._agent.reject_one(self, check_text(error, "error"))
        self.settled = True

    async def extend(self, seconds: float) -> None:
        """Hold the lease for so many seconds from now.

        >>> await message.extend(120)                                                 # doctest: +SKIP
        """
        self.duration = check_seconds(seconds, "lease")
        await self._agent.extend(self)

    async def reply(self, type: str | msgspec.Struct, payload: Any = None, **options: Any) -> Receipt:
        """Answer whoever sent it. Only a reply: settle the message as well, or use ``unit.reply``.

        >>> await message.reply("coordination_response", {"ready": True})             # doctest: +SKIP
        """
        (receipt,) = await self._agent.send_drafts(self.reply_draft(type, payload, options))
        return receipt

    def reply_draft(self, type: str | msgspec.Struct, payload: Any, options: dict[str, Any]) -> Draft:
        asked = Asked(self.message_id, self.session, self.correlation, self.reply_to, self.expires)
        wall = self._agent.engine.clock.now().wall
        return asked.reply(self._agent.draft(self.sender, type, payload, **asked.options(options, wall)))

    def begin(self) -> None:
        """A reserved message is handed to the code."""
        self.begun = True
        self.attempts = self.before + 1

    def renewing(self) -> tuple[Operation[ExtendRequest, None], ExtendRequest]:
        """Return what renews the lease."""
        return extend, ExtendRequest(self.actor, (self.lease,), self.duration)

    def title(self, task: asyncio.Task[Any] | None) -> str | None:
        """Return what the log calls it; None if a task is given that does not work in its block."""
        return f"message {self.message_id} of {self.actor.agent}" if task is None or task is self._task else None

    def is_lost(self) -> bool:
        """Return whether its lease was lost while its block was open."""
        return self._loss is not None

    def lose(self, error: AgentBusError) -> None:
        """The lease is gone: end the block, which then raises ``error``."""
        self._loss = error
        if self._task is not None:
            self._task.cancel()

    async def __aenter__(self) -> Unit:
        if self.settled:
            raise LeaseLost(message_id=self.message_id, status="settled", holder="nobody")
        if self._task is not None:
            raise Misuse(reason=f"the block of {self.message_id} is open already")
        # Not a cancel scope: the block may be left by another task than it was entered by (a generator that is closed).
        self._task = asyncio.current_task()
        self._unit = Unit(self._agent, self.session).open()
        self._agent.hold(self)
        return self._unit

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        unit, self._unit = self._unit, None
        assert unit is not None  # noqa: S101 - set on entering
        unit.close()
        problem = None
        if error is None and not unit.prepared:
            # While the lease is still renewed: hashing large files may take long.
            error = problem = await _problem_of(unit.prepare())
        self._agent.let_go(self)
        task, self._task = self._task, None
        assert task is not None  # noqa: S101
        if self._loss is not None:
            others = task.uncancel()
            if error is None or (isinstance(error, asyncio.CancelledError) and not others):
                raise self._loss
        elif error is not None:
            if not self.settled:
                await self._give_back(error)
        elif not (self.deferred and unit.empty):  # then serve() acknowledges with its next claim
            await self._finish(unit)
        if problem is not None:
            raise problem

    async def _finish(self, unit: Unit) -> None:
        """Commit the acknowledgement with everything in the unit; if that is refused, give the message back."""
        try:
            if self.settled:
                await unit.commit()
            elif unit.empty:
                await self.ack()
            else:
                await unit.commit(self)
        except (LeaseLost, AgentFenced, Misuse):
            raise
        except BaseException as refusal:
            if not self.settled:
                await self._give_back(refusal)
            raise

    async def _give_back(self, error: BaseException) -> None:
        """After an exception the attempt counts; a cancelled or interrupted one does not."""
        with parting(self._agent.engine):
            try:
                if isinstance(error, Exception) or is_stray(error):
                    await self.nack(error=error_text(raised(error)))
                else:
                    await self._agent.release([self], counted=False)
                    self.settled = True
            except LeaseLost:
                log.debug("%s is not ours to give back", self.message_id)
            except AgentBusError as problem:
                # The exception of the block matters more; the lease runs out by itself.
                log.warning("%s could not be given back: %s", self.message_id, problem)


async def _problem_of(work: Awaitable[object]) -> BaseException | None:
    try:
        await work
    except BaseException as problem:
        return problem
    return None
