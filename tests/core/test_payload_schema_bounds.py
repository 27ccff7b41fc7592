"""No schema and no value makes a check slow or exhausts the stack."""

from __future__ import annotations

import time
from typing import Any

import pytest

from agentbus.core.jsonschema import compiled, schema_text, validator
from agentbus.errors import InvalidSchema
from tests.support.validation import matches, violation

TWICE = {"anyOf": [{"properties": {"x": {"$ref": "#"}}, "maxProperties": 1}, {"properties": {"x": {"$ref": "#"}}}]}
UNEVALUATED = {"allOf": [{"properties": {"x": {"$ref": "#"}}}] * 2, "unevaluatedProperties": {"$ref": "#"}}


def chain(depth: int, end: Any) -> Any:
    for _ in range(depth):
        end = {"x": end}
    return end


@pytest.mark.parametrize(
    ("schema", "value"),
    [({**TWICE, "type": "object"}, chain(100, 1)), ({**UNEVALUATED, "type": "object"}, chain(100, {}))],
    ids=["alternatives", "unevaluated"],
)
def test_a_check_without_other_end_is_ended_by_its_budget(
    schema: dict[str, Any], value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A tenth of the steps in a tenth of the 20 s that a check may take.
    monkeypatch.setattr(validator, "MAX_WORK", validator.MAX_WORK // 10)
    started = time.process_time()
    problem = violation(schema, value)
    assert problem is not None
    assert "work" in problem[1]
    assert time.process_time() - started < 2, "a check must be bounded"


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"patternProperties": {"^(a+)+$": True}, "additionalProperties": False}, {"a" * 60 + "b": 1}),
        ({"pattern": "^(a+)+$"}, "a" * 60 + "b"),
        ({"pattern": "^(a|a)*$"}, "a" * 60 + "b"),
        ({"pattern": "(x+x+)+y"}, "x" * 100_000),
        ({"pattern": ".*.*.*.*.*.*=.*"}, "x" * 100_000),
        ({"pattern": "[ab]*a[ab]{12}x"}, "abbabaaab" * 50_000),
        # A function: collecting the tests builds no list of this size.
        (
            {"uniqueItems": True, "items": {"uniqueItems": True, "minItems": 1}},
            lambda: [[n, n] for n in range(100_000)],
        ),
    ],
    ids=[
        "names",
        "nested repeats",
        "same branches",
        "neighbours",
        "dots",
        "many states",
        "large",
    ],
)
def test_a_check_is_bounded_for_every_schema_and_value(schema: dict[str, Any], value: Any) -> None:
    if callable(value):
        value = value()
    # The time of the processor: other work on the machine does not count.
    started = time.process_time()
    assert violation(schema, value) is not None
    assert time.process_time() - started < 20, "a check must be bounded"


def test_the_largest_payload_of_small_parts_is_not_too_much() -> None:
    assert matches({"items": {"type": "integer"}}, [1] * 524_000)


def test_compiling_references_takes_bounded_time() -> None:
    # Each refers twice to the next: 2 to the power of 60 ways.
    schema = {"$defs": {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(60)} | {"d60": True}}
    assert matches(schema, 1)
    longer = {"$defs": {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(99)} | {"d99": True}}
    with pytest.raises(InvalidSchema, match="references follow each other"):
        schema_text(longer, "example")


def test_the_patterns_of_a_schema_are_bounded_together() -> None:
    patterns = {f"(a{{9}}){{99}}{number}": True for number in range(2000)}
    with pytest.raises(InvalidSchema, match="patterns of the schema"):
        schema_text({"patternProperties": patterns}, "example")
    plain = {f"^[a-z]{{1,64}}_{number}$": True for number in range(200)}
    assert matches({"patternProperties": plain}, {"a_1": 1})


def test_a_recursive_schema_reads_the_deepest_payload_there_is() -> None:
    tree = {
        "type": ["object", "null"],
        "properties": {"below": {"items": {"anyOf": [{"$ref": "#"}, {"type": "string"}]}}},
    }
    value: Any = None
    for _ in range(63):
        value = {"below": [value]}
    assert matches(tree, value)
    below = violation(tree, {"below": [1]})
    assert below is not None


def test_a_check_deeper_than_the_stack_is_refused_by_name() -> None:
    steps = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}]} for n in range(20)}
    schema = {"$defs": {**steps, "d20": {"properties": {"x": {"$ref": "#/$defs/d0"}}}}, "$ref": "#/$defs/d0"}
    assert matches(schema, chain(5, 1))
    assert violation(schema, chain(120, 1)) == ("$", "is nested too deep for its schema")


def test_names_that_are_required_count_as_work() -> None:
    names = [f"{number:x}" for number in range(4000)]
    doubled = {f"d{level}": {"anyOf": [{"$ref": f"#/$defs/d{level + 1}"}] * 2} for level in range(12)}
    schema = {"$defs": {**doubled, "d12": {"required": names}}, "$ref": "#/$defs/d0"}
    problem = compiled(schema_text(schema, "example")).violation(dict.fromkeys(names[:-1], 1))
    assert problem is not None
    assert "work" in str(problem)
