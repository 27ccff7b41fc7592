"""HTTP servers of this user: where their state is, and which of them run. Imports no event loop."""

from __future__ import annotations

import os
from contextlib import suppress

import msgspec

from agentbus.core.process_info import is_gone, start_time
from agentbus.errors import NotWritable

_MAX_BYTES = 4096


class RunningServer(msgspec.Struct, frozen=True):
    """A running server: its URL, without a token, and the process that runs it."""

    url: str
    pid: int
    started: str


def state_directory(bus_id: str) -> str:
    """Return the directory of a bus in the state of this user, not in the bus itself: a repository may bring that."""
    state = os.environ.get("XDG_STATE_HOME", "")
    base = state if os.path.isabs(state) else os.path.join(os.path.expanduser("~"), ".local", "state")
    return os.path.join(base, "agentbus", bus_id)


def announce(bus_id: str, url: str) -> str:
    """Record that this process serves a bus at ``url``. Return the path of the record, to be removed at the end."""
    pid = os.getpid()
    path = os.path.join(state_directory(bus_id), f"serve-{pid}-{os.urandom(4).hex()}.json")
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as file:
            file.write(msgspec.json.encode(RunningServer(url, pid, start_time(pid))))
    except OSError as error:
        raise NotWritable(path=path, reason=error.strerror or str(error)) from None
    return path


def running_servers(bus_id: str) -> list[RunningServer]:
    """Return the servers of this user that run on a bus. Records of processes that ended are removed."""
    directory = state_directory(bus_id)
    found: list[RunningServer] = []
    with suppress(OSError):
        for name in sorted(os.listdir(directory)):
            if name.startswith("serve-") and name.endswith(".json"):
                path = os.path.join(directory, name)
                server = _read(path)
                if server is not None and not is_gone(server.pid, server.started, None):
                    found.append(server)
                else:
                    os.unlink(path)
    return found


def _read(path: str) -> RunningServer | None:
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            return msgspec.json.decode(file.read(_MAX_BYTES), type=RunningServer)
    except (OSError, msgspec.DecodeError):
        return None
