"""The survey and clean-up of a sweep: silent processes, troubled sessions, lapsed leases, expired messages, unattended
mailboxes."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from agentbus.core.clock import Now
from agentbus.operations.liveness import Rules, absent_agents, overdue_agents, silence_limit, silent_agents
from agentbus.operations.lookups import recipient
from agentbus.operations.processes import PeerProcess
from agentbus.operations.protocol import Op, Outcome, Query, single_operation
from agentbus.operations.receive import take_back
from agentbus.operations.rows import Held
from agentbus.operations.task_dependencies import missed_completions

_MAX_MAILBOXES = 100
"""Mailboxes of a kind that one survey reports at most."""


class SurveyRequest(msgspec.Struct, frozen=True):
    """The process that surveys, and the rules. ``deep`` is the mailbox depth to report; None skips it, because it is
    the one part that visits every mailbox with messages."""

    process: int
    rules: Rules
    deep: int | None


class OtherProcess(msgspec.Struct, frozen=True):
    """Another live process, its last heartbeat and its interval. One that is only ``watched`` sends none."""

    peer: PeerProcess
    watched: bool
    beat: int
    every: int

    def silent(self, rules: Rules, now: Now) -> bool:
        return not self.watched and now.awake - self.beat > silence_limit(rules.suspect_after, self.every)


class TroubledSession(msgspec.Struct, frozen=True):
    """An active session with failed agents, or whose owner is gone."""

    session: str
    live: int
    failed: int
    abandoned: bool
    awaited: int = 0
    """Of the live agents, those that have not registered yet."""


class Survey(msgspec.Struct, frozen=True):
    """The state of the bus that requires action."""

    now: Now
    others: Sequence[OtherProcess]
    suspicious: bool
    """True if there is evidence against a running agent, apart from its process."""
    failing: bool
    """True if the evidence suffices to fail an agent, apart from the death of its process."""
    troubles: Sequence[TroubledSession]
    lapsed: bool
    expiring: tuple[int, ...]
    unattended: Sequence[str]
    deep: Sequence[str]
    tasks: bool = False
    """True if the lease of a task has lapsed, or a task still waits for one that has completed."""


class CleanUpRequest(msgspec.Struct, frozen=True):
    """Release lapsed leases, and expire old messages in these mailboxes, at most ``limit`` of each."""

    mailboxes: tuple[int, ...]
    limit: int = 1000


class CleanedUp(msgspec.Struct, frozen=True):
    """The number of leases released and messages expired. ``more``: there may be more."""

    freed: int
    expired: int
    more: bool


def survey(wanted: SurveyRequest, now: Now) -> Op[Survey]:
    """Survey the bus. Each part uses an index, so its cost depends on the number of problems, not on the size of the
    bus."""
    rows = yield Query("process_others", (wanted.process,))
    others = [OtherProcess(PeerProcess(*row[:5]), bool(row[5]), *row[6:]) for row in rows]
    suspicious = yield from _has_evidence("running", wanted.rules, now)
    failing = yield from _has_evidence("suspect", wanted.rules, now)
    sessions = yield Query("session_troubles", (now.awake,))
    lapsed = yield Query("message_has_lapsed", (now.awake,))
    expiring = yield Query("mailbox_expiring", (now.wall, _MAX_MAILBOXES))
    unattended = yield Query("mailbox_unattended", (now.wall, _MAX_MAILBOXES))
    deep = [] if wanted.deep is None else (yield Query("mailbox_deep", (wanted.deep, now.wall, _MAX_MAILBOXES)))
    return Survey(
        now,
        others,
        suspicious,
        failing or bool((yield from absent_agents(1, now))),
        [
            TroubledSession(id, live, failed, bool(abandoned), awaited)
            for id, live, failed, abandoned, awaited in sessions
        ],
        bool(lapsed),
        tuple(mailbox for (mailbox,) in expiring),
        [name for (name,) in unattended],
        [recipient(*mailbox) for mailbox in deep],
        bool((yield Query("task_lapsed", (now.awake,))) or (yield from missed_completions(1, now))),
    )


def _has_evidence(status: str, rules: Rules, now: Now) -> Op[bool]:
    if (yield from silent_agents(status, rules, 1, now)):
        return True
    return bool((yield from overdue_agents(status, rules, 1, now)))


@single_operation(durable=False, concurrent=True)
def clean_up(request: CleanUpRequest, now: Now) -> Op[Outcome[CleanedUp]]:
    """Do for mailboxes without consumers what a claim does for its own: release lapsed leases (messages without
    attempts left become dead letters), and expire old messages."""
    rows = yield Query("message_lapsed_anywhere", (now.awake, request.limit))
    lapsed = [Held(*row) for row in rows]
    yield from take_back(lapsed, "its lease ran out", now)
    # Last: released messages may have expired.
    mailboxes = sorted({*request.mailboxes, *(message.mailbox for message in lapsed)})
    expired = (yield Query("message_expire_some", (now.wall, mailboxes, request.limit))) if mailboxes else []
    more = request.limit in {len(lapsed), len(expired)}
    return CleanedUp(len(lapsed), len(expired), more)
