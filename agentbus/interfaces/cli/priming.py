"""What an LLM agent has to know to work on the bus, in as few words as will do; and how to wire it into its tool."""

from __future__ import annotations

import os
from argparse import ArgumentParser

from agentbus.interfaces.cli.command import Call, Command
from agentbus.interfaces.cli.output import Result, Text

_TEXTS = f"{os.path.dirname(__file__)}/texts"
TOOLS = ("claude-code",)


def prime(call: Call) -> Result:
    with open(f"{_TEXTS}/{call.arguments.tool or 'prime'}.md", encoding="utf-8") as file:
        return Text(file.read())


def _prime(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--for", dest="tool", choices=TOOLS, help="print how to wire it into this tool: hooks and a skill"
    )


COMMANDS = {
    "prime": Command(
        prime, "Print what an LLM agent has to know to work on the bus. Needs no bus.", "agentbus prime", _prime,
        output="plain output: Markdown",
    ),
}  # fmt: skip
