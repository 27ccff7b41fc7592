"""Archives on disk: compressed JSON lines, one file for each run of retention, or for an export.

A file is a row of gzip members, one for each portion, each complete in itself: a crash can only tear the last one,
whose rows are still in the database. Everything here blocks: callers with an event loop use a thread.
"""

from __future__ import annotations

import gzip
import mmap
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

from agentbus.codec import check, decode, decode_as, recheck
from agentbus.disk import make_held, make_private, refusal, require_file, stamp, sync
from agentbus.errors import DamagedArchive, DamagedPayload, InvalidInput, PayloadTooLarge, SnapshotTooLarge
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
_FIRST_CHUNK = 256
"""Enough to see that it is no member; zlib copies what it did not take."""
_MOST = 2 * 1024 * 1024 * 1024
"""Bytes of one portion; more than that is a trap."""
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
        """Whether its folder is one of the bus, and not one that the caller named."""
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
    number = 0
    readable = False
    bus: str | None = None
    most = 2 * max(limits.payload, limits.snapshot) + _MOST_FILES
    with _opened(path, holds) as data, memoryview(data) as view:
        for start, end in _members(data, view):
            at(end / len(data))
            if start is None:
                yield Read(0, "a part of the file is damaged or cut off, its lines cannot be read", 0)
                continue
            unreadable = 0
            for text in _lines(view, start, most):
                number += 1
                try:
                    if text is None:
                        raise InvalidInput(reason=f"it is longer than {most} bytes")
                    line = _decode(text)
                    if isinstance(line, Header):
                        if line.format > FORMAT:
                            raise DamagedArchive(path=str(path), reason="a newer agentbus wrote it")
                        readable, bus = True, line.bus
                        continue
                    _verify(line, limits)
                except _DAMAGED as error:
                    if not readable:
                        raise DamagedArchive(path=str(path), reason="it does not begin as one") from None
                    unreadable += 1
                    if unreadable > _MOST_UNREADABLE:
                        yield Read(number, "so many lines are damaged that the rest of this part is left out", 0)
                        break
                    reason = "nested too deep" if isinstance(error, RecursionError) else str(error)
                    yield Read(number, reason, len(text or b""))
                else:
                    if not readable:
                        raise DamagedArchive(path=str(path), reason="it does not begin as one")
                    yield Read(number, line, len(text), bus)
    if not readable:
        raise DamagedArchive(path=str(path), reason="nothing in it can be read")


@contextmanager
def _opened(path: Path, holds: Callable[[int, int], bool]) -> Iterator[mmap.mmap]:
    """An archive as bytes."""
    try:
        found = require_file(path)
        if holds(found.st_dev, found.st_ino):
            # Closing any descriptor of a database would drop the locks that SQLite has on it in this process.
            raise DamagedArchive(path=str(path), reason="it is part of a bus that is open")
        if not stat.S_ISREG(found.st_mode) or not found.st_size:
            raise DamagedArchive(path=str(path), reason="it is not a file with something in it")
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            data = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
        finally:
            os.close(descriptor)
    except (OSError, ValueError) as error:
        raise DamagedArchive(path=str(path), reason=getattr(error, "strerror", None) or str(error)) from None
    with data:
        yield data


def _members(data: mmap.mmap, view: memoryview) -> Iterator[tuple[int | None, int]]:
    """Where the gzip members of a file begin that are whole and have the right checksum, or None for a stretch that has
    none; and where the next begins."""
    start = 0
    damaged = False
    while 0 <= start < len(data):
        found = _end(view, start)
        end = data.find(_MAGIC, start + 1) if found is None else found
        if found is not None or not damaged:
            yield start if found is not None else None, len(data) if end < 0 else end
        damaged = found is None
        start = end


def _end(data: memoryview, start: int) -> int | None:
    """Where a member ends; None if it is damaged, cut off or a trap."""
    parts = _inflated(data, start)
    try:
        while True:
            next(parts)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


def _lines(data: memoryview, start: int, most: int) -> Iterator[bytes | None]:
    """The lines of a member, of which no more than one is in memory; None for one that is longer than ``most``."""
    kept: list[bytes] = []
    size = 0
    for part in _inflated(data, start):
        for place, piece in enumerate(part.split(b"\n")):
            if place:
                yield b"".join(kept) if size <= most else None
                kept, size = [], 0
            size += len(piece)
            if size <= most:
                kept.append(piece)
            else:
                kept.clear()
    if size:
        yield b"".join(kept) if size <= most else None


def _inflated(data: memoryview, start: int) -> Generator[bytes, None, int | None]:
    """What a member holds, in parts; and where it ends, or None if it is damaged, cut off or a trap."""
    inflater = zlib.decompressobj(wbits=31)
    size, place, step = 0, start, _FIRST_CHUNK
    try:
        while not inflater.eof:
            chunk = inflater.unconsumed_tail or data[place : place + step]
            place += 0 if inflater.unconsumed_tail else len(chunk)
            step = _CHUNK
            part = inflater.decompress(chunk, _CHUNK)
            size += len(part)
            if (not chunk and not part) or size > _MOST:
                return None
            yield part
    except zlib.error:
        return None
    return place - len(inflater.unused_data)


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
