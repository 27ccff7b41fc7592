"""Archives on disk: compressed JSON lines, one file for each run of retention, or for an export.

A file is a row of gzip members, one for each portion, each complete in itself: a crash can only tear the last one,
whose rows are still in the database. Everything here blocks: callers with an event loop use a thread.
"""

from __future__ import annotations

import errno
import gzip
import os
import secrets
import stat
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

from agentbus.aside import check_interruption
from agentbus.codec import check, decode, decode_as, recheck
from agentbus.disk import make_held, make_private, refusal, require_file, stamp, sync
from agentbus.errors import (
    DamagedArchive,
    DamagedPayload,
    InvalidInput,
    PayloadTooLarge,
    SnapshotTooLarge,
    TooManyFiles,
)
from agentbus.operations.archives import (
    FORMAT,
    ArchivedAgent,
    ArchivedApproval,
    ArchivedCheckpoint,
    ArchivedDocument,
    ArchivedEvent,
    ArchivedMessage,
    ArchivedParticipant,
    ArchivedSession,
    ArchivedState,
    ArchivedStep,
    ArchivedTask,
    ArchivedType,
    Header,
    Line,
)
from agentbus.records import FileReference, TaskProblem
from agentbus.schema import schema_text

FOLDER = "archive"
_MAGIC = b"\x1f\x8b\x08"
_CHUNK = 1024 * 1024
_STEP = 64 * 1024
"""Bytes that are inflated at a time; zlib copies what it did not take."""
_FIRST_CHUNK = 256
"""Enough to see that it is no member."""
_MOST = 2 * 1024 * 1024 * 1024
"""Bytes of one portion; more than that is a trap."""
_WASTE = 1024 * 1024 * 1024
_WASTE_RATIO = 32
"""Bytes of work that may come to nothing, and those more for each byte of the file: JSON shrinks by less than that."""
_ATTEMPT = 4096
"""Bytes that count for each place where a member may start."""
_LOOK_BACK = 64 * 1024
_MOST_UNREADABLE = 1000
"""Lines of one portion; after that many, nobody learns anything from the rest."""

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Header | Line).decode


class Limits(msgspec.Struct, frozen=True):
    """Bytes that a payload, and a snapshot or document, may have on this bus."""

    payload: int
    snapshot: int


class Read(msgspec.Struct, frozen=True):
    """A line of an archive: its number, what it says or what is wrong with it, its size, and the bus that it is of."""

    number: int
    line: Line | str
    size: int
    bus: str | None = None


def archive_in(directory: Path, now: int) -> Path:
    """Where the next archive of a bus goes."""
    return directory / FOLDER / f"{stamp(now)}-{secrets.token_hex(4)}.jsonl.gz"


class ArchiveWriter:
    """A new archive, made when the first portion is written to it. ``bus`` is the name of the bus that it is of."""

    def __init__(self, path: Path, now: int, bus: str | None = None, *, own: bool = True) -> None:
        self.path = path
        self._own = own
        """True if its folder belongs to the bus, False if the caller named it."""
        self.bus = bus
        self.size = 0
        self._created = now
        self._file = -1

    def write(self, lines: Iterable[Line]) -> None:
        """Add a portion. It is on the disk when this returns; when it raises, nothing of it is there."""
        text = b"\n".join(_encode(line) for line in (Header(FORMAT, self._created, self.bus), *lines)) + b"\n"
        portion = memoryview(gzip.compress(text, compresslevel=6, mtime=0))
        try:
            if self._file < 0:
                self._file = self._make()
            try:
                written = 0
                while written < len(portion):
                    written += os.write(self._file, portion[written:])
                os.fsync(self._file)
            except BaseException:
                os.ftruncate(self._file, self.size)
                raise
        except OSError as error:
            raise refusal(self.path, error) from error
        self.size += len(portion)

    def close(self) -> None:
        """An archive with nothing in it is no archive."""
        descriptor, self._file = self._file, -1
        if descriptor >= 0:
            os.close(descriptor)
            if not self.size:
                self.path.unlink(missing_ok=True)

    def _make(self) -> int:
        directory = self.path.parent
        if self._own:
            make_private(directory)
        descriptor = make_held(self.path)
        # The name of the file must outlive a power cut as well as what is in it.
        sync(directory)
        return descriptor


def read(
    path: Path, holds: Callable[[int, int], bool], limits: Limits, at: Callable[[float], None] = lambda share: None
) -> Generator[Read, None, None]:
    """The lines of an archive; ``at`` hears which part of it was read.

    A file that is no archive raises DamagedArchive before the first.
    """
    reader = _Reader(str(path), limits)
    with _opened(path, holds) as file:
        budget = _Budget(file.size)
        for start, end in _members(file, budget):
            at(end / file.size)
            if start is None:
                yield Read(0, "a part of the file is damaged or cut off, its lines cannot be read", 0)
            else:
                yield from reader.lines(_Member(file, start, budget), budget)
        if budget.spent and reader.readable:
            yield Read(0, "it inflates to far more than the lines in it: the rest of it is left out", 0)
    if not reader.readable:
        raise reader.damaged("nothing in it can be read")


class _Reader:
    """The state of reading an archive: the number of the line, and the contents of its header."""

    def __init__(self, path: str, limits: Limits) -> None:
        self.readable = False
        self._path = path
        self._limits = limits
        self._most = 2 * max(limits.payload, limits.snapshot) + _MOST_FILES
        self._number = 0
        self._bus: str | None = None

    def damaged(self, reason: str) -> DamagedArchive:
        return DamagedArchive(path=self._path, reason=reason)

    def lines(self, member: _Member, budget: _Budget) -> Iterator[Read]:
        """Yield what the lines of a member say, and what is wrong with them."""
        unreadable = 0
        for text in _lines(member, self._most):
            self._number += 1
            size = len(text or b"")
            try:
                line = self._understood(text)
            except _DAMAGED as error:
                if not self.readable:
                    raise self.damaged("it does not begin as one") from None
                unreadable += 1
                if unreadable > _MOST_UNREADABLE:
                    yield Read(self._number, "too many lines are damaged: the rest of this part is left out", 0)
                    return
                reason = "nested too deep" if isinstance(error, RecursionError) else str(error)
                yield Read(self._number, reason, size)
            else:
                if line is not None:
                    budget.refund(size)
                    yield Read(self._number, line, size, self._bus)
        if not member.whole and not budget.spent:
            yield Read(0, "it changed while it was read; import it again", 0)

    def _understood(self, text: bytes | None) -> Line | None:
        """Return what a line says, once it is found right; None for a header, which is noted."""
        if text is None:
            raise InvalidInput(reason=f"it is longer than {self._most} bytes")
        line: Header | Line = _decode(text)
        if not isinstance(line, Header):
            _verify(line, self._limits)
            if not self.readable:
                raise self.damaged("it does not begin as one")
            return line
        if line.format > FORMAT:
            raise self.damaged("a newer agentbus wrote it")
        self.readable, self._bus = True, line.bus
        return None


class _Budget:
    """Bytes of work that may come to nothing in one file: those read and inflated of parts that turn out to be damaged,
    and of lines that are refused. A small file can inflate to a thousand times its size, over and over again."""

    def __init__(self, size: int) -> None:
        self._left = _WASTE + _WASTE_RATIO * size

    @property
    def spent(self) -> bool:
        return self._left <= 0

    def charge(self, count: int) -> None:
        self._left -= count

    def refund(self, count: int) -> None:
        self._left += count


class _File:
    """An open archive. It is read, not mapped: a mapped file that another process truncates ends this one (SIGBUS)."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.size = os.fstat(descriptor).st_size
        self._start = 0
        self._bytes = b""

    def read(self, start: int, count: int) -> bytes:
        """Return bytes from a place on; fewer at the end of the file, also if that has come nearer meanwhile."""
        window = self._window(start, count)
        place = start - self._start
        return window[place : place + count]

    def find(self, mark: bytes, start: int) -> int:
        """Return where a mark comes next, or where the file ends."""
        while len(window := self._window(start, len(mark))) - (start - self._start) >= len(mark):
            check_interruption()
            found = window.find(mark, start - self._start)
            if found >= 0:
                return self._start + found
            start = self._start + len(window) - len(mark) + 1
        return self.size

    def _window(self, start: int, count: int) -> bytes:
        """Return a stretch of the file that has these bytes; it starts at ``_start``."""
        if not self._start <= start <= start + count <= self._start + len(self._bytes):
            self._bytes = os.pread(self._descriptor, max(0, min(_CHUNK, self.size - start)), start)
            self._start = start
        return self._bytes


@contextmanager
def _opened(path: Path, holds: Callable[[int, int], bool]) -> Iterator[_File]:
    """Open an archive."""
    try:
        found = require_file(path)
        if holds(found.st_dev, found.st_ino):
            # Closing any descriptor of a database would drop the locks that SQLite has on it in this process.
            raise DamagedArchive(path=str(path), reason="it is part of a bus that is open")
        if not stat.S_ISREG(found.st_mode) or not found.st_size:
            raise DamagedArchive(path=str(path), reason="it is not a file with something in it")
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno in {errno.EMFILE, errno.ENFILE}:
            raise TooManyFiles(path=str(path), reason=error.strerror) from None
        raise DamagedArchive(path=str(path), reason=getattr(error, "strerror", None) or str(error)) from None
    there = os.fstat(descriptor)
    if holds(there.st_dev, there.st_ino):
        # Another file since we looked. Not closed, for the same reason.
        raise DamagedArchive(path=str(path), reason="it is part of a bus that is open")
    try:
        if not stat.S_ISREG(there.st_mode) or not there.st_size:
            raise DamagedArchive(path=str(path), reason="it is not a file with something in it")
        yield _File(descriptor)
    except OSError as error:
        raise DamagedArchive(path=str(path), reason=error.strerror or str(error)) from None
    finally:
        os.close(descriptor)


def _members(file: _File, budget: _Budget) -> Iterator[tuple[int | None, int]]:
    """Yield where the gzip members of a file start that are whole and have the right checksum, or None for a stretch
    that has none; and where the next starts. Ends when the budget is spent."""
    start = 0
    damaged = False
    while start < file.size and not budget.spent:
        member = _Member(file, start, budget)
        for _ in member:
            pass
        if member.whole:
            # Its contents are charged again as they are read.
            budget.refund(member.cost)
            end = member.place
        else:
            # Consumed data is not inflated again, except its end: a truncated member runs into the next one.
            end = file.find(_MAGIC, max(start + 1, member.place - _LOOK_BACK))
        if member.whole or not damaged:
            yield start if member.whole else None, end
        damaged = not member.whole
        start = end


def _lines(member: _Member, most: int) -> Iterator[bytes | None]:
    """Yield the lines of a member, of which no more than one is in memory; None for one that is longer than ``most``.
    The text after the last line break is a line only if the member is whole."""
    kept: list[bytes] = []
    size = 0
    for part in member:
        for place, piece in enumerate(part.split(b"\n")):
            if place:
                yield b"".join(kept) if size <= most else None
                kept, size = [], 0
            size += len(piece)
            if size <= most:
                kept.append(piece)
            else:
                kept.clear()
    if size and member.whole:
        yield b"".join(kept) if size <= most else None


class _Member:
    """A gzip member that starts at a place. Iterate over it for what it holds, in parts; after that ``whole`` says
    whether it ended as it should, ``place`` how far it was read, and ``cost`` what that took."""

    def __init__(self, file: _File, start: int, budget: _Budget) -> None:
        self.whole = False
        self.place = start
        self.cost = 0
        self._file = file
        self._budget = budget

    def __iter__(self) -> Iterator[bytes]:
        inflater = zlib.decompressobj(wbits=31)
        size, step = 0, _FIRST_CHUNK
        self._charge(_ATTEMPT)
        while not inflater.eof:
            check_interruption()
            chunk = inflater.unconsumed_tail
            if not chunk:
                chunk = self._file.read(self.place, step)
                self.place += len(chunk)
                self._charge(len(chunk))
            # The first chunk is short enough to be read again as a whole.
            before = inflater.copy() if step == _STEP else None
            step = _STEP
            try:
                part = inflater.decompress(chunk, _CHUNK)
            except zlib.error:
                self.place -= len(chunk) - (0 if before is None else self._readable(before, chunk))
                return
            self._charge(len(part))
            size += len(part)
            if (not chunk and not part) or size > _MOST or self._budget.spent:
                return
            yield part
        self.place -= len(inflater.unused_data)
        self.whole = True

    def _readable(self, inflater: Any, chunk: bytes) -> int:
        """Return about how many bytes of a chunk can be inflated before the damage in it."""
        for place in range(0, len(chunk), _FIRST_CHUNK):
            try:
                self._charge(len(inflater.decompress(chunk[place : place + _FIRST_CHUNK])))
            except zlib.error:
                return place
        return len(chunk)

    def _charge(self, count: int) -> None:
        self.cost += count
        self._budget.charge(count)


_DAMAGED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, DamagedPayload, InvalidInput)
_KINDS: dict[type, dict[str, Any]] = {
    ArchivedAgent: {"capabilities": list[str], "metadata": dict[str, Any], "evidence": dict[str, Any]},
    ArchivedSession: {"expected": dict[str, str], "metadata": dict[str, Any]},
    ArchivedCheckpoint: {"files": list[FileReference]},
    ArchivedEvent: {"facts": dict[str, Any]},
    ArchivedType: {"schema": dict[str, Any]},
    ArchivedTask: {
        "notes": dict[str, str], "context": dict[str, Any], "settings": dict[str, Any], "waits": list[str],
        "error": TaskProblem, "arguments": dict[str, Any],
    },
    ArchivedStep: {"error": TaskProblem},
}  # fmt: skip
"""What the texts of a line must be when they are read as JSON."""
_PAYLOADS = ("payload", "value", "result", "snapshot", "validation", "shown")
_MOST_TEXT = 1024 * 1024
"""Bytes of any other text; more than the bus takes of one."""
_MOST_FILES = 64 * 1024 * 1024
"""Bytes of the list of a checkpoint's files; more than the bus takes."""


def _verify(line: Line, limits: Limits) -> None:
    """A line must be what the bus itself could have written; payload bytes must match their checksums."""
    _verify_texts(line, limits)
    if isinstance(line, ArchivedType):
        _verify_schema(line)
    elif isinstance(line, ArchivedTask):
        _verify_task(line, limits)
    elif isinstance(line, ArchivedMessage):
        check(line.payload, line.checksum, f"message {line.id}")
    elif isinstance(line, ArchivedState) and line.value is not None and line.checksum is not None:
        check(line.value, line.checksum, f"state {line.key!r} of {line.scope}")
    elif isinstance(line, ArchivedParticipant) and line.result is not None and line.checksum is not None:
        check(line.result, line.checksum, f"the result of {line.member} in session {line.session}")
    elif isinstance(line, ArchivedCheckpoint):
        _verify_hash(line.snapshot, line.checksum, f"checkpoint {line.id}")
    elif isinstance(line, ArchivedDocument):
        what = f"version {line.version} of document {line.name} of session {line.session}"
        _verify_hash(line.value, line.checksum, what)


def _verify_texts(line: Line | ArchivedStep | ArchivedApproval, limits: Limits) -> None:
    for name in line.__struct_fields__:
        text = getattr(line, name)
        if not isinstance(text, str):
            continue
        _verify_size(line, name, len(text.encode()), limits)
        if "\0" in text:
            raise InvalidInput(reason=f"there is a NUL in its {name}")
        if name in _PAYLOADS:
            recheck(text)
        elif (kind := _KINDS.get(type(line), {}).get(name)) is not None:
            recheck(text)
            decode_as(text, kind, name)


def _verify_task(line: ArchivedTask, limits: Limits) -> None:
    check(line.arguments, line.checksum, f"the arguments of task {line.id}")
    if line.result is not None:
        check(line.result, line.result_sum or 0, f"the result of task {line.id}")
    for step in line.steps:
        _verify_texts(step, limits)
        if step.result is not None:
            check(step.result, step.checksum or 0, f"the result of step {step.key} of task {line.id}")
    for approval in line.approvals:
        _verify_texts(approval, limits)
        check(approval.shown, approval.checksum, f"what approval {approval.key} of task {line.id} shows")


def _verify_size(line: Line | ArchivedStep | ArchivedApproval, name: str, size: int, limits: Limits) -> None:
    if name == "snapshot" or (name == "value" and isinstance(line, ArchivedDocument)):
        if size > limits.snapshot:
            raise SnapshotTooLarge(size=size, limit=limits.snapshot)
    elif name in _PAYLOADS or name in {"metadata", "arguments", "context", "settings"}:
        if size > limits.payload:
            raise PayloadTooLarge(size=size, limit=limits.payload)
    elif size > (_MOST_FILES if name == "files" else _MOST_TEXT):
        raise InvalidInput(reason=f"its {name} has {size} bytes")


def _verify_schema(line: ArchivedType) -> None:
    if line.schema is not None and schema_text(decode(line.schema), line.name) != line.schema:
        raise InvalidInput(reason=f"the schema of {line.name} is not as the bus keeps it")


def _verify_hash(text: str, expected: str, what: str) -> None:
    if sha256(text.encode()).hexdigest() != expected:
        raise DamagedPayload(what=what)
