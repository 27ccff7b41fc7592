"""The validator of ours: the same verdict as the jsonschema library, named refusals, and no schema that takes long."""

from __future__ import annotations

import time
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal, NamedTuple, TypedDict
from uuid import UUID

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from msgspec import Meta, Struct

from agentbus.errors import InvalidSchema
from agentbus.schema import MAX_SCHEMA, compiled, schema_text
from agentbus.schema.compiling import MAX_NESTING, SAID
from agentbus.schema.keywords import KEYWORDS
from agentbus.schema.patterns import MAX_PATTERN


def problem(schema: dict[str, Any], value: Any) -> tuple[str, str] | None:
    return compiled(schema_text(schema, "example")).problem(value)


def fits(schema: dict[str, Any], value: Any) -> bool:
    return problem(schema, value) is None


# Against jsonschema

NAMES = st.sampled_from(["a", "b", "c", "é"])
NUMBERS = st.one_of(
    st.integers(-5, 5),
    st.sampled_from([0.0, 1.0, -2.0, 2.5, 1e300, 2**53, 2**53 + 1, float(2**53)]),
    st.floats(-4, 4, width=16, allow_nan=False),
)
TEXTS = st.one_of(NAMES, st.text("ab1 \n", max_size=4))
SCALARS = st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(NAMES, inner, max_size=4)),
    max_leaves=8,
)
SIZES = st.integers(0, 3)
PATTERNS = st.sampled_from(["^a", "b$", "a+b?", "^[ab]*$", "1|2", "", r"\s", r"^(a|b){2}$", r"\bb", r"[^a]\Z"])


def schemas(depth: int) -> st.SearchStrategy[Any]:
    """Schemas of what the validator knows. References are about a part of the value only, so that none is endless."""
    inner = schemas(depth - 1) if depth else st.booleans()
    here = {
        "type": st.one_of(
            st.sampled_from(["object", "array", "string", "integer", "number", "boolean", "null"]),
            st.lists(st.sampled_from(["object", "array", "string", "integer", "null"]), min_size=1, unique=True),
        ),
        "enum": st.lists(VALUES, min_size=1, max_size=3),
        "const": VALUES,
        "minimum": NUMBERS,
        "maximum": NUMBERS,
        "exclusiveMinimum": NUMBERS,
        "exclusiveMaximum": NUMBERS,
        # Not 3: multiples are decimal here and binary there, which differs for 1e300.
        "multipleOf": st.sampled_from([1, 2, 4, 0.5]),
        "minLength": SIZES,
        "maxLength": SIZES,
        "pattern": PATTERNS,
        "properties": st.dictionaries(NAMES, inner, max_size=3),
        "required": st.lists(NAMES, max_size=2, unique=True),
        "additionalProperties": inner,
        "propertyNames": inner,
        "minProperties": SIZES,
        "maxProperties": SIZES,
        "items": inner,
        "prefixItems": st.lists(inner, min_size=1, max_size=2),
        "minItems": SIZES,
        "maxItems": SIZES,
        "uniqueItems": st.booleans(),
        "title": st.just("t"),
        "format": st.just("date"),
        "default": VALUES,
    }
    if depth:
        several = st.lists(inner, min_size=1, max_size=3)
        nested = st.sampled_from([{"properties": {"a": {"$ref": "#"}}}, {"items": {"$ref": "#/$defs/x"}}])
        here |= {
            "anyOf": several,
            "oneOf": several,
            "allOf": st.lists(st.one_of(inner, nested), min_size=1, max_size=3),
        }
        here |= {"not": inner}
    chosen = st.lists(st.sampled_from(sorted(here)), max_size=4, unique=True)
    return st.one_of(st.booleans(), chosen.flatmap(lambda names: st.fixed_dictionaries({n: here[n] for n in names})))


def whole(pair: tuple[Any, Any]) -> dict[str, Any]:
    top, definition = pair
    return {**(top if isinstance(top, dict) else {"not": not top}), "$defs": {"x": definition}}


@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.tuples(schemas(2), schemas(1)).map(whole), st.lists(VALUES, min_size=1, max_size=5))
@example({"enum": [1, [True]]}, [True, 1.0, [1], [True]])
@example({"const": {"a": [0, False]}}, [{"a": [0, False]}, {"a": [False, 0]}, {"a": [0.0, False]}])
@example({"uniqueItems": True}, [[1, True], [1, 1.0], [{"a": 0}, {"a": False}], [[], {}], ["a", "a"]])
@example({"type": "integer"}, [1.0, 1.5, True, 10**18, 1e300])
@example({"items": False, "prefixItems": [True]}, [[], [1], [1, 2], "ab"])
def test_the_verdict_is_that_of_jsonschema(schema: dict[str, Any], values: list[Any]) -> None:
    Draft202012Validator.check_schema(schema)
    theirs = Draft202012Validator(schema)
    for value in values:
        assert fits(schema, value) == theirs.is_valid(value), value


@settings(max_examples=500, deadline=None)
@given(st.dictionaries(st.sampled_from([*KEYWORDS, *SAID, "$defs", "$ref", "$id", "$schema"]), VALUES, max_size=2))
def test_what_the_meta_schema_refuses_is_refused(schema: dict[str, Any]) -> None:
    try:
        schema_text(schema, "example")
    except InvalidSchema:
        return
    Draft202012Validator.check_schema(schema)


# What Structs are made of


class Colour(Enum):
    RED = "r"
    BLUE = "b"


class Point(NamedTuple):
    x: int
    y: float = 0


class Options(TypedDict, total=False):
    deep: bool


class Leaf(Struct, tag="leaf", forbid_unknown_fields=True):
    value: int


class Branch(Struct, tag="branch"):
    below: list[Leaf | Branch] = []


class Row(Struct, array_like=True):
    id: int
    name: str = ""


Short = Annotated[str, Meta(min_length=1, max_length=4, pattern="^[a-z]")]


class Everything(Struct):
    whole: Annotated[int, Meta(ge=-3, lt=1000, multiple_of=2)]
    number: Annotated[float, Meta(gt=-1.5, le=3)]
    short: Short
    data: bytes
    at: datetime
    day: date
    took: timedelta
    id: UUID
    price: Decimal
    colour: Colour
    choice: Literal["a", 1, None]
    point: Point
    options: Options
    tree: Leaf | Branch
    row: Row
    counts: Annotated[dict[Short, int], Meta(max_length=3)]
    numbered: dict[int, str]
    some: set[int]
    pair: tuple[int, str]
    many: tuple[int, ...]
    maybe: Annotated[list[float], Meta(max_length=3)] | None = None
    anything: Any = None
    renamed: int = msgspec.field(default=3, name="otherwise")


EVERYTHING = msgspec.json.schema(Everything)
TREES = st.recursive(
    st.builds(Leaf, st.integers(-9, 9)), lambda inner: st.builds(Branch, st.lists(inner, max_size=2)), max_leaves=5
)
SHORT = st.from_regex(r"[a-z][a-z1]{0,3}", fullmatch=True)
THINGS = st.builds(
    Everything,
    whole=st.integers(-1, 400).map(lambda n: n * 2),
    number=st.floats(-1, 3),
    short=SHORT,
    data=st.binary(max_size=4),
    at=st.datetimes(timezones=st.just(UTC)),
    day=st.dates(),
    took=st.timedeltas(timedelta(days=-9), timedelta(days=9)),
    id=st.uuids(),
    price=st.decimals(allow_nan=False, allow_infinity=False),
    colour=st.sampled_from(Colour),
    choice=st.sampled_from(["a", 1, None]),
    point=st.builds(Point, st.integers(-9, 9), st.floats(-1, 1)),
    options=st.one_of(st.just({}), st.booleans().map(lambda deep: {"deep": deep})),
    tree=TREES,
    row=st.builds(Row, st.integers(0, 9), st.text(max_size=3)),
    counts=st.dictionaries(SHORT, st.integers(-9, 9), max_size=3),
    numbered=st.dictionaries(st.integers(-9, 9), st.text(max_size=2), max_size=3),
    some=st.sets(st.integers(-9, 9), max_size=3),
    pair=st.tuples(st.integers(-9, 9), st.text(max_size=2)),
    many=st.lists(st.integers(-9, 9), max_size=3).map(tuple),
    maybe=st.one_of(st.none(), st.lists(st.floats(-1, 1), max_size=3)),
    anything=VALUES,
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(THINGS, st.data())
def test_what_msgspec_makes_of_structs_is_known_and_every_instance_fits(thing: Everything, data: st.DataObject) -> None:
    value = msgspec.json.decode(msgspec.json.encode(thing))
    assert problem(EVERYTHING, value) is None
    # One field spoilt: still the verdict of jsonschema.
    field = data.draw(st.sampled_from(sorted(value)))
    value[field] = data.draw(VALUES)
    assert fits(EVERYTHING, value) == Draft202012Validator(EVERYTHING).is_valid(value)


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


# Nothing takes long

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
