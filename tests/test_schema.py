"""The validator of ours: reasons that can be read, and named refusals of schemas."""

from __future__ import annotations

from typing import Any

import pytest

from agentbus.errors import InvalidSchema
from agentbus.schema import MAX_SCHEMA, compiled, schema_text
from agentbus.schema.compiling import MAX_NESTING, SAID
from agentbus.schema.keywords import KEYWORDS
from agentbus.schema.patterns import MAX_PATTERN
from tests.support.validation import fits, problem

# Reasons


@pytest.mark.parametrize(
    ("schema", "value", "path", "reason"),
    [
        ({"type": "integer"}, "twelve", "$", "must be an integer, is a string"),
        ({"type": ["string", "null"]}, 1, "$", "must be a string or null, is an integer"),
        ({"properties": {"a": {"items": {"type": "null"}}}}, {"a": [None, 1]}, "$.a[1]", "must be null, is an integer"),
        (
            {"properties": {"odd key": {"type": "null"}}},
            {"odd key": True},
            '$["odd key"]',
            "must be null, is a boolean",
        ),
        ({"required": ["a", "b"]}, {"a": 1}, "$", "must have 'b'"),
        ({"additionalProperties": False}, {"a": 1}, "$", "must not have 'a'"),
        ({"additionalProperties": {"type": "null"}}, {"a": 1}, "$.a", "must be null, is an integer"),
        ({"propertyNames": {"maxLength": 1}}, {"ab": 1}, "$", "has a key that must have at most 1 characters, has 2"),
        ({"prefixItems": [{}, {"const": 2}]}, [1, 3], "$[1]", "must be 2"),
        ({"prefixItems": [{}], "items": {"type": "null"}}, [1, 2], "$[1]", "must be null, is an integer"),
        ({"enum": ["a", 1]}, "b", "$", 'must be one of "a", 1'),
        ({"minimum": 3}, 2, "$", "must be at least 3"),
        ({"exclusiveMaximum": 3}, 3, "$", "must be below 3"),
        ({"multipleOf": 0.1}, 0.25, "$", "must be a multiple of 0.1"),
        ({"minItems": 2}, [1], "$", "must have at least 2 items, has 1"),
        ({"pattern": "^a"}, "b", "$", "must match ^a"),
        ({"uniqueItems": True}, [1, 1], "$", "has an item twice"),
        ({"not": {"type": "null"}}, None, "$", "is what it must not be"),
        ({"oneOf": [{}, {"type": "integer"}]}, 1, "$", "fits 2 of the alternatives, must fit one"),
        ({"properties": {"a": False}}, {"a": 1}, "$.a", "must not be there"),
    ],
)
def test_what_does_not_fit_is_told_where_and_why(schema: dict[str, Any], value: Any, path: str, reason: str) -> None:
    assert problem(schema, value) == (path, reason)


def test_of_alternatives_the_one_that_came_furthest_is_told() -> None:
    schema = {"anyOf": [{"type": "null"}, {"properties": {"a": {"properties": {"b": {"type": "null"}}}}}]}
    assert problem(schema, {"a": {"b": 1}}) == ("$.a.b", "must be null, is an integer")
    both = problem({"anyOf": [{"type": "null"}, {"type": "string"}]}, 1)
    assert both == ("$", "fits none of 2 alternatives: must be null, is an integer; must be a string, is an integer")


def test_a_reason_never_tells_the_value_and_never_gets_long() -> None:
    secret = "s3cret" * 1000
    for schema in ({"type": "null"}, {"enum": list(range(999))}, {"pattern": "^a"}, {"maxLength": 3}, {"const": 1}):
        found = problem(schema, secret)
        assert found is not None
        assert "s3cret" not in found[1]
        assert len(found[1]) < 300
    deep: Any = 1
    for _ in range(100):
        deep = {secret: deep}
    place, _ = problem({"additionalProperties": {"$ref": "#"}, "type": "object"}, deep) or ("", "")
    assert len(place) < 1200


def test_multiples_are_decimal() -> None:
    assert all(fits({"multipleOf": 0.1}, value) for value in (0.3, 0.7, 1, 1e300, 0, -0.2))
    assert not any(fits({"multipleOf": 0.1}, value) for value in (0.25, 1e-300))
    assert fits({"multipleOf": 1e-300}, 1e300)
    assert [value for value in range(-3, 10) if fits({"multipleOf": 3}, value)] == [-3, 0, 3, 6, 9]
    assert not fits({"multipleOf": 3}, 1e300)


# Schemas that are refused


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(depth):
        schema = {"items": schema, "type": "array"}
    return schema


@pytest.mark.parametrize(
    ("schema", "path", "words"),
    [
        ({"minLenght": 3}, "#", "the keyword 'minLenght' is not known; did you mean minLength?"),
        ({"properties": {"a": {"patternProperties": {}}}}, "#/properties/a", "'patternProperties' is not known"),
        ({"if": {}, "then": {}}, "#", "'if' is not known"),
        ({"unevaluatedProperties": False}, "#", "not known"),
        ({"definitions": {}}, "#", "not known"),
        ({"type": "int"}, "#/type", "no type 'int'"),
        ({"type": []}, "#/type", "name of a type"),
        ({"type": ["null", "null"]}, "#/type", "twice"),
        ({"properties": []}, "#/properties", "object of schemas"),
        ({"items": [{}]}, "#/items", "must be an object, true or false"),
        ({"anyOf": []}, "#/anyOf", "list of schemas"),
        ({"allOf": [{}, {"oneOf": {}}]}, "#/allOf/1/oneOf", "list of schemas"),
        ({"required": "a"}, "#/required", "list of names"),
        ({"required": ["a", "a"]}, "#/required", "twice"),
        ({"minimum": "1"}, "#/minimum", "a number"),
        ({"minimum": True}, "#/minimum", "a number"),
        ({"minLength": -1}, "#/minLength", "whole number"),
        ({"maxItems": 1.5}, "#/maxItems", "whole number"),
        ({"multipleOf": 0}, "#/multipleOf", "above 0"),
        ({"uniqueItems": 1}, "#/uniqueItems", "true or false"),
        ({"enum": []}, "#/enum", "list of values"),
        ({"pattern": "("}, "#/pattern", "cannot be read"),
        ({"pattern": 1}, "#/pattern", "regular expression"),
        ({"pattern": "(?=a)"}, "#/pattern", "may not have assert"),
        ({"pattern": r"(a)\1"}, "#/pattern", "may not have groupref"),
        ({"pattern": "(?i)a"}, "#/pattern", "no flags"),
        ({"pattern": "(?i:a)"}, "#/pattern", "no flags"),
        ({"pattern": "a" * (MAX_PATTERN + 1)}, "#/pattern", f"{MAX_PATTERN} characters"),
        ({"pattern": "(a{50}){50}"}, "#/pattern", "too large"),
        ({"pattern": "((){900}){900}"}, "#/pattern", "too often"),
        ({"pattern": "a{2,99999999999}"}, "#/pattern", "cannot be read"),
        ({"$ref": "#"}, "#/$ref", "refers to itself"),
        ({"anyOf": [{}, {"not": {"$ref": "#"}}]}, "#/anyOf/1/not/$ref", "refers to itself"),
        ({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"allOf": [{"$ref": "#/$defs/a"}]}}}, None, "refers to itself"),
        ({"$ref": "#/$defs/none"}, "#/$ref", "is not there"),
        ({"$ref": "#/properties/a", "properties": {"a": {}}}, "#/$ref", "is not there"),
        ({"$ref": "#/$defs/a/items", "$defs": {"a": {"items": {}}}}, "#/$ref", "is not there"),
        ({"$ref": "https://example.org/plan"}, "#/$ref", "is not there"),
        ({"$ref": 1}, "#/$ref", "a text"),
        ({"$defs": []}, "#/$defs", "object of schemas"),
        ({"$defs": None}, "#/$defs", "object of schemas"),
        ({"$schema": None}, "#/$schema", "2020-12"),
        ({"$id": None}, "#/$id", "a text"),
        ({"$defs": {"a": 1}}, "#/$defs/a", "must be an object"),
        ({"$defs": {"a": {"type": "int"}}}, "#/$defs/a/type", "no type 'int'"),
        ({"items": {"$defs": {}}}, "#/items/$defs", "only be at the top"),
        ({"$schema": "http://json-schema.org/draft-07/schema#"}, "#/$schema", "2020-12"),
        ({"$id": 1}, "#/$id", "a text"),
        ({"title": 1}, "#/title", "not what this keyword takes"),
        ({"examples": {}}, "#/examples", "not what this keyword takes"),
        (nested(MAX_NESTING + 2), None, "nested more than"),
        ({"const": nested(200)}, "#", "nested more than 128 deep"),
        ({"description": "x" * MAX_SCHEMA}, "#", "bytes"),
        ({"const": float("nan")}, "#", "not a finite number"),
        ({1: 2}, "#", "not a text"),
        ({"title": "\ud800"}, "#", "Unicode"),
        ([], "#", "must be a dict"),
        ("{}", "#", "must be a dict"),
        (True, "#", "must be a dict"),
    ],
    ids=lambda part: str(part)[:40],
)
def test_a_schema_that_cannot_be_used_is_refused(schema: Any, path: str | None, words: str) -> None:
    with pytest.raises(InvalidSchema) as refused:
        schema_text(schema, "example")
    assert refused.value.type == "example"
    assert words in refused.value.reason
    if path is not None:
        assert refused.value.path == path


def test_what_is_only_said_is_taken() -> None:
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "urn:x", "title": "t", "x-own": {"any": 1},
        "description": "d", "default": 1, "examples": [1], "deprecated": True, "readOnly": False, "writeOnly": False,
        "format": "date-time", "contentEncoding": "base64", "contentMediaType": "text/plain", "contentSchema": {},
        "discriminator": {"propertyName": "type"}, "$comment": "c",
    }  # fmt: skip
    assert set(SAID) < set(schema)
    assert fits(schema, {"anything": 1})


def test_the_documentation_names_every_keyword() -> None:
    import agentbus.schema

    words = set((agentbus.schema.__doc__ or "").replace("(", " ").replace(",", " ").split())
    assert set(KEYWORDS) | set(SAID) | {"$ref", "$defs", "$schema", "$id"} <= words


@pytest.mark.parametrize("reference", ["#/$defs/a~1b~0c", "#/$defs/a%2Fb~0c", "#/$defs/odd%20name"])
def test_references_may_be_escaped(reference: str) -> None:
    schema = {"$defs": {"a/b~c": {"type": "null"}, "odd name": {"type": "null"}}, "items": {"$ref": reference}}
    if "%2F" in reference:
        with pytest.raises(InvalidSchema):
            schema_text(schema, "example")
        return
    assert fits(schema, [None])
    assert not fits(schema, [1])


def test_the_same_schema_is_the_same_text_and_compiled_once() -> None:
    first = schema_text({"type": "object", "required": ["a"]}, "example")
    second = schema_text({"required": ["a"], "type": "object"}, "other")
    assert first == second
    assert compiled(first) is compiled(second)
    size = compiled.cache_parameters()["maxsize"]
    assert size is not None
    assert size <= 1000
