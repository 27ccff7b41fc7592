"""Where a bus on a server is: what to connect to, the schema that it is in, and how to name it without its password."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

import msgspec

from agentbus.errors import InvalidUrl

SCHEMA = "agentbus"
_HIGHEST_PORT = 65535
_FORM = (
    "it is not postgresql://user:password@host:port/database; "
    "in a password, / is written %2F, ? is %3F, # is %23, @ is %40"
)
_is_schema = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}").fullmatch
_HOST = r"(?:\[[^\[\]@]*\]|[^\[\]:@,]*)(?::[0-9]*)?"
_are_hosts = re.compile(f"{_HOST}(?:,{_HOST})*").fullmatch


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
        options = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
        if not url.startswith(f"{parts.scheme}://") or parts.fragment or "@" in (parts.path or parts.query):
            raise ValueError
        _check_hosts(parts.netloc.rpartition("@")[2], dict(options).get("port", ""))
    except ValueError:
        # Whatever looks like a port or a database here may be the rest of a password.
        raise InvalidUrl(url=scheme, reason=_FORM) from None
    schema = dict(options).get("schema", SCHEMA)
    if not _is_schema(schema):
        raise InvalidUrl(url=scheme, reason="schema must be letters, digits and _, not beginning with a digit")
    host = _shown_host(parts.netloc) or dict(options).get("host", "")
    rest = [(name, value) for name, value in options if name != "schema"]
    dsn = _joined(parts.scheme, parts.netloc, parts.path, rest)
    shown = f"postgresql://{host}{parts.path}{'' if schema == SCHEMA else f'?schema={schema}'}"
    plain = _joined(parts.scheme, _shown_host(parts.netloc), parts.path, _harmless(rest))
    return Address(dsn, schema, unquote(shown), plain)


def _joined(scheme: str, netloc: str, path: str, options: list[tuple[str, str]]) -> str:
    """Always with the // that other tools know a URL by, also where no host is named."""
    return f"{scheme}://{netloc}{path}{'?' if options else ''}{urlencode(options)}"


def _check_hosts(hosts: str, ports: str) -> None:
    """Hosts are names, and ports numbers; ValueError if not."""
    if not _are_hosts(hosts):
        raise ValueError
    named = [host.rpartition("]")[2].partition(":")[2] for host in hosts.split(",")]
    if not all(0 < int(port) <= _HIGHEST_PORT for port in (*named, *ports.split(",")) if port):
        raise ValueError


def _harmless(options: list[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(name, value) for name, value in options if "password" not in name.lower()]


def _shown_host(netloc: str) -> str:
    """The host and the user, without the password."""
    user, at, host = netloc.rpartition("@")
    return f"{user.partition(':')[0]}{at}{host}"
