"""Run a handler over the messages of an agent: the loop of one worker of ``Agent.serve``."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, cast

from agentbus.api.message import Message
from agentbus.api.unit import Unit
from agentbus.core.cancellation import await_user_code, call, is_async, is_foreign_cancellation, log_failure, shielded
from agentbus.errors import AgentBusError, AgentFenced, InvalidInput, LeaseLost, LockTimeout, Misuse
from agentbus.operations.receive import AckRequest, ack
from agentbus.operations.rows import Lease

if TYPE_CHECKING:
    from agentbus.api.agent import Agent

log = logging.getLogger("agentbus")

_RETRY_AFTER = 1.0
"""Seconds until a claim that failed for a transient reason is tried again."""

Handler = Callable[[Message, Unit], object]
"""Handles a message: an async function, or a plain one, which is called on a thread."""


def check_handler(handler: object) -> None:
    """Raise InvalidInput for a handler that cannot be called with a message and a unit."""
    if not callable(handler):
        raise InvalidInput(reason="the handler is not callable")
    try:
        inspect.signature(handler).bind(None, None)
    except TypeError:
        raise InvalidInput(reason="the handler must take two arguments: handler(message, unit)") from None
    except ValueError:
        return  # some callables have no signature


async def serve(agent: Agent, handler: Handler, duration: int) -> None:
    """Handle messages one at a time until cancelled. A plain acknowledgement is committed with the next claim."""
    done: tuple[Lease, ...] = ()
    on_loop: Callable[[Message, Unit], Awaitable[object]] | None = None
    if is_async(handler):
        on_loop = cast(Callable[[Message, Unit], Awaitable[object]], handler)
    try:
        while True:
            try:
                (message,) = await agent._receive(1, timeout=None, duration=duration, done=done)
            except LeaseLost as error:
                log.warning("%s: %s", agent.id, error)
                done = ()
                continue
            except AgentBusError as error:
                if not error.transient:
                    raise
                log.warning("%s, trying again: %s", agent.id, error)
                await agent.engine.waiters.listen(()).wait(_RETRY_AFTER)
                continue
            done = ()
            message.deferred = True
            try:
                async with message as unit:
                    if on_loop is None:
                        await call(agent.threads, f"the handler of {message.message_id}", handler, message, unit,
                                   is_abandoned=message.is_lost)  # fmt: skip
                    else:
                        await await_user_code(on_loop(message, unit))
            except (Exception, asyncio.CancelledError) as error:
                ours = isinstance(error, AgentFenced) and error.agent == agent.id
                if ours or (isinstance(error, asyncio.CancelledError) and not is_foreign_cancellation(error)):
                    raise
                log_failure(log, error, "%s: the handler failed on %s", agent.id, message.message_id)
            else:
                done = () if message.settled else (message.lease,)
    finally:
        # The handler has finished with it. If the claim was committed, this acknowledgement is too late, and harmless.
        if done:
            with shielded(agent.engine), suppress(LeaseLost, AgentFenced, Misuse, LockTimeout):
                await agent.write(ack, AckRequest(agent.actor, done))
