"""Which process this is, and whether another one is still there. Evidence only; verdicts are the operations'."""

from __future__ import annotations

import errno
import os
import socket

from agentbus.errors import TooManyFiles


def host_key() -> str:
    """Processes with the same key see each other's pids: same machine, same pid namespace.

    The boot belongs to it too, but has a column of its own.
    """
    try:
        with open("/etc/machine-id") as file:
            machine = file.read().strip() or "unknown"
    except OSError as error:
        if error.errno in {errno.EMFILE, errno.ENFILE}:
            # With another key than before this would be another machine.
            raise TooManyFiles(path="/etc/machine-id", reason=error.strerror) from None
        # Imported only here: the command line should start without it.
        import uuid

        machine = f"{uuid.getnode():x}"
    try:
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        namespace = "pid"
    return f"{machine}/{namespace}"


def start_time(pid: int) -> str:
    """What tells a process from a later one with the same pid; empty where the system does not say."""
    fields = _status(pid)
    return fields[19].decode() if fields else ""


def is_gone(pid: int, started: str, bell: str | None) -> bool:
    """Whether a process of this host is certainly not there any more.

    A socket that refuses proves that the process which bound it is gone. Otherwise the pid speaks, together with
    its start time.
    """
    if bell is not None:
        answered = answers(bell)
        if answered is not None:
            return not answered
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    fields = _status(pid)
    # A zombie still has its pid and its start time; it is only waiting to be collected by its parent.
    return bool(fields) and (fields[0] in {b"Z", b"X"} or (bool(started) and fields[19] != started.encode()))


def _status(pid: int) -> list[bytes]:
    """State, … start time (the 20th) … of a process; nothing where the system does not say.

    Every command asks it of every process that counts as live: a file object would take twice as long.
    """
    try:
        file = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return []
    try:
        # The command's name is in parentheses and may hold anything, half a character too.
        return os.read(file, 4096).rpartition(b")")[2].split(None, 20)
    except OSError:
        return []
    finally:
        os.close(file)


def answers(bell: str) -> bool | None:
    """Whether a process listens to this doorbell; None where nobody can say."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
            probe.connect(bell)
    except ConnectionRefusedError:
        return False
    except OSError:
        return None
    return True
