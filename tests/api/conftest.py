"""Fixtures of the conformance suite."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from inspect import iscoroutinefunction

import pytest
from anyio._core._eventloop import reset_current_async_library, set_current_async_library

from agentbus import Bus, Session
from tests.api.copy_helpers import PAIRS, Places
from tests.support.clock import FakeClock
from tests.support.connections import Connections
from tests.support.postgres import Schemas, at_schema


@pytest.fixture(scope="package")
async def connections(anyio_backend: str) -> AsyncIterator[Connections]:
    """Keep one event loop for these tests, and the server connections that were opened on it."""
    connections = Connections()
    yield connections
    await connections.close()


@pytest.fixture(autouse=True)
def own_tasks(request: pytest.FixtureRequest, connections: Connections) -> Iterator[None]:
    """Leave nothing of a test on the event loop for the next. A test that is no coroutine sees no event loop."""
    if iscoroutinefunction(request.function):
        yield
    else:
        token = set_current_async_library(None)
        yield
        reset_current_async_library(token)
    connections.end_tasks()


@pytest.fixture(params=PAIRS, ids="-to-".join)
def places(request: pytest.FixtureRequest, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> Iterator[Places]:
    taken: list[str] = []
    # Not tmp_path: a short path leaves room for the doorbells beside the database.
    with tempfile.TemporaryDirectory(prefix="agentbus-test-") as directory:
        monkeypatch.setenv("XDG_STATE_HOME", f"{directory}/state")

        def place(engine: str) -> str:
            if engine == "sqlite":
                taken.append("")
                return f"{directory}/bus-{len(taken)}"
            schemas: Schemas = request.getfixturevalue("schemas")
            taken.append(schemas.take())
            return at_schema(schemas.url, taken[-1])

        source, target = request.param
        nowhere = f"{directory}/nowhere"
        if target == "postgres":
            nowhere = at_schema(request.getfixturevalue("schemas").url, f"nowhere_{os.getpid()}")
        yield Places(place(source), place(target), clock, lambda: place(target), nowhere)
        for name in filter(None, taken):
            request.getfixturevalue("schemas").give_back(name)


@pytest.fixture
async def session(bus: Bus) -> AsyncIterator[Session]:
    """A session whose owner is in its block for the length of the test."""
    async with bus.session("planning", id="s") as session:
        yield session
        session.ended = True  # how a test leaves it is its business
