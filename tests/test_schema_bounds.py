"""No schema takes long, whatever the value is, and none goes too deep."""

from __future__ import annotations

import time
from typing import Any

import pytest

from agentbus.errors import InvalidSchema
from agentbus.schema import compiled, schema_text
from tests.support.validation import fits, problem

TWICE = {"anyOf": [{"properties": {"x": {"$ref": "#"}}, "maxProperties": 1}, {"properties": {"x": {"$ref": "#"}}}]}


def chain(depth: int, end: Any) -> Any:
    for _ in range(depth):
        end = {"x": end}
    return end


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({**TWICE, "type": "object"}, chain(100, 1)),
        ({"pattern": "^(a+)+$"}, "a" * 60 + "b"),
        ({"pattern": "^(a|a)*$"}, "a" * 60 + "b"),
        ({"pattern": "(x+x+)+y"}, "x" * 100_000),
        ({"pattern": ".*.*.*.*.*.*=.*"}, "x" * 100_000),
        ({"pattern": "[ab]*a[ab]{12}x"}, "abbabaaab" * 50_000),
        ({"uniqueItems": True, "items": {"uniqueItems": True, "minItems": 1}}, [[n, n] for n in range(100_000)]),
    ],
    ids=["alternatives", "nested repeats", "same branches", "neighbours", "dots", "many states", "large"],
)
def test_a_verdict_comes_soon_whatever_the_schema_and_the_value_are(schema: dict[str, Any], value: Any) -> None:
    begun = time.perf_counter()
    assert problem(schema, value) is not None
    assert time.perf_counter() - begun < 10, "it would take for ever, not seconds"


def test_the_largest_payload_of_small_parts_is_not_too_much() -> None:
    assert fits({"items": {"type": "integer"}}, [1] * 524_000)


def test_compiling_takes_no_long_way_through_references() -> None:
    # Each refers twice to the next: 2 to the power of 60 ways.
    schema = {"$defs": {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(60)} | {"d60": True}}
    assert fits(schema, 1)
    longer = {"$defs": {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(99)} | {"d99": True}}
    with pytest.raises(InvalidSchema, match="references follow each other"):
        schema_text(longer, "example")


def test_a_recursive_schema_reads_the_deepest_payload_there_is() -> None:
    tree = {
        "type": ["object", "null"],
        "properties": {"below": {"items": {"anyOf": [{"$ref": "#"}, {"type": "string"}]}}},
    }
    value: Any = None
    for _ in range(63):
        value = {"below": [value]}
    assert fits(tree, value)
    below = problem(tree, {"below": [1]})
    assert below is not None


def test_a_schema_that_goes_deeper_than_python_does_is_refused_by_name() -> None:
    steps = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}]} for n in range(20)}
    schema = {"$defs": {**steps, "d20": {"properties": {"x": {"$ref": "#/$defs/d0"}}}}, "$ref": "#/$defs/d0"}
    assert fits(schema, chain(5, 1))
    assert problem(schema, chain(120, 1)) == ("$", "is nested too deep for its schema")


def test_names_that_are_required_count_as_work() -> None:
    names = [f"{number:x}" for number in range(4000)]
    doubled = {f"d{level}": {"anyOf": [{"$ref": f"#/$defs/d{level + 1}"}] * 2} for level in range(12)}
    schema = {"$defs": {**doubled, "d12": {"required": names}}, "$ref": "#/$defs/d0"}
    problem = compiled(schema_text(schema, "example")).problem(dict.fromkeys(names[:-1], 1))
    assert problem is not None
    assert "work" in str(problem)
