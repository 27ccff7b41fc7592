"""Python processes without the start of an interpreter: a fork server with the package imported.

``Popen`` is ``subprocess.Popen`` for these command lines, and does the same thing about ten times faster::

    Popen([COMMAND, *words], …)                 # the installed command
    Popen([sys.executable, "-c", program, …])
    Popen([sys.executable, "-m", module, …])
    Popen([sys.executable, "program.py", …])

``run`` is ``subprocess.run`` with it. The process is a child of the caller with its own pid, session, environment,
directory and streams, so signals, ``kill -9``, ``waitpid`` and ``getppid`` work as usual. Any other command line,
``preexec_fn``, ``pass_fds``, ``PYTHON…`` variables that the caller does not have itself, and platforms other than Linux
start a real interpreter. Do not use it where the start itself is tested: imports, signals during the start,
``/proc/PID/cmdline``, ``sys.flags``.

``search_path(environment)`` is a ``PATH`` with programs ``agentbus`` and ``python`` that do the same for shell scripts.
Their processes pass signals on, and the command ends with them; ``run``, ``demo`` and ``monitor`` become the installed
command, and ``python`` without a program the interpreter.

A server is started for the first process that needs it and ends with the process that started it. It has one thread
and no event loop when it forks.
"""

from __future__ import annotations

import asyncio
import atexit
import ctypes
import gc
import io
import marshal
import os
import pkgutil
import selectors
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
COMMAND = str(Path(sys.executable).with_name("agentbus"))
_CAN_FORK = sys.platform == "linux"
_PR_SET_CHILD_SUBREAPER = 36
_STARTUP = (b"LANG", b"LC_", b"PYTHON")
"""Prefixes of the variables that an interpreter reads when it starts."""
_FIRST = "import sys; sys.path[0] = {root!r}; from tests.support.zygote import serve; serve({control}, {listener})"
_SHIM = """#!{python} -IS
import _signal, _socket, marshal, posix, struct, sys
interpreter = {command!r} == {python!r} and "".join(sys.argv[1:2])[:1] == "-"
if interpreter or not sys.argv[1:] or sys.argv[1] in ("run", "demo", "monitor") or {{
    name: value for name, value in posix.environ.items() if name.startswith(b"PYTHON")
}} != {options!r}:
    posix.execv({command!r}, [{command!r}, *sys.argv[1:]])
mask = posix.umask(0)
posix.umask(mask)
server = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
server.connect({address!r})
for number in (1, 2, 3, 15):
    if _signal.getsignal(number) != _signal.SIG_IGN:
        _signal.signal(number, lambda number, frame: server.send(bytes([number])))
request = marshal.dumps(([{command!r}, *sys.argv[1:]], posix.getcwd(), posix.environ, mask, False))
fds = struct.pack("3i", 0, 1, 2)
server.sendmsg([struct.pack("!I", len(request))], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, fds)])
server.sendall(request)
code = int(server.recv(16) or 1)
if code < 0:
    if code != -9:
        _signal.signal(-code, _signal.SIG_DFL)
    posix.kill(posix.getpid(), -code)
posix._exit(code)
"""

Request = tuple[list[str], str, dict[bytes, bytes], int, bool]
"""The words, the directory, the environment, the umask, and whether it leads a session."""


# In the process that starts others


class Popen(subprocess.Popen[Any]):
    """A process, forked from a server where that is the same."""

    def _execute_child(self, *given: Any) -> None:
        args, executable, preexec, _, pass_fds, cwd, env = given[:7]
        streams, (gid, gids, uid, umask, session) = given[10:16], given[17:22]
        environment = os.environb if env is None else {os.fsencode(name): os.fsencode(env[name]) for name in env}
        words = [os.fsdecode(word) for word in args] if isinstance(args, list | tuple) else []
        special = (executable, preexec, gid, gids, uid, *pass_fds, *(number for number in given[22:] if number != -1))
        if any(one not in (None, ()) for one in special) or not _can_fork(words, environment):
            super()._execute_child(*given)  # type: ignore[misc]
            return
        if umask < 0:
            umask = os.umask(0)
            os.umask(umask)
        request = (words, os.path.abspath(os.fsdecode(cwd or ".")), dict(environment), umask, bool(session))
        ours = [stream if stream >= 0 else number for number, stream in enumerate((streams[0], streams[3], streams[5]))]
        self.pid = _server(environment).fork(request, ours)
        self._child_created = True
        self._close_pipe_fds(*streams)  # type: ignore[attr-defined]


def run(
    args: Sequence[str | bytes], *, input: bytes | None = None, timeout: float, **options: Any
) -> subprocess.CompletedProcess[bytes]:
    """Run a command to its end, whatever its exit code; its output is captured."""
    given = {"stdin": subprocess.DEVNULL if input is None else subprocess.PIPE, **options}
    with Popen(list(args), stdout=subprocess.PIPE, stderr=subprocess.PIPE, **given) as process:
        try:
            out, err = process.communicate(input, timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(args, process.returncode, out, err)


def search_path(environment: Mapping[str, str] = os.environ) -> str:
    """Return a ``PATH`` on which scripts with this environment find ``agentbus`` and ``python``."""
    found = f"{Path(COMMAND).parent}:{environment.get('PATH', os.defpath)}"
    if not _CAN_FORK:
        return found
    server = _server({os.fsencode(name): os.fsencode(value) for name, value in environment.items()})
    return f"{server.directory}:{found}"


def _can_fork(words: list[str], environment: Mapping[bytes, bytes]) -> bool:
    python = words[:1] == [sys.executable] and len(words) > 1 and (words[1] in {"-c", "-m"} or words[1][:1] != "-")
    options = _options(environment)
    return _CAN_FORK and (python or words[:1] == [COMMAND]) and options in ({}, _options(os.environb))


def _options(environment: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    return {name: value for name, value in environment.items() if name.startswith(b"PYTHON")}


_servers: dict[tuple[int, frozenset[tuple[bytes, bytes]]], _Server] = {}
_starting = threading.Lock()
_forking = threading.Lock()
"""Orphans become children of this process or not: a setting of the whole process."""


def _server(environment: Mapping[bytes, bytes]) -> _Server:
    """Return the server for an environment, by the variables that an interpreter reads when it starts."""
    startup = {name: value for name, value in environment.items() if name.startswith(_STARTUP)}
    key = os.getpid(), frozenset(startup.items())
    with _starting:
        if key not in _servers:
            _servers[key] = _Server(startup)
        return _servers[key]


class _Server:
    """The server, as the process sees it that started it."""

    def __init__(self, startup: dict[bytes, bytes]) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="zygote-")
        self.directory = Path(self._temporary.name)
        address = str(self.directory / "socket")
        options = _options(startup)
        for name, command in (("agentbus", COMMAND), ("python", sys.executable)):
            shim = self.directory / name
            shim.write_text(_SHIM.format(python=sys.executable, command=command, address=address, options=options))
            shim.chmod(0o755)
        self._socket, control = socket.socketpair()
        with control, socket.socket(socket.AF_UNIX) as listener:
            listener.bind(address)
            listener.listen(64)
            kept = {name: value for name, value in os.environb.items() if not name.startswith(_STARTUP)}
            program = _FIRST.format(root=str(ROOT), control=control.fileno(), listener=listener.fileno())
            self._process = subprocess.Popen(
                [sys.executable, "-c", program],
                stdin=subprocess.DEVNULL,
                env={**kept, **startup},
                pass_fds=[control.fileno(), listener.fileno()],
                cwd="/",
            )
        atexit.register(self._close, os.getpid())

    def fork(self, request: Request, streams: list[int]) -> int:
        """Return the pid of a new child of this process."""
        with _forking:
            prctl = ctypes.CDLL(None).prctl
            # The new process is an orphan, and becomes a child of this one while this is set.
            prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            try:
                _send(self._socket, request, streams)
                answer = self._socket.recv(16)
            finally:
                prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        if not answer:
            raise RuntimeError("the fork server has ended")
        return int(answer)

    def _close(self, owner: int) -> None:
        if os.getpid() == owner:
            self._socket.close()
            self._process.wait(30)
            self._temporary.cleanup()


def _send(to: socket.socket, request: Request, streams: list[int]) -> None:
    content = marshal.dumps(request)
    socket.send_fds(to, [struct.pack("!I", len(content))], streams)
    to.sendall(content)


def _receive(sender: socket.socket) -> tuple[Request, list[int]] | None:
    header, streams, _, _ = socket.recv_fds(sender, 4, 3)
    if not header:
        return None
    (left,) = struct.unpack("!I", header)
    content = b""
    while len(content) < left:
        part = sender.recv(left - len(content))
        if not part:
            _close(streams)
            return None
        content += part
    return marshal.loads(content), streams  # noqa: S302 - from a process of the same test


# In the server


def serve(control: int, listener: int) -> None:
    """Fork a process for each request, and return in it once its program has ended; return in the server with the end
    of the process that started it."""
    _preload()
    program = _Loop(socket.socket(fileno=control), socket.socket(fileno=listener)).run()
    if program is not None:
        program()


class _Loop:
    def __init__(self, control: socket.socket, listener: socket.socket) -> None:
        self._control = control
        self._listener = listener
        self._selector = selectors.DefaultSelector()
        self._selector.register(control, selectors.EVENT_READ)
        self._selector.register(listener, selectors.EVENT_READ)
        self._commands: dict[int, tuple[socket.socket, int]] = {}
        """Connections of shims and the descriptors of their processes, by pid."""

    def run(self) -> Callable[[], Any] | None:
        """Return the program to run, in a forked process."""
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._control:
                    received = _receive(self._control)
                    if received is None:
                        return None
                    pid = _fork_orphan()
                    if pid == 0:
                        return self._become(*received)
                    self._control.sendall(str(pid).encode())
                    _close(received[1])
                elif key.fileobj is self._listener:
                    self._selector.register(self._listener.accept()[0], selectors.EVENT_READ)
                elif isinstance(key.fileobj, socket.socket):
                    program = self._serve_shim(key.fileobj, key.data)
                    if program is not None:
                        return program
                else:
                    self._report(key.data)

    def _serve_shim(self, shim: socket.socket, pid: int | None) -> Callable[[], Any] | None:
        if pid is not None:
            # Its process has not been waited for, so the pid is still that of the command.
            numbers = b""
            with suppress(OSError):
                numbers = shim.recv(16)
            for number in numbers or [signal.SIGKILL]:
                os.kill(pid, number)
            if not numbers:
                self._selector.unregister(shim)
            return None
        received = _receive(shim)
        self._selector.unregister(shim)
        if received is None:
            shim.close()
            return None
        pid = os.fork()
        if pid == 0:
            shim.close()
            return self._become(*received)
        _close(received[1])
        self._selector.register(shim, selectors.EVENT_READ, pid)
        ended = os.pidfd_open(pid)
        self._commands[pid] = shim, ended
        self._selector.register(ended, selectors.EVENT_READ, pid)
        return None

    def _report(self, pid: int) -> None:
        shim, ended = self._commands.pop(pid)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        self._selector.unregister(ended)
        os.close(ended)
        with suppress(KeyError):
            self._selector.unregister(shim)
        with suppress(OSError):
            shim.sendall(str(code).encode())
        shim.close()

    def _become(self, request: Request, streams: list[int]) -> Callable[[], Any]:
        """Take the place of a process that was just started."""
        self._selector.close()
        for one in (self._control, self._listener, *(shim for shim, _ in self._commands.values())):
            one.close()
        _close([ended for _, ended in self._commands.values()])
        words, directory, environment, umask, session = request
        if session:
            os.setsid()
        os.umask(umask)
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        _close(streams)
        os.chdir(directory)
        for name in os.environb.keys() - environment.keys():
            del os.environb[name]
        os.environb.update(environment)
        time.tzset()
        tempfile.tempdir = None
        _open_streams()
        return _program(words)


def _close(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _fork_orphan() -> int:
    """Fork twice, so that the new process is a child of the nearest subreaper. Return its pid, and 0 in itself."""
    reading, writing = os.pipe()
    between = os.fork()
    if between == 0:
        pid = os.fork()
        if pid:
            os.write(writing, str(pid).encode())
            os._exit(0)
        _close([reading, writing])
        return 0
    os.close(writing)
    os.waitpid(between, 0)
    pid = int(os.read(reading, 16))
    os.close(reading)
    return pid


def _preload() -> None:
    """Import the package and what its commands and the tests import later, and use a bus once."""
    for name in ("asyncio", "asyncpg", "ctypes", "importlib.metadata", "logging.handlers", "rich.console", "sqlite3"):
        with suppress(ImportError):
            import_module(name)
    package = import_module("agentbus")
    for module in pkgutil.walk_packages(package.__path__, "agentbus."):
        # The frameworks of adapters take seconds to import.
        if not module.name.endswith("__main__") and not module.name.startswith("agentbus.integrations."):
            with suppress(ImportError):
                import_module(module.name)
    import_module("tests.support.processes")
    with tempfile.TemporaryDirectory(prefix="bus-") as directory:
        asyncio.run(_use(directory))
    for thread in threading.enumerate():
        if thread is not threading.current_thread():
            thread.join()
    gc.collect()
    gc.freeze()


async def _use(directory: str) -> None:
    """Use a bus: queries are read and modules imported when they are first needed."""
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


def _open_streams() -> None:
    """Open the standard streams as an interpreter does when it starts."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        old = getattr(sys, name)
        unbuffered = number > 0 and old.write_through
        binary = open(number, "wb" if number else "rb", buffering=0 if unbuffered else -1, closefd=False)  # noqa: SIM115
        stream = io.TextIOWrapper(
            binary,
            encoding=old.encoding,
            errors=old.errors,
            newline=None if number == 0 else "\n",
            line_buffering=number == 2 or (number == 1 and os.isatty(1)),
            write_through=unbuffered,
        )
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _program(words: list[str]) -> Callable[[], Any]:
    main: dict[str, Any] = sys.modules["__main__"].__dict__
    if words[0] == COMMAND:
        from agentbus.cli.entry_point import script

        sys.argv[:] = words
        sys.path[0] = os.path.dirname(COMMAND)
        return script
    signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.set_threshold(700, 10, 10)
    if words[1] == "-m":
        from runpy import _run_module_as_main  # type: ignore[attr-defined]

        sys.argv[:], sys.path[0] = [words[1], *words[3:]], os.getcwd()
        return lambda: _run_module_as_main(words[2])
    if words[1] == "-c":
        sys.argv[:], sys.path[0], name = [words[1], *words[3:]], "", "<string>"
        source: str | bytes = words[2]
    else:
        sys.argv[:], sys.path[0], name = words[1:], os.path.dirname(os.path.abspath(words[1])), words[1]
        source = Path(name).read_bytes()
        main["__file__"] = name
    del main["sys"], main["serve"]
    return lambda: exec(compile(source, name, "exec", dont_inherit=True), main)  # noqa: S102 - as the interpreter does
