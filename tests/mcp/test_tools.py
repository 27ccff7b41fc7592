"""The tools, through the dispatcher, on both engines: what a model is told, and what the bus then holds."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import pytest

from agentbus.core import process_info
from agentbus.mcp.identity import FixedIdentity, SessionIdentity
from agentbus.mcp.protocol import Request
from agentbus.mcp.server import MCPServer
from agentbus.operations.agent_identity import processes_of_host
from agentbus.operations.hook_ledger import SCOPE
from agentbus.operations.quotas import ChangeQuotasRequest, change_quotas
from agentbus.operations.state import ChangeRequest, change_state
from agentbus.sync.bus import Interrupted
from agentbus.sync.identity import client_process, find_client, join_client, remember_client
from tests.mcp.conftest import Client, with_meta
from tests.support.clock import FakeClock


@pytest.fixture
def joined(server: MCPServer) -> Callable[..., Client]:
    """Return clients that have joined."""

    def join(name: str, **options: Any) -> Client:
        client = Client(server)
        client.call("join", name=name, **options)
        return client

    return join


def test_two_agents_talk(joined: Callable[..., Client]) -> None:
    planner, builder = joined("planner"), joined("builder", type="executor")
    seen = builder.call("join", name="builder")
    assert seen["others"] == [{"id": "planner", "type": "worker", "status": "running", "progress": 0}]
    sent = planner.call("send", to="builder", payload={"text": "build it"}, priority=7)
    assert sent["delivered"] == 1
    (peeked,) = builder.call("receive", peek=True)["messages"]
    assert "lease" not in peeked
    assert sent["reach"] == "next_turn"
    (message,) = builder.call("receive")["messages"]
    assert (message["sender"], message["payload"], message["priority"]) == ("planner", {"text": "build it"}, 7)
    assert builder.call("join", name="builder")["held"][0]["lease"] == message["lease"]
    answer = builder.call("send", reply_to=message["lease"], payload={"done": True})
    assert answer["acknowledged"] == message["lease"]
    assert builder.refused("settle", lease=message["lease"], outcome="retry")["code"] == "already_settled"
    (reply,) = planner.call("receive")["messages"]
    assert reply["payload"] == {"done": True}
    assert planner.call("settle", lease=reply["lease"], outcome="done")["status"] == "acked"
    assert planner.call("receive") == {"messages": []}


def test_a_message_is_settled_in_every_way(joined: Callable[..., Client], clock: FakeClock) -> None:
    agent = joined("a", pools=["work"])
    agent.call("send", to="pool:work", payload=1, id="job-1")
    assert agent.call("send", to="pool:work", payload=1, id="job-1")["duplicate"] is True
    lease = agent.call("receive")["messages"][0]["lease"]
    assert agent.call("settle", lease=lease, outcome="extend", delay=900)["seconds"] == 900
    agent.call("settle", lease=lease, outcome="retry", delay=0, note="not now")
    again = agent.call("receive")["messages"][0]
    assert again["attempts"] == 2
    assert agent.refused("settle", lease=lease, outcome="done")["code"] == "lease_lost"
    assert agent.call("settle", lease=again["lease"], outcome="reject", note="broken")["status"] == "dead"
    assert agent.call("receive")["messages"] == []


def test_messages_that_did_not_arrive_return_to_their_mailbox(joined: Callable[..., Client]) -> None:
    agent = joined("a")
    agent.call("send", to="a", payload="precious")
    with pytest.raises(BrokenPipeError), agent.reply("tools/call", name="receive", arguments={}) as reply:
        assert "precious" in str(reply.result)
        raise BrokenPipeError
    with agent.server.buses.borrow() as bus:
        assert bus.do(bus.messages.receipts("m-1")) == []
    (message,) = agent.call("receive")["messages"]
    # The attempt did not count.
    assert (message["payload"], message["attempts"]) == ("precious", 1)
    with agent.server.buses.borrow() as bus:
        assert [(one.agent, one.channel) for one in bus.do(bus.messages.receipts("m-1"))] == [("a", "mcp")]


def test_a_model_is_told_that_its_message_is_held(server: MCPServer, joined: Callable[..., Client]) -> None:
    planner, builder = joined("planner"), joined("builder")
    with server.buses.borrow() as bus:
        bus.write(change_quotas, ChangeQuotasRequest({"thread": 2}))
    planner.call("send", to="builder", payload=1)
    for one, held in ((builder, False), (planner, True)):
        (message,) = one.call("receive")["messages"]
        answer = one.call("send", reply_to=message["lease"], payload=2)
        assert answer.get("held", False) is held
    assert "a person" in answer["hold_reason"]


def test_a_request_returns_the_answer(joined: Callable[..., Client]) -> None:
    asker, answerer = joined("asker"), joined("answerer")

    def serve() -> None:
        (message,) = answerer.call("receive", wait=20)["messages"]
        assert message["wants_reply"] is True
        answerer.call("send", reply_to=message["lease"], payload={"ready": True})

    with ThreadPoolExecutor(1) as pool:
        serving = pool.submit(serve)
        answer = asker.call("send", to="answerer", payload={"q": "ready?"}, wait=20)["answer"]
        serving.result()
    assert (answer["sender"], answer["payload"]) == ("answerer", {"ready": True})


def test_send_wants_one_recipient(joined: Callable[..., Client]) -> None:
    agent = joined("a")
    for arguments in ({}, {"to": "a", "reply_to": "m-1#1"}, {"reply_to": "m-1#1", "wait": 1}):
        assert agent.refused("send", payload=1, **arguments)["code"] == "invalid_arguments"
    assert agent.refused("send", to="nobody", payload=1)["code"] == "unknown_recipient"
    assert agent.refused("send", to="a", payload=1, type="no_type")["code"] == "unknown_type"


def test_state_is_shared_by_scope(joined: Callable[..., Client]) -> None:
    one, two = joined("one"), joined("two")
    assert one.call("state", action="set", key="plan", value={"files": 3})["version"] == 1
    assert two.call("state", action="get", key="plan") == {"key": "plan", "found": False}
    assert two.call("state", action="get", key="plan", scope="one")["value"] == {"files": 3}
    assert one.call("state", action="set", key="plan", value=None, if_version=1)["version"] == 2
    assert one.refused("state", action="set", key="plan", value=1, if_version=1)["code"] == "version_conflict"
    assert one.refused("state", action="set", key="plan")["code"] == "invalid_arguments"
    assert [one.call("state", action="increment", key="n", scope="c", value=5)["value"] for _ in "ab"] == [5, 10]
    assert one.call("state", action="list", scope="c")["entries"] == [{"key": "n", "value": 10, "version": 2}]
    assert one.call("state", action="delete", key="n", scope="c")["existed"] is True
    assert one.refused("state", action="list", scope=SCOPE)["code"] == "reserved_scope"


def test_a_name_that_coincides_joins_no_agent_of_another_session(server: MCPServer) -> None:
    """Neither while that one runs, nor after it has ended: its mailbox is not this client's."""
    with server.buses.borrow() as bus:
        first = join_client(bus, "claude-1", session="s-1", process=None, pid=None)
        second = join_client(bus, "claude-1", session="s-2", process=None, pid=None)
        assert second.id.startswith("claude-1-")
        assert join_client(bus, "claude-1", session="s-1", process=None, pid=None).identity == first.identity
        assert join_client(bus, "claude-1", session="s-2", process=None, pid=None).identity == second.identity
        bus.register("codex-1", type="worker").fail("ended")
        assert join_client(bus, "codex-1", session="s-3", process=None, pid=None).id != "codex-1"
        # A parallel hook of the same session has registered it, and has not mapped the session yet.
        bus.write(change_state, ChangeRequest(SCOPE, "session/s-1", internal=True))
        assert join_client(bus, "claude-1", session="s-1", process=None, pid=None).identity == first.identity


def test_a_report_is_progress_checkpoint_and_end(server: MCPServer, joined: Callable[..., Client]) -> None:
    agent = joined("a")
    assert agent.call("report", progress=40, note="half", tokens=100, checkpoint={"step": 2})["checkpoint"] > 0
    assert agent.call("report", note="more", tokens=50) == {
        "agent": "a", "status": "running", "tokens": 150, "progress": 40,
    }  # fmt: skip
    assert agent.call("report", status="busy")["status"] == "busy"
    found = agent.call("join", name="a")
    assert found["checkpoint"]["snapshot"] == {"step": 2}
    with server.buses.borrow() as bus:
        record = bus.do(bus.agents.get("a"))
        assert record is not None
        assert (record.progress, record.note) == (40, "more")
    agent.call("report", status="complete")
    assert agent.refused("receive")["code"] == "not_joined"
    assert agent.call("join", name="a")["epoch"] == 2


def test_a_client_that_is_no_agent_is_told_to_join(client: Client) -> None:
    for tool, arguments in {"send": {"to": "a", "payload": 1}, "receive": {}, "report": {}}.items():
        error = client.refused(tool, **arguments)
        assert (error["code"], "join" in error["fix"]) == ("not_joined", True)


def test_a_name_in_use_is_not_taken_over(joined: Callable[..., Client], server: MCPServer) -> None:
    joined("a")
    error = Client(server).refused("join", name="a")
    assert error["code"] == "agent_exists"
    assert "another name" in error["fix"]


def test_joining_again_is_the_same_incarnation_with_more_pools(joined: Callable[..., Client]) -> None:
    agent = joined("a", pools=["one"])
    again = agent.call("join", name="other-name", pools=["two"])
    assert (again["agent"], again["epoch"], again["pools"]) == ("a", 1, ["one", "two"])
    assert "not used" in again["note"]


# Identity


def test_a_session_gets_its_agent_back_as_a_new_incarnation(server: MCPServer) -> None:
    first = Client(server, SessionIdentity("session-1"))
    first.call("join", name="reviewer-1", type="executor", pools=["reviews"])
    first.call("send", to="reviewer-1", payload="kept")
    # The server starts again: no join is needed, and the name of one does not matter.
    second = Client(server, SessionIdentity("session-1"))
    (message,) = second.call("receive")["messages"]
    assert message["payload"] == "kept"
    found = second.call("join", name="another")
    assert (found["agent"], found["epoch"], found["pools"]) == ("reviewer-1", 2, ["reviews"])
    # The one before is fenced, so that two servers of one session do not act as one agent.
    assert first.refused("receive")["code"] == "agent_fenced"
    # Another session is another client.
    assert Client(server, SessionIdentity("session-2")).refused("receive")["code"] == "not_joined"


def test_a_session_that_the_client_has_cleared_keeps_its_agent(server: MCPServer) -> None:
    process = "host 41 12345"
    Client(server, SessionIdentity("before", process)).call("join", name="a")
    with server.buses.borrow() as bus:
        # A hook reports the new session of the same process.
        assert find_client(bus, session="after", process=process) == "a"
        assert find_client(bus, session="foreign", process="host 99 1") is None
    assert Client(server, SessionIdentity("after")).call("join", name="new")["agent"] == "a"


def test_hooks_and_server_of_one_client_act_as_one_agent(server: MCPServer) -> None:
    """The server joins the incarnation that a hook has registered, by session or process: what the hook has shown stays
    leased, and is settled by the server. It continues when the server ends."""
    for number, identity in enumerate((SessionIdentity("s-1"), SessionIdentity(None, "host 41 1"))):
        with server.buses.borrow() as bus:
            hooked = join_client(bus, "claude-1", session="s-1", process="host 41 1", pid=None)
            hooked.send("claude-1", "note", number)
            (shown,) = hooked.receive_many(1)
        client = Client(server, identity)
        assert client.call("receive")["messages"] == []
        client.call("settle", lease=shown.lease, outcome="done")
        found = client.call("join", name="another", pools=[f"pool-{number}"])
        assert (found["agent"], found["epoch"]) == ("claude-1", 1)
        with server.buses.borrow() as bus:
            identity.leave(bus)
            record = bus.do(bus.agents.get("claude-1"))
            assert record is not None
            assert record.status == "running"
            assert sorted(bus.agent("claude-1").registration.pools) == [f"pool-{i}" for i in range(number + 1)]


def test_a_client_may_name_the_agent_that_its_hooks_have_registered(server: MCPServer) -> None:
    """By ``join``, as long as no message was sent to the first name. Its hooks follow."""
    process = "host 41 1"
    with server.buses.borrow() as bus:
        join_client(bus, "claude-1", session="s-1", process=process, pid=None)
    client = Client(server, SessionIdentity("s-1"))
    assert client.call("join", name="planner", type="planner")["agent"] == "planner"
    with server.buses.borrow() as bus:
        assert find_client(bus, session="s-1") == "planner"
        assert join_client(bus, "claude-1", session="s-1", process=process, pid=None).identity == "planner#1"
        record = bus.do(bus.agents.get("claude-1"))
        assert record is not None
        assert record.status == "stopped"
        # Once: another name, or one after a message was sent, does not matter.
        bus.agent("planner").send("planner", "note", 1)
        join_client(bus, "codex-1", session="s-2", process=None, pid=None)
        bus.agent("planner").send("codex-1", "note", 2)
    assert Client(server, SessionIdentity("s-1")).call("join", name="other")["agent"] == "planner"
    other = Client(server, SessionIdentity("s-2"))
    assert other.call("join", name="builder")["agent"] == "codex-1"
    (message,) = other.call("receive")["messages"]
    assert message["payload"] == 2


def test_hooks_follow_a_name_though_the_server_does_not_know_the_session(server: MCPServer) -> None:
    """Codex and Gemini tell it to hooks only. The process is what both know, also after ``/clear``."""
    process = client_process(os.getpid())
    with server.buses.borrow() as bus:
        join_client(bus, "codex-1", session="before", process=process, pid=os.getpid())
        assert find_client(bus, session="after", process=process) == "codex-1"
    assert Client(server, SessionIdentity(None, process)).call("join", name="builder")["agent"] == "builder"
    with server.buses.borrow() as bus:
        assert find_client(bus, session="after") == "builder"
        assert join_client(bus, "codex-1", session="after", process=process, pid=os.getpid()).identity == "builder#1"


def test_any_text_can_be_a_session(server: MCPServer) -> None:
    with server.buses.borrow() as bus:
        for session in ("a b\n", "ü" * 300, "x" * 5000, "/", "\udcff"):
            remember_client(bus, "agent-1", session=session, process=None)
            assert find_client(bus, session=session) == "agent-1"


def test_a_named_agent_is_used_whatever_the_model_says(server: MCPServer) -> None:
    named = Client(server, FixedIdentity("worker-7"))
    assert named.refused("receive")["code"] == "not_joined"
    assert named.call("join", name="somebody")["agent"] == "worker-7"
    assert named.call("join", name="somebody")["epoch"] == 1
    named.call("report", status="complete")
    assert named.refused("receive")["code"] == "agent_fenced"
    assert named.call("join", name="worker-7")["epoch"] == 2
    assert Client(server, FixedIdentity(None)).refused("join", name="x")["code"] == "no_agent_identity"


# Cancellation and subscriptions


def test_a_cancelled_call_ends_and_takes_nothing(server: MCPServer, joined: Callable[..., Client]) -> None:
    agent, other = joined("a"), joined("b")
    params = with_meta({"name": "receive", "arguments": {"wait": 50}})
    context = server.dispatcher.open(Request(9, "tools/call", params), agent.connection)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(server.dispatcher.answer, context)
        while not _is_waiting(server):
            assert not waiting.done()
        context.cancellation.cancel()
        with pytest.raises(Interrupted):
            waiting.result(20)
    other.call("send", to="a", payload=1)
    assert len(agent.call("receive")["messages"]) == 1


def _is_waiting(server: MCPServer) -> bool:
    """Return whether a process waits, besides the two that the agents belong to."""
    with server.buses.borrow() as bus:
        return len(bus.read(processes_of_host, process_info.host_key())) > 2


def test_an_inbox_reports_arrivals(server: MCPServer, joined: Callable[..., Client]) -> None:
    agent, other = joined("a"), joined("b")
    arrived, ready = Event(), Event()
    sent: list[dict[str, Any]] = []

    def emit(message: dict[str, Any]) -> None:
        sent.append(message)
        (ready if "acknowledged" in message["method"] else arrived).set()

    wanted = {"resourceSubscriptions": ["bus://inbox/a", "bus://status"], "toolsListChanged": True}
    request = Request("s1", "subscriptions/listen", with_meta({"notifications": wanted}))
    context = server.dispatcher.open(request, agent.connection, emit)
    with ThreadPoolExecutor(1) as pool:
        listening = pool.submit(server.dispatcher.answer, context)
        assert ready.wait(20)
        other.call("send", to="a", payload=1)
        assert arrived.wait(20)
        context.cancellation.cancel()
        listening.result(20)
    meta = {"io.modelcontextprotocol/subscriptionId": "s1"}
    assert sent[0]["params"] == {"notifications": {"resourceSubscriptions": ["bus://inbox/a"]}, "_meta": meta}
    assert sent[1]["method"] == "notifications/resources/updated"
    assert sent[1]["params"] == {"uri": "bus://inbox/a", "_meta": meta}
