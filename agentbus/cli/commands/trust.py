"""Servers and directories that a repository names and the user trusts."""

from __future__ import annotations

import os
from argparse import ArgumentParser

from agentbus.cli.context import Call, Command
from agentbus.cli.errors import NothingThere, Usage
from agentbus.cli.output import Done, Result, Rows
from agentbus.core import trust

_COLUMNS = ("kind", "value")


def trust_target(call: Call) -> Result:
    """Trust a target, or remove it; without one, list the trusted ones."""
    given = call.arguments
    if given.target is None:
        if given.remove:
            raise Usage(reason="--remove needs a target", advice="agentbus trust --list shows the trusted ones")
        return _rows(trust.entries())
    if given.list:
        raise Usage(reason="--list takes no target", advice="agentbus trust --list")
    entries = _entries(given.target)
    if not given.remove:
        _check_homes(call, entries)
    for kind, value in entries:
        if not given.remove:
            trust.trust(kind, value)
        elif not trust.distrust(kind, value):
            raise NothingThere(what=f"{value} is not trusted", advice="agentbus trust --list shows the trusted ones")
    named = ", ".join(value for _, value in entries)
    return Done(_rows(entries).data(), f"{'no longer trusted' if given.remove else 'trusted'}: {named}")


def _check_homes(call: Call, entries: list[tuple[trust.Kind, str]]) -> None:
    """Refuse the root directory, below which everything is. A directory may be made later."""
    for kind, value in entries:
        if kind == "home" and value == "/":
            raise Usage(reason="/ cannot be trusted: every directory is below it", advice="name the directory of a bus")
        if kind == "home" and not os.path.isdir(value):
            call.note(f"{value} does not exist yet")


def _entries(target: str) -> list[tuple[trust.Kind, str]]:
    """Return the entries of a target: each server of a URL, or one directory."""
    from agentbus.engine.postgres.server import parse
    from agentbus.engine.url import server_url

    if (server := server_url(target)) is not None:
        return [("host", one) for one in parse(server).servers]
    if "/" not in target and not os.path.exists(target):
        raise Usage(reason=f"{target!r} is neither a directory nor the URL of a server",
                    advice="agentbus trust postgresql://host:port, or agentbus trust ./directory")  # fmt: skip
    return [("home", os.path.realpath(target))]


def _rows(entries: list[tuple[trust.Kind, str]]) -> Rows:
    rows = [{"kind": kind, "value": value} for kind, value in entries]
    return Rows(rows, _COLUMNS, paged=False, empty="nothing is trusted")


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument("target", nargs="?", metavar="TARGET", help="postgresql://host:port, or a directory")
    parser.add_argument("--list", action="store_true", help="list the trusted servers and directories")
    parser.add_argument("--remove", action="store_true", help="stop trusting the target")


COMMANDS = {
    "trust": Command(
        trust_target,
        "Trust a server or a directory that a repository names.",
        "agentbus trust postgresql://db.example.org:5432",
        _arguments,
        output="Only a trusted server that agentbus.toml names receives your password or certificate.\n"
        "The trusted ones are stored in ~/.config/agentbus/trusted.\n\nplain output: kind (host or home), value;\n"
        "with a target, a sentence that says what was done",
        columns=True,
    ),
}
