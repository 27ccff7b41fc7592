"""Helpers for composite checkpoints."""

from __future__ import annotations

from typing import Any

from agentbus import Bus, Session


async def points(bus: Bus, session: str = "s", name: str | None = None) -> list[str]:
    """The names of the composites there are, newest first."""
    return [point.name for point in (await bus.checkpoints.list(session, name, kind="composite")).items]


async def everything(bus: Bus, session: Session, *agents: str) -> dict[str, Any]:
    """All that a rollback restores, as callers see it."""
    documents = {one.name: await session.document(one.name).latest() for one in await session.documents()}
    states = {agent: {entry.key: entry.value for entry in (await bus.state(agent).list()).items} for agent in agents}
    meeting = await session.participants([])
    return {
        "documents": documents,
        "states": states,
        "session": {entry.key: entry.value for entry in (await session.state.list()).items},
        "meeting": (meeting.members, meeting.finished, meeting.results),
        "progress": (await session.record()).progress,
    }
