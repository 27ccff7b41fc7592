"""Copying a whole bus to another place."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import TYPE_CHECKING, Any

import msgspec

from agentbus.interfaces.cli.command import Call, Command
from agentbus.interfaces.cli.output import Result, plain

if TYPE_CHECKING:
    from agentbus.engine.blocking import BlockingEngine
    from agentbus.records import CopyReport

_BESIDE = ("archive", "backups", "agentbus.toml")
"""What a bus in a directory may have besides itself."""


def copy(call: Call) -> Result:
    """Copy it, or go on where a copy was cut off."""
    import os
    from contextlib import closing
    from shlex import quote

    from agentbus.interfaces.cli.bars import bar
    from agentbus.services.copying import copy_bus

    given = call.arguments
    with closing(_opened(call, given.source)) as source, bar("copying", call) as report:
        made = copy_bus(source, lambda: _opened(call, given.target, create=True), report)
    if made.resumed:
        call.note("it went on where it was cut off")
    call.note(f"{made.source} is as it was; to use the copy: export AGENTBUS_URL={quote(made.target)}")
    left = [name for name in _BESIDE if os.path.exists(os.path.join(made.source, name))]
    if left:
        call.note(f"what lies beside it stays there: {', '.join(left)}")
    return Copied(made)


def _opened(call: Call, url: str, *, create: bool = False) -> BlockingEngine:
    from agentbus.blocking import open_store

    settings = call.settings
    return open_store(
        url, create=create, durability=settings["durability"], lock_timeout=settings["lock_timeout"]
    )  # fmt: skip


class Copied(Result):
    """What both have now."""

    def __init__(self, report: CopyReport) -> None:
        self._report = report
        self._tables = report.tables

    def data(self) -> Any:
        return msgspec.to_builtins(self._report)

    def lines(self) -> list[str]:
        return ["\t".join(plain(value) for value in (table.name, table.rows, table.checksum)) for table in self._tables]

    def show(self) -> None:
        from agentbus.interfaces.cli.tables import table

        columns = [("table", ""), ("rows", ""), ("checksum of both", "")]
        rows = [{"table": one.name, "rows": f"{one.rows:,}", "checksum of both": one.checksum} for one in self._tables]
        table(columns, rows, "", None)


def _copy(parser: ArgumentParser) -> Any:
    parser.add_argument("source", metavar="FROM", help="the bus: its directory, or postgresql://…")
    parser.add_argument(
        "target", metavar="TO", help="where no bus is yet, or an empty one: a directory, or postgresql://…"
    )


COMMANDS = {
    "copy": Command(
        copy, "Copy a whole bus to another place, between files and servers, and compare the two. Nobody may have it"
        " open; it stays as it is. Copied again, a copy that was cut off goes on where it was.",
        "agentbus copy .agentbus postgresql://me@server/agents", _copy,
        output="plain output: table, rows, checksum of them in both",
    ),
}  # fmt: skip
