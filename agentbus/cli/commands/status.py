"""Create a bus, and show its state: agents, queues, sessions, tasks, and the settings with their sources."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentbus.cli.arguments import watch_options
from agentbus.cli.context import Call, Command
from agentbus.cli.errors import Usage
from agentbus.cli.output import Notice, Result, Watchable, plain

if TYPE_CHECKING:
    from rich.console import RenderableType

    from agentbus.api.overview import Overview
    from agentbus.cli.context import Settings
    from agentbus.sync.bus import BlockingBus


def init(call: Call) -> Result:
    """Create a bus, unless it exists."""
    import os

    from agentbus.cli.context import location_of, open_configured
    from agentbus.engine.sqlite import paths
    from agentbus.engine.url import server_url
    from agentbus.errors import NoBus

    try:
        # In the working directory, even if a directory above has a bus.
        if not call.settings["url"]:
            call.settings.values["url"] = here = os.path.join(os.getcwd(), paths.NAME)
            paths.refuse_link(here)
    except FileNotFoundError:
        raise Usage(reason="the working directory does not exist", advice="change directory, or pass --url") from None
    path = location_of(call.settings["url"])
    made = False
    try:
        open_configured(call.settings).close()
        call.note(f"the bus in {path} already exists")
    except NoBus:
        made = True
        above = "" if server_url(call.settings["url"]) else _bus_above(path)
        open_configured(call.settings, create=True).close()
        if above:
            call.note(f"there is another bus in {above}: the two buses are separate")
    return Notice({"path": path, "made": made}, path)


def _bus_above(path: str) -> str:
    """Return the bus in a directory above, which would have been used without this one."""
    import os

    from agentbus.engine.sqlite import paths

    directory = os.path.dirname(path)
    while directory != os.path.dirname(directory):
        directory = os.path.dirname(directory)
        found = paths.find(os.path.join(directory, os.path.basename(path)))
        if paths.exists(found):
            return found.root
    return ""


def status(call: Call) -> Result | int:
    from agentbus.cli.views import show_or_watch

    shown = settings_with_sources(call.settings)
    return show_or_watch(call, lambda: Status(overview_of(call.bus, call.settings), shown))


def overview_of(bus: BlockingBus, settings: Settings) -> Overview:
    """Return the overview of an open bus."""
    from agentbus.api.overview import capacity_limits, gather_overview
    from agentbus.cli.context import capacity_bounds

    return bus.do(gather_overview(bus, bus.store.home, capacity_limits(capacity_bounds(settings))))


def settings_with_sources(settings: Settings) -> dict[str, Any]:
    """Return each setting with its source. The URL is shown as a location, without a password."""
    from agentbus.cli.context import location_of

    location = {"value": location_of(settings["url"]), "source": settings.sources["url"]}
    found = {name: {"value": value, "source": settings.sources[name]} for name, value in settings.values.items()}
    return {**found, "url": location}


class Status(Watchable):
    """The state of the bus, and the settings."""

    def __init__(self, overview: Overview, settings: dict[str, Any]) -> None:
        import msgspec

        self._found = msgspec.to_builtins(overview)
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

    def drawn(self, max_lines: int | None = None) -> RenderableType:
        from agentbus.cli.rich_output import draw_overview

        return draw_overview(self._found, max_lines=max_lines)

    def show(self) -> None:
        from agentbus.cli.rich_output import print_overview

        print_overview(self._found, self._settings)


COMMANDS = {
    "init": Command(
        init,
        "Create a bus in .agentbus/ here, or at --url: in a directory, or on a PostgreSQL server.",
        "agentbus init",
        output="plain output: its directory, or the server and the database",
    ),
    "status": Command(
        status,
        "Show agents, queues, sessions, tasks and settings.",
        "agentbus status --json",
        watch_options,
        output="plain output: subject, name, value",
    ),
}
