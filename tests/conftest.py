"""Fixtures for every test: the engines, a new store on each, and a bus in fake time."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import shutil
import signal
import sqlite3
import sys
import tempfile
import threading
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import closing, nullcontext
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import asyncpg
import pytest

import agentbus
from agentbus.engine.postgres.connection import connect
from agentbus.engine.postgres.server import parse
from agentbus.engine.sqlite import migration
from agentbus.engine.sqlite.connection import migrations
from agentbus.engine.sqlite.paths import Home
from tests.support.clock import FakeClock
from tests.support.connections import Connections
from tests.support.postgres import Schemas, at_schema
from tests.support.temporary import use_memory

pytest_plugins = ["tests.support.figures"]


def pytest_configure() -> None:
    use_memory()
    # What the collection makes is kept; looking for garbage in it takes a tenth of its time.
    gc.disable()
    # The tests start hundreds of interpreters: each would compile the package.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    # A trace that the tests run in is none of theirs.
    for name in ("AGENTBUS_OTEL", "TRACEPARENT", "TRACESTATE"):
        os.environ.pop(name, None)
    sys.dont_write_bytecode = False
    # In the background of a shell SIGINT and SIGQUIT are ignored, under nohup SIGHUP; by what tests start too, since a
    # process inherits what is ignored.
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items[:] = [item for item in items if not _is_repeated(item)]


def _is_repeated(item: pytest.Item) -> bool:
    """Tell whether a test that one engine is enough for is to run on another."""
    case = getattr(item, "callspec", None)
    on_postgres = case is not None and case.params.get("engine") == "postgres"
    return on_postgres and item.get_closest_marker("one_engine") is not None


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Exclude what the collection made from every later run of the garbage collector."""
    gc.collect()
    gc.freeze()
    gc.enable()
    # What is left is small, and most of it is freed without the collector.
    gc.set_threshold(10_000, 20, 20)


class Engine(Protocol):
    """A new store, on which any number of buses can be opened, concurrently or one after the other."""

    @property
    def url(self) -> str: ...

    def connect(self, **options: Any) -> agentbus.Bus:
        """Return a bus to be used with ``async with``; in the test's fake time unless another clock is given."""

    async def tamper(self, statement: str) -> bool:
        """Write with another program; return False if the tables refuse it."""


class SQLiteStore:
    """A directory of its own.

    The first bus finds a copy of ``template`` there, the directory of an empty bus: making the tables takes longer.
    """

    def __init__(self, directory: Path, clock: FakeClock, template: Path | None = None) -> None:
        self.url = str(directory)
        self._directory = directory
        self._clock = clock
        self._template = template

    def connect(self, **options: Any) -> agentbus.Bus:
        if self._template is not None and options.get("create", True) and not self._directory.exists():
            copy_bus(self._template, self._directory)
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


def copy_bus(template: Path, directory: Path) -> None:
    """Copy the directory of a closed bus, and give the copy an identity of its own: another text of the same length."""
    before, after = _database(template / "bus.db")
    shutil.copytree(template, directory, ignore=_without_database, copy_function=copy_file)
    with open(directory / "bus.db", "wb", opener=_private) as file:
        file.writelines((before, uuid.uuid4().hex[:16].encode(), after))


def _without_database(_: str, names: list[str]) -> list[str]:
    assert "bus.db-wal" not in names
    return ["bus.db"]


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


@cache
def _database(database: Path) -> tuple[bytes, bytes]:
    """Return what is before and behind the identity of a bus in its database."""
    with closing(sqlite3.connect(database)) as connection:
        ((identity,),) = connection.execute("SELECT value FROM meta WHERE key = 'bus'").fetchall()
    assert database.stat().st_mode & 0o777 == 0o600
    before, after = database.read_bytes().split(identity.encode())
    return before, after


def copy_file(source: str, target: str) -> None:
    """Copy a file; the disk reserve, 4 MB, as a hole of the same size."""
    if not source.endswith("bus.ballast"):
        shutil.copy2(source, target)
        return
    with open(target, "wb") as file:
        file.truncate(os.stat(source).st_size)
    shutil.copystat(source, target)


@pytest.fixture(scope="session", autouse=True)
def tables() -> Iterator[None]:
    """Run the migrations of a new bus on SQLite once, and copy their result: they take longer than most tests do. Those
    of an older bus, and those that a test changes, are run."""
    original, known, one_at_a_time = migration.run, migrations(), threading.Lock()
    with closing(sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)) as made:

        def run(connection: sqlite3.Connection, home: Home, found: int, steps: Mapping[int, str]) -> None:
            if found or steps is not known:
                original(connection, home, found, steps)
                return
            # A copy would wait for a lock for any time.
            connection.execute("BEGIN EXCLUSIVE")
            connection.rollback()
            with one_at_a_time:
                made.backup(connection)
            connection.execute("UPDATE meta SET value = ? WHERE key = 'bus'", [uuid.uuid4().hex[:16]])

        migration.build(made, [step for _, step in sorted(known.items())])
        made.execute(f"PRAGMA user_version = {max(known):d}")
        migration.run = run
        yield
        migration.run = original


@pytest.fixture(autouse=True)
def log() -> Iterator[None]:
    """Restore the logger of the package: a command that a test runs in this process redirects it."""
    logger = logging.getLogger("agentbus")
    before = logger.handlers[:], logger.propagate, logger.level
    yield
    logger.handlers[:], logger.propagate, logger.level = before


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def connections() -> Connections | None:
    """Server connections to be used again; none unless a directory of tests overrides this."""
    return None


@pytest.fixture(scope="session")
def template() -> Iterator[Path]:
    """The directory of an empty bus that was closed."""
    with tempfile.TemporaryDirectory(prefix="agentbus-test-") as directory:
        bus = Path(directory) / "bus"
        asyncio.run(_make(bus))
        with closing(sqlite3.connect(bus / "bus.db", isolation_level=None)) as connection:
            # As if no process had opened it.
            connection.executescript(
                "DELETE FROM processes; DELETE FROM sqlite_sequence WHERE name = 'processes';"
                "DELETE FROM meta WHERE key <> 'bus'; UPDATE counters SET value = 0"
            )
        yield bus


async def _make(directory: Path) -> None:
    async with agentbus.connect(directory, clock=FakeClock()):
        pass


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
            yield SQLiteStore(Path(directory) / "bus", clock, request.getfixturevalue("template"))
            return
        monkeypatch.setenv("XDG_STATE_HOME", directory)
        schemas: Schemas = request.getfixturevalue("schemas")
        connections: Connections | None = request.getfixturevalue("connections")
        name = schemas.take()
        with nullcontext() if connections is None else connections.reused():
            yield PostgresStore(at_schema(schemas.url, name), clock)
        schemas.give_back(name)


@pytest.fixture
async def bus(engine: Engine) -> AsyncIterator[agentbus.Bus]:
    """An open bus in fake time."""
    async with engine.connect() as bus:
        yield bus
