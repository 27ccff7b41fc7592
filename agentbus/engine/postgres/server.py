"""The address of a bus on a server, and the server's clock, which all processes of the bus share.

An address is never shown with its password.
"""

from __future__ import annotations

import os
import re
import shlex
import time
from asyncio import AbstractEventLoop
from collections.abc import Callable
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

import msgspec

from agentbus.core.clock import Now, Timer
from agentbus.errors import InvalidUrl

SCHEMA = "agentbus"
_PORT = "5432"
_SESSION = "session"
_OWN = {"credentials": "url", "pooler": _SESSION}
"""Options of a URL that agentbus itself reads, each with its only value."""
_BORROWING = frozenset(
    {"gsslib", "krbsrvname", "passfile", "service", "servicefile", "sslcert", "sslkey", "sslpassword"}
)
"""Options of the driver that present credentials of the user to the server."""
_HIGHEST_PORT = 65535
_FORM = (
    "it is not postgresql://user:password@host:port/database; "
    "in a password, / is written %2F, ? is %3F, # is %23, @ is %40"
)
_is_schema = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}").fullmatch
_HOST = r"(?:\[[^\[\]@]*\]|[^\[\]:@,]*)(?::[0-9]*)?"
_are_hosts = re.compile(f"{_HOST}(?:,{_HOST})*").fullmatch


class Address(msgspec.Struct, frozen=True):
    """The address of a bus. ``dsn`` may hold a password; ``shown`` (for messages) and ``plain`` (for tools) never do.

    ``hosts`` are the hosts and ports that the URL names. They are passed to the driver as they are here, so that the
    server that was checked is the one that is connected to. ``restricted``: only credentials in the URL itself may be
    presented to the server. ``pooled``: the user declared a pooler in session mode.
    """

    dsn: str
    schema: str
    shown: str
    plain: str
    hosts: tuple[tuple[str, int], ...] = ()
    has_password: bool = False
    restricted: bool = False
    pooled: bool = False

    def __repr__(self) -> str:
        return f"<{self.shown}>"

    @property
    def identifier(self) -> str:
        """Return the schema as a quoted SQL identifier."""
        return f'"{self.schema}"'

    @property
    def bare(self) -> str:
        """Return a URL without a password that opens the bus."""
        own = [("schema", self.schema)] if self.schema != SCHEMA else []
        own += [("pooler", _SESSION)] if self.pooled else []
        return _extended(self.plain, own)

    @property
    def servers(self) -> list[str]:
        """Return the servers that the driver may connect to, each as ``host:port``; an IPv6 address in brackets."""
        hosts = self.hosts or _default_hosts(dict(parse_qsl(urlsplit(self.dsn).query)).get("port", ""))
        return [f"[{host}]:{port}" if ":" in host else f"{host.lower()}:{port}" for host, port in hosts]

    @property
    def location(self) -> str:
        """Return servers, database and schema, without user and password, in one form for every spelling of the URL."""
        database = unquote(urlsplit(self.dsn).path)
        return f"postgresql://{','.join(self.servers)}{database}?schema={self.schema}"

    @property
    def borrowed(self) -> list[str]:
        """Return the options of the URL that take credentials from files or services of the user."""
        return [name for name in dict(parse_qsl(urlsplit(self.dsn).query)) if name in _BORROWING]

    def dump(self, path: Path | None) -> str:
        """Return the command that backs the bus up."""
        file = shlex.quote(str(path or f"{self.schema}.dump"))
        # pg_dump takes a pattern, in which capitals must be quoted too.
        schema = self.schema if self.schema.islower() else shlex.quote(self.identifier)
        return f"pg_dump --format=custom --schema={schema} --file={file} {shlex.quote(self.plain)}"

    def restore(self, path: str) -> str:
        """Return the command that restores a backup over the present tables."""
        return f"pg_restore --clean --if-exists --dbname={shlex.quote(self.plain)} {shlex.quote(path)}"

    @property
    def directory(self) -> Path:
        """Return the directory of this machine for files of the bus."""
        state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", self.shown.partition("://")[2]).strip("-")
        return Path(state).expanduser() / "agentbus" / name


def parse(url: str) -> Address:
    """Parse a ``postgresql://`` URL. ``schema``, ``pooler`` and ``credentials`` are options of agentbus; the driver
    gets the others."""
    scheme = f"{url.partition(':')[0]}://…"
    if "\0" in url or not url.isprintable():
        raise InvalidUrl(url=scheme, reason="it contains an unprintable character")
    try:
        parts = urlsplit(url)
        options = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
        if not url.startswith(f"{parts.scheme}://") or parts.fragment or "@" in (parts.path or parts.query):
            raise ValueError
        # The driver reads the user up to the first @, and hosts after it.
        if parts.netloc.count("@") > 1:
            raise ValueError
        named = {name: value for name, value in options if value}
        _check_hosts(parts.netloc.rpartition("@")[2], named.get("port", ""))
        hosts = _hosts(parts.netloc.rpartition("@")[2], named)
    except ValueError:
        # What looks like a port or a database here may be part of a password.
        raise InvalidUrl(url=scheme, reason=_FORM) from None
    schema = dict(options).get("schema", SCHEMA)
    if not _is_schema(schema):
        raise InvalidUrl(url=scheme, reason="schema must be letters, digits and _, and must not start with a digit")
    for name, allowed in _OWN.items():
        if any(one == name and value != allowed for one, value in options):
            raise InvalidUrl(url=scheme, reason=f"{name} must be {allowed}")
    host = _shown_host(parts.netloc) or dict(options).get("host", "")
    rest = [(name, value) for name, value in options if name != "schema" and name not in _OWN]
    dsn = _joined(parts.scheme, parts.netloc, parts.path, rest)
    shown = f"postgresql://{host}{parts.path}{'' if schema == SCHEMA else f'?schema={schema}'}"
    plain = _joined(parts.scheme, _shown_host(parts.netloc), parts.path, _harmless(rest))
    return Address(
        dsn,
        schema,
        unquote(shown),
        plain,
        hosts,
        has_password=bool(parts.password or named.get("password")),
        restricted="credentials" in named,
        pooled="pooler" in named,
    )


def restricted(url: str) -> str:
    """Return the URL marked so that the server gets only the credentials in it. The mark stays on the URL, also in the
    environment of child processes."""
    return _extended(url, [("credentials", _OWN["credentials"])])


def _extended(url: str, options: list[tuple[str, str]]) -> str:
    return f"{url}{'&' if '?' in url else '?'}{urlencode(options)}" if options else url


def _hosts(netloc: str, named: dict[str, str]) -> tuple[tuple[str, int], ...]:
    """Return the hosts and ports that a URL names, in the order in which the driver tries them."""
    if netloc:
        pairs = [_host_and_port(spec) for spec in netloc.split(",")]
        hosts = [unquote(host) or "localhost" for host, _ in pairs]
        ports = [port for _, port in pairs]
    elif "host" in named:
        pairs = [_host_and_port(spec) for spec in named["host"].split(",")]
        hosts = [host or "localhost" for host, _ in pairs]
        ports = _spread(named["port"], len(hosts)) if "port" in named else [port for _, port in pairs]
    else:
        return ()
    default = _spread(os.environ.get("PGPORT") or _PORT, len(hosts)) if not all(ports) else ports
    return tuple((host, int(port or other)) for host, port, other in zip(hosts, ports, default, strict=True))


def _default_hosts(port: str) -> tuple[tuple[str, int], ...]:
    """Return the servers that the driver uses if the URL names none."""
    named = {"host": os.environ.get("PGHOST") or "localhost", **({"port": port} if port else {})}
    try:
        return _hosts("", named)
    except ValueError:
        raise InvalidUrl(url="postgresql://…", reason="PGHOST or PGPORT is invalid") from None


def _host_and_port(spec: str) -> tuple[str, str]:
    if spec.startswith("/"):
        return spec, ""
    if spec.startswith("["):
        host, _, port = spec[1:].partition("]")
        return host, port.removeprefix(":")
    host, _, port = spec.partition(":")
    return host, port


def _spread(ports: str, count: int) -> list[str]:
    """Return a port for each host, from one for all or one for each."""
    given = ports.split(",")
    if len(given) not in (1, count):
        raise ValueError
    return given * count if len(given) == 1 else given


def _joined(scheme: str, netloc: str, path: str, options: list[tuple[str, str]]) -> str:
    """Join a URL, with // even if no host is named."""
    return f"{scheme}://{netloc}{path}{'?' if options else ''}{urlencode(options)}"


def _check_hosts(hosts: str, ports: str) -> None:
    """Raise ValueError unless hosts are names and ports are numbers."""
    if not _are_hosts(hosts):
        raise ValueError
    named = [host.rpartition("]")[2].partition(":")[2] for host in hosts.split(",")]
    if not all(0 < int(port) <= _HIGHEST_PORT for port in (*named, *ports.split(",")) if port):
        raise ValueError


def _harmless(options: list[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(name, value) for name, value in options if "password" not in name.lower()]


def _shown_host(netloc: str) -> str:
    """Return user and host without the password."""
    user, at, host = netloc.rpartition("@")
    return f"{user.partition(':')[0]}{at}{host}"


_FRESH = 1000
"""Milliseconds for which a reading of the server's time is used: clocks drift less than a millisecond in that time."""
BOOT = "server"
"""The server's time continues over restarts, so that a restart invalidates no lease and no heartbeat."""


class ServerClock:
    """The server's time: read with each transaction, and extrapolated in between."""

    def __init__(self) -> None:
        self._ahead = time.time_ns() // 1_000_000 - _here()
        self._read_at = -_FRESH

    @property
    def is_fresh(self) -> bool:
        """Return True if the last reading is recent."""
        return _here() - self._read_at < _FRESH

    def now(self) -> Now:
        moment = _here() + self._ahead
        return Now(moment, moment, BOOT)

    def set(self, moment: int) -> Now:
        """Set the clock to a reading of the server's time, and return it."""
        self._read_at = _here()
        self._ahead = moment - self._read_at
        return Now(moment, moment, BOOT)

    def forget(self) -> None:
        """Require a new reading: after a failover the server has another clock."""
        self._read_at = _here() - _FRESH

    def call_later(self, loop: AbstractEventLoop, seconds: float, callback: Callable[[], None]) -> Timer:
        return loop.call_later(seconds, callback)


_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""The server runs while this machine is suspended: prefer a clock that does too."""


def _here() -> int:
    """Return milliseconds of a clock that cannot be set."""
    return time.clock_gettime_ns(_CLOCK) // 1_000_000
