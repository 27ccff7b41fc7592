"""The user's notifiers: ``$XDG_CONFIG_HOME/agentbus/notifications.toml``, which only the user may read and write.

    owner = "ada"                               # the default is the account and the host

    [webhook.ops]
    url = "https://hooks.example.org/agentbus"
    secret = "whsec_…"                          # or secret_variable = "OPS_SECRET"
    buses = ["~/project"]

    [command.desktop]
    command = ["/usr/bin/notify-send", "agentbus"]
    buses = ["*"]

Errors name the setting, never its value, which may be a secret.
"""

from __future__ import annotations

import os
import re
from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NoReturn, TypeVar, get_args

import msgspec

from agentbus.core import user_files
from agentbus.core.network import parse_networks
from agentbus.errors import InvalidSettings

FILE = "notifications.toml"
EVERY_BUS = "*"
MAX_TIMEOUT = 60.0
_MIN_SECRET, _MAX_SECRET = 24, 64
"""Bytes of a secret, as Standard Webhooks has them."""
_PREFIX = "whsec_"
_is_name = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}").fullmatch
_is_variable = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}").fullmatch
_is_header = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}").fullmatch
_is_host = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,252}[A-Za-z0-9_])?\.?").fullmatch
_MAX_LABEL = 63
"""Characters of a host between two dots."""
_RESERVED = frozenset(
    {"host", "content-length", "content-type", "transfer-encoding", "connection", "expect", "user-agent"}
)

Positive = Annotated[float, msgspec.Meta(gt=0, le=MAX_TIMEOUT)]
Attempts = Annotated[int, msgspec.Meta(ge=1, le=100)]
Severity = Literal["info", "warning", "error"]
Included = Literal["question", "error"]
_CHOICES = {"severity": get_args(Severity), "include": get_args(Included)}
_T = TypeVar("_T")


class Notifier(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings that all notifiers share. Empty lists of events, sessions and workflows mean all."""

    buses: list[str]
    events: list[str] = []
    severity: Severity = "warning"
    sessions: list[str] = []
    workflows: list[str] = []
    include: list[Included] = []
    timeout: Positive = 10.0
    max_attempts: Attempts = 12

    def __repr__(self) -> str:
        # The fields may have secrets.
        return f"<{type(self).__name__}>"


class Webhook(Notifier, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A URL that notifications are posted to."""

    url: str
    secret: str | None = None
    secret_variable: str | None = None
    signed: bool = True
    allow: list[str] = []
    ca_file: str | None = None
    headers: dict[str, str] = {}


class Command(Notifier, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A command that is run for each notification, without a shell. ``environment`` names variables that it gets."""

    command: list[str]
    environment: list[str] = []


class Target(msgspec.Struct, frozen=True):
    """A URL in its parts. ``host`` is without brackets; ``path`` includes the query."""

    scheme: str
    host: str
    port: int
    path: str

    @property
    def authority(self) -> str:
        """Return the value of the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    def __repr__(self) -> str:
        return "<Target>"


class Settings(msgspec.Struct, frozen=True):
    """The notifiers of a user by name, and the name of the user on the bus."""

    owner: str
    notifiers: dict[str, Webhook | Command]


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    owner: str | None = None
    webhook: dict[str, dict[str, Any]] = {}
    command: dict[str, dict[str, Any]] = {}


_PORTS = {"http": 80, "https": 443}


def path() -> str:
    """Return the path of the user's file."""
    return user_files.path(FILE)


def load(kinds: Mapping[str, str]) -> Settings:
    """Read and check the user's file; without one there are no notifiers. ``kinds`` are the known events."""
    file = path()
    text = user_files.read_private(file)
    return Settings(_account(), {}) if text is None else parse(text, file, kinds)


def parse(text: str, file: str, kinds: Mapping[str, str]) -> Settings:
    """Read the text of the file, and check every setting."""
    import tomllib

    try:
        content = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        # The text of the error has a position, no content. An integer of thousands of digits has not even that.
        _refuse(file, f"it is not TOML: {_position(str(error))}", "correct that line")
    found = _convert(content, _File, "", file)
    owner = _account() if found.owner is None else found.owner
    if not 0 < len(owner) <= 200 or not owner.isprintable():
        _refuse(file, "owner must be 1 to 200 printable characters", 'owner = "ada"')
    notifiers: dict[str, Webhook | Command] = {}
    families: tuple[tuple[str, type[Webhook | Command], dict[str, dict[str, Any]]], ...] = (
        ("webhook", Webhook, found.webhook), ("command", Command, found.command),
    )  # fmt: skip
    for family, type_, group in families:
        for name, given in group.items():
            where = f"{family}.{name}"
            if not _is_name(name):
                _refuse(file, f"{where[:80]!r} is not a name", "use 1 to 64 letters, digits, _ and -")
            if name in notifiers:
                _refuse(file, f"{name} is both a webhook and a command", "give one another name")
            one = _convert(given, type_, where, file)
            _check_common(one, where, file, kinds)
            if isinstance(one, Webhook):
                _check_webhook(one, where, file)
            else:
                _check_command(one, where, file)
            notifiers[name] = one
    return Settings(owner, notifiers)


def parse_url(url: str) -> Target:
    """Split a URL. Raise ValueError with the reason, which does not have the URL: it may be a secret."""
    from urllib.parse import urlsplit

    if not url.isascii() or not url.isprintable() or " " in url or "\\" in url:
        raise ValueError("has characters that must be encoded")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ValueError("is not a URL") from None
    if parts.scheme not in _PORTS:
        raise ValueError("must start with https:// or http://")
    if "@" in parts.netloc:
        raise ValueError("has credentials; put them in headers, or in the path")
    if parts.fragment:
        raise ValueError("has a fragment, which is never sent")
    host = (parts.hostname or "").removesuffix(".")
    if ":" in host:
        from ipaddress import IPv6Address

        try:
            IPv6Address(host)
        except ValueError:
            raise ValueError("has no valid host") from None
    elif not _is_host(host) or not all(0 < len(label) <= _MAX_LABEL for label in host.split(".")):
        raise ValueError("has no valid host")
    elif _is_odd_number(host):
        raise ValueError("has an address in an unusual form; write it as 192.0.2.1")
    query = f"?{parts.query}" if parts.query else ""
    return Target(parts.scheme, host, _PORTS[parts.scheme] if port is None else port, f"{parts.path or '/'}{query}")


def secret_key(webhook: Webhook) -> bytes | None:
    """Return the key that signs notifications; None if they are not signed. Raise ValueError with the reason."""
    if not webhook.signed:
        return None
    text = webhook.secret
    if webhook.secret_variable is not None:
        text = os.environ.get(webhook.secret_variable)
        if not text:
            raise ValueError(f"the variable {webhook.secret_variable} is not set")
    try:
        key = b64decode((text or "").removeprefix(_PREFIX), validate=True)
    except ValueError:
        raise ValueError("the secret is not base64") from None
    if not _MIN_SECRET <= len(key) <= _MAX_SECRET:
        raise ValueError(f"the secret must have {_MIN_SECRET} to {_MAX_SECRET} bytes, in base64 after {_PREFIX}")
    return key


def new_secret() -> str:
    """Return a new random secret."""
    return _PREFIX + b64encode(os.urandom(32)).decode()


def wanted_kinds(one: Notifier, kinds: Mapping[str, str]) -> frozenset[str]:
    """Return the kinds of notifications that a notifier gets."""
    order = ("info", "warning", "error")
    least = order.index(one.severity)
    return frozenset(kind for kind in (one.events or kinds) if order.index(kinds[kind]) >= least)


def _check_common(one: Notifier, where: str, file: str, kinds: Mapping[str, str]) -> None:
    if not one.buses:
        advice = f'{where}: buses = ["~/project"]; ["{EVERY_BUS}"] means every bus that you open'
        _refuse(file, f"{where}.buses is empty", advice)
    for bus in one.buses:
        if bus != EVERY_BUS and not bus.startswith(("/", "~", "postgresql://", "postgres://")):
            advice = 'use an absolute path, ~/…, postgresql://host/database, or "*" for every bus'
            _refuse(file, f"{where}.buses has an entry that depends on the working directory", advice)
    for kind in one.events:
        if kind not in kinds:
            _refuse(file, f"{where}.events: unknown event {kind[:80]!r}", f"events: {', '.join(kinds)}")


def _check_webhook(one: Webhook, where: str, file: str) -> None:
    try:
        parse_url(one.url)
    except ValueError as error:
        _refuse(file, f"{where}.url {error}", 'url = "https://host/path"')
    if one.signed and (one.secret is None) == (one.secret_variable is None):
        advice = f'{where}: secret = "{_PREFIX}…" or secret_variable = "NAME"; or signed = false'
        _refuse(file, f"{where} needs one secret", advice)
    if not one.signed and (one.secret or one.secret_variable):
        _refuse(file, f"{where} has a secret, and is not signed", "remove signed = false, or the secret")
    if one.secret_variable is not None and not _is_variable(one.secret_variable):
        _refuse(file, f"{where}.secret_variable is not the name of a variable", 'secret_variable = "OPS_SECRET"')
    if one.secret is not None:
        try:
            secret_key(one)
        except ValueError as error:
            _refuse(file, f"{where}: {error}", "agentbus notifications secret prints a new one")
    try:
        parse_networks(one.allow)
    except ValueError:
        _refuse(file, f"{where}.allow has an entry that is not a network", 'allow = ["10.0.0.0/8", "127.0.0.1"]')
    if one.ca_file is not None and not os.path.isabs(os.path.expanduser(one.ca_file)):
        _refuse(file, f"{where}.ca_file is not an absolute path", 'ca_file = "/etc/ssl/own-ca.pem"')
    for name, value in one.headers.items():
        if not _is_header(name) or name.lower() in _RESERVED or name.lower().startswith("webhook-"):
            _refuse(file, f"{where}.headers: {name[:80]!r} cannot be set", "agentbus sets it, or it is not a header")
        if not value.isascii() or not value.isprintable() or len(value) > 4096:
            _refuse(file, f"{where}.headers: the value of {name} is invalid", "use printable ASCII on one line")


def _check_command(one: Command, where: str, file: str) -> None:
    if not one.command or not os.path.isabs(one.command[0]):
        advice = 'command = ["/usr/bin/notify-send", "agentbus"]; there is no shell, and no search in PATH'
        _refuse(file, f"{where}.command must start with an absolute path", advice)
    if any("\0" in word for word in one.command):
        _refuse(file, f"{where}.command has a NUL character", "remove it")
    if not all(map(_is_variable, one.environment)):
        _refuse(
            file, f"{where}.environment has an entry that is not the name of a variable", 'environment = ["DISPLAY"]'
        )


def _is_odd_number(host: str) -> bool:
    """Return whether a resolver may take the host for an address that is not written as 192.0.2.1."""
    last = host.rpartition(".")[2]
    if not (last.isdigit() or re.fullmatch(r"0[xX][0-9a-fA-F]*", last)):
        return False
    parts = host.split(".")
    return len(parts) != 4 or any(not part.isdigit() or str(int(part)) != part or int(part) > 255 for part in parts)


def _account() -> str:
    """Return the default owner: the account and the host."""
    import pwd

    try:
        user = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        user = f"user-{os.geteuid()}"
    return f"{user}@{os.uname().nodename}"[:200]


def _convert(content: dict[str, Any], type_: type[_T], where: str, file: str) -> _T:
    """Read the whole file, or the notifier ``where``."""
    try:
        return msgspec.convert(content, type_)
    except msgspec.ValidationError as error:
        advice = "agentbus notifications check --help lists the settings"
        _refuse(file, _words(str(error), where), advice)


def _words(error: str, where: str) -> str:
    """Return the text of a validation error with the location first: ``webhook.ops.timeout: Expected float``."""
    text, _, location = error.partition(" - at `$")
    location = location.rstrip("`").lstrip(".")
    if text.startswith("Invalid enum value"):
        # It quotes the value.
        text = f"must be one of {', '.join(_CHOICES[location.partition('[')[0]])}"
    start = ".".join(filter(None, (where, location)))
    return f"{start}: {text}" if start else text


def _position(error: str) -> str:
    """Return the position that a TOML error has at its end, without the words before it, which may quote a value."""
    _, found, position = error.rpartition("(at ")
    return f"at {position.rstrip(')')}" if found else "it cannot be read"


def _refuse(file: str, reason: str, advice: str) -> NoReturn:
    raise InvalidSettings(path=file, reason=reason, advice=advice)
