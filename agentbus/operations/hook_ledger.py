"""The record of what the hooks of a client have shown to its agent: a ledger, one entry of state per agent.

This part is read with every call of a hook, and imports little; ``operations.hooks`` changes it.
"""

from __future__ import annotations

from typing import ClassVar, TypeAlias

import msgspec

from agentbus.core.clock import Now
from agentbus.core.codec import check
from agentbus.core.validation import CLIENTS_SCOPE
from agentbus.operations.protocol import Actor, Op, Query

Lease: TypeAlias = tuple[int, int]
"""The row id of a message, and the number of the delivery."""
SCOPE = CLIENTS_SCOPE
CHANNEL = "hook"
"""The channel of receipts and of reach."""
Process: TypeAlias = tuple[int, str]
"""The pid and the start time of a hook."""


class Pending(msgspec.Struct, frozen=True, array_like=True):
    """A message that a hook has claimed and not confirmed."""

    id: int
    lease: int
    pid: int
    started: str

    @property
    def process(self) -> Process:
        return self.pid, self.started


class Ledger(msgspec.Struct, frozen=True, omit_defaults=True):
    """The messages that an agent holds and that hooks have shown."""

    pending: tuple[Pending, ...] = ()
    shown: tuple[Lease, ...] = ()
    """Confirmed, and not settled as far as is known."""
    reminded: tuple[Lease, ...] = ()
    """Those of them that were repeated in this turn."""
    stops: int = 0
    """The number of times in a row that the agent was kept from stopping."""
    halted: bool = False
    """True once a person has directed it to stop: messages do not keep it from that, until a person writes again."""


class HookRequest(msgspec.Struct, frozen=True):
    """A call of a hook: what it may show, and how the agent's ledger changes.

    ``minimum`` is the lowest priority that it claims, None if its event shows nothing. ``again`` shows all messages
    that the agent holds, because its context is new; ``remind`` those that were shown and not settled. ``max_stops``
    bounds how often in a row the agent is kept from stopping; ``continued`` says whether it was before this call, None
    if the client does not report it. ``prompted``: a person has written, and the row starts again. ``gone`` are hooks
    that have ended without a confirmation. ``wakes`` is how the client delivers messages from now on, ``tool`` or
    ``turn``; an agent that is kept from stopping continues with its tools.
    """

    row_estimate: ClassVar[int] = 1
    actor: Actor
    duration: int
    mailboxes: tuple[int, ...]
    process: Process
    limit: int
    minimum: int | None
    again: bool = False
    remind: bool = False
    max_stops: int | None = None
    continued: bool | None = None
    prompted: bool = False
    gone: tuple[Process, ...] = ()
    wakes: str | None = None

    def stops(self, ledger: Ledger) -> int:
        """Return how often in a row the agent was kept from stopping before this call."""
        return 0 if self.prompted or self.continued is False else ledger.stops

    def may_show(self, ledger: Ledger) -> bool:
        """Return False if the agent may stop, whatever waits."""
        return self.max_stops is None or (not ledger.halted and self.stops(ledger) < self.max_stops)

    def declared(self, *, shows: bool) -> str | None:
        """Return how messages reach the agent after this call."""
        return "tool" if self.max_stops is not None and shows and self.wakes is not None else self.wakes


class Work(msgspec.Struct, frozen=True):
    """The work of a call besides recording its time. ``needed``: there may be something to show, or the ledger changes;
    ``declare``: how messages reach the agent has changed; ``pending`` are the hooks that have not confirmed."""

    needed: bool
    declare: bool = False
    pending: tuple[Process, ...] = ()


def find_work(request: HookRequest, now: Now) -> Op[Work]:
    """Return what a call has to do besides recording its time. Most calls of hooks have nothing to do."""
    ledger, _ = yield from read_ledger(request.actor.agent, now)
    rows = yield Query("reach_declared", (request.actor.agent, CHANNEL))
    declare = list(rows) != ([] if request.wakes is None else [(request.actor.epoch, request.wakes)])
    pending = tuple({one.process for one in ledger.pending})
    return Work((yield from _is_needed(request, ledger, now)), declare, pending)


def _is_needed(request: HookRequest, ledger: Ledger, now: Now) -> Op[bool]:
    """Return whether there may be something to show, or the ledger changes."""
    if request.prompted and (ledger.stops or ledger.halted or ledger.reminded):
        return True
    if request.max_stops is not None and ledger.halted and ledger.shown:
        return True
    if request.minimum is None or not request.may_show(ledger):
        return False
    if request.again or ledger.pending or (request.remind and set(ledger.shown) - set(ledger.reminded)):
        return True
    for mailbox in request.mailboxes:
        for priority, _ in (yield Query("message_waiting", (mailbox, 1))):
            if priority >= request.minimum:
                return True
    horizon = yield Query("mailbox_horizon", (list(request.mailboxes),))
    return any(
        (due is not None and due <= now.wall) or (until is not None and until <= now.awake)
        for _, due, until, _ in horizon
    )


def ledger_key(agent: str) -> str:
    return f"hook/{agent}"


def read_ledger(agent: str, now: Now) -> Op[tuple[Ledger, int]]:
    """Return the ledger of an agent, and the version of its entry."""
    rows = yield Query("state_entry", (SCOPE, ledger_key(agent), now.wall))
    if not rows:
        return Ledger(), 0
    ((_, _, _, version, *_, checksum, value),) = rows
    check(value, checksum, "the ledger of hooks")
    try:
        return msgspec.json.decode(value, type=Ledger), int(version)
    except msgspec.ValidationError:
        # Written by another version: what is pending there returns with its lease.
        return Ledger(), int(version)
