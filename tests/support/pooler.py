"""Connection poolers in front of a server: PgBouncer, where it is installed, and one that only does what gives poolers
away, which is everywhere."""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
import socket
import struct
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.support.guarded import free_port
from tests.support.proxy import pass_on

PGBOUNCER = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin")
_PATIENCE = 30.0


@contextmanager
def pgbouncer(directory: Path, mode: str, *, ignored: str = "") -> Iterator[str]:
    """A PgBouncer in front of the server whose socket is in ``directory``; the URL to connect to."""
    assert PGBOUNCER is not None
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="abpb-", dir="/tmp") as folder:
        (Path(folder) / "pgbouncer.ini").write_text(
            f"[databases]\npostgres = host={directory} port=5432 dbname=postgres user=agentbus\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\n"
            f"pool_mode = {mode}\ndefault_pool_size = 20\nignore_startup_parameters = {ignored}\n"
        )
        identity: dict[str, Any] = {}
        if os.getuid() == 0:
            nobody = pwd.getpwnam("nobody")
            identity = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
            shutil.chown(folder, nobody.pw_uid)
        process = subprocess.Popen(
            [PGBOUNCER, "-q", f"{folder}/pgbouncer.ini"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/", **identity,
        )  # fmt: skip
        try:
            _wait(process, port)
            yield f"postgresql://agentbus@127.0.0.1:{port}/postgres"
        finally:
            process.terminate()
            process.wait(_PATIENCE)


def _wait(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline and process.poll() is None:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.02)
    raise RuntimeError(f"PgBouncer did not start: exit {process.poll()}")


@asynccontextmanager
async def pretended(server: Path, *, ignoring: bool, renaming: bool) -> AsyncIterator[int]:
    """A pooler that passes everything on to the server's socket, but may leave out every start-up parameter that
    PgBouncer knows nothing of, and may make up the number of the process. The port that it listens on."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_unix_connection(server)
        (length,) = struct.unpack("!i", await reader.readexactly(4))
        start = await reader.readexactly(length - 4)
        if start == struct.pack("!i", _SSL_REQUEST):
            writer.write(b"N")
            (length,) = struct.unpack("!i", await reader.readexactly(4))
            start = await reader.readexactly(length - 4)
        start = _without_settings(start) if ignoring else start
        back.write(struct.pack("!i", len(start) + 4) + start)
        forth = asyncio.create_task(pass_on(reader, back))
        try:
            # Until the server is ready, message by message.
            kind = b""
            while kind != b"Z":
                kind = await there.readexactly(1)
                (length,) = struct.unpack("!i", await there.readexactly(4))
                body = await there.readexactly(length - 4)
                if kind == b"K" and renaming:
                    body = struct.pack("!i", 2**30) + body[4:]
                writer.write(kind + struct.pack("!i", length) + body)
            await pass_on(there, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            forth.cancel()
            writer.transport.abort()
            back.transport.abort()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield listener.sockets[0].getsockname()[1]
    finally:
        listener.close()


_SSL_REQUEST = 80877103


def _without_settings(start: bytes) -> bytes:
    words = start[4:].rstrip(b"\0").split(b"\0")
    pairs = zip(words[::2], words[1::2], strict=True)
    kept = [word for name, value in pairs if name in (b"user", b"database") for word in (name, value)]
    return start[:4] + b"\0".join(kept) + b"\0\0"
