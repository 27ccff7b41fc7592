"""The server as a process at the pipes of a client: what a broken client, a cancelled call and a signal do to it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from agentbus.mcp.protocol import INVALID_REQUEST, MAX_BYTES, PARSE_ERROR
from agentbus.sync.bus import BlockingBus
from tests.mcp.conftest import TIMEOUT, Processes, content, with_meta
from tests.support import zygote

HEAVY = {"asyncio", "anyio", "aiosqlite", "tenacity", "rich", "socket", "starlette", "uvicorn"}


def test_two_agents_talk_over_pipes(start: Processes) -> None:
    planner, builder = start(), start()
    planner.call("join", name="planner")
    builder.call("join", name="builder")
    waiting = builder.send("tools/call", name="receive", arguments={"wait": 30})
    planner.call("send", to="builder", payload={"text": "build it"})
    (message,) = content(builder.answer(waiting)["result"])["messages"]
    assert message["payload"] == {"text": "build it"}
    builder.call("send", reply_to=message["lease"], payload="done")
    assert planner.call("receive")["messages"][0]["payload"] == "done"
    assert planner.end() == (0, b"")


def test_a_long_poll_keeps_no_other_call_waiting(start: Processes) -> None:
    agent = start()
    agent.call("join", name="a")
    polls = [agent.send("tools/call", name="receive", arguments={"wait": 55}) for _ in range(3)]
    for number in range(5):
        assert agent.call("state", action="increment", key="n")["value"] == number + 1
    for _ in polls:
        agent.call("send", to="a", payload=1)
    answers = [content(agent.answer(poll)["result"])["messages"] for poll in polls]
    assert sorted(message["message_id"] for (message,) in answers) == ["m-1", "m-2", "m-3"]


def test_a_cancelled_call_is_not_answered_and_takes_nothing(start: Processes) -> None:
    agent = start()
    agent.call("join", name="a")
    poll = agent.send("tools/call", name="receive", arguments={"wait": 55})
    cancelled = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": poll}}
    agent.write(json.dumps(cancelled).encode() + b"\n")
    # Its id may be used again once the call has ended.
    agent.call("send", to="a", payload="for the next")
    while not (messages := agent.call("receive")["messages"]):
        pass
    assert messages[0]["payload"] == "for the next"
    assert agent.is_silent()
    unknown = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": [1]}}
    agent.write(json.dumps(unknown).encode() + b"\n" + b'{"jsonrpc": "2.0", "method": "no/such"}\n')
    assert agent.call("receive")["messages"] == []


def test_what_is_no_message_is_answered_and_harms_nothing(start: Processes) -> None:
    agent = start()
    agent.write(b"\n  \n\r\n")
    agent.write(b"hello\n")
    assert agent.next()["error"]["code"] == PARSE_ERROR
    agent.write(b"\xff\xfe\x00\n")
    assert agent.next()["error"]["code"] == PARSE_ERROR
    agent.write(b"[1, 2]\n")
    assert agent.next()["error"]["code"] == INVALID_REQUEST
    # In pieces, and several in one piece.
    whole = json.dumps({"jsonrpc": "2.0", "id": "p", "method": "tools/list", "params": with_meta({})}).encode()
    for index in range(0, len(whole), 7):
        agent.write(whole[index : index + 7])
    agent.write(b"\n" + whole + b"\r\n" + whole + b"\n")
    assert [agent.next()["id"] for _ in range(3)] == ["p"] * 3
    # Responses to requests that the server never made.
    agent.write(b'{"jsonrpc": "2.0", "id": 1, "result": {}}\n')
    assert agent.call("join", name="a")["agent"] == "a"


def test_a_call_with_half_a_character_is_answered_by_its_id(start: Processes) -> None:
    client = start()
    # What JSON.stringify of a text that was cut inside an emoji sends.
    client.write(b'{"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "\\ud83d"}}\n')
    answer = client.next()
    assert (answer["id"], answer["error"]["code"]) == (7, -32700)
    assert "not valid Unicode: send UTF-8" in answer["error"]["message"]


def test_a_line_that_is_too_long_is_refused_and_the_next_one_answered(start: Processes) -> None:
    agent = start()
    piece = b"x" * 1024 * 1024
    for _ in range(MAX_BYTES // len(piece) + 2):
        agent.write(piece)
    agent.write(b"\n")
    fault = agent.next()
    assert (fault["error"]["code"], "MiB" in fault["error"]["message"]) == (INVALID_REQUEST, True)
    assert agent.call("join", name="a")["agent"] == "a"


def test_half_a_line_is_not_carried_out(start: Processes, local: BlockingBus) -> None:
    agent = start()
    agent.call("join", name="a")
    request = {"jsonrpc": "2.0", "id": 9, "method": "tools/call",
               "params": with_meta({"name": "send", "arguments": {"to": "a", "payload": 1}})}  # fmt: skip
    agent.write(json.dumps(request).encode())
    assert agent.end() == (0, b"")
    assert local.do(local.messages.list()).items == []


def test_a_batch_is_answered_by_one_list_where_the_revision_has_batches(start: Processes) -> None:
    def call(id: int, tool: str, **arguments: Any) -> dict[str, Any]:
        params = {"name": tool, "arguments": arguments}
        return {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}

    process = start()
    batch = [
        call(11, "join", name="a"), call(12, "send", to="a", payload="x"), call(13, "receive", wait=5), 7,
        {"jsonrpc": "2.0", "method": "notifications/initialized"}, call(11, "join", name="a"),
    ]  # fmt: skip
    for version, accepted in {"2025-06-18": False, "2025-03-26": True}.items():
        opening = {"protocolVersion": version, "capabilities": {}}
        process.write(
            json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": opening}).encode() + b"\n"
        )
        assert process.next()["result"]["protocolVersion"] == version
        process.write(json.dumps(batch).encode() + b"\n")
        if not accepted:
            assert process.next()["error"]["code"] == -32600
    answers: Any = process.next()
    assert sorted(str(one.get("id")) for one in answers) == ["11", "11", "12", "13", "None"]
    found = {one["id"]: content(one["result"]) for one in answers if "result" in one}
    assert found[13]["messages"][0]["payload"] == "x"
    assert sum("error" in one for one in answers) == 2, "no object, and an id in use"
    assert process.call("settle", lease=found[13]["messages"][0]["lease"], outcome="done")["status"] == "acked"
    # The last one waits: cancelling it keeps nothing of the batch from being answered.
    process.write(json.dumps([call(21, "send", to="a", payload="y"), call(22, "receive"), call(23, "receive", wait=50)])
                  .encode() + b"\n")  # fmt: skip
    process.write(json.dumps({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 23}})
                  .encode() + b"\n")  # fmt: skip
    answers = process.next()
    assert {one["id"] for one in answers} == {21, 22}


def test_an_id_in_use_is_refused(start: Processes) -> None:
    agent = start()
    agent.call("join", name="a")
    poll = agent.send("tools/call", name="receive", arguments={"wait": 55})
    again = {"jsonrpc": "2.0", "id": poll, "method": "tools/list", "params": with_meta({})}
    agent.write(json.dumps(again).encode() + b"\n")
    assert agent.answer(poll)["error"]["code"] == INVALID_REQUEST
    agent.call("send", to="a", payload=1)
    assert content(agent.answer(poll)["result"])["messages"]


def test_an_id_may_be_used_again_once_it_is_answered(start: Processes) -> None:
    agent = start()
    agent.call("join", name="a")
    params = with_meta({"name": "receive", "arguments": {"wait": 0.001}})
    line = json.dumps({"jsonrpc": "2.0", "id": "same", "method": "tools/call", "params": params}).encode() + b"\n"
    for _ in range(30):
        agent.write(line)
        assert "result" in agent.next()


def test_a_client_that_is_gone_loses_nothing(start: Processes, local: BlockingBus) -> None:
    """Its leases return at once, and its mailbox waits for its return."""
    agent = start(CLAUDE_CODE_SESSION_ID="s-1")
    agent.call("join", name="a")
    agent.call("send", to="a", payload="held")
    assert agent.call("receive")["messages"]
    agent.send("tools/call", name="receive", arguments={"wait": 55})
    assert agent.end() == (0, b"")
    (message,) = local.do(local.messages.list()).items
    assert message.status == "queued"
    record = local.do(local.agents.get("a"))
    assert record is not None
    assert (record.status, record.error) == ("failed", "its MCP client disconnected")
    # Killed, it could not say so: others find out.
    again = start(CLAUDE_CODE_SESSION_ID="s-1")
    assert again.call("receive")["messages"][0]["payload"] == "held"
    again.kill()
    third = start(CLAUDE_CODE_SESSION_ID="s-1")
    assert third.call("receive")["messages"][0]["payload"] == "held"
    assert third.call("join", name="x")["epoch"] == 3


def test_an_answer_that_cannot_be_written_is_taken_back(directory: Path, local: BlockingBus) -> None:
    sender = local.register("sender", type="worker")
    process = zygote.Popen(
        [zygote.COMMAND, "mcp"], cwd=directory, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    join = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": with_meta({"name": "join", "arguments": {"name": "a"}}),
    }
    process.stdin.write(json.dumps(join).encode() + b"\n")
    process.stdin.flush()
    assert process.stdout.readline()
    sender.send("a", "note", "precious")
    process.stdout.close()
    receive = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": with_meta({"name": "receive"})}
    process.stdin.write(json.dumps(receive).encode() + b"\n")
    process.stdin.flush()
    # It ends by itself, although its input is still open.
    _, errors = process.communicate(timeout=TIMEOUT)
    assert errors == b""
    (message,) = local.do(local.messages.list()).items
    assert (message.status, message.attempts) == ("queued", 0)


def test_a_signal_releases_what_is_held(start: Processes, local: BlockingBus) -> None:
    agent = start()
    agent.call("join", name="a")
    agent.call("send", to="a", payload=1)
    assert agent.call("receive")["messages"]
    agent.send("tools/call", name="receive", arguments={"wait": 55})
    agent.call("state", action="list")
    os.kill(agent.popen.pid, signal.SIGTERM)
    assert agent.popen.wait(TIMEOUT) == 128 + signal.SIGTERM
    (message,) = local.do(local.messages.list()).items
    assert message.status == "queued"


def test_the_environment_names_the_agent(start: Processes, local: BlockingBus) -> None:
    identity = local.register("planner-1", type="planner").identity
    agent = start(AGENTBUS_AGENT=identity, CLAUDE_CODE_SESSION_ID="s-1")
    found = agent.call("join", name="something-else")
    assert (found["agent"], found["epoch"]) == ("planner-1", 1)
    assert agent.end() == (0, b"")
    # It belongs to the process that registered it, not to this server.
    record = local.do(local.agents.get("planner-1"))
    assert record is not None
    assert record.status == "running"


def test_a_bus_that_is_created_later_is_found(tmp_path: Path) -> None:
    processes = Processes(tmp_path)
    agent = processes("--tools", "join,send")
    answer = agent.answer(agent.send("tools/call", name="join", arguments={"name": "a"}))["result"]
    assert "agentbus init" in content(answer)["error"]["fix"]
    assert zygote.run([zygote.COMMAND, "init"], cwd=tmp_path, timeout=TIMEOUT).returncode == 0
    assert agent.call("join", name="a")["agent"] == "a"
    assert len(agent.answer(agent.send("tools/list"))["result"]["tools"]) == 2
    processes.close()


def test_a_client_of_the_handshake_is_notified_of_its_inbox(start: Processes, local: BlockingBus) -> None:
    agent = start()

    def ask(id: int, method: str, **params: object) -> None:
        agent.write(json.dumps({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).encode() + b"\n")

    ask(1, "initialize", protocolVersion="2025-06-18", capabilities={}, clientInfo={"name": "t", "version": "1"})
    assert agent.next()["result"]["protocolVersion"] == "2025-06-18"
    agent.write(b'{"jsonrpc": "2.0", "method": "notifications/initialized"}\n')
    ask(2, "resources/subscribe", uri="bus://inbox/sender")
    assert agent.next() == {"jsonrpc": "2.0", "id": 2, "result": {}}
    sender = local.register("sender", type="worker")
    # The subscription starts on a thread of its own: before it does, nothing is reported.
    while agent.is_silent():
        sender.send("sender", "note", "x")
        time.sleep(0.01)
    assert agent.answer(None)["method"] == "notifications/resources/updated"
    ask(3, "resources/unsubscribe", uri="bus://inbox/sender")
    while (message := agent.next()).get("id") != 3:
        assert message["method"] == "notifications/resources/updated"
    ask(4, "resources/subscribe", uri="bus://status")
    assert agent.next()["error"]["data"] == {"uri": "bus://status"}


def test_the_server_imports_nothing_heavy(directory: Path) -> None:
    program = """
import sys
from agentbus.cli.entry_point import import_msgspec
import_msgspec()
from agentbus.cli.main import main
main(["mcp"])
print(" ".join(sys.modules), file=sys.stderr)
"""
    calls = [{"name": "join", "arguments": {"name": "a"}}, {"name": "send", "arguments": {"to": "a", "payload": 1}}]
    lines = [
        json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": with_meta(call)}).encode() + b"\n"
        for call in calls
    ]
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=directory,
        input=b"".join(lines),
        capture_output=True,
        timeout=TIMEOUT,
        check=True,
    )
    assert done.stdout.count(b"\n") == 2
    assert b"isError" not in done.stdout
    assert not HEAVY & set(done.stderr.decode().split())


_READER = """
import signal, sys, threading
from agentbus.mcp.stdio import lines, wakeup

def end(*_):
    sys.exit(7)

signal.signal(signal.SIGTERM, end)
threading.Thread(target=signal.pause, daemon=True).start()
# The other thread gets the signal, so it does not interrupt the read.
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
with wakeup() as woken:
    for _ in lines(0, woken):
        print("read", flush=True)
"""


def test_a_signal_that_interrupts_no_read_ends_the_wait() -> None:
    """Python runs its handler between two instructions of the main thread, which waits for the client."""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", _READER], stdin=pipe, stdout=pipe, text=True) as reader:
        assert reader.stdin is not None
        assert reader.stdout is not None
        reader.stdin.write("{}\n")
        reader.stdin.flush()
        assert reader.stdout.readline() == "read\n"
        reader.send_signal(signal.SIGTERM)
        assert reader.wait(TIMEOUT) == 7
