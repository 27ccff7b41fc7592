"""Quotas: mailbox depth, send rate of an agent, size of the bus, and the bound of a thread (``operations.holds``).

Without quotas a send costs one lookup more. On an engine with concurrent transactions they hold approximately: each
transaction counts what it sees.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from agentbus.core.addresses import address_text
from agentbus.core.clock import Now
from agentbus.core.codec import decode, plain
from agentbus.core.validation import MAX_BATCH, THREAD_BOUND
from agentbus.errors import AgentBusError, BusFull, QueueFull, SendingTooFast, StoreError
from agentbus.operations.events import event, record
from agentbus.operations.protocol import Op, Outcome, Query, Rows, single_operation

if TYPE_CHECKING:
    from agentbus.records import QuotaPolicy

_POLICY = "quotas"
_BURST = 10_000_000
"""Microseconds whose allowance may be used at once."""


class Load(msgspec.Struct, frozen=True):
    """The additions of one request: new messages of an agent, and rows by mailbox (kind, name, id). Replies are
    exempt."""

    agent: str
    messages: int
    boxes: tuple[tuple[str, str, int], ...]


class ChangeQuotasRequest(msgspec.Struct, frozen=True):
    """Change the named quotas; the others stay."""

    changes: dict[str, Any]
    by: str | None = None


def read_quotas(_: None, now: Now) -> Op[QuotaPolicy]:
    """Return the current quotas."""
    from agentbus.records import QuotaPolicy

    rows = yield Query("bus_quotas")
    try:
        return msgspec.convert(_decoded(rows[0][0]), QuotaPolicy) if rows else QuotaPolicy()
    except msgspec.ValidationError as error:
        raise _unreadable(error) from None


@single_operation(durable=True)
def change_quotas(request: ChangeQuotasRequest, now: Now) -> Op[Outcome[QuotaPolicy]]:
    """Change quotas; the outcome is the new policy."""
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
        yield from record([event(now.wall, "quotas_changed", ("bus", "quotas"), request.by, **facts)])
    return after


def admit(loads: Sequence[Load | None], found: Rows, now: Now) -> Op[list[AgentBusError | None]]:
    """Return, for each request in order, the quota error that refuses it. Refused requests do not count. ``found``: the
    rows of ``bus_quotas``."""
    if not found or not any(loads):
        return [None] * len(loads)
    quotas = _decoded(found[0][0])
    gate = _Gate(quotas.get("depth"), quotas.get("rate"), now.wall * 1000)
    full = yield from _bus_full(quotas.get("size"))
    yield from gate.read(load for load in loads if load is not None)
    refused = [None if load is None or not load.messages else full or gate.refusal(load) for load in loads]
    # In a fixed order, so that concurrent transactions cannot deadlock.
    for agent, debt in sorted(gate.debts.items()):
        yield Query("counter_set", (_counter(agent), debt))
    return refused


def thread_bound(found: Rows) -> int | None:
    """Return the bound of messages in a thread, None for no bound. ``found``: the rows of ``bus_quotas``."""
    if not found:
        return THREAD_BOUND
    return _decoded(found[0][0]).get("thread", THREAD_BOUND) or None


def delete_send_counters(agents: Iterable[str]) -> Op[None]:
    """Delete the send counters of deleted agents."""
    for agent in agents:
        yield Query("counter_drop", (_counter(agent),))


class _Gate:
    """Depth and rate, including the requests already admitted."""

    def __init__(self, depth: int | None, rate: float | None, now: int) -> None:
        self._depth = depth
        self._rate = rate
        self._now = now
        self._waiting: Counter[int] = Counter()
        self._owed: dict[str, int] = {}
        self.debts: dict[str, int] = {}
        """By agent: the microsecond until which its allowance is used up."""

    def read(self, loads: Iterable[Load]) -> Op[None]:
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
                address = address_text(kind, name)
                return QueueFull(address=address, kind=kind, name=name, waiting=waiting, most=self._depth)
        return None

    def _too_fast(self, load: Load) -> AgentBusError | None:
        """Return an error if the agent has used more than its burst. Otherwise the whole call is admitted, whatever its
        size."""
        if self._rate is None:
            return None
        each = 1_000_000 / self._rate
        used = max(self._owed[load.agent], self._now)
        if used > self._now + _BURST + MAX_BATCH * each:
            # More than one call can use up: the clock was set back.
            used = self._now
        ahead = used - self._now - max(_BURST - each, 0)
        if ahead > 0:
            return SendingTooFast(agent=load.agent, rate=self._rate, wait=max(0.001, round(ahead / 1e6, 3)))
        self._owed[load.agent] = self.debts[load.agent] = used + round(load.messages * each)
        return None


def _bus_full(most: int | None) -> Op[AgentBusError | None]:
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
    reason = f"they cannot be read ({error}); bus.quotas.change(…) starts again without any"
    return StoreError(path="the quotas of this bus", reason=reason)


def _counter(agent: str) -> str:
    return f"sent/{agent}"
