"""What people see of recovery: what was cut off, what can be done about it, and what was done."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from agentbus.records.bus import CheckpointSummary, DocumentSummary, SessionRecord

_SHOWN = 10
"""Agents and documents that the text of a plan shows."""


def named(names: Sequence[str]) -> str:
    """Some names, and how many more there are."""
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _counts(numbers: dict[str, int]) -> str:
    counts = ", ".join(f"{count} {status}" for status, count in sorted(numbers.items()))
    return f" ({counts})" if counts else ""


class RecoverySummary(msgspec.Struct, frozen=True):
    """What was cut off, and how recovery went so far. Times are milliseconds. ``print(summary)`` is a text for people.

    ``incomplete``, ``by_status``, ``by_type``, ``by_session``: agents that have not ended, and those that failed or
    stopped while their session goes on or is interrupted. ``oldest``: the age of the oldest of them.
    ``interrupted``: the sessions that are, the one that was cut off last first; the first 100.
    ``dead_holders``: agents that failed while work waits for them, in a session that has not ended or in none; the
    first 100.
    ``database_bytes``: the size of the database.
    ``recoveries``: the interruptions after which a session went on, or was ended, as far back as the audit trail is
    kept. ``success_rate``: from 0 to 1, of those whose outcome is known; one succeeded if the session then completed,
    and failed if it failed or was cut off again. ``mean_time``, ``median_time``: from interruption to recovery.

    >>> summary = await bus.recovery.summary()                                        # doctest: +SKIP
    >>> summary.interrupted, summary.by_status                                        # doctest: +SKIP
    (['planning-001'], {'failed': 2, 'running': 1})
    """

    incomplete: int
    by_status: dict[str, int]
    by_type: dict[str, int]
    by_session: dict[str, int]
    oldest: int | None
    interrupted: list[str]
    dead_holders: list[str]
    database_bytes: int
    recoveries: int
    success_rate: float | None
    mean_time: int | None
    median_time: int | None

    def __str__(self) -> str:
        lines = [
            f"interrupted sessions: {named(self.interrupted) or 'none'}",
            f"failed while work waits for them: {named(self.dead_holders) or 'none'}",
            f"agents that have not completed: {self.incomplete}{_counts(self.by_status)}",
        ]
        recovered = f"recoveries so far: {self.recoveries}"
        if self.success_rate is not None:
            recovered += f", {self.success_rate:.0%} of those known succeeded"
        if self.median_time is not None:
            recovered += f", after {self.median_time / 1000:g} s in the median"
        return "\n".join([*lines, recovered])


class CutOffSession(msgspec.Struct, frozen=True):
    """A session that was interrupted, or that is ``degraded``: it goes on, though agents of it failed; or ``deserted``:
    nobody is left in it, and work waits for its agents.

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

    ``checkpoint``: its newest one of this session, which it would go on from. ``waiting``: messages that wait in its
    mailboxes, or will. ``held``: messages from its mailboxes that are in somebody's hands. ``tasks``: tasks in its
    hands. ``cut_off``: whether it failed, or stopped though nobody meant it to, so that a resumption expects it again.

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
    waiting: int
    held: int
    tasks: list[str]
    cut_off: bool

    def __str__(self) -> str:
        parts = [f"{self.id} ({self.type}) {self.status} at {self.progress} %"]
        if self.error:
            parts.append(self.error)
        if self.checkpoint is not None:
            parts.append(f"checkpoint {self.checkpoint.id} {self.checkpoint.name!r}")
        unfinished = self.waiting + self.held
        if unfinished:
            parts.append(f"{unfinished} message{'s' * (unfinished > 1)} unfinished")
        return "; ".join(parts)


class RecoveryOption(msgspec.Struct, frozen=True):
    """Something that can be done with a session: resume, complete, abandon, rollback or follow_on.

    ``does`` says what it would do. ``checkpoint``: for a rollback, the newest one that it could go to.

    >>> for option in plan.options:                                                   # doctest: +SKIP
    ...     print(option.action, "–", option.does)
    """

    action: str
    does: str
    checkpoint: int | None = None


class RecoveryRecord(msgspec.Struct, frozen=True):
    """A session that is to be recovered: what it came to, and what can be done, the likeliest first.

    ``present``, ``missing``: which expected documents are there, and which not, by their producers. ``documents``: all
    that it has. ``checkpoints``: its composite checkpoints, newest first; the first 20. ``at_work``: its agents that
    are live. ``owned``: whether a live process is in its block. ``follow_ons``: the sessions that were started from it
    by ``follow_on``, newest first. ``tasks``: its durable tasks that have not ended, and their statuses; they go on
    with any worker, whatever is done with the session. ``remaining``: the members of its meetings that have not
    finished, by the meeting.

    >>> (await bus.recovery.plan("planning-001")).record.missing                      # doctest: +SKIP
    {'scope-analyzer': 'planning-scope'}
    """

    session: SessionRecord
    agents: list[RecoveryAgent]
    present: dict[str, str]
    missing: dict[str, str]
    documents: list[DocumentSummary]
    checkpoints: list[CheckpointSummary]
    at_work: list[str]
    owned: bool
    options: list[RecoveryOption]
    follow_ons: list[str]
    tasks: dict[str, str] = {}
    remaining: dict[str, list[str]] = {}

    def __str__(self) -> str:
        session = self.session
        lines = [
            f"session {session.id} ({session.operation}, {session.progress} %) is {session.status}"
            + (f": {session.error}" if session.error else ""),
            *(f"  {agent}" for agent in self.agents[:_SHOWN]),
        ]
        if len(self.agents) > _SHOWN:
            lines.append(f"  and {len(self.agents) - _SHOWN} more agents")
        for words, documents in (("there", self.present), ("missing", self.missing)):
            if documents:
                owed = ", ".join(f"{name} of {producer}" for producer, name in list(documents.items())[:_SHOWN])
                lines.append(f"{words}: {owed}")
        if self.tasks:
            open_tasks = ", ".join(f"{task} {status}" for task, status in list(self.tasks.items())[:_SHOWN])
            lines.append(f"tasks that have not ended: {open_tasks}")
        lines += [f"{meeting} continues with {named(members)}" for meeting, members in self.remaining.items()]
        if self.follow_ons:
            lines.append(f"started from it: {named(self.follow_ons)}")
        if not self.options:
            lines.append("nothing to do" + (": somebody is at work in it" if self.owned or self.at_work else ""))
        return "\n".join([*lines, *(f"{option.action}: {option.does}" for option in self.options)])


class Rollback(msgspec.Struct, frozen=True):
    """What a rollback changed.

    ``checkpoint``: where it went back to. ``saved``: a composite checkpoint of what was there before, the way back.
    ``documents``: those that have a new version with their value of then. ``removed``: documents that were not there
    then. ``state``: the keys that were set or deleted, by their scope. ``participants``: the members who have not
    finished again, or finished, came or went, by their meeting. ``checkpoints``: the agents whose checkpoint of then
    was saved again, as their newest (its id). ``ahead``: agents whose newest checkpoint is from later: they had none
    then, or it is gone. ``left``: agents of then that do not belong to the session any more, and were left alone.
    ``live``: agents that are at work; what they have in memory was not rolled back. ``handled``: messages that waited
    then and have been handled since; they do not come again.

    >>> rollback = await session.rollback(checkpoint.id)                              # doctest: +SKIP
    >>> rollback.documents, rollback.removed, rollback.state                          # doctest: +SKIP
    (['plan'], ['results'], {'planner-1': ['phase']})
    """

    session: str
    checkpoint: int
    saved: int
    documents: list[str]
    removed: list[str]
    state: dict[str, list[str]]
    participants: dict[str, list[str]]
    checkpoints: dict[str, int]
    ahead: list[str]
    left: list[str]
    live: list[str]
    handled: list[str]


class Recovered(msgspec.Struct, frozen=True):
    """What a recovery did. ``changed`` is False if there was nothing to do: somebody had resumed the session before.

    ``agents``: after a resumption or a rollback those that are expected again, else those that were stopped.
    ``follow_on``: the session that was started. ``rollback``: what a rollback changed. ``remaining``: after a
    resumption or a rollback, the members of its meetings that have not finished, by the meeting.

    >>> done = await plan.resume()                                                    # doctest: +SKIP
    >>> done.changed, done.agents                                                     # doctest: +SKIP
    (True, ['planner-1'])
    """

    action: str
    session: str
    changed: bool
    agents: list[str]
    follow_on: str | None = None
    rollback: Rollback | None = None
    remaining: dict[str, list[str]] = {}
