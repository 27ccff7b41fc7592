"""Registering a visiting agent."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from agentbus.addresses import Address
from agentbus.blocking.agent import BlockingAgent
from agentbus.blocking.driving import run
from agentbus.engine import presence
from agentbus.engine.dead_processes import mark_dead, rows_of
from agentbus.errors import AgentExists, InvalidInput, UnknownType
from agentbus.limits import check_range
from agentbus.operations.agents import RegisterRequest
from agentbus.operations.agents import register as start
from agentbus.operations.lives import Registration
from agentbus.operations.processes import EnterRequest, LeaveRequest, Neighbour, enter, leave
from agentbus.registry import registration

if TYPE_CHECKING:
    from agentbus.blocking import BlockingBus


def register(
    bus: BlockingBus,
    id: str,
    type: str,
    session: str | None,
    pools: Iterable[str | Address],
    topics: Iterable[str | Address],
    takeover: bool,
    pid: int | None,
    about: dict[str, Any],
) -> BlockingAgent:
    """Start a life of a visiting agent; in a process that is watched, if one is named."""
    request = registration(
        bus.max_payload, id, type, None, about,
        session=session, pools=pools, topics=topics, takeover=takeover, kind="visiting",
    )  # fmt: skip
    watched = None if pid is None else _watched(pid)
    try:
        life = _start(bus, request, watched)
    except AgentExists as exists:
        if exists.process is None or not mark_dead(bus.store, rows_of([Neighbour(**exists.process)])):
            raise
        life = _start(bus, request, watched)
    except UnknownType as error:
        from agentbus.explaining import explained

        raise run(explained(bus.engine, error)) from None
    agent = BlockingAgent(bus, life, life.epoch)
    agent.has_called()
    return agent


def _start(bus: BlockingBus, request: RegisterRequest, watched: EnterRequest | None) -> Registration:
    if watched is None:
        return bus.write(start, request)
    from msgspec.structs import replace

    # The process first: an agent refers to it. One that nobody lives in means nothing, and is struck off in time.
    entry = bus.write(enter, watched)
    try:
        return bus.write(start, replace(request, process=entry.process))
    except BaseException:
        bus.write(leave, LeaveRequest((entry.process,), False, "nobody lives in it"), durable=False)
        raise


def _watched(pid: int) -> EnterRequest:
    check_range(pid, "pid", 1, 2**31 - 1)
    if presence.is_gone(pid, "", None):
        raise InvalidInput(reason=f"there is no process {pid}")
    return EnterRequest(presence.host_key(), pid, presence.start_time(pid), None, watched=True)
