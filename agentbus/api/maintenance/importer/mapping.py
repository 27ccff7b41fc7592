"""Map records of custom formats to rows of the bus: agents, sessions, state, documents, checkpoints, messages.

Names, times, percentages, statuses and priorities are accepted in many spellings.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any, TypeGuard
from zlib import crc32

import msgspec

from agentbus.api.maintenance.archive import Limits
from agentbus.core.codec import encode, plain, snapshot
from agentbus.core.validation import MAX_ATTEMPTS, MAX_NOTES, MAX_SECONDS, Priority, session_scope
from agentbus.errors import InvalidInput
from agentbus.errors.base import shown
from agentbus.operations.archive_restore import ImportedRow
from agentbus.operations.archive_rows import (
    ArchivedAgent,
    ArchivedCheckpoint,
    ArchivedDocument,
    ArchivedMessage,
    ArchivedParticipant,
    ArchivedSession,
    ArchivedState,
)

if TYPE_CHECKING:
    from agentbus.api.maintenance.importer.importer import FileTally

Raw = Mapping[str, Any]
_ENDED = {"completed", "failed", "stopped"}
UPDATED = ("last_updated", "updated_at", "last_update", "last_heartbeat", "last_activity", "heartbeat", "modified_at")
STARTED = ("start_time", "started_at", "created_at", "timestamp")
_CREATED = ("created_at", "created", "registered_at", "start_time", "started_at", "timestamp", "time")
_FINISHED = ("completed_at", "ended_at", "finished_at", "end_time", "failed_at", "stopped_at")
_MAX_TIME = 253_402_300_799_999
"""The last millisecond of the year 9999."""
_MAX_TIMESTAMP = 10**21
"""Above any time in nanoseconds."""
_TEXT = 100_000
_ADDRESSES = ("session:", "pool:", "topic:")
"""Prefixes that an agent id must not have."""
_name = re.compile(r"[A-Za-z0-9._:@/-]{1,128}").fullmatch
_replace_invalid = re.compile(r"[^A-Za-z0-9._:@/-]+").sub
_sqlite_time = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d").fullmatch
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
"""No process works in an imported session: an active one counts as interrupted, an idle one as paused."""
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
    """Return a valid name made of a value, or None.

    A name that had to be changed ends with a digest of the original, so that names stay distinct.

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
    rest = _replace_invalid("-", text).strip("-")[:110]
    return f"{rest or 'unnamed'}.{mark}"


def parse_time(value: object, *, utc: bool = False) -> int | None:
    """Return a time as wall milliseconds, from seconds or milliseconds since 1970, or from ISO 8601.

    A time without a zone is local, as ``datetime.now()`` writes it; with ``utc``, one in the format of SQLite's
    CURRENT_TIMESTAMP is UTC.

    >>> parse_time(1_700_000_000), parse_time("1700000000123"), parse_time("2023-11-14T22:13:20Z")
    (1700000000000, 1700000000123, 1700000000000)
    """
    if isinstance(value, str):
        text = value.strip()
        if _number(text):
            return parse_time(float(text))
        with suppress(ValueError, OverflowError, OSError):
            found = datetime.fromisoformat(text)
            if found.tzinfo is None and utc and _sqlite_time(text):
                found = found.replace(tzinfo=UTC)
            return _in_range(found.timestamp() * 1000)
        return parse_stamp(text)
    if not _is_number(value):
        return None
    if abs(value) > _MAX_TIMESTAMP:
        return None
    scale = 1000.0 if value < 1e11 else 1.0 if value < 1e14 else 0.001 if value < 1e17 else 0.000001
    return _in_range(value * scale)


def parse_stamp(text: str) -> int | None:
    """Return the time in a name: ``20240131_235959`` (local, or UTC with a Z), or digits since 1970."""
    found = _stamp(text)
    if found is None:
        return parse_time(int(text)) if text.isascii() and text.isdigit() and len(text) in {10, 13} else None
    try:
        year, month, day, hour, minute, second = map(int, found.groups())
        zone = UTC if text.endswith("Z") else None
        return _in_range(datetime(year, month, day, hour, minute, second, tzinfo=zone).timestamp() * 1000)
    except (ValueError, OverflowError, OSError):
        return None


def parse_percent(value: object) -> int | None:
    """Return a percentage from 0 to 100; a fraction between 0 and 1 is scaled.

    >>> parse_percent("45%"), parse_percent(0.5), parse_percent(250), parse_percent({"percentage": 7})
    (45, 50, 100, 7)
    """
    if isinstance(value, Mapping):
        return parse_percent(pick(value, "percentage", "percent", "progress"))
    if isinstance(value, str):
        text = value.strip().removesuffix("%").strip()
        return parse_percent(float(text)) if _number(text) else None
    if not _is_number(value):
        return None
    share = value * 100 if isinstance(value, float) and 0 < value < 1 else value
    return round(min(max(share, 0), 100))


def parse_duration(value: object) -> int | None:
    """Return a duration in milliseconds, from a number of seconds, or ``90s``, ``15 minutes``, ``2h``."""
    if isinstance(value, str):
        text = value.strip().lower()
        found = _span(text)
        if found is not None:
            unit = found[2] if found[2] == "ms" else found[2][0]
            return parse_duration(float(found[1]) * _UNITS[unit])
        return parse_duration(float(text)) if _number(text) else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_SECONDS:
        return None
    return round(value * 1000)


def parse_priority(value: object) -> int:
    """Return a priority from a number or a word; anything else is normal."""
    if isinstance(value, str):
        word = value.strip().lower()
        number = word.isascii() and word.isdigit()
        return parse_priority(int(word[:9])) if number else int(_PRIORITIES.get(word, Priority.NORMAL))
    if isinstance(value, bool) or not isinstance(value, int):
        return int(Priority.NORMAL)
    return min(max(value, 0), 9)


def normalize(value: object) -> str:
    """Return a status word in lower case with underscores; empty if it is not text."""
    return str(value).strip().lower().replace("-", "_").replace(" ", "_") if isinstance(value, str) else ""


def text_of(value: object) -> str | None:
    """Return valid text without NUL, of bounded length; a value that is not text as JSON."""
    if value is None or value == "":
        return None
    try:
        text = value if isinstance(value, str) else plain(value)
    except RecursionError:
        text = "(nested too deep)"
    return text[:_TEXT].encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")


def pick(raw: Mapping[str, Any], *names: str) -> Any:
    """Return the first of these fields with a value."""
    return next((raw[name] for name in names if raw.get(name) is not None), None)


def _is_number(value: object) -> TypeGuard[int | float]:
    """Return True for a finite number. An integer too large for a float counts too."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return isinstance(value, int) or math.isfinite(value)


def _in_range(milliseconds: float) -> int | None:
    return round(milliseconds) if 0 <= milliseconds <= _MAX_TIME else None


class Mapper:
    """Maps the records of one file. ``modified`` is the default time; ``utc``: times may be in SQLite's format."""

    def __init__(self, tally: FileTally, limits: Limits, modified: int, *, utc: bool = False) -> None:
        self.tally = tally
        self._limits = limits
        self.modified = modified
        self._utc = utc

    @property
    def payload(self) -> int:
        """Maximum bytes of a value."""
        return self._limits.payload

    def agent(
        self, raw: Raw, line: int, *, id: object = None, session: str | None = None, finished: bool = False,
        unsaid: str = "pending",
    ) -> ImportedRow | None:  # fmt: skip
        """Map an agent; ``id`` and ``unsaid`` are the defaults of its id and status.

        ``finished``: its session lists it as finished.
        """
        known = _Fields(raw)
        agent = self._name(known.pick("agent_id", "id", "agentid") or id, "agent id", line)
        if agent is None:
            return None
        said = known.pick("status", "state")
        status = AGENT_STATUSES.get(normalize(said), "running" if normalize(said) else unsaid)
        created = self._time(known, *_CREATED) or self.modified
        started = self._time(known, "started_at", "start_time")
        updated = max(created, self._time(known, *UPDATED) or created)
        ended = max(created, self._time(known, *_FINISHED) or updated)
        error = text_of(known.pick("error", "error_message", "failure_reason"))
        own = self._optional(known.pick("session_id", "session", "coordination_session_id"), "session", line)
        kind = self._name(known.pick("agent_type", "type", "role") or "worker", "agent type", line)
        values: dict[str, Any] = {
            "name": (text_of(known.pick("agent_name", "name")) or agent)[:1000],
            "milestone": self._optional(known.pick("milestone", "milestone_id"), "milestone", line),
            "parent": self._optional(known.pick("parent_agent_id", "parent_id", "parent"), "parent", line),
            "capabilities": plain(self._capabilities(known.pick("capabilities", "skills"), line)),
            "model": text_of(known.pick("model", "model_name")),
            "prompt": text_of(known.pick("prompt", "system_prompt", "task_prompt")),
            "load": self._number(known, parse_percent, line, "load_percentage", "load"),
            "estimate": self._number(known, parse_duration, line, "estimated_duration", "estimate"),
            "progress": self._number(known, parse_percent, line, "progress", "progress_percentage") or 0,
            "note": text_of(known.pick("current_task", "progress_message", "status_message", "note")),
            "error": error if status == "failed" else None,
        }
        metadata = self._metadata(known, line)
        if kind is None or metadata is None:
            return None
        if finished and status not in _ENDED:
            if normalize(said):
                reason = f"agent {agent} has the status {_quoted(said)}, but its session lists it as finished"
                self.tally.change(line, reason)
            status = "completed"
        elif normalize(said) and normalize(said) not in AGENT_STATUSES:
            self.tally.change(line, f"agent {agent} has the unknown status {_quoted(said)}, imported as running")
        return ImportedRow(
            ArchivedAgent(
                id=agent, type=kind, kind="resident", session=own or session, metadata=metadata, status=status,
                epoch=1, patience=None, evidence=None, created=created, started=started, updated=updated,
                ended=ended if status in _ENDED else None, **values,
            ),
            number=line,
        )  # fmt: skip

    def session(self, raw: Raw, line: int, *, id: str | None = None) -> list[ImportedRow]:
        """Map a session with its meeting and pending actions; the session comes first."""
        known = _Fields(raw)
        session = self._name(known.pick("session_id", "id") or id, "session id", line)
        if session is None:
            return []
        said = known.pick("status", "state")
        status = SESSION_STATUSES.get(normalize(said), "interrupted")
        if normalize(said) not in SESSION_STATUSES:
            self.tally.change(
                line, f"session {session} has the unknown status {_quoted(said)}, imported as interrupted"
            )
        created_at = self._time(known, *STARTED)
        created = self.modified if created_at is None else created_at
        updated = max(created, self._time(known, *UPDATED) or created)
        ended = max(created, self._time(known, *_FINISHED) or updated)
        error = text_of(known.pick("error", "error_message", "error_details"))
        operation = self._name(
            known.pick("operation", "operation_type", "session_type", "workflow", "type", "name") or "imported",
            "operation", line,
        )  # fmt: skip
        milestone = self._optional(known.pick("milestone", "milestone_id"), "milestone", line)
        meeting = known.pick("current_meeting", "meeting")
        progress = parse_percent(known.pick("progress", "progress_percentage"))
        if progress is None and isinstance(meeting, Mapping):
            progress = parse_percent(meeting.get("progress"))
        kept = {key: known.pick(key) for key in ("pending_actions", "active_agents", "context", "state_data")}
        metadata = self._metadata(known, line)
        if operation is None or metadata is None:
            return []
        reason = error or ("imported" if status == "interrupted" else "failed" if status == "failed" else None)
        items = [
            ImportedRow(
                ArchivedSession(
                    id=session, operation=operation, milestone=milestone, status=status, progress=progress or 0,
                    troubled=int(status == "interrupted"), expected="{}", metadata=metadata,
                    error=reason if status in {"interrupted", "failed"} else None,
                    created=created, updated=updated, ended=ended if status in _ENDED else None,
                ),
                dated=created_at is not None, number=line,
            )
        ]  # fmt: skip
        items += self._meeting(session, raw, created, updated, line)
        if isinstance(meeting, Mapping):
            kept["current_meeting"] = meeting
        scope = session_scope(session)
        items += self._present(
            self.state(scope, key, value, line, created=updated) for key, value in kept.items() if value is not None
        )
        return items

    def state(
        self, scope: str, key: object, value: Any, line: int, *, created: int | None = None, type: str = "user_data",
        author: str | None = None, expires: int | None = None, updated: int | None = None,
    ) -> ImportedRow | None:  # fmt: skip
        name = self._name(key, "key", line)
        made = self.modified if created is None else created
        try:
            text, checksum = encode(value, self._limits.payload)
        except InvalidInput as error:
            self.tally.refuse(line, f"state {name} of {scope}: {error}")
            return None
        if name is None:
            return None
        changed = made if updated is None else max(made, updated)
        return ImportedRow(
            ArchivedState(scope, name, type, 1, checksum, expires, author, made, changed, text), number=line
        )

    def document(
        self, session: str, name: object, value: Any, line: int, created: int | None = None
    ) -> ImportedRow | None:
        named = self._name(name, "document", line)
        body = self._snapshot(value, line, f"document {named}")
        if named is None or body is None:
            return None
        made = self.modified if created is None else created
        return ImportedRow(ArchivedDocument(session, named, 0, body[1], None, made, body[0]), number=line)

    def checkpoint(
        self, owner: tuple[str, str], name: object, value: Any, line: int, *, created: int | None = None,
        session: str | None = None, notes: object = None,
    ) -> ImportedRow | None:  # fmt: skip
        named = self._name(name, "checkpoint", line)
        body = self._snapshot(value, line, f"checkpoint {named}")
        if named is None or body is None:
            return None
        kind, whose = owner
        text, checksum = body
        return ImportedRow(
            ArchivedCheckpoint(
                0, kind, whose, named, session, self.modified if created is None else created, checksum,
                len(text.encode()), 0, (text_of(notes) or "")[:MAX_NOTES], "[]", text,
            ),
            number=line,
        )  # fmt: skip

    def message(self, raw: Raw, line: int, prefix: str) -> ImportedRow | None:
        """Map a message; ``prefix`` makes a unique id of a numeric one."""
        known = _Fields(raw)
        id = known.pick("message_id", "id", "uuid")
        to = known.pick(
            "to_agent", "to_agent_id", "recipient", "recipient_id", "receiver", "receiver_id", "to", "target"
        )  # fmt: skip
        if to is None or to in ("", "*", "all", "broadcast"):
            self.tally.refuse(line, f"message {id}: it has no recipient")
            return None
        recipient = self._name(to, "recipient", line)
        sender = self._name(
            known.pick("from_agent", "from_agent_id", "sender", "sender_id", "from", "source") or "unknown",
            "sender", line,
        )  # fmt: skip
        kind = self._name(known.pick("message_type", "type", "kind") or "note", "message type", line)
        body = known.pick("payload", "content", "message", "body", "data")
        try:
            text, checksum = encode(parse_json_column(body), self._limits.payload)
        except InvalidInput as error:
            self.tally.refuse(line, f"message {id}: {error}")
            return None
        if recipient is None or sender is None or kind is None:
            return None
        created = self._time(known, "created_at", "timestamp", "sent_at", "created") or self.modified
        done = self._time(known, "processed_at", "acknowledged_at", "read_at", "completed_at", "delivered_at")
        status = self._message_status(known, line, id)
        finished = None if status == "queued" else max(created, done or created)
        named = name_of(id) if isinstance(id, str) and not id.isdigit() and not id.startswith("m-") else None
        why = text_of(known.pick("error", "error_message"))
        return ImportedRow(
            ArchivedMessage(
                id=0, message_id=named or name_of(f"{prefix}:{line if id is None else id}"), mailbox_kind="agent",
                mailbox_name=recipient, mailbox_owner=recipient, sender=sender, type=kind, checksum=checksum,
                priority=parse_priority(known.pick("priority")), status=status, attempts=0, max_attempts=MAX_ATTEMPTS,
                lease=0, holder=None, expires=self._time(known, "expires_at"),
                correlation=self._optional(known.pick("correlation_id", "in_reply_to"), "correlation", line),
                session=self._optional(known.pick("session_id", "session"), "session", line),
                error=why or ("imported as failed" if status == "dead" else None), created=created,
                finished=finished, payload=text,
            ),
            number=line,
        )  # fmt: skip

    def time(self, raw: Raw, *names: str) -> int | None:
        return next((found for name in names if (found := parse_time(raw.get(name), utc=self._utc)) is not None), None)

    def name(self, value: object, what: str, line: int) -> str | None:
        """Return a valid name, or None; the report lists changed and refused names."""
        return self._name(value, what, line)

    def _message_status(self, known: _Fields, line: int, id: object) -> str:
        said = known.pick("status", "state")
        if said is None:
            done = known.pick("processed", "acknowledged", "read", "is_read", "delivered")
            times = known.pick("processed_at", "acknowledged_at", "read_at")
            return "acked" if done not in (None, 0, "0") or times is not None else "queued"
        status = MESSAGE_STATUSES.get(normalize(said))
        if status is None:
            self.tally.change(line, f"message {id} has the unknown status {_quoted(said)}, imported as queued")
        return status or "queued"

    def _meeting(self, session: str, raw: Raw, created: int, updated: int, line: int) -> list[ImportedRow]:
        """Map the members of a session's meeting: first those that have finished, then those that remain."""
        members = members_of(raw)
        name = self._name(meeting_name(raw), "meeting", line) if members else None
        rows: list[ImportedRow] = []
        for member in members:
            named = None if name is None else self._name(member.said, "participant", line)
            if named is not None and name is not None:
                over = member.finished
                rows.append(ImportedRow(
                    ArchivedParticipant(
                        session, name, named, len(rows), created, updated if over else None,
                        crc32(b"null") if over else None, "null" if over else None,
                    ),
                    number=line,
                ))  # fmt: skip
        return rows

    def _capabilities(self, value: object, line: int) -> list[str]:
        found = parse_json_column(value)
        if isinstance(found, str):
            found = [part.strip() for part in found.split(",")]
        names = (self._optional(one, "capability", line) for one in found) if isinstance(found, list) else ()
        return [name for name in names if name is not None]

    def _metadata(self, known: _Fields, line: int) -> str | None:
        """Return the metadata of a record, with all fields that have no column."""
        own = parse_json_column(known.pick("metadata"))
        metadata = dict(own) if isinstance(own, dict) else {} if own is None else {"metadata": own}
        for key, value in known.rest().items():
            metadata.setdefault(key, value)
        try:
            return encode(metadata, self._limits.payload)[0]
        except InvalidInput as error:
            self.tally.refuse(line, f"metadata: {error}")
            return None

    def _snapshot(self, value: Any, line: int, what: str) -> tuple[str, str] | None:
        try:
            return snapshot(value, self._limits.snapshot).settle()
        except InvalidInput as error:
            self.tally.refuse(line, f"{what}: {error}")
            return None

    def _number(self, known: _Fields, read: Any, line: int, *names: str) -> int | None:
        value = known.pick(*names)
        found: int | None = read(value)
        if value is not None and found is None:
            self.tally.change(line, f"{names[0]} {_quoted(value)} is not a valid number and is left out")
        return found

    def _time(self, known: _Fields, *names: str) -> int | None:
        return next(
            (found for name in names if (found := parse_time(known.pick(name), utc=self._utc)) is not None), None
        )

    def _optional(self, value: object, what: str, line: int) -> str | None:
        return None if value is None or value == "" else self._name(value, what, line)

    def _name(self, value: object, what: str, line: int) -> str | None:
        name = name_of(value)
        if name is None:
            self.tally.refuse(line, f"invalid {what} {_quoted(value)}")
            return None
        if name != str(value):
            self.tally.change(line, f"the {what} {_quoted(value)} became {name!r}")
        return name

    @staticmethod
    def _present(items: Any) -> list[ImportedRow]:
        return [item for item in items if item is not None]


class _Fields:
    """The fields of a record by case-insensitive name; those never picked are the rest."""

    def __init__(self, raw: Raw) -> None:
        self._raw = {str(key).lower(): value for key, value in raw.items()}
        self._rest = dict(raw)
        self._names = {str(key).lower(): key for key in raw}

    def pick(self, *names: str) -> Any:
        for name in names:
            if name in self._names:
                self._rest.pop(self._names[name], None)
        return pick(self._raw, *names)

    def rest(self) -> dict[str, Any]:
        return {str(key): value for key, value in self._rest.items() if value is not None}


def parse_json_column(value: Any) -> Any:
    """Decode a column that holds JSON as text; return any other value unchanged."""
    if isinstance(value, str) and value[:1] in {"{", "["}:
        try:
            return msgspec.json.decode(value)
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
            return value
    return value


class Member(msgspec.Struct):
    """An agent that a session names as a member of its meeting."""

    name: str | None
    """None if it is not a valid name."""
    said: object
    """The name in the file."""
    finished: bool
    record: Raw | None
    """The record in the session, if it is more than a name."""


def meeting_name(raw: Raw) -> str:
    """Return the name of a session's meeting: the ``team`` of the meeting or the session, if that is text."""
    teams = (part.get("team") for part in _parts_of(raw))
    return next((team for team in teams if isinstance(team, str) and team), "meeting")


def members_of(raw: Raw) -> list[Member]:
    """Return the members of a session's meeting, each once, with its completion.

    Both the meeting and the session are read. ``agents_completed`` have finished. ``current_agent``, the ``team`` if it
    is a list, and the ``active_agents`` have not, unless their own records say so.
    """
    parts = _parts_of(raw)
    mentioned = [(one, record, True) for part in parts for one, record in _agents_in(part.get("agents_completed"))]
    currents = [current for part in parts if (current := part.get("current_agent")) not in (None, "")]
    teams = [team for part in parts if isinstance(team := part.get("team"), list)]
    for named in (currents, *teams, *(part.get("active_agents") for part in parts)):
        mentioned += [(one, record, _is_completed(record)) for one, record in _agents_in(named)]
    members: dict[str | tuple[str], Member] = {}
    for one, record, finished in mentioned:
        said = record if isinstance(record, Mapping) else None
        name = name_of(one)
        member = members.setdefault(name or (_quoted(one),), Member(name, one, finished, said))
        member.finished = member.finished or finished
        member.record = said if member.record is None else member.record
    return list(members.values())


def _parts_of(raw: Raw) -> list[Raw]:
    """Return the records of a session's meeting: its own, if there is one, and the session's."""
    session = _lower_keys(raw)
    meeting = pick(session, "current_meeting", "meeting")
    return [_lower_keys(meeting), session] if isinstance(meeting, Mapping) else [session]


def _lower_keys(raw: Raw) -> Raw:
    return {str(key).lower(): value for key, value in raw.items()}


def _agents_in(named: object) -> list[tuple[object, object]]:
    """Return the agents of a list or object, each with its record or status, if any."""
    if isinstance(named, Mapping):
        return [(_id_of(record) or key, record) for key, record in named.items()]
    if not isinstance(named, list):
        return []
    return [(_agent_id(one), one if isinstance(one, Mapping) else None) for one in named]


def _is_completed(raw: object) -> bool:
    said = pick(_lower_keys(raw), "status", "state") if isinstance(raw, Mapping) else raw
    return AGENT_STATUSES.get(normalize(said)) == "completed"


def _id_of(raw: object) -> object:
    return pick(_lower_keys(raw), "agent_id", "id", "agentid") if isinstance(raw, Mapping) else None


def _agent_id(one: object) -> object:
    """Return the id of an agent given by id or record; the record itself if it has none."""
    if isinstance(one, Mapping):
        return _id_of(one) or pick(_lower_keys(one), "agent_name", "name", "agent") or one
    return one


def _quoted(value: object) -> str:
    text = shown(value, repr)
    return text if len(text) <= 80 else f"{text[:80]}…"
