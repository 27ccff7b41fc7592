"""Receive messages, with and without an event loop: claim, wait for a wake-up or the next due time, claim again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Protocol, TypeVar

import msgspec

from agentbus import core
from agentbus.core.threads import sleep
from agentbus.core.validation import check_seconds, check_text
from agentbus.operations.protocol import Actor, Operation, mailbox_channel, reach_channel
from agentbus.operations.receive import CONTESTED, CONTESTS, Claim, ClaimRequest, ReleaseRequest, claim
from agentbus.operations.rows import Lease, MessageRow

if TYPE_CHECKING:
    from agentbus.engine.interface import Engine
    from agentbus.operations.agent_identity import Registration

M = TypeVar("M")
R = TypeVar("R")
T = TypeVar("T")


class Mailboxes(msgspec.Struct, frozen=True):
    """The mailboxes that an agent reads: its own, those of its subscriptions, and those of its pools."""

    own: tuple[int, ...]
    pools: tuple[int, ...]
    channels: tuple[str, ...]
    """Wake a waiter when a message arrives in one of them."""
    addresses: dict[int, str]
    """The recipient of a message, by mailbox."""

    @staticmethod
    def of(registration: Registration) -> Mailboxes:
        own = (registration.mailbox, *registration.subscriptions.values())
        pools = tuple(registration.pools.values())
        addresses = {
            registration.mailbox: registration.agent,
            **{mailbox: f"pool:{name}" for name, mailbox in registration.pools.items()},
            **{mailbox: f"topic:{name}" for name, mailbox in registration.subscriptions.items()},
        }
        return Mailboxes(own, pools, tuple(mailbox_channel(mailbox) for mailbox in own + pools), addresses)

    @property
    def all(self) -> tuple[int, ...]:
        return self.own + self.pools

    def declaring(self, epoch: int) -> Mailboxes:
        """Return these mailboxes with a channel that declares, while a process waits for them, that messages wake this
        incarnation at once."""
        return msgspec.structs.replace(self, channels=(*self.channels, reach_channel(self.own[0], epoch)))


class Receiver(Protocol):
    """The attributes of an agent that receiving needs."""

    @property
    def _actor(self) -> Actor: ...
    @property
    def _engine(self) -> Engine: ...
    @property
    def _mailboxes(self) -> Mailboxes: ...

    _waiting: int

    def _write(
        self, operation: Operation[R, T], request: R, *, on_abandoned: Callable[[T], None] | None = None
    ) -> Awaitable[T]: ...


async def receive(
    agent: Receiver,
    max_messages: int,
    read: Callable[[MessageRow, int], M | None],
    *,
    timeout: float | None,
    duration: int,
    done: tuple[Lease, ...] = (),
    counted: bool = True,
    on_abandoned: Callable[[Claim], None] | None = None,
) -> list[M]:
    """Return up to ``max_messages`` messages, or none after ``timeout`` seconds.

    ``read`` makes a message of a row and the time of its claim; None if the row is damaged. ``done`` is acknowledged
    with the first claim. ``on_abandoned`` gets a claim whose caller was cancelled.
    """
    clock = agent._engine.clock
    deadline = None
    if timeout is not None:
        deadline = clock.now().awake + check_seconds(timeout, "timeout", zero=True)
    # Listen, then claim: a message that arrives in between wakes the waiter.
    waiter = agent._engine.waiters.listen(agent._mailboxes.channels)
    contests = CONTESTS
    agent._waiting += 1
    try:
        while True:
            mailboxes = agent._mailboxes
            if waiter.channels is not mailboxes.channels:
                waiter.close()
                waiter = agent._engine.waiters.listen(mailboxes.channels)
            claimed = clock.now().awake
            since = 0 if core.tracer is None else core.tracer.now()
            request = ClaimRequest(agent._actor, done, mailboxes.own, mailboxes.pools, max_messages, duration, counted)
            try:
                found: Claim = await agent._write(claim, request, on_abandoned=on_abandoned)
            except BaseException:
                # The wake-up is not used: pass it to another waiter.
                waiter.rung = True
                raise
            done = ()
            if found.rows:
                if core.tracer is not None:
                    core.tracer.received(since, found.rows, mailboxes.addresses)
                if found.more:
                    waiter.rung = True
                messages = [message for row in found.rows if (message := read(row, claimed)) is not None]
                if messages:
                    return messages
                continue
            now = clock.now()
            if deadline is not None and deadline <= now.awake:
                if not found.contested or not contests:
                    return []
                # Another transaction has locked a message, and will very soon have taken or left it.
                contests -= 1
                await sleep(CONTESTED)
                continue
            waits = [
                None if found.next_wall is None else found.next_wall - now.wall,
                None if found.next_awake is None else found.next_awake - now.awake,
                None if deadline is None else deadline - now.awake,
            ]
            soonest = min((wait for wait in waits if wait is not None), default=None)
            await waiter.wait(None if soonest is None else max(0.001, soonest / 1000))
    finally:
        agent._waiting -= 1
        waiter.close()


def nack_request(
    actor: Actor, leases: tuple[Lease, ...], attempts: int, delay: float | None, error: str | None
) -> ReleaseRequest:
    """Check the arguments of a nack. Without a delay, messages are retried with exponential backoff."""
    from agentbus.api.sending import retry_delay

    seconds = retry_delay(attempts) if delay is None else delay
    error = None if error is None else check_text(error, "error")
    return ReleaseRequest(actor, leases, check_seconds(seconds, "delay", zero=True), error)
