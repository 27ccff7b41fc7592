"""Notifications: which events are worth one, and the progress of each notifier of a user through the audit log.

The audit log is the queue. A notifier has one row: the event up to which everything is settled, and the notification
that is being delivered. So an endpoint that is down fills nothing. One process at a time holds the lease of a notifier,
and every change names the lease, so that a process that lost it changes nothing. A notification is delivered at least
once, under an id that every attempt repeats.

Where and how to deliver is in the settings of the user, never on the bus.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from agentbus.core.clock import Now, backoff
from agentbus.core.codec import decode, verify_value
from agentbus.core.validation import MAX_ID, generated_id
from agentbus.errors import DamagedPayload
from agentbus.operations.events import event, last_event, record
from agentbus.operations.protocol import Op, Outcome, Query, Row, single_operation
from agentbus.operations.rows import NotifierRow

if TYPE_CHECKING:
    from agentbus.records import EventRecord, Finding, Notification, NotifierRecord

MAX_WAITING = 100
"""Notifications that wait for one notifier; older ones are dropped."""
_MAX_EVENTS = 1000
"""Events that are considered for them."""
_MAX_GROUP = 500
"""Events of one notification."""
_MAX_NAMED = 20
"""Subjects that it names."""
_MAX_TEXT = 2000
"""Characters of a question or an error."""
_MAX_ERROR = 500
_FIRST_DELAY, LONGEST_DELAY = 5.0, 3600.0
"""Seconds before the second attempt, and the maximum."""
MAX_LEASE = 180_000
"""Milliseconds. A lease that ends later is from before the clock was set back."""
_QUIET = 3600 * 1000
"""Milliseconds in which a condition that was reported is not reported again."""
_PASS = 1000
"""Events without interest after which the cursor moves."""
_CONDITION = "condition_reported"
DEAD = "notification_dead"
_UNREADABLE = (DamagedPayload, msgspec.DecodeError, RecursionError, UnicodeError)
"""Errors of reading a damaged value."""


class _Kind(msgspec.Struct, frozen=True):
    severity: str
    text: Callable[[EventRecord], str]


def _suspected(event: EventRecord) -> str:
    return f"agent {event.subject} is suspect ({_mapping(event.facts.get('evidence')).get('verdict', 'silent')})"


def _died(event: EventRecord) -> str:
    pid = _pid(event)
    return f"process {event.subject} died" if pid is None else f"process {event.subject} (pid {pid}) died"


def _pid(event: EventRecord) -> int | None:
    """Return the pid of the process that an event is about, if it has one."""
    pid = _mapping(event.facts.get("evidence")).get("pid")
    return pid if isinstance(pid, int) else None


def _mapping(value: object) -> dict[str, Any]:
    """Return a fact that is an object. A bus of other origin may have anything there."""
    return dict(value) if isinstance(value, dict) else {}


_EVENTS: dict[str, _Kind] = {
    "approval_requested": _Kind(
        "warning", lambda event: f"task {event.subject} waits for approval {event.facts.get('approval')}"
    ),
    "session_interrupted": _Kind("error", lambda event: f"session {event.subject} was interrupted"),
    "message_dead": _Kind("warning", lambda event: f"message {event.subject} became a dead letter"),
    "thread_held": _Kind("warning", lambda event: f"messages of thread {event.subject} wait for a person"),
    "agent_suspected": _Kind("warning", _suspected),
    "agent_recovered": _Kind("info", lambda event: f"agent {event.subject} is responsive again"),
    "agent_failed": _Kind("error", lambda event: f"agent {event.subject} failed"),
    "process_dead": _Kind("error", _died),
    "process_back": _Kind(
        "warning", lambda event: f"process {event.subject} was marked dead, but sends heartbeats"
    ),
    "task_failed": _Kind("error", lambda event: f"task {event.subject} failed"),
}  # fmt: skip
_PLURALS = {
    "message_dead": "messages became dead letters", "agent_suspected": "agents are suspect",
    "agent_recovered": "agents are responsive again", "agent_failed": "agents failed", "process_dead": "processes died",
    "task_failed": "tasks failed",
}  # fmt: skip
"""Kinds of which events that follow each other are one notification."""
CONDITIONS = {
    "session_degraded": "warning", "pool_unattended": "warning", "queue_deep": "warning", "log_long": "warning",
    "disk_low": "error", "host_silent": "error", "transaction_old": "warning",
}  # fmt: skip
KINDS: dict[str, str] = {kind: about.severity for kind, about in _EVENTS.items()} | CONDITIONS
"""Every kind of notification, and its severity: events of the audit log, and conditions that a monitor reports."""


class Subscription(msgspec.Struct, frozen=True):
    """A notifier and its filters: kinds; sessions and workflows, or all if empty; the texts of agents to include."""

    notifier: str
    kinds: frozenset[str]
    sessions: frozenset[str] = frozenset()
    workflows: frozenset[str] = frozenset()
    include: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        return self.notifier.rpartition("/")[2]

    @property
    def event_kinds(self) -> list[str]:
        """Return the kinds of events to read."""
        conditions = [_CONDITION] if self.kinds & CONDITIONS.keys() else []
        return sorted(self.kinds & _EVENTS.keys()) + conditions


class FindRequest(msgspec.Struct, frozen=True):
    """Find the next notification of a notifier. ``seen``: the caller has found nothing up to this event."""

    subscription: Subscription
    bus: str
    bus_id: str
    seen: int = 0


class Found(msgspec.Struct, frozen=True):
    """The next notification of a notifier, if one is due, and the events that it covers; the events before it that
    are dropped. Without one, nothing is of interest up to the event ``seen``; ``passing``: that is to be stored.
    ``is_new``: the notifier is not known yet."""

    cursor: int = 0
    notification: Notification | None = None
    first: int | None = None
    until: int | None = None
    dropped: int = 0
    seen: int = 0
    passing: bool = False
    is_new: bool = False


class PassRequest(msgspec.Struct, frozen=True):
    """Move a notifier from a cursor, and from the notification that ends with ``until``, past an event; ``dropped``
    events on the way are dropped."""

    notifier: str
    cursor: int
    until: int | None
    to: int
    dropped: int = 0


class ClaimRequest(msgspec.Struct, frozen=True):
    """Lease a notification that was found, for ``lease`` milliseconds."""

    notifier: str
    found: Found
    lease: int
    max_attempts: int


class SettleRequest(msgspec.Struct, frozen=True):
    """The outcome of an attempt: delivered if ``error`` is None. ``after``: the milliseconds that the receiver asked to
    wait. ``final``: no attempt may follow. ``interrupted``: the attempt is not counted."""

    notifier: str
    lease: int
    notification: Notification
    max_attempts: int
    error: str | None = None
    after: int = 0
    final: bool = False
    interrupted: bool = False


class _Selected(msgspec.Struct, frozen=True):
    """An event that a notifier wants, with what is known of its subject."""

    event: EventRecord
    kind: str
    session: str | None = None
    workflow: str | None = None
    question: str | None = None


def list_notifiers(_: None, now: Now) -> Op[list[NotifierRecord]]:
    """Return the progress of every notifier, by name."""
    # Imported only here, as in other operations: creating records is slow.
    from agentbus.records import NotifierRecord

    rows = yield Query("notifier_list")
    return [
        NotifierRecord(
            row.name, _status(row, now), row.delivered, row.dead, row.dropped, row.attempts, row.due, row.error,
            row.created, row.updated,
        )
        for row in (NotifierRow(*row) for row in rows)
    ]  # fmt: skip


def find_notification(request: FindRequest, now: Now) -> Op[Found]:
    """Find the next notification that is due: the one that was attempted before, or the oldest of the newest
    ``MAX_WAITING``."""
    wanted = request.subscription
    rows = yield Query("notifier_get", (wanted.notifier,))
    if not rows:
        return Found(is_new=True)
    row = NotifierRow(*rows[0])
    if _status(row, now) == "delivering" or not _is_due(row, now):
        return Found(row.cursor, seen=request.seen)
    if row.first is not None and row.until is not None:
        events = yield from _read(row.first - 1, row.until, wanted)
        selected = yield from _select(events, wanted, now)
        # The settings may have changed since the first attempt.
        selected = [one for one in selected if one.kind == selected[0].kind]
        if not selected:
            return Found(row.cursor, until=row.until, seen=row.until, passing=True)
        made = _notification(selected, request, row.first, row.until, row.skipped)
        return Found(row.cursor, made, row.first, row.until, row.skipped)
    newest = yield from last_event(None, now)
    after = max(row.cursor, min(request.seen, newest))
    events = yield from _read(after, newest, wanted)
    dropped = 0
    if len(events) > _MAX_EVENTS:
        events = events[1:]
        ((dropped,),) = yield Query("notifier_count", (after, events[0].id, wanted.event_kinds))
    groups = list(_groups((yield from _select(events, wanted, now))))
    for group in groups[:-MAX_WAITING]:
        dropped += len(group)
    if not groups:
        return Found(row.cursor, dropped=dropped, seen=newest, passing=dropped > 0 or newest - row.cursor >= _PASS)
    chosen = groups[-MAX_WAITING:][0]
    first, until = chosen[0].event.id, chosen[-1].event.id
    made = _notification(chosen, request, first, until, dropped)
    return Found(row.cursor, made, first, until, dropped)


@single_operation(durable=False)
def open_notifiers(names: tuple[str, ...], now: Now) -> Op[Outcome[None]]:
    """Start notifiers that are not known yet with the next event."""
    newest = yield from last_event(None, now)
    for name in names:
        yield Query("notifier_open", (name, newest, now.wall))
    return None


@single_operation(durable=False)
def pass_events(request: PassRequest, now: Now) -> Op[Outcome[None]]:
    """Move a notifier past events that concern no notification, unless it has been moved or leased."""
    row = yield from _row(request.notifier)
    is_free = row is not None and _status(row, now) != "delivering"
    if is_free and row is not None and (row.cursor, row.until) == (request.cursor, request.until):
        yield Query("notifier_pass", (request.to, now.wall, request.notifier, request.dropped))
    return None


@single_operation(durable=False)
def claim_notification(request: ClaimRequest, now: Now) -> Op[Outcome[int | None]]:
    """Lease a notification. Return the number of the lease; None if another process was faster."""
    found = request.found
    row = yield from _row(request.notifier)
    if row is None or _status(row, now) == "delivering" or not _is_due(row, now) or row.cursor != found.cursor:
        return None
    if row.until is not None:
        if (row.first, row.until) != (found.first, found.until):
            return None
        if row.attempts >= request.max_attempts and found.notification is not None:
            # Each attempt ended its process.
            yield from _give_up(row, found.notification, row.error or "every attempt was interrupted", 0, now)
            return None
    # What was dropped is counted with the first attempt.
    newly = found.dropped if row.until is None else 0
    lease_until = now.wall + min(request.lease, MAX_LEASE)
    yield Query(
        "notifier_claim", (found.first, found.until, found.dropped, newly, lease_until, now.wall, request.notifier)
    )
    return row.lease + 1


@single_operation(durable=True)
def settle_notification(request: SettleRequest, now: Now) -> Op[Outcome[bool]]:
    """Record the outcome of an attempt: the notification was delivered, is retried later, or is given up. Return False
    if the lease was lost: another process delivers it."""
    row = yield from _row(request.notifier)
    if row is None or row.lease != request.lease or row.until is None:
        return False
    if request.interrupted:
        yield Query("notifier_release", (now.wall, request.notifier))
        return True
    if request.error is None:
        yield Query("notifier_delivered", (now.wall, request.notifier))
        return True
    if request.final or row.attempts >= request.max_attempts:
        yield from _give_up(row, request.notification, request.error, request.after, now)
    else:
        parameters = _next_attempt(row, request.after, now), request.error[:_MAX_ERROR], now.wall, row.name
        yield Query("notifier_failed", parameters)
    return True


@single_operation(durable=True)
def report_conditions(findings: tuple[Finding, ...], now: Now) -> Op[Outcome[None]]:
    """Record conditions in the audit log, each once an hour unless its level changes: of several monitors that see it,
    the first does."""
    events: list[Row] = []
    for finding in findings:
        subject, level = _subject(finding), _level(finding)
        rows = yield Query("event_recent", (MAX_ID, _CONDITION, *subject, _MAX_NAMED))
        recent = [_facts(facts) for _, at, *_, facts in rows if 0 <= now.wall - at < _QUIET]
        if any((facts.get("condition"), facts.get("level")) == (finding.kind, level) for facts in recent):
            continue
        facts = {"condition": finding.kind, "level": level, "text": finding.text, "facts": finding.facts}
        events.append(event(now.wall, _CONDITION, subject, None, **facts))
    yield from record(events)
    return None


def skip_restored(id: int, now: Now) -> Op[None]:
    """Keep an event that was restored from an archive from being notified again."""
    yield Query("notifier_skip", (id, now.wall))


def _give_up(row: NotifierRow, notification: Notification, error: str, after: int, now: Now) -> Op[None]:
    facts = {
        "notifier": row.name, "notification": notification.id, "about": notification.kind,
        "count": notification.count, "attempts": row.attempts, "error": error[:_MAX_ERROR],
    }  # fmt: skip
    yield from record([event(now.wall, DEAD, ("bus", "notifications"), None, **facts)])
    yield Query("notifier_dead", (_next_attempt(row, after, now), error[:_MAX_ERROR], now.wall, row.name))


def _next_attempt(row: NotifierRow, after: int, now: Now) -> int:
    """Return the wall time of the next attempt. The delay doubles with each attempt that fails, at least as long as the
    receiver asked for."""
    delay = max(backoff(row.failures + 1, _FIRST_DELAY, LONGEST_DELAY), min(after / 1000, LONGEST_DELAY))
    return now.wall + round(delay * 1000)


def _row(notifier: str) -> Op[NotifierRow | None]:
    rows = yield Query("notifier_get", (notifier,))
    return NotifierRow(*rows[0]) if rows else None


def _status(row: NotifierRow, now: Now) -> str:
    if row.lease_until is not None and 0 < row.lease_until - now.wall <= MAX_LEASE:
        return "delivering"
    return "retrying" if row.failures else "idle"


def _is_due(row: NotifierRow, now: Now) -> bool:
    """Return whether an attempt may be made. A clock that was set back delays nothing."""
    return row.due is None or not 0 < row.due - now.wall <= LONGEST_DELAY * 1000


def _read(after: int, until: int, wanted: Subscription) -> Op[list[EventRecord]]:
    """Return the newest events of interest in a range, in order: one more than are considered."""
    from agentbus.records import EventRecord

    if until <= after or not wanted.kinds:
        return []
    rows = yield Query("notifier_events", (after, until, wanted.event_kinds, _MAX_EVENTS + 1))
    return [EventRecord(*(*columns, _facts(facts))) for *columns, facts in reversed(rows)]


def _facts(text: str) -> dict[str, Any]:
    """Return the facts of an event; none if they are damaged, which must not stop a notifier."""
    try:
        return _mapping(decode(text))
    except _UNREADABLE:
        return {}


def _select(events: Sequence[EventRecord], wanted: Subscription, now: Now) -> Op[list[_Selected]]:
    """Return the events that a notifier wants. An approval that was decided is left out."""
    sessions = yield from _sessions(events)
    selected: list[_Selected] = []
    for one in events:
        kind = _kind(one)
        session, workflow = sessions.get((one.subject_kind, one.subject), (None, None))
        if kind not in wanted.kinds or (wanted.sessions and session not in wanted.sessions):
            continue
        if wanted.workflows and workflow not in wanted.workflows:
            continue
        question = None
        if kind == "approval_requested":
            rows = yield Query("notifier_approval", (one.subject, str(one.facts.get("approval")), now.wall))
            if not rows:
                continue
            question = _question(*rows[0]) if "question" in wanted.include else None
        selected.append(_Selected(one, kind, session, workflow, question))
    return selected


def _kind(event: EventRecord) -> str:
    """Return the kind of the notification of an event; that of the event, which is none, if the condition is not
    known."""
    condition = event.facts.get("condition")
    is_known = event.kind == _CONDITION and isinstance(condition, str) and condition in CONDITIONS
    return str(condition) if is_known else event.kind


def _sessions(events: Sequence[EventRecord]) -> Op[dict[tuple[str, str], tuple[str | None, str | None]]]:
    """Return the session and workflow of each subject, as far as it has them."""
    names: dict[str, list[str]] = {}
    for one in events:
        names.setdefault(one.subject_kind, []).append(one.subject)
    found: dict[tuple[str, str], tuple[str | None, str | None]] = {
        ("session", name): (name, None) for name in names.get("session", ())
    }
    if agents := names.get("agent"):
        for id, session in (yield Query("notifier_agents", (agents,))):
            found["agent", id] = (session, None)
    if tasks := names.get("task"):
        for id, session, workflow in (yield Query("notifier_tasks", (tasks,))):
            found["task", id] = (session, workflow)
    if messages := names.get("message"):
        rows = [row for name in messages if (row := generated_id(name)) is not None]
        for id, session in (yield Query("notifier_messages", (rows, messages))):
            found["message", id] = (session, None)
    return found


def _groups(selected: Sequence[_Selected]) -> Iterator[list[_Selected]]:
    """Yield the events of each notification: one, or several of a kind that follow each other."""
    group: list[_Selected] = []
    for one in selected:
        if group and (one.kind not in _PLURALS or group[-1].kind != one.kind or len(group) == _MAX_GROUP):
            yield group
            group = []
        group.append(one)
    if group:
        yield group


def _notification(
    selected: Sequence[_Selected], request: FindRequest, first: int, until: int, dropped: int
) -> Notification:
    from agentbus.records import Notification

    wanted = request.subscription
    last = selected[-1]
    one, kind = last.event, last.kind
    facts = {name: one.facts[name] for name in ("approval", "expires", "type") if one.facts.get(name) is not None}
    if (pid := _pid(one)) is not None:
        facts["pid"] = pid
    subject = f"{one.subject_kind}:{one.subject}"
    if one.kind == _CONDITION:
        text, severity = str(one.facts.get("text")), CONDITIONS[kind]
        facts = _mapping(one.facts.get("facts"))
    else:
        text, severity = _EVENTS[kind].text(one), _EVENTS[kind].severity
    count = len(selected)
    if count > 1:
        text, subject = f"{count} {_PLURALS[kind]}", f"bus:{one.subject_kind}s"
        facts = {"subjects": [group.event.subject for group in selected[:_MAX_NAMED]]}
    error = one.facts.get("error") or one.facts.get("reason")
    return Notification(
        # The time distinguishes events with the same id, after the bus was replaced by a backup.
        id=f"{request.bus_id}-{wanted.name}-{first}-{until}-{selected[0].event.at:x}",
        kind=kind,
        severity=severity,
        text=text,
        at=one.at,
        subject=subject,
        bus=request.bus,
        bus_id=request.bus_id,
        notifier=wanted.name,
        event=one.id,
        count=count,
        dropped=dropped,
        session=last.session if count == 1 else None,
        workflow=last.workflow if count == 1 else None,
        facts=facts,
        question=last.question,
        error=_shortened(str(error)) if error is not None and "error" in wanted.include else None,
    )


def _question(shown: str, checksum: int) -> str | None:
    """Return what an approval shows: a text, or JSON; None if it is damaged, which must not keep the approval from
    being notified."""
    try:
        value = verify_value(shown, checksum, "the question of an approval")
    except _UNREADABLE:
        return None
    return _shortened(value if isinstance(value, str) else shown)


def _shortened(text: str) -> str:
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}…"


def _subject(finding: Finding) -> tuple[str, str]:
    """Return the subject of a condition in the audit log, which has no hosts and servers."""
    kind, _, name = finding.subject.partition(":")
    return (kind, name) if kind in {"session", "mailbox", "bus"} else ("bus", finding.subject)


def _level(finding: Finding) -> str:
    """Return how severe a condition is. It is reported again when this changes: a number when it doubles or halves."""
    facts = finding.facts
    if finding.kind == "session_degraded":
        return "/".join(str(facts.get(name, 0)) for name in ("failed", "live", "awaited"))
    amount = facts.get("bytes", facts.get("seconds", 0))
    return str(amount.bit_length()) if isinstance(amount, int) else ""
