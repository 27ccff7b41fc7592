"""Verdicts: suspicion and failure, their evidence, and changes since it was gathered."""

from __future__ import annotations

from typing import Any

import pytest

from agentbus.core.codec import decode
from agentbus.operations.agent_identity import VisitRequest, visit
from agentbus.operations.liveness import CheckLiveness, Rules, mark_failed, suspect
from agentbus.operations.protocol import Row
from agentbus.operations.sweep import CleanUpRequest, SurveyRequest, clean_up, survey
from tests.operations.script import ALIVE, NOW, A, Answer, B, Played, ended, held, play, silence, standing

RULES = Rules(suspect_after=10_000, fail_after=30_000)
STRICT = Rules(10_000, 30_000, fail_stuck_after=20_000)
LIFE: Answer = ("agent_statuses", [standing("a")])
FAILING: tuple[Answer, ...] = (("message_held_by", []), LIFE, ("agent_parents", []))
NO_AGENTS: tuple[Answer, ...] = (("agent_overdue", []), ("agent_absent", []))


def beat(age: int, process: int = 3, *, silent: int | None = 10_000) -> Row:
    """A row of process_beats, of a process that beat so long ago; and how long ago an earlier sweep found it silent."""
    return process, 41, NOW.awake - age, 0 if silent is None else NOW.awake - silent, 5000


def judged(played: Played[Any]) -> dict[str, dict[str, Any]]:
    """The evidence that was written, by agent."""
    rows = [(row[-1], row[-2]) for row in played.written("agent_end")]
    rows += [(row[-1], row[0]) for row in played.written("agent_suspect")]
    return {agent: decode(evidence) for agent, evidence in rows}


def test_a_process_that_is_gone_takes_its_agents_with_it() -> None:
    played = play(
        mark_failed.run([CheckLiveness(RULES, gone=(3,))], NOW),
        ("process_end", [ended(3)]), ("agent_of_processes", [silence("a")]), *FAILING, ("counter_take", [(1,)]),
        *NO_AGENTS,
    )  # fmt: skip
    (outcome,) = played.outcomes
    assert (outcome.processes, outcome.agents, outcome.more) == ([3], ["a"], False)
    assert judged(played)["a"]["verdict"] == "dead"


def test_with_nothing_gone_no_process_is_touched() -> None:
    played = play(mark_failed.run([CheckLiveness(RULES)], NOW), *NO_AGENTS)
    assert played.statements == []
    assert [name for name, _ in played.asked] == ["agent_overdue", "agent_absent"]


def test_silence_makes_suspect_first() -> None:
    request = CheckLiveness(STRICT, stalled=(3,), unseen=(4,))
    beats: Answer = ("process_beats", [beat(40_000, silent=None), beat(40_000, 4, silent=None)])
    agents: Answer = ("agent_of_status", [silence("a", 3), silence("b", 4)])
    played = play(suspect.run([request], NOW), beats, agents, ("agent_silent", []), ("agent_overdue", []))
    assert played.outcomes[0].agents == ["a", "b"]
    assert judged(played) == {
        "a": {"verdict": "stalled", "process": 3, "pid": 41, "alive": True, "beat_age": 40.0, "call_age": 20.0,
              "progress": 0},
        "b": {"verdict": "unreachable", "process": 4, "pid": 41, "beat_age": 40.0, "call_age": 20.0, "progress": 0},
    }  # fmt: skip
    assert [row[1] for row in played.written("event_insert")] == ["agent_suspected"] * 2
    assert played.written("process_silent") == [(NOW.awake, 4)], "a later sweep may strike it off"


@pytest.mark.parametrize("silent", [None, 0, 9_999, -1])
def test_an_unobservable_process_is_not_marked_dead_before_two_heartbeats(silent: int | None) -> None:
    """Since it was found silent, that is: the clock may have jumped."""
    request = CheckLiveness(RULES, unseen=(4,))
    beats: Answer = ("process_beats", [beat(3_600_000, 4, silent=silent)])
    assert play(mark_failed.run([request], NOW), beats, *NO_AGENTS).statements == []


def test_a_process_that_sent_a_heartbeat_meanwhile_is_not_judged() -> None:
    request = CheckLiveness(STRICT, stalled=(3,), unseen=(4,))
    beats: Answer = ("process_beats", [beat(10_000), beat(0, 4)])
    played = play(suspect.run([request], NOW), beats, ("agent_silent", []), ("agent_overdue", []))
    assert (played.outcomes[0].agents, played.statements) == ([], [])
    assert play(mark_failed.run([request], NOW), beats, ("agent_silent", []), *NO_AGENTS).statements == []


@pytest.mark.parametrize(
    ("age", "running", "struck"), [(31_000, False, True), (30_000, False, False), (31_000, True, False)]
)
def test_an_unobservable_process_is_dead_once_none_of_its_agents_is_running(
    age: int, running: bool, struck: bool
) -> None:
    answers: list[Answer] = [("process_beats", [beat(age, 4)])]
    if age > RULES.fail_after:
        answers.append(("agent_of_status", [silence("a", 4)] if running else []))
    if struck:
        answers += [("process_end", [ended(4)]), ("agent_of_processes", []), ("counter_take", [(1,)])]
    played = play(mark_failed.run([CheckLiveness(RULES, unseen=(4,))], NOW), *answers, *NO_AGENTS)
    assert played.outcomes[0].processes == ([4] if struck else [])


@pytest.mark.parametrize("rules", [RULES, STRICT])
def test_what_is_there_but_silent_fails_its_agents_only_if_asked_for_and_never_a_busy_one(rules: Rules) -> None:
    answers: list[Answer] = [("process_beats", [beat(21_000)])]
    if rules is STRICT:
        suspects = [silence("a"), silence("busy", busy_until=NOW.awake + 1)]
        answers += [("agent_of_status", suspects), *FAILING, ("agent_silent", [])]
    played = play(mark_failed.run([CheckLiveness(rules, stalled=(3,))], NOW), *answers, *NO_AGENTS)
    assert played.outcomes[0].agents == (["a"] if rules is STRICT else [])
    assert played.written("process_end") == [], "the process itself is not dead"


@pytest.mark.parametrize(("rules", "parameters"), [
    (RULES, (NOW.awake - 30_000, -1)), (STRICT, (NOW.awake - 30_000, NOW.awake - 20_000)),
])  # fmt: skip
def test_a_visiting_agent_with_a_process_that_is_there_is_only_stuck(rules: Rules, parameters: tuple[int, int]) -> None:
    answers: list[Answer] = [] if rules is RULES else [("agent_silent", [])]
    played = play(mark_failed.run([CheckLiveness(rules)], NOW), *answers, *NO_AGENTS)
    assert played.parameters("agent_overdue") == ("suspect", NOW.awake, *parameters, 500, "")


def test_judging_goes_in_bounded_steps() -> None:
    rows = [(*silence(f"a{n}"), 41, NOW.awake - 100) for n in range(2)]
    request = CheckLiveness(RULES, limit=2)
    played = play(suspect.run([request], NOW), ("agent_silent", rows), ("agent_overdue", []))
    assert (played.outcomes[0].agents, played.outcomes[0].more) == (["a0", "a1"], True)
    request = CheckLiveness(RULES, limit=3)
    played = play(suspect.run([request], NOW), ("agent_silent", rows), ("agent_overdue", []))
    assert not played.outcomes[0].more


def test_sessions_without_live_agents_are_interrupted() -> None:
    request = CheckLiveness(RULES, sessions=("s", "t"))
    causes: Answer = ("session_causes", [("s", 8, "dead", None, None, 0, 0)])
    played = play(mark_failed.run([request], NOW), *NO_AGENTS, ("session_interrupt", [("s",)]), causes)
    assert played.outcomes[0].sessions == ["s"]
    assert played.written("session_interrupt")[0][3] == ["s", "t"]


def test_a_call_of_a_visiting_agent_is_a_heartbeat_and_extends_its_leases() -> None:
    suspects: Answer = ("agent_suspected", [("b", '{"verdict":"silent"}')])
    played = play(visit.run([VisitRequest(A, 60_000), VisitRequest(B, 30_000)], NOW), ALIVE, suspects)
    assert played.outcomes == [None, None]
    assert played.written("agent_called") == [(NOW.awake, "a", 1), (NOW.awake, "b", 1)]
    assert played.written("message_extend_held") == [(NOW.awake + 60_000, "a"), (NOW.awake + 30_000, "b")]
    assert [row[2] for row in played.written("agent_recover")] == ["b"]


def test_a_visiting_agent_of_another_epoch_is_refused_and_others_are_not() -> None:
    lives: Answer = ("agent_statuses", [standing("a", epoch=2), standing("b")])
    requests = [VisitRequest(A, 60_000), VisitRequest(B, 60_000)]
    played = play(visit.run(requests, NOW), lives, ("agent_suspected", []))
    assert played.outcomes[0] is not None
    assert played.outcomes[1] is None
    assert [row[1] for row in played.written("agent_called")] == ["b"]


def test_cleaning_up_releases_first_and_then_expires_there_too() -> None:
    rows = [held(1, mailbox=10), held(2, mailbox=20, attempts=5, max_attempts=5)]
    lapsed: Answer = ("message_lapsed_anywhere", rows)
    expired: Answer = ("message_expire_some", [(7,)])
    played = play(clean_up.run([CleanUpRequest((30,), limit=5)], NOW), lapsed, expired)
    assert (played.outcomes[0].freed, played.outcomes[0].expired, played.outcomes[0].more) == (2, 1, False)
    assert played.ids("message_release") == [1]
    assert played.ids("message_dead_letter") == [2]
    assert played.written("message_expire_some") == [(NOW.wall, [10, 20, 30], 5)]


def test_cleaning_up_writes_nothing_if_nothing_lapsed_or_expired() -> None:
    assert play(clean_up.run([CleanUpRequest(())], NOW), ("message_lapsed_anywhere", [])).statements == []


def test_a_survey_of_a_quiet_bus_finds_nothing_and_names_the_other_processes() -> None:
    other: Row = (4, "host", 41, "77", None, 1, 40_000, 5000)
    played = play(
        survey(SurveyRequest(3, STRICT, 100), NOW),
        ("process_others", [other]), ("agent_silent", []), ("agent_overdue", []), ("agent_silent", []),
        *NO_AGENTS, ("session_troubles", []), ("message_has_lapsed", []), ("mailbox_expiring", []),
        ("mailbox_unattended", []), ("mailbox_deep", []),
    )  # fmt: skip
    found = played.outcomes
    assert (found.suspicious, found.failing, found.lapsed, found.expiring) == (False, False, False, ())
    assert (found.others[0].peer.process, found.others[0].watched, found.others[0].beat) == (4, True, 40_000)
