"""Translate errors of the driver to errors of the bus: by SQLSTATE, never by text, and never with a password."""

from __future__ import annotations

import asyncio

import asyncpg

from agentbus.engine.postgres.server import Address
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
"""Everything that the driver raises."""
_CONFLICTS = frozenset({"40001", "40P01"})
"""Serialization failure, deadlock: rolled back, and safe to retry."""
_DENIED = frozenset({"28000", "28P01", "42501", "3F000"})
"""Including a schema that exists but that this user cannot see."""
_LOCKED = "55P03"
_SECRETS = frozenset({"28000", "28P01"})
STANDBY = "it is a standby that follows another server"
_CROWDED = "53300"
_POOLED = frozenset({"26000", "42P05"})
"""A statement was prepared on another server connection: only a pooler causes that."""
_POOLER = "08P01"
"""Protocol violation: PgBouncer reports it when it refuses a message. A server never does for this driver."""
_GOING = frozenset({"57P01", "57P02", "57P03", "57P05", "53300", "25P03", "26000"})
"""The server shuts down, crashed or is starting; has no connection left; ended an idle one; or lost its prepared
statements because of a pooler."""


_NAMED: dict[str, type[StoreError]] = {
    **dict.fromkeys(_DENIED, AccessDenied),
    _CROWDED: TooManyConnections,
    "3D000": UnknownDatabase,
    "25006": NotWritable,
    "57014": StatementTimeout,
}


def is_lost(error: BaseException) -> bool:
    """Return True if the connection was lost or could not be made; another may work."""
    if isinstance(error, asyncpg.PostgresError):
        code = error.sqlstate or ""
        return code.startswith("08") or code in _GOING
    if isinstance(error, asyncpg.InterfaceError):
        # The driver raises this for a connection that is closed or closing.
        return not isinstance(error, ValueError)
    # The driver loses synchronisation if the server disconnects between two statements.
    return isinstance(error, asyncpg.InternalClientError | OSError | EOFError | asyncio.TimeoutError)


def is_conflict(error: BaseException) -> bool:
    """Return True if a concurrent transaction caused the rollback."""
    return isinstance(error, asyncpg.PostgresError) and error.sqlstate in _CONFLICTS


def is_lock_timeout(error: BaseException) -> bool:
    """Return True if a lock was not granted in time."""
    return isinstance(error, asyncpg.PostgresError) and error.sqlstate == _LOCKED


CROWDED = 1.0
"""Seconds of retries while a server has no connection left."""


def is_crowded(error: BaseException) -> bool:
    """Return True if the server has no connection left."""
    return isinstance(error, asyncpg.PostgresError) and error.sqlstate == _CROWDED


def is_pooler(error: BaseException, address: Address) -> bool:
    """Return True if a pooler raised the error that the URL does not declare, or that is not in session mode."""
    code = error.sqlstate if isinstance(error, asyncpg.PostgresError) else None
    return code in _POOLED or (code == _POOLER and not address.pooled)


def translate_error(error: BaseException, address: Address, *, waited: float = 0) -> AgentBusError:
    """Return the error of the bus for an error of the driver."""
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
    """Return the error for a server that asks for more credentials than an untrusted URL contains."""
    return UntrustedServer(path=address.shown, reason=reason, server=f"postgresql://{','.join(address.servers)}")


def _reason(error: BaseException) -> str:
    """Return the server's message without its details, which may quote a row."""
    if isinstance(error, asyncpg.PostgresError):
        return str(error.args[0]) if error.args else type(error).__name__
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, asyncio.TimeoutError):
        return "no answer in time"
    return str(error) or type(error).__name__
