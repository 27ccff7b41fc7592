"""Retention: archive what is old enough, then let it go.

Rows are archived and on the disk before they are deleted, and only those are deleted that are still as they were
archived. A crash in between repeats lines in a later archive and loses none; reading them again changes nothing twice.
Two that run at once do no harm for the same reasons.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from agentbus import ballast
from agentbus.engine.interface import Engine, Progress
from agentbus.errors import DiskFull, InvalidInput
from agentbus.limits import check_options
from agentbus.operations import archives
from agentbus.operations.archives import Line, bus_name
from agentbus.operations.deletion import Rest
from agentbus.operations.policy import (
    ChangePolicyRequest,
    TurnRequest,
    change_policy,
    is_due,
    read_policy,
    take_turn,
)
from agentbus.operations.removing import RemoveRequest, remove
from agentbus.operations.retention import TIERS, Piece, Wanted
from agentbus.operations.state import last_change
from agentbus.operations.task_archives import load_tasks
from agentbus.records import RetentionPolicy, RetentionReport
from agentbus.services.archive import ArchiveWriter, archive_in
from agentbus.services.threads import to_its_end

log = logging.getLogger("agentbus.retention")

_ROWS = 500
_BYTES = 4 * 1024 * 1024
_WITH_STATE = ("agent", "session")
_WEIGHTS = {"agent": 5, "task": 10, "session": 50}
"""What takes longer to remove than a row."""
EVERY = 3600 * 1000
"""Milliseconds after which the policy is applied again, if a monitor runs."""

_LOADING: dict[str, Callable[[Sequence[Any], Any], Any]] = {
    "checkpoint": archives.load_checkpoints,
    "document": archives.load_documents,
    "agent": archives.load_agents,
    "session": archives.load_sessions,
    "message": archives.load_messages,
    "event": archives.load_events,
    "process": archives.load_processes,
    "task": load_tasks,
    "tombstone": archives.load_tombstones,
}


class Retention:
    """``bus.retention``: how long things are kept. Every monitor sees to it that the policy is applied about once an
    hour; anybody may apply it. Without either, nothing goes.

    >>> await bus.retention.change(messages=24 * 3600, events=None)                   # doctest: +SKIP
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def policy(self) -> RetentionPolicy:
        """What is kept, and for how long, on this bus: the defaults, but for what was changed.

        >>> (await bus.retention.policy()).checkpoints_last                           # doctest: +SKIP
        24
        """
        return await self._engine.read(read_policy, None)

    async def change(self, **changes: Any) -> RetentionPolicy:
        """Keep some things for another time, from now on and for every process; what is not named stays as it is. The
        names are those of ``RetentionPolicy``; gives the policy that holds then.

        >>> await bus.retention.change(messages=3 * 24 * 3600, events=None)           # doctest: +SKIP
        """
        check_options(changes, RetentionPolicy.__struct_fields__)
        RetentionPolicy(**changes)
        return await self._engine.write(change_policy, ChangePolicyRequest(changes))

    async def apply(
        self, *, dry_run: bool = False, policy: RetentionPolicy | None = None, progress: Progress | None = None
    ) -> RetentionReport:
        """Archive what is old enough in ``archive/`` of the bus, then remove it; ``dry_run`` only says what would go.

        In small steps, so that nobody waits long for the lock. ``policy`` is one for this time only. ``progress``
        is told how many rows are gone, and of how many.

        >>> report = await bus.retention.apply(dry_run=True)                          # doctest: +SKIP
        >>> report.removed                                                            # doctest: +SKIP
        {'message': 1200, 'event': 310}
        """
        if policy is not None and not isinstance(policy, RetentionPolicy):
            raise InvalidInput(reason=f"a retention policy is a RetentionPolicy, not {type(policy).__name__}")
        if policy is None and not dry_run:
            await self._engine.write(take_turn, TurnRequest(0))
        wanted = await self.policy() if policy is None else policy
        return await _apply(self._engine, wanted, dry_run, None if dry_run else progress)


async def apply_when_due(engine: Engine) -> None:
    """Apply the policy of the bus, unless somebody did within the last hour: of all monitors, one does."""
    if await engine.look(is_due, EVERY) and await engine.write(take_turn, TurnRequest(EVERY)):
        await _apply(engine, await engine.read(read_policy, None), dry_run=False)


async def _apply(
    engine: Engine, policy: RetentionPolicy, dry_run: bool, progress: Progress | None = None
) -> RetentionReport:
    # Whoever wants to hear of the progress must know of how many.
    going = {} if progress is None else (await _apply(engine, policy, dry_run=True)).removed
    run = _Run(engine, policy, dry_run, progress, sum(going.values()))
    run.archive.bus = await engine.read(bus_name, None)
    try:
        for find in TIERS:
            await run.tier(find)
    finally:
        await to_its_end(run.archive.close)
    report = run.report()
    if report.removed and not dry_run:
        counts = ", ".join(f"{count} {kind}" for kind, count in report.removed.items())
        log.info("removed what was old enough: %s; archived in %s", counts, report.archive)
    return report


class _Run:
    """One application of a policy."""

    def __init__(
        self, engine: Engine, policy: RetentionPolicy, dry_run: bool, progress: Progress | None = None, total: int = 0
    ) -> None:
        self._engine = engine
        self._policy = policy
        self._dry_run = dry_run
        self._progress = progress
        self._total = total
        self._gone: dict[str, set[Any]] = {}
        self._kept: set[tuple[str, Any]] = set()
        self._rest: Rest | None = None
        self._archived: dict[tuple[str, str], int] = {}
        """The change up to which the state of agents and sessions is in the archive."""
        now = engine.clock.now().wall
        self.archive = ArchiveWriter(archive_in(engine.directory, now), now)

    async def tier(self, find: Callable[[Wanted, Any], Any]) -> None:
        cursor = None
        while True:
            found = await self._engine.read(find, Wanted(self._policy, cursor))
            pieces = [piece for piece in found.pieces if self._may_go(piece)]
            if not self._gone and all(piece.kind == "event" and piece.mark[0] for piece in pieces):
                # Events of earlier runs are no reason for another: its own event would be one for the next, for ever.
                pieces = []
            if self._dry_run:
                self._note(pieces)
            else:
                for portion in portions(pieces):
                    await self._let_go(portion)
                    if self._rest is not None:
                        break
            if self._rest is not None:
                # Something had more than goes at once: find again what is left of it.
                continue
            if found.cursor is None:
                return
            cursor = found.cursor

    def report(self) -> RetentionReport:
        archive = self.archive if self.archive.size else None
        return RetentionReport(
            self._dry_run,
            {kind: len(keys) for kind, keys in self._gone.items() if keys},
            len(self._kept),
            None if archive is None else str(archive.path),
            0 if archive is None else archive.size,
        )

    def _may_go(self, piece: Piece) -> bool:
        """A process stays as long as something that stays names it. In a trial, nothing is named twice."""
        if piece.kind == "process":
            return all(name in self._gone.get(kind, ()) for kind, name in piece.mark)
        return not (self._dry_run and piece.key in self._gone.get(piece.kind, ()))

    def _note(self, pieces: Sequence[Piece]) -> None:
        for piece in pieces:
            self._gone.setdefault(piece.kind, set()).add(piece.key)

    async def _archive(self, lines: list[Line]) -> None:
        try:
            await to_its_end(self.archive.write, lines)
        except DiskFull:
            if not ballast.release(str(self._engine.directory)):
                raise
            await to_its_end(self.archive.write, lines)

    async def _let_go(self, portion: tuple[Piece, ...]) -> None:
        lines: list[Line] = []
        # Before the entries are read: whatever is changed later has a higher number.
        change = await self._engine.read(last_change, None)
        for kind, load in _LOADING.items():
            keys = [piece.key for piece in portion if piece.kind == kind]
            if kind in _WITH_STATE:
                # Of what goes in several steps, the state is archived once.
                keys = [(key, self._archived.get((kind, key), 0)) for key in keys]
            if keys:
                lines += await self._engine.read(load, keys)
        await self._archive(lines)
        removed = await self._engine.write(remove, RemoveRequest(self.archive.path.name, portion, self._rest))
        self._archived.update({(piece.kind, piece.key): change for piece in portion if piece.kind in _WITH_STATE})
        self._note(removed.pieces)
        if self._progress is not None:
            gone = sum(len(keys) for keys in self._gone.values())
            self._progress(gone, max(gone, self._total))
        self._rest = removed.rest
        if removed.rest is None:
            self._kept |= {(piece.kind, piece.key) for piece in portion} - {
                (piece.kind, piece.key) for piece in removed.pieces
            }


def portions(pieces: Sequence[Piece]) -> Iterator[tuple[Piece, ...]]:
    """What goes together, in one transaction: not too many rows, not too many bytes."""
    portion: list[Piece] = []
    rows = size = 0
    for piece in pieces:
        weight = _WEIGHTS.get(piece.kind, 1)
        if portion and (rows + weight > _ROWS or size + piece.size > _BYTES):
            yield tuple(portion)
            portion, rows, size = [], 0, 0
        portion.append(piece)
        rows += weight
        size += piece.size
    if portion:
        yield tuple(portion)
