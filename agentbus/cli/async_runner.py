"""Run a command on an event loop, with the asynchronous bus."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable
from typing import TypeVar

import agentbus
from agentbus import Bus
from agentbus.cli.context import Call
from agentbus.cli.signals import ENDING, interrupts_left_to_loop
from agentbus.cli.views import Report, progress_bar
from agentbus.core.logs import json_handler, log_settings

T = TypeVar("T")


def run(call: Call, work: Callable[[], Awaitable[T]]) -> T:
    """Run to completion. Ctrl-C, SIGTERM and a closed terminal cancel it, so that the bus is closed."""
    ended: list[int] = []

    async def await_user_code() -> T:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()

        def end(number: int) -> None:
            ended.append(number)
            if task is not None:
                task.cancel()

        for number in ENDING:
            if signal.getsignal(number) is not signal.SIG_IGN:
                loop.add_signal_handler(number, end, number)
        return await work()

    try:
        with interrupts_left_to_loop():
            result = asyncio.run(await_user_code())
    except asyncio.CancelledError:
        if ended:
            raise SystemExit(128 + ended[0]) from None
        raise
    if call.settings.text("agent") is not None:
        # Closing an open bus records the visit of the agent.
        _ = call.bus
    return result


def connected(call: Call) -> Bus:
    """Return the bus that the settings name, not yet opened. It logs to stderr and resumes no session."""
    settings = call.settings
    log_to_stderr(call)
    return agentbus.connect(
        settings["url"],
        durability=settings["durability"],
        lock_timeout=settings["lock_timeout"],
        max_payload=settings["max_payload"],
        max_snapshot=settings["max_snapshot"],
        auto_resume=False,
        create=False,
    )


def on_bus(call: Call, work: Callable[[Bus], Awaitable[T]]) -> T:
    """Open the bus, run work on it, and close it."""

    async def working() -> T:
        async with connected(call) as bus:
            return await work(bus)

    return run(call, working)


def with_bar(call: Call, title: str, work: Callable[[Bus, Report | None], Awaitable[T]]) -> T:
    """Run work that reports its progress, with a progress bar."""

    async def working(bus: Bus) -> T:
        with progress_bar(title, call) as report:
            return await work(bus, report)

    return on_bus(call, working)


def log_to_stderr(call: Call) -> None:
    """Print warnings of the bus as notes, except findings of the monitor and interrupted sessions, which the commands
    print themselves. Structured logs have all of them."""
    log = logging.getLogger("agentbus")
    format, level = log_settings()
    log.handlers[:] = [json_handler(level) if format == "json" and call.logs else _Notes(call, level)]
    if level < logging.WARNING:
        log.setLevel(level)
    log.propagate = False


class _Notes(logging.Handler):
    def __init__(self, call: Call, level: int) -> None:
        super().__init__(level)
        self._call = call

    def emit(self, record: logging.LogRecord) -> None:
        printed = record.funcName == "_publish" or record.name == "agentbus.recovery"
        if not printed:
            self._call.note(f"agentbus: {record.getMessage()}")
