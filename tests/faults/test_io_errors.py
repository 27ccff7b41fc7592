"""Faults at single system calls: killed at the k-th, and an I/O error at the k-th."""

from collections import Counter
from pathlib import Path

import pytest

from tests.faults.rows import integrity, no_process_writes, rows
from tests.support.figures import Figure, Scale
from tests.support.processes import Team
from tests.support.tracing import injecting, require_strace

WRITING = ("pwrite64", "fsync", "fdatasync", "io_submit", "io_getevents", "ftruncate", "unlink")


@pytest.mark.slow
@pytest.mark.fault(2)
def test_killed_at_any_system_call_that_writes_nothing_acknowledged_is_lost(
    short: Path, team: Team, figure: Figure, scale: Scale
) -> None:
    require_strace()
    kept = short / "kept"
    team.start("worker_calls", "killed", kept, 0, 4).finish()
    acknowledged: dict[Path, set[int]] = {kept: set(range(4))}
    kills = lost = doubled = 0
    # From the first call that makes a bus on; then, on a bus that is there, of its opening, its writes and its closing.
    points = [(short / f"fresh-{k}", k) for k in scale((330,), range(1, 380, 9))]
    points += [(kept, k) for k in scale((20, 100), range(1, 185, 3))]
    for bus, k in points:
        known = acknowledged.setdefault(bus, set())
        first = max(known, default=-1) + 1
        before = injecting(WRITING, "signal=KILL", str(k))
        worker = team.start("worker_calls", "killed", bus, first, 16, before=before)
        ended = worker.wait(60) == 0
        said = worker.said()
        worker.close()
        assert ended or "closed" not in said
        kills += not ended
        known.update(int(line.split()[1]) for line in said if line.startswith("sent"))
        if not (bus / "bus.db").exists() or not rows(bus, "SELECT 1 FROM sqlite_master"):
            lost += len(known)
            continue
        there = Counter(name for (name,) in rows(bus, "SELECT message_id FROM messages"))
        lost += len([n for n in known if not there[f"n-{n}"]])
        doubled += len([name for name, times in there.items() if times > 1])
        no_process_writes(bus)
        assert integrity(bus) == "ok", f"killed at call {k}"
    figure(faults=kills, acknowledged=sum(map(len, acknowledged.values())), lost=lost, duplicated=doubled)
    assert kills >= scale(3, 90)
    assert (lost, doubled) == (0, 0)


@pytest.mark.slow
@pytest.mark.fault(7)
@pytest.mark.parametrize(("call", "often"), [("fdatasync", 7), ("pwrite64", 61)])
def test_an_io_error_leaves_the_outcome_unknown_and_trying_again_gives_one_row(
    short: Path, team: Team, figure: Figure, scale: Scale, call: str, often: int
) -> None:
    require_strace()
    bus = short / "bus"
    team.start("worker_calls", "killed", bus, 0, 4).finish()
    first = 4
    told: Counter[str] = Counter()
    lies: list[str] = []
    for k in range(scale(3, 20)):
        # Every n-th call fails, from a later one on in each incarnation.
        before = injecting([call], "error=EIO", f"{often + k}+{often + k % 5}")
        worker = team.start("worker_calls", "failing", bus, first, scale(60, 40), before=before)
        status = worker.wait(60)
        outcomes = [line.split() for line in worker.said() if line.startswith("told")]
        # It may be hit while it opens or closes the bus: then it says so, and nothing that was sent is lost.
        assert status == 0 or "agentbus.errors" in worker.errors(), worker.errors()[-2000:]
        worker.close()
        for _, number, outcome, place in outcomes:
            told[outcome] += 1
            first = max(first, int(number) + 1)
            if (outcome == "sent" and place == "absent") or (outcome not in {"sent", "unknown"} and place == "there"):
                lies.append(f"life {k}: {number} was told {outcome}, and is {place}")
        there = Counter(name for (name,) in rows(bus, "SELECT message_id FROM messages"))
        sent = {f"n-{number}" for _, number, outcome, _ in outcomes if outcome == "sent"}
        lies += [f"life {k}: {name} is there {there[name]} times" for name in sent if there[name] != 1]
        assert integrity(bus) == "ok"
    faults = told.total() - told["sent"]
    others = ", ".join(f"{times} with {code}" for code, times in told.items() if code not in {"sent", "unknown"})
    note = f"{others}; EIO on {call}" if others else f"EIO on {call}"
    figure(note, faults=faults, acknowledged=told["sent"], unknown=told["unknown"], wrong_results=len(lies))
    assert not lies, lies[:5]
    assert told["unknown"] > 0, "no commit was hit; this test proves nothing"
    assert told["sent"] >= scale(40, 400)
