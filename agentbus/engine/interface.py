"""The interface of an asynchronous engine."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from pathlib import Path

    from agentbus.core.clock import Clock, Now
    from agentbus.engine.blocking import BlockingEngine
    from agentbus.engine.waiters import Waiters
    from agentbus.operations.health import OpenTransaction, SkippedCheck
    from agentbus.operations.processes import Entry
    from agentbus.operations.protocol import Op, Operation
    from agentbus.records import BackupRecord, Check

R = TypeVar("R")
T = TypeVar("T")

Progress = Callable[[int, int], object]
"""Called with the amount done and the total, from any thread."""


class Engine(Protocol):
    """A store used through an event loop."""

    clock: Clock
    waiters: Waiters
    process: int
    beat_every: float
    """Seconds between the heartbeats of this process, published when it registers."""
    directory: Path
    """Directory for the files of this bus on this machine."""
    home: str | None
    """Directory of a bus in one file; None if it is on a server."""
    location: str
    """The directory of the bus, or the URL of its server without user and password, in one form for every spelling."""
    last_lock_timeout: float
    """Monotonic seconds of the last lock timeout while an agent left."""

    async def open(self) -> Entry:
        """Open the store, migrate its schema, and register this process."""

    def write(
        self,
        operation: Operation[R, T],
        request: R,
        *,
        durable: bool | None = None,
        on_abandoned: Callable[[T], None] | None = None,
    ) -> Awaitable[T]:
        """Commit one request, or raise its error. If the caller is cancelled, the result goes to ``on_abandoned``."""

    def check(self) -> None:
        """Raise BusForked, WrongLoop or BusClosed if the caller cannot use this engine."""

    async def read(self, question: Callable[[R, Now], Op[T]], request: R) -> T:
        """Run a read-only operation."""

    async def read_inline(self, question: Callable[[R, Now], Op[T]], request: R) -> T:
        """Run a few indexed lookups as fast as possible; may block the event loop. Use ``read`` for scans."""

    async def backup(self, path: Path | None, keep: int, progress: Progress | None = None) -> BackupRecord:
        """Make a verified copy of the store: in its own directory, of which the newest ``keep`` stay, or at a new path.
        A server raises UseServerTools, which names its own tools."""

    async def check_health(self) -> list[Check | SkippedCheck]:
        """Check the store and its environment without blocking writers. Report also what could not be checked."""

    async def read_isolated(self, question: Callable[[R, Now], Op[T]], request: R) -> T:
        """Run a read-only operation on data that may be damaged, without a time limit, on a separate connection."""

    async def sizes(self) -> tuple[int, int]:
        """Return the bytes of the store and of its log."""

    def free_space(self) -> int | None:
        """Return the bytes free for the store; None if unknown."""

    async def oldest_transaction(self) -> OpenTransaction | None:
        """Return the oldest open transaction on the server; None if there is none or no server. In a file, the size of
        the log shows a long reader."""

    def lock_wait_ms(self) -> int:
        """Return the milliseconds that writes waited for other processes since the last call; 0 where no single lock
        serializes writers."""

    async def checkpoint(self) -> None:
        """Checkpoint a log that has grown, up to its oldest reader."""

    def blocking(self) -> BlockingEngine:
        """Open the same store again, for a thread that writes as this process while the event loop is blocked."""

    def owns_file(self, device: int, inode: int) -> bool:
        """Return True if a store open in this process uses the file, so that other code must not open it here.

        May be called from another thread.
        """

    def stop_waiting(self) -> None:
        """Stop waiting for other processes: the bus is being closed."""

    def remove_bells(self, bells: Iterable[str | None]) -> None:
        """Remove the doorbells of processes that were marked dead."""

    async def close(self, *, left: bool = True) -> None:
        """Commit what is queued, then release everything. Safe to call twice.

        ``left=False``: it could not be recorded that this process closed the bus, so others must detect it.
        """
