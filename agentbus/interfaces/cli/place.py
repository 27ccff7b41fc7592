"""The bus as a place: making one, and how it stands."""

from __future__ import annotations

from agentbus.interfaces.cli.command import Call, Command
from agentbus.interfaces.cli.failures import Usage
from agentbus.interfaces.cli.output import Result, Said
from agentbus.interfaces.cli.values import watch_options


def init(call: Call) -> Result:
    """Make a bus, unless there is one."""
    import os

    from agentbus.engine.places import server_url
    from agentbus.engine.sqlite import home
    from agentbus.errors import NoBus
    from agentbus.interfaces.cli.settings import open_here, place_of

    try:
        # Here, also where there is one in a directory above.
        if not call.settings["url"]:
            call.settings.values["url"] = here = os.path.join(os.getcwd(), home.NAME)
            home.refuse_link(here)
    except FileNotFoundError:
        raise Usage(reason="the working directory is gone", advice="cd to one that exists, or say --url") from None
    path = place_of(call.settings["url"])
    made = False
    try:
        open_here(call.settings).close()
        call.note(f"there was a bus in {path} already")
    except NoBus:
        made = True
        above = "" if server_url(call.settings["url"]) else _above(path)
        open_here(call.settings, create=True).close()
        if above:
            call.note(f"there is a bus above it, in {above}: who works here will not meet those there")
    return Said({"path": path, "made": made}, path)


def _above(path: str) -> str:
    """The bus that would have been used here without this one."""
    import os

    from agentbus.engine.sqlite import home

    directory = os.path.dirname(path)
    while directory != os.path.dirname(directory):
        directory = os.path.dirname(directory)
        found = home.find(os.path.join(directory, os.path.basename(path)))
        if home.is_there(found):
            return found.root
    return ""


def status(call: Call) -> Result | int:
    """How the bus stands."""
    from agentbus.interfaces.cli.standing import Standing, settings_of, standing
    from agentbus.interfaces.cli.watching import looked

    shown = settings_of(call.settings)
    return looked(call, lambda: Standing(standing(call.bus, call.settings), shown))


COMMANDS = {
    "init": Command(
        init,
        "Make a bus in .agentbus/ here, or where --url says: in a directory, or on a PostgreSQL server.",
        "agentbus init",
        output="plain output: its directory, or the server and the database",
    ),
    "status": Command(
        status,
        "Show how the bus stands: agents, queues, sessions, tasks, settings.",
        "agentbus status --json",
        watch_options,
        output="plain output: subject, name, value",
    ),
}
