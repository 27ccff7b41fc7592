"""The HTTP server, and the tokens of its clients."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import TYPE_CHECKING, Any

from agentbus.cli.arguments import seconds
from agentbus.cli.context import Call, Command, location_of
from agentbus.cli.output import Notice, Result, Rows
from agentbus.errors import InvalidInput

if TYPE_CHECKING:
    from agentbus import Bus

PACKAGES = ("starlette>=1.10,<2", "uvicorn>=0.54,<0.55")
"""The extra web of pyproject.toml."""


class NoExtra(InvalidInput):
    """The command needs packages that are not installed."""

    code = "no_extra"
    text = "agentbus {command} requires {package}, which is not installed"
    fix_text = "python -m pip install {requirements}"


def serve(call: Call) -> int:
    """Serve the bus until Ctrl-C."""
    from agentbus.cli.async_runner import log_to_stderr, on_bus
    from agentbus.cli.commands.mcp import instructions

    given = call.arguments
    web = _server_module()
    settings = web.ServerSettings(
        host=given.host,
        port=given.port,
        read_only=given.read_only,
        base_path=given.base_path.rstrip("/"),
        allowed_hosts=tuple(given.allowed_host or ()),
        monitor=not given.no_monitor,
        mcp_decisions=given.mcp_decisions,
    )
    operator = _operator()
    location = location_of(call.settings["url"])

    def ready(found: Any) -> None:
        if not settings.is_loopback:
            call.note(
                f"warning: {given.host} is reachable from other machines; tokens and data travel unencrypted,"
                " unless a proxy adds TLS"
            )
        call.emit(Notice({"url": found.url, "login": found.login}, found.login))
        call.note("open this URL in a browser; Ctrl-C ends the server")
        if given.open:
            web.open_in_browser(found)

    async def run(bus: Bus) -> None:
        import logging

        log_to_stderr(call)
        web.log_to(logging.getLogger("agentbus").handlers[0])
        await web.serve(bus, settings, operator, ready, location=location, prime=instructions)

    on_bus(call, run)
    return 0


def _server_module() -> Any:
    """Import the server. Not an import statement: the interfaces do not depend on each other."""
    from importlib import import_module

    try:
        return import_module("agentbus.web.server")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "agentbus":
            raise
        requirements = " ".join(f"'{package}'" for package in PACKAGES)
        raise NoExtra(command="serve", package=error.name, requirements=requirements) from None


def _operator() -> str:
    """Return the person whose name the audit log shows for changes by the owner's token."""
    import os

    from agentbus.cli.operators import VARIABLE, account

    return os.environ.get(VARIABLE) or account()


def create(call: Call) -> Result:
    given = call.arguments
    made = call.bus.do(
        _tokens(call).create(given.role, operator=given.operator or _operator(), expires=given.expires, by=_operator())
    )
    call.note("the token is shown once; the bus stores only its hash")
    return Notice({"token": made.token, "secret": made.secret}, made.secret)


def listed(call: Call) -> Result:
    found = call.bus.do(_tokens(call).list())
    return Rows(found, ("id", "role", "operator", "created:time", "expires:time"), paged=False, empty="no tokens")


def revoke(call: Call) -> Result:
    found = [call.bus.do(_tokens(call).revoke(one, by=_operator())) for one in call.arguments.id]
    return Rows(found, ("id", "role", "operator"), paged=False)


def _tokens(call: Call) -> Any:
    from agentbus.api.tokens import Tokens

    return Tokens(call.bus._engine)


def _serve(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("--host", default="127.0.0.1", metavar="HOST", help="address to listen at (default 127.0.0.1: this machine)")
    add("--port", type=int, metavar="N", help="port (default 8637, or the next free one)")
    add("--open", action="store_true", help="open the dashboard in a browser")
    add("--read-only", action="store_true", help="refuse every change")
    add("--base-path", default="", metavar="/PATH", help="path below which a proxy serves it")
    add("--allowed-host", action="append", metavar="NAME", help="name by which a proxy is reached; can be repeated")
    add("--no-monitor", action="store_true", help="do not run the monitor")
    add(
        "--mcp-decisions",
        action="store_true",
        help="let MCP clients with an operator's token decide approvals, in the operator's name",
    )


def _create(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("role", help="read, operate, or agent:ID to act as one agent only")
    add("--operator", metavar="NAME", help="the person responsible (default: AGENTBUS_OPERATOR, or the user account)")
    add("--expires", type=seconds, metavar="S", help="time to live in seconds (default: none)")


def _revoke(parser: ArgumentParser) -> None:
    parser.add_argument("id", nargs="+", help="id of the token")


COMMANDS = {
    "serve": Command(
        serve, "Serve the HTTP API and the dashboard until Ctrl-C. It also runs the monitor.",
        "agentbus serve --open", _serve,
        output="plain output: the URL with the token of this user, which is stored in\n"
        "$XDG_STATE_HOME/agentbus/BUS/token; agentbus status shows the URL without it",
    ),
    "token create": Command(
        create, "Create a token of an HTTP client. An agent's token acts as that agent only, and never approves.",
        "agentbus token create read --operator ada", _create, output="plain output: the token",
    ),
    "token list": Command(
        listed, "List the tokens of HTTP clients.", "agentbus token list",
        output="plain output: id, role, operator, created, expires", columns=True,
    ),
    "token revoke": Command(
        revoke, "Revoke tokens: their next request is refused.", "agentbus token revoke t-5f2c81d0", _revoke,
        output="plain output: id, role, operator", columns=True,
    ),
}  # fmt: skip
