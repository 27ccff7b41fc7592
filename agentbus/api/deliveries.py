"""Messages of visiting agents, with and without an event loop: delivered, and named ``message_id#lease`` to be settled.

A visiting agent without an event loop (``sync.agent``) and one with it (``api.visitor``) both call these functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from agentbus.api.sending import ReplyContext
from agentbus.core.addresses import split_identity
from agentbus.core.validation import check_choice, check_text
from agentbus.errors import AgentBusError, AlreadySettled, InvalidName, LeaseLost, UnknownMessage
from agentbus.operations.receive import find_delivery, list_held
from agentbus.operations.rows import Delivery, Held, Lease, MessageRow

if TYPE_CHECKING:
    from agentbus.engine.interface import Engine
    from agentbus.operations.protocol import Actor
    from agentbus.operations.receipts import ReachRequest, SeenRequest, Wakes

_SETTLED = {"acked": "acked by you", "dead": "made a dead letter by you"}


class Holder(Protocol):
    """The attributes of an agent that settling by name needs."""

    @property
    def id(self) -> str: ...
    @property
    def _engine(self) -> Engine: ...


def delivery(row: MessageRow, recipient: str, *, leased: bool = True, settled: bool = False) -> Delivery:
    """Return the message of a row: ``leased`` by a claim, or only looked at; ``settled`` if it is a reply. Raises
    DamagedPayload."""
    name = row.public_id
    return Delivery.of(
        row,
        f"{name}#{row.lease + 1}" if leased and not settled else None,
        row.reply_to is not None,
        message_id=name,
        recipient=recipient,
        attempts=row.attempts + leased,
        **row.contents(),
    )


_CHANNEL = frozenset("abcdefghijklmnopqrstuvwxyz0123456789_-")


def check_channel(channel: str) -> str:
    """Return the name of a way of delivery: ``hook``, ``mcp`` …"""
    if not isinstance(channel, str) or not 1 <= len(channel) <= 32 or not _CHANNEL.issuperset(channel):
        raise InvalidName(what="channel", name=channel, rule="use 1 to 32 of a-z 0-9 _ -")
    return channel


def seen_request(actor: Actor, messages: Iterable[str], channel: str, client: str | None) -> SeenRequest:
    """Return the checked request that marks messages (``m-7``, or ``m-7#2`` with its lease) as seen."""
    from agentbus.operations.receipts import SeenRequest

    names = dict.fromkeys(split_identity(message, "message_id")[0] for message in messages)
    session = "" if client is None else check_text(client, "client", 200)
    return SeenRequest(actor, tuple(names), check_channel(channel), session)


def reach_request(actor: Actor, wakes: Wakes | None, channel: str) -> ReachRequest:
    """Return the checked request that declares how messages wake an agent."""
    from agentbus.operations.receipts import ReachRequest

    if wakes is not None:
        check_choice(wakes, "wakes", ("tool", "turn"))
    return ReachRequest(actor, check_channel(channel), wakes)


async def in_hand(agent: Holder, max_messages: int) -> list[Delivery]:
    """Return the messages that the agent has received and not settled."""
    from agentbus.operations.lookups import get_message

    found: list[Delivery] = []
    for held in (await agent._engine.read(list_held, agent.id))[:max_messages]:
        # By its row: copies of a published message share their message_id.
        record = await agent._engine.read(get_message, f"m-{held.id}")
        if record is not None:
            found.append(Delivery.of(record, f"{record.message_id}#{held.lease}", held.reply_to is not None))
    return found


async def held_messages(agent: Holder, names: Sequence[str]) -> list[Held]:
    """Return the messages with these names (``m-7``, or ``m-7#2`` with its lease), all of them leased to the agent."""
    mine = await agent._engine.read(list_held, agent.id)
    found: list[Held] = []
    for name in names:
        message_id, number = split_identity(name, "message_id")
        one = next((one for one in mine if (one.message_id or f"m-{one.id}") == message_id), None)
        if one is None or number not in {None, one.lease}:
            raise await _not_held(agent, message_id, number)
        found.append(one)
    return found


async def held_or_acked(agent: Holder, names: Sequence[str]) -> tuple[list[Held], list[str]]:
    """Return the messages to acknowledge, and the names of those that the agent acknowledged before."""
    held: list[Held] = []
    before: list[str] = []
    for name in names:
        try:
            held += await held_messages(agent, (name,))
        except AlreadySettled as settled:
            if settled.facts["status"] != "acked":
                raise
            before.append(name)
    return held, before


def leases(messages: Sequence[Held]) -> tuple[Lease, ...]:
    return tuple((one.id, one.lease) for one in messages)


async def _not_held(agent: Holder, message_id: str, number: int | None) -> AgentBusError:
    found = await agent._engine.read(find_delivery, (message_id, agent.id))
    if found is None:
        return UnknownMessage(message_id=message_id)
    message, _ = found
    holder = "no agent"
    if message.status in _SETTLED and message.holder == agent.id and number in {None, message.lease}:
        what, advice = _SETTLED[message.status], "nothing is left to do"
    elif message.status in {"queued", "scheduled"} and number == message.lease:
        what, advice = "released", "no agent holds it: receive it again"
    else:
        if message.status == "leased" and message.holder is not None:
            holder = message.holder
        return LeaseLost(message_id=message_id, status=message.status, holder=holder)
    return AlreadySettled(message_id=message_id, status=message.status, what=what, advice=advice, holder=holder)


async def reply_context(agent: Holder, name: str) -> tuple[Held, str, ReplyContext]:
    """Return a message to reply to, its sender, and the context of the reply. The agent must hold the message, or have
    acknowledged it."""
    message_id, number = split_identity(name, "message_id")
    found = await agent._engine.read(find_delivery, (message_id, agent.id))
    if found is None:
        raise UnknownMessage(message_id=message_id)
    message, sender = found
    mine = message.holder == agent.id and number in {None, message.lease}
    if not mine or message.status not in {"leased", "acked"}:
        raise LeaseLost(message_id=message_id, status=message.status, holder=message.holder or "no agent")
    return (
        message,
        sender,
        ReplyContext(message_id, message.session, message.correlation, message.reply_to, message.expires),
    )
