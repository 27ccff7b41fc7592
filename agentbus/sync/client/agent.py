"""An agent: what a worker does on the bus.

Written by ``make sync`` from ``agentbus.api.agent``: change that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from agentbus.api import agent as api
from agentbus.core.validation import LEASE
from agentbus.sync.client.base import Wrapper, unwrap_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from contextlib import AbstractContextManager
    from typing import Any, Unpack

    import msgspec

    from agentbus.api import checkpoints
    from agentbus.api.sending import Outgoing, SendOptions
    from agentbus.core.addresses import Address
    from agentbus.operations.receipts import Wakes
    from agentbus.operations.send import Receipt
    from agentbus.records import Checkpoint, CheckpointSummary
    from agentbus.sync.client.items import Items
    from agentbus.sync.client.message import Message
    from agentbus.sync.client.state import State
    from agentbus.sync.client.unit import Unit


class Agent(Wrapper[api.Agent], wraps=api.Agent):
    """A registered agent in one incarnation. Made by ``bus.agent(…)`` or ``bus.register(…)``.

    Every write is fenced by its epoch: after a takeover, the old incarnation can write nothing.

    >>> with bus.agent("planner-1", type="planner") as planner:                 # doctest: +SKIP
    ...     planner.send("executor-1", "task_assignment", {"phase": "design"})
    """

    __slots__ = ()

    @property
    def id(self) -> str:
        """Its id."""
        return self._inner.id

    @property
    def epoch(self) -> int:
        """The number of this incarnation; each registration of the id has a higher one."""
        return self._inner.epoch

    @property
    def session(self) -> str | None:
        """The session that it takes part in, if any."""
        return self._inner.session

    @property
    def ended(self) -> bool:
        """True once it has completed, failed or stopped."""
        return self._inner.ended

    def send(
        self, to: str | Address, type: str | msgspec.Struct, payload: Any = None, **options: Unpack[SendOptions]
    ) -> Receipt:
        """Send a message to an agent, a pool or a topic. When this returns, the message is committed.

        A Struct in place of the type is type and payload in one; its first use defines it (see ``Bus.define``).

        ``agentbus.api.sending.SendOptions`` describes the options, such as ``priority``, ``delay`` and ``message_id``.

        >>> agent.send("executor-1", "task_assignment", {"phase": "design"}, priority=9)   # doctest: +SKIP
        >>> agent.send(agentbus.pool("executors"), "task_assignment", {"n": 1})            # doctest: +SKIP
        >>> agent.send("executor-1", Plan(files=12))                                       # doctest: +SKIP
        """
        return self._call(self._inner.send, to, type, payload, **options)

    def send_many(self, messages: Iterable[Outgoing]) -> list[Receipt]:
        """Send many messages in one commit: all, or none. An error has the position of the invalid one as ``item``.

        Each message is a ``(to, type, payload)``, a ``(to, Struct)``, or a dict with the arguments of ``send``.

        >>> agent.send_many([("a", "note", 1), {"to": "b", "type": "note", "priority": 9}])  # doctest: +SKIP
        """
        return self._call(self._inner.send_many, list(messages))

    def publish(
        self, name: str, type: str | msgspec.Struct, payload: Any = None, **options: Unpack[SendOptions]
    ) -> Receipt:
        """Send a copy to each subscriber of a topic; the receipt's ``delivered`` is the number of copies.

        >>> agent.publish("plans", "note", {"plan": 3})                         # doctest: +SKIP
        """
        return self._call(self._inner.publish, name, type, payload, **options)

    def request(
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

        >>> answer = agent.request("executor-1", "coordination_request", {"q": "ready?"}, timeout=30)
        ...                                                                           # doctest: +SKIP
        """
        return cast("Message", self._call_wrapping(self._inner.request, to, type, payload, timeout=timeout, **options))

    def receive(self, *, timeout: float | None = None, lease: float = LEASE) -> Message | None:
        """Return the most urgent message of all mailboxes this agent reads, or None after ``timeout`` seconds.

        Without a timeout it waits indefinitely; ``timeout=0`` does not wait.

        >>> message = agent.receive(timeout=5)                                  # doctest: +SKIP
        """
        return cast("Message | None", self._call_wrapping(self._inner.receive, timeout=timeout, lease=lease))

    def receive_many(
        self, most: int, *, timeout: float | None = None, lease: float = LEASE, ack: Iterable[Message] = ()
    ) -> list[Message]:
        """Return up to ``most`` messages at once, most urgent first; an empty list after ``timeout`` seconds.

        The messages ``ack`` are acknowledged in the same commit.

        >>> batch = agent.receive_many(64, ack=batch)                           # doctest: +SKIP
        """
        return cast(
            "list[Message]",
            self._call_wrapping(self._inner.receive_many, most, timeout=timeout, lease=lease, ack=unwrap_all(ack)),
        )

    def pending(self) -> bool:
        """Return True if ``receive`` would find a message now. A fast check that claims nothing.

        >>> agent.pending()                                                     # doctest: +SKIP
        True
        """
        return self._call(self._inner.pending)

    def inbox(self, *, prefetch: int = 1, lease: float = LEASE) -> Iterator[Message]:
        """Iterate over messages as they arrive, without end.

        With a ``prefetch`` above 1 that many are claimed at once. Those not yet delivered are only reserved: their
        attempts are not counted, and leaving the loop releases them.

        >>> for message in agent.inbox():                                       # doctest: +SKIP
        ...     with message:
        ...         work(message.payload)
        """
        return self._iterate(self._inner.inbox, prefetch=prefetch, lease=lease)

    def serve(self, handler: Callable[[Message, Unit], object], *, concurrency: int = 1, lease: float = LEASE) -> None:
        """Handle messages until cancelled, ``concurrency`` at a time. An exception of the handler is recorded with the
        message, which is retried later.

        An async handler runs on the event loop. A plain function runs on a thread, where it may block. A thread cannot
        be cancelled: if its lease is lost, it runs to its end, and what it did through the unit is discarded.

        >>> def handle(message, unit):                                          # doctest: +SKIP
        ...     unit.send(message.sender, "completion_notification", work(message.payload))
        >>> agent.serve(handle, concurrency=4)                                  # doctest: +SKIP
        """
        self._call(self._inner.serve, self._handler(handler), concurrency=concurrency, lease=lease)

    def ack(self, messages: Iterable[Message]) -> None:
        """Acknowledge messages in one commit: all, or none (LeaseLost names the first that is lost).

        >>> agent.ack(batch)                                                    # doctest: +SKIP
        """
        self._call(self._inner.ack, unwrap_all(messages))

    def seen(self, *messages: str, channel: str, client: str | None = None) -> None:
        """Record that messages (``m-7``, or ``m-7#2`` with its lease) were delivered into the context of this agent, by
        what (``http``, ``hook`` …), and into which session of its client. The first time in a context counts.

        >>> agent.seen("m-7#1", channel="http")                                 # doctest: +SKIP
        """
        self._call(self._inner.seen, *messages, channel=channel, client=client)

    def declare_reach(self, wakes: Wakes | None, *, channel: str) -> None:
        """Declare that an adapter delivers messages to this incarnation after every ``tool`` call, or with every
        ``turn``; None withdraws it. A call that waits for messages need not declare that.

        >>> agent.declare_reach("tool", channel="hook")                         # doctest: +SKIP
        """
        self._call(self._inner.declare_reach, wakes, channel=channel)

    def unit(self) -> Unit:
        """Return a block whose sends, acknowledgements, state, checkpoints, documents and progress are one commit.

        >>> with agent.unit() as unit:                                          # doctest: +SKIP
        ...     unit.ack(message)
        ...     unit.send("reviewer-1", "note", {"text": "done"})
        """
        return cast("Unit", self._wrap(self._inner.unit()))

    @property
    def items(self) -> Items:
        """The work items that it takes from the list that all agents share.

        >>> item = agent.items.take(workflow="review", timeout=60)              # doctest: +SKIP
        """
        return cast("Items", self._wrap(self._inner.items))

    @property
    def state(self) -> State:
        """The agent's own entries; they outlive it, and its next incarnation has them.

        >>> agent.state.set("scope", {"files": 12}, ttl=3600)                   # doctest: +SKIP
        1
        """
        return cast("State", self._wrap(self._inner.state))

    def checkpoint(self, name: str, snapshot: Any, **options: Unpack[checkpoints.CheckpointOptions]) -> Checkpoint:
        """Save a named snapshot to resume from, also in another incarnation of this agent.

        Options: ``notes``; ``files``, paths below ``root`` (default: the working directory), whose sizes and hashes
        are stored, not their contents; ``keep``, the number of checkpoints of this name to keep, this one included.
        Each save deletes at most 100 older ones (``bus.checkpoints.prune`` deletes all).

        >>> agent.checkpoint("after_planning", {"step": 1}, files=["plan.md"])  # doctest: +SKIP
        """
        return self._call(self._inner.checkpoint, name, snapshot, **options)

    @property
    def restored(self) -> CheckpointSummary | None:
        """The checkpoint to resume from: the newest that the agent saved in this session (or in none, if it is in
        none), if its previous incarnation did not complete; else None.

        >>> last = agent.restore(id=agent.restored.id) if agent.restored else None   # doctest: +SKIP
        >>> step = last.snapshot["step"] if last else 0                               # doctest: +SKIP
        """
        return self._inner.restored

    def restore(self, name: str | None = None, *, id: int | None = None) -> Checkpoint | None:
        """Return this agent's newest checkpoint (of that name) of any session, or the one with that id; None if there
        is none. ``restored`` is the one to resume from.

        >>> last = agent.restore("after_planning")                              # doctest: +SKIP
        >>> step = last.snapshot["step"] if last else 0                               # doctest: +SKIP
        """
        return self._call(self._inner.restore, name, id=id)

    def checkpoint_every(
        self, seconds: float, make: checkpoints.Make, *, name: str = "auto", keep: int = 10
    ) -> AbstractContextManager[None]:
        """Save the result of ``make()`` periodically while a block runs, and once more at its end, unless it is
        unchanged. After an exception in the block nothing more is saved.

        ``make`` may be a coroutine function. If it fails, that is logged, and it is called again next time.

        >>> with agent.checkpoint_every(30, lambda: {"done": done}):            # doctest: +SKIP
        ...     work()
        """
        return self._block(self._inner.checkpoint_every, seconds, make, name=name, keep=keep)

    def join(self, *pools: str | Address) -> None:
        """Take work from these pools too.

        >>> agent.join("executors")                                             # doctest: +SKIP
        """
        self._call(self._inner.join, *pools)

    def leave(self, *pools: str | Address) -> None:
        """Take no more work from these pools.

        >>> agent.leave("executors")                                            # doctest: +SKIP
        """
        self._call(self._inner.leave, *pools)

    def subscribe(self, *topics: str | Address) -> None:
        """Get a copy of every message that is published to these topics from now on.

        >>> agent.subscribe("plans")                                            # doctest: +SKIP
        """
        self._call(self._inner.subscribe, *topics)

    def unsubscribe(self, *topics: str | Address) -> None:
        """Get no more copies; those not yet received expire.

        >>> agent.unsubscribe("plans")                                          # doctest: +SKIP
        """
        self._call(self._inner.unsubscribe, *topics)

    def progress(self, percent: int, note: str | None = None) -> None:
        """Report the progress of the work, from 0 to 100.

        >>> agent.progress(40, "writing tests")                                 # doctest: +SKIP
        """
        self._call(self._inner.progress, percent, note)

    def busy(self, seconds: float) -> None:
        """Announce that the agent will be silent for this long, and should not be suspected; 0 revokes it.

        >>> agent.busy(600)                                                     # doctest: +SKIP
        """
        self._call(self._inner.busy, seconds)

    def complete(self) -> None:
        """Mark the agent completed: the work is done.

        >>> agent.complete()                                                    # doctest: +SKIP
        """
        self._call(self._inner.complete)

    def fail(self, error: str) -> None:
        """Mark the agent failed: the work cannot be done. Its parent is notified.

        >>> agent.fail("the tests cannot be made to pass")                      # doctest: +SKIP
        """
        self._call(self._inner.fail, error)

    def stop(self, reason: str | None = None) -> None:
        """Mark the agent stopped, though the work is not done. Recovery does not expect it again.

        >>> agent.stop()                                                        # doctest: +SKIP
        """
        self._call(self._inner.stop, reason)
