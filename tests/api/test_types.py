"""The vocabulary: types of agents and messages are built in or defined."""

from __future__ import annotations

import asyncio
from typing import Any, Generic, TypeVar

import pytest
from msgspec import Struct, defstruct

from agentbus import Bus
from agentbus.errors import BuiltInType, InvalidInput, InvalidName, InvalidSchema, OutOfRange, UnknownType
from agentbus.records import TypeRecord
from tests.api.helpers import count, known, refusing, take, worker
from tests.conftest import Engine
from tests.support.cases import each
from tests.support.clock import FakeClock

T = TypeVar("T")

AGENTS = [
    "milestone-coordinator", "milestone-executor", "milestone-planner", "scope-analyzer", "estimation-agent",
    "risk-assessor", "coordinator", "planner", "executor", "reviewer", "tester", "worker",
]  # fmt: skip
MESSAGES = [
    "task_assignment", "progress_update", "coordination_request", "coordination_response", "validation_result",
    "error_report", "completion_notification", "approval_request", "approval_decision", "control", "note",
]  # fmt: skip
OF_PEOPLE = ["steer"]
"""Agents cannot send them."""


async def test_every_built_in_type_is_known(bus: Bus) -> None:
    for type in AGENTS:
        await bus.register(f"an-{type}", type=type)
        assert (await known(bus, f"an-{type}")).type == type
    a = await worker(bus, "a")
    await a.send_many(("a", type) for type in MESSAGES)
    assert await count(bus) == len(MESSAGES)


@pytest.mark.one_engine
async def test_an_unknown_message_type_is_an_error_that_names_near_ones(bus: Bus) -> None:
    a = await worker(bus, "a")
    with pytest.raises(UnknownType) as unknown:
        await a.send("a", "task_asignment")
    assert (unknown.value.code, unknown.value.kind, unknown.value.name) == ("unknown_type", "message", "task_asignment")
    assert "task_assignment" in str(unknown.value)
    assert "define" in (unknown.value.fix or "")
    assert await count(bus) == 0
    await a.send("a", "task_assignment")


async def test_kinds_do_not_mix(bus: Bus) -> None:
    a = await worker(bus, "a")
    with pytest.raises(UnknownType):
        await a.send("a", "worker")
    with pytest.raises(UnknownType):
        await bus.register("b", type="note")


async def test_a_defined_type_can_be_used(bus: Bus) -> None:
    await bus.define("deploy_request", description="please deploy this")
    await bus.define("deployer", kind="agent")
    a = await bus.register("a", type="deployer")
    await a.send("a", "deploy_request", 1)
    assert (await take(a)).type == "deploy_request"


async def test_a_defined_type_is_known_to_others_and_after_reopening(engine: Engine) -> None:
    async with engine.connect() as bus, engine.connect() as other:
        await bus.define("deploy_request")
        a = await worker(other, "a")
        await a.send("a", "deploy_request")
    async with engine.connect() as bus:
        a = await worker(bus, "b")
        await a.send("b", "deploy_request")


@pytest.mark.one_engine
async def test_the_error_of_a_misspelt_type_suggests_the_right_one(bus: Bus) -> None:
    await bus.define("deploy_request")
    a = await worker(bus, "a")
    with pytest.raises(UnknownType, match="deploy_request"):
        await a.send("a", "deploy_requests")


async def test_defining_again_is_harmless(bus: Bus) -> None:
    for description in ("", "first", "second"):
        await bus.define("deploy_request", description=description)
    await asyncio.gather(*(bus.define("other") for _ in range(10)))
    a = await worker(bus, "a")
    await a.send("a", "other")


@pytest.mark.one_engine
async def test_an_invalid_type_is_refused(bus: Bus) -> None:
    for name in ("", "two words", "x" * 129, "nul\0", "ünï"):
        with pytest.raises(InvalidName):
            await bus.define(name)
    with pytest.raises(OutOfRange):
        await bus.define("x", kind="session")  # type: ignore[arg-type]
    for description in ("nul \0", "lone \ud800", "x" * 200_000):
        with pytest.raises(OutOfRange):
            await bus.define("x", description=description)
    a = await worker(bus, "a")
    with pytest.raises(UnknownType):
        await a.send("a", "x")


# What is kept of a type


class BuildReport(Struct):
    """The outcome of a build."""

    passed: bool


class Tagged(Struct, tag="tagged/plan"):
    files: int


class HTTPRequest2(Struct):
    url: str


class Numbered(Struct, tag=7):
    files: int


Foreign = defstruct("Ünï", [("files", int)])


class Spaced(Struct, tag="two words"):
    files: int


class Note(Struct):
    text: str


class Odd(Struct):
    value: object


class Unreadable(Struct):
    call: NoSuchType  # type: ignore[name-defined]  # noqa: F821


class Box(Struct, Generic[T]):
    content: T


async def named(bus: Bus, name: str) -> TypeRecord:
    (found,) = [type for type in await bus.types() if type.name == name]
    return found


async def test_the_vocabulary_can_be_read(bus: Bus, clock: FakeClock) -> None:
    await bus.define("deploy_request", description="please deploy", schema={"required": ["url"]})
    await bus.define("deployer", kind="agent")
    types = await bus.types()
    assert [(type.kind, type.name) for type in types] == [
        *(("agent", name) for name in sorted([*AGENTS, "deployer"])),
        *(("message", name) for name in sorted([*MESSAGES, *OF_PEOPLE, "deploy_request"])),
    ]
    assert {type.name for type in types if type.builtin} == {*AGENTS, *MESSAGES, *OF_PEOPLE}
    assert all(type.description and type.schema is None for type in types if type.builtin)
    assert await named(bus, "deploy_request") == TypeRecord(
        "message", "deploy_request", False, "please deploy", {"required": ["url"]}, clock.now().wall
    )
    assert await bus.types("agent") == types[: len(AGENTS) + 1]
    assert await bus.types("message") == types[len(AGENTS) + 1 :]
    with pytest.raises(OutOfRange):
        await bus.types("session")  # type: ignore[arg-type]


async def test_defining_again_changes_what_is_given_and_leaves_the_rest(bus: Bus) -> None:
    await bus.define("plan", description="first", schema={"type": "object"})
    await bus.define("plan")
    for options, description, schema in (
        ({}, "first", {"type": "object"}),
        ({"description": "second"}, "second", {"type": "object"}),
        ({"schema": {"type": "array"}}, "second", {"type": "array"}),
        ({"description": "third", "schema": {}}, "third", {}),
    ):
        await bus.define("plan", **options)
        record = await named(bus, "plan")
        assert (record.description, record.schema) == (description, schema)


@pytest.mark.one_engine
@each(
    ("struct", "name"),
    [(BuildReport, "build_report"), (Tagged, "tagged/plan"), (HTTPRequest2, "http_request2"), (Numbered, "numbered")],
)
async def test_a_struct_is_a_type_with_a_schema(bus: Bus, struct: type[Struct], name: str) -> None:
    await bus.define(struct, description="as said")
    record = await named(bus, name)
    assert (record.kind, record.builtin, record.description) == ("message", False, "as said")
    assert record.schema is not None
    assert record.schema["$defs"][struct.__name__]["title"] == struct.__name__


@pytest.mark.one_engine
@each(
    ("what", "options", "expected"),
    [
        (Foreign, {}, InvalidName),
        (Spaced, {}, InvalidName),
        (Box[int], {}, InvalidName),
        (Tagged(1), {}, InvalidInput),
        (dict, {}, InvalidInput),
        (7, {}, InvalidName),
        (Note, {}, BuiltInType),
        ("note", {"schema": {}}, BuiltInType),
        ("note", {"description": "mine"}, BuiltInType),
        ("worker", {"kind": "agent", "description": "mine"}, BuiltInType),
        ("worker", {"kind": "agent", "schema": {}}, InvalidInput),
        ("deployer", {"kind": "agent", "schema": {}}, InvalidInput),
        (BuildReport, {"kind": "agent"}, InvalidInput),
        (BuildReport, {"schema": {}}, InvalidInput),
        (Odd, {}, InvalidSchema),
        (Unreadable, {}, InvalidSchema),
        ("plan", {"schema": "{}"}, InvalidSchema),
        ("plan", {"schema": True}, InvalidSchema),
        ("plan", {"schema": BuildReport}, InvalidSchema),
        ("plan", {"schema": {"minimun": 1}}, InvalidSchema),
        ("plan", {"schema": {"$ref": "#"}}, InvalidSchema),
        ("plan", {"schema": {"pattern": "("}}, InvalidSchema),
        ("plan", {"schema": {"const": float("nan")}}, InvalidSchema),
        ("plan", {"schema": {"description": "x" * 70_000}}, InvalidSchema),
    ],
)
async def test_an_invalid_definition_is_refused(
    bus: Bus, what: Any, options: dict[str, Any], expected: type[InvalidInput]
) -> None:
    before = await bus.types()
    a = await worker(bus, "a", takeover=True)
    async with refusing(bus, a, expected):
        await bus.define(what, **options)
    assert await bus.types() == before


@pytest.mark.one_engine
async def test_the_error_of_redefining_a_built_in_type_has_a_fix(bus: Bus) -> None:
    with pytest.raises(BuiltInType, match="tag=") as refused:
        await bus.define(Note)
    assert (refused.value.code, refused.value.kind, refused.value.name) == ("built_in_type", "message", "note")


async def test_a_built_in_type_can_be_defined_as_it_is(bus: Bus) -> None:
    before = await bus.types()
    for type in before:
        await bus.define(type.name, kind=type.kind)  # type: ignore[arg-type]
        await bus.define(type.name, kind=type.kind, description=type.description)  # type: ignore[arg-type]
    assert await bus.types() == before


@pytest.mark.one_engine
@pytest.mark.parametrize(("what", "said"), [(Tagged(1), "define the class: bus.define(Tagged)"), (dict, "Struct")])
async def test_the_error_of_an_invalid_type_names_the_accepted_forms(bus: Bus, what: Any, said: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        await bus.define(what)
    assert said in str(refused.value)


@pytest.mark.one_engine
async def test_the_error_of_a_refused_schema_names_the_path(bus: Bus) -> None:
    with pytest.raises(InvalidSchema, match="did you mean minimum") as refused:
        await bus.define("plan", schema={"properties": {"files": {"minimun": 1}}})
    assert (refused.value.type, refused.value.path) == ("plan", "#/properties/files")


async def test_many_define_the_same_at_once(engine: Engine) -> None:
    async with engine.connect() as one, engine.connect() as two:
        await asyncio.gather(*(bus.define(BuildReport) for bus in (one, two) for _ in range(10)))
        assert (await named(one, "build_report")) == (await named(two, "build_report"))
