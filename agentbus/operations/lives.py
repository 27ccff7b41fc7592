"""An agent's life as it stands: its epoch, and the mailboxes it reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from agentbus.clock import Now
from agentbus.operations import Op, Query, Rows

if TYPE_CHECKING:
    from agentbus.records import CheckpointSummary


class Registration(msgspec.Struct, frozen=True):
    """An agent's life: its epoch, the mailboxes it reads, and the checkpoint of a life before that was cut off.

    ``left`` is an open session (and its status) that it had not completed in, and that it left for another.
    """

    agent: str
    epoch: int
    mailbox: int
    replies: int
    session: str | None
    pools: dict[str, int]
    subscriptions: dict[str, int]
    restored: CheckpointSummary | None = None
    left: tuple[str, str] | None = None


def life_of(agent: str, now: Now) -> Op[Registration | None]:
    """The life that an agent is in, or was in last; None if there is no such agent."""
    rows = yield Query("agent_life", (agent,))
    if not rows:
        return None
    ((epoch, mailbox, replies, session),) = rows
    rows = yield Query("agent_mailboxes", (agent,))
    return Registration(
        agent,
        epoch,
        mailbox,
        replies,
        session,
        {name: id for kind, name, id in rows if kind == "pool"},
        {name: id for kind, name, id in rows if kind == "subscription"},
    )


def last_boot(_: None, now: Now) -> Op[str | None]:
    """The boot in which somebody last had the bus open."""
    rows = yield Query("meta_get", ("boot",))
    return rows[0][0] if rows else None


def processes_of_host(host: str, now: Now) -> Op[Rows]:
    """Return the processes of a host that count as live: id, pid, start time, doorbell."""
    return (yield Query("process_of_host", (host,)))
