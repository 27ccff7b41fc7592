"""The monitor: a loop that sweeps alongside the agents, and tells what it finds."""

from __future__ import annotations

import asyncio
import logging
import os
import stat
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from types import TracebackType

import anyio
import msgspec

from agentbus.disk import check_path, refusal
from agentbus.engine.interface import Engine
from agentbus.errors import AgentBusError, BusClosed, InvalidInput, Misuse, NotWritable
from agentbus.records import Finding, Sweep
from agentbus.services.callbacks import being_cancelled, call, log_failure
from agentbus.services.sweeping import Sweeper
from agentbus.services.threads import Threads

log = logging.getLogger("agentbus.monitor")

_KEPT = 10_000
"""Findings that wait for whoever reads them slowly."""
_LEVELS = {"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}

Callback = Callable[[Finding], object]


class Chore(msgspec.Struct, frozen=True):
    """Something that is done now and then while a monitor runs: once its first interval is over, then every so many
    seconds."""

    name: str
    every: float
    do: Callable[[], Awaitable[object]]


class Monitor:
    """A monitor that runs for the length of its block. Made by ``bus.monitor(…)``.

    ``sweeps`` counts how often it swept, ``last`` is what its last sweep came to.

    >>> async with bus.monitor(interval=5, suspect_after=60) as monitor:              # doctest: +SKIP
    ...     async for finding in monitor.findings():
    ...         print(finding.text)
    """

    def __init__(
        self,
        engine: Engine,
        sweeper: Sweeper,
        *,
        interval: float,
        log_file: str | os.PathLike[str] | None = None,
        on_finding: Callback | None = None,
        chores: Sequence[Chore] = (),
        threads: Threads | None = None,
    ) -> None:
        self.sweeps = 0
        self.last: Sweep | None = None
        self._engine = engine
        self._sweeper = sweeper
        self._interval = interval
        self._log_file = log_file
        self._on_finding = on_finding
        self._chores = chores
        self._threads = threads or Threads()
        self._task: asyncio.Task[None] | None = None
        self._entered = False
        self._file: int | None = None
        self._found: deque[Finding] = deque(maxlen=_KEPT)
        self._total = 0
        self._news = asyncio.Event()
        self._over = False

    async def __aenter__(self) -> Monitor:
        if self._entered:
            raise Misuse(reason="this monitor ran before; call bus.monitor() again")
        self._entered = True
        await self._sweeper.begin()
        if self._log_file is not None:
            self._file = open_log(self._engine, self._log_file)
        # A task of its own, not a task group around the caller's block, which would wrap the caller's exceptions.
        self._task = asyncio.create_task(self._run(), name="agentbus-monitor")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._task is not None:
                self._task.cancel()
                (ending,) = await asyncio.gather(self._task, return_exceptions=True)
                if isinstance(ending, Exception):
                    log.error("the monitor had ended", exc_info=ending)
        finally:
            if self._file is not None:
                os.close(self._file)
                self._file = None

    async def findings(self) -> AsyncIterator[Finding]:
        """What it found since it began, then what it finds, until its block is left. Each who asks gets all of it; of
        somebody much too slow, only the last 10,000 wait.

        >>> async for finding in monitor.findings():                                  # doctest: +SKIP
        ...     print(finding.severity, finding.subject, finding.text)
        """
        told = 0
        while True:
            news, over = self._news, self._over
            told = max(told, self._total - len(self._found))
            while told < self._total:
                finding = self._found[told - self._total]
                told += 1
                yield finding
                told = max(told, self._total - len(self._found))
            if over:
                return
            self._engine.check()
            await news.wait()

    async def _run(self) -> None:
        try:
            async with anyio.create_task_group() as tasks:
                if self._on_finding is not None:
                    tasks.start_soon(self._tell, self._on_finding)
                for chore in self._chores:
                    tasks.start_soon(self._do_now_and_then, chore)
                await self._sweep_on()
                tasks.cancel_scope.cancel()
        finally:
            self._over = True
            self._ring()

    async def _sweep_on(self) -> None:
        """Sweep until the bus is closed. Whatever goes wrong, the next sweep is tried."""
        pause = self._engine.hub.listen(())
        while True:
            try:
                swept = await self._sweeper.sweep()
            except BusClosed:
                return
            except AgentBusError as error:
                log.warning("no sweep: %s", error)
            except Exception:
                log.exception("no sweep")
            else:
                self.last = swept
                self._publish(swept.findings)
            self.sweeps += 1
            await pause.wait(self._interval)

    async def _do_now_and_then(self, chore: Chore) -> None:
        pause = self._engine.hub.listen(())
        await pause.wait(self._interval)
        while True:
            try:
                await chore.do()
            except AgentBusError as error:
                log.warning("no %s: %s", chore.name, error)
            except Exception:
                log.exception("no %s", chore.name)
            await pause.wait(chore.every)

    async def _tell(self, callback: Callback) -> None:
        """In a task of its own: a slow callback must not hold up the sweeps."""
        async for finding in self.findings():
            try:
                await call(self._threads, f"on_finding of {finding.kind}", callback, finding)
            except asyncio.CancelledError:
                if being_cancelled():
                    raise
                log.warning("the callback was cancelled on %s", finding.kind)
            except Exception as error:
                log_failure(log, error, "the callback failed on %s", finding.kind)

    def _publish(self, findings: Sequence[Finding]) -> None:
        for finding in findings:
            log.log(_LEVELS[finding.severity], "%s", finding.text)
            self._found.append(finding)
            self._total += 1
            if self._file is not None:
                try:
                    os.write(self._file, _line(finding))
                except OSError as error:
                    log.warning("the log file takes no more: %s", error)
        if findings:
            self._ring()

    def _ring(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()


def open_log(engine: Engine, path: str | os.PathLike[str]) -> int:
    """The file to add lines to, made for this user only. Never a file of the store: closing it would drop its locks.
    Nothing that could make the event loop wait either, as a pipe does."""
    place = check_path(path)
    try:
        with suppress(FileNotFoundError):
            there = place.stat()
            if engine.holds(there.st_dev, there.st_ino):
                raise InvalidInput(reason=f"{place} is part of the bus; give the log a file of its own")
            if not stat.S_ISREG(there.st_mode):
                raise NotWritable(path=str(place), reason="it is not a plain file")
        return os.open(place, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
    except OSError as error:
        raise refusal(place, error) from None


def write_log(engine: Engine, path: str | os.PathLike[str], findings: Sequence[Finding]) -> None:
    """Add findings to a log file, as a monitor does."""
    descriptor = open_log(engine, path)
    try:
        os.write(descriptor, b"".join(_line(finding) for finding in findings))
    except OSError as error:
        raise refusal(check_path(path), error) from None
    finally:
        os.close(descriptor)


def _line(finding: Finding) -> bytes:
    """One line, whatever an error text has in it."""
    text = finding.text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    at = datetime.fromtimestamp(finding.at / 1000, UTC).isoformat(timespec="milliseconds")
    line = f"{at} {finding.severity} {finding.kind} {finding.subject} {text}\n"
    return line.encode("utf-8", "backslashreplace")
