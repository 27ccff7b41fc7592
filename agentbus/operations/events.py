"""The audit trail: one line for each change of status, takeover, deletion or definition, not one per message.

``KINDS`` says what is recorded. The order of the ids is the order of the commits, so that whoever has read up to an id
has missed nothing before it: on SQLite there is only one write transaction at a time, on PostgreSQL only one that has
written events.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from agentbus.clock import Now
from agentbus.codec import decode, plain
from agentbus.operations import Each, Op, Query, Row, Wake

if TYPE_CHECKING:
    from agentbus.records import EventRecord

CHANNEL = "events"

KINDS = {
    "agent_expected": "an agent was announced; type, epoch, before (its status), left (an open session that it had not"
    " completed in, and left for another)",
    "agent_registered": "an agent began a life; type, epoch, before, left",
    "agent_taken_over": "an agent began a life and fenced the one before; type, epoch, before, left",
    "agent_joined": "an agent went into a session in the life that it is in; session, left (an open one)",
    "agent_completed": "an agent's work is done",
    "agent_suspected": "something speaks against an agent; evidence",
    "agent_recovered": "a suspect agent showed life; evidence (what had spoken against it)",
    "agent_failed": "an agent failed, or was judged to have; error, evidence (if it was judged)",
    "agent_stopped": "an agent ended before its work was done; error (why, if that was said)",
    "agent_deleted": "an agent is gone for good; checkpoints (that went in its commit; many are pruned before)",
    "process_dead": "a process was found dead, its agents failed; reason, evidence",
    "process_back": "a process that counted as dead beat again; its agents stay failed",
    "message_dead": "a message became a dead letter; type, error",
    "messages_requeued": "dead letters got another chance; count, attempts (by message_id, of the first 100)",
    "messages_purged": "finished messages were deleted; count, status (null: acked and expired), before",
    "mailbox_declared": "a pool or topic was declared that did not exist",
    "session_started": "a session began; operation, milestone, process",
    "session_continued": "a paused or interrupted session goes on; before (its status), process (if one owns it)",
    "session_paused": "a session was paused; before, reason",
    "session_interrupted": "a session was cut off; before, reason",
    "session_completed": "a session's work is done; before, stopped (its agents that were only expected)",
    "session_failed": "a session failed; before, error, stopped",
    "session_recovered": "a session was recovered by a plan; action, before, agents (expected again, or stopped; of the"
    " first 100), and checkpoint, reason or follow_on",
    "session_rolled_back": "a session went back to a checkpoint; checkpoint, saved (the one of what was there before),"
    " documents, removed, entries, participants (how many)",
    "session_deleted": "an ended session is gone for good, with all that belonged to it",
    "task_started": "a task was made; workflow, session, parent, auto",
    "task_running": "a worker took a task; before (its status), lease (which hand-out)",
    "task_waiting": "a task waits; before, waits (for what)",
    "task_pending": "a task may be taken again; before, holder and reason (if its worker is gone), waits (for another"
    " attempt), error, delay and restart (if it failed and is tried again; which restart it is)",
    "task_halting": "a running task is to be halted before its next step; before, reason",
    "task_halted": "a task was halted; before, reason",
    "task_continued": "a halted task goes on; before, reason",
    "task_resumed": "a task that was halted, stopped or failed goes on; before, reason",
    "task_completed": "a task is done; before",
    "task_failed": "a task failed; before, error",
    "task_stopped": "a task was given up; before, reason",
    "task_redo_waits": "a step is redone when those that run beside it have ended; before, step, running, note, reason",
    "task_redone": "a task does a step again, and all that follows; before, step, note, reason",
    "task_restarted": "a task is done again from its beginning; before, reason",
    "task_edited": "a task was changed; changed (what of it)",
    "task_phase": "a task came to a part of its work; phase, before (the part that it was in)",
    "approval_requested": "a task asks for a decision; approval, expires",
    "approval_decided": "an approval was decided, passed through (auto) or not decided in time; approval, verdict,"
    " reason, auto",
    "step_settled": "a person said what became of a step whose outcome was unknown; step, outcome",
    "task_deleted": "an ended task is gone for good, with its steps and sub-tasks",
    "retention_applied": "what was old enough is gone; counts (by kind), archive (the file that has it)",
    "retention_changed": "what is kept, and for how long, was changed; before, after (of what was changed)",
    "quotas_changed": "what may be taken of the bus was changed; before, after (of what was changed)",
    "archive_imported": "an archive, or what lay at a path, was imported; archive (its name), counts (by kind)",
    "bus_copied": "the bus was copied from another place; source, rows",
    "bus_restored": "the bus was replaced by a backup; backup, processes (how many were live in it)",
    "type_defined": "a type was added to the vocabulary; schema (whether it has one)",
    "type_changed": "a type has another description or schema; changed (which)",
    "checkpoint_deleted": "a checkpoint was deleted; owner_kind, owner, name",
    "checkpoints_pruned": "old checkpoints of an agent or session were deleted; count, name (null: of each), keep",
}
"""Every kind of event: what happened, and the facts that are kept of it."""

SUBJECTS = (
    "agent", "message", "session", "process", "state", "mailbox", "vocabulary", "document", "checkpoint", "task", "bus",
)  # fmt: skip


class EventFilter(msgspec.Struct, frozen=True):
    """Which events to read, after which one; None takes all. ``subject`` is its kind and its id."""

    after: int
    kind: str | None = None
    subject: tuple[str, str] | None = None
    limit: int = 500


def event(at: int, kind: str, subject: tuple[str, str], actor: str | None, **facts: Any) -> Row:
    """The row of one event; ``subject`` is its kind and its id."""
    return (at, kind, *subject, actor, plain(facts))


def record(events: list[Row]) -> Op[None]:
    if events:
        yield Each("event_insert", events)
        yield Wake((CHANNEL,))


def read_events(wanted: EventFilter, now: Now) -> Op[list[EventRecord]]:
    """The next events, in their order."""
    if wanted.subject is not None:
        rows = yield Query("event_page_of_subject", (*wanted.subject, wanted.after, wanted.kind, wanted.limit))
    elif wanted.kind is not None:
        rows = yield Query("event_page_of_kind", (wanted.kind, wanted.after, wanted.limit))
    else:
        rows = yield Query("event_page", (wanted.after, wanted.limit))
    # Imported only here, as records are everywhere: whoever writes needs none, and they take long to make.
    from agentbus.records import EventRecord

    return [EventRecord(*(*columns, decode(facts))) for *columns, facts in rows]


def last_event(_: None, now: Now) -> Op[int]:
    """The id of the newest event; 0 if there is none."""
    ((id,),) = yield Query("event_last")
    return int(id)
