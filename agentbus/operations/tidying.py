"""What a sweep finds and tidies: mailboxes that nobody claims from, expired messages; and what it warns of."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from agentbus.clock import Now
from agentbus.operations import Op, Outcome, Query, one_by_one
from agentbus.operations.leases import Held, take_back
from agentbus.operations.liveness import Rules, absent_agents, overdue_agents, patience, silent_agents
from agentbus.operations.processes import Neighbour
from agentbus.operations.reading import recipient

_MOST = 100
"""Mailboxes of a kind that one survey names at most."""


class SurveyRequest(msgspec.Struct, frozen=True):
    """Who looks around, by which rules. ``deep`` is how many messages may wait in a mailbox; None if nobody asks now:
    that is the one part that looks at every mailbox with mail."""

    process: int
    rules: Rules
    deep: int | None


class Other(msgspec.Struct, frozen=True):
    """Another process that counts as live, when it last beat and how often it does. One that is only ``watched`` never
    does."""

    neighbour: Neighbour
    watched: bool
    beat: int
    every: int

    def silent(self, rules: Rules, now: Now) -> bool:
        return not self.watched and now.awake - self.beat > patience(rules.suspect_after, self.every)


class Trouble(msgspec.Struct, frozen=True):
    """An active session of which agents failed, or whose owner is gone."""

    session: str
    live: int
    failed: int
    abandoned: bool
    awaited: int = 0
    """Of the live, those that are only expected to come."""


class Survey(msgspec.Struct, frozen=True):
    """How the bus stands, as far as somebody has to do something about it."""

    now: Now
    others: Sequence[Other]
    suspicious: bool
    """Whether something speaks against a running agent, other than its process."""
    guilty: bool
    """Whether the evidence is enough against an agent, other than its process's death."""
    troubles: Sequence[Trouble]
    lapsed: bool
    expiring: tuple[int, ...]
    unattended: Sequence[str]
    deep: Sequence[str]
    tasks: bool = False
    """Whether a task was held for too long."""


class TidyRequest(msgspec.Struct, frozen=True):
    """Free the leases that ran out, and expire what is too old in these mailboxes: so many messages at most."""

    mailboxes: tuple[int, ...]
    limit: int = 1000


class Tidied(msgspec.Struct, frozen=True):
    """How many leases were freed, how many messages expired. ``more``: perhaps there are more."""

    freed: int
    expired: int
    more: bool


def survey(wanted: SurveyRequest, now: Now) -> Op[Survey]:
    """Look around. Each part is found by an index, so that it costs by what is wrong and not by how much there is."""
    rows = yield Query("process_others", (wanted.process,))
    others = [Other(Neighbour(*row[:5]), bool(row[5]), *row[6:]) for row in rows]
    suspicious = yield from _speaks_against("running", wanted.rules, now)
    guilty = yield from _speaks_against("suspect", wanted.rules, now)
    sessions = yield Query("session_troubles", (now.awake,))
    lapsed = yield Query("message_has_lapsed", (now.awake,))
    expiring = yield Query("mailbox_expiring", (now.wall, _MOST))
    unattended = yield Query("mailbox_unattended", (now.wall, _MOST))
    deep = [] if wanted.deep is None else (yield Query("mailbox_deep", (wanted.deep, now.wall, _MOST)))
    return Survey(
        now,
        others,
        suspicious,
        guilty or bool((yield from absent_agents(1, now))),
        [Trouble(id, live, failed, bool(abandoned), awaited) for id, live, failed, abandoned, awaited in sessions],
        bool(lapsed),
        tuple(mailbox for (mailbox,) in expiring),
        [name for (name,) in unattended],
        [recipient(*mailbox) for mailbox in deep],
        bool((yield Query("task_lapsed", (now.awake,)))),
    )


def _speaks_against(status: str, rules: Rules, now: Now) -> Op[bool]:
    if (yield from silent_agents(status, rules, 1, now)):
        return True
    return bool((yield from overdue_agents(status, rules, 1, now)))


@one_by_one(durable=False, beside=True)
def tidy(request: TidyRequest, now: Now) -> Op[Outcome[Tidied]]:
    """Do for mailboxes that nobody claims from what a claim does for its own: free leases that ran out (what has no
    attempt left becomes a dead letter), and expire what is too old."""
    rows = yield Query("message_lapsed_anywhere", (now.awake, request.limit))
    lapsed = [Held(*row) for row in rows]
    yield from take_back(lapsed, "its lease ran out", now)
    # Last: what was taken back may be too old by now.
    mailboxes = sorted({*request.mailboxes, *(message.mailbox for message in lapsed)})
    expired = (yield Query("message_expire_some", (now.wall, mailboxes, request.limit))) if mailboxes else []
    more = request.limit in {len(lapsed), len(expired)}
    return Tidied(len(lapsed), len(expired), more)
