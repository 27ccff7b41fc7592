"""Import of folders of JSON files, coordination databases, and archives of a bus.

Each file is one commit, or several if it is large; an import that was interrupted can be repeated. Rows that cannot be
read or imported are reported; existing rows are never changed. Payloads of open messages are checked against the
schemas of their types, as when they are sent.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from agentbus.api.maintenance.archive import Limits, Read, read_archive
from agentbus.api.maintenance.importer import json_files
from agentbus.api.maintenance.importer.databases import rows_of
from agentbus.api.maintenance.importer.json_files import (
    Entry,
    Folder,
    Unreadable,
    read_head,
    read_json_file,
    walk_files,
)
from agentbus.api.maintenance.importer.mapping import Mapper
from agentbus.core.cancellation import run_to_completion
from agentbus.core.files import DATABASE, SIDECAR_SUFFIXES, check_path
from agentbus.core.jsonschema import payload_error
from agentbus.core.threads import check_interruption
from agentbus.engine.interface import Engine
from agentbus.engine.sqlite.foreign import MAGIC, UnreadableDatabase, open_foreign
from agentbus.errors import (
    ArchiveDiffers,
    DamagedArchive,
    FormatRefused,
    InvalidInput,
    NoSuchFile,
    NotImportable,
    Outdated,
    TypeChanging,
    UnknownHistory,
    UnknownSession,
)
from agentbus.operations.archive_restore import (
    ImportedRequest,
    ImportedRow,
    ImportRowsRequest,
    RestoreRequest,
    import_rows,
    note_import,
    restore,
)
from agentbus.operations.archive_rows import (
    ArchivedEvent,
    ArchivedHistory,
    ArchivedMailbox,
    ArchivedMessage,
    ArchivedSession,
    ArchivedType,
    Line,
    bus_name,
    kind_of,
)
from agentbus.operations.types import Unchecked
from agentbus.records import ImportedFile, ImportProblem, ImportReport

T = TypeVar("T")
Progress = Callable[[int, int, str], object]
"""Called with bytes done, total bytes and the current file."""

_MAX_PROBLEMS = 100
_MAX_LISTED_FILES = 1000
_MAX_ROUNDS = 10
_LARGE = 16 * 1024
"""Characters of JSON above which a check runs on a thread."""
MISFITS = (InvalidInput, TypeChanging)
"""Errors that exclude one message."""
REFUSALS = (ArchiveDiffers, FormatRefused, Outdated, UnknownHistory, UnknownSession, *MISFITS)
"""Errors that exclude one line; any other error ends the import."""
_MAX_LINES = 200
"""Lines of an archive imported together."""
_MAX_FILES = 200
_MAX_ITEMS = 500
_MAX_BYTES = 4 * 1024 * 1024
_MAX_READ = 16 * 1024 * 1024
_FIRST = (ArchivedSession, ArchivedType, ArchivedMailbox, ArchivedEvent, ArchivedHistory)
"""Kinds restored first: other lines refer to them, and events must precede those of the import to keep their ids."""
_TEXTS = ("payload", "snapshot", "value", "metadata", "prompt", "arguments", "context", "result")
_GZIP = b"\x1f\x8b"
_DATABASES = (".db", ".db3", ".sqlite", ".sqlite3")


async def import_path(
    engine: Engine, path: str | os.PathLike[str], limits: Limits, progress: Progress | None = None
) -> ImportReport:
    """Import the file or folder at a path."""
    if progress is not None and not callable(progress):
        raise InvalidInput(reason="progress must be a function of (done, total, file)")
    location = check_path(path)
    root = await run_to_completion(_resolve, location, engine)
    run = _Run(engine, root, limits, progress)
    await run.run()
    return await _report(engine, location, run.tally)


async def import_archive(engine: Engine, path: str | os.PathLike[str], limits: Limits) -> ImportReport:
    """Restore the rows of an archive; raise DamagedArchive if it cannot be read at all."""
    location = check_path(path)
    tally = Tally(str(location))
    file = FileTally("", "archive")
    await _restore_archive(engine, location, limits, file, lambda share: None)
    tally.add(file)
    return await _report(engine, location, tally)


class SchemaChecker:
    """Checks payloads against the schemas of this bus, which it learns as needed."""

    def __init__(self) -> None:
        self._schemas: dict[str, str] = {}

    async def check(self, line: object) -> str | None:
        """Check a line against its schema, if it has one, and return the schema; raise if it does not fit."""
        if not isinstance(line, ArchivedMessage) or line.finished is not None:
            return None
        schema = self._schemas.get(line.type)
        if schema is None:
            return None
        if len(line.payload) <= _LARGE:
            problem = payload_error(line.type, line.payload, schema)
        else:
            problem = await run_to_completion(payload_error, line.type, line.payload, schema)
        if problem is not None:
            raise problem
        return schema

    async def write(self, line: object, write: Callable[[str | None], Awaitable[T]]) -> T:
        """Check and write a line; if the bus has another schema by then, check again."""
        for _ in range(_MAX_ROUNDS):
            try:
                return await write(await self.check(line))
            except Unchecked as news:
                self.learn(news)
        raise TypeChanging(type=getattr(line, "type", ""), rounds=_MAX_ROUNDS)

    def learn(self, news: Unchecked) -> None:
        self._schemas.update(news.schemas)


async def _restore_archive(
    engine: Engine, path: Path, limits: Limits, tally: FileTally, report: Callable[[float], None]
) -> None:
    """Restore the rows of an archive that the bus lacks. ``report`` is called with the fraction done."""
    home = await engine.read(bus_name, None)
    checker = SchemaChecker()

    async def put(line: Line, one: Read) -> bool:
        at_home = one.bus is not None and one.bus == home
        return await checker.write(
            line, lambda fits: engine.write(restore, RestoreRequest(line, one.size, at_home, fits))
        )

    for step, first in enumerate((True, False)):
        position = _Position()
        lines = read_archive(path, engine.owns_file, limits, position.at)
        try:
            while taken := await run_to_completion(_take, lines, first):
                wanted: list[tuple[Line, Read]] = []
                for one in taken:
                    if isinstance(one.line, str):
                        tally.refuse(one.number, one.line)
                    else:
                        wanted.append((one.line, one))
                # One request per line, so that a refused one does not affect others. The writer batches them.
                outcomes = await asyncio.gather(*(put(*each) for each in wanted), return_exceptions=True)
                for (line, one), outcome in zip(wanted, outcomes, strict=True):
                    if isinstance(outcome, REFUSALS):
                        tally.refuse(one.number, str(outcome))
                    elif isinstance(outcome, BaseException):
                        raise outcome
                    else:
                        tally.take(kind_of(line), outcome)
                report((step + position.share) / 2)
        finally:
            lines.close()


class _Position:
    """The fraction of a file that has been read."""

    share = 0.0

    def at(self, share: float) -> None:
        self.share = share


def _take(lines: Iterator[Read], first: bool) -> list[Read]:
    """Return the next lines of the kinds restored first, or of the others."""
    taken: list[Read] = []
    size = 0
    for one in lines:
        if isinstance(one.line, _FIRST) == first:
            taken.append(one)
            size += one.size
            if len(taken) == _MAX_LINES or size > _MAX_BYTES:
                break
    return taken


async def _report(engine: Engine, location: Path, tally: Tally) -> ImportReport:
    if tally.imported:
        name = os.fsencode(location.name).decode("utf-8", "backslashreplace")
        await engine.write(note_import, ImportedRequest(name, tally.imported))
    return tally.report()


def _resolve(location: Path, engine: Engine) -> Path:
    """Resolve a path to a folder, or to a file that is not part of a bus."""
    try:
        root = location.resolve(strict=True)
        found = root.stat()
    except (OSError, RuntimeError, ValueError) as error:
        raise NotImportable(path=str(location), reason=getattr(error, "strerror", None) or str(error)) from None
    bus = "it is a bus"
    advice = "export that bus and import the file"
    if stat.S_ISDIR(found.st_mode):
        if root == engine.directory.resolve() or os.path.lexists(root / DATABASE):
            raise NotImportable(path=str(location), reason=bus, advice=advice)
    elif engine.owns_file(found.st_dev, found.st_ino):
        raise NotImportable(path=str(location), reason=bus, advice=advice)
    elif not stat.S_ISREG(found.st_mode):
        raise NotImportable(path=str(location), reason="it is neither a folder nor a regular file")
    return root


class _Json(msgspec.Struct, frozen=True):
    """A JSON file that was read, with its rows."""

    entry: Entry
    tally: FileTally
    items: Sequence[ImportedRow] = ()


class _Run:
    """One import."""

    def __init__(self, engine: Engine, root: Path, limits: Limits, progress: Progress | None) -> None:
        self.tally = Tally(str(root))
        self._engine = engine
        self._root = root
        self._limits = limits
        self._progress = progress
        self._folders: dict[Path, Folder] = {}
        self._named: list[tuple[Entry, int]] = []
        """Session files, which name agents, with their modification times."""
        self._checker = SchemaChecker()
        self._conflicting: set[str] = set()
        """Sessions whose id means another session on this bus: their rows are excluded."""
        self._done = self._total = 0

    async def run(self) -> None:
        found = await run_to_completion(self._list_files)
        for one in found:
            if not isinstance(one, Entry):
                self.tally.refuse(*one)
        files = [one for one in found if isinstance(one, Entry)]
        self._total = sum(one.size for one in files)
        sorts: dict[str, list[Entry]] = {}
        for one in files:
            sorts.setdefault(_classify(one), []).append(one)
        # Sessions first, since other rows belong to them; lists of agents after the files with more detail.
        for sort in ("session", "archive", "database", "json", "agents"):
            for part in _batches(sorts.get(sort, ()), 1 if sort in {"archive", "database"} else _MAX_FILES):
                await self._take(sort, part)
        for entry, modified in self._named:
            file = FileTally(entry.name, "session")
            folder = self._folder(entry)
            items = json_files.agents_of_session(folder, Mapper(file, self._limits, folder.creation_time(modified)))
            await self._import_files([_Json(entry, file, items)])
        for one in sorts.get("unknown", ()):
            self.tally.refuse(one.name, json_files.UNKNOWN)
            self._finish(one)
        for one in sorts.get("sidecar", ()):
            self._finish(one)

    def _list_files(self) -> list[Entry | tuple[str, str]]:
        if self._root.is_dir():
            return list(walk_files(self._root, self._engine.owns_file))
        return [Entry("", self._root, self._root.stat().st_size)]

    async def _take(self, sort: str, part: Sequence[Entry]) -> None:
        if sort == "database":
            await self._database(part[0])
        elif sort == "archive":
            await self._archive(part[0])
        else:
            for files in await run_to_completion(self._read, part):
                await self._import_files(files)
        for one in part:
            self._finish(one)

    def _read(self, part: Sequence[Entry]) -> list[list[_Json]]:
        """Read JSON files in portions of one commit each."""
        portions: list[list[_Json]] = [[]]
        size = 0
        for entry in part:
            check_interruption()
            file = FileTally(entry.name, "")
            items: Sequence[ImportedRow] = ()
            try:
                items = self._items(entry, file)
            except Unreadable as error:
                file.refuse(0, str(error))
            except RecursionError:
                # Decoded, but too deep for the mapping.
                file.refuse(0, "it is nested too deep")
            file_size = sum(_size_of(item) for item in items)
            if portions[-1] and size + file_size > _MAX_BYTES:
                portions.append([])
                size = 0
            portions[-1].append(_Json(entry, file, items))
            size += file_size
        return portions

    def _items(self, entry: Entry, file: FileTally) -> Sequence[ImportedRow]:
        contents = read_json_file(entry.path, self._engine.owns_file)
        value = json_files.decode_json(contents)
        name = entry.path.name
        if not json_files.is_json(name):
            raise Unreadable(reason=json_files.UNKNOWN)
        try:
            name.encode()
        except UnicodeEncodeError:
            name = os.fsencode(name).decode("utf-8", "backslashreplace")
        format = json_files.format_of(name, value)
        if format is None:
            raise Unreadable(reason=json_files.UNKNOWN)
        file.format = format
        folder = self._folder(entry)
        if format == "session":
            folder.learn(value)
            self._named.append((entry, contents.modified))
        mapper = Mapper(file, self._limits, folder.creation_time(contents.modified))
        return json_files.items_of(format, name, value, folder, mapper)

    async def _import_files(self, files: Sequence[_Json]) -> None:
        """Import files concurrently: they share a transaction, and one that is refused does not affect the others."""
        for outcome in await asyncio.gather(*map(self._import_file, files), return_exceptions=True):
            if outcome is not None:
                raise outcome
        for file in files:
            self.tally.add(file.tally)

    async def _import_file(self, file: _Json) -> None:
        for part in _parts(file.items, _MAX_ITEMS):
            await self._commit(file.tally, part)

    async def _commit(self, file: FileTally, items: Sequence[ImportedRow]) -> None:
        """Import rows in one commit; those whose type has another schema by then in one more."""
        wanted = await self._check_schemas(items, file)
        if not wanted:
            return
        size = sum(_size_of(item) for item in wanted)
        try:
            outcomes = await self._engine.write(
                import_rows, ImportRowsRequest(tuple(wanted), size, frozenset(self._conflicting))
            )
        except FormatRefused as error:
            if len(wanted) == 1:
                file.refuse(wanted[0].number, f"{_describe(wanted[0])}: {error}")
                return
            # Import them one by one, to exclude only the refused one.
            for item in wanted:
                await self._commit(file, [item])
            return
        again: list[ImportedRow] = []
        for item, outcome in zip(wanted, outcomes, strict=True):
            if isinstance(outcome, Unchecked):
                self._checker.learn(outcome)
                again.append(item)
            elif isinstance(outcome, REFUSALS):
                file.refuse(item.number, str(outcome))
                if isinstance(item.line, ArchivedSession):
                    self._conflicting.add(item.line.id)
            elif isinstance(outcome, BaseException):
                raise outcome
            else:
                file.take(kind_of(item.line), outcome)
        await self._commit(file, again)

    async def _check_schemas(self, items: Sequence[ImportedRow], file: FileTally) -> list[ImportedRow]:
        """Return the rows that fit the known schemas of their types."""
        wanted: list[ImportedRow] = []
        for item in items:
            try:
                fits = await self._checker.check(item.line)
            except MISFITS as error:
                file.refuse(item.number, f"{_describe(item)}: {error}")
            else:
                wanted.append(item if fits is None else msgspec.structs.replace(item, fits=fits))
        return wanted

    async def _database(self, entry: Entry) -> None:
        file = FileTally(entry.name, "database")
        try:
            with ExitStack() as stack:
                mapper = Mapper(file, self._limits, entry.path.stat().st_mtime_ns // 1_000_000, utc=True)
                database = await run_to_completion(stack.enter_context, open_foreign(entry.path))
                items = rows_of(database, entry.path, mapper)
                while part := await run_to_completion(_portion, items):
                    await self._commit(file, part)
        except Unreadable as error:
            file.refuse(0, str(error))
        except UnreadableDatabase as error:
            file.refuse(0, f"it cannot be read: {error}")
        except OSError as error:
            file.refuse(0, error.strerror or str(error))
        self.tally.add(file)

    async def _archive(self, entry: Entry) -> None:
        file = FileTally(entry.name, "archive")
        try:
            await _restore_archive(self._engine, entry.path, self._limits, file, partial(self._report_progress, entry))
        except (DamagedArchive, NoSuchFile) as error:
            file.refuse(0, str(error.reason))
        self.tally.add(file)

    def _folder(self, entry: Entry) -> Folder:
        folder = entry.path.parent
        return self._folders.setdefault(folder, Folder(folder))

    def _finish(self, entry: Entry) -> None:
        self._done += entry.size
        self._report_progress(entry, 0)

    def _report_progress(self, entry: Entry, share: float) -> None:
        """Report the progress, with the fraction done of the current file."""
        if self._progress is not None:
            self._progress(self._done + int(entry.size * share), self._total, entry.name)


def _classify(entry: Entry) -> str:
    """Classify a file by its name. Contents are not read: only SQLite may open a file that SQLite may have open."""
    name = entry.path.name.lower()
    if name.endswith(tuple(f"{ending}{beside}" for ending in _DATABASES for beside in SIDECAR_SUFFIXES)):
        return "sidecar" if entry.name else "unknown"
    if name.endswith(_DATABASES):
        return "database"
    if name.endswith(".gz"):
        return "archive"
    if not entry.name and not json_files.is_json(name):
        return _classify_contents(entry.path)
    if entry.path.name == json_files.SESSION:
        return "session"
    if entry.path.name == json_files.AGENTS:
        return "agents"
    return "json" if json_files.is_json(name) else "unknown"


def _classify_contents(path: Path) -> str:
    """Classify a file that the caller named, whatever its name."""
    try:
        start = read_head(path, lambda device, inode: False)
    except Unreadable:
        return "unknown"
    return "database" if start == MAGIC else "archive" if start[:2] == _GZIP else "unknown"


def _portion(items: Iterator[ImportedRow]) -> list[ImportedRow]:
    part: list[ImportedRow] = []
    size = 0
    for item in items:
        check_interruption()
        part.append(item)
        size += _size_of(item)
        if len(part) == _MAX_ITEMS or size > _MAX_BYTES:
            break
    return part


def _batches(files: Sequence[Entry], most: int) -> Iterator[list[Entry]]:
    """Split files into batches, bounded in number and bytes."""
    batch: list[Entry] = []
    size = 0
    for file in files:
        if batch and (len(batch) == most or size + file.size > _MAX_READ):
            yield batch
            batch, size = [], 0
        batch.append(file)
        size += file.size
    if batch:
        yield batch


def _parts(items: Iterable[Any], most: int) -> Iterator[Sequence[Any]]:
    listed = list(items)
    return (listed[start : start + most] for start in range(0, len(listed), most))


def _size_of(item: ImportedRow) -> int:
    """Return the approximate size of a row in bytes."""
    parts = (item.line, *getattr(item.line, "steps", ()))
    texts = (getattr(part, name, None) for part in parts for name in _TEXTS)
    return 200 * len(parts) + sum(len(text) for text in texts if text)


def _describe(item: ImportedRow) -> str:
    line = item.line
    return f"{kind_of(line)} {getattr(line, 'id', None) or getattr(line, 'name', None) or getattr(line, 'key', '')}"


class FileTally:
    """The outcome of one file."""

    def __init__(self, path: str, format: str) -> None:
        self.path = path
        self.format = format
        self.imported: Counter[str] = Counter()
        self.present = 0
        self.refused = 0
        self.changed = 0
        self._problems: dict[bool, list[ImportProblem]] = {False: [], True: []}

    def take(self, kind: str, new: bool) -> None:
        self.imported[kind] += new
        self.present += not new

    def refuse(self, line: int, reason: str) -> None:
        self.refused += 1
        self._store(ImportProblem(self.path, line, reason))

    def change(self, line: int, reason: str) -> None:
        """Count a row that was imported with a change."""
        self.changed += 1
        self._store(ImportProblem(self.path, line, reason, taken=True))

    def first(self, taken: bool) -> list[ImportProblem]:
        """Return the first problems, ordered by line."""
        return sorted(self._problems[taken], key=lambda problem: problem.line)[:_MAX_PROBLEMS]

    def _store(self, problem: ImportProblem) -> None:
        """Store the first problems only: there may be millions."""
        kept = self._problems[problem.taken]
        kept.append(problem)
        if len(kept) > 2 * _MAX_PROBLEMS:
            kept[:] = self.first(problem.taken)


class Tally:
    """The outcome of all files."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._imported: Counter[str] = Counter()
        self._numbers: Counter[str] = Counter()
        self._files: list[ImportedFile] = []
        self._problems: dict[bool, list[ImportProblem]] = {False: [], True: []}

    @property
    def imported(self) -> dict[str, int]:
        return {kind: count for kind, count in self._imported.items() if count}

    def add(self, file: FileTally) -> None:
        self._imported += file.imported
        self._numbers.update(present=file.present, refused=file.refused, changed=file.changed)
        for taken, shown in self._problems.items():
            shown += file.first(taken)[: _MAX_PROBLEMS - len(shown)]
        if file.imported or file.present:
            self._numbers["files"] += 1
            if len(self._files) < _MAX_LISTED_FILES:
                counts = {kind: count for kind, count in file.imported.items() if count}
                self._files.append(ImportedFile(file.path, file.format, counts, file.present, file.refused))

    def refuse(self, path: str, reason: str) -> None:
        """Count a file that cannot be read at all."""
        file = FileTally(path, "")
        file.refuse(0, reason)
        self.add(file)

    def report(self) -> ImportReport:
        numbers = self._numbers
        return ImportReport(
            self._path, self.imported, numbers["present"], numbers["refused"], numbers["changed"],
            self._problems[False] + self._problems[True], self._files, numbers["files"],
        )  # fmt: skip
