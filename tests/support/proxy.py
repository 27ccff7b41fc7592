"""A small TCP proxy in front of a server, which can cut connections where it hurts: around a COMMIT."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

_COMMITTED = b"C\x00\x00\x00\x0bCOMMIT\x00"
"""The server's word that it has committed."""


class Proxy:
    """Passes on what it gets. ``cut`` says what becomes of the next COMMIT: ``before``, it does not reach the server;
    ``after``, the server's answer does not reach the client."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self.cut: str | None = None
        self.cuts = 0
        self.port = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        server_reader, server_writer = await asyncio.open_unix_connection(self._target)
        back = asyncio.create_task(_pass(server_reader, writer))
        try:
            while data := await reader.read(65536):
                # A simple query, alone or as the last of a script.
                if self.cut and data[:1] == b"Q" and b"COMMIT" in data:
                    how, self.cut = self.cut, None
                    self.cuts += 1
                    back.cancel()
                    with suppress(asyncio.CancelledError):
                        await back
                    if how == "after":
                        server_writer.write(data)
                        answer = b""
                        while _COMMITTED not in answer:
                            answer += await server_reader.read(65536)
                    return
                server_writer.write(data)
                await server_writer.drain()
        except OSError:
            pass
        finally:
            back.cancel()
            for end in (writer, server_writer):
                end.transport.abort()
            self._tasks.discard(task)

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.transport.abort()


@asynccontextmanager
async def proxied(socket: Path) -> AsyncIterator[Proxy]:
    """A proxy on a port of its own, in front of a server's Unix socket."""
    proxy = Proxy(socket)
    server = await asyncio.start_server(proxy._serve, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        await proxy.close()
