"""Processes that have the bus open: entering, beating, listening, leaving, and being found dead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import msgspec

from agentbus.clock import Now
from agentbus.codec import decode
from agentbus.operations import Each, Op, Outcome, Query, one_by_one, operation
from agentbus.operations.endings import end
from agentbus.operations.events import event, record
from agentbus.operations.evidence import PROCESS_WIDE, Evidence, Silence, age
from agentbus.operations.holding import free_all
from agentbus.operations.leases import Held, take_back
from agentbus.operations.outgrowing import note_waits
from agentbus.operations.returning import acquit
from agentbus.operations.unfinished import refuse_unfinished

CREATED = "created"
"""The fact that says when a bus was first opened."""


class EnterRequest(msgspec.Struct, frozen=True):
    """A process that opens the bus. ``started`` tells it from a later process with the same pid.

    ``watched``: it does not open the bus; a visiting agent lives and dies with it. ``every``: how many milliseconds are
    between its beats.
    """

    host: str
    pid: int
    started: str
    bell: str | None
    watched: bool = False
    every: int = 5000


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
    """A process is alive; ``calls`` are its agents that did something since the last beat, and when (awake).
    ``waited``: for so many milliseconds since then it waited to write."""

    process: int
    calls: tuple[tuple[str, int, int], ...]
    waited: int = 0


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
def notice_boot(requests: Sequence[None], now: Now) -> Op[list[Outcome[None]]]:
    """Somebody who does not enter finds that the machine was restarted."""
    yield from _new_boot(now)
    return [None] * len(requests)


@one_by_one(durable=False)
def enter(request: EnterRequest, now: Now) -> Op[Outcome[Entry]]:
    """Take a number. The first to open the bus after a reboot voids what the last boot left behind."""
    yield from _new_boot(now)
    ((process,),) = yield Query(
        "process_insert",
        (
            request.host, now.boot, request.pid, request.started, request.bell, int(request.watched), now.awake,
            now.wall, request.every,
        ),
    )  # fmt: skip
    rows = yield Query("process_neighbours", (process,))
    return Entry(process, [Neighbour(*row) for row in rows])


@one_by_one(durable=True)
def disown(request: DisownRequest, now: Now) -> Op[Outcome[int]]:
    """Strike off every process: what is live in a backup is a process of another time. The outcome says how many."""
    rows = yield Query("process_live")
    yield from leave.run([LeaveRequest(tuple(process for (process,) in rows), True, request.reason)], now)
    facts = {"backup": request.backup, "processes": len(rows)}
    yield from record([event(now.wall, "bus_restored", ("bus", "backup"), None, **facts)])
    return len(rows)


@operation(durable=False, beside=True)
def beat(requests: Sequence[BeatRequest], now: Now) -> Op[list[Outcome[bool]]]:
    """One beat for all agents of a process. A suspect agent that did something is running again, and so is every one
    that was suspect only because its process did not beat. The outcome says whether the process counted as dead."""
    yield Each("process_beat", [(now.awake, request.process) for request in requests])
    calls = [(awake, agent, epoch) for request in requests for agent, epoch, awake in request.calls]
    if calls:
        yield Each("agent_called", calls)
    waited = sum(request.waited for request in requests)
    if waited:
        yield from note_waits(waited, now)
    outcomes: list[Outcome[bool]] = []
    for request in requests:
        revived = yield Query("process_revive", (now.awake, request.process))
        if revived:
            yield from record([event(now.wall, "process_back", ("process", str(request.process)), None)])
            yield from _own_again(request.process, now)
        suspects = yield Query("agent_suspects", (request.process,))
        if suspects:
            active = {(agent, epoch) for agent, epoch, _ in request.calls}
            known = {(agent, epoch): decode(evidence) for agent, epoch, evidence in suspects}
            yield from acquit(
                {
                    agent: evidence
                    for (agent, epoch), evidence in known.items()
                    if (agent, epoch) in active or evidence["verdict"] in PROCESS_WIDE
                },
                now,
            )
        outcomes.append(bool(revived))
    return outcomes


def _own_again(process: int, now: Now) -> Op[None]:
    """Sessions that were interrupted only because their owner counted as dead, and that nobody went on with."""
    rows = yield Query("session_own_again", (now.wall, process))
    yield from record([
        event(now.wall, "session_continued", ("session", session), None, before="interrupted", process=process)
        for (session,) in rows
    ])  # fmt: skip


@operation(durable=False, beside=True)
def listen(requests: Sequence[ListenRequest], now: Now) -> Op[list[Outcome[None]]]:
    """Begin or cease to listen. One operation for both: of several requests of a process the last one counts."""
    last = {(request.channel, request.process): request.listening for request in requests}
    yield from add_listeners([listener for listener, listening in last.items() if listening])
    gone = [listener for listener, listening in last.items() if not listening]
    if gone:
        yield Each("listener_delete", gone)
        yield Query("counter_take", ("topology", 1))
    return [None] * len(requests)


@one_by_one(durable=True)
def leave(request: LeaveRequest, now: Now) -> Op[Outcome[list[str]]]:
    """Strike processes off; their live agents are stopped, or failed if the process was found dead. Sessions that they
    own and nobody else is at work in are interrupted.

    The outcome names those agents.
    """
    if request.dead:
        struck = yield from strike(request.processes, request.reason, "dead", now, alive=False)
        return struck.agents
    still = yield Query("process_end", ("ended", now.wall, list(request.processes)))
    ended = [process for process, *_ in still]
    rows = yield Query("agent_of_processes", (ended,))
    agents = [agent for agent, *_ in rows]
    yield from end(agents, "stopped", request.reason, None, now, processes=ended)
    yield from _forget(ended)
    return agents


class Struck(msgspec.Struct, frozen=True):
    """Processes that were struck off, the agents that failed with them, and the sessions that this interrupts."""

    processes: list[int]
    agents: list[str]
    sessions: list[str]


def strike(processes: Sequence[int], reason: str, verdict: str, now: Now, *, alive: bool | None) -> Op[Struck]:
    """Strike off processes that were found dead: their live agents fail, with the evidence. Of those that somebody else
    has struck off already, nothing is left to do."""
    if not processes:
        return Struck([], [], [])
    rows = yield Query("process_end", ("dead", now.wall, list(processes)))
    evidence = {
        id: Evidence(verdict, process=id, pid=pid, alive=alive, beat_age=age(beat, now))
        if boot == now.boot
        else Evidence("rebooted", process=id, pid=pid, alive=False)
        for id, _, boot, pid, beat in rows
    }
    found = yield Query("agent_of_processes", (list(evidence),))
    silences = [Silence(*row) for row in found]
    judged: dict[str, Evidence] = {}
    for silence in silences:
        known = evidence[silence.process or 0]
        if known.verdict == "rebooted":
            # What the agent's row counts in awake time means nothing any more.
            judged[silence.agent] = msgspec.structs.replace(known, progress=silence.progress)
        else:
            judged[silence.agent] = silence.evidence(verdict, now, pid=known.pid, alive=alive, beat_age=known.beat_age)
    sessions = yield from end(list(judged), "failed", reason, None, now, judged, list(evidence))
    yield from _forget(list(evidence))
    dead = [id for id, status, *_ in rows if status == "dead"]
    yield from record([
        event(now.wall, "process_dead", ("process", str(id)), None, reason=reason, evidence=evidence[id]) for id in dead
    ])  # fmt: skip
    return Struck(dead, list(judged), sessions)


def _forget(processes: list[int]) -> Op[None]:
    yield Query("listener_clear", (processes,))
    yield Query("counter_take", ("topology", 1))


def add_listeners(rows: Sequence[tuple[str, int]]) -> Op[None]:
    if rows:
        yield Each("listener_insert", rows)
        yield Query("counter_take", ("topology", 1))


def _new_boot(now: Now) -> Op[None]:
    """Awake time starts again with each boot, so nothing that counts in it may outlive the boot it belongs to."""
    rows = yield Query("meta_get", ("boot",))
    if rows and rows[0][0] == now.boot:
        return
    yield from refuse_unfinished(now)
    yield from begin_boot(now)
    if not rows:
        yield Query("meta_set", (CREATED, str(now.wall)))
        return
    dead = yield Query("process_of_other_boots", (now.boot,))
    yield from void([process for (process,) in dead], "the machine was restarted", 0, now)


def begin_boot(now: Now) -> Op[None]:
    """From now on, awake time is that of this boot."""
    yield Query("meta_set", ("boot", now.boot))


def void(processes: Sequence[int], reason: str, called: int, now: Now) -> Op[None]:
    """Awake time is another one from now on: forget what was counted in it, strike off processes that counted as live,
    and take back every lease. Agents without a process are given their patience anew, from when they ``called``."""
    yield Query("agent_forget_calls", (called,))
    yield Query("session_forget_deadlines")
    if processes:
        yield from leave.run([LeaveRequest(tuple(processes), True, reason)], now)
    # Leases of visiting agents have no process that could be struck off.
    rows = yield Query("message_leased")
    yield from take_back([Held(*row) for row in rows], reason, now)
    yield from free_all(reason, now)
