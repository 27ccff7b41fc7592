"""Records of recovery: interrupted sessions, plans and their results."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from agentbus.records.entities import CheckpointSummary, DocumentSummary, SessionRecord

_SHOWN = 10
"""Agents and documents that the text of a plan lists."""


def join_names(names: Sequence[str]) -> str:
    """Join names, abbreviating a long list."""
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _counts(numbers: dict[str, int]) -> str:
    counts = ", ".join(f"{count} {status}" for status, count in sorted(numbers.items()))
    return f" ({counts})" if counts else ""


class RecoverySummary(msgspec.Struct, frozen=True):
    """A summary of interrupted work and past recoveries. Times are milliseconds. ``print(summary)`` is readable text.

    ``incomplete``, ``by_status``, ``by_type``, ``by_session``: agents that have not ended, and those that failed or
    stopped in a session that is active or interrupted. ``oldest``: the age of the oldest of them. ``interrupted``: the
    first 100 interrupted sessions, latest first. ``dead_holders``: the first 100 failed agents that work waits for, in
    an open session or in none. ``database_bytes``: the size of the database. ``recoveries``: the interruptions after
    which a session was continued or ended, as far back as the audit log reaches. ``success_rate``: from 0 to 1, of
    those with a known outcome; a recovery succeeded if the session then completed, and failed if it failed or was
    interrupted again. ``mean_time``, ``median_time``: from interruption to recovery.

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
            f"interrupted sessions: {join_names(self.interrupted) or 'none'}",
            f"failed while work waits for them: {join_names(self.dead_holders) or 'none'}",
            f"agents that have not completed: {self.incomplete}{_counts(self.by_status)}",
        ]
        recovered = f"recoveries so far: {self.recoveries}"
        if self.success_rate is not None:
            recovered += f", {self.success_rate:.0%} of those known succeeded"
        if self.median_time is not None:
            recovered += f", after {self.median_time / 1000:g} s in the median"
        return "\n".join([*lines, recovered])


class CutOffSession(msgspec.Struct, frozen=True):
    """An interrupted session; or one that is ``degraded`` (active although agents of it failed) or ``deserted`` (no
    agent is left in it, while work waits for its agents).

    >>> [(cut.session, cut.inactive // 60_000) for cut in await bus.sessions.cut_off()]   # doctest: +SKIP
    [('planning-001', 25)]
    """

    session: str
    milestone: str | None
    operation: str
    status: str
    inactive: int
    """Milliseconds since its last recorded activity."""
    agents: int
    active: int
    """Number of its live agents."""
    failed: int
    error: str | None
    """The reason of the interruption."""


class RecoveryAgent(msgspec.Struct, frozen=True):
    """An agent of a session to be recovered: its progress and pending work.

    ``checkpoint``: its newest one in this session, from which it would resume. ``waiting``: messages in its mailboxes,
    scheduled ones included. ``held``: leased messages from its mailboxes. ``tasks``: tasks it holds. ``cut_off``: it
    failed or was stopped unintentionally, so that a resumption expects it again.

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
    """An action for a session: resume, complete, abandon, rollback or follow_on.

    ``does`` describes its effect. ``checkpoint``: for a rollback, the newest one possible.

    >>> for option in plan.options:                                                   # doctest: +SKIP
    ...     print(option.action, "–", option.does)
    """

    action: str
    does: str
    checkpoint: int | None = None


class RecoveryRecord(msgspec.Struct, frozen=True):
    """A session to be recovered: its state, and the possible actions, most likely first.

    ``present``, ``missing``: expected documents by producer. ``documents``: all documents. ``checkpoints``: its newest
    20 composite checkpoints. ``at_work``: its live agents. ``owned``: a live process is in its block. ``follow_ons``:
    sessions started from it by ``follow_on``, newest first. ``tasks``: its durable tasks that have not ended, with
    status; any worker continues them, independent of the session. ``remaining``: members of its meetings that have not
    finished, by meeting.

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
        lines += [f"{meeting} continues with {join_names(members)}" for meeting, members in self.remaining.items()]
        if self.follow_ons:
            lines.append(f"started from it: {join_names(self.follow_ons)}")
        if not self.options:
            lines.append("nothing to do" + (": it is in use" if self.owned or self.at_work else ""))
        return "\n".join([*lines, *(f"{option.action}: {option.does}" for option in self.options)])


class Rollback(msgspec.Struct, frozen=True):
    """The changes of a rollback.

    ``checkpoint``: its target. ``saved``: a composite checkpoint of the state before, to undo it. ``documents``: those
    with a new version that has the old value. ``removed``: documents that did not exist then. ``state``: keys that were
    set or deleted, by scope. ``participants``: members whose entry changed, by meeting. ``checkpoints``: agents whose
    checkpoint of then was saved again as the newest (its id). ``ahead``: agents whose newest checkpoint is later,
    because they had none then or it is gone. ``left``: agents of then that no longer belong to the session, and were
    not changed. ``live``: live agents; their memory was not rolled back. ``handled``: messages that waited then and
    have been handled since; they are not delivered again.

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
    """The result of a recovery. ``changed`` is False if there was nothing to do: the session had been resumed before.

    ``agents``: after a resumption or rollback the agents expected again, otherwise those stopped. ``follow_on``: the
    session that was started. ``rollback``: the changes of a rollback. ``remaining``: after a resumption or rollback,
    the members of its meetings that have not finished, by meeting.

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
