"""Instructions for an LLM agent on the bus, and the integration into its tool."""

from __future__ import annotations

import os
from argparse import ArgumentParser

from agentbus.cli.context import Call, Command
from agentbus.cli.output import Result, Text

_TEXTS = f"{os.path.dirname(__file__)}/texts"
TOOLS = ("claude-code",)


def prime(call: Call) -> Result:
    with open(f"{_TEXTS}/{call.arguments.tool or 'prime'}.md", encoding="utf-8") as file:
        return Text(file.read())


def _prime(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--for", dest="tool", choices=TOOLS, help="print the integration into this tool: hooks and a skill"
    )


COMMANDS = {
    "prime": Command(
        prime, "Print instructions for an LLM agent on the bus. Works without a bus.", "agentbus prime", _prime,
        output="plain output: Markdown",
    ),
}  # fmt: skip
