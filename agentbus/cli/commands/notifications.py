"""The notifiers of the user: webhooks and commands that report approvals, interrupted sessions, dead letters and
findings of the monitor. Only the user's own file sets them up, never a bus or a file of a project."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import TYPE_CHECKING, Any

from agentbus.cli.context import Call, Command, location_of
from agentbus.cli.errors import FAILED
from agentbus.cli.output import Notice, Result, Rows

if TYPE_CHECKING:
    from agentbus.core.notification_settings import Settings
    from agentbus.core.notification_settings import Webhook as WebhookSettings

_LISTED = (
    "name", "kind", "here", "status:status", "delivered", "dead", "dropped", "due:time", "error",
)  # fmt: skip
_HELP = """\
Notifiers are set up in $XDG_CONFIG_HOME/agentbus/notifications.toml (mode 0600):

  [webhook.ops]
  url = "https://hooks.example.org/agentbus"
  secret = "whsec_…"          or secret_variable = "NAME", or signed = false
  buses = ["~/project"]       directories, postgresql:// URLs, or "*"
  also: allow, ca_file, headers

  [command.desktop]
  command = ["/usr/bin/notify-send", "agentbus"]
  buses = ["*"]
  also: environment (names of variables)

  of both: events, severity (info, warning, error), sessions, workflows, include
  ("question", "error"), timeout, max_attempts
"""


def listed(call: Call) -> Result:
    """List the notifiers, with their progress on this bus."""
    from agentbus.api.notifications import is_meant

    settings = _load()
    home, location = _home_and_location(call)
    progress = _progress(call)
    rows: list[dict[str, Any]] = []
    for name, one in settings.notifiers.items():
        found = progress.get(f"{settings.owner}/{name}")
        rows.append({
            "name": name,
            "kind": _kind(one),
            "here": any(is_meant(bus, home, location) for bus in one.buses),
            "status": None if found is None else found.status,
            "delivered": 0 if found is None else found.delivered,
            "dead": 0 if found is None else found.dead,
            "dropped": 0 if found is None else found.dropped,
            "due": None if found is None else found.due,
            "error": None if found is None else found.error,
        })  # fmt: skip
    return Rows(rows, _LISTED, paged=False, empty="no notifiers are set up")


def check(call: Call) -> Result:
    """Check the file, and what it refers to on this machine. Nothing is sent."""
    settings = _load()
    rows = [
        {
            "name": name,
            "kind": _kind(one),
            "to": _destination(one),
            "buses": one.buses,
            "events": sorted(_kinds(one)),
            "problem": _problem(one),
        }
        for name, one in settings.notifiers.items()
    ]
    failed = any(row["problem"] is not None for row in rows)
    columns = ("name", "kind", "to", "buses:names", "events:names", "problem")
    return Rows(rows, columns, paged=False, empty="no notifiers are set up", code=FAILED if failed else 0)


def test(call: Call) -> Result:
    """Send a test to a notifier, and print the outcome."""
    import asyncio

    from agentbus.api.notifications import send_test

    _, location = _home_and_location(call)
    found = asyncio.run(send_test(call.arguments.name, location, "test"))
    columns = ("notifier", "id", "error", "output")
    return Rows([found], columns, paged=False, one=True, code=0 if found.error is None else FAILED)


def secret(call: Call) -> Result:
    """Print a new random secret."""
    from agentbus.core.notification_settings import new_secret

    made = new_secret()
    return Notice({"secret": made}, made)


def _load() -> Settings:
    from agentbus.core.notification_settings import load
    from agentbus.operations.notifications import KINDS

    return load(KINDS)


def _home_and_location(call: Call) -> tuple[str | None, str]:
    """Return the directory of the bus, None if it is on a server, and its location."""
    from agentbus.engine.url import server_url

    server = server_url(call.settings["url"])
    if server is None:
        home = location_of(call.settings["url"])
        return home, home
    from agentbus.engine.postgres.server import parse

    return None, parse(server).location


def _progress(call: Call) -> dict[str, Any]:
    """Return the progress of the notifiers on this bus; nothing if there is no bus."""
    from agentbus.errors import NoBus
    from agentbus.operations.notifications import list_notifiers

    try:
        return {one.name: one for one in call.bus.store.read(list_notifiers, None)}
    except NoBus:
        return {}


def _kind(one: Any) -> str:
    return type(one).__name__.lower()


def _kinds(one: Any) -> frozenset[str]:
    from agentbus.core.notification_settings import wanted_kinds
    from agentbus.operations.notifications import KINDS

    return wanted_kinds(one, KINDS)


def _destination(one: Any) -> str:
    """Return the host or the program: the rest may be a secret."""
    from agentbus.core.notification_settings import Webhook, parse_url

    return parse_url(one.url).authority if isinstance(one, Webhook) else str(one.command[0])


def _problem(one: Any) -> str | None:
    """Return what keeps a notifier from working on this machine."""
    import os

    from agentbus.core.notification_settings import Webhook

    if isinstance(one, Webhook):
        return _webhook_problem(one)
    return None if os.access(one.command[0], os.X_OK) else f"{one.command[0]} cannot be executed"


def _webhook_problem(one: WebhookSettings) -> str | None:
    from agentbus.api.webhook import Refused, check_host, context_of
    from agentbus.core.notification_settings import secret_key

    try:
        secret_key(one)
        context_of(one)
        check_host(one)
    except (ValueError, Refused) as error:
        return str(error)
    return None


def _name(parser: ArgumentParser) -> None:
    parser.add_argument("name", help="the notifier, from agentbus notifications list")


COMMANDS = {
    "notifications list": Command(
        listed, "List the notifiers of your settings, with their progress on this bus.", "agentbus notifications",
        output=f"{_HELP}\nA monitor (agentbus monitor, agentbus serve) delivers; of several, one does.\n\n"
        "here: whether it is meant for this bus. dead: given up after the last attempt. due: the next attempt.\n\n"
        "plain output: name, kind, here, status, delivered, dead, dropped, due, error", columns=True,
    ),
    "notifications check": Command(
        check, "Check the file of notifiers, and what it refers to on this machine. Nothing is sent.",
        "agentbus notifications check",
        output=f"{_HELP}\nplain output: name, kind, to (host or program), buses (JSON), events (JSON), problem",
        columns=True,
    ),
    "notifications test": Command(
        test, "Send a test to a notifier, and print the outcome. It is not retried.", "agentbus notifications test ops",
        _name, output="The exit code is 1 if it was not delivered.\n\nplain output: notifier, id, error, output",
        columns=True,
    ),
    "notifications secret": Command(
        secret, "Print a new random secret for a webhook.", "agentbus notifications secret",
        output="plain output: the secret",
    ),
}  # fmt: skip
