"""What messages, units and receivers need of their agent: its identity, its mailboxes, a way to write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from agentbus.keeping import Keeper
from agentbus.operations import Actor, Operation, mailbox_channel
from agentbus.operations.agents import EndRequest, MembershipRequest, change_membership, finish
from agentbus.operations.leases import (
    AckRequest,
    ExtendRequest,
    RejectRequest,
    ReleaseRequest,
    ack,
    extend,
    reject,
    release,
)
from agentbus.operations.lives import Registration
from agentbus.renewal import renewal
from agentbus.sending import Sender
from agentbus.state import Composer

if TYPE_CHECKING:
    from agentbus.bus import Bus
    from agentbus.checking import Checker
    from agentbus.message import Message
    from agentbus.services.threads import Threads

R = TypeVar("R")
T = TypeVar("T")


class Handle(Sender, Keeper):
    """An agent's identity in one of its lives. Every write through it is fenced by its epoch."""

    def __init__(self, bus: Bus, registration: Registration) -> None:
        self.id = registration.agent
        self.epoch = registration.epoch
        self.session = registration.session
        self.actor = Actor(registration.agent, registration.epoch)
        self.engine = bus.engine
        self._restored = registration.restored
        self.ended = False
        self.active = True
        """Whether it did something since the last beat."""
        self.waiting = 0
        """How many of its tasks wait for a message; waiting is a sign of life too."""
        self._bus = bus
        self.vocabulary = bus.vocabulary
        self.max_snapshot = bus.max_snapshot
        self._adopt(registration)

    @property
    def threads(self) -> Threads:
        return self._bus.threads

    @property
    def checker(self) -> Checker:
        return self._bus.checker

    def write(self, operation: Operation[R, T], request: R, **options: Any) -> Any:
        self.active = True
        return self.engine.write(operation, request, **options)

    def composer(self, scope: str) -> Composer:
        """Makes changes of state whose author is this agent."""
        return Composer(scope, self._bus.max_payload, self.actor)

    async def settle(self, request: AckRequest) -> bool:
        return bool(await self.write(ack, request))

    async def release(
        self, messages: Sequence[Message], *, delay: int = 0, error: str | None = None, counted: bool = True
    ) -> None:
        leases = tuple(message.lease for message in messages)
        restore = () if counted else tuple(message.before for message in messages)
        await self.write(release, ReleaseRequest(self.actor, leases, delay, error, restore))

    async def reject_one(self, message: Message, error: str) -> None:
        await self.write(reject, RejectRequest(self.actor, (message.lease,), error))

    async def extend(self, message: Message) -> None:
        taken = self.engine.clock.now().awake
        await self.write(extend, ExtendRequest(self.actor, (message.lease,), message.duration))
        message.renew_at = renewal(taken, message.duration)
        self._bus.renewer.changed(message)

    def hold(self, message: Message) -> None:
        self._bus.renewer.hold(message)

    def let_go(self, message: Message) -> None:
        self._bus.renewer.let_go(message)

    def address_of(self, mailbox: int) -> str:
        return self._addresses.get(mailbox, self.id)

    async def _change(self, *, pools: tuple[str, ...] = (), topics: tuple[str, ...] = (), leave: bool = False) -> None:
        request = MembershipRequest(self.actor, self.engine.process, pools, topics, leave)
        self._adopt(await self.write(change_membership, request))

    async def _end(self, status: str, error: str | None, *, on_purpose: bool = False) -> None:
        await self.write(finish, EndRequest(self.actor, status, error, on_purpose))
        self.ended = True
        self._bus._forget(self)

    def _adopt(self, registration: Registration) -> None:
        """Read these mailboxes from now on."""
        self.replies = registration.replies
        self._addresses = {
            registration.mailbox: self.id,
            **{mailbox: f"pool:{name}" for name, mailbox in registration.pools.items()},
            **{mailbox: f"topic:{name}" for name, mailbox in registration.subscriptions.items()},
        }
        self.own = (registration.mailbox, *registration.subscriptions.values())
        self.pools = tuple(registration.pools.values())
        self.channels = tuple(mailbox_channel(mailbox) for mailbox in self.own + self.pools)
        # Those of its tasks that wait must listen to the new ones too.
        self.engine.hub.ring_all(mailbox_channel(registration.mailbox))
