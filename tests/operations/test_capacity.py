"""Lock waits of writers: recorded by the minute, and dropped after ten."""

from __future__ import annotations

from agentbus.operations.capacity import WriterLoad, read_writer_load, record_lock_waits
from agentbus.operations.processes import HeartbeatRequest, heartbeat
from tests.operations.script import NOW, play

MINUTE = NOW.wall // 60_000


def test_a_wait_is_added_to_its_minute() -> None:
    played = play(record_lock_waits(70, NOW), ("meta_get", []))
    assert played.written("meta_set") == [("lock_waits", f'{{"{MINUTE}":70}}')]
    played = play(
        record_lock_waits(70, NOW), ("meta_get", [(f'{{"{MINUTE}":30,"{MINUTE - 1}":5,"{MINUTE - 10}":9}}',)])
    )
    assert played.written("meta_set") == [("lock_waits", f'{{"{MINUTE}":100,"{MINUTE - 1}":5}}')]


def test_what_is_old_or_from_the_future_does_not_count() -> None:
    stored = f'{{"{MINUTE + 1}":60000,"{MINUTE}":2000,"{MINUTE - 9}":4000,"{MINUTE - 10}":60000}}'
    played = play(read_writer_load(None, NOW), ("meta_get", [(stored,)]), ("process_writers", [(3,)]))
    assert played.outcomes == WriterLoad(waits=0.6, writers=3)


def test_a_foreign_value_is_ignored() -> None:
    played = play(read_writer_load(None, NOW), ("meta_get", [("nonsense",)]), ("process_writers", [(1,)]))
    assert played.outcomes == WriterLoad(waits=0, writers=1)


def test_a_heartbeat_records_the_lock_waits_of_its_process_only() -> None:
    played = play(heartbeat.run([HeartbeatRequest(3, (), 20), HeartbeatRequest(4, (), 30)], NOW), ("meta_get", []))
    assert played.written("meta_set") == [("lock_waits", f'{{"{MINUTE}":50}}')]
    assert "meta_set" not in play(heartbeat.run([HeartbeatRequest(3, ())], NOW)).wrote
