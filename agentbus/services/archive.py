"""Archives on disk: compressed JSON lines, one file for each run of retention.

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

import msgspec

from agentbus.codec import check
from agentbus.disk import make_private, refusal, stamp, sync
from agentbus.errors import DamagedArchive, DamagedPayload
from agentbus.operations.archives import (
    FORMAT,
    ArchivedCheckpoint,
    ArchivedDocument,
    ArchivedMessage,
    ArchivedParticipant,
    ArchivedState,
    Header,
    Line,
)

FOLDER = "archive"
_MAGIC = b"\x1f\x8b\x08"
_CHUNK = 1024 * 1024
_MOST = 2 * 1024 * 1024 * 1024
"""Bytes of one portion; more than that is a trap."""

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Header | Line).decode


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

    def __init__(self, path: Path, now: int, bus: str | None = None) -> None:
        self.path = path
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
        make_private(directory)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        descriptor = os.open(self.path, flags, 0o600)
        # The name of the file must outlive a power cut as well as what is in it.
        sync(directory)
        return descriptor


def read(
    path: Path, holds: Callable[[int, int], bool], at: Callable[[float], None] = lambda share: None
) -> Generator[Read, None, None]:
    """The lines of an archive; ``at`` hears which part of it was read.

    A file that is no archive raises DamagedArchive before the first.
    """
    number = 0
    readable = False
    bus: str | None = None
    with _opened(path, holds) as data:
        for member, end in _members(data):
            at(end / len(data))
            if member is None:
                yield Read(0, "a part of the file is damaged or cut off, its lines cannot be read", 0)
                continue
            for text in member.splitlines():
                number += 1
                try:
                    line = _decode(text)
                    if isinstance(line, Header):
                        if line.format > FORMAT:
                            raise DamagedArchive(path=str(path), reason="a newer agentbus wrote it")
                        readable, bus = True, line.bus
                        continue
                    _verify(line)
                except (msgspec.DecodeError, UnicodeDecodeError, DamagedPayload) as error:
                    if not readable:
                        raise DamagedArchive(path=str(path), reason="it does not begin as one") from None
                    yield Read(number, str(error), len(text))
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
        found = os.stat(path)
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


def _members(data: mmap.mmap) -> Iterator[tuple[bytes | None, int]]:
    """The gzip members of a file, each whole and with the right checksum, or None for one that is not; and where it
    ends."""
    start = 0
    while start < len(data):
        member, end = _member(data, start)
        if member is None:
            end = data.find(_MAGIC, start + 1)
        yield member, len(data) if end < 0 else end
        if end < 0:
            return
        start = end


def _member(data: mmap.mmap, start: int) -> tuple[bytes | None, int]:
    inflater = zlib.decompressobj(wbits=31)
    parts: list[bytes] = []
    size, place = 0, start
    try:
        while not inflater.eof:
            chunk = inflater.unconsumed_tail or data[place : place + _CHUNK]
            place += 0 if inflater.unconsumed_tail else len(chunk)
            part = inflater.decompress(chunk, _CHUNK)
            size += len(part)
            if (not chunk and not part) or size > _MOST:
                return None, start
            parts.append(part)
    except zlib.error:
        return None, start
    return b"".join(parts), place - len(inflater.unused_data)


def _verify(line: Line) -> None:
    """Payload bytes must match the checksum that they were stored with."""
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
