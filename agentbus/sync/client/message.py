"""A message that an agent has received: leased, to be settled; and the loop of one worker of ``Agent.serve``.

Written by ``make sync`` from ``agentbus.api.message``: change that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast, overload

from agentbus.api import message as api
from agentbus.sync.client.base import BlockWrapper
from agentbus.sync.client.unit import Unit

if TYPE_CHECKING:
    import builtins
    from typing import Unpack

    import msgspec

    from agentbus.api.message import T
    from agentbus.api.sending import SendOptions
    from agentbus.operations.send import Receipt


class Message(BlockWrapper[api.Message, Unit], wraps=api.Message):
    """A message that this agent has received, under a lease.

    Settle it with ``ack``, ``nack`` or ``reject``, or work in its block: the lease is renewed inside, and at the end
    the acknowledgement and everything done through the unit are one commit.

    >>> with message as unit:                                                   # doctest: +SKIP
    ...     unit.send(message.sender, "completion_notification", {"done": message.payload})

    An exception in the block releases the message with backoff, and propagates.
    """

    __slots__ = ()

    @property
    def id(self) -> int:
        """Its number on the bus."""
        return self._inner.id

    @property
    def message_id(self) -> str:
        """The id that its sender gave it, or ``m-`` and its number."""
        return self._inner.message_id

    @property
    def type(self) -> str:
        """Its type."""
        return self._inner.type

    @property
    def sender(self) -> str:
        """The agent that sent it."""
        return self._inner.sender

    @property
    def recipient(self) -> str:
        """The address it was sent to: this agent, ``pool:name`` or ``topic:name``."""
        return self._inner.recipient

    @property
    def priority(self) -> int:
        """From 0 to 9, 9 is the most urgent."""
        return self._inner.priority

    @property
    def attempts(self) -> int:
        """Its deliveries, this one included."""
        return self._inner.attempts

    @property
    def session(self) -> str | None:
        """Its session, if any."""
        return self._inner.session

    @property
    def correlation(self) -> str | None:
        """A name that it shares with the messages it belongs to."""
        return self._inner.correlation

    @property
    def created(self) -> int:
        """When it was sent, in milliseconds of wall-clock time."""
        return self._inner.created

    @property
    def headers(self) -> dict[str, str]:
        """Its metadata, text to text; may be empty."""
        return self._inner.headers

    @property
    def payload(self) -> Any:
        """The content: plain JSON, or a Struct if one of this type was defined or sent through this bus.

        Raises PayloadMismatch if it does not match that Struct; ``raw`` and ``decode`` still read it.

        >>> message.payload                                                           # doctest: +SKIP
        Plan(files=12)
        """
        return self._inner.payload

    @property
    def raw(self) -> Any:
        """The content as plain JSON, whatever its type.

        >>> message.raw                                                               # doctest: +SKIP
        {'files': 12}
        """
        return self._inner.raw

    @overload
    def decode(self, as_: builtins.type[T]) -> T: ...

    @overload
    def decode(self, as_: Any) -> Any: ...

    def decode(self, as_: Any) -> Any:
        """Decode the content as a Struct, or any other type that msgspec supports. Raises PayloadMismatch.

        >>> message.decode(Plan)                                                      # doctest: +SKIP
        Plan(files=12)
        """
        return cast(Any, self._inner).decode(as_)

    def ack(self) -> None:
        """Acknowledge it: it will not be delivered again.

        >>> message.ack()                                                       # doctest: +SKIP
        """
        self._call(self._inner.ack)

    def nack(self, delay: float | None = None, error: str | None = None) -> None:
        """Release it, to be retried after ``delay`` seconds (default: exponential backoff).

        After the last attempt it becomes a dead letter, with ``error``.

        >>> message.nack(delay=5, error="the model was overloaded")             # doctest: +SKIP
        """
        self._call(self._inner.nack, delay, error)

    def reject(self, error: str) -> None:
        """Make it a dead letter at once, without a retry.

        >>> message.reject("the payload names a file that never existed")       # doctest: +SKIP
        """
        self._call(self._inner.reject, error)

    def extend(self, seconds: float) -> None:
        """Extend the lease to this many seconds from now.

        >>> message.extend(120)                                                 # doctest: +SKIP
        """
        self._call(self._inner.extend, seconds)

    def reply(self, type: str | msgspec.Struct, payload: Any = None, **options: Unpack[SendOptions]) -> Receipt:
        """Reply to the sender. This does not settle the message; ``unit.reply`` does both in one commit.

        If the message was delivered again since, LeaseLost is raised: the answer is that of the later holder.

        >>> message.reply("coordination_response", {"ready": True})             # doctest: +SKIP
        """
        return self._call(self._inner.reply, type, payload, **options)
