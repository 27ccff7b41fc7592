"""Sessions of Google's Agent Development Kit on a bus: the same answers as the kit's own services, runs, no loss."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("google.adk", reason="google-adk is not installed: run make integrations")

from google.adk.agents import BaseAgent
from google.adk.errors._stale_session_error import StaleSessionError
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.platform import time as platform_time
from google.adk.runners import Runner
from google.adk.sessions import BaseSessionService, InMemorySessionService, Session
from google.adk.sessions.base_session_service import GetSessionConfig
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from google.genai import types

from agentbus import Bus
from agentbus.integrations.adk import AgentBusSessionService
from tests.conftest import Engine
from tests.examples.test_examples import run
from tests.integrations.sessions import append_and_kill, copied, exported

PLACE: Any = {"app_name": "app", "user_id": "ada", "session_id": "s"}
START = 1_780_000_000.0


def event(number: int = 1, **options: Any) -> Event:
    delta = options.pop("delta", {})
    content = types.Content(role="user", parts=[types.Part(text=options.pop("text", "grüße 👋"))])
    return Event(
        id=f"e-{number}",
        author="user",
        invocation_id="i-1",
        timestamp=START + number,
        content=content,
        actions=EventActions(state_delta=dict(delta)),
        **options,
    )


def shown(session: Session | None) -> Any:
    return None if session is None else session.model_dump(mode="json", exclude={"last_update_time"})


@pytest.fixture
def moments() -> Any:
    """Let the kit's clock count, so that all services get the same times."""
    counter = itertools.count()
    platform_time.set_time_provider(lambda: START - 1000 + next(counter))
    yield counter
    platform_time.reset_time_provider()


@pytest.fixture(params=["memory", "sqlite", "database"])
async def reference(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[BaseSessionService]:
    """A service of the kit."""
    async with AsyncExitStack() as stack:
        service: BaseSessionService
        if request.param == "memory":
            service = InMemorySessionService()
        elif request.param == "sqlite":
            service = SqliteSessionService(str(tmp_path / "adk.db"))
        else:
            pytest.importorskip("sqlalchemy", reason="sqlalchemy is not installed: the kit has no database service")
            from google.adk.sessions.database_session_service import DatabaseSessionService

            service = await stack.enter_async_context(
                DatabaseSessionService(f"sqlite+aiosqlite:///{tmp_path / 'adk.db'}")
            )
        yield service


class Twins:
    """Two services that get the same calls."""

    def __init__(self, ours: BaseSessionService, theirs: BaseSessionService) -> None:
        self._services = ours, theirs

    async def call(self, method: str, **arguments: Any) -> tuple[Any, Any]:
        """Return the answer of each service, which may be an error of the kit."""
        found = []
        for service in self._services:
            try:
                found.append(await getattr(service, method)(**arguments))
            except (AlreadyExistsError, SessionNotFoundError) as error:
                found.append(type(error))
        return found[0], found[1]

    async def append(self, sessions: tuple[Any, Any], event: Event) -> tuple[Any, Any]:
        found: list[Any] = []
        for service, session in zip(self._services, sessions, strict=True):
            try:
                found.append((await service.append_event(session, event.model_copy(deep=True))).model_dump(mode="json"))
            except (SessionNotFoundError, StaleSessionError) as error:
                found.append(type(error))
        return found[0], found[1]


@pytest.mark.parametrize("seed", range(2))
async def test_it_answers_as_the_services_of_the_kit_do(
    bus: Bus, reference: BaseSessionService, seed: int, moments: Any
) -> None:
    rng = random.Random(seed)
    twins = Twins(AgentBusSessionService(bus), reference)
    held: list[tuple[Any, Any]] = []
    stale_is_refused = not isinstance(reference, InMemorySessionService)
    refused = 0
    for number in range(1, 80):
        place: Any = {"app_name": rng.choice(["a", "a/b"]), "user_id": rng.choice(["ada", "bob"])}
        named: Any = {**place, "session_id": rng.choice(["s1", "s2", "s/3"])}
        delta = {
            rng.choice(["", "app:", "user:", "temp:"]) + rng.choice("xyz"): rng.choice([1, None, [1, {"k": "v"}], "ä"])
            for _ in range(rng.choice([0, 1, 3]))
        }
        action = rng.choices(["create", "get", "list", "delete", "append", "held", "user"], [3, 3, 1, 0.5, 6, 3, 1])[0]
        if action == "create":
            ours, theirs = await twins.call("create_session", **named, state=dict(delta))
        elif action == "get":
            config = GetSessionConfig(
                num_recent_events=rng.choice([None, None, 0, 1, 3]),
                after_timestamp=rng.choice([None, START + rng.randrange(number)]),
            )
            ours, theirs = await twins.call("get_session", **named, config=rng.choice([None, config]))
        elif action == "list":
            arguments = {"app_name": place["app_name"], "user_id": rng.choice([place["user_id"], None])}
            ours, theirs = await twins.call("list_sessions", **arguments)
            assert [shown(one) for one in ours.sessions] == [shown(one) for one in theirs.sessions]
            continue
        elif action == "delete":
            ours, theirs = await twins.call("delete_session", **named)
        elif action == "user":
            ours, theirs = await twins.call("get_user_state", **place)
        else:
            if action == "append" or not held or not stale_is_refused:
                sessions = await twins.call("get_session", **named)
            else:
                # It may have been changed or deleted since it was loaded.
                sessions = rng.choice(held)
            if sessions[1] is None:
                assert sessions[0] is None
                continue
            held.append(sessions)
            ours, theirs = await twins.append(sessions, event(number, delta=delta, partial=rng.random() < 0.1))
            refused += theirs is StaleSessionError
            assert ours == theirs
            ours, theirs = sessions
        if isinstance(theirs, Session):
            ours, theirs = shown(ours), shown(theirs)
        assert ours == theirs, (number, action)
    assert not stale_is_refused or refused


async def test_a_session_that_another_process_changed_must_be_loaded_again(engine: Engine) -> None:
    async with engine.connect() as bus, engine.connect() as other_bus:
        service, other = AgentBusSessionService(bus), AgentBusSessionService(other_bus)
        session = await service.create_session(**PLACE)
        copy = await other.get_session(**PLACE)
        assert copy is not None
        await other.append_event(copy, event(1, delta={"x": 1, "app:x": 1}))
        with pytest.raises(StaleSessionError, match="get it again"):
            await service.append_event(session, event(2, delta={"x": 2, "app:x": 2}))
        loaded = await service.get_session(**PLACE)
        assert loaded is not None
        assert (loaded.state, len(loaded.events)) == ({"x": 1, "app:x": 1}, 1)
        await service.append_event(loaded, event(2, delta={"x": 2}))
        # One that was deleted and created again with as many changes is another session.
        await other.delete_session(**PLACE)
        again = await other.create_session(**PLACE)
        await other.append_event(again, event(3))
        await other.append_event(again, event(4))
        with pytest.raises(StaleSessionError):
            await service.append_event(loaded, event(5))


@pytest.mark.one_engine
async def test_a_session_object_that_no_service_loaded_is_compared_by_its_last_event(bus: Bus) -> None:
    service = AgentBusSessionService(bus)
    stored = await service.create_session(**PLACE)
    await service.append_event(stored, event(1))
    made = Session(app_name="app", user_id="ada", id="s")
    with pytest.raises(StaleSessionError):
        await service.append_event(made, event(2))
    made.events.append(event(1))
    await service.append_event(made, event(2))
    loaded = await service.get_session(**PLACE)
    assert loaded is not None
    assert [one.id for one in loaded.events] == ["e-1", "e-2"]


async def test_tasks_that_share_a_session_append_one_after_the_other(bus: Bus) -> None:
    service = AgentBusSessionService(bus)
    session = await service.create_session(**PLACE)
    await asyncio.gather(*(service.append_event(session, event(number)) for number in range(1, 9)))
    loaded = await service.get_session(**PLACE)
    assert loaded is not None
    assert [one.id for one in loaded.events] == [one.id for one in session.events]
    assert len(session.events) == 8


@pytest.mark.one_engine
async def test_an_event_is_stored_once_and_another_with_its_id_too(bus: Bus) -> None:
    service = AgentBusSessionService(bus)
    session = await service.create_session(**PLACE)
    for _ in range(2):
        await service.append_event(session, event(1, delta={"x": 1, "temp:y": 1}))
    await service.append_event(session, event(1, text="another"))
    loaded = await service.get_session(**PLACE)
    assert loaded is not None
    assert [one.content.parts[0].text for one in loaded.events if one.content and one.content.parts] == [
        "grüße 👋", "another",
    ]  # fmt: skip
    assert (session.state, loaded.state) == ({"x": 1, "temp:y": 1}, {"x": 1})


@pytest.mark.one_engine
async def test_state_may_have_any_key(bus: Bus) -> None:
    service = AgentBusSessionService(bus)
    state = {"": 1, "x" * 600: 2, "0" * 19 + "7": 3, "a/b": 4, "nul \0": 5, "ä" * 512: 6, "text": "\ud83d"}
    # A surrogate without its pair, and the key that another text is stored with.
    state |= {"half \ud83d": 7, f"sha256:{sha256(b'x' * 600).hexdigest()}": 8}
    state |= {f"user:{key}": value for key, value in state.items()}
    created = await service.create_session(**PLACE, state=dict(state))
    loaded = await service.get_session(**PLACE)
    assert loaded is not None
    assert created.state == loaded.state == state


class Scripted(BaseAgent):
    """An agent that counts its turns in every scope of the state, and answers with what it finds there."""

    async def _run_async_impl(self, ctx: Any) -> AsyncGenerator[Event, None]:
        state = ctx.session.state
        delta = {f"{scope}turns": state.get(f"{scope}turns", 0) + 1 for scope in ("", "user:", "app:")}
        yield Event(
            author=self.name,
            invocation_id=ctx.invocation_id,
            actions=EventActions(state_delta={**delta, "temp:seen": len(ctx.session.events)}),
        )
        text = f"{state['turns']} {state['user:turns']} {state['app:turns']}, {state['temp:seen']} events before"
        content = types.Content(role="model", parts=[types.Part(text=text)])
        yield Event(author=self.name, invocation_id=ctx.invocation_id, content=content)


async def _turn(service: BaseSessionService, user: str, session: str) -> str:
    runner = Runner(app_name="app", agent=Scripted(name="scripted"), session_service=service, auto_create_session=True)
    message = types.Content(role="user", parts=[types.Part(text="hello")])
    texts = [
        part.text or ""
        async for event in runner.run_async(user_id=user, session_id=session, new_message=message)
        if event.content and event.content.parts
        for part in event.content.parts
    ]
    return " ".join(texts)


async def test_a_run_continues_the_session_that_another_process_stored(engine: Engine) -> None:
    turns = [("ada", "s1"), ("ada", "s1"), ("ada", "s2"), ("bob", "s1"), ("ada", "s1")]
    said = []
    for user, session in turns:
        async with engine.connect() as bus:
            said.append(await _turn(AgentBusSessionService(bus), user, session))
    reference = InMemorySessionService()
    assert said == [await _turn(reference, user, session) for user, session in turns]
    assert said[-1] == "3 4 5, 7 events before"


async def test_what_was_acknowledged_survives_kill_9(engine: Engine) -> None:
    async with engine.connect():
        pass
    stored = append_and_kill("adk", engine.url)
    async with engine.connect() as bus:
        service = AgentBusSessionService(bus)
        session = await service.get_session(app_name="app", user_id="user", session_id="session")
    assert session is not None
    numbers = [int(one.author) for one in session.events]
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(numbers) in {stored, stored + 1}
    # An event and the state of all scopes are one commit.
    assert session.state == dict.fromkeys(("number", "user:number", "app:number"), len(numbers))


async def test_the_sessions_are_on_the_bus(engine: Engine) -> None:
    async with engine.connect() as bus:
        service = AgentBusSessionService(bus)
        session = await service.create_session(**PLACE, state={"x": 1, "user:name": "Ada", "app:v": 2})
        await service.append_event(session, event(1))
        histories = (await bus.histories.list("adk")).items
        assert [(one.name, one.items) for one in histories] == [("app", 1), ("app/ada", 1), ("app/ada/s", 2)]
        (stored,) = await bus.histories.items("adk", "app/ada/s", part="events", where={"author": "user"})
        assert Event.model_validate_json(stored.body) == event(1)
        before = shown(await service.get_session(**PLACE))
        async with exported(bus) as other:
            assert shown(await AgentBusSessionService(other).get_session(**PLACE)) == before
    async with copied(engine.url) as copy:
        assert shown(await AgentBusSessionService(copy).get_session(**PLACE)) == before


@pytest.mark.one_engine
async def test_the_example_continues_sessions_in_another_process(engine: Engine) -> None:
    assert run("adk_session.py", engine.url) == [
        "ada/order-1: turn 1 of the session, 1 of the user, 1 of the app",
        "ada/order-2: turn 1 of the session, 2 of the user, 2 of the app",
        "the process ended with signal 9",
        "ada/order-1: turn 2 of the session, 3 of the user, 3 of the app",
        "bob/order-1: turn 1 of the session, 1 of the user, 4 of the app",
        "the process ended with signal 9",
        "stored: ada/order-2, turns: 1",
        "stored: ada/order-1, turns: 2",
        "stored: bob/order-1, turns: 1",
        "histories: shop, shop/ada, shop/ada/order-1, shop/ada/order-2, shop/bob, shop/bob/order-1",
    ]
