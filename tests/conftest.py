"""Fixtures for every test: the engines, a fresh store on each, and a bus in fake time."""

from __future__ import annotations

import signal
import sqlite3
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Protocol

import asyncpg
import pytest

import agentbus
from agentbus.engine.postgres.address import parse
from agentbus.engine.postgres.connection import connect
from tests.support.clock import FakeClock
from tests.support.postgres import Schemas, at_schema

pytest_plugins = ["tests.support.figures"]


def pytest_configure() -> None:
    # In the background of a shell SIGINT and SIGQUIT are ignored, under nohup SIGHUP; by what tests start too, since a
    # process inherits what is ignored.
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


class Engine(Protocol):
    """One fresh store, on which any number of buses can be opened, at once or one after the other."""

    @property
    def url(self) -> str: ...

    def connect(self, **options: Any) -> agentbus.Bus:
        """A bus to be used with ``async with``; in the test's fake time unless another clock is given."""

    async def tamper(self, statement: str) -> bool:
        """Somebody writes with another program; whether the tables took it."""


class SQLiteStore:
    """A directory of its own."""

    def __init__(self, directory: Path, clock: FakeClock) -> None:
        self.url = str(directory)
        self._directory = directory
        self._clock = clock

    def connect(self, **options: Any) -> agentbus.Bus:
        clock = options.setdefault("clock", self._clock)
        bus = agentbus.connect(self._directory, **options)
        if isinstance(clock, FakeClock):
            clock.attach(bus)
        return bus

    async def tamper(self, statement: str) -> bool:
        connection = sqlite3.connect(self._directory / "bus.db", isolation_level=None)
        try:
            connection.execute(statement)
        except sqlite3.IntegrityError:
            return False
        finally:
            connection.close()
        return True


class PostgresStore:
    """A schema of its own on the tests' server."""

    def __init__(self, url: str, clock: FakeClock) -> None:
        self.url = url
        self._clock = clock

    def connect(self, **options: Any) -> agentbus.Bus:
        clock = options.setdefault("clock", self._clock)
        bus = agentbus.connect(self.url, **options)
        if isinstance(clock, FakeClock):
            clock.attach(bus)
        return bus

    async def tamper(self, statement: str) -> bool:
        connection = await connect(parse(self.url))
        try:
            await connection.execute(statement)
        except asyncpg.DataError:
            return False
        except asyncpg.IntegrityConstraintViolationError:
            return False
        finally:
            await connection.close()
        return True


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def clock() -> FakeClock:
    """The time of this test."""
    return FakeClock()


@pytest.fixture(scope="session")
def schemas() -> Iterator[Schemas]:
    """Empty buses on a server, which is started for the first test that wants one."""
    found = Schemas()
    yield found
    found.close()


@pytest.fixture(params=["sqlite", "postgres"])
def engine(request: pytest.FixtureRequest, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """Each engine in turn, with an empty store."""
    # Not tmp_path: a short path leaves room for the doorbells beside the database.
    with tempfile.TemporaryDirectory(prefix="agentbus-test-") as directory:
        if request.param == "sqlite":
            yield SQLiteStore(Path(directory) / "bus", clock)
            return
        monkeypatch.setenv("XDG_STATE_HOME", directory)
        schemas: Schemas = request.getfixturevalue("schemas")
        name = schemas.take()
        yield PostgresStore(at_schema(schemas.url, name), clock)
        schemas.give_back(name)


@pytest.fixture
async def bus(engine: Engine) -> AsyncIterator[agentbus.Bus]:
    """An open bus in fake time."""
    async with engine.connect() as bus:
        yield bus
