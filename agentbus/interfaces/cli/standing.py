"""How the bus stands, in one look: agents, queues, sessions, tasks, and the settings with where each came from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from agentbus.interfaces.cli.output import Watchable, plain

if TYPE_CHECKING:
    from rich.console import RenderableType

    from agentbus.blocking import BlockingBus
    from agentbus.interfaces.cli.settings import Settings
    from agentbus.records import TaskRecord

_AGENT = ("id", "type", "status", "progress", "note", "session", "updated", "seen")
_MOST = 20
"""Agents, sessions and tasks that are named."""
_UNENDED = ("waiting", "halted", "running", "pending")
"""Tasks that have not ended; what may need a person comes first."""


def standing(bus: BlockingBus, settings: Settings) -> dict[str, Any]:
    """What is going on: numbers, and those that have not ended by name."""
    import msgspec

    from agentbus.interfaces.cli.registry import with_seen
    from agentbus.interfaces.cli.unfolding import BRIEF, asked

    stats = bus.stats(deepest=_MOST)
    agents = bus.do(bus.agents.list(status="incomplete", limit=_MOST)).items
    sessions = bus.do(bus.sessions.list(status=("active", "paused", "interrupted"), limit=_MOST)).items
    return {
        "counts": {"agents": stats.agents, "messages": stats.messages},
        "agents": [{name: agent[name] for name in _AGENT} for agent in with_seen(bus, agents)],
        "queues": msgspec.to_builtins(stats.queues),
        "sessions": [
            _short(one, "id", "operation", "milestone", "status", "degraded", "progress", "updated") for one in sessions
        ],
        "tasks": [_short(one, *BRIEF) for status in _UNENDED for one in _tasks(bus, status)][:_MOST],
        "asked": asked(bus),
        "oldest_waiting": stats.oldest_waiting,
        "database_bytes": stats.database_bytes,
        "log_bytes": stats.wal_bytes,
        "outgrown": _outgrown(bus, stats.database_bytes + stats.wal_bytes, settings),
    }


def _outgrown(bus: BlockingBus, size: int, settings: Settings) -> dict[str, Any]:
    """Whether the bus is too much for one file: why, and what to do."""
    from agentbus.interfaces.cli.settings import outgrown_by
    from agentbus.operations.outgrowing import read_crowd
    from agentbus.services.outgrowing import bounds, outgrown, way_out

    home = bus.store.home
    why = [] if home is None else outgrown(bus.read(read_crowd, None), size, bounds(outgrown_by(settings)))
    return {"why": why, "fix": way_out(home) if home is not None and why else None}


def _tasks(bus: BlockingBus, status: str) -> Sequence[TaskRecord]:
    return bus.do(bus.tasks.list(status=status, limit=_MOST)).items


def settings_of(settings: Settings) -> dict[str, Any]:
    """Each setting, and where it came from."""
    from agentbus.interfaces.cli.settings import place_of

    place = {"value": place_of(settings["url"]), "source": settings.sources["url"]}
    found = {name: {"value": value, "source": settings.sources[name]} for name, value in settings.values.items()}
    return {**found, "url": place}


def _short(record: Any, *fields: str) -> dict[str, Any]:
    return {name: getattr(record, name) for name in fields}


class Standing(Watchable):
    """How the bus stands."""

    def __init__(self, found: dict[str, Any], settings: dict[str, Any]) -> None:
        self._found = found
        self._settings = settings

    def data(self) -> Any:
        return {**self._found, "settings": self._settings}

    def lines(self) -> list[str]:
        found = self._found
        rows: list[tuple[Any, ...]] = []
        rows += [("agents", status, count) for status, count in found["counts"]["agents"].items()]
        rows += [("messages", status, count) for status, count in found["counts"]["messages"].items()]
        rows += [("agent", agent["id"], agent["status"]) for agent in found["agents"]]
        rows += [("queue", queue["recipient"], queue["queued"]) for queue in found["queues"]]
        rows += [("session", one["id"], one["status"]) for one in found["sessions"]]
        rows += [("outgrown", why, found["outgrown"]["fix"]) for why in found["outgrown"]["why"]]
        rows += [("task", one["id"], one["status"]) for one in found["tasks"]]
        rows += [("asked", one["task"], one["command"]) for one in found["asked"]]
        for name, one in self._settings.items():
            value = "-" if one["value"] is None else one["value"]
            rows.append(("setting", name, f"{value} ({one['source']})"))
        return ["\t".join(plain(value) for value in row) for row in rows]

    def drawn(self, most: int | None = None) -> RenderableType:
        from agentbus.interfaces.cli.overview import drawn

        return drawn(self._found, most=most)

    def show(self) -> None:
        from agentbus.interfaces.cli.overview import show

        show(self._found, self._settings)
