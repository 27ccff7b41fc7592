"""Retention: archive rows past their retention period, then delete them.

Rows are durably archived before they are deleted, and only rows that are still as archived are deleted. A crash in
between repeats lines in a later archive and loses none; restoring them is idempotent. For the same reasons concurrent
runs are safe.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypedDict, Unpack

from agentbus.api.maintenance.archive import ArchiveWriter, archive_in
from agentbus.core.cancellation import run_to_completion
from agentbus.core.validation import check_options
from agentbus.engine.interface import Engine, Progress
from agentbus.engine.sqlite import disk_reserve
from agentbus.errors import DiskFull, InvalidInput
from agentbus.operations import archive_rows
from agentbus.operations.agent_deletion import Rest
from agentbus.operations.archive_rows import Line, bus_name, load_tasks
from agentbus.operations.holds import clean_holds
from agentbus.operations.removal import RemoveRequest, remove
from agentbus.operations.retention import (
    TIERS,
    ChangePolicyRequest,
    Piece,
    RetentionQuery,
    TurnRequest,
    change_policy,
    claim_turn,
    is_due,
    read_policy,
)
from agentbus.operations.state import last_change
from agentbus.records import RetentionPolicy, RetentionReport

log = logging.getLogger("agentbus.retention")

_MAX_ROWS = 500
_MAX_BYTES = 4 * 1024 * 1024
_WITH_STATE = ("agent", "session")
_WEIGHTS = {"agent": 5, "task": 10, "session": 50}
"""Kinds that take longer to delete than a row."""
INTERVAL = 3600 * 1000
"""Milliseconds after which the policy is applied again, if a monitor runs."""

_LOADING: dict[str, Callable[[Sequence[Any], Any], Any]] = {
    "checkpoint": archive_rows.load_checkpoints,
    "document": archive_rows.load_documents,
    "agent": archive_rows.load_agents,
    "session": archive_rows.load_sessions,
    "message": archive_rows.load_messages,
    "event": archive_rows.load_events,
    "process": archive_rows.load_processes,
    "task": load_tasks,
    "tombstone": archive_rows.load_tombstones,
}


class RetentionChanges(TypedDict, total=False):
    """Changes of the retention policy; ``RetentionPolicy`` describes the fields."""

    checkpoints_last: int
    checkpoints_daily: int | None
    messages: float | None
    dead_letters: float | None
    messages_most: int | None
    agents: float | None
    sessions: float | None
    failed_sessions: float | None
    tasks: float | None
    events: float | None
    processes: float | None
    tombstones: float | None
    histories: float | None


class Retention:
    """``bus.retention``: the retention policy. Monitors apply it about once an hour; any process may apply it.
    Otherwise nothing is deleted.

    >>> await bus.retention.change(messages=24 * 3600, events=None)                   # doctest: +SKIP
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def policy(self) -> RetentionPolicy:
        """Return the retention policy of this bus: the defaults with its changes.

        >>> (await bus.retention.policy()).checkpoints_last                           # doctest: +SKIP
        24
        """
        return await self._engine.read(read_policy, None)

    async def change(self, *, by: str | None = None, **changes: Unpack[RetentionChanges]) -> RetentionPolicy:
        """Change periods of the policy for all processes and return the new policy. The options are the fields of
        ``RetentionPolicy``; those not given stay. The audit log names the operator ``by``.

        >>> await bus.retention.change(messages=3 * 24 * 3600, events=None)           # doctest: +SKIP
        """
        given: dict[str, Any] = {**changes}
        check_options(given, RetentionPolicy.__struct_fields__)
        RetentionPolicy(**given)
        return await self._engine.write(change_policy, ChangePolicyRequest(given, by))

    async def apply(
        self, *, dry_run: bool = False, policy: RetentionPolicy | None = None, progress: Progress | None = None
    ) -> RetentionReport:
        """Archive expired rows in ``archive/`` of the bus, then delete them; ``dry_run`` only counts them.

        Runs in bounded transactions, so that other writers do not wait long. ``policy`` replaces that of the bus for
        this run. ``progress`` is called with the rows deleted and their total.

        >>> report = await bus.retention.apply(dry_run=True)                          # doctest: +SKIP
        >>> report.removed                                                            # doctest: +SKIP
        {'message': 1200, 'event': 310}
        """
        if policy is not None and not isinstance(policy, RetentionPolicy):
            raise InvalidInput(reason=f"policy must be a RetentionPolicy, not {type(policy).__name__}")
        if policy is None and not dry_run:
            await self._engine.write(claim_turn, TurnRequest(0))
        wanted = await self.policy() if policy is None else policy
        return await _apply(self._engine, wanted, dry_run, None if dry_run else progress)


async def apply_when_due(engine: Engine) -> None:
    """Apply the policy of the bus unless it was applied within the last hour. One monitor of several does."""
    if await engine.read_inline(is_due, INTERVAL) and await engine.write(claim_turn, TurnRequest(INTERVAL)):
        await _apply(engine, await engine.read(read_policy, None), dry_run=False)


async def _apply(
    engine: Engine, policy: RetentionPolicy, dry_run: bool, progress: Progress | None = None
) -> RetentionReport:
    # Progress needs the total.
    expired = {} if progress is None else (await _apply(engine, policy, dry_run=True)).removed
    run = _Run(engine, policy, dry_run, progress, sum(expired.values()))
    run.archive.bus = await engine.read(bus_name, None)
    try:
        for find in TIERS:
            await run.tier(find)
        if not dry_run:
            while await engine.write(clean_holds, None):
                # In bounded transactions, like the rest.
                pass
    finally:
        await run_to_completion(run.archive.close)
    report = run.report()
    if report.removed and not dry_run:
        counts = ", ".join(f"{count} {kind}" for kind, count in report.removed.items())
        log.info("retention removed %s; archived in %s", counts, report.archive)
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
        self._removed: dict[str, set[Any]] = {}
        self._skipped: set[tuple[str, Any]] = set()
        self._rest: Rest | None = None
        self._archived: dict[tuple[str, str], int] = {}
        """The change up to which the state of agents and sessions is in the archive."""
        now = engine.clock.now().wall
        self.archive = ArchiveWriter(archive_in(engine.directory, now), now)

    async def tier(self, find: Callable[[RetentionQuery, Any], Any]) -> None:
        cursor = None
        while True:
            found = await self._engine.read(find, RetentionQuery(self._policy, cursor))
            pieces = [piece for piece in found.pieces if self._may_remove(piece)]
            if not self._removed and all(piece.kind == "event" and piece.mark[0] for piece in pieces):
                # Events of earlier runs alone do not cause a run: its own event would cause the next, indefinitely.
                pieces = []
            if self._dry_run:
                self._note(pieces)
            else:
                for portion in _portions(pieces):
                    await self._remove(portion)
                    if self._rest is not None:
                        break
            if self._rest is not None:
                # An item exceeded one transaction: find its remainder again.
                continue
            if found.cursor is None:
                return
            cursor = found.cursor

    def report(self) -> RetentionReport:
        archive = self.archive if self.archive.size else None
        return RetentionReport(
            self._dry_run,
            {kind: len(keys) for kind, keys in self._removed.items() if keys},
            len(self._skipped),
            None if archive is None else str(archive.path),
            0 if archive is None else archive.size,
        )

    def _may_remove(self, piece: Piece) -> bool:
        """Return True if the piece may be deleted: a process only with all that refers to it, and in a dry run once."""
        if piece.kind == "process":
            return all(name in self._removed.get(kind, ()) for kind, name in piece.mark)
        return not (self._dry_run and piece.key in self._removed.get(piece.kind, ()))

    def _note(self, pieces: Sequence[Piece]) -> None:
        for piece in pieces:
            self._removed.setdefault(piece.kind, set()).add(piece.key)

    async def _archive(self, lines: list[Line]) -> None:
        try:
            await run_to_completion(self.archive.write, lines)
        except DiskFull:
            if not disk_reserve.release(str(self._engine.directory)):
                raise
            await run_to_completion(self.archive.write, lines)

    async def _archive_histories(self, ids: list[int]) -> list[Line]:
        """Archive histories with their items in portions, and return the last one. Each is removed as a whole, but may
        be larger than a portion."""
        lines: list[Line] = await self._engine.read(archive_rows.load_histories, ids) if ids else []
        size = 0
        for id in ids:
            last: int | None = 0
            while last is not None:
                items, last = await self._engine.read(archive_rows.find_history_items, (id, last))
                wanted: list[int] = []
                for item, item_size in items:
                    wanted.append(item)
                    size += item_size
                    if size > _MAX_BYTES:
                        await self._archive(lines + await self._engine.read(archive_rows.load_history_items, wanted))
                        lines, wanted, size = [], [], 0
                lines += await self._engine.read(archive_rows.load_history_items, wanted)
        return lines

    async def _remove(self, portion: tuple[Piece, ...]) -> None:
        lines = await self._archive_histories([piece.key for piece in portion if piece.kind == "history"])
        # Read before the entries: later changes have a higher number.
        change = await self._engine.read(last_change, None)
        for kind, load in _LOADING.items():
            keys = [piece.key for piece in portion if piece.kind == kind]
            if kind in _WITH_STATE:
                # The state of an item that takes several transactions is archived once.
                keys = [(key, self._archived.get((kind, key), 0)) for key in keys]
            if keys:
                lines += await self._engine.read(load, keys)
        await self._archive(lines)
        removed = await self._engine.write(remove, RemoveRequest(self.archive.path.name, portion, self._rest))
        self._archived.update({(piece.kind, piece.key): change for piece in portion if piece.kind in _WITH_STATE})
        self._note(removed.pieces)
        if self._progress is not None:
            removed_count = sum(len(keys) for keys in self._removed.values())
            self._progress(removed_count, max(removed_count, self._total))
        self._rest = removed.rest
        if removed.rest is None:
            self._skipped |= {(piece.kind, piece.key) for piece in portion} - {
                (piece.kind, piece.key) for piece in removed.pieces
            }


def _portions(pieces: Sequence[Piece]) -> Iterator[tuple[Piece, ...]]:
    """Split pieces into portions for one transaction each, bounded in rows and bytes."""
    portion: list[Piece] = []
    rows = size = 0
    for piece in pieces:
        weight = _WEIGHTS.get(piece.kind, 1)
        if portion and (rows + weight > _MAX_ROWS or size + piece.size > _MAX_BYTES):
            yield tuple(portion)
            portion, rows, size = [], 0, 0
        portion.append(piece)
        rows += weight
        size += piece.size
    if portion:
        yield tuple(portion)
