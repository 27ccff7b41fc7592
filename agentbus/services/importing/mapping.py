"""From what people wrote to lines that the bus takes: agents, sessions, state, documents, checkpoints, messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from zlib import crc32

import msgspec

from agentbus.codec import encode, plain, snapshot
from agentbus.errors import InvalidInput
from agentbus.errors.base import shown
from agentbus.limits import MAX_ATTEMPTS, MAX_NOTES, session_scope
from agentbus.operations.adopting import Adopted
from agentbus.operations.archives import (
    ArchivedAgent,
    ArchivedCheckpoint,
    ArchivedDocument,
    ArchivedMessage,
    ArchivedParticipant,
    ArchivedSession,
    ArchivedState,
)
from agentbus.services.archive import Limits
from agentbus.services.importing.tally import FileTally
from agentbus.services.importing.values import (
    AGENT_STATUSES,
    MESSAGE_STATUSES,
    SESSION_STATUSES,
    duration,
    moment,
    name_of,
    percent,
    pick,
    priority,
    text_of,
    word,
)

Raw = Mapping[str, Any]
_ENDED = {"completed", "failed", "stopped"}
UPDATED = ("last_updated", "updated_at", "last_update", "last_heartbeat", "last_activity", "heartbeat", "modified_at")
STARTED = ("start_time", "started_at", "created_at", "timestamp")
_CREATED = ("created_at", "created", "registered_at", "start_time", "started_at", "timestamp", "time")
_FINISHED = ("completed_at", "ended_at", "finished_at", "end_time", "failed_at", "stopped_at")


class Mapper:
    """Maps what one file has. ``modified`` is the time for what says none; ``utc``: times look like SQLite's."""

    def __init__(self, tally: FileTally, limits: Limits, modified: int, *, utc: bool = False) -> None:
        self.tally = tally
        self._limits = limits
        self.modified = modified
        self._utc = utc

    @property
    def payload(self) -> int:
        """Bytes that a value may have."""
        return self._limits.payload

    def agent(
        self, raw: Raw, line: int, *, id: object = None, session: str | None = None, finished: bool = False,
        unsaid: str = "pending",
    ) -> Adopted | None:  # fmt: skip
        """An agent; ``id`` is for one that does not say its own, ``unsaid`` for one that does not say its status.

        ``finished``: its session says that it has.
        """
        known = _Fields(raw)
        agent = self._name(known.pick("agent_id", "id", "agentid") or id, "agent id", line)
        if agent is None:
            return None
        said = known.pick("status", "state")
        status = AGENT_STATUSES.get(word(said), "running" if word(said) else unsaid)
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
            "load": self._number(known, percent, line, "load_percentage", "load"),
            "estimate": self._number(known, duration, line, "estimated_duration", "estimate"),
            "progress": self._number(known, percent, line, "progress", "progress_percentage") or 0,
            "note": text_of(known.pick("current_task", "progress_message", "status_message", "note")),
            "error": error if status == "failed" else None,
        }
        metadata = self._metadata(known, line)
        if kind is None or metadata is None:
            return None
        if finished and status not in _ENDED:
            if word(said):
                reason = f"agent {agent} had the status {_quoted(said)}, but its session says that it has finished"
                self.tally.change(line, reason)
            status = "completed"
        elif word(said) and word(said) not in AGENT_STATUSES:
            self.tally.change(line, f"agent {agent} had the status {_quoted(said)}, which counts as running")
        return Adopted(
            ArchivedAgent(
                id=agent, type=kind, kind="resident", session=own or session, metadata=metadata, status=status,
                epoch=1, patience=None, evidence=None, created=created, started=started, updated=updated,
                ended=ended if status in _ENDED else None, **values,
            ),
            number=line,
        )  # fmt: skip

    def session(self, raw: Raw, line: int, *, id: str | None = None) -> list[Adopted]:
        """A session with its meeting and what it had still to do; the session itself comes first."""
        known = _Fields(raw)
        session = self._name(known.pick("session_id", "id") or id, "session id", line)
        if session is None:
            return []
        said = known.pick("status", "state")
        status = SESSION_STATUSES.get(word(said), "interrupted")
        if word(said) not in SESSION_STATUSES:
            self.tally.change(line, f"session {session} had the status {_quoted(said)}, which counts as interrupted")
        begun = self._time(known, *STARTED)
        created = self.modified if begun is None else begun
        updated = max(created, self._time(known, *UPDATED) or created)
        ended = max(created, self._time(known, *_FINISHED) or updated)
        error = text_of(known.pick("error", "error_message", "error_details"))
        operation = self._name(
            known.pick("operation", "operation_type", "session_type", "workflow", "type", "name") or "imported",
            "operation", line,
        )  # fmt: skip
        milestone = self._optional(known.pick("milestone", "milestone_id"), "milestone", line)
        meeting = known.pick("current_meeting", "meeting")
        progress = percent(known.pick("progress", "progress_percentage"))
        if progress is None and isinstance(meeting, Mapping):
            progress = percent(meeting.get("progress"))
        kept = {key: known.pick(key) for key in ("pending_actions", "active_agents", "context", "state_data")}
        metadata = self._metadata(known, line)
        if operation is None or metadata is None:
            return []
        reason = error or ("imported" if status == "interrupted" else "failed" if status == "failed" else None)
        items = [
            Adopted(
                ArchivedSession(
                    id=session, operation=operation, milestone=milestone, status=status, progress=progress or 0,
                    troubled=int(status == "interrupted"), expected="{}", metadata=metadata,
                    error=reason if status in {"interrupted", "failed"} else None,
                    created=created, updated=updated, ended=ended if status in _ENDED else None,
                ),
                dated=begun is not None, number=line,
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
    ) -> Adopted | None:  # fmt: skip
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
        return Adopted(ArchivedState(scope, name, type, 1, checksum, expires, author, made, changed, text), number=line)

    def document(self, session: str, name: object, value: Any, line: int, created: int | None = None) -> Adopted | None:
        named = self._name(name, "document", line)
        body = self._snapshot(value, line, f"document {named}")
        if named is None or body is None:
            return None
        made = self.modified if created is None else created
        return Adopted(ArchivedDocument(session, named, 0, body[1], None, made, body[0]), number=line)

    def checkpoint(
        self, owner: tuple[str, str], name: object, value: Any, line: int, *, created: int | None = None,
        session: str | None = None, notes: object = None,
    ) -> Adopted | None:  # fmt: skip
        named = self._name(name, "checkpoint", line)
        body = self._snapshot(value, line, f"checkpoint {named}")
        if named is None or body is None:
            return None
        kind, whose = owner
        text, checksum = body
        return Adopted(
            ArchivedCheckpoint(
                0, kind, whose, named, session, self.modified if created is None else created, checksum,
                len(text.encode()), 0, (text_of(notes) or "")[:MAX_NOTES], "[]", text,
            ),
            number=line,
        )  # fmt: skip

    def message(self, raw: Raw, line: int, prefix: str) -> Adopted | None:
        """A message; ``prefix`` makes an id of its own of the number that it had."""
        known = _Fields(raw)
        id = known.pick("message_id", "id", "uuid")
        to = known.pick(
            "to_agent", "to_agent_id", "recipient", "recipient_id", "receiver", "receiver_id", "to", "target"
        )  # fmt: skip
        if to is None or to in ("", "*", "all", "broadcast"):
            self.tally.refuse(line, f"message {id}: it is for nobody in particular")
            return None
        recipient = self._name(to, "recipient", line)
        sender = self._name(
            known.pick("from_agent", "from_agent_id", "sender", "sender_id", "from", "source") or "unknown",
            "sender", line,
        )  # fmt: skip
        kind = self._name(known.pick("message_type", "type", "kind") or "note", "message type", line)
        body = known.pick("payload", "content", "message", "body", "data")
        try:
            text, checksum = encode(unpacked(body), self._limits.payload)
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
        return Adopted(
            ArchivedMessage(
                id=0, message_id=named or name_of(f"{prefix}:{line if id is None else id}"), mailbox_kind="agent",
                mailbox_name=recipient, mailbox_owner=recipient, sender=sender, type=kind, checksum=checksum,
                priority=priority(known.pick("priority")), status=status, attempts=0, max_attempts=MAX_ATTEMPTS,
                lease=0, holder=None, expires=self._time(known, "expires_at"),
                correlation=self._optional(known.pick("correlation_id", "in_reply_to"), "correlation", line),
                session=self._optional(known.pick("session_id", "session"), "session", line),
                error=why or ("imported as failed" if status == "dead" else None), created=created,
                finished=finished, payload=text,
            ),
            number=line,
        )  # fmt: skip

    def time(self, raw: Raw, *names: str) -> int | None:
        return next((found for name in names if (found := moment(raw.get(name), utc=self._utc)) is not None), None)

    def name(self, value: object, what: str, line: int) -> str | None:
        """A name that the bus takes, or None; the report says of either."""
        return self._name(value, what, line)

    def _message_status(self, known: _Fields, line: int, id: object) -> str:
        said = known.pick("status", "state")
        if said is None:
            done = known.pick("processed", "acknowledged", "read", "is_read", "delivered")
            times = known.pick("processed_at", "acknowledged_at", "read_at")
            return "acked" if done not in (None, 0, "0") or times is not None else "queued"
        status = MESSAGE_STATUSES.get(word(said))
        if status is None:
            self.tally.change(line, f"message {id} had the status {_quoted(said)}, which counts as queued")
        return status or "queued"

    def _meeting(self, session: str, raw: Raw, created: int, updated: int, line: int) -> list[Adopted]:
        """The members of a session's meeting: those who have finished, then those with whom it continues."""
        members = members_of(raw)
        name = self._name(meeting_name(raw), "meeting", line) if members else None
        rows: list[Adopted] = []
        for member in members:
            named = None if name is None else self._name(member.said, "participant", line)
            if named is not None and name is not None:
                over = member.finished
                rows.append(Adopted(
                    ArchivedParticipant(
                        session, name, named, len(rows), created, updated if over else None,
                        crc32(b"null") if over else None, "null" if over else None,
                    ),
                    number=line,
                ))  # fmt: skip
        return rows

    def _capabilities(self, value: object, line: int) -> list[str]:
        found = unpacked(value)
        if isinstance(found, str):
            found = [part.strip() for part in found.split(",")]
        names = (self._optional(one, "capability", line) for one in found) if isinstance(found, list) else ()
        return [name for name in names if name is not None]

    def _metadata(self, known: _Fields, line: int) -> str | None:
        """What it says of itself, with all that the bus has no place of its own for."""
        own = unpacked(known.pick("metadata"))
        metadata = dict(own) if isinstance(own, dict) else {} if own is None else {"metadata": own}
        for key, value in known.rest().items():
            metadata.setdefault(key, value)
        try:
            return encode(metadata, self._limits.payload)[0]
        except InvalidInput as error:
            self.tally.refuse(line, f"its metadata: {error}")
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
            self.tally.change(line, f"{names[0]} {_quoted(value)} is left out: it is no number that the bus takes")
        return found

    def _time(self, known: _Fields, *names: str) -> int | None:
        return next((found for name in names if (found := moment(known.pick(name), utc=self._utc)) is not None), None)

    def _optional(self, value: object, what: str, line: int) -> str | None:
        return None if value is None or value == "" else self._name(value, what, line)

    def _name(self, value: object, what: str, line: int) -> str | None:
        name = name_of(value)
        if name is None:
            self.tally.refuse(line, f"the {what} {_quoted(value)} is not a name")
            return None
        if name != str(value):
            self.tally.change(line, f"the {what} {_quoted(value)} became {name!r}")
        return name

    @staticmethod
    def _present(items: Any) -> list[Adopted]:
        return [item for item in items if item is not None]


class _Fields:
    """The fields of a record by their names, in whatever case; what nobody asked for is the rest."""

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


def unpacked(value: Any) -> Any:
    """A column that holds JSON as text, as what it holds."""
    if isinstance(value, str) and value[:1] in {"{", "["}:
        try:
            return msgspec.json.decode(value)
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
            return value
    return value


class Member(msgspec.Struct):
    """An agent that a session names as a member of its meeting."""

    name: str | None
    """None if the bus cannot take it."""
    said: object
    """Its name as the file has it."""
    finished: bool
    record: Raw | None
    """The facts that the session names, if they are more than its name."""


def meeting_name(raw: Raw) -> str:
    """Return the name of a session's meeting: the ``team`` of the meeting or of the session, if that is a text."""
    teams = (part.get("team") for part in _parts_of(raw))
    return next((team for team in teams if isinstance(team, str) and team), "meeting")


def members_of(raw: Raw) -> list[Member]:
    """Return the members of a session's meeting, each once, and for each whether it has finished.

    The meeting and the session itself are read alike. ``agents_completed`` have finished. ``current_agent``, the
    ``team`` if it is a list, and the ``active_agents`` have not, unless an agent's own record says so.
    """
    parts = _parts_of(raw)
    mentioned = [(one, record, True) for part in parts for one, record in _agents_in(part.get("agents_completed"))]
    currents = [current for part in parts if (current := part.get("current_agent")) not in (None, "")]
    teams = [team for part in parts if isinstance(team := part.get("team"), list)]
    for named in (currents, *teams, *(part.get("active_agents") for part in parts)):
        mentioned += [(one, record, _is_over(record)) for one, record in _agents_in(named)]
    members: dict[str | tuple[str], Member] = {}
    for one, record, finished in mentioned:
        said = record if isinstance(record, Mapping) else None
        name = name_of(one)
        member = members.setdefault(name or (_quoted(one),), Member(name, one, finished, said))
        member.finished = member.finished or finished
        member.record = said if member.record is None else member.record
    return list(members.values())


def _parts_of(raw: Raw) -> list[Raw]:
    """Return what describes a session's meeting: its own record, if there is one, and the session's."""
    session = _lowered(raw)
    meeting = pick(session, "current_meeting", "meeting")
    return [_lowered(meeting), session] if isinstance(meeting, Mapping) else [session]


def _lowered(raw: Raw) -> Raw:
    return {str(key).lower(): value for key, value in raw.items()}


def _agents_in(named: object) -> list[tuple[object, object]]:
    """Return the agents of a list or a map, each with its record or its status if it has one."""
    if isinstance(named, Mapping):
        return [(_id_of(record) or key, record) for key, record in named.items()]
    if not isinstance(named, list):
        return []
    return [(_called(one), one if isinstance(one, Mapping) else None) for one in named]


def _is_over(raw: object) -> bool:
    said = pick(_lowered(raw), "status", "state") if isinstance(raw, Mapping) else raw
    return AGENT_STATUSES.get(word(said)) == "completed"


def _id_of(raw: object) -> object:
    return pick(_lowered(raw), "agent_id", "id", "agentid") if isinstance(raw, Mapping) else None


def _called(one: object) -> object:
    """Return the name of an agent that is given by its id, or as a record that has one; a record without is its own."""
    if isinstance(one, Mapping):
        return _id_of(one) or pick(_lowered(one), "agent_name", "name", "agent") or one
    return one


def _quoted(value: object) -> str:
    text = shown(value, repr)
    return text if len(text) <= 80 else f"{text[:80]}…"
