"""The MCP server on standard input and output."""

from __future__ import annotations

import os
from argparse import ArgumentParser
from contextlib import suppress

from agentbus.cli.context import Call, Command, ending_cleanly, open_configured
from agentbus.cli.errors import DONE, Usage
from agentbus.errors import AgentBusError


def serve(call: Call) -> int:
    from agentbus.mcp.identity import FixedIdentity, SessionIdentity
    from agentbus.mcp.server import MCPServer
    from agentbus.mcp.stdio import StdioServer
    from agentbus.mcp.tools import TOOLS
    from agentbus.sync.identity import client_process, client_session

    given = call.arguments
    names = TOOLS if given.tools is None else given.tools.split(",")
    unknown = [name for name in names if name not in TOOLS]
    if unknown:
        raise Usage(reason=f"no tool {unknown[0]!r}", advice=f"tools: {', '.join(TOOLS)}")
    server = MCPServer(lambda: open_configured(call.settings), tools=names, prime=instructions)
    agent = call.settings.text("agent")
    if agent is not None:
        identity: FixedIdentity | SessionIdentity = FixedIdentity(agent, pid=os.getpid())
    else:
        session = given.client_session or client_session(os.environ)
        identity = SessionIdentity(session, client_process(os.getppid()))
    try:
        with ending_cleanly():
            StdioServer(server.dispatcher, identity, decider=given.decisions_by).serve()
    finally:
        if isinstance(identity, SessionIdentity) and identity.current is not None:
            with suppress(AgentBusError), server.buses.borrow() as bus:
                identity.leave(bus)
        server.close()
    return DONE


def instructions() -> str:
    """Return the text of the resource bus://prime."""
    from agentbus.cli.commands.prime import text

    return text("prime")


def _arguments(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("--tools", metavar="NAMES", help="tools to offer, separated by commas (default: all)")
    add(
        "--client-session",
        metavar="ID",
        help="session of the client, which gets its agent back by it (default: from the client's environment)",
    )
    add(
        "--decisions-by",
        metavar="NAME",
        help="count the client's answers to approvals as decisions of this person (default: they do not count)",
    )


COMMANDS = {
    "mcp": Command(
        serve, "Serve the bus to an MCP client on standard input and output.",
        "claude mcp add agentbus -- agentbus mcp", _arguments, output="plain output: JSON-RPC, one message per line",
    ),
}  # fmt: skip
