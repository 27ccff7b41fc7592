"""Messages that the hooks of a client put into the context of its agent.

A hook claims messages, prints them, and confirms that as its last act. Between claim and confirmation they are pending:
if the hook is killed, the client discards its output, and the next hook shows them again. A confirmed message is shown
again only as a reminder, once in a turn: when the agent is about to stop and has not settled it. So it is not lost
either if the client discards what a hook has confirmed.

The ledger is written together with the claim, with a condition on its version: of two hooks that run at the same time,
one claims again.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from agentbus.core.clock import Now
from agentbus.core.codec import decode, plain_payload
from agentbus.operations.agent_identity import VisitRequest, visit
from agentbus.operations.hook_ledger import (
    CHANNEL,
    SCOPE,
    HookRequest,
    Lease,
    Ledger,
    Pending,
    Process,
    ledger_key,
    read_ledger,
)
from agentbus.operations.protocol import ExecuteMany, Op, Outcome, Query, run_one, single_operation
from agentbus.operations.receive import AckRequest, ClaimRequest, ack, claim
from agentbus.operations.rows import Held, MessageRow
from agentbus.operations.send import STEER
from agentbus.operations.state import ChangeRequest, change_state

_TTL = 90 * 24 * 3600 * 1000
"""Milliseconds for which a ledger is kept after its last change."""


class Shown(msgspec.Struct, frozen=True):
    """A message to show: its row, its lease, and whether it was shown before."""

    row: MessageRow
    lease: int
    again: bool

    @property
    def name(self) -> str:
        return f"{self.row.public_id}#{self.lease}"

    @property
    def is_steering(self) -> bool:
        """True if a person directs the agent by it. Agents cannot send this type."""
        return self.row.type == STEER and self.row.sender.startswith("operator:")

    @property
    def halts(self) -> bool:
        """True if it directs the agent to stop."""
        try:
            payload = decode(self.row.payload) if self.is_steering else None
        except msgspec.DecodeError:
            return False
        return isinstance(payload, dict) and payload.get("stop_after") is True


class Taken(msgspec.Struct, frozen=True):
    """The messages that a hook has to show. ``more``: others wait."""

    messages: tuple[Shown, ...]
    more: bool


class ConfirmRequest(msgspec.Struct, frozen=True):
    """Messages that a hook has shown. ``halted``: a person directs the agent to stop by one of them."""

    row_estimate: ClassVar[int] = 1
    agent: str
    process: Process
    leases: tuple[Lease, ...]
    halted: bool = False


@single_operation(durable=True, concurrent=True)
def take(request: HookRequest, now: Now) -> Op[Outcome[Taken]]:
    """Claim what a hook has to show, and note in the ledger that it is about to. Raises VersionConflict if another hook
    of the agent has changed the ledger: then nothing is claimed."""
    agent = request.actor.agent
    yield from run_one(visit, VisitRequest(request.actor, request.duration), now)
    ledger, version = yield from read_ledger(agent, now)
    messages = [Held(*row) for row in (yield Query("message_held_by", ([agent],)))]
    held = {(one.id, one.lease) for one in messages}
    if request.max_stops is not None and ledger.halted:
        # It does what a person has directed.
        steered = {(one.id, one.lease) for one in messages if one.type == STEER} & set(ledger.shown)
        yield from run_one(ack, AckRequest(request.actor, tuple(sorted(steered))), now)
        held -= steered
    show: list[Shown] = []
    more = False
    minimum = request.minimum
    if minimum is not None and request.may_show(ledger):
        wanted = _shown_before(request, ledger, held)[: request.limit]
        rows = {row[0]: MessageRow(*row) for row in (yield Query("message_rows", ([id for id, _ in wanted],)))}
        show = [Shown(rows[id], lease, (id, lease) in ledger.shown) for id, lease in wanted if id in rows]
        if len(show) < request.limit:
            asked = ClaimRequest(
                request.actor, (), request.mailboxes, (), request.limit - len(show), request.duration, minimum=minimum
            )
            found = yield from run_one(claim, asked, now)
            show += [Shown(row, row.lease + 1, False) for row in found.rows]
            more = found.more
    now_shown = tuple((one.row.id, one.lease) for one in show)
    held.update(now_shown)
    before = () if request.prompted else ledger.reminded
    reminded = {*before, *(lease for lease in now_shown if lease in ledger.shown)}
    changed = Ledger(
        (
            *(one for one in ledger.pending if (one.id, one.lease) in held and (one.id, one.lease) not in now_shown),
            *(Pending(id, lease, *request.process) for id, lease in now_shown),
        ),
        tuple(lease for lease in ledger.shown if lease in held),
        tuple(sorted(reminded & held)),
        request.stops(ledger) + (request.max_stops is not None and bool(show)),
        ledger.halted and not request.prompted,
    )
    yield from _write(agent, ledger, changed, version, now)
    wakes = request.declared(shows=bool(show))
    if wakes is not None:
        yield ExecuteMany("reach_declare", [(agent, CHANNEL, request.actor.epoch, wakes, now.wall)])
    return Taken(tuple(show), more)


def _shown_before(request: HookRequest, ledger: Ledger, held: set[Lease]) -> list[Lease]:
    """Return the leases to show again, oldest message first."""
    found = {(one.id, one.lease) for one in ledger.pending if one.process in request.gone}
    if request.again:
        found |= held - {(one.id, one.lease) for one in ledger.pending}
    if request.remind:
        found |= set(ledger.shown) - set(ledger.reminded)
    return sorted(found & held)


@single_operation(durable=True, concurrent=True)
def confirm(request: ConfirmRequest, now: Now) -> Op[Outcome[None]]:
    """Note that messages were shown. Raises VersionConflict if another hook of the agent has changed the ledger."""
    ledger, version = yield from read_ledger(request.agent, now)
    changed = msgspec.structs.replace(
        ledger,
        pending=tuple(one for one in ledger.pending if one.process != request.process),
        shown=(*ledger.shown, *(lease for lease in request.leases if lease not in ledger.shown)),
        halted=ledger.halted or request.halted,
    )
    yield from _write(request.agent, ledger, changed, version, now)
    return None


def _write(agent: str, before: Ledger, after: Ledger, version: int, now: Now) -> Op[None]:
    if after != before:
        value = plain_payload(msgspec.to_builtins(after))
        change = ChangeRequest(
            SCOPE, ledger_key(agent), value, type="system_data", ttl=_TTL, if_version=version, internal=True
        )
        yield from run_one(change_state, change, now)
