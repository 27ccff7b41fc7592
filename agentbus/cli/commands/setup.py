"""Install agentbus into coding agents."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

import msgspec

from agentbus.cli.clients import ALIASES, CLIENTS, TITLES
from agentbus.cli.context import Call, Command
from agentbus.cli.errors import Usage, echoed
from agentbus.cli.output import PLAIN, PlainFormat, Result, Rows
from agentbus.cli.setup.layouts import PROJECT, USER, Scope
from agentbus.errors import InvalidInput
from agentbus.records.setup import SetupReport

_COLUMNS = ("client", "scope", "detected:flag", "status", "parts:names", "missing:names", "files:names")


class SecretInProject(InvalidInput):
    """The URL has a password, and the files of a project are shared."""

    code = "setup_secret"
    text = "the URL has a password, and the files of a project are shared with others"
    fix_text = "pass --user, leave the password to ~/.pgpass, or set AGENTBUS_URL where the client starts"


def setup(call: Call) -> Result:
    """Install agentbus into a client, or remove it; without a client, show where it is installed."""
    from agentbus.cli.setup import install

    given = call.arguments
    scope: Scope | None = USER if given.user else PROJECT if given.project else None
    if given.client is None:
        if given.remove or given.dry_run or given.print:
            raise Usage(reason="no client specified", advice=f"agentbus setup {{{','.join(CLIENTS)}}}")
        found = install.statuses() if scope is None else install.statuses((scope,))
        rows = [one for one in found if one.detected or one.parts]
        empty = f"no coding agent was found; agentbus setup {{{','.join(CLIENTS)}}} installs into one"
        return Rows(rows, _COLUMNS, paged=False, empty=empty)
    client = _client(given.client)
    url = _url(call, scope or PROJECT) if call.settings.sources["url"] == "option" else None
    if given.print:
        if given.remove or given.dry_run:
            raise Usage(reason="--print writes nothing", advice="pass it alone")
        fresh = install.changes(client, scope or PROJECT, install.program(scope or PROJECT), url)
        return Texts({one.path: one.fresh() for one in fresh})
    report = install.run(client, scope or PROJECT, remove=given.remove, dry_run=given.dry_run, url=url)
    for note in report.notes:
        call.note(f"agentbus: {note}")
    return SetupResult(report, remove=given.remove)


class Texts(Result):
    """Files, to be copied by hand."""

    def __init__(self, texts: dict[str, str]) -> None:
        self._texts = texts

    def data(self) -> Any:
        return [{"path": path, "text": text} for path, text in self._texts.items()]

    def lines(self, form: PlainFormat = PLAIN) -> list[str]:
        return [line for path, text in self._texts.items() for line in (f"=== {path}", *text.splitlines(), "")]


class SetupResult(Result):
    """The changes of an installation: the diff of each file, and what was done."""

    def __init__(self, report: SetupReport, *, remove: bool) -> None:
        self._report = report
        self._remove = remove

    def data(self) -> Any:
        return msgspec.to_builtins(self._report)

    def lines(self, form: PlainFormat = PLAIN) -> list[str]:
        found = [line for one in self._report.files for line in one.diff.splitlines()]
        found += [f"backup\t{one.backup}" for one in self._report.files if one.backup is not None]
        return [*found, self._sentence()]

    def _sentence(self) -> str:
        report = self._report
        name = f"{TITLES[report.client]}, {report.scope} scope"
        if report.action == "unchanged":
            return (
                f"agentbus is not installed in {name}" if self._remove else f"agentbus is already installed in {name}"
            )
        if report.dry_run:
            would = "remove agentbus from" if self._remove else "install agentbus into"
            return f"nothing was written; this would {would} {name}"
        return f"agentbus was {'removed from' if self._remove else 'installed into'} {name}"


def _client(word: str) -> str:
    client = ALIASES.get(word, word)
    if client not in CLIENTS:
        raise Usage(reason=f"no client {echoed(word)}", advice=f"clients: {', '.join(CLIENTS)}")
    return client


def _url(call: Call, scope: Scope) -> str:
    """Return the bus that the written commands name, because the caller named it."""
    import os
    from urllib.parse import urlsplit

    from agentbus.engine.url import directory_path, server_url

    url = str(call.settings["url"])
    if (server := server_url(url)) is None:
        path = directory_path(url)
        return path if scope == PROJECT else os.path.abspath(os.path.expanduser(path))
    parts = urlsplit(server)
    if scope == PROJECT and (parts.password is not None or "password=" in (parts.query or "")):
        raise SecretInProject
    return url


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument("client", nargs="?", metavar="CLIENT", help=f"{', '.join(CLIENTS)} (default: list them)")
    scope = parser.add_mutually_exclusive_group()
    scope.add_argument("--project", action="store_true", help="write into the files of this project (default)")
    scope.add_argument("--user", action="store_true", help="write into the files of the user, for all projects")
    parser.add_argument("--dry-run", action="store_true", help="print the changes and write nothing")
    parser.add_argument("--print", action="store_true", help="print what would be written, to copy it by hand")
    parser.add_argument("--remove", action="store_true", help="remove what agentbus setup has written")


COMMANDS = {
    "setup": Command(
        setup,
        "Install agentbus into a coding agent: hooks, MCP server, skill and permissions.",
        "agentbus setup claude --project",
        _arguments,
        output="Before its first change, each file is copied to FILE.agentbus-backup.\n"
        "With --url, hooks and MCP server use that bus; otherwise the bus of the\n"
        "directory that they run in. Without CLIENT, the clients are listed.\n\n"
        "plain output: client, scope, detected, status, parts, missing, files\n"
        "with CLIENT: the changes as a unified diff, and a sentence",
        columns=True,
    ),
}
