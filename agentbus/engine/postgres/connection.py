"""Connections to a server, and bringing the tables up to date."""

from __future__ import annotations

import os
import re
import socket
import sys
import weakref
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias, cast
from urllib.parse import parse_qsl, urlsplit

import asyncpg
import msgspec

from agentbus.clock import Clock
from agentbus.engine.forking import forget_in_child
from agentbus.engine.postgres.address import Address
from agentbus.engine.postgres.clock import ServerClock
from agentbus.engine.postgres.problems import DRIVER, STANDBY, is_pooler, translated, untrusted
from agentbus.engine.queries import parse, read_all, text
from agentbus.errors import AccessDenied, NoBus, NotWritable, SchemaTooNew, ServerTooOld, UnsupportedPooler

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"

OLDEST = 140000
_PATIENCE = 10.0
"""Seconds that a connection may take to be made."""
_SETTINGS = {
    "application_name": "agentbus",
    "jit": "off",
    "standard_conforming_strings": "on",
    "timezone": "UTC",
    "default_transaction_isolation": "read committed",
    # One that is stopped in the middle of a transaction, or whose machine is gone, must not hold up all others.
    "idle_in_transaction_session_timeout": "15s",
    "tcp_keepalives_idle": "15",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
}
_PROBES = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 30_000}
"""When a silent connection is probed, and between probes; how many; milliseconds for what is sent to arrive."""
WRITING = {
    # What is promised is on the disk, also where the server's own habit is not to wait for that.
    "synchronous_commit": "on",
    # Every statement finds its rows by an index. It shall do so from the first message to the millionth, also where the
    # statistics are those of an empty table; and it is planned once.
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
}

_NUMBERS = {
    "oid": 1016, "ns": "pg_catalog", "name": "_int8", "kind": b"b", "basetype": None, "elemtype": 20, "elemdelim": ",",
    "range_subtype": None, "attrtypoids": None, "attrnames": None, "elemtype_name": "bigint",
}  # fmt: skip
"""The type bigint[], which is the same on every server."""


class _Sessions:
    """The open connections of this process."""

    def __init__(self) -> None:
        self._connections: weakref.WeakSet[Connection] = weakref.WeakSet()
        forget_in_child(self)

    def add(self, connection: Connection) -> None:
        self._connections.add(connection)

    def forget(self) -> None:
        """In a forked child: the server would not notice the end of the parent while a copy of its socket is open.

        The descriptors stay valid, because the objects that own them close them some day.
        """
        nothing = -1
        for connection in list(self._connections):
            own = None if connection.is_closed() else cast(Any, connection)._transport.get_extra_info("socket")
            if own is not None and own.fileno() >= 0:
                nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC) if nothing < 0 else nothing
                os.dup2(nothing, own.fileno(), inheritable=False)
        if nothing >= 0:
            os.close(nothing)


_sessions = _Sessions()


def writing(patience: float) -> dict[str, str]:
    """The settings of a connection that writes, and waits no longer than that for another one's lock."""
    return {**WRITING, "lock_timeout": f"{lock_timeout(patience):d}"}


def lock_timeout(patience: float) -> int:
    """Return the value of the setting: milliseconds, and never 0, which stands for no limit."""
    return max(1, round(patience * 1000))


@cache
def server_queries() -> dict[str, str]:
    """What is asked of the server itself."""
    return parse(text("server"))


async def connect(address: Address, settings: Mapping[str, str] | None = None, *, standby: bool = False) -> Connection:
    """A connection whose search path is the schema of the bus; not to a standby, unless that is allowed. Raises what
    the driver does, and ``UnsupportedPooler`` or ``UntrustedServer``."""
    wanted = {**_SETTINGS, **(settings or {}), "search_path": address.identifier}
    try:
        connection = await _connected(address, wanted, standby=standby)
        try:
            await _check_session(connection, address, wanted)
        except BaseException:
            let_go(connection)
            raise
    except asyncpg.PostgresError as error:
        if is_pooler(error, address):
            # Trying again would not help.
            raise translated(error, address) from error
        raise
    _sessions.add(connection)
    _keep_alive(connection)
    # What the driver would ask the server for, at the first list of numbers, with a query that takes it 15 ms.
    cast(Any, connection)._protocol.get_settings().register_data_types([_NUMBERS])
    return connection


async def _connected(address: Address, wanted: Mapping[str, str], *, standby: bool) -> Connection:
    try:
        return await asyncpg.connect(
            address.dsn,
            timeout=_PATIENCE,
            statement_cache_size=500,
            max_cached_statement_lifetime=0,
            # A pooler refuses what it does not know.
            server_settings={"application_name": wanted["application_name"]} if address.pooled else dict(wanted),
            **_server(address, standby=standby),
            **_credentials(address),
        )
    except (asyncpg.InterfaceError, asyncpg.InternalClientError) as error:
        if not address.restricted or isinstance(error, asyncpg.TargetServerAttributeNotMatched):
            raise
        # The server asked for a Kerberos ticket.
        raise untrusted(address, str(error)) from error


def _server(address: Address, *, standby: bool) -> dict[str, Any]:
    """Return the servers to connect to. Given by themselves, they override what the driver reads from the URL."""
    hosts: dict[str, Any] = {}
    if address.hosts:
        hosts = {"host": [host for host, _ in address.hosts], "port": [port for _, port in address.hosts]}
    if standby or _options(address).get("target_session_attrs") == "read-write":
        return hosts
    # Of several servers, the one that can be written; after a failover that is another one than before.
    return {**hosts, "target_session_attrs": "primary"}


def _credentials(address: Address) -> dict[str, Any]:
    """Keep the driver from taking credentials from the environment and the user's files, where that is not allowed:
    ``PGPASSWORD``, ``PGPASSFILE``, ``~/.pgpass``, services, a certificate, a Kerberos ticket."""
    if not address.restricted:
        return {}
    if address.borrowed:
        raise untrusted(address, f"its URL asks for {', '.join(address.borrowed)}")
    if _shows_certificate(address):
        raise untrusted(address, "it could ask for the certificate of the user")
    # Of the two, the one that is not of this system.
    limits = {"servicefile": os.devnull, "gsslib": "gssapi" if sys.platform == "win32" else "sspi"}
    return limits if address.has_password else {**limits, "password": ""}


def _shows_certificate(address: Address) -> bool:
    """Return True if the driver would load a certificate of the user, and show it to the server if asked."""
    if address.hosts and all(host.startswith("/") for host, _ in address.hosts):
        return False
    if (_options(address).get("sslmode") or os.environ.get("PGSSLMODE")) == "disable":
        return False
    own = os.path.join(os.path.expanduser("~"), ".postgresql", "postgresql.crt")
    return bool(os.environ.get("PGSSLCERT")) or os.path.exists(own)


def _options(address: Address) -> dict[str, str]:
    return dict(parse_qsl(urlsplit(address.dsn).query))


async def _check_session(connection: Connection, address: Address, wanted: Mapping[str, str]) -> None:
    """See that the connection is one to the server, with the settings that were asked for. A pooler gives each
    transaction, or each statement, to another connection of its own: what is set, prepared or listened to on one is not
    there on the next. It is known by the number of the process, which it makes up."""
    queries = server_queries()
    if address.pooled:
        await connection.fetch(queries["server_settings"], msgspec.json.encode(wanted).decode())
    process, path = await connection.fetchrow(queries["server_session"])  # type: ignore[misc]
    if process != connection.get_server_pid() and not address.pooled:
        raise UnsupportedPooler(path=address.shown, reason="a pooler is between agentbus and the server")
    if path != address.identifier:
        reason = f"the schema {address.schema} was asked for, but search_path is {path}"
        raise UnsupportedPooler(path=address.shown, reason=reason)


def _keep_alive(connection: Connection) -> None:
    """See that a server whose machine or network is gone without a word is noticed: otherwise whoever only listens
    would wait for ever, and whoever asks for a quarter of an hour."""
    own = cast(Any, connection)._transport.get_extra_info("socket")
    if own is None or own.family == socket.AF_UNIX:
        return
    own.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _PROBES.items():
        # Not every system has all of them.
        if hasattr(socket, name):
            own.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


async def opened(address: Address, patience: float, clock: Clock, *, create: bool) -> Connection:
    """The first connection, which writes: what is wrong with the address or the server is said at once, the tables are
    there (if there is no bus, unless ``create``, that is an error), and the clock knows the server's time."""
    read_all("postgres")
    try:
        connection = await connect(address, writing(patience))
    except (*DRIVER, ValueError) as error:
        raise translated(error, address) from error
    try:
        moment = await prepare(connection, address, create=create)
    except BaseException:
        let_go(connection)
        raise
    if isinstance(clock, ServerClock):
        clock.told(moment)
    return connection


async def prepare(connection: Connection, address: Address, *, create: bool = True) -> int:
    """See that the server does, and that the tables are those that this agentbus knows; its time."""
    queries = server_queries()
    try:
        facts = await connection.fetchrow(queries["server_facts"], address.schema)
        version, name, encoding, follows, moment, made, _ = facts  # type: ignore[misc]
        if version < OLDEST:
            raise ServerTooOld(path=address.shown, found=name, needed="version 14 or newer")
        if encoding != "UTF8":
            raise ServerTooOld(path=address.shown, found=f"with {encoding}", needed="a database with UTF8")
        if follows:
            raise NotWritable(path=address.shown, reason=STANDBY)
        if not made and not create:
            raise NoBus(path=address.shown)
        if not made or not await _is_current(connection, address):
            await _migrate(connection, address)
    except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
        raise translated(error, address) from error
    return int(moment)


async def _is_current(connection: Connection, address: Address) -> bool:
    try:
        found = await connection.fetchval(server_queries()["server_version"])
    except asyncpg.UndefinedTableError as error:
        # It is there, but not for this user.
        raise AccessDenied(path=address.shown, reason=f"no USAGE on the schema {address.schema}") from error
    newest = max(migrations())
    if found > newest:
        raise SchemaTooNew(path=address.shown, found=found, known=newest)
    return bool(found == newest)


async def _migrate(connection: Connection, address: Address) -> None:
    """One transaction for all, under a lock: whoever comes second finds it done, a kill leaves the old or the new."""
    queries = server_queries()
    async with connection.transaction():
        await connection.fetch(queries["server_lock_migrations"], address.schema)
        *_, made, there = await connection.fetchrow(queries["server_facts"], address.schema)  # type: ignore[misc]
        if not there:
            await connection.execute(queries["server_schema"].format(schema=address.identifier))
        if made:
            # Before any table is: whoever writes to it takes them in another order.
            await connection.execute(queries["server_lock_alone"])
        else:
            await connection.execute(queries["server_migrations"])
        found = await connection.fetchval(queries["server_version"])
        steps = migrations()
        try:
            for version in range(found + 1, max(steps) + 1):
                await connection.execute(steps[version])
                await connection.execute(queries["server_migrated"], version)
        except asyncpg.InsufficientPrivilegeError as error:
            if not made:
                raise
            reason = f"its tables are of version {found}; only their owner can bring them to {max(steps)}"
            raise AccessDenied(path=address.shown, reason=reason) from error


@cache
def migrations() -> dict[int, str]:
    """The schema's numbered files. In a checkout they lie beside the package, in a wheel inside it."""
    package = Path(__file__).parents[2]
    inside = package / "_schemas" / "postgres"
    folder = inside if inside.is_dir() else package.parent / "schemas" / "postgres"
    steps: dict[int, str] = {}
    for file in sorted(folder.glob("[0-9]*.sql")):
        number = re.match(r"\d+", file.name)
        if number is not None:
            steps[int(number[0])] = file.read_text(encoding="utf-8")
    return steps


def let_go(connection: Connection | None) -> None:
    """Close a connection without waiting for the server."""
    if connection is not None and not connection.is_closed():
        connection.terminate()
