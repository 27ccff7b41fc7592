"""How an agent waits for messages: claim, sleep until a bell or until something is due, claim again."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import cast

from msgspec import DecodeError

from agentbus.errors import AgentBusError, AgentFenced, DamagedPayload, InvalidInput, LeaseLost, LockTimeout, Misuse
from agentbus.handle import Handle
from agentbus.limits import check_seconds
from agentbus.message import Message
from agentbus.operations import Row
from agentbus.operations.claims import CONTESTED, CONTESTS, Claim, ClaimRequest, claim
from agentbus.operations.leases import (
    AckRequest,
    BeginRequest,
    Lease,
    RejectRequest,
    ReleaseRequest,
    begin,
    reject,
    release,
)
from agentbus.parting import is_stray, parting, unheeded
from agentbus.renewal import renewal
from agentbus.services.callbacks import call, guarded, is_async, log_failure
from agentbus.unit import Unit

log = logging.getLogger("agentbus")

_PAUSE = 1.0

Handler = Callable[[Message, Unit], object]
"""Handles a message: an async function, or a plain one, which is called on a thread."""


async def receive(
    agent: Handle,
    most: int,
    *,
    timeout: float | None,
    duration: int,
    done: tuple[Lease, ...] = (),
    counted: bool = True,
) -> list[Message]:
    """Up to ``most`` messages, or none after ``timeout`` seconds. ``done`` is acknowledged with the first claim."""
    clock = agent.engine.clock
    deadline = None
    if timeout is not None:
        deadline = clock.now().awake + check_seconds(timeout, "timeout", zero=True)
    # Listen first, then look: what comes in between rings.
    ear = agent.engine.hub.listen(agent.channels)
    contests = CONTESTS
    agent.waiting += 1
    try:
        while True:
            if ear.channels is not agent.channels:
                ear.close()
                ear = agent.engine.hub.listen(agent.channels)
            taken = clock.now().awake
            request = ClaimRequest(agent.actor, done, agent.own, agent.pools, most, duration, counted)
            try:
                found: Claim = await agent.write(claim, request, orphaned=_give_back(agent))
            except BaseException:
                # Whatever woke us is still there for another waiter.
                ear.rung = True
                raise
            done = ()
            if found.rows:
                if found.more:
                    ear.rung = True
                messages = _opened(agent, found.rows, counted, duration, renewal(taken, duration))
                if messages:
                    return messages
                continue
            now = clock.now()
            waits = [
                next_wall - now.wall if (next_wall := found.next_wall) is not None else None,
                next_awake - now.awake if (next_awake := found.next_awake) is not None else None,
                deadline - now.awake if deadline is not None else None,
            ]
            if deadline is not None and deadline <= now.awake:
                if not found.contested or not contests:
                    return []
                # There is something, which another transaction looks at: it takes it, or leaves it, very soon.
                contests -= 1
                await asyncio.sleep(CONTESTED)
                continue
            soonest = min((wait for wait in waits if wait is not None), default=None)
            await ear.wait(None if soonest is None else max(0.001, soonest / 1000))
    finally:
        agent.waiting -= 1
        ear.close()


async def inbox(agent: Handle, prefetch: int, duration: int) -> AsyncIterator[Message]:
    """Messages one by one; those fetched ahead are reserved, and given back uncounted."""
    reserved: list[Message] = []
    try:
        while True:
            if not reserved:
                reserved = await receive(agent, prefetch, timeout=None, duration=duration, counted=prefetch == 1)
                # Acknowledging one begins the next in the same commit.
                for message, following in pairwise(reserved):
                    message.following = following
                reserved.reverse()
            if not reserved[-1].begun:
                with suppress(LeaseLost):
                    following = reserved[-1]
                    await agent.write(begin, BeginRequest(agent.actor, (following.lease,), following.before + 1))
                    following.begin()
            message = reserved.pop()
            if message.begun:
                yield message
    finally:
        if reserved:
            with parting(agent.engine), suppress(LeaseLost, AgentFenced, Misuse, LockTimeout):
                await _return(agent, reserved)


def check_handler(handler: object) -> None:
    """A handler that cannot be called with a message and a unit would fail on every message there is."""
    if not callable(handler):
        raise InvalidInput(reason="the handler is not callable")
    try:
        inspect.signature(handler).bind(None, None)
    except TypeError:
        raise InvalidInput(reason="the handler must take two arguments: handler(message, unit)") from None
    except ValueError:
        return  # not everything that can be called says how


async def serve(agent: Handle, handler: Handler, duration: int) -> None:
    """One worker: a plain acknowledgement goes with the next claim, in one commit."""
    done: tuple[Lease, ...] = ()
    on_loop: Callable[[Message, Unit], Awaitable[object]] | None = None
    if is_async(handler):
        on_loop = cast(Callable[[Message, Unit], Awaitable[object]], handler)
    try:
        while True:
            try:
                (message,) = await receive(agent, 1, timeout=None, duration=duration, done=done)
            except LeaseLost as error:
                log.warning("%s: %s", agent.id, error)
                done = ()
                continue
            except AgentBusError as error:
                if not error.transient:
                    raise
                log.warning("%s, trying again: %s", agent.id, error)
                await agent.engine.hub.listen(()).wait(_PAUSE)
                continue
            done = ()
            message.deferred = True
            try:
                async with message as unit:
                    if on_loop is None:
                        await call(agent.threads, f"the handler of {message.message_id}", handler, message, unit,
                                   abandons=message.is_lost)  # fmt: skip
                    else:
                        await guarded(on_loop(message, unit))
            except (Exception, asyncio.CancelledError) as error:
                ours = isinstance(error, AgentFenced) and error.agent == agent.id
                if ours or (isinstance(error, asyncio.CancelledError) and not is_stray(error)):
                    raise
                log_failure(log, error, "%s: the handler failed on %s", agent.id, message.message_id)
            else:
                done = () if message.settled else (message.lease,)
    finally:
        # The handler is through with it, whatever ends the loop; if the claim got as far, it is lost by now.
        if done:
            with parting(agent.engine), suppress(LeaseLost, AgentFenced, Misuse, LockTimeout):
                await agent.settle(AckRequest(agent.actor, done))


def _opened(agent: Handle, rows: Sequence[Row], counted: bool, duration: int, renew_at: int) -> list[Message]:
    """The messages of these rows. One whose bytes were damaged becomes a dead letter; its neighbours go on."""
    messages: list[Message] = []
    for row in rows:
        try:
            messages.append(Message(agent, row, counted=counted, duration=duration, renew_at=renew_at))
        except (DamagedPayload, DecodeError) as damage:
            log.warning("%s: message %s: %s", agent.id, row[0], damage)
            unheeded(agent.write(reject, RejectRequest(agent.actor, ((row[0], row[8] + 1),), str(damage))))
    return messages


async def _return(agent: Handle, reserved: list[Message]) -> None:
    for message in reserved:
        with suppress(LeaseLost):
            await agent.release([message], counted=False)


def _give_back(agent: Handle) -> Callable[[Claim], None]:
    """For a claim whose caller was cancelled: the messages go back at once."""

    def orphaned(found: Claim) -> None:
        leases = tuple((row[0], row[8] + 1) for row in found.rows)
        if leases:
            request = ReleaseRequest(agent.actor, leases, restore=tuple(row[7] for row in found.rows))
            with suppress(AgentBusError):
                unheeded(agent.engine.write(release, request))

    return orphaned
