"""Defaults, limits and checks of input: names, numbers, sizes, environment variables. Each check raises a named error
before anything is written."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, TypeAlias

from agentbus.errors import InvalidInput, InvalidName, OutOfRange
from agentbus.errors.base import shortened, shown

if TYPE_CHECKING:
    import re

Durability: TypeAlias = Literal["disk", "process"]
DURABILITIES = ("disk", "process")

# Defaults of settings, each defined here and nowhere else. Times are seconds.
DURABILITY: Durability = "disk"
LOCK_TIMEOUT = 30.0
LEASE = 60.0
"""Lease of a message or task that a process holds: the process renews it."""
VISITOR_LEASE = 600.0
"""Lease of a message that a visiting agent holds, counted from its last call: a model may think for minutes."""
HEARTBEAT_INTERVAL = 5.0
SWEEP_INTERVAL = 5.0
SUSPECT_AFTER = 60.0
FAIL_AFTER = 300.0
RETRY_DELAY = 1.0
"""Delay before the first retry of a step, or restart of a task or command."""
PAGE_SIZE = 100
MAX_ATTEMPTS = 5
THREAD_BOUND = 100
"""Messages of agents in one thread without progress or a person, after which further ones are held."""
STEER_TIMEOUT = 60.0
"""Seconds that steering an agent waits for the receipt."""
MAX_LOSSES = 5
"""Workers that a task may lose in a row before it fails."""
MAX_PAYLOAD = 1024 * 1024
MAX_HEADERS = 4096
"""Bytes of the headers of a message, as JSON."""
MAX_SNAPSHOT = 16 * 1024 * 1024
KEEP_VERSIONS = 10
"""Versions of a document that are stored."""

# Limits
MAX_NOTES = 10_000
MAX_FILES = 10_000
MAX_PATH = 4096
MAX_DEPTH = 128
MAX_SECONDS = 10 * 365 * 24 * 3600
MAX_BATCH = 10_000
MAX_PAGE = 1000
MAX_ERROR = 10_000
"""Characters of an exception that are stored."""
MAX_VERSIONS = 10_000
"""Upper limit of ``keep`` for versions and checkpoints: they are counted at every save."""
MAX_HISTORY_TEXT = 512
"""Characters of the name of a history, and of the part and the key of an item."""
MAX_HISTORY_META = 64 * 1024
"""Bytes of the metadata of a history or an item, as JSON."""
MAX_DELETIONS = 100_000
"""Items of a history that one call may delete by their names."""
MAX_ID = 2**62
"""Greater than any row id."""
OLD_TRANSACTION = 300
"""Seconds after which an open transaction on a server is reported: rows deleted since it started cannot be vacuumed,
and claims have to skip them."""
TASK_STATUSES = ("pending", "running", "waiting", "halted", "completed", "failed", "stopped")
TASK_ENDED = frozenset({"completed", "failed", "stopped"})
AGENT_STATUSES = ("pending", "spawning", "running", "suspect", "completed", "failed", "stopped")
SESSION_STATUSES = ("active", "paused", "interrupted", "completed", "failed")
CLIENTS_SCOPE = "agentbus/clients"
"""The scope of what the bus stores about clients: which agent a session is, and what hooks have shown."""
USAGE_KEY = "usage/tokens"
"""The entry of an agent's state that counts the tokens it has reported."""
STATE_TYPES = ("checkpoint", "progress", "user_data", "system_data", "temp_data")
MESSAGE_STATUSES = ("scheduled", "queued", "leased", "acked", "dead", "expired")

_YES = ("1", "true", "yes", "on")
_NO = ("0", "false", "no", "off")
"""Values of an environment variable."""
_SHOWN = 60
"""Characters of a text that an error shows."""
_NAMED = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._:@/-"
"""Characters of names and keys: a valid name is empty once these are stripped."""
_KEY_RULE = "use {} to 256 of A-Z a-z 0-9 . _ : @ / -"
_SESSION = "session:"
_ROW_CURSOR = "[0-9]{1,18}"
_TIME_CURSOR = r"([0-9]{1,18})\.([A-Za-z0-9._:@/-]{1,128})"


class Priority(IntEnum):
    """The priority of a message: any integer from 0 to 9.

    >>> Priority.URGENT > Priority.NORMAL
    True
    """

    LOW = 2
    NORMAL = 5
    HIGH = 7
    URGENT = 9


@lru_cache(4096)
def _is_name(name: str) -> bool:
    return 0 < len(name) <= 128 and not name.strip(_NAMED)


def check_name(name: object, what: str) -> str:
    if type(name) is not str or not _is_name(name):
        raise InvalidName(what=what, name=name)
    return name


def name_or_none(name: object, what: str) -> str | None:
    return None if name is None else check_name(name, what)


def check_key(key: object, what: str = "key") -> str:
    """Return a valid key of a state entry."""
    if type(key) is not str or not 0 < len(key) <= 256 or key.strip(_NAMED):
        raise InvalidName(what=what, name=key, rule=_KEY_RULE.format(1))
    return key


def check_prefix(prefix: object) -> str:
    """Return a valid prefix of keys; empty matches all."""
    if type(prefix) is not str or len(prefix) > 256 or prefix.strip(_NAMED):
        raise InvalidName(what="prefix", name=prefix, rule=_KEY_RULE.format(0))
    return prefix


def check_kind(kind: object) -> str:
    """Return a valid kind of histories."""
    if type(kind) is not str or not 0 < len(kind) <= 64 or kind.strip(_NAMED):
        raise InvalidName(what="kind", name=kind, rule="use 1 to 64 of A-Z a-z 0-9 . _ : @ / -")
    return kind


def check_scope(scope: object) -> str:
    """Return a valid scope of state: an agent's id, a session's scope, or any other name."""
    session = scope_session(scope) if type(scope) is str else None
    if session is not None:
        check_name(session, "session")
        return str(scope)
    return check_name(scope, "scope")


def session_scope(session: str) -> str:
    """Return the scope of a session's state. No agent id starts like it, so the two never share state."""
    return f"{_SESSION}{session}"


def scope_session(scope: str) -> str | None:
    """Return the session whose state a scope holds, or None."""
    return scope.removeprefix(_SESSION) if scope.startswith(_SESSION) else None


def check_names(names: Iterable[object], what: str) -> tuple[str, ...]:
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise InvalidName(what=f"{what}s", name=names, rule="give a list of names")
    return tuple(check_name(name, what) for name in names)


def check_message_id(message_id: object) -> str:
    """Return a caller's own message id; ids of the form m-123 are reserved for the bus."""
    checked = check_name(message_id, "message_id")
    if _is_generated(checked):
        raise InvalidName(what="message_id", name=message_id, rule="m-<number> is the bus's own form, choose another")
    return checked


def generated_id(message_id: str) -> int | None:
    """Return the row number in ``m-<row>``, or None for a caller's own message id."""
    return int(message_id[2:]) if _is_generated(message_id) and len(message_id) <= 20 else None


def _is_generated(message_id: str) -> bool:
    return message_id.startswith("m-") and message_id.isascii() and message_id[2:].isdigit()


def check_headers(headers: object) -> str | None:
    """Return the headers of a message as JSON, None if there are none: text to text, at most MAX_HEADERS bytes."""
    if headers is None:
        return None
    if not isinstance(headers, dict):
        raise InvalidInput(reason="headers must be a dict of text to text")
    checked = {
        check_text(name, "header name", MAX_HEADERS, low=1): check_text(
            value, f"header {shortened(name)!r}", MAX_HEADERS
        )
        for name, value in headers.items()
    }
    if not checked:
        return None
    # Imported only here: few messages have headers.
    from msgspec.json import encode

    encoded = encode(checked)
    if len(encoded) > MAX_HEADERS:
        raise OutOfRange(what="headers", value=f"{len(encoded)} bytes", allowed=f"at most {MAX_HEADERS} bytes of JSON")
    return encoded.decode()


def check_expected(expects: object) -> dict[str, str]:
    """Return the documents that a session expects, by producer."""
    if not isinstance(expects, Mapping):
        raise InvalidInput(reason="expects must be a dict from producers to documents")
    check_range(len(expects), "the number of expected documents", 0, MAX_PAGE)
    expected: dict[str, str] = {}
    for who, what in expects.items():
        if not isinstance(what, str):
            rule = "one document for each producer: expects={'planner-1': 'plan'}"
            raise InvalidName(what=f"document of {who!r}", name=what, rule=rule)
        expected[check_name(who, "producer")] = check_name(what, "document")
    return expected


def check_range(value: object, what: str, low: int, high: int) -> int:
    if value.__class__ is int and low <= value <= high:
        return value
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise OutOfRange(what=what, value=value, allowed=f"a whole number from {low} to {high}")
    return int(value)


def check_number(value: object, what: str, low: float, high: float) -> float:
    """Check a number that need not be whole."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise OutOfRange(what=what, value=value, allowed=f"a number from {low:g} to {high:g}")
    return value


def check_keep(keep: object, *, low: int = 1) -> int:
    """Return a valid number of versions to keep."""
    return check_range(keep, "keep", low, MAX_VERSIONS)


def check_row_cursor(cursor: object) -> int:
    """Return the row below which a page in row order, newest first, continues."""
    return MAX_ID if cursor is None else int(_match_cursor(cursor, _ROW_CURSOR)[0])


def check_number_cursor(cursor: object) -> int:
    """Return the number after which a page in the order of numbers continues."""
    return 0 if cursor is None else int(_match_cursor(cursor, _ROW_CURSOR)[0])


def check_time_cursor(cursor: object) -> tuple[int, str]:
    """Return the time and name below which a page in order of time continues."""
    if cursor is None:
        return MAX_ID, ""
    moment, name = _match_cursor(cursor, _TIME_CURSOR).groups()
    return int(moment), name


def _match_cursor(cursor: object, form: str) -> re.Match[str]:
    import re

    found = re.fullmatch(form, cursor) if isinstance(cursor, str) else None
    if found is None:
        raise OutOfRange(what="cursor", value=cursor, allowed="the cursor of a page")
    return found


def check_seconds(value: object, what: str, *, zero: bool = False, high: float = MAX_SECONDS) -> int:
    """Convert a number of seconds to milliseconds."""
    return _milliseconds(value, what, 0 if zero else 0.001, high, 1000, "seconds")


def check_minutes(value: object, what: str) -> int:
    """Convert a number of minutes to milliseconds."""
    return _milliseconds(value, what, 0, MAX_SECONDS // 60, 60_000, "minutes")


def _milliseconds(value: object, what: str, low: float, high: float, factor: int, unit: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise OutOfRange(what=what, value=value, allowed=f"{unit} from {low} to {high:.0f}")
    return round(value * factor)


def check_choice(value: object, what: str, choices: Sequence[str]) -> str:
    if value not in choices:
        raise OutOfRange(what=what, value=value, allowed=f"one of {', '.join(choices)}")
    return str(value)


def choices_or_none(values: object, what: str, choices: Sequence[str]) -> tuple[str, ...] | None:
    """Return one or several of the allowed values as a tuple."""
    if values is None:
        return None
    if isinstance(values, str) or not isinstance(values, Iterable):
        return (check_choice(values, what, choices),)
    return tuple(check_choice(value, what, choices) for value in values)


def check_options(given: Iterable[str], allowed: Sequence[str]) -> None:
    """Reject unknown options, suggesting the closest known name."""
    for name in given:
        if name not in allowed:
            # Imported on the error path only: the command line starts without it.
            from difflib import get_close_matches

            near = get_close_matches(name, allowed, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(allowed)}"
            raise InvalidInput(reason=f"there is no option {name!r}; {hint}")


def error_text(error: BaseException) -> str:
    """Return an exception as ``Type: message``, or ``Type``: a text that the bus takes (see ``plain_text``)."""
    try:
        # Joined, so that the result is a plain str: the name of a type, too, may be computed by foreign code.
        name = "".join((type(error).__name__,))
    except BaseException:
        name = "exception"
    reason = reason_text(error)
    return plain_text(f"{name}: {reason}" if reason else name)


def reason_text(error: BaseException) -> str:
    """Return the message of an exception. One that has none because its ``__str__`` fails still gets a text."""
    return plain_text(shown(error, str, "its text"))


def plain_text(text: str) -> str:
    """Return a text in the form that the bus takes: valid Unicode, no NUL, at most MAX_ERROR characters."""
    return text[:MAX_ERROR].encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")[:MAX_ERROR]


def check_text(value: object, what: str, high: int = 100_000, *, low: int = 0) -> str:
    if not isinstance(value, str) or not low <= len(value) <= high:
        shown = value if value is None or isinstance(value, int | float | str) else type(value).__name__
        if isinstance(shown, str) and len(shown) > _SHOWN:
            shown = f"{shown[:_SHOWN]}… ({len(shown)} characters)"
        raise OutOfRange(what=what, value=shown, allowed=f"a text of {low} to {high} characters")
    if "\0" in value or not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise OutOfRange(what=what, value="text", allowed="valid Unicode") from None
        if "\0" in value:
            raise OutOfRange(what=what, value="text", allowed="free of NUL")
    return value


def read_number(variable: str, default: float) -> float:
    """Return the number in an environment variable, or the default if it is not set.

    >>> read_number("AGENTBUS_OUTGROWN_WAITS", 30.0)
    30.0
    """
    text = os.environ.get(variable, "").strip()
    if not text:
        return default
    try:
        return float(text)
    except ValueError:
        raise OutOfRange(what=variable, value=text, allowed="a number") from None


def read_flag(variable: str) -> bool:
    """Return whether an environment variable is set to yes; False if it is not set.

    >>> os.environ["AGENTBUS_AUTO_RESUME"] = "yes"
    >>> read_flag("AGENTBUS_AUTO_RESUME")
    True
    >>> del os.environ["AGENTBUS_AUTO_RESUME"]
    """
    text = os.environ.get(variable, "")
    value = text.strip().lower()
    if value and value not in _YES + _NO:
        raise OutOfRange(what=variable, value=text, allowed=f"one of {', '.join(_YES + _NO)}")
    return value in _YES
