"""Checkpoints: ``bus.checkpoints``, drafts that agents, sessions and units save, and periodic saving.

Written by ``make sync`` from ``agentbus.api.checkpoints``: change that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentbus.api import checkpoints as api
from agentbus.core.validation import PAGE_SIZE
from agentbus.sync.client.base import Wrapper

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, Unpack

    from agentbus.api.checkpoint_files import Path
    from agentbus.api.checkpoints import CheckpointOptions
    from agentbus.records import Checkpoint, CheckpointSummary, FileCheck, Page


class Checkpoints(Wrapper[api.Checkpoints], wraps=api.Checkpoints):
    """The checkpoints of all agents and sessions.

    >>> for summary in bus.checkpoints.list("planner-1").items:               # doctest: +SKIP
    ...     print(summary.id, summary.name, summary.size)
    """

    __slots__ = ()

    def get(self, id: int) -> Checkpoint | None:
        """Return one checkpoint by its id, or None.

        >>> checkpoint = bus.checkpoints.get(7)                                 # doctest: +SKIP
        """
        return self._call(self._inner.get, id)

    def latest(self, owner: str, name: str | None = None, *, kind: str = "agent") -> Checkpoint | None:
        """Return the newest checkpoint of an agent (or, with ``kind="session"``, a session), of one name or any.

        >>> bus.checkpoints.latest("planner-1", "after_planning")               # doctest: +SKIP
        """
        return self._call(self._inner.latest, owner, name, kind=kind)

    def list(
        self,
        owner: str | None = None,
        name: str | None = None,
        *,
        kind: str | None = None,
        cursor: str | None = None,
        limit: int = PAGE_SIZE,
    ) -> Page[CheckpointSummary]:
        """Return checkpoints without their snapshots, newest first. ``owner`` is an agent, a session with
        ``kind="session"``; ``kind="composite"`` selects those of ``session.checkpoint_all``.

        >>> page = bus.checkpoints.list("planner-1", "after_planning")          # doctest: +SKIP
        """
        return self._call(self._inner.list, owner, name, kind=kind, cursor=cursor, limit=limit)

    def verify(self, checkpoint: Checkpoint | int, root: Path | None = None) -> Sequence[FileCheck]:
        """Compare the files that a checkpoint refers to with those below ``root`` (default: working directory).

        >>> bus.checkpoints.verify(7)                                           # doctest: +SKIP
        [FileCheck(path='plan.md', status='changed')]
        """
        return self._call(self._inner.verify, checkpoint, root)

    def save(
        self, owner: str, name: str, snapshot: Any, *, kind: str = "agent", **options: Unpack[CheckpointOptions]
    ) -> Checkpoint:
        """Save a checkpoint for any agent or open session. The options are those of ``Agent.checkpoint``.

        >>> bus.checkpoints.save("planning-001", "half", {"step": 3}, kind="session")   # doctest: +SKIP
        """
        return self._call(self._inner.save, owner, name, snapshot, kind=kind, **options)

    def delete(self, id: int) -> None:
        """Delete one checkpoint.

        >>> bus.checkpoints.delete(7)                                           # doctest: +SKIP
        """
        self._call(self._inner.delete, id)

    def prune(self, owner: str, name: str | None = None, *, keep: int, kind: str = "agent") -> int:
        """Delete all but the newest ``keep`` checkpoints of a name, or of each name, and return the number deleted.

        >>> bus.checkpoints.prune("planner-1", keep=3)                          # doctest: +SKIP
        """
        return self._call(self._inner.prune, owner, name, keep=keep, kind=kind)
