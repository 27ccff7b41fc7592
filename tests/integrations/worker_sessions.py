"""Append numbers to a session through an adapter, each after the last one that is stored, and print those that were
acknowledged; or add items to a session and pop others."""

from __future__ import annotations

import asyncio
import json
import sys

from agentbus import Bus, connect
from tests.support.processes import say

PROJECT = {"project_key": "project", "session_id": "session"}


async def claude(bus: Bus) -> None:
    from agentbus.integrations.claude import AgentBusSessionStore

    store = AgentBusSessionStore(bus)
    number = len(await store.load(PROJECT) or [])
    while True:
        # Each batch is sent twice, as by an SDK that does not know whether the first attempt was stored.
        batch = [{"type": "user", "uuid": f"u-{at}", "number": at} for at in (number, number + 1)]
        await store.append(PROJECT, batch)
        await store.append(PROJECT, batch)
        number += 2
        say("stored", number)


async def openai_agents(bus: Bus) -> None:
    from agentbus.integrations.openai_agents import AgentBusSession

    session = AgentBusSession("session", bus)
    number = len(await session.get_items())
    while True:
        await session.add_items([{"role": "user", "content": str(at)} for at in (number, number + 1)])
        number += 2
        say("stored", number)


async def adk(bus: Bus) -> None:
    from google.adk.events.event import Event
    from google.adk.events.event_actions import EventActions

    from agentbus.integrations.adk import AgentBusSessionService

    service = AgentBusSessionService(bus)
    session = await service.get_session(app_name="app", user_id="user", session_id="session")
    if session is None:
        session = await service.create_session(app_name="app", user_id="user", session_id="session")
    number = len(session.events)
    while True:
        number += 1
        # The states of session, user and app are written in the commit of the event.
        delta = {"number": number, "user:number": number, "app:number": number}
        await service.append_event(session, Event(author=str(number), actions=EventActions(state_delta=delta)))
        say("stored", number)


async def contend(bus: Bus, name: str, items: int) -> None:
    """Add items one by one, and pop an item after every second."""
    from agentbus.integrations.openai_agents import AgentBusSession

    session = AgentBusSession("session", bus)
    popped = []
    say("ready")
    sys.stdin.readline()
    for number in range(items):
        await session.add_items([{"role": "user", "content": f"{name} {number}"}])
        if number % 2:
            popped.append(await session.pop_item())
    say("popped", json.dumps([item and item["content"] for item in popped]))


async def main(url: str, what: str, *arguments: str) -> None:
    async with connect(url) as bus:
        if what == "contend":
            await contend(bus, arguments[0], int(arguments[1]))
        else:
            await {"claude": claude, "openai_agents": openai_agents, "adk": adk}[what](bus)


asyncio.run(main(*sys.argv[1:]))
