"""Bringing things in and out: what people have today, a bus or a session as a file."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from agentbus.interfaces.cli.command import Call, Command, ending_cleanly
from agentbus.interfaces.cli.failures import DONE, FAILED
from agentbus.interfaces.cli.output import Result, Said, plain

if TYPE_CHECKING:
    from agentbus.bus import Bus
    from agentbus.records import ImportReport

T = TypeVar("T")
Tell = Callable[[int, int, str], object]


def import_(call: Call) -> Result:
    """Bring in whatever lies at a path."""
    path = call.arguments.path
    with _bar(call, "importing") as tell:
        report = _with_bus(call, lambda bus: bus.import_path(path, progress=tell))
    return Imported(report)


def export(call: Call) -> Result:
    """Write the bus, or a session, to a file."""
    arguments = call.arguments
    with _bar(call, "exporting") as tell:
        report = _with_bus(call, lambda bus: bus.export(arguments.path, session=arguments.session, progress=tell))
    return Said(msgspec.to_builtins(report), report.path)


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

        names = ("what", "of", "count", "why")
        rows = [dict(zip(names, row, strict=True)) for row in self._rows()]
        table([(name, "") for name in names], rows, "there was nothing to import", None)
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


def _with_bus(call: Call, work: Callable[[Bus], Awaitable[T]]) -> T:
    """Both may take long, and read and write at once: they use the bus with an event loop."""
    import anyio

    from agentbus.engine.sqlite import home
    from agentbus.errors import NoBus
    from agentbus.opening import connect

    settings = call.settings
    place = home.find(settings["url"])
    if not home.is_there(place):
        raise NoBus(path=place.root)

    async def run() -> T:
        async with connect(
            settings["url"],
            durability=settings["durability"],
            lock_timeout=settings["lock_timeout"],
            max_payload=settings["max_payload"],
            max_snapshot=settings["max_snapshot"],
            auto_resume=False,
        ) as bus:
            return await work(bus)

    with ending_cleanly():
        return anyio.run(run)


@contextmanager
def _bar(call: Call, title: str) -> Iterator[Tell | None]:
    from importlib.util import find_spec

    if call.arguments.quiet or not sys.stderr.isatty() or find_spec("rich") is None:
        yield None
        return
    from agentbus.interfaces.cli.bars import bar

    with bar(title) as tell:
        yield tell


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
