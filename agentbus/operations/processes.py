"""Processes that have the bus open: entering, beating, listening, leaving, and being found dead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import msgspec

from agentbus.clock import Now
from agentbus.operations import Each, Op, Outcome, Query, operation
from agentbus.operations.endings import end
from agentbus.operations.events import event, record
from agentbus.operations.interruptions import interrupt
from agentbus.operations.leases import Held, take_back


class EnterRequest(msgspec.Struct, frozen=True):
    """A process that opens the bus. ``started`` tells it from a later process with the same pid."""

    host: str
    pid: int
    started: str
    bell: str | None


class Entry(msgspec.Struct, frozen=True):
    """The process's own number, and the other processes of its host that count as live."""

    process: int
    neighbours: Sequence[Neighbour]


class Neighbour(msgspec.Struct, frozen=True):
    """Another process: enough to find out whether it is still there."""

    process: int
    host: str
    pid: int
    started: str
    bell: str | None


class BeatRequest(msgspec.Struct, frozen=True):
    """A process is alive; ``calls`` are its agents that did something since the last beat, and when (awake)."""

    process: int
    calls: tuple[tuple[str, int, int], ...]


class LeaveRequest(msgspec.Struct, frozen=True):
    """Processes that no longer have the bus open; ``dead`` if they were found so, not if they left by themselves."""

    processes: tuple[int, ...]
    dead: bool
    reason: str


class DisownRequest(msgspec.Struct, frozen=True):
    """The bus was made from a backup of this name."""

    backup: str
    reason: str


class ListenRequest(msgspec.Struct, frozen=True):
    """A process wants to be rung for a channel by other processes, or no longer wants to."""

    touches: ClassVar[int] = 1
    process: int
    channel: str
    listening: bool


@operation(durable=False)
def enter(requests: Sequence[EnterRequest], now: Now) -> Op[list[Outcome[Entry]]]:
    """Take a number. The first to open the bus after a reboot voids what the last boot left behind."""
    outcomes: list[Outcome[Entry]] = []
    for request in requests:
        yield from _new_boot(now)
        ((process,),) = yield Query(
            "process_insert",
            (request.host, now.boot, request.pid, request.started, request.bell, now.awake, now.wall),
        )
        rows = yield Query("process_neighbours", (process,))
        outcomes.append(Entry(process, [Neighbour(*row) for row in rows]))
    return outcomes


@operation(durable=True)
def disown(requests: Sequence[DisownRequest], now: Now) -> Op[list[Outcome[int]]]:
    """Strike off every process: what is live in a backup is a process of another time. The outcome says how many."""
    outcomes: list[Outcome[int]] = []
    for request in requests:
        rows = yield Query("process_live")
        yield from leave.run([LeaveRequest(tuple(process for (process,) in rows), True, request.reason)], now)
        facts = {"backup": request.backup, "processes": len(rows)}
        yield from record([event(now.wall, "bus_restored", ("bus", "backup"), None, **facts)])
        outcomes.append(len(rows))
    return outcomes


@operation(durable=False)
def beat(requests: Sequence[BeatRequest], now: Now) -> Op[list[Outcome[None]]]:
    """One beat for all agents of a process."""
    yield Each("process_beat", [(now.awake, request.process) for request in requests])
    calls = [(awake, agent, epoch) for request in requests for agent, epoch, awake in request.calls]
    if calls:
        yield Each("agent_called", calls)
    return [None] * len(requests)


@operation(durable=False)
def listen(requests: Sequence[ListenRequest], now: Now) -> Op[list[Outcome[None]]]:
    """Begin or cease to listen. One operation for both: of several requests of a process the last one counts."""
    last = {(request.channel, request.process): request.listening for request in requests}
    yield from add_listeners([listener for listener, listening in last.items() if listening])
    gone = [listener for listener, listening in last.items() if not listening]
    if gone:
        yield Each("listener_delete", gone)
        yield Query("counter_take", ("topology", 1))
    return [None] * len(requests)


@operation(durable=True)
def leave(requests: Sequence[LeaveRequest], now: Now) -> Op[list[Outcome[list[str]]]]:
    """Strike processes off; their live agents are stopped, or failed if the process was found dead. Sessions that they
    own and nobody else is at work in are interrupted.

    The outcome names those agents.
    """
    outcomes: list[Outcome[list[str]]] = []
    for request in requests:
        # Whoever else found it dead has done all this already.
        still = yield Query("process_end", ("dead" if request.dead else "ended", now.wall, list(request.processes)))
        ended = [process for (process,) in still]
        rows = yield Query("agent_of_processes", (ended,))
        agents = [agent for (agent,) in rows]
        yield from end(agents, "failed" if request.dead else "stopped", request.reason, None, now)
        yield from interrupt((), ended, request.reason, now)
        yield Query("listener_clear", (ended,))
        yield Query("counter_take", ("topology", 1))
        if request.dead:
            yield from record([
                event(now.wall, "process_dead", ("process", str(process)), None, reason=request.reason)
                for process in ended
            ])  # fmt: skip
        outcomes.append(agents)
    return outcomes


def add_listeners(rows: Sequence[tuple[str, int]]) -> Op[None]:
    if rows:
        yield Each("listener_insert", rows)
        yield Query("counter_take", ("topology", 1))


def _new_boot(now: Now) -> Op[None]:
    """Awake time starts again with each boot, so nothing that counts in it may outlive the boot it belongs to."""
    rows = yield Query("meta_get", ("boot",))
    if rows and rows[0][0] == now.boot:
        return
    yield Query("meta_set", ("boot", now.boot))
    if not rows:
        return
    yield Query("agent_forget_calls")
    dead = yield Query("process_of_other_boots", (now.boot,))
    if dead:
        request = LeaveRequest(tuple(process for (process,) in dead), True, "the machine was restarted")
        yield from leave.run([request], now)
    # Leases of visiting agents have no process that could be struck off.
    rows = yield Query("message_leased")
    yield from take_back([Held(*row) for row in rows], "the machine was restarted", now)
