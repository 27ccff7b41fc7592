"""Suspicion and failure of agents: verdicts, each stored with its evidence.

The caller gathers evidence first (processes that are gone, processes that are silent); here, inside the transaction, it
is checked again. A verdict based only on silence takes two sweeps, the first of which makes an agent suspect: after a
pause of the whole machine, the monitor included, processes can send a heartbeat before any agent fails.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from agentbus.core.clock import Now
from agentbus.core.codec import plain
from agentbus.core.validation import MAX_SECONDS
from agentbus.operations.agent_status import end, interrupt
from agentbus.operations.common import Evidence, Silence, age
from agentbus.operations.events import event, record
from agentbus.operations.processes import mark_processes_dead
from agentbus.operations.protocol import ExecuteMany, Op, Outcome, Query, Row, single_operation

STEP = 500
"""Agents of a kind that one call checks at most, so that other writers do not wait long for the lock."""


class Rules(msgspec.Struct, frozen=True):
    """Milliseconds of silence after which an agent is suspect; has failed, if its process cannot be observed; has
    failed although its process exists (None: never). ``host`` is the host of the caller, which observes only processes
    of the same host."""

    suspect_after: int
    fail_after: int
    fail_stuck_after: int | None = None
    host: str = ""


LENIENT = Rules(MAX_SECONDS * 1000, MAX_SECONDS * 1000)
"""Rules by which no agent fails for silence, only for not registering in time."""


class CheckLiveness(msgspec.Struct, frozen=True):
    """Evidence: processes that are ``gone``; that exist but are silent (``stalled``); that are silent and cannot be
    observed (``unseen``). ``sessions`` are candidates for interruption."""

    rules: Rules
    gone: tuple[int, ...] = ()
    stalled: tuple[int, ...] = ()
    unseen: tuple[int, ...] = ()
    sessions: tuple[str, ...] = ()
    limit: int = STEP


class Failed(msgspec.Struct):
    """Processes marked dead, agents that failed, sessions that were interrupted. ``more``: there are more to check."""

    processes: list[int]
    agents: list[str]
    sessions: list[str]
    more: bool = False


class Suspected(msgspec.Struct):
    """The agents that became suspect. ``more``: there are more to check."""

    agents: list[str]
    more: bool = False


class _Process(msgspec.Struct, frozen=True):
    id: int
    pid: int
    beat: int
    silent: int
    """Awake time at which an earlier sweep found it silent; 0 if none did."""
    every: int

    def noted(self, now: Now) -> bool:
        """Return whether a sweep has found it silent; a time in the future is from before the clock was set back."""
        return 0 < self.silent <= now.awake


@single_operation(durable=True)
def mark_failed(request: CheckLiveness, now: Now) -> Op[Outcome[Failed]]:
    """Fail the agents that the evidence suffices for. Those that failed already are skipped, so concurrent monitors do
    no harm."""
    marked = yield from mark_processes_dead(request.gone, "its process died", "dead", now, alive=False)
    failed = Failed(marked.processes, marked.agents, marked.sessions)
    yield from _fail_processes(request, failed, now)
    yield from _fail_agents(request, failed, now)
    if request.sessions:
        failed.sessions += yield from interrupt((), (), None, now, request.sessions)
    return failed


@single_operation(durable=True)
def suspect(request: CheckLiveness, now: Now) -> Op[Outcome[Suspected]]:
    """Mark agents suspect."""
    silent = yield from _silent(request, now)
    yield ExecuteMany("process_silent", [
        (now.awake, id) for id in request.unseen if id in silent and not silent[id].noted(now)
    ])  # fmt: skip
    running = (yield Query("agent_of_status", (list(silent), "running"))) if silent else []
    stuck = yield from silent_agents("running", request.rules, request.limit, now)
    overdue = yield from overdue_agents("running", request.rules, request.limit, now)
    found = {**stuck, **overdue, **_evidence_in_processes(running, request, silent, now)}
    yield ExecuteMany("agent_suspect", [(plain(evidence), now.wall, agent) for agent, evidence in found.items()])
    yield from record([
        event(now.wall, "agent_suspected", ("agent", agent), None, evidence=evidence)
        for agent, evidence in found.items()
    ])  # fmt: skip
    return Suspected(list(found), request.limit in {len(stuck), len(overdue)})


def _fail_processes(request: CheckLiveness, failed: Failed, now: Now) -> Op[None]:
    """Mark silent processes dead that cannot be observed. One that exists may be stopped by a debugger, or its loop is
    blocked: only its suspect agents fail, if the rules say so."""
    rules = request.rules
    silent = yield from _silent(request, now)
    lost = [
        id for id in request.unseen
        if id in silent and _had_grace_period(silent[id], now) and _exceeds(silent[id], rules.fail_after, now)
    ]  # fmt: skip
    if lost:
        # Not while one of its agents is running: it is not suspect yet, or declared itself busy.
        running = yield Query("agent_of_status", (lost, "running"))
        lost = sorted(set(lost) - {row[1] for row in running})
        reason = f"its process, which cannot be seen from here, was silent for longer than {_seconds(rules.fail_after)}"
        marked = yield from mark_processes_dead(lost, reason, "unreachable", now, alive=None)
        failed.processes += marked.processes
        failed.agents += marked.agents
        failed.sessions += marked.sessions
    limit = rules.fail_stuck_after
    stuck = [id for id in request.stalled if id in silent and limit is not None and _exceeds(silent[id], limit, now)]
    if stuck and limit is not None:
        rows = yield Query("agent_of_status", (stuck, "suspect"))
        reason = f"its process is there, but was silent for longer than {_seconds(limit)}"
        yield from _fail(_evidence_in_processes(rows, request, silent, now), reason, failed, now)


def _fail_agents(request: CheckLiveness, failed: Failed, now: Now) -> Op[None]:
    rules = request.rules
    stuck = yield from silent_agents("suspect", rules, request.limit, now)
    reason = f"it was silent for longer than {_seconds(rules.fail_stuck_after or 0)}, though its process is there"
    yield from _fail(stuck, reason, failed, now)
    overdue = yield from overdue_agents("suspect", rules, request.limit, now)
    yield from _fail(overdue, "it was silent for much longer than its patience", failed, now)
    absent = yield from absent_agents(request.limit, now)
    reasons = dict[str, dict[str, Evidence]]()
    for agent, evidence in absent.items():
        reasons.setdefault(_absence_reason(evidence), {})[agent] = evidence
    for reason, agents in reasons.items():
        yield from _fail(agents, reason, failed, now)
    failed.more = request.limit in {len(stuck), len(overdue), len(absent)}


def _silent(request: CheckLiveness, now: Now) -> Op[dict[int, _Process]]:
    """Return the silent processes that have sent no heartbeat since."""
    processes = [*request.stalled, *request.unseen]
    rows = (yield Query("process_beats", (processes,))) if processes else []
    found = [_Process(*row) for row in rows]
    return {process.id: process for process in found if _exceeds(process, request.rules.suspect_after, now)}


def silence_limit(limit: int, every: int) -> int:
    """Return the milliseconds that a process may be silent: the limit, but at least two heartbeat intervals."""
    return max(limit, 2 * every)


def _exceeds(process: _Process, limit: int, now: Now) -> bool:
    return now.awake - process.beat > silence_limit(limit, process.every)


def _had_grace_period(process: _Process, now: Now) -> bool:
    """Return whether it had time for two heartbeats since it was found silent: the clock may have jumped."""
    return process.noted(now) and now.awake - process.silent >= 2 * process.every


def _evidence_in_processes(
    rows: Sequence[Row], request: CheckLiveness, silent: dict[int, _Process], now: Now
) -> dict[str, Evidence]:
    """Return the evidence against agents of silent processes, except those that declared themselves busy."""
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
    """Return agents of this status that exceeded the limit of silence in a process that sends heartbeats. Their
    activity is known as of its last heartbeat."""
    longest = rules.suspect_after if status == "running" else rules.fail_stuck_after
    if longest is None:
        return {}
    rows = yield Query("agent_silent", (status, longest, now.awake - longest, limit))
    return {
        row[0]: Silence(*row).evidence("stuck", now, pid=pid, alive=True, beat_age=age(beat, now))
        for *row, pid, beat in rows
    }


def overdue_agents(status: str, rules: Rules, limit: int, now: Now) -> Op[dict[str, Evidence]]:
    """Return visiting agents of this status that exceeded their patience. A suspect one fails ``fail_after`` later; if
    its process is observed and exists, it is only stuck."""
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
    """Return agents that did not register in time."""
    rows = yield Query("agent_absent", (now.awake, limit))
    return {
        agent: Evidence("absent", call_age=age(last_call, now), busy_age=age(busy_until, now))
        for agent, last_call, busy_until in rows
    }


def _absence_reason(evidence: Evidence) -> str:
    """Return the reason of failure. After a reboot the deadline is unknown."""
    if evidence.call_age is None or evidence.busy_age is None:
        return "expected, never registered"
    return f"expected within {evidence.call_age - evidence.busy_age:g} s, never registered"


def find_overdue(_: None, now: Now) -> Op[CheckLiveness | None]:
    """Return the agents and sessions to check when a bus is opened and no monitor runs: those whose deadline passed."""
    absent = yield from absent_agents(1, now)
    rows = yield Query("session_overdue", (now.awake,))
    sessions = tuple(session for (session,) in rows)
    return CheckLiveness(LENIENT, sessions=sessions) if absent or sessions else None


def _fail(evidence: dict[str, Evidence], reason: str, failed: Failed, now: Now) -> Op[None]:
    failed.sessions += yield from end(list(evidence), "failed", reason, None, now, evidence)
    failed.agents += evidence


def _seconds(milliseconds: int) -> str:
    return f"{milliseconds / 1000:g} s"
