"""Commands, their calls, and their settings.

Settings come from the environment, from ``agentbus.toml`` in the directory of the bus, and from options; the later ones
override the earlier ones.
"""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

from agentbus.cli.errors import NoIdentity, Usage, check_text
from agentbus.cli.output import escape_control_chars
from agentbus.core.validation import (
    DURABILITIES,
    DURABILITY,
    LOCK_TIMEOUT,
    MAX_PAYLOAD,
    MAX_SNAPSHOT,
    VISITOR_LEASE,
    check_choice,
)
from agentbus.engine.url import directory_path, server_url
from agentbus.errors import AgentBusError

if TYPE_CHECKING:
    from agentbus.cli.output import Result
    from agentbus.sync.agent import BlockingAgent
    from agentbus.sync.bus import BlockingBus


@contextmanager
def ending_cleanly() -> Iterator[None]:
    """Make ending signals act on a waiting command as Ctrl-C does, so that it releases its messages."""
    import signal

    from agentbus.cli.signals import ENDING, deferring

    def end(number: int) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.getsignal(number) for number in ENDING}
    for number, handler in before.items():
        # An ignored signal (nohup) stays ignored.
        if handler is not signal.SIG_IGN:
            signal.signal(number, deferring(end))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Call:
    """One call of a command: its arguments, its settings, the bus, and the calling agent."""

    def __init__(self, command: str, arguments: Namespace, settings: Settings, *, logs: bool = False) -> None:
        self.command = command
        self.arguments = arguments
        self.settings = settings
        self.logs = logs
        """True for a command that runs for long and writes structured logs: its notes are among them."""
        self._headed = False
        """True once the names of the columns were printed."""

    @cached_property
    def bus(self) -> BlockingBus:
        """The bus, opened on first use."""
        bus = open_configured(self.settings)
        if bus.store.read_only:
            self.note(f"{bus.store.shown} is read-only here: nothing is written, and dead agents are not detected")
        if bus.unmarked is not None:
            self.note(f"agentbus: dead processes could not be recorded: {bus.unmarked}")
        return bus

    @cached_property
    def me(self) -> BlockingAgent:
        """The calling agent. It is an error if none is specified."""
        identity = self.settings.text("agent")
        if identity is None:
            raise NoIdentity
        return self.bus.agent(identity)

    @cached_property
    def correspondent(self) -> BlockingAgent:
        """The caller of a command for messages: an agent, or a person."""
        if self.arguments.by is None and self.settings.text("agent") is not None:
            return self.me
        from agentbus.cli.operators import correspondent

        return correspondent(self)

    @cached_property
    def visitor(self) -> BlockingAgent | None:
        """The calling agent, or None if none is specified or it does not exist."""
        from agentbus.errors import InvalidInput, NotFound

        try:
            return None if self.settings.text("agent") is None else self.me
        except (NotFound, InvalidInput):
            return None

    def close(self, *, visit: bool) -> None:
        """Close the bus. ``visit``: record the call of an agent that only read."""
        if "bus" in self.__dict__:
            try:
                if visit and not self.bus.store.read_only and self.visitor is not None:
                    self.visitor.called()
            finally:
                self.bus.close()

    def emit(self, result: Result) -> None:
        """Print a result, and flush. Of several results, only the first has a line of column names."""
        from agentbus.cli.output import PlainFormat, emit

        given = self.arguments
        # On commands that send, --header is another option.
        header = getattr(given, "header", None) is True and not self._headed
        self._headed = True
        form = PlainFormat(header, getattr(given, "epoch", False))
        emit(result, json=given.json, form=form, quiet=given.quiet)

    def note(self, text: str) -> None:
        """Print a note on stderr."""
        if self.arguments.quiet:
            return
        if self.logs:
            from agentbus.cli.logs import log_note

            log_note(text)
        else:
            print(escape_control_chars(text), file=sys.stderr)


class Command:
    """A command: its function, its purpose, an example, and its arguments.

    ``run`` returns the result, or the exit code if it has printed the result itself.
    """

    def __init__(
        self,
        run: Callable[[Call], Result | int],
        purpose: str,
        example: str,
        arguments: Callable[[ArgumentParser], Any] | None = None,
        *,
        output: str = "",
        columns: bool = False,
        runs: bool = False,
    ) -> None:
        self.run = run
        self.purpose = purpose
        self.example = example
        self.arguments = arguments
        self.output = output
        """The columns of the plain output."""
        self.columns = columns
        """True if the plain output has columns: --header prints their names, --epoch changes their times."""
        self.runs = runs
        """True if the words after ``--`` are a command to run."""


FILE = "agentbus.toml"
DEFAULTS: dict[str, Any] = {
    "url": None,
    "agent": None,
    "durability": DURABILITY,
    "lock_timeout": LOCK_TIMEOUT,
    "visitor_lease": VISITOR_LEASE,
    "max_payload": MAX_PAYLOAD,
    "max_snapshot": MAX_SNAPSHOT,
    "outgrown_waits": 30.0,
    "outgrown_writers": 32,
    "outgrown_size": 4 * 1024**3,
}
"""The settings and their defaults. ``agent`` cannot be set in the shared file."""
RENAMED = {"lease": "visitor_lease"}
"""Earlier names of settings, which still work: ``lease`` of Python code is another one, 60 seconds by default."""
_MAX_CHARACTERS = 1024 * 1024
"""Characters of the file that are read."""
OPTIONS = ("url", "agent")
"""Settings with an option of every command."""


class Settings:
    """The settings, each with its source."""

    def __init__(self, values: dict[str, Any], sources: dict[str, str]) -> None:
        self.values = values
        self.sources = sources
        self.url_error: AgentBusError | None = None
        """The error that a use of the URL of the file raises."""
        self.notes: list[str] = []
        """Notes on sources that contradict each other, and on names that have changed."""

    def __getitem__(self, name: str) -> Any:
        if name == "url" and self.url_error is not None:
            raise self.url_error
        return self.values[name]

    def text(self, name: str) -> str | None:
        return self[name] or None

    def use_url_of_file(self, home: str) -> None:
        """Use the URL of the file in this home, as far as the user trusts it."""
        try:
            self.values["url"] = _trusted_url(self.values["url"], home)
        except AgentBusError as error:
            self.url_error = error


def gather_settings(arguments: Namespace) -> Settings:
    """Return the settings of this call: options override the environment, which overrides the file."""
    settings = Settings(dict(DEFAULTS), dict.fromkeys(DEFAULTS, "default"))
    environment = _from_environment(settings)
    given = {name: value for name in OPTIONS if (value := getattr(arguments, name, None)) is not None}
    named = given.get("url", environment.get("url"))
    file = _from_file(named, settings)
    for source, found in ((FILE, file), ("environment", environment), ("option", given)):
        for name, value in found.items():
            settings.values[name] = value
            settings.sources[name] = source
    if settings.sources["url"] == FILE:
        settings.use_url_of_file(location_of(named))
    differing = [name for name in file if name in environment and file[name] != environment[name]]
    if differing:
        names = ", ".join(f"AGENTBUS_{name.upper()}" for name in differing)
        settings.notes.append(f"{names} overrides {FILE}; before, {FILE} took precedence")
    return settings


def _from_environment(settings: Settings) -> dict[str, Any]:
    """Return the settings of the environment."""
    found: dict[str, Any] = {}
    for name in (*RENAMED, *DEFAULTS):
        variable = f"AGENTBUS_{name.upper()}"
        text = os.environ.get(variable)
        if not text:
            continue
        if name == "agent":
            check_text(text, variable)
        current = RENAMED.get(name, name)
        found[current] = _read(text, DEFAULTS[current], variable)
        if name == "durability":
            check_choice(text, variable, DURABILITIES)
        if current != name:
            settings.notes.append(f"{variable} is now AGENTBUS_{current.upper()}; the old name still works")
    return found


def capacity_bounds(settings: Settings) -> dict[str, Any]:
    """Return the bounds above which a bus exceeds the capacity of one file."""
    return {name: settings[f"outgrown_{name}"] for name in ("waits", "writers", "size")}


def location_of(url: str | None) -> str:
    """Return the location of the bus that ``url`` names; for a server, without the password."""
    if (server := server_url(url)) is not None:
        from agentbus.engine.postgres.server import parse

        return parse(server).shown
    from agentbus.engine.sqlite import paths

    return paths.find(url).root


def require_bus(settings: Settings) -> str:
    """Return the absolute location of an existing bus, or raise NoBus."""
    if (server := server_url(settings["url"])) is not None:
        open_configured(settings).close()
        return server
    from agentbus.engine.sqlite import paths
    from agentbus.errors import NoBus

    home = paths.find(settings["url"])
    if not paths.exists(home):
        raise NoBus(path=home.root)
    return home.root


def open_configured(settings: Settings, *, create: bool = False) -> BlockingBus:
    """Open the bus that the settings name."""
    from agentbus.sync.bus import open_bus

    return open_bus(
        settings["url"],
        create=create,
        durability=settings["durability"],
        lock_timeout=settings["lock_timeout"],
        max_payload=settings["max_payload"],
        max_snapshot=settings["max_snapshot"],
        lease=settings["visitor_lease"],
    )


def _from_file(url: str | None, settings: Settings) -> dict[str, Any]:
    """Return the settings of the file. A server has no file, but a file can name a server."""
    if server_url(url) is not None:
        return {}
    from agentbus.core.files import check_home, open_file
    from agentbus.errors import InvalidUrl, UnsafeFile, UntrustedHome

    try:
        home = location_of(url)
        path = f"{home}/{FILE}"
        # A pipe of that name would block every command.
        if not os.path.isfile(path):
            return {}
        check_home(home)
    except (OSError, InvalidUrl, UnsafeFile, UntrustedHome):
        # The settings of a refused home are ignored; opening its bus raises the reason.
        return {}
    try:
        with open(open_file(path, os.O_RDONLY), encoding="utf-8") as file:
            text = file.read(_MAX_CHARACTERS)
    except OSError:
        return {}
    except UnicodeDecodeError as error:
        raise Usage(reason=f"{path} is not UTF-8: {error}", advice="convert it") from None
    # Imported lazily: the file is rare.
    import tomllib

    try:
        found = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise Usage(reason=f"{path}: {error}", advice="use TOML: visitor_lease = 600") from None
    for old, current in RENAMED.items():
        if old in found:
            settings.notes.append(f"{old} in {FILE} is now {current}; the old name still works")
            found.setdefault(current, found.pop(old))
    allowed = [name for name in DEFAULTS if name != "agent"]
    for name, value in found.items():
        if name not in allowed:
            raise Usage(reason=f"{path}: no setting {name!r}", advice=f"settings: {', '.join(allowed)}")
        default = DEFAULTS[name]
        number = isinstance(default, int | float)
        if isinstance(value, bool) or not isinstance(value, int | float if number else str):
            kind = "a number" if number else "a string"
            raise Usage(reason=f"{path}: {name} is {value!r}", advice=f"it must be {kind}")
    return found


def _trusted_url(url: str, home: str) -> str:
    """Return the URL of the file in this home, as far as the user trusts it: the file may come with a repository.

    An untrusted server receives only the credentials in the URL. A directory is relative to the parent of the home. One
    outside of it must be trusted: otherwise a repository could choose the bus that its agents join.
    """
    if server_url(url) is None:
        return _trusted_directory(url, home)
    from agentbus.core.trust import is_trusted
    from agentbus.engine.postgres.server import parse, restricted
    from agentbus.errors import InvalidUrl

    try:
        address = parse(url)
        # A service can name another server than the trusted one.
        trusted = "service" not in address.borrowed and all(is_trusted("host", one) for one in address.servers)
    except InvalidUrl:
        # Raised by the commands that use it.
        return url
    return url if trusted else restricted(url)


def _trusted_directory(url: str, home: str) -> str:
    from shlex import quote

    from agentbus.core.trust import is_trusted_home
    from agentbus.errors import UntrustedHome

    project = os.path.dirname(os.path.realpath(home))
    path = os.path.realpath(os.path.join(project, os.path.expanduser(directory_path(url))))
    if os.path.commonpath([project, path]) == project or is_trusted_home(path):
        return path
    reason = f"{home}/{FILE} names it, and it is outside {project}"
    raise UntrustedHome(path=path, reason=reason, command=f"if you trust it: agentbus trust {quote(path)}")


def _read(text: str, default: Any, source: str) -> Any:
    if not isinstance(default, int | float):
        return text
    try:
        return type(default)(text)
    except ValueError:
        raise Usage(reason=f"{source} is {text!r}", advice="it must be a number") from None
