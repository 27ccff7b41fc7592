"""Who is suspect and who has failed: verdicts on evidence, each kept with what it rests on.

Whoever judges gathers evidence before (which processes are gone, which are there but silent); what may have changed
since is looked at again here, inside the transaction. A verdict that is only about silence takes two sweeps, the first
of which makes suspect: after a standstill of everybody, the judge included, the others can beat before anyone fails.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from agentbus.clock import Now
from agentbus.codec import plain
from agentbus.limits import MAX_SECONDS
from agentbus.operations import Each, Op, Outcome, Query, Row, one_by_one
from agentbus.operations.endings import end
from agentbus.operations.events import event, record
from agentbus.operations.evidence import Evidence, Silence, age
from agentbus.operations.interruptions import interrupt
from agentbus.operations.processes import strike

STEP = 500
"""Agents of a kind that one call judges at most, so that nobody waits long for the lock."""


class Rules(msgspec.Struct, frozen=True):
    """After how many milliseconds of silence an agent is suspect; has failed, where its process cannot be seen; has
    failed, though its process can be seen (None: never). ``host`` is where the judge is: it sees no process of
    another."""

    suspect_after: int
    fail_after: int
    fail_stuck_after: int | None = None
    host: str = ""


LENIENT = Rules(MAX_SECONDS * 1000, MAX_SECONDS * 1000)
"""By these nobody fails for silence, but only who did not come in time."""


class JudgeRequest(msgspec.Struct, frozen=True):
    """Evidence: processes that are ``gone``; that are there, and ``stalled``; that are silent, and cannot be seen
    (``unseen``). ``sessions`` are those that nobody seems to be at work in."""

    rules: Rules
    gone: tuple[int, ...] = ()
    stalled: tuple[int, ...] = ()
    unseen: tuple[int, ...] = ()
    sessions: tuple[str, ...] = ()
    limit: int = STEP


class Convicted(msgspec.Struct):
    """Processes that were struck off, agents that failed, sessions that were interrupted. ``more``: there are more to
    judge."""

    processes: list[int]
    agents: list[str]
    sessions: list[str]
    more: bool = False


class Suspected(msgspec.Struct):
    """The agents that became suspect. ``more``: there are more to judge."""

    agents: list[str]
    more: bool = False


class _Process(msgspec.Struct, frozen=True):
    id: int
    pid: int
    beat: int
    silent: int
    """When an earlier sweep found it so; 0 if none did."""
    every: int

    def noted(self, now: Now) -> bool:
        """Whether a sweep has found it silent; a note from the future is of a clock that was set back since."""
        return 0 < self.silent <= now.awake


@one_by_one(durable=True)
def convict(request: JudgeRequest, now: Now) -> Op[Outcome[Convicted]]:
    """Fail those that the evidence is enough for. Whatever was judged already is left alone, so that any number of
    judges do no harm."""
    struck = yield from strike(request.gone, "its process died", "dead", now, alive=False)
    convicted = Convicted(struck.processes, struck.agents, struck.sessions)
    yield from _convict_processes(request, convicted, now)
    yield from _convict_agents(request, convicted, now)
    if request.sessions:
        convicted.sessions += yield from interrupt((), (), None, now, request.sessions)
    return convicted


@one_by_one(durable=True)
def suspect(request: JudgeRequest, now: Now) -> Op[Outcome[Suspected]]:
    """Make those suspect that something speaks against."""
    silent = yield from _silent(request, now)
    yield Each("process_silent", [
        (now.awake, id) for id in request.unseen if id in silent and not silent[id].noted(now)
    ])  # fmt: skip
    running = (yield Query("agent_of_status", (list(silent), "running"))) if silent else []
    stuck = yield from silent_agents("running", request.rules, request.limit, now)
    overdue = yield from overdue_agents("running", request.rules, request.limit, now)
    found = {**stuck, **overdue, **_in_processes(running, request, silent, now)}
    yield Each("agent_suspect", [(plain(evidence), now.wall, agent) for agent, evidence in found.items()])
    yield from record([
        event(now.wall, "agent_suspected", ("agent", agent), None, evidence=evidence)
        for agent, evidence in found.items()
    ])  # fmt: skip
    return Suspected(list(found), request.limit in {len(stuck), len(overdue)})


def _convict_processes(request: JudgeRequest, convicted: Convicted, now: Now) -> Op[None]:
    """Processes that do not beat. One that can be seen is not dead: a debugger may have stopped it, or its loop is
    blocked. Then its suspect agents fail, if that was asked for, and it may go on with others."""
    rules = request.rules
    silent = yield from _silent(request, now)
    lost = [
        id for id in request.unseen
        if id in silent and _had_its_chance(silent[id], now) and _exceeds(silent[id], rules.fail_after, now)
    ]  # fmt: skip
    if lost:
        # Not as long as one of its agents is running: it has yet to become suspect, or said that it would be busy.
        running = yield Query("agent_of_status", (lost, "running"))
        lost = sorted(set(lost) - {row[1] for row in running})
        reason = f"its process, which cannot be seen from here, was silent for longer than {_seconds(rules.fail_after)}"
        struck = yield from strike(lost, reason, "unreachable", now, alive=None)
        convicted.processes += struck.processes
        convicted.agents += struck.agents
        convicted.sessions += struck.sessions
    limit = rules.fail_stuck_after
    stuck = [id for id in request.stalled if id in silent and limit is not None and _exceeds(silent[id], limit, now)]
    if stuck and limit is not None:
        rows = yield Query("agent_of_status", (stuck, "suspect"))
        reason = f"its process is there, but was silent for longer than {_seconds(limit)}"
        yield from _fail(_in_processes(rows, request, silent, now), reason, convicted, now)


def _convict_agents(request: JudgeRequest, convicted: Convicted, now: Now) -> Op[None]:
    rules = request.rules
    stuck = yield from silent_agents("suspect", rules, request.limit, now)
    reason = f"it was silent for longer than {_seconds(rules.fail_stuck_after or 0)}, though its process is there"
    yield from _fail(stuck, reason, convicted, now)
    overdue = yield from overdue_agents("suspect", rules, request.limit, now)
    yield from _fail(overdue, "it was silent for much longer than its patience", convicted, now)
    absent = yield from absent_agents(request.limit, now)
    reasons = dict[str, dict[str, Evidence]]()
    for agent, evidence in absent.items():
        reasons.setdefault(_absence(evidence), {})[agent] = evidence
    for reason, agents in reasons.items():
        yield from _fail(agents, reason, convicted, now)
    convicted.more = request.limit in {len(stuck), len(overdue), len(absent)}


def _silent(request: JudgeRequest, now: Now) -> Op[dict[int, _Process]]:
    """Those of the silent processes that are so still: one may have beaten meanwhile."""
    processes = [*request.stalled, *request.unseen]
    rows = (yield Query("process_beats", (processes,))) if processes else []
    found = [_Process(*row) for row in rows]
    return {process.id: process for process in found if _exceeds(process, request.rules.suspect_after, now)}


def patience(limit: int, every: int) -> int:
    """How long a process may be silent: the limit, but at least two of its own beats."""
    return max(limit, 2 * every)


def _exceeds(process: _Process, limit: int, now: Now) -> bool:
    return now.awake - process.beat > patience(limit, process.every)


def _had_its_chance(process: _Process, now: Now) -> bool:
    """Whether it could have beaten twice since it was found silent: if the clock jumped, it has."""
    return process.noted(now) and now.awake - process.silent >= 2 * process.every


def _in_processes(
    rows: Sequence[Row], request: JudgeRequest, silent: dict[int, _Process], now: Now
) -> dict[str, Evidence]:
    """What speaks against these agents of silent processes. Those that said they would be busy are believed."""
    found: dict[str, Evidence] = {}
    for silence in (Silence(*row) for row in rows):
        process = silent[silence.process or 0]
        if silence.busy_until is None or silence.busy_until <= now.awake:
            seen = process.id in request.stalled
            found[silence.agent] = silence.evidence(
                "stalled" if seen else "unreachable",
                now,
                pid=process.pid,
                alive=True if seen else None,
                beat_age=age(process.beat, now),
            )
    return found


def silent_agents(status: str, rules: Rules, limit: int, now: Now) -> Op[dict[str, Evidence]]:
    """Agents of this status that do nothing, for longer than such a one may, in a process that beats. How long they
    have been silent is known as of its last beat."""
    longest = rules.suspect_after if status == "running" else rules.fail_stuck_after
    if longest is None:
        return {}
    rows = yield Query("agent_silent", (status, longest, now.awake - longest, limit))
    return {
        row[0]: Silence(*row).evidence("stuck", now, pid=pid, alive=True, beat_age=age(beat, now))
        for *row, pid, beat in rows
    }


def overdue_agents(status: str, rules: Rules, limit: int, now: Now) -> Op[dict[str, Evidence]]:
    """Visiting agents of this status whose patience is over. One that is suspect has failed ``fail_after`` later; but
    if its process can be watched from here, and is there, it is only stuck."""
    alone = with_process = now.awake
    if status == "suspect":
        alone = now.awake - rules.fail_after
        with_process = -1 if rules.fail_stuck_after is None else now.awake - rules.fail_stuck_after
    rows = yield Query("agent_overdue", (status, now.awake, alone, with_process, limit, rules.host))
    return {
        row[0]: Silence(*row).evidence("silent", now, patience=patience / 1000, alive=True if seen else None)
        for *row, patience, seen in rows
    }


def absent_agents(limit: int, now: Now) -> Op[dict[str, Evidence]]:
    """Agents that were expected by now, and never came."""
    rows = yield Query("agent_absent", (now.awake, limit))
    return {
        agent: Evidence("absent", call_age=age(last_call, now), busy_age=age(busy_until, now))
        for agent, last_call, busy_until in rows
    }


def _absence(evidence: Evidence) -> str:
    """After a reboot nobody knows any more when it was expected."""
    if evidence.call_age is None or evidence.busy_age is None:
        return "expected, never registered"
    return f"expected within {evidence.call_age - evidence.busy_age:g} s, never registered"


def overstayed(_: None, now: Now) -> Op[JudgeRequest | None]:
    """What there is to judge when a bus is opened and nobody sweeps it: agents and sessions that nobody came for."""
    absent = yield from absent_agents(1, now)
    rows = yield Query("session_overdue", (now.awake,))
    sessions = tuple(session for (session,) in rows)
    return JudgeRequest(LENIENT, sessions=sessions) if absent or sessions else None


def _fail(evidence: dict[str, Evidence], reason: str, convicted: Convicted, now: Now) -> Op[None]:
    convicted.sessions += yield from end(list(evidence), "failed", reason, None, now, evidence)
    convicted.agents += evidence


def _seconds(milliseconds: int) -> str:
    return f"{milliseconds / 1000:g} s"
