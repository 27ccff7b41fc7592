"""Bringing in what people have today: folders of JSON files, databases of hand-made coordination, archives of a bus.

Each file is taken in one commit, unless it is large: then in several, and what is in when it is cut off is found there
by the next import. Whatever cannot be read or taken is reported; nothing that is there already is changed.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from agentbus.aside import check_interruption
from agentbus.disk import BESIDE, DATABASE, check_path
from agentbus.engine.foreign import MAGIC, UnreadableDatabase, opened_foreign
from agentbus.engine.interface import Engine
from agentbus.errors import DamagedArchive, FormatRefused, InvalidInput, NoSuchFile, NotImportable
from agentbus.operations.adopting import Adopted, AdoptRequest, adopt
from agentbus.operations.archives import ArchivedSession, kind_of
from agentbus.operations.restoring import ImportedRequest, note_import
from agentbus.operations.vocabulary import Unchecked
from agentbus.records import ImportReport
from agentbus.services.archive import Limits
from agentbus.services.importing import documents
from agentbus.services.importing.archives import REFUSALS, bring_archive
from agentbus.services.importing.databases import rows_of
from agentbus.services.importing.documents import Place
from agentbus.services.importing.fitting import MISFITS, Fitting
from agentbus.services.importing.mapping import Mapper
from agentbus.services.importing.tally import FileTally, Tally
from agentbus.services.importing.walking import Entry, Unreadable, beginning, entries, read
from agentbus.services.threads import to_its_end

__all__ = ["Progress", "import_archive", "import_path"]

Progress = Callable[[int, int, str], object]
"""Hears how many bytes of how many are done, and the file that is being read."""

_FILES = 200
_ITEMS = 500
_BYTES = 4 * 1024 * 1024
_READ = 16 * 1024 * 1024
_TEXTS = ("payload", "snapshot", "value", "metadata", "prompt", "arguments", "context", "result")
_GZIP = b"\x1f\x8b"
_DATABASES = (".db", ".db3", ".sqlite", ".sqlite3")


async def import_path(
    engine: Engine, path: str | os.PathLike[str], limits: Limits, progress: Progress | None = None
) -> ImportReport:
    """Bring in whatever lies at a path."""
    if progress is not None and not callable(progress):
        raise InvalidInput(reason="progress must be a function of (done, total, file)")
    place = check_path(path)
    root = await to_its_end(_checked, place, engine)
    run = _Run(engine, root, limits, progress)
    await run.everything()
    return await _report(engine, place, run.tally)


async def import_archive(engine: Engine, path: str | os.PathLike[str], limits: Limits) -> ImportReport:
    """Put back what an archive has; one that cannot be read at all raises DamagedArchive."""
    place = check_path(path)
    tally = Tally(str(place))
    file = FileTally("", "archive")
    await bring_archive(engine, place, limits, file, lambda share: None)
    tally.add(file)
    return await _report(engine, place, tally)


async def _report(engine: Engine, place: Path, tally: Tally) -> ImportReport:
    if tally.imported:
        name = os.fsencode(place.name).decode("utf-8", "backslashreplace")
        await engine.write(note_import, ImportedRequest(name, tally.imported))
    return tally.report()


def _checked(place: Path, engine: Engine) -> Path:
    """What a path leads to: a folder, or a file that is no bus of ours."""
    try:
        root = place.resolve(strict=True)
        found = root.stat()
    except (OSError, RuntimeError, ValueError) as error:
        raise NotImportable(path=str(place), reason=getattr(error, "strerror", None) or str(error)) from None
    bus = "it is a bus"
    advice = "export that bus, and import what it writes"
    if stat.S_ISDIR(found.st_mode):
        if root == engine.directory.resolve() or os.path.lexists(root / DATABASE):
            raise NotImportable(path=str(place), reason=bus, advice=advice)
    elif engine.holds(found.st_dev, found.st_ino):
        raise NotImportable(path=str(place), reason=bus, advice=advice)
    elif not stat.S_ISREG(found.st_mode):
        raise NotImportable(path=str(place), reason="it is neither a folder nor a plain file")
    return root


class _Json(msgspec.Struct, frozen=True):
    """A JSON file that was read: what it is, and what it has."""

    entry: Entry
    tally: FileTally
    items: Sequence[Adopted] = ()


class _Run:
    """One import."""

    def __init__(self, engine: Engine, root: Path, limits: Limits, progress: Progress | None) -> None:
        self.tally = Tally(str(root))
        self._engine = engine
        self._root = root
        self._limits = limits
        self._progress = progress
        self._places: dict[Path, Place] = {}
        self._named: list[tuple[Entry, int]] = []
        """The files of sessions, which name agents, and when they were written."""
        self._fitting = Fitting()
        self._others: set[str] = set()
        """Sessions that are others here: what belongs to them is left out with them."""
        self._done = self._total = 0

    async def everything(self) -> None:
        found = await to_its_end(self._listed)
        for one in found:
            if not isinstance(one, Entry):
                self.tally.refuse(*one)
        files = [one for one in found if isinstance(one, Entry)]
        self._total = sum(one.size for one in files)
        sorts: dict[str, list[Entry]] = {}
        for one in files:
            sorts.setdefault(_sort(one), []).append(one)
        # Sessions come first, to which the others belong; lists of agents after the files that know more of each.
        for sort in ("session", "archive", "database", "json", "agents"):
            for part in _batches(sorts.get(sort, ()), 1 if sort in {"archive", "database"} else _FILES):
                await self._take(sort, part)
        for entry, modified in self._named:
            file = FileTally(entry.name, "session")
            place = self._place(entry)
            items = documents.agents_of_session(place, Mapper(file, self._limits, place.made(modified)))
            await self._adopt([_Json(entry, file, items)])
        for one in sorts.get("unknown", ()):
            self.tally.refuse(one.name, documents.UNKNOWN)
            self._finish(one)
        for one in sorts.get("beside", ()):
            self._finish(one)

    def _listed(self) -> list[Entry | tuple[str, str]]:
        if self._root.is_dir():
            return list(entries(self._root, self._engine.holds))
        return [Entry("", self._root, self._root.stat().st_size)]

    async def _take(self, sort: str, part: Sequence[Entry]) -> None:
        if sort == "database":
            await self._database(part[0])
        elif sort == "archive":
            await self._archive(part[0])
        else:
            for files in await to_its_end(self._read, part):
                await self._adopt(files)
        for one in part:
            self._finish(one)

    def _read(self, part: Sequence[Entry]) -> list[list[_Json]]:
        """JSON files, in portions of which each is one commit."""
        portions: list[list[_Json]] = [[]]
        size = 0
        for entry in part:
            check_interruption()
            file = FileTally(entry.name, "")
            items: Sequence[Adopted] = ()
            try:
                items = self._items(entry, file)
            except Unreadable as error:
                file.refuse(0, str(error))
            except RecursionError:
                # Decoded with the last of the stack, and too deep for what is made of it.
                file.refuse(0, "it is nested too deep")
            weight = sum(_weight(item) for item in items)
            if portions[-1] and size + weight > _BYTES:
                portions.append([])
                size = 0
            portions[-1].append(_Json(entry, file, items))
            size += weight
        return portions

    def _items(self, entry: Entry, file: FileTally) -> Sequence[Adopted]:
        contents = read(entry.path, self._engine.holds)
        value = documents.decoded(contents)
        name = entry.path.name
        if not documents.is_json(name):
            raise Unreadable(reason=documents.UNKNOWN)
        try:
            name.encode()
        except UnicodeEncodeError:
            name = os.fsencode(name).decode("utf-8", "backslashreplace")
        format = documents.format_of(name, value)
        if format is None:
            raise Unreadable(reason=documents.UNKNOWN)
        file.format = format
        place = self._place(entry)
        if format == "session":
            place.learn(value)
            self._named.append((entry, contents.modified))
        mapper = Mapper(file, self._limits, place.made(contents.modified))
        return documents.items_of(format, name, value, place, mapper)

    async def _adopt(self, files: Sequence[_Json]) -> None:
        """Files that wait together share a transaction; one that is refused is not the others' concern."""
        for outcome in await asyncio.gather(*map(self._file, files), return_exceptions=True):
            if outcome is not None:
                raise outcome
        for file in files:
            self.tally.add(file.tally)

    async def _file(self, file: _Json) -> None:
        for part in _parts(file.items, _ITEMS):
            await self._commit(file.tally, part)

    async def _commit(self, file: FileTally, items: Sequence[Adopted]) -> None:
        """Take these in, in one commit; those whose type turns out to have another schema in one more."""
        wanted = await self._fitted(items, file)
        if not wanted:
            return
        weight = sum(_weight(item) for item in wanted)
        try:
            outcomes = await self._engine.write(adopt, AdoptRequest(tuple(wanted), weight, frozenset(self._others)))
        except FormatRefused as error:
            if len(wanted) == 1:
                file.refuse(wanted[0].number, f"{_what(wanted[0])}: {error}")
                return
            # One of them is to blame: the others come in all the same.
            for item in wanted:
                await self._commit(file, [item])
            return
        again: list[Adopted] = []
        for item, outcome in zip(wanted, outcomes, strict=True):
            if isinstance(outcome, Unchecked):
                self._fitting.learn(outcome)
                again.append(item)
            elif isinstance(outcome, REFUSALS):
                file.refuse(item.number, str(outcome))
                if isinstance(item.line, ArchivedSession):
                    self._others.add(item.line.id)
            elif isinstance(outcome, BaseException):
                raise outcome
            else:
                file.take(kind_of(item.line), outcome)
        await self._commit(file, again)

    async def _fitted(self, items: Sequence[Adopted], file: FileTally) -> list[Adopted]:
        """Those that fit the schemas of their types, as far as these are known."""
        wanted: list[Adopted] = []
        for item in items:
            try:
                fits = await self._fitting.fits(item.line)
            except MISFITS as error:
                file.refuse(item.number, f"{_what(item)}: {error}")
            else:
                wanted.append(item if fits is None else msgspec.structs.replace(item, fits=fits))
        return wanted

    async def _database(self, entry: Entry) -> None:
        file = FileTally(entry.name, "database")
        try:
            with ExitStack() as stack:
                mapper = Mapper(file, self._limits, entry.path.stat().st_mtime_ns // 1_000_000, utc=True)
                database = await to_its_end(stack.enter_context, opened_foreign(entry.path))
                items = rows_of(database, entry.path, mapper)
                while part := await to_its_end(_portion, items):
                    await self._commit(file, part)
        except Unreadable as error:
            file.refuse(0, str(error))
        except UnreadableDatabase as error:
            file.refuse(0, f"it cannot be read (on): {error}")
        except OSError as error:
            file.refuse(0, error.strerror or str(error))
        self.tally.add(file)

    async def _archive(self, entry: Entry) -> None:
        file = FileTally(entry.name, "archive")
        try:
            await bring_archive(self._engine, entry.path, self._limits, file, partial(self._tell, entry))
        except (DamagedArchive, NoSuchFile) as error:
            file.refuse(0, str(error.reason))
        self.tally.add(file)

    def _place(self, entry: Entry) -> Place:
        folder = entry.path.parent
        return self._places.setdefault(folder, Place(folder))

    def _finish(self, entry: Entry) -> None:
        self._done += entry.size
        self._tell(entry, 0)

    def _tell(self, entry: Entry, share: float) -> None:
        """How far we are, with this share of a file."""
        if self._progress is not None:
            self._progress(self._done + int(entry.size * share), self._total, entry.name)


def _sort(entry: Entry) -> str:
    """By its name; what SQLite may have open is only ever opened by SQLite, and so not looked into."""
    name = entry.path.name.lower()
    if name.endswith(tuple(f"{ending}{beside}" for ending in _DATABASES for beside in BESIDE)):
        return "beside" if entry.name else "unknown"
    if name.endswith(_DATABASES):
        return "database"
    if name.endswith(".gz"):
        return "archive"
    if not entry.name and not documents.is_json(name):
        return _sort_by_contents(entry.path)
    if entry.path.name == documents.SESSION:
        return "session"
    if entry.path.name == documents.AGENTS:
        return "agents"
    return "json" if documents.is_json(name) else "unknown"


def _sort_by_contents(path: Path) -> str:
    """A file that somebody named, under whatever name."""
    try:
        start = beginning(path, lambda device, inode: False)
    except Unreadable:
        return "unknown"
    return "database" if start == MAGIC else "archive" if start[:2] == _GZIP else "unknown"


def _portion(items: Iterator[Adopted]) -> list[Adopted]:
    part: list[Adopted] = []
    size = 0
    for item in items:
        check_interruption()
        part.append(item)
        size += _weight(item)
        if len(part) == _ITEMS or size > _BYTES:
            break
    return part


def _batches(files: Sequence[Entry], most: int) -> Iterator[list[Entry]]:
    """Files that are read together: not too many, not too many bytes."""
    batch: list[Entry] = []
    size = 0
    for file in files:
        if batch and (len(batch) == most or size + file.size > _READ):
            yield batch
            batch, size = [], 0
        batch.append(file)
        size += file.size
    if batch:
        yield batch


def _parts(items: Iterable[Any], most: int) -> Iterator[Sequence[Any]]:
    listed = list(items)
    return (listed[start : start + most] for start in range(0, len(listed), most))


def _weight(item: Adopted) -> int:
    """About how many bytes it has."""
    parts = (item.line, *getattr(item.line, "steps", ()))
    texts = (getattr(part, name, None) for part in parts for name in _TEXTS)
    return 200 * len(parts) + sum(len(text) for text in texts if text)


def _what(item: Adopted) -> str:
    line = item.line
    return f"{kind_of(line)} {getattr(line, 'id', None) or getattr(line, 'name', None) or getattr(line, 'key', '')}"
