"""Columns of every table, and the Structs of messages and agents: as they are given, stored and delivered.

A field is a column of the same name. The query loader expands ``/* columns: message */`` from these Structs, and the
lines of an archive are made of them (``operations.archive_rows``), so that a column is listed here and in its public
record only. Build them from a row by position: ``MessageRow(*row)``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Annotated, Any, TypeAlias

import msgspec

from agentbus.core.addresses import Address
from agentbus.core.clock import Now
from agentbus.core.codec import decode, is_intact, plain
from agentbus.core.validation import MAX_HEADERS
from agentbus.errors import DamagedPayload

Lease: TypeAlias = tuple[int, int]
"""The row id of a message, and the number of the delivery."""


class Draft(msgspec.Struct, frozen=True):
    """A message before it has a row. ``to`` is an address, or the mailbox that a reply goes to; times are
    milliseconds from now. A ``reply`` is queued even for a recipient that has ended."""

    to: Address | int
    type: str
    payload: tuple[str, int]
    """JSON text and its checksum."""
    priority: int
    max_attempts: int
    delay: int = 0
    ttl: int | None = None
    message_id: str | None = None
    correlation: str | None = None
    reply_to: int | None = None
    session: str | None = None
    reply: bool = False
    fits: str | None = None
    """The schema that the payload is known to fit: it is checked before the transaction."""
    defines: str | None = None
    """The schema of the Struct that it was made of, which its first use defines."""
    headers: str | None = None
    """JSON text."""
    follows: int | None = None
    """The messages that it follows in its thread, at least; None if the loop guard does not count it."""

    @property
    def topic(self) -> str | None:
        return self.to.name if isinstance(self.to, Address) and self.to.kind == "topic" else None

    @property
    def size(self) -> int:
        return len(self.payload[0]) + (0 if self.headers is None else len(self.headers))

    def due(self, now: Now) -> int | None:
        return now.wall + self.delay if self.delay else None

    def values(self, sender: str, now: Now, held: bool = False) -> tuple[object, ...]:
        """Return the columns of ``NewMessage`` that all copies of the message share, from ``sender`` on. A ``held``
        message is scheduled without a due time."""
        due = now.wall + self.delay if self.delay else None
        # The time to live starts when the message can be received. It does not stop while a message is held.
        expires = None if self.ttl is None else (due or now.wall) + self.ttl
        return (
            sender, self.type, *self.payload, self.priority,
            "queued" if due is None and not held else "scheduled", self.max_attempts, None if held else due, expires,
            self.correlation, self.reply_to, self.session, now.wall, self.headers,
        )  # fmt: skip


class NewMessage(msgspec.Struct, frozen=True):
    """The columns of a message that is inserted; the others have defaults."""

    id: int
    message_id: str | None
    mailbox: int
    sender: str
    type: str
    payload: str
    checksum: int
    priority: int
    status: str
    max_attempts: int
    due: int | None
    expires: int | None
    correlation: str | None
    reply_to: int | None
    session: str | None
    created: int
    headers: str | None


class MessageRow(msgspec.Struct, frozen=True, gc=False):
    """A message as its receiver gets it; ``attempts`` and ``lease`` are those before this delivery."""

    id: int
    message_id: str | None
    sender: str
    type: str
    payload: str
    checksum: int
    priority: int
    attempts: int
    lease: int
    session: str | None
    correlation: str | None
    reply_to: int | None
    created: int
    mailbox: int
    expires: int | None
    headers: Annotated[str, msgspec.Meta(max_length=MAX_HEADERS)] | None

    @property
    def public_id(self) -> str:
        return self.message_id or f"m-{self.id}"

    @property
    def delivered(self) -> Lease:
        """The lease of this delivery."""
        return self.id, self.lease + 1

    def verify(self) -> None:
        """Raise DamagedPayload if the payload does not match its checksum."""
        if not is_intact(self.payload, self.checksum):
            raise DamagedPayload(what=f"message {self.public_id}")

    def decode_headers(self) -> dict[str, str]:
        """Return the headers, an empty dict if there are none. Raises DamagedPayload."""
        if self.headers is None:
            return {}
        try:
            headers: dict[str, str] = decode(self.headers)
        except msgspec.DecodeError:
            raise DamagedPayload(what=f"the headers of message {self.public_id}") from None
        return headers

    def contents(self) -> dict[str, Any]:
        """Return the payload and the columns that are JSON, decoded. Raises DamagedPayload."""
        self.verify()
        return {"payload": decode(self.payload), "headers": self.decode_headers()}


class StoredMessage(MessageRow, frozen=True, gc=False):
    """All columns of a message."""

    status: str
    max_attempts: int
    holder: str | None
    lease_until: int | None
    due: int | None
    error: str | None
    finished: int | None
    leased_at: int | None


def stored_message(row: Sequence[Any]) -> StoredMessage:
    """Return the message of a row that may have more columns after its own."""
    return StoredMessage(*row[: len(StoredMessage.__struct_fields__)])


def hold_reason(thread: str | None) -> str:
    """Return why the messages of a thread are held, and how they are released."""
    return (
        f"thread {thread} has reached the bound of messages without progress; a person lets it continue:"
        f" agentbus holds release {thread}"
    )


@cache
def common_fields(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    """Return the columns of a message that are also fields of this Struct."""
    return tuple(name for name in kind.__struct_fields__ if name in StoredMessage.__struct_fields__)


class Delivery(msgspec.Struct, frozen=True):
    """A message as a visiting agent receives it, with the name of its lease, ``message_id#number``. ``wants_reply``:
    its sender waits for a reply."""

    message_id: str
    lease: str | None
    sender: str
    recipient: str
    type: str
    payload: Any
    priority: int
    attempts: int
    session: str | None
    correlation: str | None
    wants_reply: bool
    created: int
    expires: int | None
    headers: dict[str, str] = {}

    @classmethod
    def of(cls, message: object, lease: str | None, wants_reply: bool, **contents: Any) -> Delivery:
        """Return the delivery of a row or a record; ``contents`` are the fields that differ from it."""
        values = {name: getattr(message, name) for name in cls.__struct_fields__ if hasattr(message, name)}
        return cls(**{**values, **contents, "lease": lease, "wants_reply": wants_reply})


class Ending(msgspec.Struct, frozen=True):
    """A message that becomes a dead letter, and why."""

    id: int
    message_id: str
    type: str
    reason: str
    actor: str | None = None
    correlation: str | None = None
    reply_to: int | None = None
    session: str | None = None
    expires: int | None = None


class Held(msgspec.Struct, frozen=True):
    """A message as the settling operations read it: without its payload, which may be long."""

    id: int
    lease: int
    status: str
    holder: str | None
    attempts: int
    max_attempts: int
    mailbox: int
    type: str
    message_id: str | None
    correlation: str | None
    reply_to: int | None
    session: str | None
    expires: int | None

    @property
    def public_id(self) -> str:
        return self.message_id or f"m-{self.id}"

    @property
    def is_last_attempt(self) -> bool:
        """Return True if the message becomes a dead letter when it is released."""
        return self.attempts >= self.max_attempts

    def ending(self, reason: str, actor: str | None = None) -> Ending:
        return Ending(
            self.id,
            self.public_id,
            self.type,
            reason,
            actor,
            self.correlation,
            self.reply_to,
            self.session,
            self.expires,
        )


class Profile(msgspec.Struct, frozen=True):
    """The columns of an agent that a caller gives. None leaves the present value.

    The queries name the first four, which have defaults; a new agent has NULL in the others.
    """

    name: str | None = None
    capabilities: tuple[str, ...] | None = None
    metadata: str | None = None
    patience: int | None = None
    milestone: str | None = None
    parent: str | None = None
    model: str | None = None
    prompt: str | None = None
    load: int | None = None
    estimate: int | None = None

    def row(self) -> tuple[object, ...]:
        name, capabilities, *others = msgspec.structs.astuple(self)
        return name, None if capabilities is None else plain(capabilities), *others


class AgentRow(msgspec.Struct, frozen=True):
    """An agent as the registry shows it: the fields of ``AgentRecord``, with times in milliseconds and JSON as text."""

    id: str
    name: str
    type: str
    kind: str
    session: str | None
    milestone: str | None
    parent: str | None
    capabilities: str
    model: str | None
    prompt: str | None
    load: int | None
    estimate: int | None
    metadata: str
    status: str
    progress: int
    note: str | None
    process: int | None
    epoch: int
    patience: int | None
    last_call: int | None
    busy_until: int | None
    created: int
    started: int | None
    updated: int
    ended: int | None
    error: str | None
    evidence: str | None


class StoredAgent(AgentRow, frozen=True):
    """All columns of an agent."""

    cut_off: int
    mailbox: int
    replies: int


_NAMED_PROFILE_COLUMNS = 4
"""The first fields of ``Profile``, which the queries name because they have defaults."""
MESSAGE_JSON: dict[str, Any] = {"headers": dict[str, str]}
"""The types of the columns of a message that are JSON, besides the payload."""


class NotifierRow(msgspec.Struct, frozen=True):
    """The progress of a notifier of a user through the audit log. ``first`` and ``until`` are the events of the
    notification that is being delivered, if any."""

    name: str
    cursor: int
    first: int | None
    until: int | None
    skipped: int
    attempts: int
    failures: int
    lease: int
    lease_until: int | None
    due: int | None
    delivered: int
    dropped: int
    dead: int
    error: str | None
    created: int
    updated: int


AGENT_JSON: dict[str, Any] = {"capabilities": list[str], "metadata": dict[str, Any], "evidence": dict[str, Any]}
"""The types of the columns of an agent that are JSON."""
AGENT_DURATIONS = ("estimate", "patience")
"""Columns in milliseconds that a record has in seconds."""
ADDED = frozenset({"due", "headers", "leased_at", "receipts", "reply_to"})
"""Nullable fields of messages and agents that older archives lack."""

_TABLES = {
    "vocabulary": "kind name builtin description schema created",
    "processes": "id host boot pid started bell watched status beat every silent created ended",
    "sessions": (
        "id operation milestone status progress process troubled resume_by expected metadata error created updated "
        "ended"
    ),
    "participants": "session meeting member position created finished checksum result",
    "mailboxes": "id kind name owner epoch created",
    "pool_members": "pool agent joined",
    "subscriptions": "topic agent mailbox since",
    "receipts": "message agent epoch client channel at",
    "tasks": (
        "number id workflow name session parent status phase auto halting progress note generation holder lease "
        "lease_until due waits restarts backoff restarted error created started updated ended notes context "
        "settings checksum result_sum arguments result losses max_losses redo manual priority on_failed not_before "
        "trace"
    ),
    "dependencies": "task dependency completed",
    "steps": (
        "id task kind key superseded name position status main once attempt failures digest progress note child "
        "due error started finished checksum validation result seen ending message trace"
    ),
    "approvals": (
        "id task key superseded name position status auto notify expires created decided decided_by reason "
        "checksum shown seen ending"
    ),
    "signals": "id task name signal_id sender position created checksum value",
    "state": "id scope key type version change checksum expires author created updated value",
    "state_floors": "scope version",
    "checkpoints": "id owner_kind owner name session created checksum size file_count notes files snapshot",
    "documents": "id session name version checksum author created value",
    "document_floors": "session name version",
    "histories": "id kind name version last items size created updated meta",
    "history_items": "id history part key number encoding checksum size created meta body",
    "threads": "thread opened messages held since updated agents",
    "holds": "message thread due created",
    "events": "id at kind subject_kind subject actor facts",
}
"""The columns of the other tables, as a copy reads and writes them."""
_HELD_TASK = (
    "number id workflow name session parent status phase auto halting generation holder lease restarts backoff "
    "restarted error losses max_losses redo manual on_failed"
)
"""The fields of ``task_ownership.HeldTask``."""
COLUMNS: dict[str, tuple[str, ...]] = {
    "new_message": NewMessage.__struct_fields__,
    "message": MessageRow.__struct_fields__,
    "stored_message": StoredMessage.__struct_fields__,
    "held": Held.__struct_fields__,
    "profile": Profile.__struct_fields__[_NAMED_PROFILE_COLUMNS:],
    "agent": AgentRow.__struct_fields__,
    "stored_agent": StoredAgent.__struct_fields__,
    "held_task": tuple(_HELD_TASK.split()),
    "notifier": NotifierRow.__struct_fields__,
    **{table: tuple(columns.split()) for table, columns in _TABLES.items()},
}
"""The columns of each row, by the name that queries use."""
