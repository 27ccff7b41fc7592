"""Access: who calls, and what that caller may do. The one place where permissions are decided.

A caller is identified by a Bearer token, or by the cookie of a browser that was exchanged for one. The owner's token is
in a file of the user who runs the server, below ``$XDG_STATE_HOME/agentbus/<bus id>/``; further tokens are stored as
hashes on the bus. The cookie holds a session id; the server stores its hash, so that a browser stays logged in when the
server is restarted. Roles bind HTTP clients: a process of the same user can use the bus directly.
"""

from __future__ import annotations

import errno
import hmac
import os
import secrets
import stat
import time
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from agentbus.api.tokens import hash_secret, new_secret
from agentbus.errors import NotWritable
from agentbus.web.errors import Forbidden, ReadOnlyServer, Unauthorized

if TYPE_CHECKING:
    from agentbus import Bus

OWNER = "owner"
"""The id of the token of the user who runs the server."""
COOKIE_PREFIX = "agentbus-"
SESSION_LIFETIME = 30 * 24 * 3600
"""Seconds for which a browser stays logged in."""
MAX_SESSIONS = 50
"""Sessions of browsers that one token may have."""
_MAX_BYTES = 4096


class Permission(Enum):
    """The requirement of a route to its caller."""

    PUBLIC = "public"
    """Nothing: the login, and files that hold no data of the bus."""
    READ = "read"
    """Any role."""
    AGENT = "agent"
    """The agent that the path names, or an operator."""
    OPERATE = "operate"
    """An operator."""
    DECIDE = "decide"
    """An operator; an agent may never decide for a person."""

    @property
    def changes(self) -> bool:
        return self not in {Permission.PUBLIC, Permission.READ}


class Principal(msgspec.Struct, frozen=True):
    """A caller: the id of its token, its role (read, operate or agent), the agent of that role, and its operator."""

    token: str
    role: str
    operator: str
    agent: str | None = None
    hash: str = ""
    """The hash of its token."""

    @classmethod
    def of(cls, token: str, role: str, operator: str, hash: str) -> Principal:
        kind, _, agent = role.partition(":")
        return cls(token, kind, operator, agent or None, hash)


class Session(msgspec.Struct, frozen=True):
    """The session of a browser: the token that it was exchanged for, by its hash, and its end in seconds."""

    token: str
    hash: str
    expires: float


def authorize(permission: Permission, caller: Principal | None, agent: str | None, *, read_only: bool) -> None:
    """Raise the error of a caller that may not use a route. ``agent`` is the agent that the path names, if any.

    >>> authorize(Permission.READ, Principal("t-1", "read", "ada"), None, read_only=True)
    >>> authorize(Permission.DECIDE, Principal("t-2", "agent", "ada", "a"), None, read_only=False)
    Traceback (most recent call last):
    agentbus.web.errors.Forbidden: forbidden: the role agent:a does not permit this ...
    """
    if permission is Permission.PUBLIC:
        return
    if caller is None:
        raise Unauthorized(reason="no token")
    if permission is Permission.READ:
        return
    if read_only:
        raise ReadOnlyServer
    if caller.role == "operate":
        return
    if permission is Permission.AGENT and caller.role == "agent" and caller.agent is not None and caller.agent == agent:
        return
    role = caller.role if caller.agent is None else f"agent:{caller.agent}"
    raise Forbidden(reason=f"the role {role} does not permit this", role=role)


class Access:
    """Identifies callers."""

    def __init__(self, bus: Bus, bus_id: str, operator: str, directory: Path) -> None:
        self._bus = bus
        self._operator = operator
        self._directory = directory
        self._sessions = directory / "sessions"
        self.cookie = f"{COOKIE_PREFIX}{bus_id}"
        """The name of the cookie has the id of the bus: cookies ignore ports."""
        self.secret = self._owner_secret()
        self._owner_hash = hash_secret(self.secret)

    def _owner_secret(self) -> str:
        """Return the secret in the file of this user, which is made by the first server."""
        path = self._directory / "token"
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._sessions.mkdir(mode=0o700, exist_ok=True)
            secret = new_secret()
            new = self._directory / f".token-{os.getpid()}-{secrets.token_hex(4)}"
            _write_private(new, secret.encode())
            try:
                # Of several servers that start at once, one creates it.
                os.link(new, path)
            except FileExistsError:
                secret = _read_private(path).decode("ascii", "replace").strip()
            finally:
                new.unlink(missing_ok=True)
        except OSError as error:
            raise NotWritable(path=str(path), reason=error.strerror or str(error)) from None
        if len(secret) < 32:
            raise NotWritable(path=str(path), reason="it holds no token; delete it, and start the server again")
        return secret

    async def identify(self, bearer: str | None, cookie: str | None) -> Principal | None:
        """Return the caller; None if the request names neither. Raises Unauthorized for a token that is not valid."""
        if bearer is not None:
            return await self._holder(hash_secret(bearer))
        if cookie is None:
            return None
        session = self._session(cookie)
        if session is None:
            raise Unauthorized(reason="the session of this browser has ended")
        return await self._holder(session.hash)

    async def _holder(self, hash: str) -> Principal:
        if hmac.compare_digest(hash, self._owner_hash):
            return Principal(OWNER, "operate", self._operator)
        found = await self._bus.tokens.find(hash)
        if found is None:
            raise Unauthorized(reason="the token is unknown, revoked or expired")
        return Principal.of(found.id, found.role, found.operator, hash)

    async def is_valid(self, caller: Principal) -> bool:
        """Return False once the token of a caller was revoked or has expired."""
        return caller.token == OWNER or await self._bus.tokens.find(caller.hash) is not None

    # Browsers

    async def log_in(self, secret: str) -> tuple[Principal, str]:
        """Exchange a token for the session of a browser; return the caller and the session id."""
        hash = hash_secret(secret)
        caller = await self._holder(hash)
        id = secrets.token_urlsafe(32)
        session = Session(caller.token, hash, time.time() + SESSION_LIFETIME)
        self._forget_old_sessions(session)
        _write_private(self._sessions / hash_secret(id), msgspec.json.encode(session))
        return caller, id

    def log_out(self, cookie: str | None) -> None:
        """End the session of a browser."""
        if cookie is not None:
            (self._sessions / hash_secret(cookie)).unlink(missing_ok=True)

    def _session(self, id: str) -> Session | None:
        try:
            found = msgspec.json.decode(_read_private(self._sessions / hash_secret(id)), type=Session)
        except (OSError, msgspec.DecodeError):
            return None
        return found if found.expires > time.time() else None

    def _forget_old_sessions(self, new: Session) -> None:
        """Delete the sessions that have ended, and the oldest of the same token, so that their number is bounded: a
        token cannot log out the browsers of others."""
        same: list[tuple[float, Path]] = []
        for path in self._sessions.iterdir():
            with suppress(OSError, msgspec.DecodeError):
                session = msgspec.json.decode(_read_private(path), type=Session)
                if session.expires <= time.time():
                    path.unlink(missing_ok=True)
                elif session.hash == new.hash:
                    same.append((session.expires, path))
        for _, path in sorted(same)[: max(0, len(same) - MAX_SESSIONS + 1)]:
            path.unlink(missing_ok=True)


def _write_private(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with open(descriptor, "wb") as file:
        file.write(content)


def _read_private(path: Path) -> bytes:
    """Return the content of a file that only this user can read. Raises OSError, also for any other file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise PermissionError(errno.EPERM, "it is not a file that only this user can read; delete it", str(path))
        return file.read(_MAX_BYTES)
