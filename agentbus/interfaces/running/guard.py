"""The guard: a small process that starts the command, waits for it, and lets nothing of it survive.

It is forked before anything else happens, while there is one thread, so that it may do what is needed between
``fork`` and ``exec``. It is the leader of a session of its own: signals of the terminal, or to the group of
``agentbus run``, do not reach it. When ``agentbus run`` is gone, however that came, the socket between the two ends,
and the guard ends the command and its session. On Linux the command also dies at once with the guard
(PR_SET_PDEATHSIG); elsewhere ``agentbus run`` sees to it. What left the guard's session by ``setsid`` has chosen a life
of its own, and is left alone.
"""

from __future__ import annotations

import errno
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NoReturn

from agentbus.interfaces.running.streams import Streams

GRACE = 1.0
"""Seconds between SIGTERM and SIGKILL for what the command leaves behind, or when ``agentbus run`` is gone."""
LINUX = sys.platform == "linux"
_RESET = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE, signal.SIGTTOU)
_PDEATHSIG = 1


class Line:
    """JSON messages over a socket, a line each."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self._rest = b""

    def send(self, **message: Any) -> None:
        # Arguments of a command may be any bytes: they come as lone surrogates, which ASCII JSON keeps.
        self.socket.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> list[dict[str, Any]] | None:
        """What has come; None when the other end is gone."""
        try:
            chunk = self.socket.recv(65536)
        except ConnectionError:
            chunk = b""
        if not chunk:
            return None
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        return [json.loads(line) for line in lines]


class Guard:
    """The guard as ``agentbus run`` knows it. ``pid`` is also the number of its session."""

    def __init__(self, pid: int, line: Line) -> None:
        self.pid = pid
        self.line = line

    def start(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._tell(start=list(command), environment=dict(environment))

    def signal(self, number: int, *, group: bool) -> None:
        """Pass a signal on to the command, or to its whole group, if it is still there."""
        self._tell(signal=number, group=group)

    def terminal(self, taken: bool) -> None:
        """Whether our terminal is set raw: if we are killed, the guard sets it back."""
        self._tell(terminal=taken)

    def end(self) -> None:
        """Let it go; what is left of the command is ended. Returns when it is gone."""
        self.line.socket.close()
        with suppress(ChildProcessError):
            os.waitpid(self.pid, 0)

    def _tell(self, **message: Any) -> None:
        # A guard that was killed is noticed by whoever reads what it says.
        with suppress(OSError):
            self.line.send(**message)


def fork_guard(streams: Streams) -> Guard:
    """Start the guard. To be called before there are threads."""
    ignored = [number for number in _RESET if signal.getsignal(number) == signal.SIG_IGN and number != signal.SIGPIPE]
    die_with_parent = _dying_with_parent()
    ours, its = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            ours.close()
            streams.keep_inner()
            _Watch(Line(its), streams, ignored, die_with_parent).run()
            code = 0
        finally:
            os._exit(code)
    its.close()
    streams.keep_outer()
    return Guard(pid, Line(ours))


class _Watch:
    """What the guard does. One command at a time."""

    def __init__(
        self, line: Line, streams: Streams, ignored: Iterable[signal.Signals], die_with_parent: Callable[[], None]
    ) -> None:
        self._line = line
        self._streams = streams
        self._ignored = set(ignored)
        self._die_with_parent = die_with_parent
        self._command: int | None = None
        self._terminal_taken = False

    def run(self) -> None:
        os.setsid()
        for number in _RESET:
            signal.signal(number, signal.SIG_IGN)
        self._streams.control_terminal()
        woken, waker = os.pipe()
        for end in (woken, waker):
            os.set_blocking(end, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        while True:
            ready, _, _ = select.select([self._line.socket.fileno(), woken], [], [])
            if woken in ready:
                os.read(woken, 4096)
                self._look()
            if self._line.socket.fileno() in ready:
                messages = self._line.receive()
                if messages is None:
                    break
                for message in messages:
                    self._obey(message)
        if self._terminal_taken:
            self._streams.restore_terminal()
        if self._command is not None:
            end_all(self._command)

    def _obey(self, message: dict[str, Any]) -> None:
        if "start" in message:
            self._start(message["start"], message["environment"])
        elif "terminal" in message:
            self._terminal_taken = message["terminal"]
        elif self._command is not None:
            with suppress(ProcessLookupError, PermissionError):
                (os.killpg if message["group"] else os.kill)(self._command, message["signal"])

    def _start(self, command: list[str], environment: dict[str, str]) -> None:
        answer, failing = os.pipe()
        guard = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            os.close(answer)
            os.close(failing)
            self._say(unstarted=error.errno)
            return
        if pid == 0:
            os.close(answer)
            self._become(command, environment, failing, guard)
        os.close(failing)
        with suppress(OSError):
            os.setpgid(pid, pid)
        with open(answer, "rb") as pipe:
            # It ends when the command has begun: the descriptor is closed by exec.
            problem = pipe.read()
        if problem:
            os.waitpid(pid, 0)
            self._say(unstarted=int(problem))
        else:
            self._command = pid
            self._say(started=pid)
            self._look()

    def _become(self, command: list[str], environment: dict[str, str], failing: int, guard: int) -> NoReturn:
        try:
            os.setpgid(0, 0)
            self._die_with_parent()
            if os.getppid() != guard:
                os._exit(1)
            self._streams.become_standard()
            signal.set_wakeup_fd(-1)
            for number in _RESET:
                signal.signal(number, signal.SIG_IGN if number in self._ignored else signal.SIG_DFL)
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            os.execvpe(command[0], command, environment)  # noqa: S606 - that is what it is for
        except OSError as error:
            os.write(failing, str(error.errno or errno.EIO).encode())
        finally:
            os._exit(127)

    def _look(self) -> None:
        """What became of the command. Before its end is told, what it left behind is ended too."""
        while self._command is not None:
            pid, status = os.waitpid(self._command, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
            if pid == 0:
                return
            if os.WIFSTOPPED(status):
                self._say(stopped=os.WSTOPSIG(status))
            elif os.WIFCONTINUED(status):
                self._say(continued=True)
            else:
                self._command = None
                end_all(pid)
                if os.WIFSIGNALED(status):
                    self._say(killed=os.WTERMSIG(status))
                else:
                    self._say(exited=os.WEXITSTATUS(status))

    def _say(self, **message: Any) -> None:
        with suppress(OSError):
            self._line.send(**message)


def end_all(command: int, session: int | None = None) -> None:
    """End the command and what it left behind: everything in the guard's session, or, where that cannot be seen, in the
    command's group. It is asked first, and killed after a second. What cannot be killed is given up."""
    if not LINUX:
        _end_group(command)
        return
    session = os.getpid() if session is None else session
    for numbers, patience in (((signal.SIGTERM, signal.SIGCONT), GRACE), ((signal.SIGKILL,), GRACE)):
        deadline = time.monotonic() + patience
        told: set[int] = set()
        while (left := set(members(session))) and time.monotonic() < deadline:
            for pid in left - told:
                for number in numbers:
                    with suppress(ProcessLookupError, PermissionError):
                        os.kill(pid, number)
            told |= left
            time.sleep(0.005)


def _end_group(command: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(command, signal.SIGTERM)
        os.killpg(command, signal.SIGCONT)
        time.sleep(GRACE / 2)
        os.killpg(command, signal.SIGKILL)


def members(session: int) -> Iterator[int]:
    """The processes of a session that still run, without its leader."""
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != session:
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    # The command's name is in parentheses and may hold anything.
                    state, _, _, found = file.read().rpartition(b")")[2].split()[:4]
            except (OSError, ValueError):
                continue
            if int(found) == session and state not in {b"Z", b"X"}:
                yield int(name)


def _dying_with_parent() -> Callable[[], None]:
    """What a process calls to be killed when its parent dies. Looked up before the fork: after it, only calls."""
    if not LINUX:
        return lambda: None
    import ctypes

    prctl = ctypes.CDLL(None, use_errno=True).prctl
    return lambda: prctl(_PDEATHSIG, int(signal.SIGKILL))
