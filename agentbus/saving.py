"""What an agent keeps for later: its checkpoints. The part of ``Agent`` that has to do with them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager
from typing import Any

from agentbus import autosave
from agentbus.errors import ForeignCheckpoint, InvalidInput
from agentbus.handle import Handle
from agentbus.records import Checkpoint, CheckpointSummary


class Saver(Handle):
    """An agent that saves checkpoints, and goes on from them."""

    async def checkpoint(
        self,
        name: str,
        snapshot: Any,
        *,
        notes: str = "",
        files: Iterable[str | os.PathLike[str]] = (),
        root: str | os.PathLike[str] | None = None,
        keep: int | None = None,
    ) -> Checkpoint:
        """Save a named snapshot to go on from later, also in another life of this agent.

        ``files`` are paths below ``root`` (by default the working directory); their sizes and hashes are kept, not
        their contents. With ``keep`` the oldest checkpoints of this name go until so many are left, this one among
        them: at most 100 with each save, so that nobody waits long (``bus.checkpoints.prune`` removes all).

        >>> await agent.checkpoint("after_planning", {"step": 1}, files=["plan.md"])  # doctest: +SKIP
        """
        draft = self.draft_checkpoint(name, snapshot, notes=notes, files=files, root=root, keep=keep)
        self.active = True
        return await draft.save(self.engine)

    @property
    def restored(self) -> CheckpointSummary | None:
        """What this life goes on from: the newest checkpoint that the agent saved in this session (or in none, if it is
        in none), if the last life that it began did not complete; else None.

        >>> last = await agent.restore(id=agent.restored.id) if agent.restored else None   # doctest: +SKIP
        >>> step = last.snapshot["step"] if last else 0                               # doctest: +SKIP
        """
        return self._restored

    async def restore(self, name: str | None = None, *, id: int | None = None) -> Checkpoint | None:
        """This agent's newest checkpoint (of that name), whichever session it belongs to, or the one with that id; None
        if there is none. ``restored`` is the one that this life goes on from.

        >>> last = await agent.restore("after_planning")                              # doctest: +SKIP
        >>> step = last.snapshot["step"] if last else 0                               # doctest: +SKIP
        """
        self.active = True
        if id is None:
            return await self._bus.checkpoints.latest(self.id, name)
        if name is not None:
            raise InvalidInput(reason="restore() takes a name or an id, not both")
        found = await self._bus.checkpoints.get(id)
        if found is not None and (found.owner_kind, found.owner) != ("agent", self.id):
            raise ForeignCheckpoint(
                id=id, owner_kind=found.owner_kind, owner=found.owner, agent=self.id, wanted=f"agent {self.id!r}"
            )
        return found

    def checkpoint_every(
        self, seconds: float, make: autosave.Make, *, name: str = "auto", keep: int = 10
    ) -> AbstractAsyncContextManager[None]:
        """Save what ``make()`` gives every so many seconds while a block runs, and once more at its end, unless nothing
        has changed. After an exception in the block nothing more is saved.

        ``make`` may be a coroutine function. If it fails, that is logged, and it is called again next time.

        >>> async with agent.checkpoint_every(30, lambda: {"done": done}):            # doctest: +SKIP
        ...     await work()
        """
        return autosave.every(self, seconds, make, name, keep)
