"""The interface of a blocking engine: every call is complete when it returns. Used by the command line."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol, TypeVar

from agentbus.core.clock import Clock, Now
from agentbus.operations.protocol import Op, Operation

if TYPE_CHECKING:
    from agentbus.engine.blocking_wait import WaitingProcess

R = TypeVar("R")
T = TypeVar("T")


class BlockingEngine(Protocol):
    """A store used without an event loop."""

    clock: Clock

    @property
    def read_only(self) -> bool:
        """Return True if every write is refused."""

    @property
    def shown(self) -> str:
        """Return the path or URL by which users name it; without a password."""

    @property
    def home(self) -> str | None:
        """Return the directory of a bus in one file; None if it is on a server."""

    def write(
        self, operation: Operation[R, T], request: R, *, durable: bool | None = None, lock_timeout: float | None = None
    ) -> T:
        """Commit one request, or raise its error. ``lock_timeout``: seconds to wait for a lock at most."""

    def read(self, question: Callable[[R, Now], Op[T]], request: R) -> T:
        """Run a read-only operation."""

    def pause_writes(self) -> AbstractContextManager[None]:
        """Make every writer wait, this store included, for the length of a block."""

    def wait_for_wakeups(self) -> AbstractContextManager[WaitingProcess]:
        """Register a process that others can ring, for the length of a block."""

    def set_process(self, process: int) -> None:
        """Set the number of this process, which its own commits do not ring."""

    def lock_wait_ms(self) -> int:
        """Return the milliseconds that writes waited for other processes since the last call; 0 where no single lock
        serializes writers."""

    def owns_file(self, device: int, inode: int) -> bool:
        """Return True if a store open in this process uses the file, so that other code must not open it here."""

    def remove_bells(self, bells: Iterable[str | None]) -> None:
        """Remove the doorbells of processes that were marked dead."""

    def sizes(self) -> tuple[int, int]:
        """Return the bytes of the store and of its log."""

    def close(self) -> None:
        """Release everything. Safe to call twice."""
