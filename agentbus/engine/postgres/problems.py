"""What goes wrong with a server, in the bus's words: by SQLSTATE, never by text, and never with a password."""

from __future__ import annotations

import asyncio

import asyncpg

from agentbus.engine.postgres.address import Address
from agentbus.errors import (
    AccessDenied,
    AgentBusError,
    DiskFull,
    FormatRefused,
    LockTimeout,
    NotWritable,
    ServerUnreachable,
    StatementTimeout,
    StoreError,
    TooManyConnections,
    UnknownDatabase,
    UnsupportedPooler,
    UntrustedServer,
)

DRIVER = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
    EOFError,
    asyncio.TimeoutError,
)
"""All that the driver raises."""
_CONFLICTS = frozenset({"40001", "40P01"})
"""Serialization failure, deadlock: undone, and right when tried again."""
_DENIED = frozenset({"28000", "28P01", "42501", "3F000"})
"""Also: the schema is there, but this user does not see it."""
_LOCKED = "55P03"
_SECRETS = frozenset({"28000", "28P01"})
STANDBY = "it is a standby that follows another server"
_CROWDED = "53300"
_POOLED = frozenset({"26000", "42P05"})
"""A statement was prepared on another connection of the server than the one that was asked: only a pooler does that."""
_POOLER = "08P01"
"""Protocol violation: what PgBouncer says when it refuses something. A server has no reason to, of this driver."""
_GOING = frozenset({"57P01", "57P02", "57P03", "57P05", "53300", "25P03", "26000"})
"""The server shuts down, has crashed, is starting; has no connection left; has cut off one that stood still; or was
made to forget what was prepared, by something on the way to it."""


_NAMED: dict[str, type[StoreError]] = {
    **dict.fromkeys(_DENIED, AccessDenied),
    _CROWDED: TooManyConnections,
    "3D000": UnknownDatabase,
    "25006": NotWritable,
    "57014": StatementTimeout,
}


def is_lost(error: BaseException) -> bool:
    """Whether the connection is gone, or could not be had: another may do."""
    if isinstance(error, asyncpg.PostgresError):
        code = error.sqlstate or ""
        return code.startswith("08") or code in _GOING
    if isinstance(error, asyncpg.InterfaceError):
        # The driver's word for a connection that is closed, or being closed.
        return not isinstance(error, ValueError)
    # The driver is out of step when the server says good-bye between two statements.
    return isinstance(error, asyncpg.InternalClientError | OSError | EOFError | asyncio.TimeoutError)


def is_conflict(error: BaseException) -> bool:
    """Whether the transaction was undone because of another one."""
    return isinstance(error, asyncpg.PostgresError) and error.sqlstate in _CONFLICTS


def is_lock_timeout(error: BaseException) -> bool:
    """Whether a lock was not to be had in time."""
    return isinstance(error, asyncpg.PostgresError) and error.sqlstate == _LOCKED


CROWDED = 1.0
"""Seconds to ask again for a connection of a server that has none left."""


def is_crowded(error: BaseException) -> bool:
    """Return True if the server has no connection left."""
    return isinstance(error, asyncpg.PostgresError) and error.sqlstate == _CROWDED


def is_pooler(error: BaseException, address: Address) -> bool:
    """Return True if the error is that of a pooler that the user said nothing of, or that is not in session mode."""
    code = error.sqlstate if isinstance(error, asyncpg.PostgresError) else None
    return code in _POOLED or (code == _POOLER and not address.pooled)


def translated(error: BaseException, address: Address, *, waited: float = 0) -> AgentBusError:
    """The driver's error in the bus's words."""
    path = address.shown
    if isinstance(error, AgentBusError):
        return error
    reason = _reason(error)
    code = (error.sqlstate or "") if isinstance(error, asyncpg.PostgresError) else ""
    if is_pooler(error, address):
        return UnsupportedPooler(path=path, reason=f"a pooler is between agentbus and the server: {reason}")
    if code in _SECRETS and address.restricted and not address.has_password:
        return untrusted(address, reason)
    if isinstance(error, asyncpg.TargetServerAttributeNotMatched):
        return NotWritable(path=path, reason=STANDBY)
    if (kind := _NAMED.get(code)) is not None:
        return kind(path=path, reason=reason)
    if is_lost(error):
        return ServerUnreachable(path=path, reason=reason)
    if code == _LOCKED:
        return LockTimeout(path=path, pid="of another client", waited=waited)
    if code == "53100":
        return DiskFull(path=path)
    if code.startswith(("22", "23")):
        return FormatRefused(reason=reason)
    return StoreError(path=path, reason=reason)


def untrusted(address: Address, reason: str) -> UntrustedServer:
    """The error of a server that wants to see more than the URL has, which the user did not write."""
    return UntrustedServer(path=address.shown, reason=reason, server=f"postgresql://{','.join(address.servers)}")


def _reason(error: BaseException) -> str:
    """The server's own sentence, without details, which may quote a row."""
    if isinstance(error, asyncpg.PostgresError):
        return str(error.args[0]) if error.args else type(error).__name__
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, asyncio.TimeoutError):
        return "it did not answer in time"
    return str(error) or type(error).__name__
