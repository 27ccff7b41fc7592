"""Upkeep on the command line: cleaning up, backups, the doctor."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from agentbus.sync.bus import open_bus
from tests.cli.conftest import Shell


def finished(shell: Shell, count: int) -> None:
    """Messages that are done, and one that is not."""
    with open_bus(shell.directory / ".agentbus") as bus:
        agent = bus.register("a", type="worker")
        for number in range(count):
            agent.send("a", "note", number)
        agent.ack(*(message.lease for message in agent.receive_many(count) if message.lease is not None))
        agent.send("a", "note", "open")


def messages(shell: Shell) -> int:
    with open_bus(shell.directory / ".agentbus") as bus:
        return len(bus.do(bus.messages.list()).items)


def test_cleaning_up_archives_what_is_done_and_keeps_the_rest(shell: Shell) -> None:
    finished(shell, 3)
    trial = shell.json("cleanup", "--keep-days", "0", "--dry-run")
    assert (trial["dry_run"], trial["removed"]["message"], trial["archive"]) == (True, 3, None)
    assert shell.say("cleanup") == "", "nothing is a week old"
    assert messages(shell) == 4
    lines = dict(line.split("\t", 1) for line in shell.say("cleanup", "--keep-days", "0").splitlines())
    assert lines["removed"]
    assert messages(shell) == 1
    (archive,) = os.listdir(shell.directory / ".agentbus" / "archive")
    assert archive.endswith(".jsonl.gz")


def test_failed_sessions_go_earlier_when_asked(shell: Shell) -> None:
    with open_bus(shell.directory / ".agentbus") as bus:
        for name in ("failed", "completed"):
            bus.start_session("planning", id=name)
        bus.do(bus.do(bus.sessions.open("failed")).fail("no"))
        bus.do(bus.do(bus.sessions.open("completed")).complete())
    assert shell.json("cleanup", "--failed-sessions", "1")["removed"] == {}
    assert shell.json("cleanup", "--failed-sessions", "0")["removed"]["session"] == 1
    assert [one["id"] for one in shell.json("session", "list")["items"]] == ["completed"]


def test_stale_sessions_are_ended_unless_live_or_paused(shell: Shell) -> None:
    with open_bus(shell.directory / ".agentbus") as bus:
        for name in ("left", "paused", "at-work"):
            bus.start_session("planning", id=name)
        bus.do(bus.do(bus.sessions.open("paused")).pause())
        bus.register("a", type="worker", session="at-work")
    words = ("cleanup", "--stale", "0")
    trial = shell.json(*words, "--dry-run")
    assert trial["ended"] == ["left"]
    assert shell.json("session", "status", "left")["session"]["status"] == "active"
    lines = [line.split("\t") for line in shell.say(*words).splitlines()]
    assert ["ended", "left"] in lines
    assert ["left", "paused"] in [line[:2] for line in lines]
    assert ["left", "at-work"] in [line[:2] for line in lines]
    found = shell.json("session", "status", "left")["session"]
    assert (found["status"], found["error"]) == ("failed", "no activity for 0 minutes")


def test_a_backup_is_made_listed_and_put_back(shell: Shell) -> None:
    finished(shell, 1)
    assert shell.json("backup", "list") == []
    path = shell.say("backup")
    assert Path(path).parent == (shell.directory / ".agentbus" / "backups").resolve()
    (listed,) = shell.json("backup", "list")
    assert (listed["path"], listed["size"]) == (path, os.stat(path).st_size)
    other = shell.json("backup", "create", "copy.db")
    assert os.path.exists(other["path"])
    shell.say("messages", "purge")
    assert messages(shell) == 1
    restored = shell.run("backup", "restore", os.path.basename(path))
    assert (restored.code, restored.out) == (0, f"{(shell.directory / '.agentbus').resolve()}\n")
    assert "replaced-" in restored.err
    assert messages(shell) == 2
    # Where the bus is lost, its backup is enough.
    elsewhere = shell.json("backup", "restore", "copy.db", "--url", "other")
    assert elsewhere["path"].endswith("/other")
    assert shell.say("messages", "list", "--url", "other")


def test_a_bus_in_use_is_not_replaced_and_wrong_files_are_refused(shell: Shell) -> None:
    finished(shell, 1)
    path = shell.say("backup")
    (shell.directory / "wrong.db").write_text("not a backup")
    assert shell.refused("backup", "restore", "wrong.db", code=1)["code"] == "damaged_backup"
    assert shell.refused("backup", "restore", "none.db", code=1)["code"] == "no_such_file"
    assert shell.refused("backup", "restore", code=2)["code"] == "usage"
    with open_bus(shell.directory / ".agentbus") as bus, bus.store.wait_for_wakeups():
        assert shell.json("backup", "restore", path, code=1)["code"] == "bus_in_use"
    assert shell.json("backup", "create", path, code=1)["code"] == "backup_failed"
    assert shell.json("backup", "--keep", "0", code=2)["code"] == "out_of_range"
    assert shell.json("cleanup", "--keep-days", "-1", code=2)["code"] == "out_of_range"
    assert shell.json("cleanup", "--stale", "-1", code=2)["code"] == "out_of_range"
    assert shell.refused("cleanup", "--stale", "x", code=2)["code"] == "usage"
    assert messages(shell) == 2


def test_the_doctor_says_what_is_wrong_and_what_to_do(shell: Shell) -> None:
    finished(shell, 1)
    rows = [line.split("\t") for line in shell.say("doctor").splitlines()]
    assert {row[0] for row in rows} <= {"ok", "warning"}
    assert ["ok", "integrity"] in [row[:2] for row in rows]
    damage = "UPDATE messages SET checksum = 7"
    import sqlite3

    with sqlite3.connect(shell.directory / ".agentbus" / "bus.db") as connection:
        connection.execute(damage)
    connection.close()
    checks = {check["name"]: check for check in shell.json("doctor", code=1)}
    assert checks["payloads of messages"]["status"] == "error"
    assert checks["payloads of messages"]["fix"]


@pytest.mark.parametrize("damage", [b"not a database at all", b""])
def test_the_doctor_looks_at_a_bus_that_cannot_be_opened(shell: Shell, damage: bytes) -> None:
    finished(shell, 1)
    shell.say("backup")
    (shell.directory / ".agentbus" / "bus.db").write_bytes(damage)
    checks = shell.run("doctor", "--json")
    assert checks.code == 1
    found = {check["name"]: check for check in json.loads(checks.out)["data"] if check["status"] != "ok"}
    assert any("backup" in (check["fix"] or "") for check in found.values()), found
    # It has looked, and made nothing.
    assert (shell.directory / ".agentbus" / "bus.db").read_bytes() == damage


def test_agents_are_deleted_only_if_all_are_there(shell: Shell) -> None:
    shell.register("a")
    shell.say("complete", agent="a")
    assert shell.refused("agents", "delete", "a", "nobody", code=1)["code"] == "unknown_agent"
    assert shell.say("agents", "list").startswith("a\t")


def test_quotas_are_shown_and_set_and_hold_for_commands(shell: Shell) -> None:
    shell.register("a")
    assert shell.say("quotas") == "depth\tnone\nrate\tnone\nsize\tnone\nthread\t100"
    assert shell.json("quotas", "--depth", "1", "--rate", "2.5", "--thread", "7") == {
        "depth": 1, "rate": 2.5, "size": None, "thread": 7,
    }  # fmt: skip
    assert shell.say("quotas", "--rate", "none") == "depth\t1\nrate\tnone\nsize\tnone\nthread\t7"
    shell.say("send", "a", "note", "1", agent="a")
    full = shell.refused("send", "a", "note", "2", agent="a", code=3)
    assert (full["code"], "agentbus quotas --depth N" in full["fix"]) == ("queue_full", True)
    assert shell.refused("quotas", "--depth", "0", code=2)["code"] == "out_of_range"
    refused = shell.refused("quotas", "--rate", "fast", code=2)
    assert (refused["code"], refused["message"]) == ("usage", "argument --rate: 'fast' is not an amount: 10000, none")
    for text, bytes in (("2GiB", 2**31), ("1.5 kB", 1500), ("3M", 3_000_000), ("7", 7)):
        assert shell.json("quotas", "--size", text)["size"] == bytes
    for text in ("2 gigs", "GiB", "1e", "", "2GiBB"):
        assert "is not a size: " in shell.refused("quotas", "--size", text, code=2)["message"]
