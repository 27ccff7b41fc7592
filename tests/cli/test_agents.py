"""Visiting agents on the command line: who they are, how they live and end, and what others see of them."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import agentbus
from tests.cli.conftest import Shell


def status_of(shell: Shell, agent: str) -> str:
    return str(shell.json("agents", "show", agent)["status"])


def test_a_visiting_agent_lives_and_ends(shell: Shell) -> None:
    me = shell.say("register", "w1", "--type", "worker", "--capability", "python", "--milestone", "ms-1")
    shell.say("heartbeat", agent=me)
    shell.say("progress", "40", "writing tests", agent=me)
    shell.say("busy", "600", agent=me)
    record = shell.json("agents", "show", "w1")
    assert (record["kind"], record["progress"], record["note"]) == ("visiting", 40, "writing tests")
    assert (record["patience"], record["capabilities"], record["milestone"]) == (1800.0, ["python"], "ms-1")
    assert record["busy_until"] > record["last_call"]
    shell.say("complete", agent=me)
    assert status_of(shell, "w1") == "completed"


@pytest.mark.parametrize(("words", "status"), [(("fail", "no way"), "failed"), (("stop",), "stopped")])
def test_a_life_may_end_otherwise(shell: Shell, words: tuple[str, ...], status: str) -> None:
    shell.register("w1")
    shell.say(*words, agent="w1")
    assert status_of(shell, "w1") == status
    error = shell.json("heartbeat", agent="w1", code=1)
    assert error["code"] == "agent_fenced"
    assert "agentbus register w1" in error["fix"]


def test_an_identity_is_an_id_and_a_life(shell: Shell) -> None:
    first = shell.register("w1")
    error = shell.json("register", "w1", "--type", "worker", code=1)
    assert error["code"] == "agent_exists"
    assert "--takeover" in error["fix"]
    second = shell.say("register", "w1", "--type", "worker", "--takeover")
    assert (first, second) == ("w1#1", "w1#2")
    assert shell.json("heartbeat", agent=first, code=1)["code"] == "agent_fenced"
    shell.say("heartbeat", agent=second)
    assert shell.json("heartbeat", agent="w1") == {"agent": "w1#2", "status": "running"}
    # An option is stronger than the environment, and stands before or after the command.
    assert shell.json("heartbeat", "--agent", "w1#2", agent=first)["agent"] == "w1#2"
    assert shell.json("--agent", "w1#2", "heartbeat", agent=first)["agent"] == "w1#2"


def test_a_command_requires_an_agent(shell: Shell) -> None:
    error = shell.json("heartbeat", code=2)
    assert error["code"] == "no_identity"
    assert "AGENTBUS_AGENT" in error["fix"]
    assert shell.json("heartbeat", agent="nobody", code=1)["code"] == "unknown_agent"
    assert shell.json("heartbeat", agent="w1#x", code=2)["code"] == "invalid_name"


def test_every_call_shows_life_also_one_that_only_looks_or_fails(shell: Shell) -> None:
    me = shell.register("w1")
    calls = [shell.json("agents", "show", "w1")["last_call"]]
    for words in (("agents", "list"), ("state", "get", "nothing"), ("send", "nobody", "note", "1"), ("status",)):
        shell.run(*words, agent=me)
        calls.append(shell.json("agents", "show", "w1")["last_call"])
    assert calls == sorted(set(calls))
    # A call of another agent, or of none, is no activity of it.
    before = shell.json("agents", "show", "w1")["last_call"]
    shell.run("agents", "list", agent="w1#7")
    assert shell.json("agents", "show", "w1")["last_call"] == before


def test_when_an_agent_was_seen_is_a_time_that_anybody_can_read(shell: Shell) -> None:
    me = shell.register("w1")
    began = time.time_ns() // 1_000_000
    shell.say("busy", "10m", agent=me)
    shell.register("w2")
    shell.say("stop", agent="w2")
    seen = {item["id"]: item["seen"] for item in shell.json("agents", "list")["items"]}
    now = time.time_ns() // 1_000_000
    # The wall clock is read to the millisecond, twice.
    assert began - 5 <= seen["w1"] <= now + 5
    assert seen["w2"] is None
    fields = dict(line.split("\t") for line in shell.say("agents", "show", "w1", "--epoch").splitlines())
    assert "last_call" not in fields
    assert abs(int(fields["seen"]) - seen["w1"]) <= 5
    assert 590_000 < int(fields["busy_until"]) - began < 610_000
    assert [agent["id"] for agent in shell.json("status")["agents"] if agent["seen"]] == ["w1"]


def test_agents_are_listed_found_and_deleted(shell: Shell) -> None:
    shell.register("a", capabilities=["python"])
    shell.register("b", type="planner")
    listed = shell.json("agents", "list", "--type", "worker")
    assert [item["id"] for item in listed["items"]] == ["a"]
    assert "prompt" not in listed["items"][0]
    assert shell.say("agents").split("\t")[:3] == ["a", "worker", "running"]
    page = shell.json("agents", "list", "--limit", "1", "--status", "running,suspect")
    assert [item["id"] for item in shell.json("agents", "list", "--cursor", page["cursor"])["items"]] == ["b"]
    assert shell.say("agents", "find", "python").startswith("a\t")
    assert shell.run("agents", "find", "cobol").code == 4
    assert shell.json("agents", "delete", "a", code=1)["code"] == "wrong_state"
    shell.say("complete", agent="a")
    assert shell.say("agents", "clear") == "a\ttrue"
    shell.say("stop", agent="b")
    assert shell.say("agents", "delete", "b") == "b\ttrue"
    assert shell.run("agents", "show", "b").code == 4
    assert shell.json("agents", "show", "b", code=4)["code"] == "unknown_agent"


@contextmanager
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """A process that does nothing, and is dead afterwards."""
    with subprocess.Popen(["sleep", "600"]) as process:
        try:
            yield process
        finally:
            process.kill()


async def sweep(shell: Shell) -> None:
    async with agentbus.connect(shell.directory / ".agentbus") as bus:
        await bus.sweep()


async def test_an_agent_with_a_pid_lives_as_long_as_that_process(shell: Shell) -> None:
    with stranger() as process:
        shell.say("register", "w1", "--type", "worker", "--pid", str(process.pid), "--patience", "0.01")
        assert shell.json("agents", "show", "w1")["pid"] == process.pid
        shell.register("w2")
        shell.say("send", "w1", "note", "1", agent="w2")
        assert shell.say("receive", agent="w1")
        # Its process is there: however long it is silent, it is only suspect.
        for _ in range(3):
            await sweep(shell)
        assert status_of(shell, "w1") == "suspect"
        process.kill()
        process.wait()
        await sweep(shell)
        record = shell.json("agents", "show", "w1")
        assert (record["status"], record["evidence"]["verdict"]) == ("failed", "dead")
        # What it held is there for its next life.
        assert status_of(shell, "w2") == "running"
        assert shell.say("register", "w1", "--type", "worker") == "w1#2"
        assert shell.say("receive", agent="w1")


def test_a_dead_process_does_not_keep_its_agent_from_coming_back(shell: Shell) -> None:
    with stranger() as process:
        shell.say("register", "w1", "--type", "worker", "--pid", str(process.pid))
        assert shell.json("register", "w1", "--type", "worker", code=1)["code"] == "agent_exists"
    assert shell.say("register", "w1", "--type", "worker") == "w1#2"


def test_a_pid_must_be_there(shell: Shell) -> None:
    with stranger() as process:
        pass
    assert (
        shell.json("register", "w1", "--type", "worker", "--pid", str(process.pid), code=2)["code"] == "invalid_input"
    )
    assert shell.run("register", "w1", "--type", "worker", "--pid", "0").code == 2
    assert shell.say("agents") == ""


def test_an_unknown_type_says_what_was_meant(shell: Shell) -> None:
    error = shell.json("register", "w1", "--type", "wroker", code=2)
    assert error["code"] == "unknown_type"
    assert "worker" in error["message"]
    assert "agentbus types add" in error["fix"]


def test_what_came_of_an_earlier_life_is_told(shell: Shell) -> None:
    begun = time.time_ns() // 1_000_000
    data = shell.json("register", "w1", "--type", "worker", "--pool", "p", "--topic", "t")
    assert data == {
        "agent": "w1#1", "id": "w1", "epoch": 1, "session": None, "pools": ["p"], "topics": ["t"], "restored": None,
    }  # fmt: skip
    assert shell.json("agents", "show", "w1")["created"] >= begun
