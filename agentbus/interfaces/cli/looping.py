"""Commands that take long and are rare: run on an event loop, with the asynchronous bus."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable
from typing import TypeVar

import agentbus
from agentbus import Bus
from agentbus.interfaces.cli.bars import Report, bar
from agentbus.interfaces.cli.command import Call
from agentbus.interfaces.cli.interrupts import ENDING, left_to_the_loop

T = TypeVar("T")


def run(call: Call, work: Callable[[], Awaitable[T]]) -> T:
    """Run it to its end. Ctrl-C, SIGTERM and a closed terminal end it in order: what is open is closed."""
    ended: list[int] = []

    async def guarded() -> T:
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
        with left_to_the_loop():
            result = asyncio.run(guarded())
    except asyncio.CancelledError:
        if ended:
            raise SystemExit(128 + ended[0]) from None
        raise
    if call.settings.text("agent") is not None:
        # Once it is open, closing it notes that an agent called.
        _ = call.bus
    return result


def connected(call: Call) -> Bus:
    """The bus that the settings name, to be opened; where there is none that is an error. What it has to say goes to
    stderr, and nothing is resumed on the way."""
    settings = call.settings
    speak(call)
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
    """Open the bus, run this on it, and close it."""

    async def working() -> T:
        async with connected(call) as bus:
            return await work(bus)

    return run(call, working)


def with_bar(call: Call, title: str, work: Callable[[Bus, Report | None], Awaitable[T]]) -> T:
    """The same of what can tell how far it is, which people see."""

    async def working(bus: Bus) -> T:
        with bar(title, call) as report:
            return await work(bus, report)

    return on_bus(call, working)


def speak(call: Call) -> None:
    """What the bus logs are notes for people. Without what a monitor finds, which is the output itself, and what was
    cut off, which some commands say in the words of the command line."""
    log = logging.getLogger("agentbus")
    log.handlers[:] = [_Notes(call)]
    log.propagate = False


class _Notes(logging.Handler):
    def __init__(self, call: Call) -> None:
        super().__init__(logging.WARNING)
        self._call = call

    def emit(self, record: logging.LogRecord) -> None:
        told = record.funcName == "_publish" or record.name == "agentbus.recovery"
        if not told:
            self._call.note(f"agentbus: {record.getMessage()}")
