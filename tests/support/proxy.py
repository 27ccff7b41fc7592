"""A small TCP proxy in front of a server, which can cut connections where it hurts: around a COMMIT, or a
statement that commits by itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

_AT_COMMIT = frozenset({"before", "after", "delayed"})
_UNSENT = frozenset({"before", "unsent"})
DELAY = 0.5
"""Seconds after which the client gets an answer that is ``delayed``."""
_READY = b"Z\x00\x00\x00\x05I"
"""The server's word that it has ended a transaction."""


class Proxy:
    """Passes on what it gets. ``cut`` says what becomes of the next COMMIT: ``before``, it does not reach the server;
    ``after``, the server's answer does not reach the client; ``delayed``, it does late. Or of the next statement with
    parameters: ``unsent`` and ``unheard`` are the same for that, and with ``late`` it reaches the server only when the
    proxy is closed."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self.cut: str | None = None
        self.cuts = 0
        self.port = 0
        self.refuses = False
        """Accept no further connection."""
        self.answers: list[bytes] = []
        """Answers that the client never got."""
        self._closing = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if self.refuses:
            writer.transport.abort()
            return
        self._tasks.add(task)
        server_reader, server_writer = await asyncio.open_unix_connection(self._target)
        back = asyncio.create_task(pass_on(server_reader, writer))
        try:
            while data := await reader.read(65536):
                # A simple query, alone or as the last of a script; or a statement with parameters.
                commits = data[:1] == b"Q" and b"COMMIT" in data if self.cut in _AT_COMMIT else data[:1] == b"B"
                if self.cut and commits:
                    how, self.cut = self.cut, None
                    self.cuts += 1
                    back.cancel()
                    with suppress(asyncio.CancelledError):
                        await back
                    if how == "late":
                        writer.transport.abort()
                        await self._closing.wait()
                    if how not in _UNSENT:
                        server_writer.write(data)
                        answer = b""
                        while not answer.endswith(_READY):
                            answer += await server_reader.read(65536)
                        self.answers.append(answer)
                    if how != "delayed":
                        return
                    await asyncio.sleep(DELAY)
                    writer.write(answer)
                    back = asyncio.create_task(pass_on(server_reader, writer))
                    continue
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
        self._closing.set()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=0.5)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass on all data from one end to the other, then close that."""
    with suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.transport.abort()


def socket_and_schema(url: str) -> tuple[Path, str]:
    """Where the server of a test listens, and the schema of the test."""
    options = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
    return Path(options["host"]) / f".s.PGSQL.{options['port']}", options["schema"]


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
