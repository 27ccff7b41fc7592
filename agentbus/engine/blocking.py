"""What the command line needs of a database, whichever it is: every call is done when it returns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

from agentbus.clock import Clock, Now
from agentbus.operations import Op, Operation

R = TypeVar("R")
T = TypeVar("T")


class Attendance(Protocol):
    """A process that waits: others ring it for what it listens to."""

    process: int

    def listen(self, channels: Sequence[str]) -> None:
        """Be rung for these from now on, and for nothing else. Look after that, then wait."""

    def wait(self, seconds: float) -> bool:
        """Sleep until something rings, or for so long; whether it is worth looking."""


class BlockingEngine(Protocol):
    """A store that is used without an event loop."""

    clock: Clock

    @property
    def read_only(self) -> bool:
        """True if the bus can only be looked at: every write is refused."""

    @property
    def shown(self) -> str:
        """What people call it, and could open it by; without a password."""

    @property
    def home(self) -> str | None:
        """The directory of a bus that is in one file; None if it is on a server."""

    def write(
        self, operation: Operation[R, T], request: R, *, durable: bool | None = None, patience: float | None = None
    ) -> T:
        """Commit one request, or raise its error. ``patience``: wait no longer than that many seconds for a lock."""

    def read(self, question: Callable[[R, Now], Op[T]], request: R) -> T:
        """Answer a question without writing."""

    def still(self) -> AbstractContextManager[None]:
        """Nobody writes for the length of a block, this store included; whoever wants to waits."""

    def attend(self) -> AbstractContextManager[Attendance]:
        """Enter as a process that can be rung, for the length of a block."""

    def entered(self, process: int) -> None:
        """From now on this process has a number: it does not ring itself."""

    def waited(self) -> int:
        """Milliseconds that writing waited for other processes since this was last asked; 0 where nobody waits for all
        the others."""

    def holds(self, device: int, inode: int) -> bool:
        """Whether this file is part of a store that is open in this process, and must not be opened by others in it."""

    def remove_bells(self, bells: Iterable[str | None]) -> None:
        """Forget the doorbells of processes that were struck off."""

    def sizes(self) -> tuple[int, int]:
        """Bytes of the store and of its log."""

    def close(self) -> None:
        """Let go of everything. Safe to call twice."""
