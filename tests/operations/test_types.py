"""Definitions of types, and the schema that a send was validated against."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from agentbus.core.addresses import Address
from agentbus.core.codec import decode, encode
from agentbus.errors import BuiltInType
from agentbus.operations.events import CHANNEL
from agentbus.operations.rows import Draft
from agentbus.operations.send import Receipt, SendRequest, send
from agentbus.operations.types import DefineRequest, Unchecked, define, list_types
from agentbus.records import TypeRecord
from tests.operations.script import ALIVE, NOW, A, Answer, Played, play

WHOLE = '{"type":"integer"}'
TEXT = '{"type":"string"}'


def known(builtin: int = 0, description: str = "", schema: str | None = None) -> Answer:
    return "type_get", [(builtin, description, schema)]


def events_of(played: Played[Any]) -> list[tuple[str, str, str | None, dict[str, Any]]]:
    """The events: kind, subject, actor, facts."""
    return [
        (kind, f"{subject_kind}:{subject}", actor, decode(facts))
        for _, kind, subject_kind, subject, actor, facts in played.written("event_insert")
    ]


def test_a_new_type_is_defined_and_records_an_event() -> None:
    played = play(define.run([DefineRequest("message", "deploy", "please deploy")], NOW), ("type_get", []))
    assert played.outcomes == [None]
    assert played.written("type_define") == [("message", "deploy", "please deploy", None, NOW.wall)]
    assert events_of(played) == [("type_defined", "vocabulary:message/deploy", None, {"schema": False})]
    assert played.woken == [CHANNEL]


def test_a_definition_by_first_use_names_its_agent() -> None:
    request = DefineRequest("message", "plan", schema=WHOLE, by="a")
    played = play(define.run([request], NOW), ("type_get", []))
    assert played.written("type_define") == [("message", "plan", "", WHOLE, NOW.wall)]
    assert events_of(played) == [("type_defined", "vocabulary:message/plan", "a", {"schema": True})]


@pytest.mark.parametrize(
    ("description", "schema", "row", "changed"),
    [
        ("new", None, ("new", WHOLE), ["description"]),
        ("", TEXT, ("old", TEXT), ["schema"]),
        ("new", TEXT, ("new", TEXT), ["description", "schema"]),
    ],
)
def test_a_change_is_written_and_records_an_event(
    description: str, schema: str | None, row: tuple[str, str], changed: list[str]
) -> None:
    request = DefineRequest("message", "plan", description, schema)
    played = play(define.run([request], NOW), known(0, "old", WHOLE))
    assert played.written("type_define") == [("message", "plan", *row, NOW.wall)]
    assert events_of(played) == [("type_changed", "vocabulary:message/plan", None, {"changed": changed})]


@pytest.mark.parametrize(("description", "schema"), [("", None), ("old", None), ("", WHOLE), ("old", WHOLE)])
def test_an_identical_definition_is_not_written_again(description: str, schema: str | None) -> None:
    request = DefineRequest("message", "plan", description, schema)
    played = play(define.run([request], NOW), known(0, "old", WHOLE))
    assert played.outcomes == [None]
    assert played.wrote == []
    assert played.woken == []


def test_a_built_in_type_stays_as_it_is() -> None:
    same = [DefineRequest("agent", "worker"), DefineRequest("agent", "worker", "does work")]
    other = [DefineRequest("agent", "worker", "works"), DefineRequest("agent", "worker", schema=WHOLE)]
    played = play(define.run([*same, *other], NOW), *[known(1, "does work")] * 4)
    assert played.outcomes[:2] == [None, None]
    for error in played.outcomes[2:]:
        assert isinstance(error, BuiltInType)
        assert (error.kind, error.name) == ("agent", "worker")
    assert played.wrote == []


def test_each_definition_of_a_batch_is_made() -> None:
    requests = [DefineRequest("agent", "cook"), DefineRequest("message", "cook")]
    played = play(define.run(requests, NOW), ("type_get", []), ("type_get", []))
    assert [values[:2] for values in played.written("type_define")] == [("agent", "cook"), ("message", "cook")]


def test_the_vocabulary_is_read_with_its_schemas() -> None:
    rows = [("message", "note", 1, "anything", None, 0), ("message", "plan", 0, "", WHOLE, 7)]
    played = play(list_types("message", NOW), ("type_list", rows))
    assert played.parameters("type_list") == ("message",)
    assert played.outcomes == [
        TypeRecord("message", "note", True, "anything", None, 0),
        TypeRecord("message", "plan", False, "", {"type": "integer"}, 7),
    ]


# What a schema does to a send


def drafts(*payloads: Any, fits: str | None = None, message_id: str | None = None) -> tuple[Draft, ...]:
    to = Address("agent", "b")
    return tuple(Draft(to, "plan", encode(one, 1000), 5, 5, message_id=message_id, fits=fits) for one in payloads)


def sent(request: SendRequest, schema: str | None, *answers: Answer) -> Played[Any]:
    return play(send.run([request], NOW), ALIVE, ("type_known", [("plan", schema)]), *answers)


def test_what_was_checked_against_this_very_schema_is_sent() -> None:
    # A wrong claim: the payload does not fit. It shows that the payload is not checked again.
    played = sent(SendRequest(A, drafts(12, "twelve", fits=WHOLE)), WHOLE, ("counter_take", [(2,)]))
    assert played.outcomes == [[Receipt(1, "m-1"), Receipt(2, "m-2")]]


@pytest.mark.parametrize("fits", [None, TEXT])
def test_an_unchecked_request_is_returned_with_the_schema(fits: str | None) -> None:
    checked, other = drafts(1, fits=WHOLE), drafts(2, fits=fits)
    played = sent(SendRequest(A, checked + other), WHOLE)
    (error,) = played.outcomes
    assert isinstance(error, Unchecked)
    assert (error.type, error.item, error.schemas) == ("plan", 1, {"plan": WHOLE})
    assert played.wrote == []


def test_all_schemas_of_a_request_are_returned_at_once() -> None:
    types = ("plan", "free", "shape")
    request = SendRequest(A, tuple(msgspec.structs.replace(*drafts(1), type=type) for type in types))
    known_types: Answer = ("type_known", [("plan", WHOLE), ("free", None), ("shape", TEXT)])
    (error,) = play(send.run([request], NOW), ALIVE, known_types).outcomes
    assert isinstance(error, Unchecked)
    assert error.schemas == {"plan": WHOLE, "shape": TEXT}


def test_a_request_that_is_returned_does_not_affect_others() -> None:
    requests = [SendRequest(A, drafts(n, fits=None if n == 2 else WHOLE)) for n in (1, 2, 3)]
    played = play(send.run(requests, NOW), ALIVE, ("type_known", [("plan", WHOLE)]), ("counter_take", [(2,)]))
    first, second, third = played.outcomes
    assert (first, third) == ([Receipt(1, "m-1")], [Receipt(2, "m-2")])
    assert isinstance(second, Unchecked)
    assert len(played.written("message_insert")) == 2


def test_what_was_sent_before_is_not_held_to_a_schema_that_came_later() -> None:
    request = SendRequest(A, drafts("twelve", message_id="mine"))
    before: Answer = ("message_by_message_id", [("mine", 7, 20, "plan", '"twelve"', None, None)])
    played = sent(request, WHOLE, before, ("counter_take", [(7,)]))
    assert played.outcomes == [[Receipt(7, "mine", 1, duplicate=True)]]
