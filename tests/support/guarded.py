"""A server that asks for passwords, over TCP: for tests of what is said to whom."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import asyncpg

from tests.support.postgres import Server

SECRET = "hunter2-secret"


@contextmanager
def guarded_server() -> Iterator[Server]:
    """A server of its own. ``guest`` may come in with a password, and may make nothing in the database."""
    server = Server(listen_addresses="127.0.0.1", port=str(free_port()))
    try:
        (server.directory / "data" / "pg_hba.conf").write_text(
            "local all all trust\nhost all all 127.0.0.1/32 scram-sha-256\n"
        )
        run(server.url, "SELECT pg_reload_conf()", "CREATE ROLE guest LOGIN PASSWORD '" + SECRET + "'",
            "REVOKE CREATE ON DATABASE postgres FROM PUBLIC")  # fmt: skip
        yield server
    finally:
        server.remove()


def guest(server: Server, password: str = SECRET, database: str = "postgres", more: str = "") -> str:
    return f"postgresql://guest:{password}@127.0.0.1:{server.port}/{database}{more}"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run(url: str, *statements: str) -> list[Any]:
    """Run statements on a server, as a client that does not use the bus."""

    async def work() -> list[Any]:
        connection = await asyncpg.connect(url)
        try:
            return [await connection.fetch(statement) for statement in statements]
        finally:
            await connection.close()

    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(work())
    finally:
        loop.close()
