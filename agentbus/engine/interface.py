"""What the bus needs of a database, whichever it is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    # Whoever only names the engine, the command line too, should start without the hub's asyncio.
    from pathlib import Path

    from agentbus.clock import Clock, Now
    from agentbus.engine.blocking import BlockingEngine
    from agentbus.engine.hub import Hub
    from agentbus.operations import Op, Operation
    from agentbus.operations.examining import OpenTransaction, Unseen
    from agentbus.operations.processes import Entry
    from agentbus.records import BackupRecord, Check

R = TypeVar("R")
T = TypeVar("T")

Progress = Callable[[int, int], object]
"""Is told how much is done, and of how much; from whichever thread."""


class Engine(Protocol):
    """What the bus needs of a database."""

    clock: Clock
    hub: Hub
    process: int
    beat_every: float
    """Seconds between the beats of this process, as it tells the others when it enters."""
    directory: Path
    """Where this bus keeps files of its own on this machine."""
    home: str | None
    """The directory of a bus that is in one file; None if it is on a server."""
    waited_in_vain: float
    """When someone who leaves last gave up waiting (monotonic seconds)."""

    async def open(self) -> Entry:
        """Open the store, bring its schema up to date, enter this process."""

    def write(
        self,
        operation: Operation[R, T],
        request: R,
        *,
        durable: bool | None = None,
        orphaned: Callable[[T], None] | None = None,
    ) -> Awaitable[T]:
        """Commit one request, or raise its error.

        A result that nobody waits for any more, because the caller was cancelled, goes to ``orphaned``.
        """

    def check(self) -> None:
        """Raise the named error of a caller that is in another process or event loop than this engine, or in none."""

    async def read(self, question: Callable[[R, Now], Op[T]], request: R) -> T:
        """Answer a question without writing."""

    async def look(self, question: Callable[[R, Now], Op[T]], request: R) -> T:
        """The same for a question of a few indexed look-ups, as fast as can be: it may hold the event loop up for
        that long. What can scan must be read."""

    async def backup(self, path: Path | None, keep: int, progress: Progress | None = None) -> BackupRecord:
        """A verified copy of the store as it is now: where it keeps its own files, of which the newest ``keep`` stay,
        or at a path where nothing is yet. A server has tools of its own for that, which UseServerTools names."""

    async def examine(self) -> list[Check | Unseen]:
        """Look at the store and its surroundings, without holding anybody up; what could not be looked at, and why."""

    async def inspect(self, question: Callable[[R, Now], Op[T]], request: R) -> T:
        """Answer a question about what may be damaged: it takes as long as it takes, beside everything else."""

    async def sizes(self) -> tuple[int, int]:
        """Bytes of the store and of its log."""

    def free_space(self) -> int | None:
        """Bytes that are left for the store; None if it cannot tell."""

    async def oldest_transaction(self) -> OpenTransaction | None:
        """The one that has been open for longest on the server; None if none is, or if there is no server: a file has
        its log to tell of somebody who reads for long."""

    def waited(self) -> int:
        """Milliseconds that writing waited for other processes since this was last asked; 0 where nobody waits for all
        the others."""

    async def checkpoint(self) -> None:
        """Move a log that has grown into the store, as far as nobody reads it any more."""

    def blocking(self) -> BlockingEngine:
        """Open the same store once more, for a thread that writes as this process while the event loop is blocked."""

    def holds(self, device: int, inode: int) -> bool:
        """Whether this file is part of a store that is open in this process, and must not be opened by others in it.

        May be called from another thread.
        """

    def hurry(self) -> None:
        """Do not wait for other processes any more: the bus is being closed."""

    def remove_bells(self, bells: Iterable[str | None]) -> None:
        """Forget the doorbells of processes that were struck off."""

    async def close(self, *, left: bool = True) -> None:
        """Write what waits, then let go of everything. Safe to call twice.

        Not ``left``: it could not be noted that this process has the bus no longer open, so others must see it.
        """
