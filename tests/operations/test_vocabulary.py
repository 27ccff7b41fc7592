"""The vocabulary grows by definition; what is known already is not news."""

from __future__ import annotations

from agentbus.operations.vocabulary import DefineRequest, define
from tests.operations.script import NOW, play


def test_a_new_type_is_defined_and_is_in_the_trail() -> None:
    played = play(define.run([DefineRequest("message", "deploy", "please deploy")], NOW), ("type_known", []))
    assert played.outcomes == [None]
    assert played.written("type_define") == [("message", "deploy", "please deploy", NOW.wall)]
    ((at, kind, subject_kind, subject, *_),) = played.written("event_insert")
    assert (at, kind, subject_kind, subject) == (NOW.wall, "type_defined", "vocabulary", "message/deploy")


def test_defining_a_known_type_again_only_changes_its_description() -> None:
    played = play(define.run([DefineRequest("agent", "worker", "works")], NOW), ("type_known", [("worker",)]))
    assert played.wrote == ["type_define"]


def test_each_definition_of_a_batch_is_made() -> None:
    requests = [DefineRequest("agent", "cook", ""), DefineRequest("message", "cook", "")]
    played = play(define.run(requests, NOW), ("type_known", []), ("type_known", []))
    assert [values[:2] for values in played.written("type_define")] == [("agent", "cook"), ("message", "cook")]
