"""Archive files: compressed JSON lines, one file per run of retention or export.

A file is a sequence of gzip members, one per portion, each complete in itself: a crash can only damage the last one,
whose rows are still in the database. All calls block.
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

from agentbus.core.codec import check, check_json, decode, decode_as
from agentbus.core.files import create_locked, file_error, make_private_directory, require_file, sync, timestamp
from agentbus.core.jsonschema import schema_text
from agentbus.core.threads import check_interruption
from agentbus.errors import (
    DamagedArchive,
    DamagedPayload,
    InvalidInput,
    PayloadTooLarge,
    SnapshotTooLarge,
    TooManyFiles,
)
from agentbus.operations.archive_rows import (
    FORMAT,
    JSON_FIELDS,
    ArchivedCheckpoint,
    ArchivedDocument,
    ArchivedHistoryItem,
    ArchivedMessage,
    ArchivedPart,
    ArchivedParticipant,
    ArchivedState,
    ArchivedStep,
    ArchivedTask,
    ArchivedType,
    Header,
    Line,
)
from agentbus.operations.histories import MAX_ITEM_KEY, item_text

FOLDER = "archive"
_MAGIC = b"\x1f\x8b\x08"
_CHUNK = 1024 * 1024
_STEP = 64 * 1024
"""Bytes inflated at a time; zlib copies the input that it does not consume."""
_FIRST_CHUNK = 256
"""Enough to recognize a gzip member."""
_MAX_PORTION = 2 * 1024 * 1024 * 1024
"""Bytes of one inflated portion; more is a decompression bomb."""
_WASTE = 1024 * 1024 * 1024
_WASTE_RATIO = 32
"""Bytes of wasted work allowed per file, plus those per byte of the file: JSON compresses by less than that."""
_ATTEMPT = 4096
"""Bytes charged for each offset at which a member may start."""
_LOOK_BACK = 64 * 1024
_MAX_UNREADABLE = 1000
"""Damaged lines of one portion that are reported before the rest is skipped."""

_DAMAGED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, DamagedPayload, InvalidInput)
_PAYLOADS = ("payload", "value", "result", "snapshot", "validation", "shown")
_MAX_TEXT = 1024 * 1024
_MAX_ENVELOPE = 64 * 1024
"""Bytes of a received message besides its payload."""
"""Bytes of any other text; more than the bus accepts."""
_MAX_FILE_LIST = 64 * 1024 * 1024
"""Bytes of a checkpoint's file list; more than the bus accepts."""

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Header | Line).decode


class Limits(msgspec.Struct, frozen=True):
    """Maximum bytes of a payload, and of a snapshot or document, on this bus."""

    payload: int
    snapshot: int


class Read(msgspec.Struct, frozen=True):
    """A line of an archive: its number, its record or the error in it, its size, and the bus that wrote it."""

    number: int
    line: Line | str
    size: int
    bus: str | None = None


def archive_in(directory: Path, now: int) -> Path:
    """Return the path of the next archive of a bus."""
    return directory / FOLDER / f"{timestamp(now)}-{secrets.token_hex(4)}.jsonl.gz"


class ArchiveWriter:
    """A new archive, created when its first portion is written. ``bus`` is the id of the bus."""

    def __init__(self, path: Path, now: int, bus: str | None = None, *, own: bool = True) -> None:
        self.path = path
        self._own = own
        """True if its folder belongs to the bus, False if the caller chose it."""
        self.bus = bus
        self.size = 0
        self._created = now
        self._file = -1

    def write(self, lines: Iterable[Line]) -> None:
        """Append a portion durably; on an error nothing of it remains."""
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
            raise file_error(self.path, error) from error
        self.size += len(portion)

    def close(self) -> None:
        """Close the archive, and delete it if it is empty."""
        descriptor, self._file = self._file, -1
        if descriptor >= 0:
            os.close(descriptor)
            if not self.size:
                self.path.unlink(missing_ok=True)

    def _make(self) -> int:
        directory = self.path.parent
        if self._own:
            make_private_directory(directory)
        descriptor = create_locked(self.path)
        # The directory entry must survive a power failure like the contents.
        sync(directory)
        return descriptor


def read_archive(
    path: Path, owns_file: Callable[[int, int], bool], limits: Limits, at: Callable[[float], None] = lambda share: None
) -> Generator[Read, None, None]:
    """Yield the lines of an archive; ``at`` is called with the fraction read.

    Raise DamagedArchive before the first line if the file is not an archive.
    """
    reader = _Reader(str(path), limits)
    with _open_archive(path, owns_file) as file:
        budget = _Budget(file.size)
        for start, end in _members(file, budget):
            at(end / file.size)
            if start is None:
                yield Read(0, "part of the file is damaged or truncated, its lines cannot be read", 0)
            else:
                yield from reader.lines(_Member(file, start, budget), budget)
        if budget.spent and reader.readable:
            yield Read(0, "it inflates to far more than its lines: the rest is skipped", 0)
    if not reader.readable:
        raise reader.damaged("no line of it can be read")


class _Reader:
    """The state of reading an archive: the number of the line, and the contents of its header."""

    def __init__(self, path: str, limits: Limits) -> None:
        self.readable = False
        self._path = path
        self._limits = limits
        self._max_line = 2 * max(limits.payload, limits.snapshot) + _MAX_FILE_LIST
        self._number = 0
        self._bus: str | None = None

    def damaged(self, reason: str) -> DamagedArchive:
        return DamagedArchive(path=self._path, reason=reason)

    def lines(self, member: _Member, budget: _Budget) -> Iterator[Read]:
        """Yield the records of a member's lines, and the errors in them."""
        unreadable = 0
        for text in _lines(member, self._max_line):
            self._number += 1
            size = len(text or b"")
            try:
                line = self._parse(text)
            except _DAMAGED as error:
                if not self.readable:
                    raise self.damaged("it does not begin as one") from None
                unreadable += 1
                if unreadable > _MAX_UNREADABLE:
                    yield Read(self._number, "too many damaged lines: the rest of this part is skipped", 0)
                    return
                reason = "nested too deep" if isinstance(error, RecursionError) else str(error)
                yield Read(self._number, reason, size)
            else:
                if line is not None:
                    budget.refund(size)
                    yield Read(self._number, line, size, self._bus)
        if not member.whole and not budget.spent:
            yield Read(0, "it changed while it was read; import it again", 0)

    def _parse(self, text: bytes | None) -> Line | None:
        """Return the verified record of a line; None for a header, which is remembered."""
        if text is None:
            raise InvalidInput(reason=f"it is longer than {self._max_line} bytes")
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
    """Limit on wasted work per file: bytes read and inflated for damaged parts and refused lines. A small file can
    inflate to a thousand times its size, repeatedly."""

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
    """An open archive. It is not memory-mapped: truncation by another process would raise SIGBUS."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.size = os.fstat(descriptor).st_size
        self._start = 0
        self._bytes = b""

    def read(self, start: int, count: int) -> bytes:
        """Return ``count`` bytes from an offset, or fewer at the end of the file, which may have been truncated."""
        window = self._window(start, count)
        offset = start - self._start
        return window[offset : offset + count]

    def find(self, mark: bytes, start: int) -> int:
        """Return the offset of the next occurrence of ``mark``, or the size of the file."""
        while len(window := self._window(start, len(mark))) - (start - self._start) >= len(mark):
            check_interruption()
            found = window.find(mark, start - self._start)
            if found >= 0:
                return self._start + found
            start = self._start + len(window) - len(mark) + 1
        return self.size

    def _window(self, start: int, count: int) -> bytes:
        """Return a buffer that contains these bytes and starts at ``_start``."""
        if not self._start <= start <= start + count <= self._start + len(self._bytes):
            self._bytes = os.pread(self._descriptor, max(0, min(_CHUNK, self.size - start)), start)
            self._start = start
        return self._bytes


@contextmanager
def _open_archive(path: Path, owns_file: Callable[[int, int], bool]) -> Iterator[_File]:
    """Open an archive."""
    try:
        found = require_file(path)
        if owns_file(found.st_dev, found.st_ino):
            # Closing any descriptor of a database drops the locks that SQLite holds on it in this process.
            raise DamagedArchive(path=str(path), reason="it is part of a bus that is open")
        if not stat.S_ISREG(found.st_mode) or not found.st_size:
            raise DamagedArchive(path=str(path), reason="it is not a file with something in it")
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno in {errno.EMFILE, errno.ENFILE}:
            raise TooManyFiles(path=str(path), reason=error.strerror) from None
        raise DamagedArchive(path=str(path), reason=getattr(error, "strerror", None) or str(error)) from None
    there = os.fstat(descriptor)
    if owns_file(there.st_dev, there.st_ino):
        # Replaced since the check. Not closed, for the same reason.
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
    """Yield the start of each complete gzip member with a valid checksum, or None for a damaged range, and the offset
    of the next. End when the budget is spent."""
    start = 0
    damaged = False
    while start < file.size and not budget.spent:
        member = _Member(file, start, budget)
        for _ in member:
            pass
        if member.whole:
            # Charged again when its lines are read.
            budget.refund(member.cost)
            end = member.offset
        else:
            # Skip the consumed data except its end: a truncated member runs into the next one.
            end = file.find(_MAGIC, max(start + 1, member.offset - _LOOK_BACK))
        if member.whole or not damaged:
            yield start if member.whole else None, end
        damaged = not member.whole
        start = end


def _lines(member: _Member, max_line: int) -> Iterator[bytes | None]:
    """Yield the lines of a member, one in memory at a time; None for one longer than ``max_line``. The text after the
    last line break is a line only if the member is whole."""
    kept: list[bytes] = []
    size = 0
    for part in member:
        for index, piece in enumerate(part.split(b"\n")):
            if index:
                yield b"".join(kept) if size <= max_line else None
                kept, size = [], 0
            size += len(piece)
            if size <= max_line:
                kept.append(piece)
            else:
                kept.clear()
    if size and member.whole:
        yield b"".join(kept) if size <= max_line else None


class _Member:
    """A gzip member at an offset. Iterate over it for its contents in parts; then ``whole`` tells whether it is
    complete, ``offset`` how far it was read, and ``cost`` the bytes of work."""

    def __init__(self, file: _File, start: int, budget: _Budget) -> None:
        self.whole = False
        self.offset = start
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
                chunk = self._file.read(self.offset, step)
                self.offset += len(chunk)
                self._charge(len(chunk))
            # The first chunk is short enough to be inflated again as a whole.
            before = inflater.copy() if step == _STEP else None
            step = _STEP
            try:
                part = inflater.decompress(chunk, _CHUNK)
            except zlib.error:
                self.offset -= len(chunk) - (0 if before is None else self._readable(before, chunk))
                return
            self._charge(len(part))
            size += len(part)
            if (not chunk and not part) or size > _MAX_PORTION or self._budget.spent:
                return
            yield part
        self.offset -= len(inflater.unused_data)
        self.whole = True

    def _readable(self, inflater: Any, chunk: bytes) -> int:
        """Return about how many bytes of a chunk can be inflated before the damage in it."""
        for offset in range(0, len(chunk), _FIRST_CHUNK):
            try:
                self._charge(len(inflater.decompress(chunk[offset : offset + _FIRST_CHUNK])))
            except zlib.error:
                return offset
        return len(chunk)

    def _charge(self, count: int) -> None:
        self.cost += count
        self._budget.charge(count)


def _verify(line: Line, limits: Limits) -> None:
    """Check that the bus could have written this line, and that payloads match their checksums."""
    _verify_texts(line, limits)
    if isinstance(line, ArchivedType):
        _verify_schema(line)
    elif isinstance(line, ArchivedTask):
        _verify_task(line, limits)
    elif isinstance(line, ArchivedMessage):
        check(line.payload, line.checksum, f"message {line.id}")
        for receipt in line.receipts or ():
            _verify_texts(receipt, limits)
    elif isinstance(line, ArchivedState) and line.value is not None and line.checksum is not None:
        check(line.value, line.checksum, f"state {line.key!r} of {line.scope}")
    elif isinstance(line, ArchivedParticipant) and line.result is not None and line.checksum is not None:
        check(line.result, line.checksum, f"the result of {line.member} in session {line.session}")
    elif isinstance(line, ArchivedCheckpoint):
        _verify_hash(line.snapshot, line.checksum, f"checkpoint {line.id}")
    elif isinstance(line, ArchivedDocument):
        what = f"version {line.version} of document {line.name} of session {line.session}"
        _verify_hash(line.value, line.checksum, what)
    elif isinstance(line, ArchivedHistoryItem):
        if len(line.body) > limits.snapshot:
            raise SnapshotTooLarge(size=len(line.body), limit=limits.snapshot)
        if zlib.crc32(line.body) != line.checksum:
            raise DamagedPayload(what=item_text(line.kind, line.history, line.part, line.key))
        if len(line.part.encode()) + len(line.key.encode()) > MAX_ITEM_KEY:
            raise InvalidInput(reason=f"part and key have more than {MAX_ITEM_KEY} bytes")


def _verify_texts(line: Line | ArchivedPart, limits: Limits) -> None:
    for name in line.__struct_fields__:
        text = getattr(line, name)
        if not isinstance(text, str):
            continue
        _verify_size(line, name, len(text.encode()), limits)
        if "\0" in text:
            raise InvalidInput(reason=f"{name} contains NUL")
        if name in _PAYLOADS:
            check_json(text)
        elif (kind := JSON_FIELDS.get(type(line), {}).get(name)) is not None:
            check_json(text)
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
        check(approval.shown, approval.checksum, f"the value of approval {approval.key} of task {line.id}")
    for signal in line.signals:
        _verify_texts(signal, limits)
        check(signal.value, signal.checksum, f"signal {signal.name} of task {line.id}")


def _verify_size(line: Line | ArchivedPart, name: str, size: int, limits: Limits) -> None:
    if name == "snapshot" or (name == "value" and isinstance(line, ArchivedDocument)):
        if size > limits.snapshot:
            raise SnapshotTooLarge(size=size, limit=limits.snapshot)
    elif name in _PAYLOADS or name in {"metadata", "arguments", "context", "settings"}:
        # What a task received is recorded with the headers and the other fields of the message.
        room = _MAX_ENVELOPE if isinstance(line, ArchivedStep) and line.kind == "receive" else 0
        if size > limits.payload + room:
            raise PayloadTooLarge(size=size, limit=limits.payload)
    elif size > (_MAX_FILE_LIST if name == "files" else _MAX_TEXT):
        raise InvalidInput(reason=f"{name} has {size} bytes")


def _verify_schema(line: ArchivedType) -> None:
    if line.schema is not None and schema_text(decode(line.schema), line.name) != line.schema:
        raise InvalidInput(reason=f"the schema of {line.name} is not in stored form")


def _verify_hash(text: str, expected: str, what: str) -> None:
    if sha256(text.encode()).hexdigest() != expected:
        raise DamagedPayload(what=what)
