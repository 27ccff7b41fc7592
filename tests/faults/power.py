"""A simulated disk after a power cut: synced writes are there, and any part of the others, in any order.

The model is stricter than most file systems. A write that was not followed by an fsync of its file may be there, be
missing, or be there in some of its sectors. A name is certain to be in its directory only after an fsync of that
directory; without it, only a prefix of the changes is. Data of a failed fsync is never written: the system counts it as
clean, and no later fsync writes it again.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from tests.support.tracing import Step

SECTOR = 512
Fate = Literal["dropped", "kept", "torn"]


class Write(NamedTuple):
    """Bytes at a place; None: the file ends there."""

    offset: int
    data: bytes | None


class File:
    """A file on a simulated disk: the bytes that are synced, and the writes that may be lost."""

    def __init__(self) -> None:
        self.synced = bytearray()
        self.pending: list[Write] = []

    def sync(self, begun: Sequence[Write] | None = None) -> None:
        """Sync what is pending, or of that only what was when an asynchronous sync began."""
        done = {id(write) for write in self.pending if begun is None or any(write is one for one in begun)}
        for write in self.pending:
            if id(write) in done:
                _apply(self.synced, write)
        self.pending = [write for write in self.pending if id(write) not in done]


class Disk:
    """All files below a directory, as a recorded run left them so far."""

    def __init__(self, root: Path) -> None:
        self._root = str(root)
        self._begun: dict[int, tuple[str, list[Write]]] = {}
        """By process: the file that it syncs asynchronously, and what that covers."""
        self._names: dict[str, File] = {}
        self._synced: dict[str, File] = {}
        self._renamed: dict[str, list[tuple[str, File | None]]] = {}
        """By directory: changes of names that are not on the disk for sure, in their order."""

    def take(self, step: Step) -> bool:
        """One more call; whether it changed anything here."""
        texts = [text.decode("utf-8", "surrogateescape") for text in step.texts if len(text) < 4096]
        inside = [text[len(self._root) + 1 :] for text in texts if text.startswith(f"{self._root}/")]
        if step.call in {"fsync", "fdatasync"} and texts and texts[0] == self._root:
            inside = [""]
        if step.call == "io_getevents":
            name, begun = self._begun.pop(step.process, ("", []))
            if name:
                self._names[name].sync(begun)
            return bool(name)
        if not inside or any(name.endswith(("-shm", ".lock")) or "bells" in name for name in inside):
            return False
        name = inside[-1]
        match step.call:
            case "pwrite64":
                offset = int(step.rest.rsplit(b",", 1)[1].rstrip(b") "))
                assert len(step.texts[1]) >= step.result, "the trace has only a part of what was written"
                self._names[name].pending.append(Write(offset, step.texts[1][: step.result]))
            case "ftruncate":
                self._names[name].pending.append(Write(int(step.rest.rsplit(b",", 1)[1].rstrip(b") ")), None))
            case "fsync" | "fdatasync":
                if step.result < 0:
                    self._names[name].pending.clear()
                else:
                    self._sync(name)
            case "io_submit":
                self._begun[step.process] = (name, list(self._names[name].pending))
            case "mkdir" | "mkdirat":
                self._rename(name, File())
            case "openat":
                if b"O_CREAT" not in step.rest or name in self._names:
                    return False
                self._rename(name, File())
            case "unlink" | "unlinkat":
                self._rename(name, None)
            case "rename" | "renameat" | "renameat2" | "link" | "linkat":
                self._rename(name, self._names[inside[0]])
                if step.call.startswith("rename"):
                    self._rename(inside[0], None)
            case _:
                raise AssertionError(f"{step.call} of {name} is not known to the model")
        return True

    def cut(self, chance: random.Random, fate: Fate | None) -> dict[str, bytes]:
        """The files after a power cut at this moment; everything that was not synced has this fate, or any."""
        names = dict(self._synced)
        for changes in self._renamed.values():
            done = {"dropped": 0, "kept": len(changes)}.get(str(fate), chance.randint(0, len(changes)))
            for name, file in changes[:done]:
                names[name] = file  # type: ignore[assignment]
        found: dict[str, bytes] = {}
        for name, file in names.items():
            if file is not None and all(names.get(above) is not None for above in _above(name)):
                found[name] = _after(file, chance, fate)
        return found

    def _sync(self, name: str) -> None:
        if name in self._names:
            self._names[name].sync()
        for changed, file in self._renamed.pop(name, []):
            if file is None:
                self._synced.pop(changed, None)
            else:
                self._synced[changed] = file

    def _rename(self, name: str, file: File | None) -> None:
        if file is None:
            self._names.pop(name, None)
        else:
            self._names[name] = file
        self._renamed.setdefault(name.rpartition("/")[0], []).append((name, file))


def _above(name: str) -> Iterable[str]:
    while name := name.rpartition("/")[0]:
        yield name


def _after(file: File, chance: random.Random, fate: Fate | None) -> bytes:
    content = bytearray(file.synced)
    for write in file.pending:
        own = fate or chance.choice(("dropped", "kept", "kept", "torn"))
        if own == "kept":
            _apply(content, write)
        elif own == "torn" and write.data is not None:
            for start in range(0, len(write.data), SECTOR):
                if chance.random() < 0.5:
                    _apply(content, Write(write.offset + start, write.data[start : start + SECTOR]))
    return bytes(content)


def _apply(content: bytearray, write: Write) -> None:
    end = write.offset + len(write.data or b"")
    if write.data is None:
        del content[write.offset :]
    if len(content) < end:
        content.extend(bytes(end - len(content)))
    if write.data is not None:
        content[write.offset : end] = write.data
