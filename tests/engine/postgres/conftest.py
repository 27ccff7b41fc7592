"""A schema of its own for each test, on a server that several buses write to at once."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack

import pytest

import agentbus
from tests.support.postgres import Schemas, at_schema


@pytest.fixture
def url(schemas: Schemas, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A bus that has not been used yet."""
    with tempfile.TemporaryDirectory(prefix="agentbus-test-") as directory:
        monkeypatch.setenv("XDG_STATE_HOME", directory)
        name = schemas.take()
        yield at_schema(schemas.url, name)
        schemas.give_back(name)


@pytest.fixture
async def buses(url: str) -> AsyncIterator[list[agentbus.Bus]]:
    """Four of them on one store, in real time: their transactions run side by side."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(agentbus.connect(url)) for _ in range(4)]
