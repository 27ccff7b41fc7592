"""Settings: from the environment, from ``agentbus.toml`` beside the bus, from options; each stronger than the last."""

from __future__ import annotations

import os
from argparse import Namespace
from typing import TYPE_CHECKING, Any

from agentbus.engine.places import server_url
from agentbus.errors import AgentBusError
from agentbus.interfaces.cli.failures import Usage, check_text

if TYPE_CHECKING:
    from agentbus.blocking import BlockingBus

FILE = "agentbus.toml"
DEFAULTS: dict[str, Any] = {
    "url": None,
    "agent": None,
    "durability": "disk",
    "lock_timeout": 30.0,
    "lease": 600.0,
    "max_payload": 1024 * 1024,
    "max_snapshot": 16 * 1024 * 1024,
    "outgrown_waits": 30.0,
    "outgrown_writers": 32,
    "outgrown_size": 4 * 1024**3,
}
"""What can be set, and what it is otherwise. Who is calling is nothing for a file that all share."""
_LONGEST = 1024 * 1024
"""Characters of the file that are read."""
OPTIONS = ("url", "agent")
"""What every command has an option for."""


class Settings:
    """What holds, and where each came from."""

    def __init__(self, values: dict[str, Any], sources: dict[str, str]) -> None:
        self.values = values
        self.sources = sources
        self.refused: AgentBusError | None = None
        """Why the bus that the file names is not used."""

    def __getitem__(self, name: str) -> Any:
        if name == "url" and self.refused is not None:
            raise self.refused
        return self.values[name]

    def text(self, name: str) -> str | None:
        return self[name] or None

    def use_url_of_file(self, home: str) -> None:
        """Use the URL that the file in this home names, as far as the user accepts it."""
        try:
            self.values["url"] = _accepted(self.values["url"], home)
        except AgentBusError as error:
            self.refused = error


def gathered(arguments: Namespace) -> Settings:
    """The settings of this call."""
    values = dict(DEFAULTS)
    sources = dict.fromkeys(DEFAULTS, "default")
    for name, default in DEFAULTS.items():
        text = os.environ.get(f"AGENTBUS_{name.upper()}")
        if text:
            if name == "agent":
                check_text(text, "AGENTBUS_AGENT")
            values[name] = _read(name, text, default, f"AGENTBUS_{name.upper()}")
            sources[name] = "environment"
    given = {name: value for name in OPTIONS if (value := getattr(arguments, name, None)) is not None}
    named = given.get("url", values["url"])
    settings = Settings(values, sources)
    for name, value in _from_file(named).items():
        values[name] = value
        sources[name] = FILE
    if sources["url"] == FILE and "url" not in given:
        settings.use_url_of_file(place_of(named))
    for name, value in given.items():
        values[name] = value
        sources[name] = "option"
    return settings


def outgrown_by(settings: Settings) -> dict[str, Any]:
    """From where on a bus is too much for one file."""
    return {name: settings[f"outgrown_{name}"] for name in ("waits", "writers", "size")}


def place_of(url: str | None) -> str:
    """Where the bus is that ``url`` names, as anybody may read it: of a server, without a password."""
    if (server := server_url(url)) is not None:
        from agentbus.engine.postgres.address import parse

        return parse(server).shown
    from agentbus.engine.sqlite import home

    return home.find(url).root


def bus_there(settings: Settings) -> str:
    """What names the bus from wherever it is asked for. That there is none is an error."""
    if (server := server_url(settings["url"])) is not None:
        open_here(settings).close()
        return server
    from agentbus.engine.sqlite import home
    from agentbus.errors import NoBus

    place = home.find(settings["url"])
    if not home.is_there(place):
        raise NoBus(path=place.root)
    return place.root


def open_here(settings: Settings, *, create: bool = False) -> BlockingBus:
    """The bus that the settings name."""
    from agentbus.blocking import open_bus

    return open_bus(
        settings["url"],
        create=create,
        durability=settings["durability"],
        lock_timeout=settings["lock_timeout"],
        max_payload=settings["max_payload"],
        max_snapshot=settings["max_snapshot"],
        lease=settings["lease"],
    )


def _from_file(url: str | None) -> dict[str, Any]:
    """What the file beside the bus says. A server has none beside it; but the file may name a server."""
    if server_url(url) is not None:
        return {}
    from agentbus.errors import InvalidUrl, UnsafeFile, UntrustedHome
    from agentbus.safe_files import check_home, open_file

    try:
        place = place_of(url)
        path = f"{place}/{FILE}"
        # A pipe of that name would keep every command waiting.
        if not os.path.isfile(path):
            return {}
        check_home(place)
    except (OSError, InvalidUrl, UnsafeFile, UntrustedHome):
        # The settings of a refused home are ignored; opening its bus raises the reason.
        return {}
    try:
        with open(open_file(path, os.O_RDONLY), encoding="utf-8") as file:
            text = file.read(_LONGEST)
    except OSError:
        return {}
    except UnicodeDecodeError as error:
        raise Usage(reason=f"{path} is not UTF-8: {error}", advice="convert it") from None
    # Imported only here: few have such a file.
    import tomllib

    try:
        found = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise Usage(reason=f"{path}: {error}", advice="write it as TOML: lease = 600") from None
    allowed = [name for name in DEFAULTS if name != "agent"]
    for name, value in found.items():
        if name not in allowed:
            raise Usage(reason=f"{path}: there is no setting {name!r}", advice=f"there are {', '.join(allowed)}")
        default = DEFAULTS[name]
        number = isinstance(default, int | float)
        if isinstance(value, bool) or not isinstance(value, int | float if number else str):
            kind = "a number" if number else "a text"
            raise Usage(reason=f"{path}: {name} is {value!r}", advice=f"it must be {kind}")
    return found


def _accepted(url: str, home: str) -> str:
    """Return a URL that a file in this home names as far as the user accepts it: the file may come with a repository.

    A server that the user has not accepted gets no credentials but those in the URL. A directory is relative to the one
    that the home is in. One that is outside of that has to be accepted: else a repository could choose the bus that its
    agents join.
    """
    if server_url(url) is None:
        return _accepted_directory(url, home)
    from agentbus.engine.postgres.address import parse, restricted
    from agentbus.errors import InvalidUrl
    from agentbus.trust import is_trusted

    try:
        address = parse(url)
        # A service is another server than the one that was accepted.
        accepted = "service" not in address.borrowed and all(is_trusted("host", one) for one in address.servers)
    except InvalidUrl:
        # Reported to the commands that use it.
        return url
    return url if accepted else restricted(url)


def _accepted_directory(url: str, home: str) -> str:
    from shlex import quote

    from agentbus.errors import UntrustedHome
    from agentbus.trust import is_trusted_home

    text = url.removeprefix("sqlite://").removeprefix("/") if url.startswith("sqlite://") else url
    project = os.path.dirname(os.path.realpath(home))
    path = os.path.realpath(os.path.join(project, os.path.expanduser(text)))
    if os.path.commonpath([project, path]) == project or is_trusted_home(path):
        return path
    reason = f"{home}/{FILE} names it, and it is outside of {project}"
    raise UntrustedHome(path=path, reason=reason, command=f"if that is meant: agentbus trust {quote(path)}")


def _read(name: str, text: str, default: Any, source: str) -> Any:
    if not isinstance(default, int | float):
        return text
    try:
        return type(default)(text)
    except ValueError:
        raise Usage(reason=f"{source} is {text!r}", advice="it must be a number") from None
