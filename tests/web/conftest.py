"""A server on each engine, in the event loop of the test, and its clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from agentbus import Bus
from tests.web.client import Client

Serving = Callable[..., AbstractAsyncContextManager[Client]]


@pytest.fixture(autouse=True)
def state_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The state of the user: tokens and sessions."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path


@asynccontextmanager
async def serving(bus: Bus, **options: Any) -> AsyncIterator[Client]:
    """Serve a bus for the length of a block; the client has the token of the owner."""
    from agentbus.web.server import Ready, ServerSettings, serve

    settings = ServerSettings(**{"port": 0, "monitor": False, **options})
    ready: asyncio.Future[Ready] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(serve(bus, settings, "ada", ready.set_result))
    try:
        waiting: set[asyncio.Future[Any]] = {task, ready}
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
        found = await ready
        yield Client(found.port, found.login.partition("#token=")[2], base=settings.base_path)
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@pytest.fixture
async def client(bus: Bus) -> AsyncIterator[Client]:
    """A client with the token of the owner, of a server on an open bus."""
    async with serving(bus) as client:
        yield client


@pytest.fixture
def token(bus: Bus) -> Callable[[str], Awaitable[str]]:
    """Create a token with a role."""

    async def create(role: str) -> str:
        return (await bus.tokens.create(role, operator="grace")).secret

    return create


async def eventually(done: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not done():  # noqa: ASYNC110 - other tasks of the loop do it
            await asyncio.sleep(0.005)
