"""How long writers waited lately: noted by the minute, and forgotten after ten."""

from __future__ import annotations

from agentbus.operations.outgrowing import Crowd, note_waits, read_crowd
from agentbus.operations.processes import BeatRequest, beat
from tests.operations.script import NOW, play

MINUTE = NOW.wall // 60_000


def test_a_wait_is_added_to_its_minute() -> None:
    played = play(note_waits(70, NOW), ("meta_get", []))
    assert played.written("meta_set") == [("lock_waits", f'{{"{MINUTE}":70}}')]
    played = play(note_waits(70, NOW), ("meta_get", [(f'{{"{MINUTE}":30,"{MINUTE - 1}":5,"{MINUTE - 10}":9}}',)]))
    assert played.written("meta_set") == [("lock_waits", f'{{"{MINUTE}":100,"{MINUTE - 1}":5}}')]


def test_what_is_old_or_from_the_future_does_not_count() -> None:
    stored = f'{{"{MINUTE + 1}":60000,"{MINUTE}":2000,"{MINUTE - 9}":4000,"{MINUTE - 10}":60000}}'
    played = play(read_crowd(None, NOW), ("meta_get", [(stored,)]), ("process_writers", [(3,)]))
    assert played.outcomes == Crowd(waits=0.6, writers=3)


def test_what_somebody_else_wrote_there_is_ignored() -> None:
    played = play(read_crowd(None, NOW), ("meta_get", [("nonsense",)]), ("process_writers", [(1,)]))
    assert played.outcomes == Crowd(waits=0, writers=1)


def test_a_beat_notes_what_its_process_waited_and_nothing_else() -> None:
    played = play(beat.run([BeatRequest(3, (), 20), BeatRequest(4, (), 30)], NOW), ("meta_get", []))
    assert played.written("meta_set") == [("lock_waits", f'{{"{MINUTE}":50}}')]
    assert "meta_set" not in play(beat.run([BeatRequest(3, ())], NOW)).wrote
