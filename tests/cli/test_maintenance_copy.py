"""Copying a bus by a command, and when a bus says that it is time to."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
from pathlib import Path
from typing import Any

import pytest

import agentbus
from agentbus.api.maintenance.copy import copy_bus
from agentbus.sync.bus import open_bus, open_store
from tests.cli.conftest import Shell
from tests.cli.terminals import on_terminal
from tests.support.postgres import Schemas, at_schema


def test_a_bus_is_copied_and_the_copy_is_used(shell: Shell) -> None:
    shell.register("a")
    shell.say("send", "a", "note", '{"n": 1}', agent="a")
    (shell.directory / ".agentbus" / "agentbus.toml").write_text("lease = 60\n")
    outcome = shell.run("copy", ".agentbus", "there")
    assert outcome.code == 0
    lines = dict(line.split("\t", 1) for line in outcome.out.splitlines())
    assert lines["messages"].startswith("1\t")
    assert len(lines["messages"].split("\t")[1]) == 32
    there = shell.directory / "there"
    assert f"export AGENTBUS_URL={there}" in outcome.err
    assert "not copied: agentbus.toml" in outcome.err
    shell.environment["AGENTBUS_URL"] = str(there)
    assert shell.json("receive", agent="a")[0]["payload"] == {"n": 1}
    assert [event["kind"] for event in shell.json("events")][-1] == "bus_copied"


def test_a_bus_that_is_further_down_is_named(shell: Shell) -> None:
    outcome = shell.run("copy", str(shell.directory), "there")
    assert outcome.code == 1
    assert f"there is one in {shell.directory / '.agentbus'}" in outcome.err


def test_what_both_have_is_printed_as_json(shell: Shell) -> None:
    data = shell.json("copy", ".agentbus", "there", "--quiet")
    assert (data["source"], data["target"]) == (str(shell.directory / ".agentbus"), str(shell.directory / "there"))
    assert data["resumed"] is False
    assert {table["name"]: table["rows"] for table in data["tables"]}["vocabulary"] == 24
    assert data["rows"] == sum(table["rows"] for table in data["tables"])


def test_a_bar_shows_how_far_it_is(shell: Shell) -> None:
    shell.register("a")
    code, shown = on_terminal(shell, "copy", ".agentbus", "there", errors=True)
    assert code == 0
    for words in ("copying", "100%", "comparing", "checksum of both", "vocabulary"):
        assert words in shown
    quiet = on_terminal(shell, "copy", ".agentbus", "elsewhere", "--quiet", errors=True)[1]
    assert "copying" not in quiet


async def test_who_is_in_the_way_is_said(shell: Shell) -> None:
    async with agentbus.connect(shell.directory / ".agentbus") as bus:
        await bus.register("a", type="worker")
        error = await asyncio.to_thread(shell.json, "copy", ".agentbus", "there", code=1)
    assert error["code"] == "not_at_rest"
    assert f"process {os.getpid()} (a)" in error["message"]
    assert not (shell.directory / "there").exists()


@pytest.mark.parametrize(
    ("words", "code", "exit_code"),
    [
        (("copy", "nothing", "there"), "no_bus", 1),
        (("copy", ".agentbus", ".agentbus"), "same_bus", 1),
        (("copy", ".agentbus", "full"), "not_empty", 1),
        (("copy", ".agentbus", "file"), "invalid_url", 2),
        (("copy", ".agentbus", "/proc/there"), "not_writable", 1),
        (("copy", ".agentbus", "mysql://server"), "invalid_url", 2),
        (("copy", ".agentbus", "postgresql://me:top-secret@127.0.0.1:1/agents"), "server_unreachable", 3),
        (("copy", "postgresql://me:top-secret@127.0.0.1:1/agents", "there"), "server_unreachable", 3),
        (("copy", "newer", "there"), "schema_too_new", 1),
        (("copy", ".agentbus"), "usage", 2),
    ],
)
def test_what_cannot_be_copied_is_refused(shell: Shell, words: tuple[str, ...], code: str, exit_code: int) -> None:
    with open_bus(shell.directory / "full", create=True) as full:
        full.register("mine", type="worker")
    (shell.directory / "file").write_text("text")
    _of_the_future(shell.directory / "newer")
    error = shell.refused(*words, code=exit_code)
    assert error["code"] == code
    assert "top-secret" not in str(error)
    assert not (shell.directory / "there").exists()


def _of_the_future(place: Path) -> None:
    open_bus(place, create=True).close()
    connection = sqlite3.connect(place / "bus.db")
    connection.execute("PRAGMA user_version = 999")
    connection.close()


def test_an_interrupted_copy_names_the_command_that_resumes_it(shell: Shell) -> None:
    shell.register("a")

    def cut(done: int, total: int, what: str) -> None:
        if what == "agents":
            raise KeyboardInterrupt

    store = open_store(shell.directory / ".agentbus")
    with pytest.raises(KeyboardInterrupt):
        copy_bus(store, lambda: open_store(shell.directory / "there", create=True), cut)
    store.close()
    error = shell.json("status", "--url", "there", code=1)
    assert error["code"] == "copy_unfinished"
    command = f"agentbus copy {shell.directory / '.agentbus'} {shell.directory / 'there'}"
    assert error["fix"] == f"finish it: {command}"
    outcome = shell.run("doctor", "--url", "there")
    assert outcome.code == 1
    assert command in outcome.out
    assert shell.json(*command.split()[1:])["resumed"] is True
    assert shell.say("agents", "--url", "there").startswith("a\t")


def test_ctrl_c_leaves_a_copy_that_can_be_resumed(shell: Shell) -> None:
    with open_bus(shell.directory / ".agentbus") as bus:
        agent = bus.register("a", type="worker")
        for _ in range(300):
            agent.send("a", "note", "x" * 1000)
    process = shell.start("copy", ".agentbus", "there")
    while not (shell.directory / "there" / "bus.db").exists() and process.poll() is None:
        pass
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode in {0, 130, -signal.SIGINT}
    if process.returncode:
        again = shell.run("copy", ".agentbus", "there", "--json")
        # It may have been interrupted after its end.
        assert again.code == 0 or json.loads(again.out)["error"]["code"] == "same_bus", again
    assert len(shell.json("messages", "list", "--url", "there", "--limit", "1000")["items"]) == 300


def test_between_a_file_and_a_server_and_back(shell: Shell, schemas: Schemas) -> None:
    shell.register("a")
    shell.say("send", "a", "note", '"over there"', agent="a")
    name = schemas.take()
    url = at_schema(schemas.url.replace("agentbus@", "agentbus:top-secret@"), name)
    outcome = shell.run("copy", ".agentbus", url, "--json")
    assert outcome.code == 0, outcome
    assert "top-secret" not in outcome.out + outcome.err
    there = json.loads(outcome.out)["data"]["target"]
    assert f"schema={name}" in there
    assert shell.json("messages", "list", "--url", there)["items"][0]["type"] == "note"
    status = shell.json("status", "--url", there)
    assert status["outgrown"] == {"why": [], "fix": None}
    error = shell.json("copy", ".agentbus", url, code=1)
    assert error["code"] == "same_bus"
    assert "top-secret" not in str(error)
    assert shell.json("copy", there, "back")["rows"] > 0
    assert shell.json("receive", "--url", "back", agent="a")[0]["payload"] == "over there"
    schemas.give_back(name)


def status(shell: Shell) -> dict[str, Any]:
    found: dict[str, Any] = shell.json("status")["outgrown"]
    return found


def test_status_and_doctor_say_when_a_bus_outgrows_one_file(shell: Shell) -> None:
    assert status(shell) == {"why": [], "fix": None}
    command = f"agentbus copy {shell.directory / '.agentbus'} postgresql://…"
    shell.environment["AGENTBUS_OUTGROWN_SIZE"] = "1000"
    found = status(shell)
    assert [why.endswith(" MiB") for why in found["why"]] == [True]
    assert found["fix"].endswith(command)
    (line,) = [line for line in shell.say("status").splitlines() if line.startswith("outgrown\t")]
    assert line.endswith(command)
    (check,) = [check for check in shell.json("doctor") if check["name"] == "room"]
    assert check["status"] == "warning"
    assert check["fix"].endswith(command)
    # The environment is stronger than the file beside the bus.
    (shell.directory / ".agentbus" / "agentbus.toml").write_text("outgrown_size = 1000000000\n")
    assert status(shell)["why"] != []
    del shell.environment["AGENTBUS_OUTGROWN_SIZE"]
    assert status(shell)["why"] == []
    (check,) = [check for check in shell.json("doctor") if check["name"] == "room"]
    assert check["status"] == "ok"


def test_a_bound_that_is_none_is_refused(shell: Shell) -> None:
    shell.environment["AGENTBUS_OUTGROWN_WRITERS"] = "0"
    assert shell.json("status", code=2)["code"] == "out_of_range"
