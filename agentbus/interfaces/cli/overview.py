"""How the bus stands, for people: tables of agents, queues, sessions, tasks and settings. With rich."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from agentbus.interfaces.cli.grids import CommandLine
from agentbus.interfaces.cli.screens import Screen, Shortenable
from agentbus.interfaces.cli.tables import grid, shortenable, span

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
_TASKS = (
    ("id", ""),
    ("workflow", ""),
    ("status", "status"),
    ("phase", ""),
    ("progress", "percent"),
    ("waits for", "reason"),
    ("updated", "time"),
)
_FEW = 3
_USE = ("settings", "queues", "sessions", "agents", "tasks")
"""The parts that a small screen leaves out first."""
_SETTINGS = (("setting", ""), ("value", ""), ("source", ""))


def show(found: dict[str, Any], settings: dict[str, Any]) -> None:
    """Print it once."""
    Console().print(drawn(found, settings))


def live(look: Callable[[int], RenderableType], pause: float, over: Callable[[], bool]) -> None:
    """Draw it again and again in place, until it is over, or until Ctrl-C."""
    console = Console()
    with Live(look(console.height), console=console, refresh_per_second=4) as screen:
        while not over():
            time.sleep(pause)
            screen.update(look(console.height))


def drawn(found: dict[str, Any], settings: dict[str, Any] | None = None, most: int | None = None) -> RenderableType:
    """All of it, one below the other; empty parts are left out. With ``most``, in that many lines."""
    parts: list[RenderableType | Shortenable] = [_counts(found)]

    def add(columns: Sequence[tuple[str, str]], rows: Sequence[dict[str, Any]], title: str) -> None:
        parts.append(shortenable(columns, rows, title, _USE.index(title)) if most else grid(columns, rows, title))

    if found["agents"]:
        add(_AGENTS, found["agents"], "agents")
    if found["queues"]:
        queues = [{**queue, "oldest": span(queue["oldest"] / 1000)} for queue in found["queues"]]
        add(_QUEUES, queues, "queues")
    if found["sessions"]:
        sessions = [{**one, "status": "degraded" if one["degraded"] else one["status"]} for one in found["sessions"]]
        add(_SESSIONS, sessions, "sessions")
    if found["outgrown"]["why"]:
        why = "; ".join(found["outgrown"]["why"])
        parts.append(Text(f"the bus outgrows one file: {why}\n→ {found['outgrown']['fix']}", style="yellow"))
    if found["tasks"]:
        tasks = [{**one, "waits for": ", ".join(one["waits"]) or None} for one in found["tasks"]]
        add(_TASKS, tasks, "tasks")
    if found["asked"]:
        parts.append(_asked(found["asked"]))
    if settings is not None:
        rows = [{"setting": name, **one} for name, one in settings.items()]
        add(_SETTINGS, rows, "settings")
    apart = [item for part in parts for item in (part, Text())]
    # On a screen nothing stands below the last part, but the cursor.
    return Screen(apart[:-1], most - 1) if most else Group(*apart)  # type: ignore[arg-type]


def _asked(questions: Sequence[dict[str, Any]]) -> RenderableType:
    """What waits for a person, with the commands that answer; if that is much, where to find it."""
    count = len(questions)
    text = Text(f"{count} {'question waits' if count == 1 else 'questions wait'} for a person:", style="bold yellow")
    few = questions if count <= _FEW else [{"command": "agentbus task approvals"}]
    return Group(text, *(CommandLine(one["command"]) for one in few))


def _counts(found: dict[str, Any]) -> Text:
    counts = found["counts"]
    return Text(
        "; ".join(
            f"{what}: " + (", ".join(f"{count} {status}" for status, count in counts[what].items()) or "none")
            for what in ("agents", "messages")
        )
    )
