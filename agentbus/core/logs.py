"""Structured logs: a formatter that writes each record as one JSON object, and the settings in the environment.

handler = logging.StreamHandler()
handler.setFormatter(JSONFormatter())
logging.getLogger("agentbus").addHandler(handler)
"""

from __future__ import annotations

import logging
import os
import re
import sys
import traceback
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from agentbus.core.validation import error_text, plain_text
from agentbus.errors import AgentBusError, OutOfRange

FORMATS = ("text", "json")
LEVELS = ("debug", "info", "warning", "error")
trace_ids: Callable[[], tuple[str, str] | None] | None = None
"""Returns the trace id and the span id of the caller as hexadecimal, or None. Set while traces are recorded."""

_MAX_TEXT = 10_000
"""Characters of a message or a traceback."""
_MAX_FIELD = 1000
_MAX_FIELDS = 32
_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName", "code"}
"""The attributes that every record has."""
_FACTS = frozenset({
    "agent", "epoch", "holder", "host", "kind", "lease", "limit", "message_id", "milestone", "operation", "path", "pid",
    "seconds", "session", "status", "step", "task", "type", "version", "waited", "workflow",
})  # fmt: skip
"""The facts of an error that are logged: what it is about. Others may quote a value of the caller."""
_SECRET_NAME = re.compile(
    r"secret|password|passwd|token|authorization|cookie|credential|api_?key|payload", re.IGNORECASE
)
_NAMES = r"(?:secret|password|passwd|token|api[_-]?key|credentials?)"
_SECRETS = (
    (re.compile(r"(\w://[^\s/:@]*):[^\s/@]+@"), r"\1:…@"),
    (re.compile(r"\bab_[A-Za-z0-9_-]{8,}"), "ab_…"),
    (re.compile(r"\bwhsec_[A-Za-z0-9+/=_-]+"), "whsec_…"),
    (re.compile(r"\b(bearer\s+)[^\s\"']+", re.IGNORECASE), r"\1…"),
    # Words such as "basic tests" have neither capitals nor digits.
    (re.compile(r"\b((?i:basic)\s+)(?=[a-z+/_-]*[A-Z0-9=])[A-Za-z0-9+/_-]{4,}={0,2}"), r"\1…"),
    (re.compile(rf"""({_NAMES}(?:\s*=|["']\s*[:=])\s*)("[^"]*"?|'[^']*'?|[^\s&,;"']+)""", re.IGNORECASE), r"\1…"),
)
"""Passwords in URLs, tokens of HTTP clients, secrets of webhooks, credentials of requests, and values of parameters
whose name says that they are secret."""
_LINE_ENDS = re.compile(r"[\x7f-\x9f\u2028\u2029]")
"""Characters that JSON permits in a text, but that some programs take for the end of a line, or a terminal obeys."""


class JSONFormatter(logging.Formatter):
    """Formats a record as one line of JSON.

    Each has ``time`` (RFC 3339, UTC), ``level``, ``logger`` and ``message``. A record of an error of the bus has its
    ``code``, and in ``fields`` what the error is about. ``fields`` also has what was given to the logger as ``extra``,
    if it is a text, a number or a truth value. ``trace_id`` and ``span_id`` are there while traces are recorded;
    ``exception`` is a traceback. Passwords in URLs, tokens, and extras whose name says that they are secret are left
    out.

    >>> record = logging.makeLogRecord({"name": "agentbus", "levelname": "WARNING", "created": 0.25, "msg": "lost %s",
    ...     "args": ("postgresql://ada:secret@db/bus",), "task": "build-1"})
    >>> msgspec.json.decode(JSONFormatter().format(record))["message"]
    'lost postgresql://ada:…@db/bus'
    """

    def format(self, record: logging.LogRecord) -> str:
        try:
            text = record.getMessage()
        except Exception as problem:
            # Arguments that do not fit, or whose text raises: a record is better than an error of the handler.
            text = f"{_text(record.msg)} ({error_text(problem)})"
        found: dict[str, Any] = {
            "time": _time(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _clean(text),
        }
        error = _error(record)
        code = getattr(record, "code", None) or (None if error is None else error.code)
        if code is not None:
            found["code"] = _clean(_text(code), _MAX_FIELD)
        fields = _fields(error, record.__dict__)
        if fields:
            found["fields"] = fields
        found |= _trace()
        if record.exc_info and record.exc_info[2] is not None:
            found["exception"] = _traceback(record.exc_info[1])
        return _LINE_ENDS.sub(lambda match: f"\\u{ord(match[0]):04x}", msgspec.json.encode(found).decode())


def log_settings() -> tuple[str, int]:
    """Return the format and the level of logs: ``AGENTBUS_LOG`` (text or json) and ``AGENTBUS_LOG_LEVEL``.

    >>> log_settings()
    ('text', 30)
    """
    format = _choice("AGENTBUS_LOG", FORMATS) or "text"
    level = _choice("AGENTBUS_LOG_LEVEL", LEVELS) or ("info" if format == "json" else "warning")
    return format, logging.getLevelNamesMapping()[level.upper()]


def json_handler(level: int) -> logging.Handler:
    """Return a handler that writes JSON to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JSONFormatter())
    handler.setLevel(level)
    return handler


def _choice(variable: str, allowed: tuple[str, ...]) -> str:
    text = os.environ.get(variable, "").strip().lower()
    if text and text not in allowed:
        raise OutOfRange(what=variable, value=text[:80], allowed=f"one of {', '.join(allowed)}")
    return text


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _error(record: logging.LogRecord) -> AgentBusError | None:
    """Return the error of the bus that a record is about: the exception, or an argument of the message."""
    arguments = record.args if isinstance(record.args, tuple) else ()
    raised = record.exc_info[1] if record.exc_info else None
    return next((one for one in (raised, *arguments) if isinstance(one, AgentBusError)), None)


def _fields(error: AgentBusError | None, attributes: Mapping[str, Any]) -> dict[str, Any]:
    facts = {} if error is None else {name: value for name, value in error.facts.items() if name in _FACTS}
    extra = {name: value for name, value in attributes.items() if name not in _STANDARD}
    found: dict[str, Any] = {}
    for name, value in {**facts, **extra}.items():
        if value is None or _SECRET_NAME.search(name) or len(found) >= _MAX_FIELDS:
            continue
        if isinstance(value, str):
            found[plain_text(name)] = _clean(value, _MAX_FIELD)
        elif isinstance(value, bool | int | float):
            # Other programs read numbers as 64 bits.
            found[plain_text(name)] = value if abs(value) < 2**63 else _clean(_text(value), _MAX_FIELD)
    return found


def _text(value: object) -> str:
    """Return the text of a value, or why it has none: Python refuses to write an integer of thousands of digits."""
    try:
        return str(value)
    except Exception as problem:
        return f"{type(value).__name__} without a text: {error_text(problem)}"


def _trace() -> dict[str, str]:
    if trace_ids is None:
        return {}
    try:
        found = trace_ids()
    except Exception:  # A log line must not fail with the tracing library.
        return {}
    return {} if found is None else {"trace_id": found[0], "span_id": found[1]}


def _traceback(error: BaseException) -> str:
    try:
        text = "".join(traceback.format_exception(error))
    except Exception:
        text = error_text(error)
    return _clean(text)


def _clean(text: str, limit: int = _MAX_TEXT) -> str:
    """Return a text without secrets, as valid Unicode, up to a limit."""
    text = text[: 2 * limit].encode("utf-8", "backslashreplace").decode()
    for pattern, replacement in _SECRETS:
        text = pattern.sub(replacement, text)
    return text if len(text) <= limit else f"{text[:limit]}…"
