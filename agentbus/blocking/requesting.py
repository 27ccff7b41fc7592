"""Questions and answers without an event loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from agentbus import drafting
from agentbus.blocking.deliveries import Delivery, delivery
from agentbus.blocking.driving import run
from agentbus.errors import LeaseLost, RequestDied, RequestTimedOut, UnknownMessage
from agentbus.limits import check_seconds
from agentbus.operations import BUS, Part, mailbox_channel
from agentbus.operations.leases import AckRequest, letter
from agentbus.operations.messages import Receipt, SendRequest, send
from agentbus.operations.replies import ReplyRequest, take_reply

if TYPE_CHECKING:
    from agentbus.addresses import Address
    from agentbus.blocking.agent import BlockingAgent


def request(
    agent: BlockingAgent, to: str | Address, type: str, payload: Any, timeout: float, options: dict[str, Any]
) -> Delivery:
    """Send a message and wait for its reply."""
    duration = check_seconds(timeout, "timeout")
    correlation = options.pop("correlation", None) or drafting.correlation(options.get("message_id"))
    options.setdefault("ttl", timeout)
    question = agent.draft(to, type, payload, correlation=correlation, **options)
    replies = agent.life.replies
    clock = agent.engine.clock
    with agent.bus.store.attend() as attendance:
        # Listen first: an answer may come at once.
        attendance.listen((mailbox_channel(replies),))
        deadline = clock.now().awake + duration
        (receipt,) = run(agent.send_drafts(msgspec.structs.replace(question, reply_to=replies)))
        if not receipt.delivered:
            raise RequestDied(recipient=str(to), reason="the topic has no subscriber")
        look = receipt.duplicate
        while True:
            left = deadline - clock.now().awake
            if not look and left > 0 and not attendance.wait(min(left / 1000, 5.0)):
                agent.heartbeat()
            row = agent.call(take_reply, ReplyRequest(agent.actor, replies, correlation, receipt.duplicate))
            if row is not None:
                break
            if left <= 0:
                raise RequestTimedOut(recipient=str(to), type=type, timeout=timeout)
            look = False
    answer = msgspec.structs.replace(delivery(row, agent.id), lease=None)
    if answer.sender == BUS:
        raise RequestDied(recipient=str(to), reason=answer.payload["dead"])
    return answer


def reply(agent: BlockingAgent, message: str, type: str, payload: Any, ack: bool, options: dict[str, Any]) -> Receipt:
    """Answer whoever sent a message, and acknowledge it in the same commit. Only whoever has it may, or had it last and
    acknowledged it."""
    from agentbus.blocking.agent import parted
    from agentbus.operations.leases import ack as acknowledge

    message_id, number = parted(message, "message_id")
    found = agent.bus.read(letter, (message_id, agent.id))
    if found is None:
        raise UnknownMessage(message_id=message_id)
    held, sender = found
    mine = held.holder == agent.id and number in {None, held.lease}
    if not mine or held.status not in {"leased", "acked"}:
        raise LeaseLost(message_id=message_id, status=held.status, holder=held.holder or "nobody")
    asked = drafting.Asked(message_id, held.session, held.correlation, held.reply_to, held.expires)
    given = {name: value for name, value in options.items() if value is not None}
    answer = agent.draft(sender, type, payload, **asked.options(given, agent.engine.clock.now().wall))
    parts: tuple[Part, ...] = (Part(send, SendRequest(agent.actor, (asked.reply(answer),))),)
    if ack and held.status == "leased":
        parts = (Part(acknowledge, AckRequest(agent.actor, ((held.id, held.lease),))), *parts)
    receipts: list[Receipt] = run(agent.commit(parts))[-1]
    return receipts[0]
