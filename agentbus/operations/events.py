"""The audit log: one event for each change of status, takeover, deletion or definition; none per message.

The order of ids is the order of commits, so a reader that has read up to an id has missed nothing before it: SQLite has
one write transaction at a time, PostgreSQL serializes those that write events.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from agentbus.core.clock import Now
from agentbus.core.codec import decode, plain
from agentbus.operations.protocol import ExecuteMany, Op, Query, Row, Wake

if TYPE_CHECKING:
    from agentbus.records import EventRecord, Page

CHANNEL = "events"

KINDS = {
    "agent_expected": "an agent was announced; type, epoch, before (its status), left (an open session that it left for"
    " another without having completed)",
    "agent_registered": "an agent registered; type, epoch, before, left",
    "agent_taken_over": "an agent registered and fenced its previous incarnation; type, epoch, before, left",
    "agent_joined": "a registered agent joined a session; session, left (an open one)",
    "agent_busy": "an agent announced a period of silence; seconds (0: it ended early), until (wall time)",
    "agent_completed": "an agent completed its work",
    "agent_suspected": "an agent became suspect; evidence",
    "agent_recovered": "a suspect agent was active again; evidence (of the suspicion)",
    "agent_failed": "an agent failed; error, evidence (if the bus detected it)",
    "agent_stopped": "an agent stopped before its work was done; error (the reason, if given)",
    "agent_renamed": "a migration changed the id of an agent; before (its old id)",
    "agent_deleted": "an agent was deleted; checkpoints (deleted in the same commit; most are pruned before)",
    "process_dead": "a process was found dead, its agents failed; reason, evidence",
    "process_back": "a process marked dead sent a heartbeat; its agents stay failed",
    "message_dead": "a message became a dead letter; type, error",
    "messages_requeued": "dead letters were requeued; count, attempts (by message_id, of the first 100)",
    "messages_purged": "finished messages were deleted; count, status (null: acked and expired), before",
    "thread_held": "a thread reached the bound of messages without progress, and further ones are held; messages (the"
    " bound), agents (the senders)",
    "thread_released": "the held messages of a thread were released by a person; count",
    "thread_discarded": "the held messages of a thread were discarded by a person; count, reason",
    "mailbox_declared": "a pool or topic was declared that did not exist",
    "session_started": "a session started; operation, milestone, process",
    "session_continued": "a paused or interrupted session continues; before (its status), process (its owner, if any)",
    "session_paused": "a session was paused; before, reason",
    "session_interrupted": "a session was interrupted; before, reason",
    "session_completed": "a session completed; before, stopped (its agents that never registered)",
    "session_failed": "a session failed; before, error, stopped",
    "session_recovered": "a session was recovered by a plan; action, before, agents (expected again, or stopped; of the"
    " first 100), and checkpoint, reason or follow_on",
    "session_rolled_back": "a session was rolled back; checkpoint, saved (a checkpoint of the state before),"
    " documents, removed, entries, participants (counts)",
    "history_deleted": "a history was deleted; history_kind, history (its name), items, size",
    "session_deleted": "an ended session was deleted with everything that belonged to it",
    "task_started": "a task was created; workflow, session, parent, auto",
    "task_running": "a worker took a task; before (its status), lease (its number)",
    "task_waiting": "a task waits; before, waits (what it waits for)",
    "task_pending": "a task may be taken again; before, holder and reason (if its worker is gone), waits (what it waits"
    " for), error, delay and restart (if it failed and is restarted; the number of the restart)",
    "task_halting": "a running task is to be halted before its next step; before, reason",
    "task_halted": "a task was halted; before, reason",
    "task_continued": "a halted task continues; before, reason",
    "task_resumed": "a halted, stopped or failed task was resumed; before, reason",
    "task_completed": "a task completed; before",
    "task_failed": "a task failed; before, error",
    "task_stopped": "a task was stopped; before, reason",
    "task_redo_waits": "a redo waits for concurrent steps to end; before, step, running, note, reason",
    "task_redone": "a step and all that depends on it are redone; before, step, note, reason",
    "task_restarted": "a task starts again from the beginning; before, reason",
    "task_edited": "a task was edited; changed (the fields)",
    "task_phase": "a task entered a phase; phase, before (the previous one)",
    "approval_requested": "a task asks for a decision; approval, expires",
    "task_signalled": "a signal was sent to a task; signal, signal_id",
    "approval_decided": "an approval was decided, passed through (auto) or expired; approval, verdict, reason, auto",
    "step_settled": "an operator settled a step with an unknown outcome; step, outcome",
    "task_deleted": "an ended task was deleted with its steps and sub-tasks",
    "retention_applied": "the retention policy was applied; counts (by kind), archive (the file)",
    "retention_changed": "the retention policy was changed; before, after (changed fields)",
    "quotas_changed": "the quotas were changed; before, after (changed fields)",
    "archive_imported": "an archive or other files were imported; archive (its name), counts (by kind)",
    "bus_copied": "the bus was copied from another; source, rows",
    "bus_restored": "the bus was replaced by a backup; backup, processes (number of live ones in it)",
    "token_created": "a token of an HTTP client was created; token (its id), role, operator",
    "token_revoked": "a token of an HTTP client was revoked; token (its id), role, operator",
    "condition_reported": "a monitor saw a lasting condition that a user is notified of; condition, level, text, facts",
    "notification_dead": "a notification was given up; notifier, notification (its id), about (its kind), count (of"
    " events), attempts, error",
    "type_defined": "a type was defined; schema (whether it has one)",
    "type_changed": "the description or schema of a type changed; changed (which)",
    "checkpoint_deleted": "a checkpoint was deleted; owner_kind, owner, name",
    "checkpoints_pruned": "old checkpoints of an agent or session were deleted; count, name (null: every name), keep",
}
"""Every kind of event: its meaning, and the facts that are recorded."""

SUBJECTS = (
    "agent", "message", "session", "process", "state", "mailbox", "vocabulary", "document", "checkpoint", "task", "bus",
)  # fmt: skip


class EventFilter(msgspec.Struct, frozen=True):
    """Selects events after an id; None matches all. ``subject`` is a kind and an id."""

    after: int
    kind: str | None = None
    subject: tuple[str, str] | None = None
    limit: int = 500


def event(at: int, kind: str, subject: tuple[str, str], actor: str | None, **facts: Any) -> Row:
    """Return the row of an event; ``subject`` is a kind and an id."""
    return (at, kind, *subject, actor, plain(facts))


def record(events: list[Row]) -> Op[None]:
    if events:
        yield ExecuteMany("event_insert", events)
        yield Wake((CHANNEL,))


def read_events(wanted: EventFilter, now: Now) -> Op[list[EventRecord]]:
    """Return the next events in order."""
    if wanted.subject is not None:
        rows = yield Query("event_page_of_subject", (*wanted.subject, wanted.after, wanted.kind, wanted.limit))
    elif wanted.kind is not None:
        rows = yield Query("event_page_of_kind", (wanted.kind, wanted.after, wanted.limit))
    else:
        rows = yield Query("event_page", (wanted.after, wanted.limit))
    return [_event(row) for row in rows]


def recent_events(wanted: EventFilter, now: Now) -> Op[Page[EventRecord]]:
    """Return the events before ``wanted.after``, newest first."""
    kind, subject = wanted.subject or (None, None)
    rows = yield Query("event_recent", (wanted.after, wanted.kind, kind, subject, wanted.limit + 1))
    from agentbus.operations.common import page

    return page(rows, wanted.limit, _event, lambda event: str(event.id))


def _event(row: Row) -> EventRecord:
    # Imported only here: writers need no records, and creating them is slow.
    from agentbus.records import EventRecord

    *columns, facts = row
    return EventRecord(*(*columns, decode(facts)))


def last_event(_: None, now: Now) -> Op[int]:
    """Return the id of the newest event; 0 if there is none."""
    ((id,),) = yield Query("event_last")
    return int(id)
