"""The interface of a blocking engine: every call is complete when it returns; and a process that others can ring while
it waits, without an event loop. Used by the command line."""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Protocol, TypeVar

from agentbus.core import process_info
from agentbus.core.clock import Clock, Now
from agentbus.core.validation import HEARTBEAT_INTERVAL
from agentbus.engine.processes import mark_dead_processes
from agentbus.errors import AgentBusError
from agentbus.operations.processes import (
    EnterRequest,
    HeartbeatRequest,
    LeaveRequest,
    ListenRequest,
    heartbeat,
    leave,
    listen,
)
from agentbus.operations.protocol import Op, Operation

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


class WaitingProcess(ABC):
    """A waiting process: others ring it for the channels it listens to. Subclasses say how it is rung."""

    def __init__(self, store: BlockingEngine) -> None:
        self.process = 0
        self._store = store
        self._channels: tuple[str, ...] = ()
        self._last_heartbeat = 0.0

    def entry(self, bell: str | None) -> EnterRequest:
        """Return the request that registers this process."""
        pid = os.getpid()
        return EnterRequest(process_info.host_key(), pid, process_info.start_time(pid), bell)

    def entered(self, process: int) -> None:
        """Set the number of the registered process, by which it is removed again."""
        self.process = process
        self._store.set_process(process)
        self._last_heartbeat = time.monotonic()

    def leave(self) -> None:
        """Remove the process: others stop ringing it."""
        if self.process:
            with suppress(AgentBusError):
                # Not durable: the process has no agents, so nothing is lost if a power cut undoes this.
                self._store.write(leave, LeaveRequest((self.process,), False, "finished waiting"), durable=False)
                self._store.set_process(0)
        self.close_doorbell()

    def listen(self, channels: Sequence[str]) -> None:
        """Replace the channels that ring this process. Query after this call, then wait."""
        wanted = tuple(dict.fromkeys(channel.partition("#")[0] for channel in channels))
        for channel in self._channels:
            if channel not in wanted:
                self._store.write(listen, ListenRequest(self.process, channel, False))
        for channel in wanted:
            if channel not in self._channels:
                self._store.write(listen, ListenRequest(self.process, channel, True))
        self._channels = wanted

    def wait(self, seconds: float) -> bool:
        """Sleep until rung, for that many seconds, or until the next heartbeat. Return True if a query is worthwhile.

        Each heartbeat also marks dead processes, which releases their leases; this process does not ring itself for it.
        """
        rung = self.sleep(min(seconds, self._last_heartbeat + HEARTBEAT_INTERVAL - time.monotonic()))
        if time.monotonic() >= self._last_heartbeat + HEARTBEAT_INTERVAL:
            self._send_heartbeat()
            with suppress(AgentBusError):
                rung = mark_dead_processes(self._store) or rung
        return rung

    def _send_heartbeat(self) -> None:
        """Send a heartbeat. If this process has been marked dead, register its channels again."""
        if self._store.write(heartbeat, HeartbeatRequest(self.process, (), self._store.lock_wait_ms())):
            known, self._channels = self._channels, ()
            self.listen(known)
        self._last_heartbeat = time.monotonic()

    @abstractmethod
    def wake(self) -> None:
        """End the sleep that is going on, or the next one. Called by another thread."""

    @abstractmethod
    def sleep(self, seconds: float) -> bool:
        """Sleep until rung, or for that many seconds (not at all if negative). Return True if rung."""

    @abstractmethod
    def close_doorbell(self) -> None:
        """Close the doorbell, if there is one."""
