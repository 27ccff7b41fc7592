"""An agent: what a worker does on the bus."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from functools import cached_property
from typing import Any

import anyio
import msgspec

from agentbus import drafting, receiving
from agentbus.addresses import Address, plain_names, topic
from agentbus.drafting import OPTIONS, draft
from agentbus.errors import AgentBusError, InvalidInput, RequestDied, RequestTimedOut
from agentbus.errors.base import shown
from agentbus.limits import (
    MAX_ATTEMPTS,
    MAX_BATCH,
    Priority,
    check_options,
    check_range,
    check_seconds,
    check_text,
    reason_text,
)
from agentbus.message import Message
from agentbus.operations import BUS, reply_channel
from agentbus.operations.agents import BusyRequest, ProgressRequest, busy, progress
from agentbus.operations.leases import AckRequest
from agentbus.operations.messages import Draft, Receipt
from agentbus.operations.reading import pending
from agentbus.operations.replies import ReplyRequest, take_reply
from agentbus.saving import Saver
from agentbus.state import State
from agentbus.unit import Unit

LEASE = 60.0
"""Seconds that a received message is ours, unless said otherwise."""


class Agent(Saver):
    """A registered agent in one of its lives. Made by ``bus.agent(…)`` or ``bus.register(…)``.

    >>> async with bus.agent("planner-1", type="planner") as planner:                 # doctest: +SKIP
    ...     await planner.send("executor-1", "task_assignment", {"phase": "design"})
    """

    def __repr__(self) -> str:
        return f"<Agent {self.id}#{self.epoch}>"

    # Sending

    async def send(
        self,
        to: str | Address,
        type: str | msgspec.Struct,
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
        """Send a message to an agent, a pool or a topic. When this returns, the message is committed.

        A Struct in place of the type is type and payload in one; its first use defines it (see ``Bus.define``).
        ``delay`` and ``ttl`` are seconds. With a ``message_id`` of your own you may call again after a crash or a
        cancellation: the same id with the same content is sent once.

        >>> await agent.send("executor-1", "task_assignment", {"phase": "design"}, priority=9)   # doctest: +SKIP
        >>> await agent.send(agentbus.pool("executors"), "task_assignment", {"n": 1})            # doctest: +SKIP
        >>> await agent.send("executor-1", Plan(files=12))                                       # doctest: +SKIP
        """
        message = draft(
            to, type, payload, self.vocabulary, priority, delay, ttl, message_id, max_attempts, correlation,
            self.session if session is None else session,
        )  # fmt: skip
        (receipt,) = await self.send_drafts(message)
        return receipt

    async def send_many(self, messages: Iterable[dict[str, Any] | Sequence[Any]]) -> list[Receipt]:
        """Send many messages in one commit: all, or none. An error has the position of the bad one as ``item``.

        Each message is a ``(to, type, payload)``, a ``(to, Struct)``, or a dict with the arguments of ``send``.

        >>> await agent.send_many([("a", "note", 1), {"to": "b", "type": "note", "priority": 9}])  # doctest: +SKIP
        """
        drafts: list[Draft] = []
        for item, message in enumerate(messages):
            try:
                if isinstance(message, dict):
                    check_options(message, ("to", "type", "payload", *OPTIONS))
                    if not {"to", "type"} <= message.keys():
                        raise TypeError("it has no 'to' or no 'type'")
                    drafts.append(self.draft(**message))
                elif isinstance(message, tuple | list) and 2 <= len(message) <= 3:
                    to, type, payload = (*message, None) if len(message) == 2 else message
                    drafts.append(draft(to, type, payload, self.vocabulary, session=self.session))
                else:
                    raise TypeError(f"it is {shown(message, repr):.80}")
            except AgentBusError as error:
                raise error.__class__(**{**error.facts, "item": item}) from None
            except TypeError as error:
                reason = f"message {item} is not a (to, type, payload) or the arguments of send: {reason_text(error)}"
                raise InvalidInput(reason=reason, item=item) from None
        if not drafts:
            return []
        check_range(len(drafts), "number of messages", 1, MAX_BATCH)
        return await self.send_drafts(*drafts)

    async def publish(self, name: str, type: str | msgspec.Struct, payload: Any = None, **options: Any) -> Receipt:
        """Send a copy to each subscriber of a topic; the receipt's ``delivered`` says how many there are.

        >>> await agent.publish("plans", "note", {"plan": 3})                         # doctest: +SKIP
        """
        (receipt,) = await self.send_drafts(self.draft(topic(name), type, payload, **options))
        return receipt

    async def request(
        self, to: str | Address, type: str | msgspec.Struct, payload: Any = None, *, timeout: float, **options: Any
    ) -> Message:
        """Send a message and wait for its reply. Raises RequestTimedOut, or RequestDied when it is a dead letter.

        The reply needs no acknowledgement. A request that nobody has taken when the time is up expires.

        >>> answer = await agent.request("executor-1", "coordination_request", {"q": "ready?"}, timeout=30)
        ...                                                                           # doctest: +SKIP
        """
        duration = check_seconds(timeout, "timeout")
        correlation = options.pop("correlation", None) or drafting.correlation(options.get("message_id"))
        options.setdefault("ttl", timeout)
        question = self.draft(to, type, payload, correlation=correlation, **options)
        message = msgspec.structs.replace(question, reply_to=self.replies)
        ear = self.engine.hub.listen((reply_channel(self.replies, correlation),))
        self.waiting += 1
        try:
            deadline = self.engine.clock.now().awake + duration
            (receipt,) = await self.send_drafts(message)
            if not receipt.delivered:
                raise RequestDied(recipient=str(to), reason="the topic has no subscriber")
            look = receipt.duplicate
            while True:
                left = deadline - self.engine.clock.now().awake
                if not look and left > 0:
                    await ear.wait(left / 1000)
                row = await self.write(
                    take_reply, ReplyRequest(self.actor, self.replies, correlation, receipt.duplicate)
                )
                if row is not None:
                    break
                if left <= 0:
                    raise RequestTimedOut(recipient=str(to), type=message.type, timeout=timeout)
                look = False
        finally:
            self.waiting -= 1
            ear.close()
        reply = Message(self, row, counted=False, duration=0, renew_at=0)
        reply.settled = True
        if reply.sender == BUS:
            raise RequestDied(recipient=str(to), reason=reply.payload["dead"])
        return reply

    # Receiving

    async def receive(self, *, timeout: float | None = None, lease: float = LEASE) -> Message | None:
        """The most urgent message of all mailboxes this agent reads, or None after ``timeout`` seconds.

        Without a timeout it waits for as long as it takes; ``timeout=0`` only looks.

        >>> message = await agent.receive(timeout=5)                                  # doctest: +SKIP
        """
        messages = await receiving.receive(self, 1, timeout=timeout, duration=check_seconds(lease, "lease"))
        return messages[0] if messages else None

    async def receive_many(
        self,
        most: int,
        *,
        timeout: float | None = None,
        lease: float = LEASE,
        ack: Iterable[Message] = (),
    ) -> list[Message]:
        """Up to ``most`` messages at once, most urgent first; an empty list after ``timeout`` seconds.

        ``ack`` are messages that are done: they are acknowledged in the same commit.

        >>> batch = await agent.receive_many(64, ack=batch)                           # doctest: +SKIP
        """
        done = list(ack)
        messages = await receiving.receive(
            self,
            check_range(most, "most", 1, MAX_BATCH),
            timeout=timeout,
            duration=check_seconds(lease, "lease"),
            done=tuple(message.lease for message in done),
        )
        for message in done:
            message.settled = True
        return messages

    async def pending(self) -> bool:
        """Whether it is worth calling ``receive`` now: something is ready, has come due, or was held for too long. A
        quick look, which takes nothing.

        >>> await agent.pending()                                                     # doctest: +SKIP
        True
        """
        return bool(await self.engine.look(pending, self.own + self.pools))

    def inbox(self, *, prefetch: int = 1, lease: float = LEASE) -> AsyncIterator[Message]:
        """Messages as they come, for ever.

        With a ``prefetch`` above 1 that many are fetched at once. Those still waiting are only reserved: no attempt is
        counted until they are handed out, and leaving the loop gives them back.

        >>> async for message in agent.inbox():                                       # doctest: +SKIP
        ...     async with message:
        ...         await work(message.payload)
        """
        return receiving.inbox(self, check_range(prefetch, "prefetch", 1, MAX_BATCH), check_seconds(lease, "lease"))

    async def serve(
        self,
        handler: receiving.Handler,
        *,
        concurrency: int = 1,
        lease: float = LEASE,
    ) -> None:
        """Handle messages until cancelled, ``concurrency`` at a time. Whatever a handler raises is recorded with the
        message, which is tried again later.

        An async handler runs on the event loop. A plain function runs on a thread, where it may block. A thread cannot
        be cancelled: one whose lease is lost ends by itself, and what it did through the unit is discarded.

        >>> async def handle(message, unit):                                          # doctest: +SKIP
        ...     unit.send(message.sender, "completion_notification", await work(message.payload))
        >>> await agent.serve(handle, concurrency=4)                                  # doctest: +SKIP
        """
        check_range(concurrency, "concurrency", 1, MAX_BATCH)
        receiving.check_handler(handler)
        duration = check_seconds(lease, "lease")
        if concurrency == 1:
            return await receiving.serve(self, handler, duration)
        try:
            async with anyio.create_task_group() as tasks:
                for _ in range(concurrency):
                    tasks.start_soon(receiving.serve, self, handler, duration)
        except BaseExceptionGroup as group:
            # What ends one worker ends them all: a fenced agent, a closed bus.
            raise group.exceptions[0] from None

    async def ack(self, messages: Iterable[Message]) -> None:
        """Acknowledge messages in one commit: all, or none (LeaseLost names the first that is lost).

        >>> await agent.ack(batch)                                                    # doctest: +SKIP
        """
        done = list(messages)
        if done:
            await self.settle(AckRequest(self.actor, tuple(message.lease for message in done)))
            for message in done:
                message.settled = True

    def unit(self) -> Unit:
        """A block whose sends, acknowledgements, state, checkpoints, documents and progress are one commit.

        >>> async with agent.unit() as unit:                                          # doctest: +SKIP
        ...     unit.ack(message)
        ...     unit.send("reviewer-1", "note", {"text": "done"})
        """
        return Unit(self, self.session)

    # State

    @cached_property
    def state(self) -> State:
        """Its own entries; they stay when its life ends, and are there in the next one.

        >>> await agent.state.set("scope", {"files": 12}, ttl=3600)                   # doctest: +SKIP
        1
        """
        return State(self._bus, self.id, self)

    # Mailboxes

    async def join(self, *pools: str | Address) -> None:
        """Take work from these pools too.

        >>> await agent.join("executors")                                             # doctest: +SKIP
        """
        await self._change(pools=plain_names(pools, "pool"))

    async def leave(self, *pools: str | Address) -> None:
        """Take no more work from these pools.

        >>> await agent.leave("executors")                                            # doctest: +SKIP
        """
        await self._change(pools=plain_names(pools, "pool"), leave=True)

    async def subscribe(self, *topics: str | Address) -> None:
        """Get a copy of everything that is published to these topics from now on.

        >>> await agent.subscribe("plans")                                            # doctest: +SKIP
        """
        await self._change(topics=plain_names(topics, "topic"))

    async def unsubscribe(self, *topics: str | Address) -> None:
        """Get no more copies; those that wait expire.

        >>> await agent.unsubscribe("plans")                                          # doctest: +SKIP
        """
        await self._change(topics=plain_names(topics, "topic"), leave=True)

    # Its own life

    async def progress(self, percent: int, note: str | None = None) -> None:
        """Say how far the work is, from 0 to 100.

        >>> await agent.progress(40, "writing tests")                                 # doctest: +SKIP
        """
        percent = check_range(percent, "progress", 0, 100)
        note = None if note is None else check_text(note, "note")
        await self.write(progress, ProgressRequest(self.actor, percent, note))

    async def busy(self, seconds: float) -> None:
        """Say that it will be silent for so long and that this is all right; 0 takes it back.

        >>> await agent.busy(600)                                                     # doctest: +SKIP
        """
        await self.write(busy, BusyRequest(self.actor, check_seconds(seconds, "seconds", zero=True)))

    async def complete(self) -> None:
        """The work is done; the agent's life ends.

        >>> await agent.complete()                                                    # doctest: +SKIP
        """
        await self._end("completed", None)

    async def fail(self, error: str) -> None:
        """The work cannot be done; the agent's life ends, its parent is told.

        >>> await agent.fail("the tests cannot be made to pass")                      # doctest: +SKIP
        """
        await self._end("failed", check_text(error, "error"))

    async def stop(self, reason: str | None = None) -> None:
        """End the agent's life though the work is not done. On purpose: recovery does not expect it again.

        >>> await agent.stop()                                                        # doctest: +SKIP
        """
        await self._end("stopped", None if reason is None else check_text(reason, "reason"), on_purpose=True)
