"""The validator agrees with the jsonschema library, and accepts every instance of a Struct."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal, NamedTuple, TypedDict
from uuid import UUID

import msgspec
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from msgspec import Meta, Struct

from agentbus.core.jsonschema import schema_text
from agentbus.core.jsonschema.keywords import KEYWORDS
from agentbus.core.jsonschema.validator import ANNOTATIONS, STRUCTURE
from agentbus.errors import InvalidSchema
from tests.support.examples import examples
from tests.support.validation import matches, violation

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
    """Return schemas of the supported keywords. References apply to parts of a value, so that none is endless."""
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
        "patternProperties": st.dictionaries(st.sampled_from(["^a", "b|c", "é$"]), inner, max_size=2),
        "required": st.lists(NAMES, max_size=2, unique=True),
        "additionalProperties": inner,
        "propertyNames": inner,
        "dependentRequired": st.dictionaries(NAMES, st.lists(NAMES, max_size=2, unique=True), max_size=2),
        "minProperties": SIZES,
        "maxProperties": SIZES,
        "items": inner,
        "prefixItems": st.lists(inner, min_size=1, max_size=2),
        "minItems": SIZES,
        "maxItems": SIZES,
        "uniqueItems": st.booleans(),
        "contains": inner,
        "minContains": SIZES,
        "maxContains": SIZES,
        "unevaluatedProperties": inner,
        "unevaluatedItems": inner,
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
        here |= {"not": inner, "if": inner, "then": inner, "else": inner}
        here |= {"dependentSchemas": st.dictionaries(NAMES, inner, max_size=2)}
    chosen = st.lists(st.sampled_from(sorted(here)), max_size=5, unique=True)
    return st.one_of(st.booleans(), chosen.flatmap(lambda names: st.fixed_dictionaries({n: here[n] for n in names})))


def whole(pair: tuple[Any, Any]) -> dict[str, Any]:
    top, definition = pair
    return {**(top if isinstance(top, dict) else {"not": not top}), "$defs": {"x": definition}}


@settings(max_examples=examples(500), deadline=None, suppress_health_check=[HealthCheck.too_slow])
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
        assert matches(schema, value) == theirs.is_valid(value), value


@settings(max_examples=examples(500), deadline=None)
@given(st.dictionaries(st.sampled_from([*KEYWORDS, *ANNOTATIONS, *STRUCTURE]), VALUES, max_size=2))
def test_a_schema_that_the_meta_schema_refuses_is_refused(schema: dict[str, Any]) -> None:
    try:
        schema_text(schema, "example")
    except InvalidSchema:
        return
    Draft202012Validator.check_schema(schema)


# Structs


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


@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(THINGS, st.data())
def test_the_schema_of_a_struct_is_supported_and_matches_every_instance(thing: Everything, data: st.DataObject) -> None:
    value = msgspec.json.decode(msgspec.json.encode(thing))
    assert violation(EVERYTHING, value) is None
    # One field replaced: still the verdict of jsonschema.
    field = data.draw(st.sampled_from(sorted(value)))
    value[field] = data.draw(VALUES)
    assert matches(EVERYTHING, value) == Draft202012Validator(EVERYTHING).is_valid(value)
