"""Fixtures for every test: the engines, a fresh store on each, and a bus in fake time."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

import agentbus
from tests.support.clock import FakeClock

pytest_plugins = ["tests.support.figures"]


def pytest_configure() -> None:
    # In the background of a shell Ctrl-C is ignored, under nohup the end of a terminal; by what tests start too.
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


class Engine(Protocol):
    """One fresh store, on which any number of buses can be opened, at once or one after the other."""

    def connect(self, **options: Any) -> agentbus.Bus:
        """A bus to be used with ``async with``; in the test's fake time unless another clock is given."""


class SQLiteStore:
    """A directory of its own."""

    def __init__(self, directory: Path, clock: FakeClock) -> None:
        self._directory = directory
        self._clock = clock

    def connect(self, **options: Any) -> agentbus.Bus:
        clock = options.setdefault("clock", self._clock)
        bus = agentbus.connect(self._directory, **options)
        if isinstance(clock, FakeClock):
            clock.attach(bus)
        return bus


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def clock() -> FakeClock:
    """The time of this test."""
    return FakeClock()


@pytest.fixture(params=["sqlite"])
def engine(request: pytest.FixtureRequest, clock: FakeClock) -> Iterator[Engine]:
    """Each engine in turn, with an empty store."""
    assert request.param == "sqlite"
    # Not tmp_path: a short path leaves room for the doorbells beside the database.
    with tempfile.TemporaryDirectory(prefix="agentbus-test-") as directory:
        yield SQLiteStore(Path(directory) / "bus", clock)


@pytest.fixture
async def bus(engine: Engine) -> AsyncIterator[agentbus.Bus]:
    """An open bus in fake time."""
    async with engine.connect() as bus:
        yield bus
