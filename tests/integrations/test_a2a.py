"""A2A tasks on a bus behave as in the SDK's own store; an agent of another vendor calls one of the bus."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

import agentbus
from agentbus import Agent, Bus
from tests.api.helpers import running
from tests.conftest import Engine
from tests.examples.test_examples import run

pytest.importorskip("a2a", reason="a2a-sdk is not installed: run make integrations")

import httpx
from a2a.auth.user import User
from a2a.client import Client, ClientConfig, ClientFactory
from a2a.helpers import get_artifact_text, get_message_text, new_text_message
from a2a.server.agent_execution import RequestContext
from a2a.server.context import ServerCallContext
from a2a.server.events import EventQueue
from a2a.server.tasks import InMemoryTaskStore
from a2a.types.a2a_pb2 import (
    Artifact,
    CancelTaskRequest,
    GetTaskRequest,
    ListTasksRequest,
    Part,
    Role,
    SendMessageRequest,
    Task,
    TaskState,
    TaskStatus,
)
from a2a.utils.errors import InvalidParamsError, TaskNotFoundError
from google.protobuf.timestamp_pb2 import Timestamp

from agentbus.integrations.a2a import AgentBusExecutor, AgentBusTaskStore

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT = 60.0
WORKING, COMPLETED = TaskState.TASK_STATE_WORKING, TaskState.TASK_STATE_COMPLETED


class Named(User):
    """A user by name."""

    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def is_authenticated(self) -> bool:
        return True

    @property
    def user_name(self) -> str:
        return self._name


def call(user: str) -> ServerCallContext:
    return ServerCallContext(user=Named(user))


def task(id: str, second: int | None, state: int = WORKING, context: str = "talk-1") -> Task:
    made = Task(id=id, context_id=context, status=TaskStatus(state=state))
    if second is not None:
        made.status.timestamp.CopyFrom(Timestamp(seconds=1_800_000_000 + second, nanos=123_456_789))
    return made


def rich() -> Task:
    made = task("rich", 50, COMPLETED)
    made.history.append(new_text_message("Grüße ☃", role=Role.ROLE_USER))
    made.artifacts.append(Artifact(artifact_id="a", parts=[Part(raw=b"\x00\xff"), Part(url="https://example.org")]))
    made.metadata.update({"depth": {"list": [1, 2.5, None, True]}, "empty": ""})
    return made


def infinite() -> Task:
    made = task("infinite", 60)
    made.metadata.update({"limit": float("inf")})
    return made


async def outcome(awaitable: Any) -> Any:
    try:
        return await awaitable
    except InvalidParamsError as error:
        return type(error)


async def test_the_store_behaves_as_that_of_the_sdk(bus: Bus) -> None:
    ours, theirs = AgentBusTaskStore(bus), InMemoryTaskStore()
    saved = [
        ("ada", task("t1", 10)),
        ("ada", task("t2", 30, COMPLETED)),
        ("ada", task("t3", 30, context="talk-2")),
        ("ada", task("t4", None)),
        ("ada", task("t5", None, COMPLETED, "talk-2")),
        ("ada", rich()),
        ("ada", infinite()),
        # The same id of another owner is another task; names may contain anything.
        ("bob", task("t1", 99, context="secret")),
        ("ada/t1", task("x", 5)),
        ("ada", task("t1", 40, COMPLETED)),
    ]
    for user, one in saved:
        for store in (ours, theirs):
            await store.save(one, call(user))
    users, ids = ("ada", "bob", "ada/t1", "eve", ""), ("t1", "t4", "rich", "infinite", "x", "t1/x", "none")
    after = Timestamp(seconds=1_800_000_030, nanos=123_456_789)
    requests = [
        ListTasksRequest(),
        ListTasksRequest(context_id="talk-2"),
        ListTasksRequest(status=COMPLETED),
        ListTasksRequest(status=COMPLETED, context_id="talk-1"),
        ListTasksRequest(status_timestamp_after=after),
    ]
    for step in range(2):
        for user in users:
            for id in ids:
                assert await ours.get(id, call(user)) == await theirs.get(id, call(user)), (user, id, step)
            for request in requests:
                assert await ours.list(request, call(user)) == await theirs.list(request, call(user)), (user, request)
        for user, id in (("bob", "rich"), ("ada", "t2"), ("ada", "t4"), ("eve", "t1")):
            for store in (ours, theirs):
                await store.delete(id, call(user))


@pytest.mark.parametrize("size", [1, 2, 5])
async def test_pages_are_those_of_the_sdk_while_tasks_change(bus: Bus, size: int) -> None:
    ours, theirs = AgentBusTaskStore(bus), InMemoryTaskStore()
    for store in (ours, theirs):
        for number in range(7):
            await store.save(task(f"t{number}", number // 2 if number < 5 else None), call("ada"))
    token, seen = "", 0
    while True:
        request = ListTasksRequest(page_size=size, page_token=token)
        page, expected = [await store.list(request, call("ada")) for store in (ours, theirs)]
        assert page == expected
        seen += len(page.tasks)
        token = page.next_page_token
        if not token:
            break
        # A token of one store is one of the other, and stays valid when its task is gone.
        for store in (ours, theirs):
            await store.delete(page.tasks[-1].id, call("ada"))
    assert seen == 7
    for wrong in ("nonsense", "bm8="):
        bad = ListTasksRequest(page_token=wrong)
        assert await outcome(ours.list(bad, call("ada"))) == await outcome(theirs.list(bad, call("ada")))


async def test_tasks_are_visible_on_the_bus(bus: Bus) -> None:
    store = AgentBusTaskStore(bus)
    await store.save(task("t1", 10), call("ada"))
    await store.save(task("t1", 20, COMPLETED), call("ada"))
    (history,) = (await bus.histories.list("a2a")).items
    assert (history.name, history.items, history.version) == ("ada/t1", 1, 2)
    assert history.meta == {
        "owner": "ada",
        "task": "t1",
        "context": "talk-1",
        "state": "TASK_STATE_COMPLETED",
        "timestamp": 1_800_000_020_123_456_789,
    }


@pytest.mark.one_engine
async def test_ids_that_cannot_exist_are_unknown_and_wrong_parameters_are_refused(bus: Bus) -> None:
    store = AgentBusTaskStore(bus)
    await store.save(task("t1", 10, 99), call("ada"))
    for id in ("x" * 513, "%" * 200, "a\0b", ""):
        assert await store.get(id, call("ada")) is None
        await store.delete(id, call("ada"))
        with pytest.raises(InvalidParamsError):
            await store.save(task(id, 10), call("ada"))
    for context in ("x" * 70_000, "a\0b"):
        with pytest.raises(InvalidParamsError, match="context id"):
            await store.save(task("t2", 10, context=context), call("ada"))
        with pytest.raises(InvalidParamsError, match="context id"):
            await store.list(ListTasksRequest(context_id=context), call("ada"))
    with pytest.raises(InvalidParamsError, match="page size"):
        await store.list(ListTasksRequest(page_size=-1), call("ada"))
    with pytest.raises(InvalidParamsError, match="Unknown state of a task: 99"):
        await store.list(ListTasksRequest(status=cast("Any", 99)), call("ada"))
    assert [one.status.state for one in (await store.list(ListTasksRequest(), call("ada"))).tasks] == [99]


class Recorded(EventQueue):
    """Keeps the events of an executor."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    async def enqueue_event(self, event: Any) -> None:
        self.events.append(event)


@pytest.mark.one_engine
async def test_a_failure_names_no_agent_to_the_client(bus: Bus) -> None:
    message = new_text_message("hello", role=Role.ROLE_USER)
    context = RequestContext(call("ada"), SendMessageRequest(message=message))
    queue = Recorded()
    async with (
        bus.agent("gateway", type="worker") as gateway,
        bus.agent("internal-7", type="worker") as internal,
    ):

        async def refuse() -> None:
            received = await internal.receive(timeout=60)
            assert received is not None
            await received.reject("secret of internal-7")

        async with running(refuse()):
            await AgentBusExecutor(gateway, "internal-7").execute(context, queue)
    failed = queue.events[-1].status
    assert failed.state == TaskState.TASK_STATE_FAILED
    assert get_message_text(failed.message) == "The request could not be processed"


@contextmanager
def served(engine: Engine, listening: socket.socket) -> Iterator[subprocess.Popen[bytes]]:
    """A server process, killed with kill -9 at the end. The socket is the test's: no call is refused meanwhile."""
    command = [sys.executable, "-m", "tests.integrations.a2a_server", engine.url, str(listening.fileno())]
    with subprocess.Popen(command, cwd=ROOT, env=dict(os.environ), pass_fds=[listening.fileno()]) as process:
        try:
            yield process
        finally:
            process.kill()


@asynccontextmanager
async def calling(listening: socket.socket, tenant: str) -> AsyncIterator[Client]:
    """A client of the SDK, which knows only the address: it reads the agent card."""
    url = f"http://127.0.0.1:{listening.getsockname()[1]}/"
    async with httpx.AsyncClient(timeout=TIMEOUT, headers={"x-tenant": tenant}) as http:
        yield await ClientFactory(ClientConfig(httpx_client=http, streaming=False)).create_from_url(url)


async def send(client: Client, text: str, *, now: bool = False, again: Task | None = None) -> Task:
    """Send a message, or the first one of a task again; return the task."""
    message = new_text_message(text, role=Role.ROLE_USER) if again is None else again.history[0]
    request = SendMessageRequest(message=message)
    request.configuration.return_immediately = now
    return [response.task async for response in client.send_message(request)][-1]


async def comes_to(client: Client, task: Task, state: int) -> None:
    """Wait until the store has a task in a state: the server saves it while the agent works."""
    async with asyncio.timeout(TIMEOUT):
        # Each look is a call over HTTP: there is no need to wait between them.
        while (await client.get_task(GetTaskRequest(id=task.id))).status.state != state:
            pass


class Translator:
    """An agent of the bus that knows nothing of A2A. It leaves one question without a reply, and holds one back."""

    def __init__(self) -> None:
        self.questions: list[str] = []
        self.held = asyncio.Event()
        self.release = asyncio.Event()

    async def work(self, agent: Agent) -> None:
        async for message in agent.inbox():
            async with message:
                question = message.payload["question"]
                self.questions.append(question)
                if question == "wait":
                    self.held.set()
                    await self.release.wait()
                if question != "ignore":
                    reply = {"length": 5} if question == "count" else {"answer": question.upper()}
                    await message.reply("coordination_response", reply)


@pytest.mark.slow
async def test_an_agent_of_another_vendor_calls_one_of_the_bus(engine: Engine) -> None:
    translator = Translator()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        async with (
            agentbus.connect(engine.url) as bus,
            bus.agent("translator", type="worker", pools=["translators"]) as agent,
            running(translator.work(agent)),
        ):
            with served(engine, listening):
                async with calling(listening, "acme") as client:
                    done = await send(client, "hello")
                    assert done.status.state == COMPLETED
                    assert get_artifact_text(done.artifacts[0]) == "HELLO"
                    data = await send(client, "count")
                    assert data.artifacts[0].parts[0].data.struct_value["length"] == 5
                    ignored, waiting = [await send(client, text, now=True) for text in ("ignore", "wait")]
                    for one in (ignored, waiting):
                        await comes_to(client, one, WORKING)
                    await asyncio.wait_for(translator.held.wait(), TIMEOUT)
            # Killed with two tasks in the middle. The next server process has everything.
            with served(engine, listening):
                async with calling(listening, "acme") as client:
                    assert await client.get_task(GetTaskRequest(id=done.id)) == done
                    page = await client.list_tasks(ListTasksRequest(status=WORKING, page_size=1))
                    assert (page.total_size, [one.id for one in page.tasks]) == (2, [waiting.id])
                    # The client sends its message again: the agent does not get it twice, and its reply arrives.
                    again = await send(client, "wait", again=waiting, now=True)
                    translator.release.set()
                    await comes_to(client, again, COMPLETED)
                    cancelled = await client.cancel_task(CancelTaskRequest(id=ignored.id))
                    assert cancelled.status.state == TaskState.TASK_STATE_CANCELED
                async with calling(listening, "rival") as client:
                    with pytest.raises(TaskNotFoundError):
                        await client.get_task(GetTaskRequest(id=done.id))
                    assert (await client.list_tasks(ListTasksRequest())).total_size == 0
            histories = (await bus.histories.list("a2a", prefix="acme/")).items
            states = {one.meta["task"]: one.meta["state"].removeprefix("TASK_STATE_") for one in histories}
            assert states.pop(ignored.id) == "CANCELED"
            assert states == dict.fromkeys((done.id, data.id, waiting.id), "COMPLETED")
    assert translator.questions == ["hello", "count", "ignore", "wait"]


@pytest.mark.slow
@pytest.mark.one_engine
def test_the_example_finds_the_task_after_kill_9(engine: Engine) -> None:
    lines = [line for line in run("a2a_server.py", engine.url) if " is ready" not in line]
    assert lines == [
        "the translator got a coordination_request from a2a-gateway",
        "the client got: 'buon notte'",
        "the server was killed",
        "the new server has the task: 'buon notte'",
        "on the bus: an A2A task in TASK_STATE_COMPLETED",
    ]
