"""Who may act: an agent of the current epoch that has not ended. Used by every operation that an agent calls."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from agentbus.clock import Now
from agentbus.errors import AgentFenced
from agentbus.operations import Actor, Op, Query, Rows

LIVE = frozenset({"running", "suspect"})
INCOMPLETE = LIVE | {"pending", "spawning"}


class Standing(msgspec.Struct, frozen=True):
    """What an operation must know of an agent."""

    agent: str
    status: str
    epoch: int
    mailbox: int
    replies: int


def standings(agents: Iterable[str]) -> Op[dict[str, Standing]]:
    """The standing of every agent of these that exists."""
    return known((yield standing(agents)))


def standing(agents: Iterable[str]) -> Query:
    """Asks for what ``known`` reads."""
    return Query("agent_standing", (list(agents),))


def known(rows: Rows) -> dict[str, Standing]:
    return {row[0]: Standing(*row) for row in rows}


def fenced(actor: Actor, standing: Standing | None) -> AgentFenced | None:
    """Why this actor may not act, or None."""
    if standing is not None and standing.epoch == actor.epoch and standing.status in LIVE:
        return None
    if standing is None:
        reason = "it was deleted"
    elif actor.epoch > standing.epoch:
        reason = f"it never had such an epoch, the newest is {standing.epoch}"
    elif standing.epoch != actor.epoch:
        reason = f"epoch {standing.epoch} has taken over"
    elif standing.status in {"pending", "spawning"}:
        reason = "its life had ended, and it is expected to begin a new one"
    else:
        reason = f"it has {standing.status}" if standing.status != "failed" else "it was declared failed"
    return AgentFenced(agent=actor.agent, epoch=actor.epoch, reason=reason)


def fence(actors: Iterable[Actor | None]) -> Op[dict[Actor | None, AgentFenced]]:
    """The actors that may not act, each with its error. What is done without an actor is not fenced."""
    callers = [actor for actor in actors if actor is not None]
    if not callers:
        return {}
    return turned_away(callers, (yield from standings({actor.agent for actor in callers})))


def turned_away(actors: Iterable[Actor], known: dict[str, Standing]) -> dict[Actor | None, AgentFenced]:
    """Those of these actors that may not act, each with its error."""
    refused: dict[Actor | None, AgentFenced] = {}
    for actor in actors:
        error = fenced(actor, known.get(actor.agent))
        if error is not None:
            refused[actor] = error
    return refused


def barred(actor: Actor, now: Now) -> Op[AgentFenced | None]:
    """Why this actor may not act any more, or None: for one who only waits, and would not hear of it."""
    return (yield from fence([actor])).get(actor)
