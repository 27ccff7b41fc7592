"""Messages of a visiting agent: received, looked at, and named by ``message_id#lease`` to be settled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import msgspec

from agentbus.api.receiving import receive
from agentbus.api.sending import ReplyContext
from agentbus.core.validation import check_seconds
from agentbus.errors import AgentBusError, AlreadySettled, DamagedPayload, LeaseLost, UnknownMessage
from agentbus.operations.receive import (
    RejectRequest,
    ReleaseRequest,
    holdings,
    horizon,
    letter,
    ready_rows,
    reject,
    release,
)
from agentbus.operations.rows import Delivery, Held, Lease, MessageRow
from agentbus.sync.agent import split_identity
from agentbus.sync.bus import run

if TYPE_CHECKING:
    from agentbus.sync.agent import BlockingAgent

_SETTLED = {"acked": "acked by you", "dead": "made a dead letter by you"}


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


@contextmanager
def received(agent: BlockingAgent, max_messages: int, timeout: float, duration: int) -> Iterator[list[Delivery]]:
    """Claim messages for the length of a block; one that raises releases them, and the attempt does not count."""
    rows: list[MessageRow] = []

    def read(row: MessageRow, claimed: int) -> Delivery | None:
        rows.append(row)
        try:
            return delivery(row, agent._mailboxes.addresses[row.mailbox])
        except (DamagedPayload, msgspec.DecodeError) as damage:
            with suppress(AgentBusError):
                agent.call(reject, RejectRequest(agent._actor, (row.delivered,), str(damage)))
            return None

    try:
        with agent._listening.signals_blocked():
            messages = run(receive(agent, max_messages, read, timeout=timeout, duration=duration))
        yield messages
    except BaseException:
        for row in rows:
            request = ReleaseRequest(agent._actor, (row.delivered,), restore=(row.attempts,))
            with suppress(AgentBusError):
                agent.call(release, request)
        raise


def peek(agent: BlockingAgent, max_messages: int) -> list[Delivery]:
    """Return the messages that a claim would get now. An agent that is fenced gets the same error as from a claim."""
    agent.heartbeat()
    rows = agent.bus.read(ready_rows, (agent._mailboxes.all, max_messages))
    return [delivery(row, agent._mailboxes.addresses[row.mailbox], leased=False) for row in rows]


def in_hand(agent: BlockingAgent, max_messages: int) -> list[Delivery]:
    """Return the messages that the agent has received and not settled."""
    from agentbus.operations.lookups import get_message

    agent.heartbeat()
    found: list[Delivery] = []
    for held in agent.bus.read(holdings, agent.id)[:max_messages]:
        # By its row: copies of a published message share their message_id.
        record = agent.bus.read(get_message, f"m-{held.id}")
        if record is not None:
            found.append(Delivery.of(record, f"{record.message_id}#{held.lease}", held.reply_to is not None))
    return found


def wait(agent: BlockingAgent, timeout: float | None) -> bool:
    """Wait until ``receive`` would find a message; return False after ``timeout`` seconds without one."""
    from agentbus.operations.lookups import pending

    mailboxes = agent._mailboxes
    duration = None if timeout is None else check_seconds(timeout, "timeout", zero=True)
    clock = agent.bus.store.clock
    deadline = None if duration is None else clock.now().awake + duration
    agent.heartbeat()
    waiter = agent._listening.listen(mailboxes.channels)
    try:
        while not agent.bus.read(pending, mailboxes.all):
            next_wall, next_awake = agent.bus.read(horizon, mailboxes.all)
            now = clock.now()
            if deadline is not None and deadline <= now.awake:
                return False
            waits = [
                None if next_wall is None else next_wall - now.wall,
                None if next_awake is None else next_awake - now.awake,
                None if deadline is None else deadline - now.awake,
            ]
            soonest = min((wait for wait in waits if wait is not None), default=None)
            run(waiter.wait(None if soonest is None else max(0.001, soonest / 1000)))
    finally:
        waiter.close()
    return True


def held(agent: BlockingAgent, names: Sequence[str]) -> list[Held]:
    """Return the messages with these names (``m-7``, or ``m-7#2`` with its lease), all of them leased to the agent."""
    mine = agent.bus.read(holdings, agent.id)
    found: list[Held] = []
    for name in names:
        message_id, number = split_identity(name, "message_id")
        one = next((one for one in mine if (one.message_id or f"m-{one.id}") == message_id), None)
        if one is None or number not in {None, one.lease}:
            raise _not_held(agent, message_id, number)
        found.append(one)
    return found


def leases(messages: Sequence[Held]) -> tuple[Lease, ...]:
    return tuple((one.id, one.lease) for one in messages)


def _not_held(agent: BlockingAgent, message_id: str, number: int | None) -> AgentBusError:
    found = agent.bus.read(letter, (message_id, agent.id))
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


def reply_context(agent: BlockingAgent, name: str) -> tuple[Held, str, ReplyContext]:
    """Return a message to reply to, its sender, and the context of the reply. The agent must hold the message, or have
    acknowledged it."""
    message_id, number = split_identity(name, "message_id")
    found = agent.bus.read(letter, (message_id, agent.id))
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
