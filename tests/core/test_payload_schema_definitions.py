"""Violations name the path and the reason; schemas that cannot be enforced are refused by name."""

from __future__ import annotations

from typing import Any

import pytest

import agentbus.core.jsonschema
from agentbus.core.jsonschema import compiled, schema_text
from agentbus.core.jsonschema.keywords import KEYWORDS
from agentbus.core.jsonschema.linear_regex import MAX_PATTERN
from agentbus.core.jsonschema.validator import ANNOTATIONS, MAX_NESTING, MAX_SCHEMA, STRUCTURE
from agentbus.errors import InvalidSchema
from tests.support.validation import matches, violation

# Reasons


VIOLATIONS: list[tuple[dict[str, Any], Any, str, str]] = [
    ({"type": "integer"}, "twelve", "$", "an integer, is a string"),
    ({"type": ["string", "null"]}, 1, "$", "a string or null, is an integer"),
    ({"properties": {"a": {"items": {"type": "null"}}}}, {"a": [None, 1]}, "$.a[1]", "null, is an integer"),
    ({"properties": {"odd key": {"type": "null"}}}, {"odd key": True}, '$["odd key"]', "null, is a boolean"),
    ({"required": ["a", "b"]}, {"a": 1}, "$", "'b'"),
    ({"dependentRequired": {"a": ["b"]}}, {"a": 1}, "$", "'b'"),
    ({"dependentSchemas": {"a": {"required": ["b"]}}}, {"a": 1}, "$", "'b'"),
    ({"additionalProperties": False}, {"a": 1}, "$", "'a'"),
    ({"additionalProperties": {"type": "null"}}, {"a": 1}, "$.a", "null, is an integer"),
    ({"patternProperties": {"^a": {"type": "null"}}}, {"ab": 1}, "$.ab", "null, is an integer"),
    ({"propertyNames": {"maxLength": 1}}, {"ab": 1}, "$", "has a key"),
    ({"unevaluatedProperties": False, "properties": {"a": True}}, {"a": 1, "b": 1}, "$.b", "not allowed"),
    ({"unevaluatedItems": {"type": "null"}, "prefixItems": [True]}, [1, 2], "$[1]", "null, is an integer"),
    ({"prefixItems": [{}, {"const": 2}]}, [1, 3], "$[1]", "must be 2"),
    ({"prefixItems": [{}], "items": {"type": "null"}}, [1, 2], "$[1]", "null, is an integer"),
    ({"prefixItems": [{}], "items": False}, [1, 2], "$", "at most 1 items, has 2"),
    ({"contains": {"type": "null"}, "minContains": 2}, [None, 1], "$", "at least 2 matching items, has 1"),
    ({"contains": {"type": "null"}, "maxContains": 1}, [None, None], "$", "at most 1 matching items, has 2"),
    ({"enum": ["a", 1]}, "b", "$", 'one of "a", 1'),
    ({"minimum": 3}, 2, "$", "at least 3"),
    ({"exclusiveMaximum": 3}, 3, "$", "below 3"),
    ({"multipleOf": 0.1}, 0.25, "$", "multiple of 0.1"),
    ({"minItems": 2}, [1], "$", "at least 2 items, has 1"),
    ({"pattern": "^a"}, "b", "$", "must match ^a"),
    ({"uniqueItems": True}, [1, 1], "$", "duplicate"),
    ({"not": {"type": "null"}}, None, "$", "must not"),
    ({"oneOf": [{}, {"type": "integer"}]}, 1, "$", "matches 2 alternatives"),
    ({"if": {"required": ["a"]}, "then": {"required": ["b"]}}, {"a": 1}, "$", "'b'"),
    ({"if": {"required": ["a"]}, "else": {"properties": {"c": False}}}, {"c": 1}, "$.c", "not allowed"),
]


def test_a_violation_has_its_path_and_reason() -> None:
    found = [(schema, path, words, violation(schema, value) or ("", "")) for schema, value, path, words in VIOLATIONS]
    assert [one for one in found if one[1] != one[3][0] or one[2] not in one[3][1]] == []


def test_of_alternatives_the_deepest_violation_is_reported() -> None:
    schema = {"anyOf": [{"type": "null"}, {"properties": {"a": {"properties": {"b": {"type": "null"}}}}}]}
    assert violation(schema, {"a": {"b": 1}}) == ("$.a.b", "must be null, is an integer")
    both = violation({"anyOf": [{"type": "null"}, {"type": "string"}]}, 1)
    assert both is not None
    assert both[0] == "$"
    assert "must be null" in both[1]
    assert "must be a string" in both[1]


def test_a_reason_never_contains_the_value_and_stays_short() -> None:
    secret = "s3cret" * 1000
    for schema in ({"type": "null"}, {"enum": list(range(999))}, {"pattern": "^a"}, {"maxLength": 3}, {"const": 1}):
        found = violation(schema, secret)
        assert found is not None
        assert "s3cret" not in found[1]
        assert len(found[1]) < 300
    deep: Any = 1
    for _ in range(100):
        deep = {secret: deep}
    place, _ = violation({"additionalProperties": {"$ref": "#"}, "type": "object"}, deep) or ("", "")
    assert len(place) < 1200


def test_multiples_are_decimal() -> None:
    assert all(matches({"multipleOf": 0.1}, value) for value in (0.3, 0.7, 1, 1e300, 0, -0.2))
    assert not any(matches({"multipleOf": 0.1}, value) for value in (0.25, 1e-300))
    assert matches({"multipleOf": 1e-300}, 1e300)
    assert [value for value in range(-3, 10) if matches({"multipleOf": 3}, value)] == [-3, 0, 3, 6, 9]
    assert not matches({"multipleOf": 3}, 1e300)


# Schemas that are refused


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(depth):
        schema = {"items": schema, "type": "array"}
    return schema


REFUSED: list[tuple[Any, str | None, str]] = [
    ({"minLenght": 3}, "#", "unknown keyword 'minLenght'; did you mean minLength?"),
    ({"properties": {"a": {"dependencies": {}}}}, "#/properties/a", "unknown keyword 'dependencies'"),
    ({"$dynamicRef": "#a"}, "#", "unknown keyword '$dynamicRef'"),
    ({"$vocabulary": {}}, "#", "unknown keyword '$vocabulary'"),
    ({"definitions": {}}, "#", "unknown keyword 'definitions'"),
    ({"type": "int"}, "#/type", "no type 'int'"),
    ({"type": []}, "#/type", "name of a type"),
    ({"type": ["null", "null"]}, "#/type", "duplicate"),
    ({"properties": []}, "#/properties", "object of schemas"),
    ({"items": [{}]}, "#/items", "must be an object, true or false"),
    ({"anyOf": []}, "#/anyOf", "list of schemas"),
    ({"allOf": [{}, {"oneOf": {}}]}, "#/allOf/1/oneOf", "list of schemas"),
    ({"required": "a"}, "#/required", "list of names"),
    ({"required": ["a", "a"]}, "#/required", "duplicate"),
    ({"minimum": "1"}, "#/minimum", "a number"),
    ({"minimum": True}, "#/minimum", "a number"),
    ({"minLength": -1}, "#/minLength", "non-negative integer"),
    ({"maxItems": 1.5}, "#/maxItems", "non-negative integer"),
    ({"multipleOf": 0}, "#/multipleOf", "above 0"),
    ({"uniqueItems": 1}, "#/uniqueItems", "true or false"),
    ({"enum": []}, "#/enum", "list of values"),
    ({"pattern": "("}, "#/pattern", "invalid pattern"),
    ({"pattern": 1}, "#/pattern", "regular expression"),
    ({"pattern": "(?=a)"}, "#/pattern", "assert is not supported"),
    ({"pattern": r"(a)\1"}, "#/pattern", "groupref is not supported"),
    ({"pattern": "(?i)a"}, "#/pattern", "flags are not supported"),
    ({"pattern": "(?i:a)"}, "#/pattern", "flags are not supported"),
    ({"pattern": "a" * (MAX_PATTERN + 1)}, "#/pattern", f"{MAX_PATTERN} characters"),
    ({"pattern": "(a{50}){50}"}, "#/pattern", "too large"),
    ({"pattern": "((){900}){900}"}, "#/pattern", "too many repeats"),
    ({"pattern": "a{2,99999999999}"}, "#/pattern", "invalid pattern"),
    ({"$ref": "#"}, "#/$ref", "refers to itself"),
    ({"anyOf": [{}, {"not": {"$ref": "#"}}]}, "#/anyOf/1/not/$ref", "refers to itself"),
    ({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"allOf": [{"$ref": "#/$defs/a"}]}}}, None, "refers to itself"),
    ({"$ref": "#/$defs/none"}, "#/$ref", "not a schema of this document"),
    ({"$ref": "#/const", "const": {}}, "#/$ref", "not a schema of this document"),
    ({"$ref": "#/else", "if": {}}, "#/$ref", "not a schema of this document"),
    ({"$ref": "#anchor"}, "#/$ref", "not a schema of this document"),
    ({"$ref": "https://example.org/plan"}, "#/$ref", "not a schema of this document"),
    ({"$ref": 1}, "#/$ref", "a string"),
    ({"$defs": []}, "#/$defs", "object of schemas"),
    ({"$defs": None}, "#/$defs", "object of schemas"),
    ({"$schema": None}, "#/$schema", "2020-12"),
    ({"$id": None}, "#/$id", "a string"),
    ({"$defs": {"a": 1}}, "#/$defs/a", "must be an object"),
    ({"$defs": {"a": {"type": "int"}}}, "#/$defs/a/type", "no type 'int'"),
    ({"items": {"$id": "urn:x"}}, "#/items/$id", "only at the root"),
    ({"$schema": "http://json-schema.org/draft-07/schema#"}, "#/$schema", "2020-12"),
    ({"$id": 1}, "#/$id", "a string"),
    ({"title": 1}, "#/title", "wrong type"),
    ({"examples": {}}, "#/examples", "wrong type"),
    (nested(MAX_NESTING + 2), None, "nested more than"),
    ({"const": nested(200)}, "#", "nested more than 128 deep"),
    ({"description": "x" * MAX_SCHEMA}, "#", "bytes"),
    ({"const": float("nan")}, "#", "not a finite number"),
    ({1: 2}, "#", "not a text"),
    ({"title": "\ud800"}, "#", "Unicode"),
    ([], "#", "must be a dict"),
    ("{}", "#", "must be a dict"),
    (True, "#", "must be a dict"),
    ({"dependentRequired": []}, "#/dependentRequired", "object of lists"),
    ({"dependentRequired": {"a": "b"}}, "#/dependentRequired", "list of names"),
    ({"dependentSchemas": []}, "#/dependentSchemas", "object of schemas"),
    ({"dependentSchemas": {"a": {"type": "int"}}}, "#/dependentSchemas/a/type", "no type 'int'"),
    ({"patternProperties": {"(": {}}}, "#/patternProperties/(", "invalid pattern"),
    ({"if": 1}, "#/if", "must be an object"),
    ({"if": {}, "then": 1}, "#/then", "must be an object"),
    ({"then": 1}, "#/then", "must be an object"),
    ({"minContains": -1}, "#/minContains", "non-negative"),
    ({"contains": {}, "maxContains": "1"}, "#/maxContains", "non-negative"),
    ({"$anchor": "1"}, "#/$anchor", "unique name"),
    ({"$anchor": "a", "items": {"$anchor": "a"}}, "#/items/$anchor", "unique name"),
    ({"if": {"$ref": "#"}}, "#/if/$ref", "refers to itself"),
    ({"dependentSchemas": {"a": {"$ref": "#"}}}, "#/dependentSchemas/a/$ref", "refers to itself"),
    ({"$anchor": "a", "not": {"$ref": "#a"}}, "#/not/$ref", "refers to itself"),
    ({"allOf": [{"$ref": "#/allOf/1"}, {"$ref": "#/allOf/0"}]}, None, "refers to itself"),
]


def test_a_schema_that_cannot_be_enforced_is_refused() -> None:
    found = []
    for schema, path, words in REFUSED:
        with pytest.raises(InvalidSchema) as refused:
            schema_text(schema, "example")
        error = refused.value
        if error.type != "example" or words not in error.reason or path not in (None, error.path):
            found.append((str(schema)[:60], error.path, error.reason))
    assert found == []


def test_annotations_are_accepted() -> None:
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "urn:x", "title": "t", "x-own": {"any": 1},
        "description": "d", "default": 1, "examples": [1], "deprecated": True, "readOnly": False, "writeOnly": False,
        "format": "date-time", "contentEncoding": "base64", "contentMediaType": "text/plain", "contentSchema": {},
        "discriminator": {"propertyName": "type"}, "$comment": "c",
    }  # fmt: skip
    assert set(ANNOTATIONS) < set(schema)
    assert matches(schema, {"anything": 1})


def test_the_documentation_names_every_keyword() -> None:
    words = set((agentbus.core.jsonschema.__doc__ or "").replace("(", " ").replace(",", " ").split())
    assert {*KEYWORDS, *ANNOTATIONS, *STRUCTURE} <= words


def test_a_reference_may_name_any_schema_of_the_document() -> None:
    schema = {
        "$id": "https://example.org/plan",
        "$defs": {"a/b~c": {"type": "null"}, "odd name": {"type": "null"}, "deep": {"items": {"type": "null"}}},
        "properties": {"a": {"$anchor": "own", "type": "null"}},
        "anyOf": [{"$defs": {"inner": {"type": "null"}}}],
    }
    references = [
        "#/$defs/a~1b~0c", "#/$defs/odd%20name", "#/$defs/deep/items", "#/properties/a", "#own",
        "#/anyOf/0/$defs/inner", "https://example.org/plan#/properties/a", "https://example.org/plan#own",
    ]  # fmt: skip
    for reference in references:
        verdicts = [matches({**schema, "items": {"$ref": reference}}, value) for value in ([None], [1])]
        assert verdicts == [True, False], reference
    with pytest.raises(InvalidSchema):
        schema_text({**schema, "items": {"$ref": "#/$defs/a%2Fb~0c"}}, "example")


def test_the_same_schema_is_the_same_text_and_compiled_once() -> None:
    first = schema_text({"type": "object", "required": ["a"]}, "example")
    second = schema_text({"required": ["a"], "type": "object"}, "other")
    assert first == second
    assert compiled(first) is compiled(second)
    size = compiled.cache_parameters()["maxsize"]
    assert size is not None
    assert size <= 1000
