"""Recovery as a whole on the command line: what was cut off, and setting agents aside."""

from __future__ import annotations

import subprocess

from agentbus.operations.agents import RegisterRequest, register
from agentbus.operations.rows import Profile
from agentbus.sync.bus import open_bus
from tests.cli.conftest import Shell


def team(shell: Shell) -> None:
    """A session of which one agent failed and one lives in a process that is gone; and an agent at work elsewhere."""
    gone = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    with open_bus(shell.directory / ".agentbus") as bus:
        bus.start_session("planning", id="s")
        bus.register("failed", type="worker", session="s").fail("crashed")
        bus.register("dead", type="worker", session="s", pid=gone.pid)
        bus.register("alive", type="worker").send("dead", "note", 1)
        bus.agent("dead").receive_many(1)
    gone.kill()
    gone.communicate()


def test_a_check_finds_the_dead_and_says_what_was_cut_off(shell: Shell) -> None:
    team(shell)
    found = shell.json("recovery", "check")
    assert found["interrupted"] == ["s"]
    assert found["dead_holders"] == ["dead"]
    assert found["by_status"] == {"failed": 2, "running": 1}
    lines = [line.split("\t") for line in shell.say("recovery", "check").splitlines()]
    assert ["recovery", "incomplete", "3"] in lines
    assert ["status", "failed", "2"] in lines
    assert ["interrupted", "s"] in lines
    assert ["dead", "dead"] in lines


def test_incomplete_agents_are_listed(shell: Shell) -> None:
    team(shell)
    rows = [line.split("\t") for line in shell.say("recovery", "list").splitlines()]
    assert [(row[0], row[2], row[3]) for row in rows] == [
        ("alive", "running", "-"), ("dead", "failed", "s"), ("failed", "failed", "s"),
    ]  # fmt: skip
    assert rows[1][7] == "its process died"
    first = shell.json("recovery", "list", "--limit", "1")
    assert [agent["id"] for agent in first["items"]] == ["alive"]
    rest = shell.json("recovery", "list", "--cursor", first["cursor"])
    assert [agent["id"] for agent in rest["items"]] == ["dead", "failed"]


def test_clearing_stops_them_gives_back_what_they_held_and_deletes_nothing(shell: Shell) -> None:
    team(shell)
    # Who calls is not whom it is about.
    assert shell.say("recovery", "clear", agent="alive") == "dead\tstopped\nfailed\tstopped"
    assert shell.json("recovery", "clear") == []
    with open_bus(shell.directory / ".agentbus") as bus:
        statuses = {agent.id: agent.status for agent in bus.do(bus.agents.list()).items}
        assert statuses == {"alive": "running", "dead": "stopped", "failed": "stopped"}
        (message,) = bus.do(bus.messages.list()).items
        assert message.status == "queued"


def test_one_agent_is_cleared_by_name(shell: Shell) -> None:
    team(shell)
    # Who calls is not whom it is about; and one that is running is not set aside by mistake.
    assert shell.json("recovery", "clear", "failed", "--agent", "alive") == [{"id": "failed", "status": "stopped"}]
    refused = shell.refused("recovery", "clear", "alive", code=2)
    assert refused["fix"].endswith("agentbus recovery clear alive --force")
    shell.say("heartbeat", agent="alive#1")
    assert shell.json("recovery", "clear", "alive#1", "--force") == [{"id": "alive", "status": "stopped"}]
    assert shell.say("recovery", "clear", "--agent", "dead") == "dead\tstopped"
    assert shell.json("heartbeat", agent="alive#1", code=1)["code"] == "agent_fenced"
    assert shell.refused("recovery", "clear", "nobody", code=1)["code"] == "unknown_agent"
    assert shell.refused("recovery", "clear", "no name", code=2)["code"] == "invalid_name"
    assert shell.refused("recovery", "list", "--limit", "0", code=2)["code"] == "out_of_range"
    assert shell.refused("recovery", "chekc", code=2)["fix"] == "did you mean check?"


def test_where_there_is_no_bus_nothing_is_made(nowhere: Shell) -> None:
    for words in (
        ("recovery", "check"), ("monitor", "--once"), ("cleanup",), ("backup",), ("doctor",), ("events",), ("types",),
        ("session", "list"), ("checkpoint", "list"),
    ):  # fmt: skip
        assert nowhere.refused(*words, code=1)["code"] == "no_bus"
    assert list(nowhere.directory.iterdir()) == []


def test_a_degraded_session_is_told_what_helps(shell: Shell) -> None:
    with open_bus(shell.directory / ".agentbus") as bus:
        bus.start_session("planning", id="s")
        alive = bus.register("alive", type="worker", session="s")
        bus.register("failed", type="worker", session="s")
        alive.send("failed", "note", 1)
        bus.agent("failed").fail("crashed")
        bus.write(register, RegisterRequest("late", "worker", None, Profile(), session="s", within=60_000))
    (row,) = [line.split("\t") for line in shell.say("session", "list").splitlines()]
    assert (row[0], row[3]) == ("s", "degraded")
    (row,) = [line.split("\t") for line in shell.say("session", "interrupted").splitlines()]
    # The one that is only awaited is not counted.
    assert row[4:] == ["3", "1", "1", "degraded"]
    lines = [line.split("\t") for line in shell.say("session", "recover", "s").splitlines()]
    assert ["session", "status", "degraded"] in lines
    (remark,) = [line[1] for line in lines if line[0] == "remark"]
    assert "agentbus register failed" in remark
    assert remark.endswith("(agentbus recovery clear failed)")


def test_a_deserted_session_is_listed_while_work_waits(shell: Shell) -> None:
    with open_bus(shell.directory / ".agentbus") as bus:
        bus.start_session("planning", id="s")
        last = bus.register("last", type="worker", session="s")
        bus.register("w", type="worker", session="s")
        last.send("w", "note", 1)
        bus.agent("w").fail("crashed")
        bus.do(bus.recovery.clear("w"))
        last.complete()
        bus.start_session("building", id="done")
        bus.register("d", type="worker", session="done").complete()
    rows = [line.split("\t") for line in shell.say("session", "interrupted").splitlines()]
    assert [(row[0], row[-1]) for row in rows] == [("s", "deserted")]
