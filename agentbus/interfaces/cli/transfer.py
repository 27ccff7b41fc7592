"""Bringing things in and out: what people have today, a bus or a session as a file."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from agentbus.interfaces.cli.command import Call, Command
from agentbus.interfaces.cli.failures import DONE, FAILED
from agentbus.interfaces.cli.output import Result, Said, plain

if TYPE_CHECKING:
    from agentbus.records import ImportReport


def import_(call: Call) -> Result:
    """Bring in whatever lies at a path."""
    from agentbus.interfaces.cli.looping import with_bar

    path = call.arguments.path
    return Imported(with_bar(call, "importing", lambda bus, report: bus.import_path(path, progress=report)))


def export(call: Call) -> Result:
    """Write the bus, or a session, to a file."""
    from agentbus.interfaces.cli.looping import with_bar

    given = call.arguments
    made = with_bar(
        call, "exporting", lambda bus, report: bus.export(given.path, session=given.session, progress=report)
    )
    return Said(made, made.path)


class Imported(Result):
    """What an import brought. It failed if nothing was taken, nothing was there, and something was refused."""

    def __init__(self, report: ImportReport) -> None:
        self._report = report
        self.code = FAILED if report.refused and not report.imported and not report.present else DONE

    def data(self) -> Any:
        return msgspec.to_builtins(self._report)

    def lines(self) -> list[str]:
        return ["\t".join(plain(value) for value in row) for row in self._rows()]

    def show(self) -> None:
        from agentbus.interfaces.cli.tables import table

        columns = (("what", ""), ("of", "prose"), ("count", ""), ("why", "reason"))
        rows = [dict(zip([name for name, _ in columns], row, strict=True)) for row in self._rows()]
        table(columns, rows, "there was nothing to import", None)
        hidden = self._report.refused + self._report.changed - len(self._report.problems)
        if hidden > 0:
            print(f"and {hidden} more that were refused or changed")

    def _rows(self) -> Iterator[tuple[str, str | None, int, str | None]]:
        report = self._report
        for kind, count in report.imported.items():
            yield "imported", kind, count, None
        if report.present:
            yield "present", None, report.present, None
        for what, count in (("refused", report.refused), ("changed", report.changed)):
            if count:
                yield what, None, count, None
        for problem in report.problems:
            yield "changed" if problem.taken else "refused", problem.file or report.path, problem.line, problem.reason


def _import(parser: ArgumentParser) -> Any:
    parser.add_argument("path", metavar="PATH", help="a folder, a JSON file, an SQLite database, or an archive")


def _export(parser: ArgumentParser) -> Any:
    parser.add_argument("path", metavar="PATH", help="a file that does not exist yet, or a folder")
    parser.add_argument("--session", metavar="ID", help="only this session, with its agents and what belongs to them")


COMMANDS = {
    "import": Command(
        import_,
        "Bring in what you have: folders of JSON files, SQLite databases of hand-made coordination, archives of a bus.",
        "agentbus import ./coordination",
        _import,
        output="plain output: imported, refused or changed; a kind or a file; a count or the line; why",
    ),
    "export": Command(
        export,
        "Write the bus, or one session, to a file that import reads.",
        "agentbus export planning-001.jsonl.gz --session planning-001",
        _export,
        output="plain output: its path",
    ),
}
