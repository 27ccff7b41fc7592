"""The supervisor: a small process that starts the command, waits for it, and ends everything that it started.

It is forked first, while there is one thread, so that it can prepare the command between ``fork`` and ``exec``. It is
the leader of its own session: signals of the terminal, or to the group of ``agentbus run``, do not reach it. When
``agentbus run`` is gone, the socket between the two closes, and the supervisor ends the command and its session. On
Linux the command also dies with the supervisor (PR_SET_PDEATHSIG); elsewhere ``agentbus run`` ends it. A process that
left the session by ``setsid`` is not ended.
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

from agentbus.cli.run.terminal import Streams

GRACE = 1.0
"""Seconds between SIGTERM and SIGKILL for leftovers of the command, or when ``agentbus run`` is gone."""
LINUX = sys.platform == "linux"
_RESET = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE, signal.SIGTTOU)
_PDEATHSIG = 1


class Line:
    """JSON messages over a socket, one per line."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self._rest = b""

    def send(self, **message: Any) -> None:
        # Arguments may be any bytes: they are lone surrogates, which ASCII JSON preserves.
        self.socket.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> list[dict[str, Any]] | None:
        """Return the messages that arrived; None when the other end is gone."""
        try:
            chunk = self.socket.recv(65536)
        except ConnectionError:
            chunk = b""
        if not chunk:
            return None
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        return [json.loads(line) for line in lines]


class Supervisor:
    """The supervisor as seen by ``agentbus run``. ``pid`` is also the id of its session."""

    def __init__(self, pid: int, line: Line) -> None:
        self.pid = pid
        self.line = line

    def start(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._send(start=list(command), environment=dict(environment))

    def signal(self, number: int, *, group: bool) -> None:
        """Forward a signal to the command, or to its group, if it is running."""
        self._send(signal=number, group=group)

    def terminal(self, taken: bool) -> None:
        """Report whether the terminal is raw: the supervisor restores it if this process is killed."""
        self._send(terminal=taken)

    def end(self) -> None:
        """End the supervisor and everything left of the command."""
        self.line.socket.close()
        with suppress(ChildProcessError):
            os.waitpid(self.pid, 0)

    def _send(self, **message: Any) -> None:
        # A dead supervisor is detected by the reader of its reports.
        with suppress(OSError):
            self.line.send(**message)


def fork_supervisor(streams: Streams) -> Supervisor:
    """Start the supervisor. To be called before there are threads."""
    ignored = [number for number in _RESET if signal.getsignal(number) == signal.SIG_IGN and number != signal.SIGPIPE]
    die_with_parent = _parent_death_signal()
    ours, its = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            ours.close()
            streams.keep_inner()
            _Loop(Line(its), streams, ignored, die_with_parent).run()
            code = 0
        finally:
            os._exit(code)
    its.close()
    streams.keep_outer()
    return Supervisor(pid, Line(ours))


class _Loop:
    """The loop of the supervisor. It runs one command at a time."""

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
                self._reap()
            if self._line.socket.fileno() in ready:
                messages = self._line.receive()
                if messages is None:
                    break
                for message in messages:
                    self._handle(message)
        if self._terminal_taken:
            self._streams.restore_terminal()
        if self._command is not None:
            end_all(self._command)

    def _handle(self, message: dict[str, Any]) -> None:
        if "start" in message:
            self._start(message["start"], message["environment"])
        elif "terminal" in message:
            self._terminal_taken = message["terminal"]
        elif self._command is not None:
            with suppress(ProcessLookupError, PermissionError):
                (os.killpg if message["group"] else os.kill)(self._command, message["signal"])

    def _start(self, command: list[str], environment: dict[str, str]) -> None:
        answer, failing = os.pipe()
        supervisor = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            os.close(answer)
            os.close(failing)
            self._report(unstarted=error.errno)
            return
        if pid == 0:
            os.close(answer)
            self._exec(command, environment, failing, supervisor)
        os.close(failing)
        with suppress(OSError):
            os.setpgid(pid, pid)
        with open(answer, "rb") as pipe:
            # The pipe ends when the command has started: exec closes the descriptor.
            problem = pipe.read()
        if problem:
            os.waitpid(pid, 0)
            self._report(unstarted=int(problem))
        else:
            self._command = pid
            self._report(started=pid)
            self._reap()

    def _exec(self, command: list[str], environment: dict[str, str], failing: int, supervisor: int) -> NoReturn:
        try:
            os.setpgid(0, 0)
            self._die_with_parent()
            if os.getppid() != supervisor:
                os._exit(1)
            self._streams.become_standard()
            signal.set_wakeup_fd(-1)
            for number in _RESET:
                signal.signal(number, signal.SIG_IGN if number in self._ignored else signal.SIG_DFL)
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            os.execvpe(command[0], command, environment)  # noqa: S606 - the command of the user
        except OSError as error:
            os.write(failing, str(error.errno or errno.EIO).encode())
        finally:
            os._exit(127)

    def _reap(self) -> None:
        """Report changes of the command. Its leftovers are ended before its end is reported."""
        while self._command is not None:
            pid, status = os.waitpid(self._command, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
            if pid == 0:
                return
            if os.WIFSTOPPED(status):
                self._report(stopped=os.WSTOPSIG(status))
            elif os.WIFCONTINUED(status):
                self._report(continued=True)
            else:
                self._command = None
                end_all(pid)
                if os.WIFSIGNALED(status):
                    self._report(killed=os.WTERMSIG(status))
                else:
                    self._report(exited=os.WEXITSTATUS(status))

    def _report(self, **message: Any) -> None:
        with suppress(OSError):
            self._line.send(**message)


def end_all(command: int, session: int | None = None) -> None:
    """End the command and its leftovers: all processes of the session, or else of the group.

    SIGTERM, then SIGKILL after a second. A process that cannot be killed is left.
    """
    if not LINUX:
        _end_group(command)
        return
    session = os.getpid() if session is None else session
    for numbers, timeout in (((signal.SIGTERM, signal.SIGCONT), GRACE), ((signal.SIGKILL,), GRACE)):
        deadline = time.monotonic() + timeout
        signalled: set[int] = set()
        while (left := set(members(session))) and time.monotonic() < deadline:
            for pid in left - signalled:
                for number in numbers:
                    with suppress(ProcessLookupError, PermissionError):
                        os.kill(pid, number)
            signalled |= left
            time.sleep(0.005)


def _end_group(command: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(command, signal.SIGTERM)
        os.killpg(command, signal.SIGCONT)
        time.sleep(GRACE / 2)
        os.killpg(command, signal.SIGKILL)


def members(session: int) -> Iterator[int]:
    """Yield the running processes of a session, except its leader."""
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != session:
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    # The name of the command is in parentheses and can contain anything.
                    state, _, _, found = file.read().rpartition(b")")[2].split()[:4]
            except (OSError, ValueError):
                continue
            if int(found) == session and state not in {b"Z", b"X"}:
                yield int(name)


def _parent_death_signal() -> Callable[[], None]:
    """Return the function that makes a process die with its parent. Looked up before the fork."""
    if not LINUX:
        return lambda: None
    import ctypes

    prctl = ctypes.CDLL(None, use_errno=True).prctl
    return lambda: prctl(_PDEATHSIG, int(signal.SIGKILL))
