"""Interrupted sessions, as recovery finds them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from agentbus import Agent, Bus, RecoveryPlan, Session
from agentbus.records import EventRecord
from tests.api.helpers import worker
from tests.conftest import Engine


@asynccontextmanager
async def cut_off(
    engine: Engine,
    session: str = "s",
    *,
    operation: str = "execution",
    expects: Mapping[str, str] | None = None,
    **options: Any,
) -> AsyncIterator[tuple[Bus, Session]]:
    """A bus that owns a session, and is closed without leaving it: its agents are stopped, the session interrupted."""
    async with engine.connect() as owner:
        block = owner.session(operation, id=session, expects=expects, **options)
        yield owner, await block.__aenter__()


async def member(bus: Bus, id: str, session: str = "s", **options: Any) -> Agent:
    return await worker(bus, id, session=session, **options)


async def interrupted(engine: Engine, session: str = "s", *agents: str, **options: Any) -> None:
    """Leave such a session behind, with these agents in it (``a`` unless told)."""
    async with cut_off(engine, session, **options) as (owner, _):
        for agent in agents or ("a",):
            await member(owner, agent, session)


async def trail(bus: Bus, session: str = "s") -> list[EventRecord]:
    return [event async for event in bus.events(subject=f"session:{session}")]


async def kinds(bus: Bus, session: str = "s") -> list[str]:
    return [event.kind.removeprefix("session_") for event in await trail(bus, session)]


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "agentbus.recovery"]


def actions(plan: RecoveryPlan) -> list[str]:
    return [option.action for option in plan.options]
