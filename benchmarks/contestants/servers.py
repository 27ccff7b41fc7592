"""Start and stop the servers of the benchmarks: on loopback, each in its own temporary directory.

Programs are searched next to the interpreter, where wheels install them, and in the PATH. Child processes get the
addresses through the environment.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.postgres import Server as PostgresServer
from tests.support.postgres import binaries

_ADDRESS = "AGENTBUS_BENCH_{}"
_PR_SET_PDEATHSIG = 1
_running: dict[str, Server] = {}


@dataclass
class Server:
    """A server started by the benchmarks."""

    process: subprocess.Popen[bytes]
    directory: Path
    remove: Callable[[], None] | None = None

    def stop(self) -> None:
        if self.remove is not None:
            self.remove()
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.directory, ignore_errors=True)


def program(name: str) -> Path | None:
    """Return the path of a program, or None."""
    found = shutil.which(name, path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
    return None if found is None else Path(found).resolve()


def redis(fsync: str) -> str:
    """Return the address of a Redis with an append-only file; ``fsync`` is always or everysec."""

    def start(directory: Path) -> tuple[Server, str]:
        port = _free_port()
        words = ["--port", port, "--bind", "127.0.0.1", "--dir", directory, "--save", "", "--appendonly", "yes"]
        process = _start_process(program("redis-server"), [*words, "--appendfsync", fsync])
        _wait_for(process, port)
        return Server(process, directory), f"redis://127.0.0.1:{port}"

    return _address(f"REDIS_{fsync.upper()}", start)


def nats(sync: str) -> str:
    """Return the address of a NATS with JetStream; ``sync`` is always, or the default interval."""

    def start(directory: Path) -> tuple[Server, str]:
        port = _free_port()
        settings = directory / "nats.conf"
        settings.write_text(f'jetstream {{ store_dir: "{directory}", sync_interval: "{sync}" }}\n')
        process = _start_process(program("nats-server"), ["-a", "127.0.0.1", "-p", port, "-c", settings])
        _wait_for(process, port)
        return Server(process, directory), f"nats://127.0.0.1:{port}"

    return _address(f"NATS_{sync.upper()}", start)


def postgres() -> str:
    """Return the URL of a PostgreSQL with fsync on a Unix socket, or ``AGENTBUS_BENCH_POSTGRES_URL`` if set."""

    def start(directory: Path) -> tuple[Server, str]:
        settings = {"fsync": "on", "full_page_writes": "on", "autovacuum": "on"}
        server = PostgresServer(**settings, shared_buffers="256MB", max_wal_size="4GB")
        assert server._process is not None
        return Server(server._process, directory, server.remove), server.url

    return _address("POSTGRES_URL", start)


def postgres_program() -> Path | None:
    try:
        return binaries() / "postgres"
    except RuntimeError:
        return None


def has_postgres() -> bool:
    return postgres_program() is not None or "AGENTBUS_BENCH_POSTGRES_URL" in os.environ


def stop_all() -> None:
    while _running:
        name, server = _running.popitem()
        os.environ.pop(_ADDRESS.format(name), None)
        server.stop()


def cpu(name: str) -> float:
    """Return the CPU seconds of a server and its children so far; 0 if unknown."""
    server = _running.get(name)
    if server is None:
        return 0.0
    nanoseconds = 0
    with suppress(OSError):
        # Of connections that have ended: the server has waited for their processes.
        ended = Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split()[13:15]
        nanoseconds = sum(map(int, ended)) * (10**9 // os.sysconf("SC_CLK_TCK"))
    for process in _processes(server):
        # A process may end meanwhile. schedstat, because ticks of 10 ms are too coarse for an idle server.
        with suppress(OSError, ValueError, IndexError):
            threads = (process / "task").glob("*/schedstat")
            nanoseconds += sum(int(thread.read_text().split()[0]) for thread in threads)
    return nanoseconds / 1e9


def memory(name: str) -> float:
    """Return the megabytes of a server and its children, shared pages counted once; 0 if unknown."""
    server = _running.get(name)
    kilobytes = 0
    for process in [] if server is None else _processes(server):
        with suppress(OSError, ValueError, IndexError):
            lines = (process / "smaps_rollup").read_text().splitlines()
            kilobytes += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return kilobytes / 1024


def _processes(server: Server) -> Iterator[Path]:
    """Yield the directories in /proc of a server and its children."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError, IndexError):
            parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
            if server.process.pid in (int(process.name), parent):
                yield process


def addresses() -> dict[str, str]:
    """Return the addresses of running servers, for the environment of another process."""
    return {name: value for name, value in os.environ.items() if name.startswith(_ADDRESS.format(""))}


def _address(name: str, start: Callable[[Path], tuple[Server, str]]) -> str:
    variable = _ADDRESS.format(name)
    if variable not in os.environ:
        # The path of a Unix socket must be short.
        directory = Path(tempfile.mkdtemp(prefix="ab-"))
        if not _running:
            atexit.register(stop_all)
        try:
            _running[name], os.environ[variable] = start(directory)
        except BaseException:
            shutil.rmtree(directory, ignore_errors=True)
            raise
    return os.environ[variable]


def _start_process(path: Path | None, words: Sequence[Any]) -> subprocess.Popen[bytes]:
    assert path is not None
    with open(os.devnull, "r+b") as nothing:
        return subprocess.Popen(
            [str(path), *map(str, words)],
            preexec_fn=_die_with_parent if sys.platform == "linux" else None,  # noqa: PLW1509
            cwd="/", start_new_session=True, stdin=nothing, stdout=nothing, stderr=nothing,
        )  # fmt: skip


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def _wait_for(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + 20
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            _alive(process, deadline)
        else:
            return


def _alive(process: subprocess.Popen[bytes], deadline: float) -> None:
    if process.poll() is not None or time.monotonic() > deadline:
        raise RuntimeError(f"{process.args!r} did not start")
    time.sleep(0.02)
