"""Invalid input for sessions, documents and participants: a named error, nothing written, and the bus still works."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from agentbus import Bus, Session
from agentbus.errors import (
    AgentBusError,
    InvalidInput,
    InvalidName,
    InvalidPayload,
    OutOfRange,
    PayloadTooLarge,
    SnapshotTooLarge,
    UnknownType,
)
from tests.api.invalid_names import BAD, NOT_TEXT, some
from tests.conftest import Engine
from tests.support.cases import each
from tests.support.values import NOT_JSON

Use = Callable[[Bus, Session, Any], Awaitable[object]]


@pytest.fixture
async def session(bus: Bus) -> AsyncIterator[Session]:
    async with bus.session("planning", id="s") as session:
        yield session


async def all_of(bus: Bus, session: Session) -> object:
    sessions = (await bus.sessions.list()).items
    agents = (await bus.agents.list()).items
    return sessions, agents, await session.documents(), (await session.participants([])).members


@asynccontextmanager
async def refusing(bus: Bus, session: Session, expected: type[AgentBusError]) -> AsyncIterator[None]:
    before = await all_of(bus, session)
    with pytest.raises(expected) as refused:
        yield
    assert type(refused.value).code != AgentBusError.code
    assert await all_of(bus, session) == before, "something was written"
    await _check_it_works(session)


@asynccontextmanager
async def refusing_each(bus: Bus, session: Session) -> AsyncIterator[None]:
    """A block of which every call is refused: nothing may have been written, and the bus must still work."""
    before = await all_of(bus, session)
    yield
    assert await all_of(bus, session) == before, "something was written"
    await _check_it_works(session)


async def _refuse(call: Awaitable[object], expected: type[AgentBusError]) -> None:
    with pytest.raises(expected) as refused:
        await call
    assert type(refused.value).code != AgentBusError.code


async def _check_it_works(session: Session) -> None:
    await session.document("works").save(1)
    assert await session.document("works").latest() == 1


async def _block(bus: Bus, operation: Any = "planning", **options: Any) -> None:
    async with bus.session(operation, **options):
        pytest.fail("this block must not run")


async def _unit(bus: Bus, session: Session, *arguments: Any, **options: Any) -> None:
    """A document that is refused at once leaves the rest of the unit as it is."""
    agent = await bus.register("unit", type="worker", session=session.id, takeover=True)
    try:
        async with agent.unit() as unit:
            unit.document(*arguments, **options)
    finally:
        await agent.complete()
        await bus.agents.delete("unit")


async def _finish(session: Session, member: Any, result: Any = None) -> None:
    await (await session.participants([])).finish(member, result)


NAMES: dict[str, Use] = {
    "operation": lambda bus, session, name: _block(bus, name),
    "session": lambda bus, session, name: _block(bus, id=some(name)),
    "milestone": lambda bus, session, name: _block(bus, milestone=some(name)),
    "producer": lambda bus, session, name: _block(bus, expects={_hashable(name): "x"}),
    "expected document": lambda bus, session, name: _block(bus, expects={"x": name}),
    "opened session": lambda bus, session, name: bus.sessions.open(name),
    "looked up session": lambda bus, session, name: bus.sessions.get(name),
    "operation of listed sessions": lambda bus, session, name: bus.sessions.list(operation=some(name)),
    "milestone of listed sessions": lambda bus, session, name: bus.sessions.list(milestone=some(name)),
    "document": lambda bus, session, name: _made(session.document, name),
    "author": lambda bus, session, name: session.document("x").save(1, author=some(name)),
    "document of a unit": lambda bus, session, name: _unit(bus, session, name, 1),
    "member": lambda bus, session, name: session.participants(["good", name]),
    "meeting": lambda bus, session, name: session.participants(["good"], name=name),
    "finished member": lambda bus, session, name: _finish(session, name),
    "agent": lambda bus, session, name: session.agent(name, type="worker").__aenter__(),
    "expected agent": lambda bus, session, name: session.expect(name, type="worker"),
}


async def _made(make: Callable[[Any], object], name: Any) -> None:
    make(name)


def _hashable(name: Any) -> Any:
    return tuple(name) if isinstance(name, list) else name


@pytest.mark.one_engine
@each("use", NAMES)
async def test_an_invalid_name_is_refused_everywhere(bus: Bus, session: Session, use: str) -> None:
    async with refusing_each(bus, session):
        for name in [*BAD, *NOT_TEXT]:
            await _refuse(NAMES[use](bus, session, name), InvalidName)


RANGES: dict[str, tuple[Use, list[Any]]] = {
    "progress": (lambda bus, session, value: session.progress(value), [-1, 101, 5.5, "5", None, True, 2**70]),
    "keep": (lambda bus, session, value: session.document("x").save(1, keep=value), [0, -1, 10_001, 1.5, "5", True]),
    "keep of a handle": (
        lambda bus, session, value: _made(lambda keep: session.document("x", keep=keep), value),
        [0, -1, 10_001, 1.5, "5", None, True],
    ),
    "keep of a unit": (lambda bus, session, value: _unit(bus, session, "x", 1, keep=value), [0, 10_001, None]),
    "history": (lambda bus, session, value: session.document("x").history(value), [0, 1001, "5", None]),
    "version": (lambda bus, session, value: session.document("x").record(value), [0, -1, "1", 1.0, 2**63, True]),
    "limit": (lambda bus, session, value: bus.sessions.list(limit=value), [0, 1001, None]),
    "status": (lambda bus, session, value: bus.sessions.list(status=value), ["open", "", ["active", "x"], [None], 5]),
    "cursor": (
        lambda bus, session, value: bus.sessions.list(cursor=value),
        ["", "x", "5", "5.", "-1.a", "9" * 19 + ".a", "5.two words", "5.\ud800", 5],
    ),
    "reason": (lambda bus, session, value: session.pause(value), [5, "nul\0", "\ud800", "x" * 100_001]),
    "error": (lambda bus, session, value: session.fail(value), [None, 5, "nul\0", "\ud800", "x" * 100_001]),
    "too many members": (lambda bus, session, value: session.participants(value), [[f"m{n}" for n in range(10_001)]]),
    "too many expected": (
        lambda bus, session, value: _block(bus, expects=value),
        [{f"m{n}": "x" for n in range(1_001)}],
    ),
}  # fmt: skip


@pytest.mark.one_engine
@each("use", RANGES)
async def test_a_value_out_of_range_is_refused(bus: Bus, session: Session, use: str) -> None:
    call, values = RANGES[use]
    async with refusing_each(bus, session):
        for value in values:
            await _refuse(call(bus, session, value), OutOfRange)


VALUES: dict[str, Use] = {
    "document": lambda bus, session, value: session.document("x").save(value),
    "document of a unit": lambda bus, session, value: _unit(bus, session, "x", value),
    "result": lambda bus, session, value: _finish(session, "a", value),
    "metadata": lambda bus, session, value: _block(bus, metadata={"x": value}),
}


@pytest.mark.one_engine
@each("use", VALUES)
async def test_a_value_that_is_not_json_is_refused(bus: Bus, session: Session, use: str) -> None:
    async with refusing_each(bus, session):
        for value in NOT_JSON.values():
            # A large document is checked on a thread, no less closely.
            for given in (value, ["x" * 300_000, value]):
                await _refuse(VALUES[use](bus, session, given), InvalidPayload)


@pytest.mark.one_engine
@each("use", ["result", "metadata"])
async def test_a_value_that_is_too_large_is_refused(bus: Bus, session: Session, use: str) -> None:
    async with refusing(bus, session, PayloadTooLarge):
        await VALUES[use](bus, session, "x" * bus._max_payload)


async def test_a_document_may_be_larger_than_a_message_but_not_endless(engine: Engine) -> None:
    async with engine.connect(max_snapshot=2_000_000) as bus, bus.session("planning") as session:
        assert bus._max_payload + 1 < bus._max_snapshot - 2
        for use in ("document", "document of a unit"):
            for size in (bus._max_snapshot - 1, 2 * bus._max_snapshot):
                async with refusing(bus, session, SnapshotTooLarge):
                    await VALUES[use](bus, session, "x" * size)
            await VALUES[use](bus, session, "x" * (bus._max_payload + 1))
            await VALUES[use](bus, session, "x" * (bus._max_snapshot - 2))
            assert len(await session.document("x").latest()) == bus._max_snapshot - 2, use


@pytest.mark.one_engine
async def test_the_limit_of_documents_can_be_set(engine: Engine) -> None:
    async with engine.connect(max_snapshot=100) as bus, bus.session("planning") as session:
        await session.document("x").save("x" * 98)
        async with refusing(bus, session, SnapshotTooLarge):
            await session.document("x").save("x" * 99)


@pytest.mark.one_engine
@each("metadata", [[], "x", 5, [("a", 1)]])
async def test_metadata_is_a_dict(bus: Bus, session: Session, metadata: Any) -> None:
    async with refusing(bus, session, InvalidInput):
        await _block(bus, metadata=metadata)


@pytest.mark.one_engine
@each("expects", [["x"], "x", 5, [("a", "b")]])
async def test_expected_documents_are_a_dict(bus: Bus, session: Session, expects: Any) -> None:
    async with refusing(bus, session, InvalidInput):
        await _block(bus, expects=expects)


@pytest.mark.one_engine
async def test_a_text_is_not_a_list_of_members(bus: Bus, session: Session) -> None:
    async with refusing(bus, session, InvalidName):
        await session.participants("abc")


@pytest.mark.one_engine
async def test_a_member_is_given_once(bus: Bus, session: Session) -> None:
    async with refusing(bus, session, InvalidInput):
        await session.participants(["a", "b", "a"])


@pytest.mark.one_engine
async def test_an_agent_of_a_session_has_no_other_session(bus: Bus, session: Session) -> None:
    async with refusing(bus, session, InvalidInput):
        await session.agent("a", type="worker", session="t").__aenter__()  # type: ignore[call-arg]
    async with refusing(bus, session, InvalidInput):
        await session.expect("a", type="worker", session="t")  # type: ignore[call-arg]


@pytest.mark.one_engine
async def test_an_invalid_agent_is_refused_in_a_session_too(bus: Bus, session: Session) -> None:
    async with refusing(bus, session, UnknownType):
        await session.agent("a", type="wroker").__aenter__()
    async with refusing(bus, session, InvalidInput):
        await session.agent("a", type="worker", capabilites=["x"]).__aenter__()  # type: ignore[call-arg]
