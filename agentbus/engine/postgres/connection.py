"""Connections to a server: settings, credentials, migrations, admission, response timeouts and retries."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import socket
import sys
import time
import weakref
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast
from urllib.parse import parse_qsl, urlsplit
from weakref import WeakKeyDictionary

import asyncpg
import msgspec

from agentbus.core.clock import Clock, backoff
from agentbus.engine.postgres import errors as driver_errors
from agentbus.engine.postgres.errors import DRIVER, STANDBY, is_pooler, translate_error, untrusted
from agentbus.engine.postgres.server import Address, ServerClock
from agentbus.engine.process_safety import forget_in_child
from agentbus.engine.queries import named, read_all
from agentbus.errors import (
    AccessDenied,
    AgentBusError,
    LockTimeout,
    NoBus,
    NotWritable,
    SchemaTooNew,
    ServerTooOld,
    TooManyConnections,
    UnsupportedPooler,
)

if TYPE_CHECKING:
    from tenacity import RetryCallState

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"

OLDEST = 140000
_CONNECT_TIMEOUT = 10.0
"""Seconds to establish a connection."""
_SETTINGS = {
    "application_name": "agentbus",
    "jit": "off",
    "standard_conforming_strings": "on",
    "timezone": "UTC",
    "default_transaction_isolation": "read committed",
    # A client that is stopped in a transaction, or whose machine is gone, must not block the others.
    "idle_in_transaction_session_timeout": "15s",
    "tcp_keepalives_idle": "15",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
}
_PROBES = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 30_000}
"""Seconds before the first probe and between probes; their number; milliseconds until unacknowledged data fails."""
WRITING = {
    # A confirmed commit must be on the disk, whatever the default of the server.
    "synchronous_commit": "on",
    # Every statement finds its rows by an index, from the first message to the millionth, even with statistics of an
    # empty table; and it is planned once.
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
_BODIES = {**_NUMBERS, "oid": 1001, "name": "_bytea", "elemtype": 17, "elemtype_name": "bytea"}
"""The type bytea[]."""


class _Sessions:
    """The open connections of this process, closed in a forked child."""

    def __init__(self) -> None:
        self._connections: weakref.WeakSet[Connection] = weakref.WeakSet()
        forget_in_child(self)

    def add(self, connection: Connection) -> None:
        self._connections.add(connection)

    def forget(self) -> None:
        """Drop the sockets in a forked child: with a copy open, the server would not notice the end of the parent.

        The descriptors stay valid, because the objects that own them close them later.
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


def writing(timeout: float) -> dict[str, str]:
    """Return the settings of a connection that writes, with a lock timeout."""
    return {**WRITING, "lock_timeout": f"{lock_timeout_ms(timeout):d}"}


def lock_timeout_ms(timeout: float) -> int:
    """Return the setting in milliseconds; never 0, which means no limit."""
    return max(1, round(timeout * 1000))


@cache
def server_queries() -> dict[str, str]:
    """Return the queries about the server itself."""
    return named("postgres/server")


async def connect(address: Address, settings: Mapping[str, str] | None = None, *, standby: bool = False) -> Connection:
    """Connect with the schema of the bus as search path; to a standby only if allowed. Raises errors of the driver,
    ``UnsupportedPooler`` and ``UntrustedServer``."""
    wanted = {**_SETTINGS, **(settings or {}), "search_path": address.identifier}
    try:
        connection = await _connected(address, wanted, standby=standby)
        try:
            await _check_session(connection, address, wanted)
        except BaseException:
            terminate(connection)
            raise
    except asyncpg.PostgresError as error:
        if is_pooler(error, address):
            # A retry would not help.
            raise translate_error(error, address) from error
        raise
    _sessions.add(connection)
    _keep_alive(connection)
    # Without this the driver looks a type up at its first list, which takes 15 ms.
    cast(Any, connection)._protocol.get_settings().register_data_types([_NUMBERS, _BODIES])
    return connection


async def _connected(address: Address, wanted: Mapping[str, str], *, standby: bool) -> Connection:
    try:
        return await asyncpg.connect(
            address.dsn,
            timeout=_CONNECT_TIMEOUT,
            statement_cache_size=500,
            max_cached_statement_lifetime=0,
            # A pooler refuses unknown settings.
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
    """Return the servers to connect to; they override those that the driver reads from the URL."""
    hosts: dict[str, Any] = {}
    if address.hosts:
        hosts = {"host": [host for host, _ in address.hosts], "port": [port for _, port in address.hosts]}
    if standby or _options(address).get("target_session_attrs") == "read-write":
        return hosts
    # Of several servers, connect to the primary; a failover changes which one that is.
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
    # The library that this system does not have.
    limits = {"servicefile": os.devnull, "gsslib": "gssapi" if sys.platform == "win32" else "sspi"}
    return limits if address.has_password else {**limits, "password": ""}


def _shows_certificate(address: Address) -> bool:
    """Return True if the driver would present a certificate of the user to the server."""
    if address.hosts and all(host.startswith("/") for host, _ in address.hosts):
        return False
    if (_options(address).get("sslmode") or os.environ.get("PGSSLMODE")) == "disable":
        return False
    own = os.path.join(os.path.expanduser("~"), ".postgresql", "postgresql.crt")
    return bool(os.environ.get("PGSSLCERT")) or os.path.exists(own)


def _options(address: Address) -> dict[str, str]:
    return dict(parse_qsl(urlsplit(address.dsn).query))


async def _check_session(connection: Connection, address: Address, wanted: Mapping[str, str]) -> None:
    """Check that the connection reaches the server itself, with the requested settings. A pooler runs each
    transaction or statement on another server connection, so that settings, prepared statements and LISTEN do not
    persist. It is recognised by the backend pid, which it invents."""
    queries = server_queries()
    if address.pooled:
        await connection.fetch(queries["server_settings"], msgspec.json.encode(wanted).decode())
    process, path = await connection.fetchrow(queries["server_session"])  # type: ignore[misc]
    if process != connection.get_server_pid() and not address.pooled:
        raise UnsupportedPooler(path=address.shown, reason="a pooler is between agentbus and the server")
    if path != address.identifier:
        reason = f"search_path is {path} instead of the schema {address.schema}"
        raise UnsupportedPooler(path=address.shown, reason=reason)


def _keep_alive(connection: Connection) -> None:
    """Detect a server whose machine or network disappeared: otherwise a listener would wait indefinitely, and a query
    for a quarter of an hour."""
    own = cast(Any, connection)._transport.get_extra_info("socket")
    if own is None or own.family == socket.AF_UNIX:
        return
    own.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _PROBES.items():
        # Not every platform has all of these.
        if hasattr(socket, name):
            own.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


async def open_bus_connection(address: Address, timeout: float, clock: Clock, *, create: bool) -> Connection:
    """Open the connection that writes: migrate the tables (without a bus and without ``create`` that is an error) and
    set the clock to the server's time. Problems of the address or the server are raised at once."""
    read_all("postgres")
    try:
        connection = await connect(address, writing(timeout))
    except (*DRIVER, ValueError) as error:
        raise translate_error(error, address) from error
    try:
        moment = await prepare(connection, address, create=create)
    except BaseException:
        terminate(connection)
        raise
    if isinstance(clock, ServerClock):
        clock.set(moment)
    return connection


async def prepare(connection: Connection, address: Address, *, create: bool = True) -> int:
    """Check the server, migrate the tables, and return the server's time."""
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
        raise translate_error(error, address) from error
    return int(moment)


async def _is_current(connection: Connection, address: Address) -> bool:
    try:
        found = await connection.fetchval(server_queries()["server_version"])
    except asyncpg.UndefinedTableError as error:
        # The schema exists, but this user has no access.
        raise AccessDenied(path=address.shown, reason=f"no USAGE on the schema {address.schema}") from error
    newest = max(migrations())
    if found > newest:
        raise SchemaTooNew(path=address.shown, found=found, known=newest)
    return bool(found == newest)


async def _migrate(connection: Connection, address: Address) -> None:
    """Migrate in one transaction under a lock: a second process finds it done, a kill leaves the old or the new."""
    queries = server_queries()
    async with connection.transaction():
        await connection.fetch(queries["server_lock_migrations"], address.schema)
        *_, made, there = await connection.fetchrow(queries["server_facts"], address.schema)  # type: ignore[misc]
        if not there:
            await connection.execute(queries["server_schema"].format(schema=address.identifier))
        if made:
            # Before any table is locked: writers lock them in another order.
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
            reason = f"the tables have version {found}; only their owner can migrate them to {max(steps)}"
            raise AccessDenied(path=address.shown, reason=reason) from error


@cache
def migrations() -> dict[int, str]:
    """Return the numbered schema files, which are next to the package in a checkout and inside it in a wheel."""
    package = Path(__file__).parents[2]
    inside = package / "_schemas" / "postgres"
    folder = inside if inside.is_dir() else package.parent / "schemas" / "postgres"
    steps: dict[int, str] = {}
    for file in sorted(folder.glob("[0-9]*.sql")):
        number = re.match(r"\d+", file.name)
        if number is not None:
            steps[int(number[0])] = file.read_text(encoding="utf-8")
    return steps


def terminate(connection: Connection | None) -> None:
    """Close a connection without waiting for the server."""
    if connection is not None and not connection.is_closed():
        connection.terminate()


LONG = 10.0
"""Seconds without an answer after which a second connection probes the server."""


@contextmanager
def with_response_timeout(connection: Connection, address: Address) -> Iterator[None]:
    """Watch a query: if the server is unresponsive, close the connection.

    After ``LONG`` seconds without an answer another connection is tried. If that fails, the server counts as lost.
    Otherwise the query merely takes long.
    """
    watch = _Watch(connection, address)
    try:
        yield
    finally:
        watch.end()


class _Watch:
    def __init__(self, connection: Connection, address: Address) -> None:
        self._connection = connection
        self._address = address
        self._loop = asyncio.get_running_loop()
        self._probing: asyncio.Task[None] | None = None
        self._timer = self._loop.call_later(LONG, self._start_probe)

    def end(self) -> None:
        self._timer.cancel()
        if self._probing is not None:
            self._probing.cancel()

    def _start_probe(self) -> None:
        self._probing = self._loop.create_task(self._probe(), name="agentbus watch")

    async def _probe(self) -> None:
        try:
            terminate(await connect(self._address))
        except (asyncpg.PostgresError, AgentBusError):
            # A refusal is an answer.
            pass
        except driver_errors.DRIVER:
            terminate(self._connection)
            return
        self._timer = self._loop.call_later(LONG, self._start_probe)


log = logging.getLogger("agentbus.engine")

_FIRST = 0.02
_CROWDED = 0.2
"""Upper bound in seconds of the first pause after a lost connection, and after a refused one."""


def pause_of(state: RetryCallState) -> float:
    """Return the seconds before the next attempt of a transaction or a read: at most one."""
    error = state.outcome.exception() if state.outcome is not None else None
    # A transaction that was not committed carries the reason.
    error = getattr(error, "reason", error)
    first = _CROWDED if isinstance(error, BaseException) and driver_errors.is_crowded(error) else _FIRST
    return backoff(state.attempt_number, first, 1.0, jitter=1.0)


class Retries:
    """Bound the retries after ``error`` to ``timeout`` seconds, or fewer while the server has no connection left."""

    def __init__(self, address: Address, timeout: float, error: BaseException) -> None:
        self._timeout = timeout
        self._started = time.monotonic()
        self._crowded: float | None = None
        if driver_errors.is_lost(error):
            crowded = driver_errors.is_crowded(error)
            reason = driver_errors.translate_error(error, address).args[0]
            log.warning("%s; retrying for up to %g s", reason, self._crowded_timeout if crowded else timeout)

    @property
    def _crowded_timeout(self) -> float:
        return min(self._timeout, driver_errors.CROWDED)

    def are_over(self, error: BaseException | None) -> bool:
        """Return True if the attempt that ended with ``error`` was the last one."""
        now = time.monotonic()
        if error is None or not driver_errors.is_crowded(error):
            self._crowded = None
            return now - self._started > self._timeout
        self._crowded = now if self._crowded is None else self._crowded
        return now - self._crowded > self._crowded_timeout


MAX_OPENING = 4
"""Maximum number of buses of a process that open at the same time."""
_ADMISSION_TIMEOUT = 30.0
"""Minimum seconds to wait in line."""
_FIRST_ADMISSION_DELAY = 0.1
_LONGEST = 0.75
"""Maximum seconds after a refusal until the next bus may try; the delay doubles with each."""
_OUTDATED = 5.0
"""Seconds after which a refusal is disregarded."""


class Admission:
    """Queue buses that open on one server, first come, first served.

    A bus needs two connections to open. Many that open at once would each get one and be refused the other, and each
    attempt costs the server a process and this event loop a turn.
    """

    def __init__(self) -> None:
        self._inside = 0
        self._line: deque[asyncio.Future[None]] = deque()
        self._refusals = 0
        self._last: tuple[float, TooManyConnections] | None = None
        self._opened = 0.0

    @asynccontextmanager
    async def turn(self, address: Address, timeout: float) -> AsyncIterator[None]:
        """Wait for the turn to open, until none has opened for ``timeout`` seconds. While the server refuses
        connections, wait about a second, then raise the last refusal."""
        await self._wait(address, max(timeout, _ADMISSION_TIMEOUT))
        try:
            yield
        except TooManyConnections as error:
            self._refused(error)
            raise
        except BaseException:
            self._leave()
            raise
        self._refusals, self._last, self._opened = 0, None, asyncio.get_running_loop().time()
        self._leave()

    async def _wait(self, address: Address, timeout: float) -> None:
        if not self._line and self._inside < self._max_opening:
            self._inside += 1
            return
        loop = asyncio.get_running_loop()
        started = loop.time()
        turn: asyncio.Future[None] = loop.create_future()
        self._line.append(turn)
        try:
            while not turn.done():
                await asyncio.wait([turn], timeout=driver_errors.CROWDED)
                # More may open at a time once the last refusal is outdated.
                self._next()
                if not turn.done() and (refusal := self._refusal) is not None:
                    raise TooManyConnections(**refusal.facts)
                if not turn.done() and loop.time() - max(started, self._opened) > timeout:
                    raise LockTimeout(path=address.shown, pid="of this process", waited=timeout)
        except BaseException:
            if turn.done():
                self._leave()
            else:
                self._line.remove(turn)
            raise

    @property
    def _refusal(self) -> TooManyConnections | None:
        """Return the last refusal, unless it is outdated."""
        if self._last is not None and asyncio.get_running_loop().time() - self._last[0] > _OUTDATED:
            self._refusals, self._last = 0, None
        return None if self._last is None else self._last[1]

    @property
    def _max_opening(self) -> int:
        return MAX_OPENING if self._refusal is None else 1

    def _refused(self, error: TooManyConnections) -> None:
        """Hold the turn for a while, until the connections of the refused bus are closed."""
        loop = asyncio.get_running_loop()
        self._refusals, self._last = self._refusals + 1, (loop.time(), error)
        loop.call_later(backoff(self._refusals, _FIRST_ADMISSION_DELAY, _LONGEST, jitter=1.0), self._leave)

    def _leave(self) -> None:
        self._inside -= 1
        self._next()

    def _next(self) -> None:
        while self._line and self._inside < self._max_opening:
            self._inside += 1
            self._line.popleft().set_result(None)


_admissions: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, Admission]] = WeakKeyDictionary()


def admission(address: Address) -> Admission:
    """Return the queue of this event loop for a server and user."""
    servers = _admissions.setdefault(asyncio.get_running_loop(), {})
    return servers.setdefault(address.dsn, Admission())
