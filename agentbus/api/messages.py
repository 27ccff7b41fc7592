"""``bus.messages``: messages of any status, dead letters and cleaning up, and what people send; ``bus.quotas``: the
limits of a bus."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypedDict, TypeVar, Unpack

from agentbus.api.sending import OPTIONS, SendOptions, draft_from, send_drafts
from agentbus.core.addresses import Address, operator_name, parse_address
from agentbus.core.validation import (
    MAX_ID,
    MAX_PAGE,
    MESSAGE_STATUSES,
    PAGE_SIZE,
    check_choice,
    check_name,
    check_options,
    check_range,
    check_row_cursor,
    check_seconds,
    check_text,
    choices_or_none,
    name_or_none,
)
from agentbus.engine.interface import Engine
from agentbus.operations.agent_identity import Registration
from agentbus.operations.lookups import (
    MessageFilter,
    SpanQuery,
    deepest_queues,
    get_message,
    list_dead,
    list_messages,
    list_queues,
    message_spans,
)
from agentbus.operations.operators import enter_operator, find_operator
from agentbus.operations.protocol import Actor, Operation
from agentbus.operations.quotas import ChangeQuotasRequest, change_quotas, read_quotas
from agentbus.operations.receive import FINISHED, PurgeRequest, RequeueRequest, count_purgeable, purge, requeue
from agentbus.operations.send import Receipt
from agentbus.records import MessageRecord, MessageSpan, Page, QueueDepth, QueueRecord, QuotaPolicy

if TYPE_CHECKING:
    import msgspec

    from agentbus.api.sending import PayloadChecker
    from agentbus.api.types import Vocabulary

R = TypeVar("R")
T = TypeVar("T")
_PURGE_STEP = 5000

Finished = Literal["acked", "dead", "expired"]


class QuotaChanges(TypedDict, total=False):
    """Quotas to change; ``records.QuotaPolicy`` describes them."""

    depth: int | None
    rate: float | None
    size: int | None


class Source(Protocol):
    """An open bus, asynchronous or synchronous."""

    @property
    def _engine(self) -> Engine: ...
    @property
    def _vocabulary(self) -> Vocabulary: ...
    @property
    def _checker(self) -> PayloadChecker: ...


class Operator:
    """A person as the sender of messages: what ``api.sending`` needs of an agent."""

    session = None

    def __init__(self, bus: Source, registration: Registration) -> None:
        self.id = registration.agent
        self._actor = Actor(registration.agent, registration.epoch)
        self._replies = registration.replies
        self._engine = bus._engine
        self._vocabulary = bus._vocabulary
        self._checker = bus._checker
        self._waiting = 0

    def _write(self, operation: Operation[R, T], request: R, *, durable: bool | None = None) -> Awaitable[T]:
        return self._engine.write(operation, request, durable=durable)


async def register_operator(engine: Engine, name: str) -> Registration:
    """Return the mailboxes of a person, created with the first use of the name."""
    sender = operator_name(name)
    found = await engine.read(find_operator, sender)
    return await engine.write(enter_operator, sender) if found is None else found


class Messages:
    """The messages of the bus.

    >>> for letter in (await bus.messages.dead()).items:                              # doctest: +SKIP
    ...     print(letter.message_id, letter.error)
    """

    def __init__(self, bus: Source) -> None:
        self._bus = bus
        self._engine = bus._engine

    async def send(
        self,
        to: str | Address,
        type: str | msgspec.Struct,
        payload: Any = None,
        *,
        by: str,
        **options: Unpack[SendOptions],
    ) -> Receipt:
        """Send a message as a person: its sender is ``operator:`` and the name ``by``. Agents send with ``agent.send``,
        whose options these are.

        A person is not registered. Replies, and messages to ``operator:ada``, wait in a mailbox that exists from the
        first message on: ``bus.messages.list(to="operator:ada")``.

        >>> await bus.messages.send("executor-1", "note", {"text": "use the new API"}, by="ada")   # doctest: +SKIP
        """
        check_options(options, OPTIONS)
        operator = Operator(self._bus, await register_operator(self._engine, by))
        (receipt,) = await send_drafts(operator, draft_from(operator, to, type, payload, options))
        return receipt

    async def get(self, message_id: str) -> MessageRecord | None:
        """Return a message by its message_id, or None. Of a published message, the newest copy.

        >>> await bus.messages.get("m-7")                                             # doctest: +SKIP
        """
        return await self._engine.read(get_message, check_name(message_id, "message_id"))

    async def list(
        self,
        *,
        status: str | Sequence[str] | None = None,
        type: str | None = None,
        sender: str | None = None,
        to: str | Address | None = None,
        session: str | None = None,
        correlation: str | None = None,
        holder: str | None = None,
        cursor: str | None = None,
        limit: int = PAGE_SIZE,
    ) -> Page[MessageRecord]:
        """Return messages, newest first. ``holder``: those leased to this agent.

        >>> page = await bus.messages.list(to="executor-1", status="queued")          # doctest: +SKIP
        """
        recipient = None if to is None else parse_address(to)
        wanted = MessageFilter(
            choices_or_none(status, "status", MESSAGE_STATUSES),
            name_or_none(type, "message type"),
            # Any text: the name of the bus itself is not a valid agent id.
            None if sender is None else check_text(sender, "sender"),
            name_or_none(session, "session"),
            name_or_none(correlation, "correlation"),
            None if recipient is None else (recipient.kind, recipient.name),
            check_row_cursor(cursor),
            check_range(limit, "limit", 1, MAX_PAGE),
            name_or_none(holder, "holder"),
        )
        return await self._engine.read(list_messages, wanted)

    async def queues(
        self, *, kind: Literal["agent", "pool"] | None = None, cursor: str | None = None, limit: int = PAGE_SIZE
    ) -> Page[QueueRecord]:
        """Return the mailboxes of agents and pools, or of one ``kind``, oldest first, with the number of their messages
        and readers.

        >>> page = await bus.messages.queues()                                        # doctest: +SKIP
        """
        after = 0 if cursor is None else check_row_cursor(cursor)
        return await self._engine.read(list_queues, (after, check_range(limit, "limit", 1, MAX_PAGE), kind))

    async def deepest(self, limit: int = 20) -> Sequence[QueueDepth]:
        """Return the mailboxes with the most queued messages.

        >>> [(one.recipient, one.queued) for one in await bus.messages.deepest()]     # doctest: +SKIP
        [('pool:executors', 12)]
        """
        return await self._engine.read(deepest_queues, check_range(limit, "limit", 1, MAX_PAGE))

    async def spans(
        self, start: int, end: int, *, cursor: str | None = None, limit: int = PAGE_SIZE
    ) -> Page[MessageSpan]:
        """Return the messages that were on the bus in a period of wall time, newest first, each with its last delivery.

        >>> page = await bus.messages.spans(now - 300_000, now)                       # doctest: +SKIP
        """
        wanted = SpanQuery(
            check_range(start, "start", 0, MAX_ID), check_range(end, "end", 0, MAX_ID), check_row_cursor(cursor),
            check_range(limit, "limit", 1, MAX_PAGE),
        )  # fmt: skip
        return await self._engine.read(message_spans, wanted)

    async def dead(self, *, cursor: str | None = None, limit: int = PAGE_SIZE) -> Page[MessageRecord]:
        """Return dead letters, newest first, each with its last error.

        >>> letters = await bus.messages.dead()                                       # doctest: +SKIP
        """
        wanted = MessageFilter(cursor=check_row_cursor(cursor), limit=check_range(limit, "limit", 1, MAX_PAGE))
        return await self._engine.read(list_dead, wanted)

    async def requeue(self, *message_ids: str, by: str | None = None) -> int:
        """Requeue dead letters: all, or none. Their attempts restart at zero. Return their number. The audit log names
        the operator ``by``.

        >>> await bus.messages.requeue("m-7", "m-9")                                  # doctest: +SKIP
        """
        ids = tuple(dict.fromkeys(check_name(message_id, "message_id") for message_id in message_ids))
        return await self._engine.write(requeue, RequeueRequest(ids, by)) if ids else 0

    async def purge(
        self, *, status: Finished | None = None, older_than: float = 0, dry_run: bool = False, by: str | None = None
    ) -> int:
        """Delete finished messages that are older than this many seconds, dead letters only with ``status="dead"``.
        Return their number; with ``dry_run`` delete none of them.

        >>> await bus.messages.purge(status="acked", older_than=86400)                # doctest: +SKIP
        """
        if status is not None:
            check_choice(status, "status", FINISHED)
        before = self._engine.clock.now().wall - check_seconds(older_than, "older_than", zero=True)
        if dry_run:
            return await self._engine.read(count_purgeable, PurgeRequest(status, before, 0))
        deleted = last = 0
        while True:
            # In bounded transactions: other writers must not wait long for the lock.
            step = await self._engine.write(purge, PurgeRequest(status, before, _PURGE_STEP, last, by))
            deleted += len(step)
            if len(step) < _PURGE_STEP:
                return deleted
            last = max(step)


class Quotas:
    """``bus.quotas``: limits that keep a runaway agent from starving the others. None is set by default.

    >>> await bus.quotas.change(depth=10_000, rate=50)                                # doctest: +SKIP
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def policy(self) -> QuotaPolicy:
        """Return the quotas of this bus.

        >>> (await bus.quotas.policy()).depth                                         # doctest: +SKIP
        10000
        """
        return await self._engine.read(read_quotas, None)

    async def change(self, *, by: str | None = None, **changes: Unpack[QuotaChanges]) -> QuotaPolicy:
        """Set quotas for all processes; those not named are unchanged, None removes one. The names are those of
        ``records.QuotaPolicy``. Return the new quotas. The audit log names the operator ``by``.

        >>> await bus.quotas.change(depth=10_000, rate=50, size=2 * 1024**3)          # doctest: +SKIP
        """
        check_options(changes, QuotaPolicy.__struct_fields__)
        QuotaPolicy(**changes)
        return await self._engine.write(change_quotas, ChangeQuotasRequest({**changes}, by))
