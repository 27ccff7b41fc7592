"""Servers that are killed, and servers that are fed nonsense: nothing is lost, and nothing crashes."""

from __future__ import annotations

import json
import random
import threading
from pathlib import Path
from typing import Any

import pytest

from agentbus.mcp.tools import TOOLS, tool_definitions
from agentbus.sync.bus import BlockingBus
from tests.mcp.conftest import TIMEOUT, Processes, content, with_meta
from tests.support import zygote

SERVERS = 20
MESSAGES = 80
KILLS = 10
LINES = 10_000
PROPERTIES: dict[object, dict[str, Any]] = {name: parts[1] for name, parts in tool_definitions().items()}
LIKELY = ["a", "b", "m-1#1", "m-999#1", "topic:t", "pool:p", "note", "key", 1, 5, {"text": "x"}]


@pytest.mark.slow
def test_twenty_servers_killed_at_random_lose_nothing(start: Processes, local: BlockingBus) -> None:
    """Each takes messages of a pool and settles them. Some are killed with what they hold, and start again."""
    rng = random.Random(20)
    sender = local.register("sender", type="worker")
    feeder = start()
    feeder.call("join", name="feeder", pools=["work"])
    for number in range(MESSAGES):
        sender.send("pool:work", "note", number, max_attempts=100)
    done: list[int] = []
    lock = threading.Lock()
    kills = iter(range(KILLS))

    def serve(index: int) -> None:
        agent = start(CLAUDE_CODE_SESSION_ID=f"session-{index}")
        agent.call("join", name=f"agent-{index}", pools=["work"])
        while True:
            messages = agent.call("receive", max=2)["messages"]
            if not messages:
                return
            with lock:
                killed = rng.random() < 0.3 and next(kills, None) is not None
            if killed:
                agent.kill()
                agent = start(CLAUDE_CODE_SESSION_ID=f"session-{index}")
                continue
            for message in messages:
                agent.call("settle", lease=message["lease"], outcome="done")
                with lock:
                    done.append(message["payload"])

    feeder.end()
    threads = [threading.Thread(target=serve, args=(index,)) for index in range(SERVERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # What the last ones killed held has returned by now, or does so here.
    last = start()
    last.call("join", name="last", pools=["work"])
    while messages := last.call("receive", max=20)["messages"]:
        for message in messages:
            last.call("settle", lease=message["lease"], outcome="done")
            done.append(message["payload"])
    assert sorted(done) == list(range(MESSAGES))
    assert next(kills, None) is None
    assert local.stats().messages == {"acked": MESSAGES}


def nonsense(rng: random.Random) -> bytes:
    """Return a line that is a request, almost one, or none at all."""
    values: list[Any] = [None, True, 0, -1, 2**70, 1.5, "", "x", "ü\u2028", [], [[]], {}, {"a": 1}, "m-1#1", "a" * 300]
    tool = rng.choice([*TOOLS, "none", 7])
    properties = PROPERTIES.get(tool, {})
    # An agent that has ended would be told the same again and again.
    fields = [field for field in properties if field != "status"] or ["nothing"]
    methods = [
        "tools/call", "tools/call", "tools/call", "tools/list", "resources/read", "resources/list", "server/discover",
        "tasks/get", "tasks/update", "tasks/cancel", "initialize", "ping", "resources/subscribe", "no/method", "",
    ]  # fmt: skip

    def value(field: str = "") -> Any:
        schema = properties.get(field, {})
        if rng.random() < 0.5 and "enum" in schema:
            return rng.choice(schema["enum"])
        if field == "wait":
            # Any other value would wait.
            return rng.choice([0, 0, 0, None, "x", -1, 99])
        return rng.choice(LIKELY) if rng.random() < 0.85 else rng.choice(values)

    kind = rng.random()
    if kind < 0.1:
        return bytes(rng.choice(b'{}[]":,\\ntrue0123456789\xff\x00 ') for _ in range(rng.randrange(60))).replace(
            b"\n", b""
        )
    params: Any = {
        "name": tool,
        "arguments": {field: value(field) for field in rng.sample(fields, rng.randrange(len(fields) + 1))},
        rng.choice(["uri", "taskId", "cursor", "protocolVersion"]): value(),
    }
    if rng.random() < 0.9:
        params = with_meta(params, {"extensions": {"io.modelcontextprotocol/tasks": {}}})
    elif rng.random() < 0.5:
        params["_meta"] = value()
    message: Any = {"jsonrpc": "2.0", "id": rng.randrange(10**6), "method": rng.choice(methods), "params": params}
    if rng.random() < 0.1:
        message[rng.choice(list(message))] = value()
    line = json.dumps(message).encode()
    if kind < 0.2:
        line = line[: rng.randrange(len(line))]
    elif kind < 0.3:
        position = rng.randrange(len(line))
        line = line[:position] + bytes([rng.choice(b'x"{}\xe4')]) + line[position + 1 :]
    return line


@pytest.mark.slow
def test_ten_thousand_lines_of_nonsense_are_answered_by_named_errors(directory: Path) -> None:
    rng = random.Random(10_000)
    join = {"jsonrpc": "2.0", "id": "join", "method": "tools/call"}
    first = {**join, "params": with_meta({"name": "join", "arguments": {"name": "a"}})}
    last = {**join, "id": "end", "params": with_meta({"name": "state", "arguments": {"action": "list"}})}
    lines = [json.dumps(first).encode(), *(nonsense(rng) for _ in range(LINES)), json.dumps(last).encode(), b""]
    done = zygote.run([zygote.COMMAND, "mcp"], cwd=directory, input=b"\n".join(lines), timeout=TIMEOUT * 3)
    assert (done.returncode, done.stderr) == (0, b"")
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    faults = [answer["error"] for answer in answers if "error" in answer]
    assert all(fault["message"] and "internal error" not in fault["message"] for fault in faults)
    assert {fault["code"] for fault in faults} >= {-32700, -32600, -32601, -32602}
    results = {answer["id"]: answer["result"] for answer in answers if "result" in answer}
    errors = [content(result)["error"] for result in results.values() if result.get("isError")]
    assert all(error["message"] for error in errors)
    assert {error["code"] for error in errors} >= {"invalid_arguments", "unknown_message", "unknown_recipient"}
    # Notifications and responses among them get no answer.
    assert len(answers) > LINES * 0.7
    assert "entries" in content(results["end"])
