"""Retention: archive what is old enough, then let it go.

Rows are archived and on the disk before they are deleted, and only those are deleted that are still as they were
archived. A crash in between repeats lines in a later archive and loses none; reading them again changes nothing twice.
Two that run at once do no harm for the same reasons.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import anyio.to_thread

from agentbus.engine.interface import Engine
from agentbus.errors import InvalidInput
from agentbus.operations import archives
from agentbus.operations.archives import Line
from agentbus.operations.deletion import Rest
from agentbus.operations.removing import RemoveRequest, remove
from agentbus.operations.restoring import bus_name
from agentbus.operations.retention import TIERS, Piece, Wanted
from agentbus.records import RetentionPolicy, RetentionReport
from agentbus.services.archive import ArchiveWriter, archive_in

log = logging.getLogger("agentbus.retention")

_ROWS = 500
_BYTES = 4 * 1024 * 1024
_WEIGHTS = {"agent": 5, "session": 50, "process": 50}
"""What takes longer to remove than a row."""

_LOADING: dict[str, Callable[[Sequence[Any], Any], Any]] = {
    "checkpoint": archives.load_checkpoints,
    "document": archives.load_documents,
    "agent": archives.load_agents,
    "session": archives.load_sessions,
    "message": archives.load_messages,
    "event": archives.load_events,
    "process": archives.load_processes,
    "tombstone": archives.load_tombstones,
}


class Retention:
    """``bus.retention``: how long things are kept. The monitor applies it now and then; anybody may.

    >>> bus.retention.policy = RetentionPolicy(messages=24 * 3600)                    # doctest: +SKIP
    """

    def __init__(self, engine: Engine, policy: RetentionPolicy | None = None) -> None:
        self._engine = engine
        self.policy = RetentionPolicy() if policy is None else policy

    @property
    def policy(self) -> RetentionPolicy:
        """What is kept, and for how long.

        >>> bus.retention.policy.checkpoints_last                                     # doctest: +SKIP
        24
        """
        return self._policy

    @policy.setter
    def policy(self, policy: RetentionPolicy) -> None:
        self._policy = _checked(policy)

    async def apply(self, *, dry_run: bool = False, policy: RetentionPolicy | None = None) -> RetentionReport:
        """Archive what is old enough in ``archive/`` of the bus, then remove it; ``dry_run`` only says what would go.

        In small steps, so that nobody waits long for the lock. ``policy`` is one for this time only.

        >>> report = await bus.retention.apply(dry_run=True)                          # doctest: +SKIP
        >>> report.removed                                                            # doctest: +SKIP
        {'message': 1200, 'event': 310}
        """
        run = _Run(self._engine, self._policy if policy is None else _checked(policy), dry_run)
        run.archive.bus = await self._engine.read(bus_name, None)
        try:
            for find in TIERS:
                await run.tier(find)
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(run.archive.close)
        report = run.report()
        if report.removed and not dry_run:
            counts = ", ".join(f"{count} {kind}" for kind, count in report.removed.items())
            log.info("removed what was old enough: %s; archived in %s", counts, report.archive)
        return report


class _Run:
    """One application of a policy."""

    def __init__(self, engine: Engine, policy: RetentionPolicy, dry_run: bool) -> None:
        self._engine = engine
        self._policy = policy
        self._dry_run = dry_run
        self._gone: dict[str, set[Any]] = {}
        self._kept: set[tuple[str, Any]] = set()
        self._rest: Rest | None = None
        now = engine.clock.now().wall
        self.archive = ArchiveWriter(archive_in(engine.directory, now), now)

    async def tier(self, find: Callable[[Wanted, Any], Any]) -> None:
        cursor = None
        while True:
            found = await self._engine.read(find, Wanted(self._policy, cursor))
            pieces = [piece for piece in found.pieces if self._may_go(piece)]
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

    async def _let_go(self, portion: tuple[Piece, ...]) -> None:
        lines: list[Line] = []
        for kind, load in _LOADING.items():
            keys = [piece.key for piece in portion if piece.kind == kind]
            if keys:
                lines += await self._engine.read(load, keys)
        await anyio.to_thread.run_sync(self.archive.write, lines)
        removed = await self._engine.write(remove, RemoveRequest(self.archive.path.name, portion, self._rest))
        self._note(removed.pieces)
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


def _checked(policy: object) -> RetentionPolicy:
    if not isinstance(policy, RetentionPolicy):
        raise InvalidInput(reason=f"a retention policy is a RetentionPolicy, not {type(policy).__name__}")
    return policy
