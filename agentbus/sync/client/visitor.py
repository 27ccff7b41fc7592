"""A visiting agent with an event loop: a program that calls now and then, over HTTP for example. Each call counts as
its heartbeat, and extends its leases.

``sync.agent`` is the same without an event loop, for the command line; both share the functions of ``api.sending``,
``api.receiving`` and ``api.deliveries``.

Written by ``make sync`` from ``agentbus.api.visitor``: change that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from agentbus.api import visitor as api
from agentbus.core.validation import KEEP_VERSIONS, MAX_BATCH
from agentbus.sync.client.base import Wrapper

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, Unpack

    from agentbus.api.sending import SendOptions
    from agentbus.core.addresses import Address
    from agentbus.operations.agent_identity import Registration
    from agentbus.operations.documents import Saved
    from agentbus.operations.receipts import Wakes
    from agentbus.operations.rows import Delivery
    from agentbus.operations.send import Receipt
    from agentbus.records import Checkpoint
    from agentbus.sync.client.items import Items
    from agentbus.sync.client.state import State


class Visitor(Wrapper[api.Visitor], wraps=api.Visitor):
    """A visiting agent in one incarnation. Made by ``bus.visitor(…)`` or ``bus.register_visitor(…)``.

    >>> visitor = bus.visitor("planner-1", epoch=3)                             # doctest: +SKIP
    >>> visitor.send("executor-1", "task_assignment", {"phase": "design"})      # doctest: +SKIP
    """

    __slots__ = ()

    @property
    def id(self) -> str:
        """Its id."""
        return self._inner.id

    @property
    def epoch(self) -> int:
        """The number of the incarnation that it acts in."""
        return self._inner.epoch

    @property
    def session(self) -> str | None:
        """The session that it takes part in, if any."""
        return self._inner.session

    def heartbeat(self) -> None:
        """Record that the agent is alive, and extend its leases.

        >>> visitor.heartbeat()                                                 # doctest: +SKIP
        """
        self._call(self._inner.heartbeat)

    def send(self, to: str | Address, type: str, payload: Any = None, **options: Unpack[SendOptions]) -> Receipt:
        """Send a message to an agent, a pool or a topic; the options are those of ``Agent.send``.

        >>> visitor.send("executor-1", "note", {"n": 1}, message_id="order-7")  # doctest: +SKIP
        """
        return self._call(self._inner.send, to, type, payload, **options)

    def request(
        self, to: str | Address, type: str, payload: Any = None, *, timeout: float, **options: Unpack[SendOptions]
    ) -> Delivery:
        """Send a message and wait for its reply. Raises RequestTimedOut, or RequestDied when it is a dead letter.

        >>> visitor.request("executor-1", "coordination_request", {"q": "ready?"}, timeout=30)   # doctest: +SKIP
        """
        return self._call(self._inner.request, to, type, payload, timeout=timeout, **options)

    def receive(self, most: int = 1, *, timeout: float = 0, lease: float | None = None) -> list[Delivery]:
        """Return up to ``most`` messages, most urgent first; an empty list after ``timeout`` seconds.

        >>> deliveries = visitor.receive(10, timeout=30)                        # doctest: +SKIP
        """
        return self._call(self._inner.receive, most, timeout=timeout, lease=lease)

    def abandon(self) -> None:
        """Release what this object has received: its caller is gone. The attempts do not count.

        >>> visitor.abandon()                                                         # doctest: +SKIP
        """
        self._start(self._inner.abandon)

    def peek(self, most: int = 1) -> list[Delivery]:
        """Return the messages that ``receive`` would return now, without claiming them.

        >>> visitor.peek(10)                                                    # doctest: +SKIP
        """
        return self._call(self._inner.peek, most)

    def seen(self, *messages: str, channel: str, client: str | None = None) -> None:
        """Record that messages (``m-7``, or ``m-7#2`` with its lease) were delivered into the context of this agent, by
        what (``http``, ``hook`` …), and into which session of its client. The first time in a context counts.

        >>> visitor.seen("m-7#1", channel="http")                               # doctest: +SKIP
        """
        self._call(self._inner.seen, *messages, channel=channel, client=client)

    def declare_reach(self, wakes: Wakes | None, *, channel: str) -> None:
        """Declare that an adapter delivers messages to this incarnation after every ``tool`` call, or with every
        ``turn``; None withdraws it. A call that waits for messages need not declare that.

        >>> visitor.declare_reach("tool", channel="hook")                       # doctest: +SKIP
        """
        self._call(self._inner.declare_reach, wakes, channel=channel)

    def in_hand(self, most: int = MAX_BATCH) -> list[Delivery]:
        """Return the messages that it has received and not settled, with their leases.

        >>> [one.lease for one in visitor.in_hand()]                            # doctest: +SKIP
        ['m-7#1']
        """
        return self._call(self._inner.in_hand, most)

    def ack(self, *messages: str) -> list[str]:
        """Acknowledge messages (``m-7``, or ``m-7#2`` with its lease) in one commit: all, or none. Return those that it
        had acknowledged before.

        >>> visitor.ack("m-7#1", "m-8#1")                                       # doctest: +SKIP
        []
        """
        return self._call(self._inner.ack, *messages)

    def nack(self, *messages: str, delay: float | None = None, error: str | None = None) -> list[str]:
        """Release messages, to be retried after ``delay`` seconds (default: exponential backoff). Return those whose
        last attempt it was: they became dead letters.

        >>> visitor.nack("m-7#1", delay=5, error="the model was overloaded")    # doctest: +SKIP
        []
        """
        return self._call(self._inner.nack, *messages, delay=delay, error=error)

    def reject(self, *messages: str, error: str) -> None:
        """Make messages dead letters at once, without a retry.

        >>> visitor.reject("m-7#1", error="no such file")                       # doctest: +SKIP
        """
        self._call(self._inner.reject, *messages, error=error)

    def extend(self, *messages: str, seconds: float) -> None:
        """Extend leases to this many seconds from now.

        >>> visitor.extend("m-7#1", seconds=600)                                # doctest: +SKIP
        """
        self._call(self._inner.extend, *messages, seconds=seconds)

    def reply(
        self, message: str, type: str, payload: Any = None, *, settle: bool = True, **options: Unpack[SendOptions]
    ) -> Receipt:
        """Reply to the sender of a message; with ``settle`` acknowledge it in the same commit, if it is leased.

        >>> visitor.reply("m-7#1", "coordination_response", {"ready": True})    # doctest: +SKIP
        """
        return self._call(self._inner.reply, message, type, payload, settle=settle, **options)

    def state(self, scope: str | None = None) -> State:
        """Return its own entries, or those of another scope, changed by this agent.

        >>> visitor.state().set("phase", "design")                              # doctest: +SKIP
        1
        """
        return cast("State", self._wrap(self._inner.state(scope)))

    def checkpoint(self, name: str, snapshot: Any, *, notes: str = "", keep: int | None = None) -> Checkpoint:
        """Save a named snapshot to resume from. It refers to no files: the caller may be on another machine.

        >>> visitor.checkpoint("half", {"step": 3})                             # doctest: +SKIP
        """
        return self._call(self._inner.checkpoint, name, snapshot, notes=notes, keep=keep)

    def document(self, name: str, value: Any, *, session: str | None = None, keep: int = KEEP_VERSIONS) -> Saved:
        """Save a new version of a document of its session, or of another; it is the author.

        >>> visitor.document("plan", {"phases": 3})                             # doctest: +SKIP
        """
        return self._call(self._inner.document, name, value, session=session, keep=keep)

    @property
    def items(self) -> Items:
        """The work items that it takes from the list that all agents share.

        >>> item = visitor.items.take(workflow="review", timeout=30)            # doctest: +SKIP
        """
        return cast("Items", self._wrap(self._inner.items))

    def join(self, session: str) -> str | None:
        """Take part in a session from now on, in the same incarnation; return the open session that it left.

        >>> visitor.join("planning-001")                                        # doctest: +SKIP
        """
        return self._call(self._inner.join, session)

    def change_membership(
        self, *, pools: Sequence[str] = (), topics: Sequence[str] = (), leave: bool = False
    ) -> Registration:
        """Join, or leave, pools and topics.

        >>> visitor.change_membership(pools=["executors"])                      # doctest: +SKIP
        """
        return self._call(self._inner.change_membership, pools=pools, topics=topics, leave=leave)

    def progress(self, percent: int, note: str | None = None) -> None:
        """Report the progress of the work, from 0 to 100.

        >>> visitor.progress(40, "writing tests")                               # doctest: +SKIP
        """
        self._call(self._inner.progress, percent, note)

    def busy(self, seconds: float) -> None:
        """Announce that the agent will be silent for this long, and should not be suspected; 0 revokes it. Its leases
        are extended for that time.

        >>> visitor.busy(600)                                                   # doctest: +SKIP
        """
        self._call(self._inner.busy, seconds)

    def complete(self, *, by: str | None = None) -> None:
        """Mark the agent completed: the work is done. The audit log shows the operator ``by`` instead of the agent.

        >>> visitor.complete()                                                  # doctest: +SKIP
        """
        self._call(self._inner.complete, by=by)

    def fail(self, error: str, *, by: str | None = None) -> None:
        """Mark the agent failed: the work cannot be done. Its parent is notified. The audit log shows the operator
        ``by`` instead of the agent.

        >>> visitor.fail("the tests cannot be made to pass")                    # doctest: +SKIP
        """
        self._call(self._inner.fail, error, by=by)

    def stop(self, reason: str | None = None, *, by: str | None = None) -> None:
        """Mark the agent stopped, though the work is not done. The audit log shows the operator ``by`` instead of the
        agent.

        >>> visitor.stop("out of budget")                                       # doctest: +SKIP
        """
        self._call(self._inner.stop, reason, by=by)
