"""Export of a bus, or of one session, to a file that ``import_path`` reads.

The format is that of archives: compressed JSON lines, in portions. The file gets its name once it is complete and
durable; the next export of the bus into the same folder removes the leftovers of a killed one. Process records are not
exported: they mean nothing elsewhere.
"""

from __future__ import annotations

import os
import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from agentbus.api.maintenance.archive import FOLDER, ArchiveWriter
from agentbus.core.cancellation import run_to_completion
from agentbus.core.files import (
    EXPORT_PREFIX,
    check_path,
    file_error,
    publish,
    remove_abandoned,
    target_problem,
    timestamp,
)
from agentbus.core.validation import name_or_none
from agentbus.engine.interface import Engine
from agentbus.errors import InvalidInput, NotWritable
from agentbus.operations.archive_rows import Line, kind_of
from agentbus.operations.export import LOADING, Outline, Wanted, find, load_vocabulary, read_outline
from agentbus.records import ExportReport

_MAX_ROWS = 500
_MAX_BYTES = 4 * 1024 * 1024
_NEW_FILE_ADVICE = "name a new file, or a directory, in which the export gets a name with the time"


async def export(
    engine: Engine,
    path: str | os.PathLike[str],
    session: str | None,
    progress: Callable[[int, int, str], object] | None = None,
) -> ExportReport:
    """Write the export to a new file, or to a new file in a folder."""
    if progress is not None and not callable(progress):
        raise InvalidInput(reason="progress must be a function of (done, total, kind)")
    name_or_none(session, "session")
    plan = await engine.read(read_outline, session)
    now = engine.clock.now().wall
    mark = f"{EXPORT_PREFIX}{plan.bus}-"
    target = await run_to_completion(_target, check_path(path), engine.directory, session, now)
    await run_to_completion(remove_abandoned, target.parent, f"{mark}????????")
    unfinished = target.with_name(f"{mark}{secrets.token_hex(4)}")
    run = _Export(engine, plan, ArchiveWriter(unfinished, now, plan.bus, own=False), progress)
    try:
        await run.write_all()
        # The file is still locked here, so that no other export removes it as a leftover.
        await run_to_completion(_give_name, unfinished, target)
    finally:
        await run_to_completion(_discard, run.archive)
    return ExportReport(str(target), run.archive.size, dict(run.counts), now)


class _Export:
    def __init__(
        self,
        engine: Engine,
        plan: Outline,
        archive: ArchiveWriter,
        progress: Callable[[int, int, str], object] | None,
    ) -> None:
        self.archive = archive
        self.counts: Counter[str] = Counter()
        self._engine = engine
        self._plan = plan
        self._progress = progress
        self._done = 0
        self._total = sum(plan.last.values())

    async def write_all(self) -> None:
        await self._write(await self._engine.read(load_vocabulary, None))
        for kind, load in LOADING.items():
            cursor: Any = None
            while True:
                found = await self._engine.read(find, Wanted(self._plan, kind, cursor))
                for keys in _portions(found.keys):
                    await self._write(await self._engine.read(load, keys))
                self._report(kind, found.cursor if isinstance(found.cursor, int) else 0)
                if found.cursor is None:
                    break
                cursor = found.cursor
            self._done += self._plan.last.get(kind, 0)
            self._report(kind, 0)

    async def _write(self, lines: Sequence[Line]) -> None:
        self.counts.update(kind_of(line) for line in lines)
        # An empty export still has a header.
        if lines or not self.archive.size:
            await run_to_completion(self.archive.write, lines)

    def _report(self, kind: str, row: int) -> None:
        if self._progress is not None:
            self._progress(self._done + row, self._total, kind)


def _portions(keys: Sequence[tuple[Any, int]]) -> Iterator[list[Any]]:
    """Split keys into portions that are loaded together, bounded in rows and bytes."""
    portion: list[Any] = []
    size = 0
    for key, key_size in keys:
        if portion and (len(portion) == _MAX_ROWS or size + key_size > _MAX_BYTES):
            yield portion
            portion, size = [], 0
        portion.append(key)
        size += key_size
    if portion:
        yield portion


def _target(path: Path, home: Path, session: str | None, now: int) -> Path:
    try:
        if path.is_dir():
            what = "bus" if session is None else session.replace("/", "-")
            path /= f"{what}-{timestamp(now)}.jsonl.gz"
        reason = target_problem(path, home, home / FOLDER)
    except OSError as error:
        raise file_error(path, error) from error
    if reason is not None:
        raise NotWritable(path=str(path), reason=reason, advice=_NEW_FILE_ADVICE)
    return path


def _give_name(file: Path, target: Path) -> None:
    try:
        publish(file, target)
    except FileExistsError:
        raise NotWritable(path=str(target), reason="the file exists already", advice=_NEW_FILE_ADVICE) from None
    except OSError as error:
        raise file_error(target, error) from error


def _discard(archive: ArchiveWriter) -> None:
    """Close the archive and delete its temporary file; a finished one has its final name by now."""
    with suppress(OSError):
        archive.path.unlink(missing_ok=True)
    archive.close()
