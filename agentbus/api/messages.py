"""``bus.messages``: messages of any status, dead letters and cleaning up, and what people send; ``bus.quotas``: the
limits of a bus."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypedDict, TypeVar, Unpack

from agentbus.api.sending import OPTIONS, SendOptions, draft_from, send_drafts
from agentbus.core.addresses import Address, check_agent, operator_name, parse_address
from agentbus.core.validation import (
    MAX_ID,
    MAX_PAGE,
    MESSAGE_STATUSES,
    PAGE_SIZE,
    STEER_TIMEOUT,
    Priority,
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
from agentbus.errors import UnknownAgent, UnknownRecipient
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
from agentbus.operations.protocol import SEEN, Actor, Operation
from agentbus.operations.quotas import ChangeQuotasRequest, change_quotas, read_quotas
from agentbus.operations.receipts import Steered, seen_is_final, seen_report
from agentbus.operations.receive import FINISHED, PurgeRequest, RequeueRequest, count_purgeable, purge, requeue
from agentbus.operations.send import STEER, Reach, ReachQuery, Receipt, SendRequest, reach, send
from agentbus.records import (
    MessageRecord,
    MessageSpan,
    Page,
    QueueDepth,
    QueueRecord,
    QuotaPolicy,
    SeenRecord,
    SeenReport,
)

if TYPE_CHECKING:
    import msgspec

    from agentbus.api.sending import PayloadChecker
    from agentbus.api.types import Vocabulary

R = TypeVar("R")
T = TypeVar("T")
_PURGE_STEP = 5000
_RECHECK = 5.0
"""Seconds after which a wait for a receipt checks whether the message was acknowledged without one."""

Finished = Literal["acked", "dead", "expired"]


class QuotaChanges(TypedDict, total=False):
    """Quotas to change; ``records.QuotaPolicy`` describes them."""

    depth: int | None
    rate: float | None
    size: int | None
    thread: int | None


class Waiter(Protocol):
    """Waits until a channel is rung."""

    async def wait(self, seconds: float | None) -> None: ...


class Listening(Protocol):
    """The channels that a process watches."""

    def to(self, channel: str) -> AbstractAsyncContextManager[Waiter]: ...


class Source(Protocol):
    """An open bus, asynchronous or synchronous."""

    @property
    def _engine(self) -> Engine: ...
    @property
    def _vocabulary(self) -> Vocabulary: ...
    @property
    def _checker(self) -> PayloadChecker: ...
    @property
    def _listening(self) -> Listening: ...


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

    async def steer(
        self, agent: str, text: str, *, by: str, stop_after: bool = False, timeout: float = STEER_TIMEOUT
    ) -> Steered:
        """Direct a running agent as a person: a message of priority 9, which its adapter delivers at its next tool
        call. Wait up to ``timeout`` seconds until it is in the context of the agent. ``stop_after``: the agent is asked
        to stop after its current step, and its adapter lets it. Raises NotAnOperator if ``by`` is an agent.

        >>> steered = await bus.messages.steer("executor-1", "use the new API", by="ada")   # doctest: +SKIP
        >>> steered.seen, steered.reach.reach                                         # doctest: +SKIP
        (True, 'next_tool')
        """
        operator = Operator(self._bus, await register_operator(self._engine, by))
        payload = {"text": check_text(text, "text", low=1), "stop_after": stop_after}
        if stop_after:
            payload["text"] = f"{text}\n\nStop after your current step."
        to = Address("agent", check_agent(agent))
        check_seconds(timeout, "timeout", zero=True)
        draft = draft_from(operator, to, STEER, payload, {"priority": Priority.URGENT})
        reached = await self.reach(to)
        try:
            (receipt,) = await self._engine.write(send, SendRequest(operator._actor, (draft,)))
        except UnknownRecipient:
            raise UnknownAgent(agent=agent) from None
        message_id = str(receipt.message_id)
        report = await self.wait_seen(message_id, timeout=timeout)
        return Steered(message_id, report.seen, report.receipts, reached if report.seen else await self.reach(to))

    async def reach(self, to: str | Address, *, priority: int = 9) -> Reach:
        """Return when a recipient gets to see a message of this priority that is sent now, from what its adapters
        declared, its status and its last call. Of a pool or a topic, the member that is reached first.

        >>> (await bus.messages.reach("executor-1")).reach                            # doctest: +SKIP
        'next_tool'
        """
        return await self._engine.read(reach, ReachQuery(parse_address(to), check_range(priority, "priority", 0, 9)))

    async def receipts(self, message_id: str) -> Sequence[SeenRecord]:
        """Return when a message, or a copy of it, was delivered into which context, oldest first.

        >>> [(one.agent, one.channel) for one in await bus.messages.receipts("m-7")]  # doctest: +SKIP
        [('executor-1', 'hook')]
        """
        report = await self._engine.read(seen_report, (check_name(message_id, "message_id"),))
        return report.receipts

    async def wait_seen(self, *message_ids: str, timeout: float | None = None) -> SeenReport:
        """Wait until messages and all their copies were seen, or ``timeout`` seconds; return how far they were. It ends
        early if that cannot happen any more: a message is a dead letter, or expired.

        >>> (await bus.messages.wait_seen("m-7", timeout=60)).seen                    # doctest: +SKIP
        True
        """
        wanted = tuple(check_name(message_id, "message_id") for message_id in message_ids)
        clock = self._engine.clock
        deadline = None
        if timeout is not None:
            deadline = clock.now().awake + check_seconds(timeout, "timeout", zero=True)
        if timeout == 0 or await self._engine.read(seen_is_final, wanted):
            return await self._engine.read(seen_report, wanted)
        # Listen before reading: a receipt in between wakes the waiter. The receipts are read once, at the end.
        async with self._bus._listening.to(SEEN) as waiter:
            while not await self._engine.read(seen_is_final, wanted):
                left = None if deadline is None else (deadline - clock.now().awake) / 1000
                if left is not None and left <= 0:
                    break
                # An acknowledgement without a receipt rings nothing.
                await waiter.wait(_RECHECK if left is None else min(_RECHECK, left))
        return await self._engine.read(seen_report, wanted)

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
    """``bus.quotas``: limits that keep a runaway agent from starving the others, and agents from answering each other
    without end. By default only the bound of a thread is set.

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
