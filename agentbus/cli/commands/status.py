"""Create a bus, and show its state: what failed, what waits, what there is, and the settings with their sources."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentbus.cli.arguments import watch_options
from agentbus.cli.context import Call, Command
from agentbus.cli.errors import Usage
from agentbus.cli.output import PLAIN, Done, PlainFormat, Result, Watchable, plain, table_lines

if TYPE_CHECKING:
    from argparse import ArgumentParser

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
    return Done({"path": path, "made": made}, f"created a bus in {path}" if made else f"using the bus in {path}", path)


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

    settings = settings_with_sources(call.settings)
    named = call.arguments.settings
    return show_or_watch(
        call, lambda: Status(overview_of(call.bus, call.settings), settings, servers_of(call.bus), named)
    )


def _status(parser: ArgumentParser) -> None:
    parser.add_argument("--settings", action="store_true", help="also show the settings, each with its source")
    watch_options(parser)


def servers_of(bus: BlockingBus) -> list[dict[str, Any]]:
    """Return the HTTP servers of this user that run on a bus."""
    from agentbus.api.servers import running_servers
    from agentbus.operations.archive_rows import bus_name

    return [{"url": one.url, "pid": one.pid} for one in running_servers(bus.read(bus_name, None) or "")]


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


_FAILED = (("kind", ""), ("name", ""), ("status", ""), ("at", "time"), ("reason", ""), ("command", ""))
_WAITING = (("kind", ""), ("name", ""), ("since", "time"), ("what", ""), ("command", ""))


class Status(Watchable):
    """The state of the bus, and the settings: JSON always has them."""

    def __init__(
        self,
        overview: Overview,
        settings: dict[str, Any],
        servers: list[dict[str, Any]],
        with_settings: bool = False,
    ) -> None:
        import msgspec

        self._found = msgspec.to_builtins(overview)
        self._settings = settings
        self._servers = servers
        self._with_settings = with_settings

    def data(self) -> Any:
        # ``lease`` is the earlier name.
        settings = {**self._settings, "lease": self._settings["visitor_lease"]}
        return {**self._found, "servers": self._servers, "settings": settings}

    def lines(self, form: PlainFormat = PLAIN) -> list[str]:
        found = self._found
        lines: list[str] = []
        for subject, columns in (("failed", _FAILED), ("waiting", _WAITING)):
            if found[subject]:
                names = ("subject", *(name for name, _ in columns))
                lines += form.headed(names, table_lines(columns, found[subject], form, subject))
        rows: list[tuple[Any, ...]] = []
        rows += [("agents", status, count) for status, count in found["counts"]["agents"].items()]
        rows += [("messages", status, count) for status, count in found["counts"]["messages"].items()]
        rows += [("agent", agent["id"], agent["status"]) for agent in found["agents"]]
        rows += [("queue", queue["recipient"], queue["queued"]) for queue in found["queues"]]
        rows += [("session", one["id"], one["status"]) for one in found["sessions"]]
        rows += [("outgrown", why, found["outgrown"]["fix"]) for why in found["outgrown"]["why"]]
        rows += [("task", one["id"], one["status"]) for one in found["tasks"]]
        rows += [("asked", one["task"], one["command"]) for one in found["asked"]]
        rows += [("histories", one["kind"], one["histories"]) for one in found["histories"]]
        rows += [("server", one["url"], one["pid"]) for one in self._servers]
        for name, one in self._settings.items() if self._with_settings else ():
            value = "-" if one["value"] is None else one["value"]
            rows.append(("setting", name, f"{value} ({one['source']})"))
        counts = ["\t".join(plain(value) for value in row) for row in rows]
        return lines + (form.headed(("subject", "name", "value"), counts) if counts else [])

    def drawn(self, max_lines: int | None = None) -> RenderableType:
        from agentbus.cli.rich_output import draw_overview

        return draw_overview(self._found, self._settings if self._with_settings else None, max_lines)

    def show(self) -> None:
        from agentbus.cli.rich_output import print_overview

        print_overview(self._found, self._settings if self._with_settings else None)
        for one in self._servers:
            print(f"dashboard: {one['url']} (process {one['pid']})")


COMMANDS = {
    "init": Command(
        init,
        "Create a bus in .agentbus/ here, or at --url: in a directory, or on a PostgreSQL server.",
        "agentbus init",
        output="plain output: its directory, or the server and the database",
    ),
    "status": Command(
        status,
        "Show what failed, then what waits, then what there is: agents, queues, sessions and tasks.",
        "agentbus status --watch",
        _status,
        output="plain output: by the first column\n  failed, kind (agent, task, session, message), name, status, at,"
        " reason, command\n  waiting, kind (approval, step, session, task, queue), name, since, what, command\n"
        "  agents, name (a status), value (how many)\n  messages, name (a status), value (how many)\n"
        "  agent, name, value (status)\n  queue, name, value (messages)\n  session, name, value (status)\n"
        "  outgrown, name (the reason), value (the fix)\n  task, name, value (status)\n  asked, name, value (command)\n"
        "  histories, name (a kind), value (how many)\n"
        "  setting, name, value (with --settings)",
        columns=True,
    ),
}
