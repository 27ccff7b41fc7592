"""Start Python processes by forking one that has imported and used the package: 10 ms instead of 400.

Each is a process of its own, with its own pid, streams, environment and session, and a child of the test: it can be
stopped, killed and awaited like any other. It ends as an interpreter ends, with its teardown and by the same signals.
"""

from __future__ import annotations

import asyncio
import atexit
import ctypes
import gc
import json
import os
import pkgutil
import runpy
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
_PR_SET_CHILD_SUBREAPER = 36
_PACKAGES = ("core", "errors", "records", "operations", "engine", "api", "sync")
_LENGTH = struct.Struct("!I")


class Popen(subprocess.Popen[Any]):
    """``python -m module arguments…`` in a session of its own, forked from a process that has the package loaded.

    Any other command line, and any on another system than Linux, is started as usual.
    """

    def _execute_child(self, *given: Any) -> None:
        args, directory, environment, streams, session = given[0], given[5], given[6], given[10:16], given[21]
        words = [os.fsdecode(word) for word in args]
        if sys.platform != "linux" or words[:2] != [sys.executable, "-m"] or not session or Path(directory) != ROOT:
            super()._execute_child(*given)  # type: ignore[misc]
            return
        environment = dict(os.environ if environment is None else environment)
        ours = [streams[0], streams[3], streams[5]]
        self.pid = _zygote.fork(words[2], words[3:], environment, ours)
        self._child_created = True
        self._close_pipe_fds(*streams)  # type: ignore[attr-defined]


class _Zygote:
    """The process that is forked. It is started when it is first needed, and ends with this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def fork(self, module: str, arguments: list[str], environment: dict[str, str], streams: list[int]) -> int:
        """Return the pid of a new child of this process, with these descriptors as its standard streams."""
        order = {
            "module": module,
            "arguments": arguments,
            "environment": environment,
            "umask": _umask(),
        }
        data = json.dumps(order).encode("utf-8", "surrogateescape")
        with self._lock:
            connection = self._socket or self._start()
            libc = ctypes.CDLL(None)
            # An orphan becomes a child of this process, and only this one: its forks are not ours to await.
            libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            try:
                socket.send_fds(connection, [_LENGTH.pack(len(data))], streams)
                connection.sendall(data)
                answer = connection.recv(_LENGTH.size, socket.MSG_WAITALL)
            finally:
                libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        if not answer:
            raise RuntimeError("the process to be forked has ended")
        (pid,) = _LENGTH.unpack(answer)
        return int(pid)

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.zygote", str(theirs.fileno())],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
        theirs.close()
        self._socket = ours
        atexit.register(self._stop)
        return ours

    def _stop(self) -> None:
        if self._socket is not None and self._process is not None:
            self._socket.close()
            self._process.wait()


_zygote = _Zygote()


def _umask() -> int:
    """Read it without changing it: another thread may create a file meanwhile."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as status:
        return next(int(line.split()[1], 8) for line in status if line.startswith("Umask"))


# In the process that is forked


class _Order(NamedTuple):
    module: str
    arguments: list[str]


def _serve(connection: socket.socket) -> _Order | None:
    """Return in each process that was forked, with what it is to run; and without an order at the end."""
    while True:
        head, streams, _, _ = socket.recv_fds(connection, _LENGTH.size, 3)
        if not head:
            return None
        (length,) = _LENGTH.unpack(head)
        order = json.loads(connection.recv(length, socket.MSG_WAITALL))
        # The one in between ends at once: its child is an orphan then, and given to the test.
        reading, writing = os.pipe()
        between = os.fork()
        if between == 0:
            pid = os.fork()
            if pid:
                os.write(writing, _LENGTH.pack(pid))
                os._exit(0)
            for descriptor in (reading, writing, connection.detach()):
                os.close(descriptor)
            return _become(order, streams)
        os.close(writing)
        pid_of_child = os.read(reading, _LENGTH.size)
        os.close(reading)
        os.waitpid(between, 0)
        for descriptor in streams:
            os.close(descriptor)
        connection.sendall(pid_of_child)


def _become(order: dict[str, Any], streams: list[int]) -> _Order:
    os.setsid()
    os.umask(order["umask"])
    os.environ.clear()
    os.environ.update(order["environment"])
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
        os.close(descriptor)
    # Their predecessors have read and written nothing.
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", 1, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    return _Order(order["module"], order["arguments"])


def _import_package() -> None:
    for package in _PACKAGES:
        name = f"agentbus.{package}"
        for found in pkgutil.walk_packages(import_module(name).__path__, f"{name}."):
            import_module(found.name)
    import_module("tests.support.processes")


async def _use(directory: str) -> None:
    """Use a bus once: queries are read and modules imported when they are first needed."""
    import agentbus

    async with (
        agentbus.connect(directory) as bus,
        bus.session("warming") as session,
        session.agent("a", type="worker") as agent,
    ):
        await agent.send("a", "note", 1)
        message = await agent.receive()
        assert message is not None
        async with message as unit:
            unit.reply(message, "note", 1)
            unit.state.set("k", 1)
            unit.checkpoint("c", 1)
        await bus.stats()


def _warm_up() -> None:
    with tempfile.TemporaryDirectory(prefix="bus-") as directory:
        asyncio.run(_use(directory))
    for thread in threading.enumerate():
        if thread is not threading.current_thread():
            thread.join()


def _main(descriptor: str) -> None:
    _import_package()
    _warm_up()
    gc.collect()
    gc.freeze()
    order = _serve(socket.socket(fileno=int(descriptor)))
    if order is not None:
        sys.argv[:] = [order.module, *order.arguments]
        runpy.run_module(order.module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main(sys.argv[1])
