"""Writing a bus, or one session of it, to a file that ``import_path`` reads again.

The format is that of archives: compressed JSON lines, a portion at a time. The file has its name once all of it is on
the disk; what a killed export left is removed by the next one of that bus into the same folder. Processes are left out:
they only mean something where they ran.
"""

from __future__ import annotations

import os
import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from agentbus.disk import EXPORTING, check_path, give_name, misplaced, refusal, stamp, sweep
from agentbus.engine.interface import Engine
from agentbus.errors import InvalidInput, NotWritable
from agentbus.limits import name_or_none
from agentbus.operations.archives import Line, kind_of
from agentbus.operations.exporting import LOADING, Outline, Wanted, find, load_vocabulary, outline
from agentbus.records import ExportReport
from agentbus.services.archive import FOLDER, ArchiveWriter
from agentbus.services.threads import to_its_end

_ROWS = 500
_BYTES = 4 * 1024 * 1024


async def export(
    engine: Engine,
    path: str | os.PathLike[str],
    session: str | None,
    progress: Callable[[int, int, str], object] | None = None,
) -> ExportReport:
    """Write it all to a file that does not exist yet, or to one in a folder."""
    if progress is not None and not callable(progress):
        raise InvalidInput(reason="progress must be a function of (done, total, kind)")
    name_or_none(session, "session")
    plan = await engine.read(outline, session)
    now = engine.clock.now().wall
    mark = f"{EXPORTING}{plan.bus}-"
    target = await to_its_end(_target, check_path(path), engine.directory, session, now)
    await to_its_end(sweep, target.parent, f"{mark}????????")
    unfinished = target.with_name(f"{mark}{secrets.token_hex(4)}")
    run = _Export(engine, plan, ArchiveWriter(unfinished, now, plan.bus, own=False), progress)
    try:
        await run.everything()
        # Still held: nobody else takes it for one that was left behind.
        await to_its_end(_give_name, unfinished, target)
    finally:
        await to_its_end(_let_go, run.archive)
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

    async def everything(self) -> None:
        await self._write(await self._engine.read(load_vocabulary, None))
        for kind, load in LOADING.items():
            cursor: Any = None
            while True:
                found = await self._engine.read(find, Wanted(self._plan, kind, cursor))
                for keys in _portions(found.keys):
                    await self._write(await self._engine.read(load, keys))
                self._tell(kind, found.cursor if isinstance(found.cursor, int) else 0)
                if found.cursor is None:
                    break
                cursor = found.cursor
            self._done += self._plan.last.get(kind, 0)
            self._tell(kind, 0)

    async def _write(self, lines: Sequence[Line]) -> None:
        self.counts.update(kind_of(line) for line in lines)
        # Also an export of nothing is one: it has a first line.
        if lines or not self.archive.size:
            await to_its_end(self.archive.write, lines)

    def _tell(self, kind: str, row: int) -> None:
        if self._progress is not None:
            self._progress(self._done + row, self._total, kind)


def _portions(keys: Sequence[tuple[Any, int]]) -> Iterator[list[Any]]:
    """What is loaded together: not too many rows, not too many bytes."""
    portion: list[Any] = []
    size = 0
    for key, weight in keys:
        if portion and (len(portion) == _ROWS or size + weight > _BYTES):
            yield portion
            portion, size = [], 0
        portion.append(key)
        size += weight
    if portion:
        yield portion


def _target(path: Path, home: Path, session: str | None, now: int) -> Path:
    try:
        if path.is_dir():
            what = "bus" if session is None else session.replace("/", "-")
            path /= f"{what}-{stamp(now)}.jsonl.gz"
        reason = misplaced(path, home, home / FOLDER)
    except OSError as error:
        raise refusal(path, error) from error
    if reason is not None:
        raise NotWritable(path=str(path), reason=reason)
    return path


def _give_name(file: Path, target: Path) -> None:
    try:
        give_name(file, target)
    except FileExistsError:
        raise NotWritable(path=str(target), reason="there is something of this name already") from None
    except OSError as error:
        raise refusal(target, error) from error


def _let_go(archive: ArchiveWriter) -> None:
    """What is finished has another name by now."""
    with suppress(OSError):
        archive.path.unlink(missing_ok=True)
    archive.close()
