"""Processes that have the bus open: entering, heartbeats, listening, leaving, and being marked dead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import msgspec

from agentbus.core.clock import Now
from agentbus.core.codec import decode
from agentbus.core.validation import HEARTBEAT_INTERVAL
from agentbus.operations.agent_identity import clear_suspicion
from agentbus.operations.agent_status import end
from agentbus.operations.capacity import record_lock_waits
from agentbus.operations.common import PROCESS_WIDE, Evidence, Silence, age
from agentbus.operations.copy_position import require_complete_copy
from agentbus.operations.events import event, record
from agentbus.operations.protocol import ExecuteMany, Op, Outcome, Query, operation, single_operation
from agentbus.operations.receive import take_back
from agentbus.operations.rows import Held
from agentbus.operations.task_ownership import release_all_tasks

CREATED = "created"
"""The meta key with the time at which a bus was first opened."""


def get_pid(process: int, now: Now) -> Op[int | None]:
    """Return the pid of a process; None if the process is not on record."""
    rows = yield Query("process_pid", (process,))
    return rows[0][0] if rows else None


class EnterRequest(msgspec.Struct, frozen=True):
    """A process that opens the bus. ``started`` tells it from a later process with the same pid.

    ``watched``: it does not open the bus itself; a visiting agent ends with it. ``every``: milliseconds between its
    heartbeats.
    """

    host: str
    pid: int
    started: str
    bell: str | None
    watched: bool = False
    every: int = round(HEARTBEAT_INTERVAL * 1000)


class Entry(msgspec.Struct, frozen=True):
    """The number of the process, and the other live processes of its host."""

    process: int
    peers: Sequence[PeerProcess]


class PeerProcess(msgspec.Struct, frozen=True):
    """The identity of another process, to find out whether it exists."""

    process: int
    host: str
    pid: int
    started: str
    bell: str | None


class HeartbeatRequest(msgspec.Struct, frozen=True):
    """A heartbeat; ``calls`` are the agents that made calls since the last one, with epoch and awake time. ``waited``:
    milliseconds of waiting for the lock since then."""

    process: int
    calls: tuple[tuple[str, int, int], ...]
    waited: int = 0


class LeaveRequest(msgspec.Struct, frozen=True):
    """Processes that no longer have the bus open; ``dead``: they were found dead, rather than leaving."""

    processes: tuple[int, ...]
    dead: bool
    reason: str


class ReleaseProcessesRequest(msgspec.Struct, frozen=True):
    """The bus was restored from the backup of this name."""

    backup: str
    reason: str


class ListenRequest(msgspec.Struct, frozen=True):
    """Start or stop notifying a process of a channel."""

    row_estimate: ClassVar[int] = 1
    process: int
    channel: str
    listening: bool


@operation(durable=False)
def detect_reboot(requests: Sequence[None], now: Now) -> Op[list[Outcome[None]]]:
    """Detect a reboot on behalf of a caller that does not enter."""
    yield from _check_boot(now)
    return [None] * len(requests)


@single_operation(durable=False)
def enter(request: EnterRequest, now: Now) -> Op[Outcome[Entry]]:
    """Register a process. The first one after a reboot invalidates the previous boot."""
    yield from _check_boot(now)
    ((process,),) = yield Query(
        "process_insert",
        (
            request.host, now.boot, request.pid, request.started, request.bell, int(request.watched), now.awake,
            now.wall, request.every,
        ),
    )  # fmt: skip
    rows = yield Query("process_peers", (process,))
    return Entry(process, [PeerProcess(*row) for row in rows])


@single_operation(durable=True)
def release_processes(request: ReleaseProcessesRequest, now: Now) -> Op[Outcome[int]]:
    """Mark every process dead after a restore: those in a backup are not running. The outcome is their number."""
    rows = yield Query("process_live")
    yield from leave.run([LeaveRequest(tuple(process for (process,) in rows), True, request.reason)], now)
    facts = {"backup": request.backup, "processes": len(rows)}
    yield from record([event(now.wall, "bus_restored", ("bus", "backup"), None, **facts)])
    return len(rows)


@operation(durable=False, concurrent=True)
def heartbeat(requests: Sequence[HeartbeatRequest], now: Now) -> Op[list[Outcome[bool]]]:
    """Record one heartbeat for all agents of a process. A suspect agent that made a call is running again, as is one
    that was suspect only because its process was silent. The outcome is True if the process was marked dead."""
    yield ExecuteMany("process_beat", [(now.awake, request.process) for request in requests])
    calls = [(awake, agent, epoch) for request in requests for agent, epoch, awake in request.calls]
    if calls:
        yield ExecuteMany("agent_called", calls)
    waited = sum(request.waited for request in requests)
    if waited:
        yield from record_lock_waits(waited, now)
    outcomes: list[Outcome[bool]] = []
    for request in requests:
        revived = yield Query("process_revive", (now.awake, request.process))
        if revived:
            yield from record([event(now.wall, "process_back", ("process", str(request.process)), None)])
            yield from _reclaim_sessions(request.process, now)
        suspects = yield Query("agent_suspects", (request.process,))
        if suspects:
            active = {(agent, epoch) for agent, epoch, _ in request.calls}
            known = {(agent, epoch): decode(evidence) for agent, epoch, evidence in suspects}
            yield from clear_suspicion(
                {
                    agent: evidence
                    for (agent, epoch), evidence in known.items()
                    if (agent, epoch) in active or evidence["verdict"] in PROCESS_WIDE
                },
                now,
            )
        outcomes.append(bool(revived))
    return outcomes


def _reclaim_sessions(process: int, now: Now) -> Op[None]:
    """Continue sessions that were interrupted only because their owner was marked dead, unless another process has."""
    rows = yield Query("session_reclaim", (now.wall, process))
    yield from record([
        event(now.wall, "session_continued", ("session", session), None, before="interrupted", process=process)
        for (session,) in rows
    ])  # fmt: skip


@operation(durable=False, concurrent=True)
def listen(requests: Sequence[ListenRequest], now: Now) -> Op[list[Outcome[None]]]:
    """Start or stop listening. A single operation for both: of several requests of a process the last one counts."""
    last = {(request.channel, request.process): request.listening for request in requests}
    yield from add_listeners([listener for listener, listening in last.items() if listening])
    gone = [listener for listener, listening in last.items() if not listening]
    if gone:
        yield ExecuteMany("listener_delete", gone)
        yield Query("counter_take", ("topology", 1))
    return [None] * len(requests)


@single_operation(durable=True)
def leave(request: LeaveRequest, now: Now) -> Op[Outcome[list[str]]]:
    """Remove processes. Their live agents are stopped, or failed if the process was found dead; sessions that they own
    are interrupted unless other agents are live in them.

    The outcome is the list of agents.
    """
    if request.dead:
        marked = yield from mark_processes_dead(request.processes, request.reason, "dead", now, alive=False)
        return marked.agents
    still = yield Query("process_end", ("ended", now.wall, list(request.processes)))
    ended = [process for process, *_ in still]
    rows = yield Query("agent_of_processes", (ended,))
    agents = [agent for agent, *_ in rows]
    yield from end(agents, "stopped", request.reason, None, now, processes=ended)
    yield from _remove_listeners(ended)
    return agents


class MarkedDead(msgspec.Struct, frozen=True):
    """Processes marked dead, the agents that failed with them, and the sessions interrupted by it."""

    processes: list[int]
    agents: list[str]
    sessions: list[str]


def mark_processes_dead(
    processes: Sequence[int], reason: str, verdict: str, now: Now, *, alive: bool | None
) -> Op[MarkedDead]:
    """Mark processes dead and fail their live agents, with the evidence. Those marked by another caller are skipped."""
    if not processes:
        return MarkedDead([], [], [])
    rows = yield Query("process_end", ("dead", now.wall, list(processes)))
    evidence = {
        id: Evidence(verdict, process=id, pid=pid, alive=alive, beat_age=age(beat, now))
        if boot == now.boot
        else Evidence("rebooted", process=id, pid=pid, alive=False)
        for id, _, boot, pid, beat in rows
    }
    found = yield Query("agent_of_processes", (list(evidence),))
    silences = [Silence(*row) for row in found]
    failed: dict[str, Evidence] = {}
    for silence in silences:
        known = evidence[silence.process or 0]
        if known.verdict == "rebooted":
            # The awake times in the agent's row belong to the previous boot.
            failed[silence.agent] = msgspec.structs.replace(known, progress=silence.progress)
        else:
            failed[silence.agent] = silence.evidence(verdict, now, pid=known.pid, alive=alive, beat_age=known.beat_age)
    sessions = yield from end(list(failed), "failed", reason, None, now, failed, list(evidence))
    yield from _remove_listeners(list(evidence))
    dead = [id for id, status, *_ in rows if status == "dead"]
    yield from record([
        event(now.wall, "process_dead", ("process", str(id)), None, reason=reason, evidence=evidence[id]) for id in dead
    ])  # fmt: skip
    return MarkedDead(dead, list(failed), sessions)


def _remove_listeners(processes: list[int]) -> Op[None]:
    yield Query("listener_clear", (processes,))
    yield Query("counter_take", ("topology", 1))


def add_listeners(rows: Sequence[tuple[str, int]]) -> Op[None]:
    if rows:
        yield ExecuteMany("listener_insert", rows)
        yield Query("counter_take", ("topology", 1))


def _check_boot(now: Now) -> Op[None]:
    """Detect a new boot. Awake time restarts with each boot, so no value measured in it may outlive its boot."""
    rows = yield Query("meta_get", ("boot",))
    if rows and rows[0][0] == now.boot:
        return
    yield from require_complete_copy(now)
    yield from record_boot(now)
    if not rows:
        yield Query("meta_set", (CREATED, str(now.wall)))
        return
    dead = yield Query("process_of_other_boots", (now.boot,))
    yield from invalidate_boot([process for (process,) in dead], "the machine was restarted", 0, now)


def record_boot(now: Now) -> Op[None]:
    """Record that awake time is that of this boot."""
    yield Query("meta_set", ("boot", now.boot))


def invalidate_boot(processes: Sequence[int], reason: str, called: int, now: Now) -> Op[None]:
    """Invalidate everything measured in the awake time of the previous boot: mark its live processes dead, and release
    every lease. The patience of agents without a process starts again from ``called``."""
    yield Query("agent_forget_calls", (called,))
    yield Query("session_forget_deadlines")
    if processes:
        yield from leave.run([LeaveRequest(tuple(processes), True, reason)], now)
    # Leases of visiting agents have no process that could be marked dead.
    rows = yield Query("message_leased")
    yield from take_back([Held(*row) for row in rows], reason, now)
    yield from release_all_tasks(reason, now)
