"""Identity of this process, and evidence whether another one exists."""

from __future__ import annotations

import errno
import os

from agentbus.errors import TooManyFiles


def host_key() -> str:
    """Return a key shared by processes that see each other's pids: same machine, same pid namespace.

    The boot has a column of its own.
    """
    try:
        with open("/etc/machine-id") as file:
            machine = file.read().strip() or "unknown"
    except OSError as error:
        if error.errno in {errno.EMFILE, errno.ENFILE}:
            # A different key would look like a different machine.
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
    """Return the start time of a process, which tells it from a later one with the same pid; empty if unknown."""
    fields = _status(pid)
    return fields[19].decode() if fields else ""


def name_and_parent(pid: int) -> tuple[str, int]:
    """Return the name of a process's program, and its parent; an empty name if they are unknown."""
    try:
        with open(f"/proc/{pid}/comm", errors="replace") as file:
            name = file.read().strip()
    except OSError:
        return "", 0
    fields = _status(pid)
    return (name, int(fields[1])) if fields else ("", 0)


def is_gone(pid: int, started: str, bell: str | None) -> bool:
    """Return whether a process of this host has certainly ended.

    A socket that refuses connections proves that the process which bound it is gone. Otherwise pid and start time
    decide.
    """
    if bell is not None:
        listening = is_listening(bell)
        if listening is not None:
            return not listening
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
    """Return the fields of /proc/<pid>/stat from the state on (the start time is the 20th); empty if unavailable.

    Every command reads it for every live process: a file object would take twice as long.
    """
    try:
        file = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return []
    try:
        # The command's name is in parentheses and may contain anything, even part of a character.
        return os.read(file, 4096).rpartition(b")")[2].split(None, 20)
    except OSError:
        return []
    finally:
        os.close(file)


def is_listening(bell: str) -> bool | None:
    """Return whether a process listens on this doorbell; None if that cannot be determined."""
    # Imported only here: most commands find no doorbell, and the import takes longer than opening the bus.
    import socket

    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
            probe.connect(bell)
    except ConnectionRefusedError:
        return False
    except OSError:
        return None
    return True
