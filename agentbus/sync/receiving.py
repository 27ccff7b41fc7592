"""Messages of a visiting agent without an event loop: receive, peek and wait."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import msgspec

from agentbus.api.deliveries import delivery
from agentbus.api.receiving import receive
from agentbus.core.validation import check_seconds
from agentbus.errors import AgentBusError, AgentFenced, DamagedPayload
from agentbus.operations.common import fence_error
from agentbus.operations.receive import (
    RejectRequest,
    ReleaseRequest,
    get_rows,
    list_arrived,
    list_ready,
    read_horizon,
    reject,
    release,
)
from agentbus.operations.rows import Delivery, MessageRow
from agentbus.sync.bus import run

if TYPE_CHECKING:
    from agentbus.sync.agent import BlockingAgent
    from agentbus.sync.bus import BlockingBus

_STEP = 100
"""Messages that are read at once, with their payloads."""
_MAX_REPORTED = 100_000
"""Arrivals that are remembered, so that a message that is released is not reported again."""


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
    rows = agent.bus.read(list_ready, (agent._mailboxes.all, max_messages))
    return [delivery(row, agent._mailboxes.addresses[row.mailbox], leased=False) for row in rows]


def arrivals(bus: BlockingBus, identity: str, is_over: Callable[[], bool]) -> Generator[Delivery, None, None]:
    """Yield the messages that wait for an agent, then each that arrives, once; claim none. Meanwhile messages wake this
    agent at once, and its heartbeat is sent. End when ``is_over``, which is asked every few seconds.

    An identity without an epoch follows the agent into its next incarnation.
    """
    agent = _current(bus, identity)
    waiter = agent._listening.listen(agent._mailboxes.channels)
    reported: set[int] = set()
    try:
        with suppress(AgentFenced):
            agent.heartbeat()
        while not is_over():
            waiting, due = bus.read(list_arrived, agent._mailboxes.all)
            new = [id for id in waiting if id not in reported]
            for start in range(0, len(new), _STEP):
                for row in bus.read(get_rows, new[start : start + _STEP]):
                    reported.add(row.id)
                    with suppress(DamagedPayload, msgspec.DecodeError):
                        yield delivery(row, agent._mailboxes.addresses[row.mailbox], leased=False)
            if len(reported) > _MAX_REPORTED:
                reported.intersection_update(waiting)
            with suppress(AgentFenced):
                run(waiter.wait(None if due is None else due / 1000))
            # It may have joined a pool, a new incarnation may have started, or it has ended.
            current = _current(bus, identity)
            if current._mailboxes.channels != waiter.channels:
                waiter.close()
                agent = current
                with suppress(AgentFenced):
                    agent.heartbeat()
                waiter = agent._listening.listen(agent._mailboxes.channels)
    finally:
        waiter.close()


def _current(bus: BlockingBus, identity: str) -> BlockingAgent:
    """Return an agent in its current incarnation, or raise if it has ended."""
    while True:
        agent = bus.agent(identity)
        fenced = bus.read(fence_error, agent._actor)
        if fenced is None:
            return agent
        # A new incarnation may have started between the two reads.
        if bus.agent(identity)._actor == agent._actor:
            raise fenced


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
            next_wall, next_awake = agent.bus.read(read_horizon, mailboxes.all)
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
