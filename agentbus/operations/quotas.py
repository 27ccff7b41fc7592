"""Quotas: how many messages may wait in a mailbox, how fast an agent may send, how large the bus may be.

They belong to the bus, as its retention does. Without any, a send costs one look-up more than it would. On an engine
where several transactions send at once, they hold approximately: each counts what was there when it looked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from agentbus.clock import Now
from agentbus.codec import decode, plain
from agentbus.errors import AgentBusError, BusFull, QueueFull, SendingTooFast, StoreError
from agentbus.limits import MAX_BATCH
from agentbus.operations import Op, Outcome, Query, Rows, one_by_one
from agentbus.operations.events import event, record

if TYPE_CHECKING:
    from agentbus.records import QuotaPolicy

_POLICY = "quotas"
_AT_ONCE = 10_000_000
"""Microseconds: what is allowed in them may come at once."""


class Load(msgspec.Struct, frozen=True):
    """What one request would add: an agent's new messages, and how many rows go to which mailbox (kind, name, id).
    Replies are not in it: they always queue."""

    agent: str
    messages: int
    boxes: tuple[tuple[str, str, int], ...]


class ChangeQuotasRequest(msgspec.Struct, frozen=True):
    """Quotas that shall be others than before; what is not named stays as it is."""

    changes: dict[str, Any]


def read_quotas(_: None, now: Now) -> Op[QuotaPolicy]:
    """The quotas that hold."""
    from agentbus.records import QuotaPolicy

    rows = yield Query("bus_quotas")
    try:
        return msgspec.convert(_decoded(rows[0][0]), QuotaPolicy) if rows else QuotaPolicy()
    except msgspec.ValidationError as error:
        raise _unreadable(error) from None


@one_by_one(durable=True)
def change_quotas(request: ChangeQuotasRequest, now: Now) -> Op[Outcome[QuotaPolicy]]:
    """Set quotas; the outcome are those that hold then."""
    from agentbus.records import QuotaPolicy

    try:
        before = yield from read_quotas(None, now)
    except StoreError:
        before = QuotaPolicy()
    after = msgspec.structs.replace(before, **request.changes)
    changed = {name: value for name, value in request.changes.items() if value != getattr(before, name)}
    yield Query("meta_set", (_POLICY, plain(msgspec.structs.asdict(after))))
    if changed:
        facts = {"before": {name: getattr(before, name) for name in changed}, "after": changed}
        yield from record([event(now.wall, "quotas_changed", ("bus", "quotas"), None, **facts)])
    return after


def admit(loads: Sequence[Load | None], found: Rows, now: Now) -> Op[list[AgentBusError | None]]:
    """For each of these requests, in their order, the quota that refuses it; what is refused counts for nobody.
    ``found``: what ``bus_quotas`` says."""
    if not found or not any(loads):
        return [None] * len(loads)
    quotas = _decoded(found[0][0])
    gate = _Gate(quotas.get("depth"), quotas.get("rate"), now.wall * 1000)
    full = yield from _full(quotas.get("size"))
    yield from gate.look(load for load in loads if load is not None)
    refused = [None if load is None or not load.messages else full or gate.refusal(load) for load in loads]
    # In one order: two transactions that meet here wait for each other, and not in a circle.
    for agent, debt in sorted(gate.debts.items()):
        yield Query("counter_set", (_counter(agent), debt))
    return refused


def forget(agents: Iterable[str]) -> Op[None]:
    """Agents that are gone have sent nothing."""
    for agent in agents:
        yield Query("counter_drop", (_counter(agent),))


class _Gate:
    """Depth and rate, with what the requests that were let in before have added."""

    def __init__(self, depth: int | None, rate: float | None, now: int) -> None:
        self._depth = depth
        self._rate = rate
        self._now = now
        self._waiting: Counter[int] = Counter()
        self._owed: dict[str, int] = {}
        self.debts: dict[str, int] = {}
        """By agent: until which microsecond it has used up what it may send."""

    def look(self, loads: Iterable[Load]) -> Op[None]:
        for load in loads:
            if self._depth is not None:
                for _, _, box in load.boxes:
                    if box not in self._waiting:
                        ((self._waiting[box],),) = yield Query("mailbox_waiting", (box, self._depth))
            if self._rate is not None and load.agent not in self._owed:
                rows = yield Query("counter_value", (_counter(load.agent),))
                self._owed[load.agent] = rows[0][0] or 0 if rows else 0

    def refusal(self, load: Load) -> AgentBusError | None:
        error = self._too_deep(load) or self._too_fast(load)
        if error is None:
            self._waiting.update(box for _, _, box in load.boxes)
        return error

    def _too_deep(self, load: Load) -> AgentBusError | None:
        if self._depth is None:
            return None
        coming: Counter[int] = Counter()
        for kind, name, box in load.boxes:
            coming[box] += 1
            waiting = self._waiting[box]
            if waiting + coming[box] > self._depth:
                return QueueFull(kind=kind, name=name, waiting=waiting, most=self._depth)
        return None

    def _too_fast(self, load: Load) -> AgentBusError | None:
        """A message uses up a part of the agent's time; whoever has not used up more than may come at once may go on,
        with as many as one call takes."""
        if self._rate is None:
            return None
        each = 1_000_000 / self._rate
        used = max(self._owed[load.agent], self._now)
        if used > self._now + _AT_ONCE + MAX_BATCH * each:
            # More than one call can owe: the clock was set back.
            used = self._now
        ahead = used - self._now - max(_AT_ONCE - each, 0)
        if ahead > 0:
            return SendingTooFast(agent=load.agent, rate=self._rate, wait=max(0.001, round(ahead / 1e6, 3)))
        self._owed[load.agent] = self.debts[load.agent] = used + round(load.messages * each)
        return None


def _full(most: int | None) -> Op[AgentBusError | None]:
    if most is None:
        return None
    ((size,),) = yield Query("bus_size")
    return BusFull(size=size, most=most) if size >= most else None


def _decoded(text: str) -> dict[str, Any]:
    try:
        found = decode(text)
    except AgentBusError as error:
        raise _unreadable(error) from None
    if not isinstance(found, dict):
        raise _unreadable("not an object")
    return found


def _unreadable(error: object) -> StoreError:
    reason = f"they cannot be read ({error}); bus.quotas.change(…) begins again without any"
    return StoreError(path="the quotas of this bus", reason=reason)


def _counter(agent: str) -> str:
    return f"sent/{agent}"
