"""What people see of recovery: what was cut off, what can be done about it, and what was done."""

from __future__ import annotations

import msgspec

from agentbus.records.bus import CheckpointSummary, DocumentSummary, SessionRecord


class RecoverySummary(msgspec.Struct, frozen=True):
    """What was cut off, and how recovery went so far. Times are milliseconds.

    An agent is incomplete that has not ended, and one that failed or stopped while its session goes on or is
    interrupted. ``recoveries`` are the interruptions after which a session went on, or was ended, as far back as the
    audit trail is kept; one succeeded if the session then completed, and failed if it failed or was cut off again.

    >>> summary = await bus.recovery.summary()                                        # doctest: +SKIP
    >>> summary.interrupted, summary.by_status                                        # doctest: +SKIP
    (['planning-001'], {'failed': 2, 'running': 1})
    """

    incomplete: int
    by_status: dict[str, int]
    by_type: dict[str, int]
    by_session: dict[str, int]
    oldest: int | None
    """The age of the oldest incomplete agent."""
    interrupted: list[str]
    """The sessions that are interrupted, the one that was cut off last first; the first 100."""
    dead_holders: list[str]
    """Agents that failed while work waits for them; the first 100."""
    database_bytes: int
    recoveries: int
    success_rate: float | None
    """From 0 to 1, of the recoveries whose outcome is known."""
    mean_time: int | None
    """From the interruption to the recovery."""
    median_time: int | None


class CutOffSession(msgspec.Struct, frozen=True):
    """A session that was interrupted, or that is ``degraded``: it goes on, though agents of it failed.

    >>> [(cut.session, cut.inactive // 60_000) for cut in await bus.sessions.cut_off()]   # doctest: +SKIP
    [('planning-001', 25)]
    """

    session: str
    milestone: str | None
    operation: str
    status: str
    inactive: int
    """Milliseconds since anything was noted of it."""
    agents: int
    active: int
    """Those of its agents that are live."""
    failed: int
    error: str | None
    """Why it was interrupted."""


class RecoveryAgent(msgspec.Struct, frozen=True):
    """An agent of a session that is to be recovered: how far it came, and what waits for it.

    >>> [(agent.id, agent.checkpoint.name, agent.waiting) for agent in plan.agents if agent.checkpoint]
    ...                                                                               # doctest: +SKIP
    [('planner-1', 'after_planning', 3)]
    """

    id: str
    type: str
    status: str
    progress: int
    note: str | None
    error: str | None
    checkpoint: CheckpointSummary | None
    """Its newest one."""
    waiting: int
    """Messages that wait in its mailboxes, or will."""
    held: int
    """Messages from its mailboxes that are in somebody's hands."""
    tasks: list[str]
    """Its open tasks."""


class RecoveryOption(msgspec.Struct, frozen=True):
    """Something that can be done with a session: resume, complete, abandon, rollback or follow_on.

    >>> for option in plan.options:                                                   # doctest: +SKIP
    ...     print(option.action, "–", option.does)
    """

    action: str
    does: str
    checkpoint: int | None = None
    """For a rollback: the newest checkpoint that it could go to."""


class RecoveryRecord(msgspec.Struct, frozen=True):
    """A session that is to be recovered: what it came to, and what can be done, the likeliest first.

    >>> (await bus.recovery.plan("planning-001")).record.missing                      # doctest: +SKIP
    {'scope-analyzer': 'planning-scope'}
    """

    session: SessionRecord
    agents: list[RecoveryAgent]
    present: dict[str, str]
    """Which expected documents are there, by their producers."""
    missing: dict[str, str]
    documents: list[DocumentSummary]
    checkpoints: list[CheckpointSummary]
    """Its composite checkpoints, newest first; the first 20."""
    at_work: list[str]
    """Its agents that are live."""
    owned: bool
    """Whether a live process is in its block."""
    options: list[RecoveryOption]


class Rollback(msgspec.Struct, frozen=True):
    """What a rollback changed.

    >>> rollback = await session.rollback(checkpoint.id)                              # doctest: +SKIP
    >>> rollback.documents, rollback.removed, rollback.state                          # doctest: +SKIP
    (['plan'], ['results'], {'planner-1': ['phase']})
    """

    session: str
    checkpoint: int
    """Where it went back to."""
    saved: int
    """A composite checkpoint of what was there before: the way back."""
    documents: list[str]
    """Those that have a new version with their value of then."""
    removed: list[str]
    """Documents that were not there then."""
    state: dict[str, list[str]]
    """The keys that were set or deleted, by their scope."""
    participants: dict[str, list[str]]
    """The members who have not finished again, or finished, came or went, by their meeting."""
    checkpoints: dict[str, int]
    """The agents whose checkpoint of then was saved again, as their newest."""
    ahead: list[str]
    """Agents whose newest checkpoint is from later: they had none then, or it is gone."""
    left: list[str]
    """Agents of then that do not belong to the session any more, and were left alone."""
    live: list[str]
    """Agents that are at work; what they have in memory was not rolled back."""
    handled: list[str]
    """Messages that waited then and have been handled since; they do not come again."""


class Recovered(msgspec.Struct, frozen=True):
    """What a recovery did. ``changed`` is False if there was nothing to do: somebody had resumed the session before.

    >>> done = await plan.resume()                                                    # doctest: +SKIP
    >>> done.changed, done.agents                                                     # doctest: +SKIP
    (True, ['planner-1'])
    """

    action: str
    session: str
    changed: bool
    agents: list[str]
    """After a resumption or a rollback those that are expected again, else those that were stopped."""
    follow_on: str | None = None
    """The session that was started."""
    rollback: Rollback | None = None
