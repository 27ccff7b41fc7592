"""What hand-made files write in many ways: names, times, percentages, statuses, priorities."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, TypeGuard

from agentbus.codec import plain
from agentbus.limits import MAX_SECONDS, Priority

_LATEST = 253_402_300_799_999
"""The last millisecond of the year 9999."""
_FARTHEST = 10**21
"""Beyond any time in nanoseconds."""
_TEXT = 100_000
_ADDRESSES = ("session:", "pool:", "topic:")
"""What an agent's id must not begin with."""
_name = re.compile(r"[A-Za-z0-9._:@/-]{1,128}").fullmatch
_foreign = re.compile(r"[^A-Za-z0-9._:@/-]+").sub
_of_sqlite = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d").fullmatch
_number = re.compile(r"-?\d+(\.\d+)?").fullmatch
_stamp = re.compile(r"(\d{4})(\d\d)(\d\d)[-_T]?(\d\d)(\d\d)(\d\d)Z?").fullmatch
_span = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|sec|secs|seconds?|m|min|mins|minutes?|h|hours?|d|days?)").fullmatch
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}

AGENT_STATUSES = {
    **dict.fromkeys(("completed", "complete", "done", "finished", "success", "succeeded"), "completed"),
    **dict.fromkeys(("failed", "failure", "error", "errored", "crashed", "dead", "timeout"), "failed"),
    **dict.fromkeys(("stopped", "cancelled", "canceled", "aborted", "terminated", "killed", "shutdown"), "stopped"),
    **dict.fromkeys(("pending", "queued", "created", "new", "expected", "scheduled"), "pending"),
    **dict.fromkeys(("running", "active", "busy", "working", "in_progress", "idle", "waiting", "paused"), "running"),
    **dict.fromkeys(("registered", "ready", "starting", "spawning", "suspect", "started", "online"), "running"),
}
SESSION_STATUSES = {
    **dict.fromkeys(("active", "running", "in_progress", "started", "open"), "interrupted"),
    **dict.fromkeys(("interrupted", "crashed", "recovering"), "interrupted"),
    **dict.fromkeys(("paused", "idle", "pending", "waiting", "created"), "paused"),
    **dict.fromkeys(("completed", "complete", "done", "finished", "success", "closed"), "completed"),
    **dict.fromkeys(("error", "failed", "failure", "cancelled", "canceled", "aborted"), "failed"),
}
"""Nobody is at work in a session that comes from elsewhere: an active one was cut off, an idle one waits."""
MESSAGE_STATUSES = {
    **dict.fromkeys(("pending", "queued", "new", "unread", "sent", "delivered", "ready"), "queued"),
    **dict.fromkeys(("processing", "leased", "in_progress", "claimed", "retry", "scheduled"), "queued"),
    **dict.fromkeys(("processed", "read", "acknowledged", "acked", "completed", "done", "handled"), "acked"),
    **dict.fromkeys(("failed", "error", "dead", "rejected", "dead_letter"), "dead"),
    **dict.fromkeys(("expired", "timeout"), "expired"),
}
_PRIORITIES = {
    **dict.fromkeys(("lowest", "low", "minor"), Priority.LOW),
    **dict.fromkeys(("normal", "medium", "default"), Priority.NORMAL),
    **dict.fromkeys(("high", "important", "major"), Priority.HIGH),
    **dict.fromkeys(("urgent", "critical", "highest", "emergency"), Priority.URGENT),
}


def name_of(value: object) -> str | None:
    """A name that the bus takes; None if nothing can be made of it.

    One that had to be changed ends with a digest of what it was, so that no two become the same.

    >>> name_of("planner-1"), name_of(7)
    ('planner-1', '7')
    >>> name_of("the planner")
    'the-planner.95ec0499'
    """
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        return None
    text = str(value)
    if _name(text) and not text.startswith(_ADDRESSES):
        return text
    mark = sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    if text.startswith(_ADDRESSES):
        text = text.replace(":", "-", 1)
    rest = _foreign("-", text).strip("-")[:110]
    return f"{rest or 'unnamed'}.{mark}"


def moment(value: object, *, utc: bool = False) -> int | None:
    """A time as wall milliseconds: seconds or milliseconds since 1970, or ISO 8601.

    Without a zone it is the local time, as ``datetime.now()`` writes it; ``utc``: unless it looks like SQLite's own
    CURRENT_TIMESTAMP, which is in UTC.

    >>> moment(1_700_000_000), moment("1700000000123"), moment("2023-11-14T22:13:20Z")
    (1700000000000, 1700000000123, 1700000000000)
    """
    if isinstance(value, str):
        text = value.strip()
        if _number(text):
            return moment(float(text))
        with suppress(ValueError, OverflowError, OSError):
            found = datetime.fromisoformat(text)
            if found.tzinfo is None and utc and _of_sqlite(text):
                found = found.replace(tzinfo=UTC)
            return _bounded(found.timestamp() * 1000)
        return stamped(text)
    if not _is_number(value):
        return None
    if abs(value) > _FARTHEST:
        return None
    scale = 1000.0 if value < 1e11 else 1.0 if value < 1e14 else 0.001 if value < 1e17 else 0.000001
    return _bounded(value * scale)


def stamped(text: str) -> int | None:
    """The time in a name: ``20240131_235959`` (local, or UTC with a Z), or digits since 1970."""
    found = _stamp(text)
    if found is None:
        return moment(int(text)) if text.isascii() and text.isdigit() and len(text) in {10, 13} else None
    try:
        year, month, day, hour, minute, second = map(int, found.groups())
        zone = UTC if text.endswith("Z") else None
        return _bounded(datetime(year, month, day, hour, minute, second, tzinfo=zone).timestamp() * 1000)
    except (ValueError, OverflowError, OSError):
        return None


def percent(value: object) -> int | None:
    """A share from 0 to 100; a fraction between 0 and 1 is one of 1.

    >>> percent("45%"), percent(0.5), percent(250), percent({"percentage": 7})
    (45, 50, 100, 7)
    """
    if isinstance(value, Mapping):
        return percent(pick(value, "percentage", "percent", "progress"))
    if isinstance(value, str):
        text = value.strip().removesuffix("%").strip()
        return percent(float(text)) if _number(text) else None
    if not _is_number(value):
        return None
    share = value * 100 if isinstance(value, float) and 0 < value < 1 else value
    return round(min(max(share, 0), 100))


def duration(value: object) -> int | None:
    """Milliseconds of a time span: a number of seconds, or ``90s``, ``15 minutes``, ``2h``."""
    if isinstance(value, str):
        text = value.strip().lower()
        found = _span(text)
        if found is not None:
            unit = found[2] if found[2] == "ms" else found[2][0]
            return duration(float(found[1]) * _UNITS[unit])
        return duration(float(text)) if _number(text) else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_SECONDS:
        return None
    return round(value * 1000)


def priority(value: object) -> int:
    """A priority by its number or by a word; what is neither is normal."""
    if isinstance(value, str):
        word = value.strip().lower()
        number = word.isascii() and word.isdigit()
        return priority(int(word[:9])) if number else int(_PRIORITIES.get(word, Priority.NORMAL))
    if isinstance(value, bool) or not isinstance(value, int):
        return int(Priority.NORMAL)
    return min(max(value, 0), 9)


def word(value: object) -> str:
    """A status as people write it, in the form in which it is looked up."""
    return str(value).strip().lower().replace("-", "_").replace(" ", "_") if isinstance(value, str) else ""


def text_of(value: object) -> str | None:
    """A text that the bus takes: valid Unicode, no NUL, not endless; what is no text, as JSON."""
    if value is None or value == "":
        return None
    try:
        text = value if isinstance(value, str) else plain(value)
    except RecursionError:
        text = "(nested too deep)"
    return text[:_TEXT].encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")


def pick(raw: Mapping[str, Any], *names: str) -> Any:
    """The first of these that has a value."""
    return next((raw[name] for name in names if raw.get(name) is not None), None)


def _is_number(value: object) -> TypeGuard[int | float]:
    """Return whether this is a finite number. An integer may have hundreds of digits: it is none of a float's."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return isinstance(value, int) or math.isfinite(value)


def _bounded(milliseconds: float) -> int | None:
    return round(milliseconds) if 0 <= milliseconds <= _LATEST else None
