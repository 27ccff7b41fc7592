"""Servers and directories that a repository names and the user accepts."""

from __future__ import annotations

from argparse import ArgumentParser

from agentbus import trust
from agentbus.interfaces.cli.command import Call, Command
from agentbus.interfaces.cli.failures import NothingThere, Usage
from agentbus.interfaces.cli.output import Result, Rows

_COLUMNS = ("kind", "value")


def accept(call: Call) -> Result:
    """Accept a target, or remove it; without one, list what was accepted."""
    given = call.arguments
    if given.target is None:
        if given.remove:
            raise Usage(reason="--remove needs a target", advice="`agentbus trust --list` shows the accepted ones")
        return _rows(trust.entries())
    if given.list:
        raise Usage(reason="--list takes no target", advice="agentbus trust --list")
    entries = _entries(given.target)
    for kind, value in entries:
        if not given.remove:
            trust.trust(kind, value)
        elif not trust.distrust(kind, value):
            raise NothingThere(what=f"{value} is not accepted", advice="`agentbus trust --list` shows what is")
    return _rows(entries)


def _entries(target: str) -> list[tuple[trust.Kind, str]]:
    """The entries of a target: each server of a URL, or one directory."""
    import os

    from agentbus.engine.places import server_url
    from agentbus.engine.postgres.address import parse

    if (server := server_url(target)) is not None:
        return [("host", one) for one in parse(server).servers]
    if "/" not in target and not os.path.exists(target):
        raise Usage(reason=f"{target!r} is neither a directory nor the URL of a server",
                    advice="agentbus trust postgresql://host:port, or agentbus trust ./directory")  # fmt: skip
    return [("home", os.path.realpath(target))]


def _rows(entries: list[tuple[trust.Kind, str]]) -> Rows:
    rows = [{"kind": kind, "value": value} for kind, value in entries]
    return Rows(rows, _COLUMNS, paged=False, empty="nothing is accepted")


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument("target", nargs="?", metavar="TARGET", help="postgresql://host:port, or a directory")
    parser.add_argument("--list", action="store_true", help="list the accepted servers and directories")
    parser.add_argument("--remove", action="store_true", help="accept the target no longer")


COMMANDS = {
    "trust": Command(
        accept,
        "Accept a server or a directory that a repository names, in a file of your own.",
        "agentbus trust postgresql://db.example.org:5432",
        _arguments,
        output="A server that agentbus.toml names gets your password or certificate only then.\n"
        "The file is ~/.config/agentbus/trusted.\n\nplain output: kind (host or home), value",
    ),
}
