"""Where a bus on a server is: what to connect to, the schema that it is in, and how to name it without its password."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit, urlunsplit

import msgspec

from agentbus.errors import InvalidUrl

SCHEMA = "agentbus"
_HIGHEST_PORT = 65535
_is_schema = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}").fullmatch


class Address(msgspec.Struct, frozen=True):
    """A bus on a server. ``dsn`` may hold a password; ``shown`` (for people), ``plain`` (for other tools) never do."""

    dsn: str
    schema: str
    shown: str
    plain: str

    def __repr__(self) -> str:
        return f"<{self.shown}>"

    @property
    def identifier(self) -> str:
        """The schema as SQL takes it."""
        return f'"{self.schema}"'

    @property
    def bare(self) -> str:
        """A URL that opens it, for whoever brings a password by other means."""
        if self.schema == SCHEMA:
            return self.plain
        return f"{self.plain}{'&' if '?' in self.plain else '?'}schema={self.schema}"

    def dump(self, path: Path | None) -> str:
        """The command that backs it up."""
        file = shlex.quote(str(path or f"{self.schema}.dump"))
        # There it is a pattern, in which capitals have to be quoted too.
        schema = self.schema if self.schema.islower() else shlex.quote(self.identifier)
        return f"pg_dump --format=custom --schema={schema} --file={file} {shlex.quote(self.plain)}"

    def restore(self, path: str) -> str:
        """The command that puts a backup back, in the place of what is there."""
        return f"pg_restore --clean --if-exists --dbname={shlex.quote(self.plain)} {shlex.quote(path)}"

    @property
    def directory(self) -> Path:
        """Where this machine keeps files of the bus."""
        state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", self.shown.partition("://")[2]).strip("-")
        return Path(state).expanduser() / "agentbus" / name


def parse(url: str) -> Address:
    """The bus that a ``postgresql://`` URL names; ``?schema=`` is ours, the rest is the driver's."""
    scheme = f"{url.partition(':')[0]}://…"
    if "\0" in url or not url.isprintable():
        raise InvalidUrl(url=scheme, reason="it has a character in it that cannot be printed")
    try:
        parts = urlsplit(url)
        if not parts.fragment and "@" not in parts.path:
            _check_ports(parts)
        options = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
        host = _shown_host(parts.netloc) or dict(options).get("host", "")
    except ValueError:
        # Its text may have the password in it.
        raise InvalidUrl(url=scheme, reason="it is not postgresql://user:password@host:port/database") from None
    if parts.fragment:
        raise InvalidUrl(url=scheme, reason="a # in a password must be written %23")
    if "@" in parts.path:
        # What comes before it is the rest of a password, or all of it.
        raise InvalidUrl(url=scheme, reason="a / in a password must be written %2F, an @ in a database %40")
    schema = dict(options).get("schema", SCHEMA)
    if not _is_schema(schema):
        raise InvalidUrl(url=scheme, reason="schema must be letters, digits and _, not beginning with a digit")
    rest = [(name, value) for name, value in options if name != "schema"]
    dsn = urlunsplit((parts.scheme, parts.netloc, parts.path, urlencode(rest), ""))
    shown = f"postgresql://{host}{parts.path}{'' if schema == SCHEMA else f'?schema={schema}'}"
    place = urlunsplit((parts.scheme, _shown_host(parts.netloc), parts.path, urlencode(_harmless(rest)), ""))
    return Address(dsn, schema, unquote(shown), place)


def _check_ports(parts: SplitResult) -> None:
    """What stands where a port does is a number: a password that broke the URL apart is not to be taken for one."""
    hosts = parts.netloc.rpartition("@")[2].split(",")
    ports = [host.rpartition("]")[2].partition(":")[2] for host in hosts]
    ports += dict(parse_qsl(parts.query)).get("port", "").split(",")
    if not all(0 < int(port) <= _HIGHEST_PORT for port in ports if port):
        raise ValueError


def _harmless(options: list[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(name, value) for name, value in options if "password" not in name.lower()]


def _shown_host(netloc: str) -> str:
    """The host and the user, without the password."""
    user, at, host = netloc.rpartition("@")
    return f"{user.partition(':')[0]}{at}{host}"
