"""``bus.messages``: messages of any status, dead letters and cleaning up, and what people send; ``bus.quotas``: the
limits of a bus.

Written by ``make sync`` from ``agentbus.api.messages``: change that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentbus.api import messages as api
from agentbus.core.validation import PAGE_SIZE, STEER_TIMEOUT
from agentbus.sync.client.base import Wrapper

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, Literal, Unpack

    import msgspec

    from agentbus.api.messages import Finished, QuotaChanges
    from agentbus.api.sending import SendOptions
    from agentbus.core.addresses import Address
    from agentbus.operations.receipts import Steered
    from agentbus.operations.send import Reach, Receipt
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


class Messages(Wrapper[api.Messages], wraps=api.Messages):
    """The messages of the bus.

    >>> for letter in bus.messages.dead().items:                              # doctest: +SKIP
    ...     print(letter.message_id, letter.error)
    """

    __slots__ = ()

    def send(
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

        >>> bus.messages.send("executor-1", "note", {"text": "use the new API"}, by="ada")   # doctest: +SKIP
        """
        return self._call(self._inner.send, to, type, payload, by=by, **options)

    def steer(
        self, agent: str, text: str, *, by: str, stop_after: bool = False, timeout: float = STEER_TIMEOUT
    ) -> Steered:
        """Direct a running agent as a person: a message of priority 9, which its adapter delivers at its next tool
        call. Wait up to ``timeout`` seconds until it is in the context of the agent. ``stop_after``: the agent is asked
        to stop after its current step, and its adapter lets it. Raises NotAnOperator if ``by`` is an agent.

        >>> steered = bus.messages.steer("executor-1", "use the new API", by="ada")   # doctest: +SKIP
        >>> steered.seen, steered.reach.reach                                         # doctest: +SKIP
        (True, 'next_tool')
        """
        return self._call(self._inner.steer, agent, text, by=by, stop_after=stop_after, timeout=timeout)

    def reach(self, to: str | Address, *, priority: int = 9) -> Reach:
        """Return when a recipient gets to see a message of this priority that is sent now, from what its adapters
        declared, its status and its last call. Of a pool or a topic, the member that is reached first.

        >>> bus.messages.reach("executor-1").reach                            # doctest: +SKIP
        'next_tool'
        """
        return self._call(self._inner.reach, to, priority=priority)

    def receipts(self, message_id: str) -> Sequence[SeenRecord]:
        """Return when a message, or a copy of it, was delivered into which context, oldest first.

        >>> [(one.agent, one.channel) for one in bus.messages.receipts("m-7")]  # doctest: +SKIP
        [('executor-1', 'hook')]
        """
        return self._call(self._inner.receipts, message_id)

    def wait_seen(self, *message_ids: str, timeout: float | None = None) -> SeenReport:
        """Wait until messages and all their copies were seen, or ``timeout`` seconds; return how far they were. It ends
        early if that cannot happen any more: a message is a dead letter, or expired.

        >>> bus.messages.wait_seen("m-7", timeout=60).seen                    # doctest: +SKIP
        True
        """
        return self._call(self._inner.wait_seen, *message_ids, timeout=timeout)

    def get(self, message_id: str) -> MessageRecord | None:
        """Return a message by its message_id, or None. Of a published message, the newest copy.

        >>> bus.messages.get("m-7")                                             # doctest: +SKIP
        """
        return self._call(self._inner.get, message_id)

    def list(
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

        >>> page = bus.messages.list(to="executor-1", status="queued")          # doctest: +SKIP
        """
        return self._call(
            self._inner.list,
            status=status,
            type=type,
            sender=sender,
            to=to,
            session=session,
            correlation=correlation,
            holder=holder,
            cursor=cursor,
            limit=limit,
        )

    def queues(
        self, *, kind: Literal["agent", "pool"] | None = None, cursor: str | None = None, limit: int = PAGE_SIZE
    ) -> Page[QueueRecord]:
        """Return the mailboxes of agents and pools, or of one ``kind``, oldest first, with the number of their messages
        and readers.

        >>> page = bus.messages.queues()                                        # doctest: +SKIP
        """
        return self._call(self._inner.queues, kind=kind, cursor=cursor, limit=limit)

    def deepest(self, limit: int = 20) -> Sequence[QueueDepth]:
        """Return the mailboxes with the most queued messages.

        >>> [(one.recipient, one.queued) for one in bus.messages.deepest()]     # doctest: +SKIP
        [('pool:executors', 12)]
        """
        return self._call(self._inner.deepest, limit)

    def spans(self, start: int, end: int, *, cursor: str | None = None, limit: int = PAGE_SIZE) -> Page[MessageSpan]:
        """Return the messages that were on the bus in a period of wall time, newest first, each with its last delivery.

        >>> page = bus.messages.spans(now - 300_000, now)                       # doctest: +SKIP
        """
        return self._call(self._inner.spans, start, end, cursor=cursor, limit=limit)

    def dead(self, *, cursor: str | None = None, limit: int = PAGE_SIZE) -> Page[MessageRecord]:
        """Return dead letters, newest first, each with its last error.

        >>> letters = bus.messages.dead()                                       # doctest: +SKIP
        """
        return self._call(self._inner.dead, cursor=cursor, limit=limit)

    def requeue(self, *message_ids: str, by: str | None = None) -> int:
        """Requeue dead letters: all, or none. Their attempts restart at zero. Return their number. The audit log names
        the operator ``by``.

        >>> bus.messages.requeue("m-7", "m-9")                                  # doctest: +SKIP
        """
        return self._call(self._inner.requeue, *message_ids, by=by)

    def purge(
        self, *, status: Finished | None = None, older_than: float = 0, dry_run: bool = False, by: str | None = None
    ) -> int:
        """Delete finished messages that are older than this many seconds, dead letters only with ``status="dead"``.
        Return their number; with ``dry_run`` delete none of them.

        >>> bus.messages.purge(status="acked", older_than=86400)                # doctest: +SKIP
        """
        return self._call(self._inner.purge, status=status, older_than=older_than, dry_run=dry_run, by=by)


class Quotas(Wrapper[api.Quotas], wraps=api.Quotas):
    """``bus.quotas``: limits that keep a runaway agent from starving the others, and agents from answering each other
    without end. By default only the bound of a thread is set.

    >>> bus.quotas.change(depth=10_000, rate=50)                                # doctest: +SKIP
    """

    __slots__ = ()

    def policy(self) -> QuotaPolicy:
        """Return the quotas of this bus.

        >>> bus.quotas.policy().depth                                         # doctest: +SKIP
        10000
        """
        return self._call(self._inner.policy)

    def change(self, *, by: str | None = None, **changes: Unpack[QuotaChanges]) -> QuotaPolicy:
        """Set quotas for all processes; those not named are unchanged, None removes one. The names are those of
        ``records.QuotaPolicy``. Return the new quotas. The audit log names the operator ``by``.

        >>> bus.quotas.change(depth=10_000, rate=50, size=2 * 1024**3)          # doctest: +SKIP
        """
        return self._call(self._inner.change, by=by, **changes)
