"""The counts behind the metrics: what waits, what is held, what failed. Few queries, served by indexes."""

from __future__ import annotations

import msgspec

from agentbus.core.clock import Now
from agentbus.operations.capacity import read_writer_load
from agentbus.operations.protocol import Op, Query

OTHER = "other"
"""Stands for all pools, types and workflows beyond the largest; a pool of this name is among them."""


class Waiting(msgspec.Struct, frozen=True):
    """The number of messages or tasks, and the age of the oldest in milliseconds."""

    number: int = 0
    oldest: int = 0


class BusCounts(msgspec.Struct, frozen=True):
    """Counts of the bus. ``queued``, ``scheduled`` and ``leased`` are by kind of mailbox and, for pools, by name."""

    sent: int
    state_changes: int
    queued: dict[tuple[str, str], Waiting]
    scheduled: dict[tuple[str, str], int]
    leased: dict[tuple[str, str], int]
    redelivered: int
    held: int
    dead: int
    members: dict[str, int]
    agents: dict[str, int]
    agent_types: dict[str, int]
    tasks: dict[str, int]
    ready: dict[str, Waiting]
    approvals: Waiting
    sessions: dict[str, Waiting]
    processes: int
    lock_waits: float


def count_bus(limit: int, now: Now) -> Op[BusCounts]:
    """Count what the bus holds. The ``limit`` largest pools, types and workflows are named; the others are counted
    together."""

    def age(since: int | None) -> int:
        return 0 if since is None else max(0, now.wall - since)

    rows = yield Query("metrics_queues")
    declared = yield Query("metrics_pools", (limit,))
    pools = _largest(
        [(pool, number) for _, kind, pool, number, _ in rows if kind == "pool"], limit, [name for (name,) in declared]
    )
    members: dict[str, int] = dict((yield Query("metrics_members", (sorted(pools),)))) if pools else {}
    queued: dict[tuple[str, str], Waiting] = {}
    others: dict[str, dict[tuple[str, str], int]] = {"scheduled": {}, "leased": {}}
    for status, kind, pool, number, since in rows:
        key = (kind, pool if not pool or pool in pools else OTHER)
        if status == "queued":
            before = queued.get(key, Waiting())
            queued[key] = Waiting(before.number + number, max(before.oldest, age(since)))
        else:
            others[status][key] = others[status].get(key, 0) + number
    for pool in pools:
        queued.setdefault(("pool", pool), Waiting())
    ((sent,),) = yield Query("counter_value", ("message",))
    ((state_changes,),) = yield Query("counter_value", ("change",))
    ((redelivered,),) = yield Query("metrics_redelivered")
    ((held,),) = yield Query("metrics_held")
    ((dead,),) = yield Query("metrics_dead")
    agents = yield Query("agent_counts")
    types = yield Query("metrics_agent_types")
    tasks = yield Query("metrics_tasks")
    ready = yield Query("metrics_ready")
    ((approvals, asked),) = yield Query("metrics_approvals")
    sessions = yield Query("metrics_sessions")
    load = yield from read_writer_load(None, now)
    return BusCounts(
        sent=sent,
        state_changes=state_changes,
        queued=queued,
        scheduled=others["scheduled"],
        leased=others["leased"],
        redelivered=redelivered,
        held=held,
        dead=dead,
        members={pool: members.get(pool, 0) for pool in pools},
        agents=dict(agents),
        agent_types=_bounded(dict(types), limit),
        tasks=dict(tasks),
        ready=_bounded_waiting({workflow: Waiting(number, age(since)) for workflow, number, since in ready}, limit),
        approvals=Waiting(approvals, age(asked)),
        sessions={status: Waiting(number, age(since)) for status, number, since in sessions},
        processes=load.writers,
        lock_waits=load.waits,
    )


def _largest(counts: list[tuple[str, int]], limit: int, declared: list[str]) -> frozenset[str]:
    """Return the names with the highest counts, then declared ones, up to ``limit``.

    >>> sorted(_largest([("a", 1), ("b", 5), ("c", 1), ("c", 3)], 2, ["d"]))
    ['b', 'c']
    >>> sorted(_largest([("a", 1)], 2, ["a", "d", "e"]))
    ['a', 'd']
    """
    sums: dict[str, int] = {}
    for name, number in counts:
        if name != OTHER:
            sums[name] = sums.get(name, 0) + number
    ranked = sorted(sums, key=lambda name: (-sums[name], name))
    ranked += [name for name in declared if name not in sums and name != OTHER]
    return frozenset(ranked[:limit])


def _bounded(counts: dict[str, int], limit: int) -> dict[str, int]:
    """Return the highest counts, and the sum of the rest under OTHER.

    >>> _bounded({"a": 1, "b": 5, "c": 2, "d": 3}, 2)
    {'b': 5, 'd': 3, 'other': 3}
    """
    kept = _largest(list(counts.items()), limit, [])
    found = {name: counts[name] for name in sorted(kept)}
    rest = sum(number for name, number in counts.items() if name not in kept)
    return {**found, OTHER: rest} if rest else found


def _bounded_waiting(counts: dict[str, Waiting], limit: int) -> dict[str, Waiting]:
    kept = _largest([(name, one.number) for name, one in counts.items()], limit, [])
    found = {name: counts[name] for name in sorted(kept)}
    rest = [one for name, one in counts.items() if name not in kept]
    if rest:
        found[OTHER] = Waiting(sum(one.number for one in rest), max(one.oldest for one in rest))
    return found
