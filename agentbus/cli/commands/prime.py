"""Instructions for an LLM agent on the bus, and the integration into its tool."""

from __future__ import annotations

import os
from argparse import ArgumentParser

from agentbus.cli.context import Call, Command
from agentbus.cli.output import Result, Text

_TEXTS = f"{os.path.dirname(__file__)}/texts"
TOOLS = ("claude-code",)


def prime(call: Call) -> Result:
    if call.arguments.tool is not None:
        call.note(
            "agentbus: agentbus setup claude replaces this: it writes hooks, MCP server and skill, and removes them"
        )
    return Text(text(call.arguments.tool or "prime"))


def text(name: str) -> str:
    """Return a text for agents by its name."""
    with open(f"{_TEXTS}/{name}.md", encoding="utf-8") as file:
        return file.read()


def _prime(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--for", dest="tool", choices=TOOLS, help="print hooks and a skill to copy by hand; agentbus setup writes them"
    )


COMMANDS = {
    "prime": Command(
        prime, "Print instructions for an LLM agent on the bus. Works without a bus.", "agentbus prime", _prime,
        output="plain output: Markdown",
    ),
}  # fmt: skip
