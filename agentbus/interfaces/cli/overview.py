"""How the bus stands, for people: tables of agents, queues, sessions and settings. With rich."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NoReturn

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from agentbus.interfaces.cli.tables import grid, span

_AGENTS = (
    ("id", ""),
    ("type", ""),
    ("status", "status"),
    ("progress", "percent"),
    ("seen", "time"),
    ("note", ""),
    ("session", ""),
)
_QUEUES = (("recipient", ""), ("queued", ""), ("oldest", ""))
_SESSIONS = (
    ("id", ""),
    ("operation", ""),
    ("milestone", ""),
    ("status", "status"),
    ("progress", "percent"),
    ("updated", "time"),
)
_SETTINGS = (("setting", ""), ("value", ""), ("source", ""))


def show(found: dict[str, Any], settings: dict[str, Any]) -> None:
    """Print it once."""
    Console().print(drawn(found, settings))


def live(look: Callable[[], dict[str, Any]], pause: float) -> NoReturn:
    """Draw it again and again in place, until Ctrl-C."""
    with Live(drawn(look()), refresh_per_second=4, screen=False, transient=False) as screen:
        while True:
            time.sleep(pause)
            screen.update(drawn(look()))


def drawn(found: dict[str, Any], settings: dict[str, Any] | None = None) -> RenderableType:
    """All of it, one below the other; empty parts are left out."""
    parts: list[RenderableType] = [_counts(found)]
    if found["agents"]:
        parts.append(grid(_AGENTS, found["agents"], "agents"))
    if found["queues"]:
        queues = [{**queue, "oldest": span(queue["oldest"] / 1000)} for queue in found["queues"]]
        parts.append(grid(_QUEUES, queues, "queues"))
    if found["sessions"]:
        sessions = [{**one, "status": "degraded" if one["degraded"] else one["status"]} for one in found["sessions"]]
        parts.append(grid(_SESSIONS, sessions, "sessions"))
    if found["outgrown"]["why"]:
        why = "; ".join(found["outgrown"]["why"])
        parts.append(Text(f"the bus outgrows one file: {why}\n→ {found['outgrown']['fix']}", style="yellow"))
    if settings is not None:
        rows = [{"setting": name, **one} for name, one in settings.items()]
        parts.append(grid(_SETTINGS, rows, "settings"))
    return Group(*(item for part in parts for item in (part, Text())))


def _counts(found: dict[str, Any]) -> Text:
    counts = found["counts"]
    return Text(
        "; ".join(
            f"{what}: " + (", ".join(f"{count} {status}" for status, count in counts[what].items()) or "none")
            for what in ("agents", "messages")
        )
    )
