"""Archives on disk: compressed JSON lines, one file for each run of retention.

A file is a row of gzip members, one for each portion, each complete in itself: a crash can only tear the last one,
whose rows are still in the database. Everything here blocks: callers with an event loop use a thread.
"""

from __future__ import annotations

import gzip
import io
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

from agentbus.codec import check, decode_as, recheck
from agentbus.disk import make_private, refusal, require_file, stamp, sync
from agentbus.errors import DamagedArchive, DamagedPayload, InvalidInput
from agentbus.operations.archives import (
    FORMAT,
    ArchivedAgent,
    ArchivedCheckpoint,
    ArchivedDocument,
    ArchivedEvent,
    ArchivedMessage,
    ArchivedParticipant,
    ArchivedSession,
    ArchivedState,
    Header,
    Line,
)
from agentbus.records import FileReference

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


class ArchiveWriter:
    """A new archive, made when the first portion is written to it."""

    def __init__(self, directory: Path, now: int) -> None:
        self.path = directory / FOLDER / f"{stamp(now)}-{secrets.token_hex(4)}.jsonl.gz"
        self.size = 0
        self._created = now
        self._file = -1

    def write(self, lines: Iterable[Line]) -> None:
        """Add a portion. It is on the disk when this returns; when it raises, nothing of it is there."""
        text = b"\n".join(_encode(line) for line in (Header(FORMAT, self._created), *lines)) + b"\n"
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
        make_private(directory)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        descriptor = os.open(self.path, flags, 0o600)
        # The name of the file must outlive a power cut as well as what is in it.
        sync(directory)
        return descriptor


def read(path: Path, holds: Callable[[int, int], bool]) -> Generator[tuple[int, Line | str, int], None, None]:
    """The lines of an archive: their number, what they say or what is wrong with them, and their size.

    A file that is no archive raises DamagedArchive before the first.
    """
    number = 0
    readable = False
    with _opened(path, holds) as data:
        for member in _members(data):
            if member is None:
                yield 0, "a part of the file is damaged or cut off, its lines cannot be read", 0
                continue
            unreadable = 0
            for text in io.BytesIO(member):
                number += 1
                try:
                    line = _decode(text)
                    if isinstance(line, Header):
                        if line.format > FORMAT:
                            raise DamagedArchive(path=str(path), reason="a newer agentbus wrote it")
                        readable = True
                        continue
                    _verify(line)
                except _DAMAGED as error:
                    if not readable:
                        raise DamagedArchive(path=str(path), reason="it does not begin as one") from None
                    unreadable += 1
                    if unreadable > _MOST_UNREADABLE:
                        yield number, "so many lines are damaged that the rest of this part is left out", 0
                        break
                    yield number, "nested too deep" if isinstance(error, RecursionError) else str(error), len(text)
                else:
                    if not readable:
                        raise DamagedArchive(path=str(path), reason="it does not begin as one")
                    yield number, line, len(text)
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


def _members(data: mmap.mmap) -> Iterator[bytes | None]:
    """The gzip members of a file, each whole and with the right checksum; None for a stretch that has none."""
    start = 0
    damaged = False
    with memoryview(data) as view:
        while start >= 0 and start < len(data):
            member, end = _member(view, start)
            if member is not None or not damaged:
                yield member
            damaged = member is None
            start = data.find(_MAGIC, start + 1) if member is None else end


def _member(data: memoryview, start: int) -> tuple[bytes | None, int]:
    inflater = zlib.decompressobj(wbits=31)
    parts: list[bytes] = []
    size, place, step = 0, start, _FIRST_CHUNK
    try:
        while not inflater.eof:
            chunk = inflater.unconsumed_tail or data[place : place + step]
            place += 0 if inflater.unconsumed_tail else len(chunk)
            step = _CHUNK
            part = inflater.decompress(chunk, _CHUNK)
            size += len(part)
            if (not chunk and not part) or size > _MOST:
                return None, start
            parts.append(part)
    except zlib.error:
        return None, start
    return b"".join(parts), place - len(inflater.unused_data)


_DAMAGED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, DamagedPayload, InvalidInput)
_KINDS: dict[type[Line], dict[str, Any]] = {
    ArchivedAgent: {"capabilities": list[str], "metadata": dict[str, Any], "evidence": dict[str, Any]},
    ArchivedSession: {"expected": dict[str, str], "metadata": dict[str, Any]},
    ArchivedCheckpoint: {"files": list[FileReference]},
    ArchivedEvent: {"facts": dict[str, Any]},
}
"""What the texts of a line must be when they are read as JSON."""
_PAYLOADS = ("payload", "value", "result", "snapshot")


def _verify(line: Line) -> None:
    """A line must be what the bus itself could have written; payload bytes must match their checksums."""
    for name in line.__struct_fields__:
        text = getattr(line, name)
        if not isinstance(text, str):
            continue
        if "\0" in text:
            raise InvalidInput(reason=f"there is a NUL in its {name}")
        if name in _PAYLOADS:
            recheck(text)
        elif (kind := _KINDS.get(type(line), {}).get(name)) is not None:
            recheck(text)
            decode_as(text, kind, name)
    if isinstance(line, ArchivedMessage):
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


def _verify_hash(text: str, expected: str, what: str) -> None:
    if sha256(text.encode()).hexdigest() != expected:
        raise DamagedPayload(what=what)
