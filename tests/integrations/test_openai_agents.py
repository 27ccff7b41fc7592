"""Sessions of the OpenAI Agents SDK on a bus: the same answers as the SDK's own session, runs that resume, no loss."""

from __future__ import annotations

import asyncio
import json
import random
from contextlib import closing
from typing import Any

import pytest

pytest.importorskip("agents", reason="openai-agents is not installed: run make integrations")

from agents import Agent, RunConfig, Runner, SessionSettings, SQLiteSession, function_tool
from agents.items import ModelResponse
from agents.memory import Session
from agents.models.interface import Model
from agents.usage import Usage
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

from agentbus import Bus, sync
from agentbus.errors import BusClosed, InvalidInput
from agentbus.integrations.openai_agents import AgentBusSession
from agentbus.records import HistoryPut
from tests.conftest import Engine
from tests.examples.test_examples import run
from tests.integrations.sessions import WORKER, append_and_kill, copied, exported
from tests.support.processes import Worker

TEXTS = ("", "hello", "grüße 👋", "a" * 5000, "line\nline", "\ud83d", "nul \0")
SCRIPT = ("first", "call", "second", "third")


class ScriptedModel(Model):
    """A model that gives the answers of a script, and records what it was asked."""

    def __init__(self, *script: str) -> None:
        self._script = list(script)
        self.asked: list[list[Any]] = []

    async def get_response(self, system_instructions: Any, input: Any, *others: Any, **options: Any) -> ModelResponse:
        self.asked.append(json.loads(json.dumps(input)))
        text = self._script.pop(0)
        output: list[Any]
        if text == "call":
            call = ResponseFunctionToolCall(
                type="function_call", name="weather", arguments='{"city":"Oslo"}', call_id="call-1", id="fc-1"
            )
            output = [call]
        else:
            content = ResponseOutputText(type="output_text", text=text, annotations=[])
            output = [
                ResponseOutputMessage(
                    id=f"msg-{text}", type="message", role="assistant", status="completed", content=[content]
                )
            ]
        return ModelResponse(output=output, usage=Usage(), response_id=None)

    def stream_response(self, *arguments: Any, **options: Any) -> Any:
        raise NotImplementedError


@function_tool
def weather(city: str) -> str:
    """Return the weather of a city."""
    return f"rain in {city}"


async def ask(model: ScriptedModel, session: Session, text: str, **options: Any) -> str:
    agent = Agent(name="assistant", instructions="be brief", model=model, tools=[weather])
    config = RunConfig(tracing_disabled=True, **options)
    return str((await Runner.run(agent, text, session=session, run_config=config)).final_output)


def random_item(rng: random.Random) -> Any:
    return {
        "role": rng.choice(["user", "assistant"]),
        "content": rng.choice(TEXTS),
        "more": {"n": [rng.random(), None]},
    }


@pytest.mark.parametrize("seed", range(3))
async def test_it_answers_as_the_session_of_the_sdk_does(bus: Bus, seed: int) -> None:
    rng = random.Random(seed)
    settings = SessionSettings(limit=rng.choice([None, 2]))
    ours = AgentBusSession("a", bus, session_settings=settings)
    theirs = SQLiteSession("a", session_settings=settings)
    assert isinstance(ours, Session)
    popped = 0
    for _ in range(60):
        action = rng.choices(["add", "pop", "get", "clear"], [4, 3, 3, 0.3])[0]
        if action == "add":
            items = [random_item(rng) for _ in range(rng.choice([0, 1, 1, 2, 5]))]
            assert (await ours.add_items(items), await theirs.add_items(items)) == (None, None)
        elif action == "pop":
            found = await theirs.pop_item()
            assert await ours.pop_item() == found
            popped += found is not None
        elif action == "get":
            limit = rng.choice([None, -1, 0, 1, 3, 100])
            assert await ours.get_items(limit) == await theirs.get_items(limit)
        else:
            assert (await ours.clear_session(), await theirs.clear_session()) == (None, None)
    assert popped > 5
    theirs.close()


async def test_a_run_continues_the_conversation_that_another_process_stored(engine: Engine) -> None:
    ours, theirs = ScriptedModel(*SCRIPT), ScriptedModel(*SCRIPT)
    reference = SQLiteSession("chat-7")
    for text in ("hello", "and the weather?", "thanks"):
        # Each turn opens the bus again, as another process would.
        async with engine.connect() as bus:
            answer = await ask(ours, AgentBusSession("chat-7", bus), text)
            assert answer == await ask(theirs, reference, text)
    assert ours.asked == theirs.asked
    async with engine.connect() as bus:
        session = AgentBusSession("chat-7", bus)
        items: list[Any] = list(await session.get_items())
        assert items == await reference.get_items()
        assert [item.get("type") or item["role"] for item in items] == [
            "user", "message", "user", "function_call", "function_call_output", "message", "user", "message",
        ]  # fmt: skip
        limited = ScriptedModel("last")
        await ask(limited, session, "limited", session_settings=SessionSettings(limit=1))
        assert [one.get("content") for one in limited.asked[0]][1:] == ["limited"]
    reference.close()


async def test_of_concurrent_pops_each_gets_another_item(engine: Engine) -> None:
    async with engine.connect() as bus, engine.connect() as other:
        sessions = [AgentBusSession("a", bus), AgentBusSession("a", other)]
        await sessions[0].add_items([{"role": "user", "content": str(number)} for number in range(12)])
        popped = await asyncio.gather(*(session.pop_item() for session in sessions * 8))
        assert sorted(int(item["content"]) for item in popped if item) == list(range(12))
        assert await sessions[1].get_items() == []


async def test_a_pop_takes_the_newest_item_though_another_process_adds_one_meanwhile(bus: Bus) -> None:
    session = AgentBusSession("a", bus)
    await session.add_items([{"role": "user", "content": "old"}])
    original, newest = session._newest, {"role": "user", "content": "new"}

    async def interrupted(limit: int) -> Any:
        found = await original(limit)
        if len(await original(5)) == 1:
            await AgentBusSession("a", bus).add_items([newest])
        return found

    session._newest = interrupted  # type: ignore[method-assign]
    assert await session.pop_item() == newest
    assert [item["content"] for item in await session.get_items()] == ["old"]


async def test_two_processes_that_add_and_pop_lose_and_double_nothing(engine: Engine) -> None:
    async with engine.connect():
        pass
    each = 20
    with (
        closing(Worker(WORKER, engine.url, "contend", "a", each)) as a,
        closing(Worker(WORKER, engine.url, "contend", "b", each)) as b,
    ):
        for worker in (a, b):
            worker.expect("ready")
        for worker in (a, b):
            worker.tell("start")
        popped = [text for worker in (a, b) for text in json.loads(worker.expect("popped", 60))]
    assert len(popped) == each
    async with engine.connect() as bus:
        left = [str(item["content"]) for item in await AgentBusSession("session", bus).get_items()]
    assert sorted([*popped, *left]) == sorted(f"{name} {number}" for name in "ab" for number in range(each))
    for name in "ab":
        numbers = [int(text.split()[1]) for text in left if text.startswith(name)]
        assert numbers == sorted(numbers)


async def test_what_was_acknowledged_survives_kill_9(engine: Engine) -> None:
    async with engine.connect():
        pass
    stored = append_and_kill("openai_agents", engine.url)
    async with engine.connect() as bus:
        items = await AgentBusSession("session", bus).get_items()
    assert [item["content"] for item in items] == [str(number) for number in range(len(items))]
    # The batch of two that was on its way is there as a whole or not at all.
    assert len(items) in {stored, stored + 2}


async def test_the_conversation_is_on_the_bus(engine: Engine) -> None:
    item: Any = {"role": "user", "content": "grüße"}
    async with engine.connect() as bus:
        await AgentBusSession("chat-7", bus).add_items([item])
        (history,) = (await bus.histories.list("openai")).items
        assert (history.name, history.items) == ("chat-7", 1)
        assert [one.body for one in await bus.histories.items("openai", "chat-7")] == [
            '{"role":"user","content":"grüße"}'.encode()
        ]
        await bus.histories.copy("openai", "chat-7", "fork")
        assert await AgentBusSession("fork", bus).get_items() == [item]
        await bus.histories.write("openai", "other", [HistoryPut(body=b'{"role":"user"}')])
        assert await AgentBusSession("other", bus).get_items() == [{"role": "user"}]
        async with exported(bus) as other:
            assert await AgentBusSession("chat-7", other).get_items() == [item]
    async with copied(engine.url) as copy:
        assert await AgentBusSession("chat-7", copy).get_items() == [item]


@pytest.mark.one_engine
async def test_a_session_opens_the_bus_that_it_is_given_the_place_of(engine: Engine) -> None:
    async with AgentBusSession("a", engine.url) as session:
        await session.add_items([{"role": "user", "content": "hello"}])
    async with AgentBusSession("a", engine.url) as session:
        assert await session.get_items() == [{"role": "user", "content": "hello"}]
    with pytest.raises(BusClosed):
        await session.get_items()
    wrong: Any = sync.connect(engine.url)
    with pytest.raises(InvalidInput, match=r"agentbus\.connect\(\)"):
        AgentBusSession("a", wrong)


@pytest.mark.one_engine
async def test_the_example_continues_a_conversation_in_another_process(engine: Engine) -> None:
    assert run("openai_agents_session.py", engine.url) == [
        "I was asked ['What is a bus?']",
        "the process ended with signal 9",
        "I was asked ['What is a bus?', 'Who needs one?']",
        "the process ended with signal 9",
        "history chat-7 has 4 items",
        "the fork has 3 items, the original 4",
    ]
