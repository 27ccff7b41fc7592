"""Rules that several operations share: fencing, open sessions, pages of lists, the work budget of a commit, evidence of
liveness."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from agentbus.core.addresses import is_operator
from agentbus.core.clock import Now
from agentbus.errors import AgentBusError, AgentFenced, SessionEnded, UnknownSession
from agentbus.operations.protocol import Actor, Op, Query, Row, Rows

if TYPE_CHECKING:
    from agentbus.records import Page

LIVE = frozenset({"running", "suspect"})
INCOMPLETE = LIVE | {"pending", "spawning"}
SESSION_ENDED = frozenset({"completed", "failed"})
OPERATOR_EPOCH = 0
"""The epoch of a person. Incarnations of agents start at 1: one that was renamed because of its id stays fenced."""
T = TypeVar("T")
_ROW = 1024
"""Bytes that a small row counts in a budget."""
PROCESS_WIDE = frozenset({"stalled", "unreachable"})
"""Verdicts on all agents of a process: its next heartbeat revokes them."""


class AgentStatus(msgspec.Struct, frozen=True):
    """The columns of an agent that fencing needs."""

    agent: str
    status: str
    epoch: int
    mailbox: int
    replies: int


def read_agent_statuses(agents: Iterable[str]) -> Op[dict[str, AgentStatus]]:
    """Return the statuses of those agents that exist."""
    return agent_statuses_from((yield agent_status_query(agents)))


def agent_status_query(agents: Iterable[str]) -> Query:
    """Return the query whose rows ``agent_statuses_from`` takes."""
    return Query("agent_statuses", (list(agents),))


def agent_statuses_from(rows: Rows) -> dict[str, AgentStatus]:
    return {row[0]: AgentStatus(*row) for row in rows}


def fenced(actor: Actor, current: AgentStatus | None) -> AgentFenced | None:
    """Return the error of an actor that may not act, or None. An agent may act if its epoch is current and it has not
    ended. A person always may."""
    if current is not None and current.epoch == actor.epoch and current.status in LIVE:
        return None
    if actor.epoch == OPERATOR_EPOCH and is_operator(actor.agent):
        return None
    if current is None:
        reason = "it was deleted"
    elif actor.epoch > current.epoch:
        reason = f"it never had such an epoch, the newest is {current.epoch}"
    elif current.epoch != actor.epoch:
        reason = f"epoch {current.epoch} has taken over"
    elif current.status in {"pending", "spawning"}:
        reason = "it ended and is awaiting re-registration"
    else:
        reason = f"it has {current.status}" if current.status != "failed" else "it was declared failed"
    return AgentFenced(agent=actor.agent, epoch=actor.epoch, reason=reason)


def fence(actors: Iterable[Actor | None]) -> Op[dict[Actor | None, AgentFenced]]:
    """Return the errors of the actors that may not act. A call without an actor is not fenced."""
    callers = [actor for actor in actors if actor is not None]
    if not callers:
        return {}
    return reject_fenced(callers, (yield from read_agent_statuses({actor.agent for actor in callers})))


def reject_fenced(actors: Iterable[Actor], known: dict[str, AgentStatus]) -> dict[Actor | None, AgentFenced]:
    """Return the errors of those actors that may not act."""
    refused: dict[Actor | None, AgentFenced] = {}
    for actor in actors:
        error = fenced(actor, known.get(actor.agent))
        if error is not None:
            refused[actor] = error
    return refused


def fence_error(actor: Actor, now: Now) -> Op[AgentFenced | None]:
    """Return the error of an actor that may not act, or None: for callers that only wait, and write nothing."""
    return (yield from fence([actor])).get(actor)


def page(rows: Rows, limit: int, make: Callable[[Row], T], cursor: Callable[[T], str]) -> Page[T]:
    """Convert the first rows to records, with a cursor if there are more. Queries fetch one row more than a page
    holds."""
    items = [make(row) for row in rows[:limit]]
    from agentbus.records import Page

    return Page(items, cursor(items[-1]) if len(rows) > limit else None)


class Budget(msgspec.Struct):
    """Bytes, or an equivalent amount of work, that one commit may remove or rewrite, so that other writers do not wait
    long for the lock. The last row may exceed it."""

    left: int = 4 * 1024 * 1024

    def spend(self, size: int) -> bool:
        """Charge a row of this size, plus the cost of a small row; return False if the budget is used up."""
        if self.spent:
            return False
        self.left -= size + _ROW
        return True

    def pass_by(self) -> None:
        """Charge a row that was only read."""
        self.left -= _ROW // 10

    @property
    def spent(self) -> bool:
        return self.left <= 0


class Evidence(msgspec.Struct, frozen=True, omit_defaults=True):
    """The basis of a verdict on an agent, stored with the verdict. Ages are seconds of awake time.

    Verdicts: ``dead`` (its process is gone), ``rebooted`` (the machine was restarted), ``stalled`` (its process exists,
    but sends no heartbeat), ``unreachable`` (the same for a process that cannot be observed from here), ``stuck`` (its
    process sends heartbeats, but the agent makes no call, is not waiting and did not declare itself busy), ``silent``
    (a visiting agent that exceeded its patience), ``absent`` (it was expected, and never registered).
    """

    verdict: str
    process: int | None = None
    pid: int | None = None
    alive: bool | None = None
    """True if pid and start time prove that the process exists; None if unknown."""
    beat_age: float | None = None
    call_age: float | None = None
    busy_age: float | None = None
    """Seconds since the end of the period for which it declared itself busy."""
    progress: int | None = None
    patience: float | None = None

    def facts(self) -> dict[str, Any]:
        facts: dict[str, Any] = msgspec.to_builtins(self)
        return facts


class Silence(msgspec.Struct, frozen=True):
    """The columns of an agent that show its activity."""

    agent: str
    process: int | None
    last_call: int | None
    busy_until: int | None
    progress: int

    def evidence(self, verdict: str, now: Now, **more: Any) -> Evidence:
        return Evidence(
            verdict,
            process=self.process,
            call_age=age(self.last_call, now),
            busy_age=age(self.busy_until, now),
            progress=self.progress,
            **more,
        )


def age(awake: int | None, now: Now) -> float | None:
    """Return the seconds since an awake time; None if it is missing or belongs to another boot."""
    return None if awake is None or awake > now.awake else round((now.awake - awake) / 1000, 1)


def closed_session_error(session: str, action: str) -> Op[AgentBusError | None]:
    """Return the error for a session that does not exist or has ended; None while it is open."""
    rows = yield Query("session_status", (session,))
    if not rows:
        return UnknownSession(session=session)
    status = rows[0][0]
    return SessionEnded(what="session", name=session, status=status, action=action) if status in SESSION_ENDED else None
