"""Processes: entering, heartbeats, listening, leaving, being marked dead, and the first one after a reboot."""

from __future__ import annotations

from typing import Any

import pytest

from agentbus.core.codec import decode, plain
from agentbus.operations.processes import (
    EnterRequest,
    Entry,
    HeartbeatRequest,
    LeaveRequest,
    ListenRequest,
    PeerProcess,
    enter,
    heartbeat,
    leave,
    listen,
)
from agentbus.operations.protocol import Row
from tests.operations.script import ALIVE, NOW, Answer, Played, ended, held, play, silence

ME = EnterRequest("host", 41, "77", "/bell")
SAME_BOOT: Answer = ("meta_get", [(NOW.boot,)])
NUMBER: tuple[Answer, ...] = (("process_insert", [(3,)]), ("process_peers", []))
TOPOLOGY: Answer = ("counter_take", [(1,)])


def events_of(played: Played[Any]) -> list[tuple[str, str]]:
    return [(event[1], event[3]) for event in played.written("event_insert")]


def test_a_process_gets_a_number_and_its_peers() -> None:
    neighbours: Answer = ("process_peers", [(1, "host", 40, "66", None)])
    played = play(enter.run([ME], NOW), SAME_BOOT, ("process_insert", [(3,)]), neighbours)
    assert played.outcomes == [Entry(3, [PeerProcess(1, "host", 40, "66", None)])]
    assert played.written("process_insert") == [("host", NOW.boot, 41, "77", "/bell", 0, NOW.awake, NOW.wall, 5000)]
    assert played.parameters("process_peers") == (3,)


def test_the_first_process_ever_records_the_boot_and_invalidates_nothing() -> None:
    played = play(enter.run([ME], NOW), ("meta_get", []), *NUMBER)
    assert played.written("meta_set") == [("boot", NOW.boot), ("created", str(NOW.wall))]
    assert played.wrote == ["meta_set", "process_insert"]


def test_within_a_boot_nothing_is_invalidated() -> None:
    assert play(enter.run([ME], NOW), SAME_BOOT, *NUMBER).wrote == ["process_insert"]


def rebooted(*answers: Answer, leased: tuple[Row, ...] = ()) -> Played[Any]:
    return play(enter.run([ME], NOW), ("meta_get", [("boot-0",)]), *answers, ("message_leased", leased), *NUMBER)


def test_the_first_process_after_a_reboot_fails_the_agents_of_the_last_boot() -> None:
    played = rebooted(
        ("process_of_other_boots", [(1,), (2,)]),
        ("process_end", [ended(1, boot="boot-0"), ended(2, boot="boot-0")]),
        ("agent_of_processes", [silence("a", 2, last_call=0, progress=40)]),
        ("message_held_by", [held(1)]),
        ALIVE,
        ("agent_parents", []),
        TOPOLOGY,
    )
    assert played.written("meta_set") == [("boot", NOW.boot)]
    assert played.written("process_end") == [("dead", NOW.wall, [1, 2])]
    ((status, *_, evidence, agent),) = played.written("agent_end")
    assert (status, agent) == ("failed", "a")
    # No age: awake time has started again.
    assert decode(evidence) == {"verdict": "rebooted", "process": 2, "pid": 41, "alive": False, "progress": 40}
    assert played.ids("message_release") == [1]
    assert ("process_dead", "1") in events_of(played)
    assert ("agent_failed", "a") in events_of(played)


def test_awake_time_of_the_last_boot_means_nothing_after_a_reboot() -> None:
    played = rebooted(("process_of_other_boots", []))
    assert "agent_forget_calls" in played.wrote


def test_a_reboot_frees_the_leases_that_no_process_held() -> None:
    # Those of visiting agents: no process can be marked dead for them.
    rows = (held(1, attempts=1), held(2, attempts=5, max_attempts=5))
    played = rebooted(("process_of_other_boots", []), leased=rows)
    assert played.ids("message_release") == [1]
    assert played.ids("message_dead_letter") == [2]


def test_one_heartbeat_serves_all_agents_of_a_process() -> None:
    requests = [HeartbeatRequest(3, (("a", 1, 4_000), ("b", 2, 4_500))), HeartbeatRequest(4, ())]
    played = play(heartbeat.run(requests, NOW))
    assert played.outcomes == [False, False]
    assert played.written("process_beat") == [(NOW.awake, 3), (NOW.awake, 4)]
    assert played.written("agent_called") == [(4_000, "a", 1), (4_500, "b", 2)]


def test_a_heartbeat_of_idle_agents_writes_none_of_them() -> None:
    assert play(heartbeat.run([HeartbeatRequest(3, ())], NOW)).wrote == ["process_beat", "process_revive"]


def suspects(*agents: tuple[str, int, str]) -> Answer:
    return "agent_suspects", [(agent, epoch, plain({"verdict": verdict})) for agent, epoch, verdict in agents]


def test_a_suspect_agent_that_did_something_is_running_again() -> None:
    request = HeartbeatRequest(3, (("a", 1, 4_000), ("b", 1, 4_000)))
    played = play(heartbeat.run([request], NOW), suspects(("a", 1, "stuck"), ("b", 2, "stuck"), ("c", 1, "stuck")))
    # b has another epoch by now, and c made no call.
    assert played.written("agent_recover") == [(NOW.awake, NOW.wall, "a")]
    assert events_of(played) == [("agent_recovered", "a")]


def test_a_heartbeat_clears_agents_that_were_suspect_for_their_process() -> None:
    answers = suspects(("a", 1, "stalled"), ("b", 1, "unreachable"), ("c", 1, "stuck"))
    played = play(heartbeat.run([HeartbeatRequest(3, ())], NOW), answers)
    assert [row[2] for row in played.written("agent_recover")] == ["a", "b"]


def test_a_process_marked_dead_is_live_again_after_a_heartbeat() -> None:
    played = play(heartbeat.run([HeartbeatRequest(3, ())], NOW), ("process_revive", [(3,)]))
    assert played.outcomes == [True]
    assert played.written("process_revive") == [(NOW.awake, 3)]
    assert events_of(played) == [("process_back", "3")]


@pytest.mark.parametrize(("dead", "status", "process"), [(False, "stopped", "ended"), (True, "failed", "dead")])
def test_a_process_that_leaves_stops_its_agents_and_a_dead_one_fails_them(
    dead: bool, status: str, process: str
) -> None:
    answers: list[Answer] = [
        ("process_end", [ended(3)]),
        ("agent_of_processes", [silence("a"), silence("b", busy_until=48_000, progress=40)]),
        ("message_held_by", [held(1)]),
        ALIVE,
        ("agent_parents", []) if dead else ("subscription_delete", []),
        TOPOLOGY,
    ]
    played = play(leave.run([LeaveRequest((3,), dead, "why")], NOW), *answers)
    assert played.outcomes == [["a", "b"]]
    assert played.written("process_end") == [(process, NOW.wall, [3])]
    found = {
        agent: (*values, evidence and decode(evidence)) for *values, evidence, agent in played.written("agent_end")
    }
    known = {"verdict": "dead", "process": 3, "pid": 41, "alive": False, "beat_age": 10.0, "call_age": 20.0}
    assert found == {
        "a": (status, "why", NOW.wall, {**known, "progress": 0} if dead else None),
        "b": (status, "why", NOW.wall, {**known, "busy_age": 2.0, "progress": 40} if dead else None),
    }
    assert played.ids("message_release") == [1]
    assert played.written("listener_clear") == [([3],)]
    assert played.written("counter_take") == [("topology", 1)]
    assert (("process_dead", "3") in events_of(played)) is dead


def test_a_process_that_is_already_marked_dead_is_left_alone() -> None:
    answers: list[Answer] = [("process_end", []), ("agent_of_processes", []), TOPOLOGY]
    played = play(leave.run([LeaveRequest((3,), True, "why")], NOW), *answers)
    assert played.outcomes == [[]]
    assert played.parameters("agent_of_processes") == ([],)
    assert played.written("agent_end") == []
    assert events_of(played) == []


def test_a_dead_process_records_an_event_with_the_reason() -> None:
    answers: list[Answer] = [("process_end", [ended(3)]), ("agent_of_processes", []), TOPOLOGY]
    played = play(leave.run([LeaveRequest((3,), True, "its process died")], NOW), *answers)
    ((*_, facts),) = played.written("event_insert")
    evidence = {"verdict": "dead", "process": 3, "pid": 41, "alive": False, "beat_age": 10.0}
    assert decode(facts) == {"reason": "its process died", "evidence": evidence}


def test_a_watched_process_without_agents_ends_without_an_event() -> None:
    answers: list[Answer] = [("process_end", [ended(3, "ended")]), ("agent_of_processes", []), TOPOLOGY]
    played = play(leave.run([LeaveRequest((3,), True, "its process died")], NOW), *answers)
    assert events_of(played) == []


def test_a_process_that_begins_to_listen_changes_the_topology_once() -> None:
    requests = [ListenRequest(3, "events", True), ListenRequest(3, "state/a", True), ListenRequest(3, "events", True)]
    played = play(listen.run(requests, NOW), TOPOLOGY)
    assert played.outcomes == [None] * 3
    assert played.written("listener_insert") == [("events", 3), ("state/a", 3)]
    assert played.wrote == ["listener_insert", "counter_take"]


def test_a_process_that_ceases_to_listen_changes_the_topology_too() -> None:
    played = play(listen.run([ListenRequest(3, "events", False)], NOW), TOPOLOGY)
    assert played.written("listener_delete") == [("events", 3)]
    assert played.wrote == ["listener_delete", "counter_take"]


@pytest.mark.parametrize("last", [True, False])
def test_of_several_listen_requests_of_a_process_the_last_counts(last: bool) -> None:
    requests = [ListenRequest(3, "events", not last), ListenRequest(3, "events", last)]
    played = play(listen.run(requests, NOW), TOPOLOGY)
    assert played.written("listener_insert" if last else "listener_delete") == [("events", 3)]
    assert len(played.wrote) == 2


def test_listen_requests_of_processes_are_independent() -> None:
    requests = [ListenRequest(3, "events", True), ListenRequest(4, "events", False)]
    played = play(listen.run(requests, NOW), TOPOLOGY, TOPOLOGY)
    assert played.written("listener_insert") == [("events", 3)]
    assert played.written("listener_delete") == [("events", 4)]
