"""A bus that this user can read and not write: it can be looked at, and nothing in it changes by that."""

from __future__ import annotations

import json
import os
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import agentbus
from agentbus.sync.bus import open_bus
from tests.engine.sqlite.mount_namespace import run_mounted
from tests.support import zygote

LOOKS = (
    "status", "agents list", "agents show a", "messages list", "messages show m-1", "messages dead", "task list",
    "session list", "session status s", "session interrupted", "events", "types list", "state list --agent a",
    "state get k --agent a", "checkpoint list", "document list --session s", "backup list", "quotas", "doctor",
)  # fmt: skip
WRITES = ("send a note 1 --agent a", "register b --type worker", "receive --agent a", "types add new", "wait --agent a")
_STRANGER = 65534
_REFUSED = 77
_SCRIPT = f"""
import ctypes, io, json, os, sys
from contextlib import redirect_stderr, redirect_stdout
from agentbus.cli.main import main

# Permissions bind root too without CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH and CAP_FOWNER.
if os.geteuid() == 0:
    libc = ctypes.CDLL(None)
    header, sets = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    failed = libc.capget(header, sets)
    for number in range(3):
        sets[number] &= ~(1 << 1 | 1 << 2 | 1 << 3)
    if failed or libc.capset(header, sets):
        sys.exit({_REFUSED})

told = {{}}
for words in json.loads(sys.argv[2]):
    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.TextIOWrapper(io.BytesIO(), "utf-8")
    with redirect_stdout(out), redirect_stderr(err):
        code = main([*words.split(), "--json", "--url", sys.argv[1]])
    err.flush()
    told[words] = [code, json.loads(out.buffer.getvalue()), err.buffer.getvalue().decode()]
print(json.dumps(told))
"""


def run(place: Path, *commands: str, **environment: str) -> dict[str, Any]:
    """Run commands in a process that permissions bind, even if root runs it."""
    done = zygote.run(
        [sys.executable, "-c", _SCRIPT, str(place), json.dumps(commands)],
        env={**{name: text for name, text in os.environ.items() if not name.startswith("AGENTBUS_")}, **environment},
        timeout=120,
    )
    if done.returncode == _REFUSED:
        pytest.skip("this root cannot give up its power over files")
    assert done.returncode == 0, done.stderr.decode()
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def fill(place: Path) -> None:
    with open_bus(place, create=True) as bus:
        bus.start_session("planning", id="s")
        a = bus.register("a", type="worker")
        bus.do(a.state.set("k", 1))
        a.send("a", "note", {"n": 1})


def protect(place: Path, directories: int = 0o500, files: int = 0o400) -> None:
    for path in (place, *place.rglob("*")):
        if not path.is_socket():
            path.chmod(directories if path.is_dir() else files)


def contents(place: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path.relative_to(place)): (path.stat().st_mtime_ns, path.read_bytes())
        for path in place.rglob("*")
        if path.is_file() and not path.name.endswith("-shm")
    }


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    fill(tmp_path / "bus")
    yield tmp_path / "bus"
    protect(tmp_path / "bus", 0o700, 0o600)


def looked(told: dict[str, Any]) -> None:
    """That every look answered, and every write was refused with what to do."""
    needs_loop = {"quotas"}
    for words in LOOKS:
        code, answer, _ = told[words]
        if words in needs_loop:
            assert answer["error"]["code"] == "read_only_bus", (words, answer)
            assert "as the user who owns it" in answer["error"]["fix"]
        elif words == "doctor":
            assert "permissions" in {check["name"] for check in answer["data"] if check["status"] == "error"}
        else:
            assert (code in {0, 4}, "data" in answer or code == 4) == (True, True), (words, told[words])
    for words in WRITES:
        code, answer, _ = told[words]
        assert (code, answer["error"]["code"]) == (1, "read_only_bus"), (words, answer)
        assert "as the user who owns it" in answer["error"]["fix"]
    assert told["messages show m-1"][1]["data"]["payload"] == {"n": 1}
    assert "is read-only here" in told["status"][2]


def test_a_protected_bus_is_looked_at_and_stays_as_it_is(place: Path) -> None:
    protect(place)
    before = contents(place)
    looked(run(place, *LOOKS, *WRITES))
    assert contents(place) == before


async def test_a_look_at_a_bus_that_is_open_sees_what_was_just_written(place: Path) -> None:
    async with agentbus.connect(place) as bus:
        b = await bus.register("b", type="worker")
        await b.send("b", "note", {"n": 2})
        protect(place)
        before = contents(place)
        told = run(place, "messages show m-2", "agents list", "send b note --agent b")
        assert contents(place) == before
        protect(place, 0o700, 0o600)
    assert told["messages show m-2"][1]["data"]["payload"] == {"n": 2}
    assert told["send b note --agent b"][1]["error"]["code"] == "read_only_bus"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_the_bus_of_another_user_is_looked_at_once_it_is_trusted(place: Path) -> None:
    protect(place, 0o755, 0o644)
    for path in (place, *place.rglob("*")):
        os.chown(path, _STRANGER, -1)
    place.parent.chmod(0o755)
    try:
        told = run(place, "status", "send a note --agent a")
        assert {answer["error"]["code"] for _, answer, _ in told.values()} == {"untrusted_home"}
        before = contents(place)
        looked(run(place, *LOOKS, *WRITES, AGENTBUS_TRUST=str(place)))
        assert contents(place) == before
    finally:
        for path in (place, *place.rglob("*")):
            os.chown(path, 0, -1)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_a_private_bus_of_another_user_says_how_it_can_be_read(place: Path) -> None:
    place.parent.chmod(0o755)
    for path in (place, *place.rglob("*")):
        os.chown(path, _STRANGER, -1)
    try:
        for told in (run(place, "status"), run(place, "status", "quotas", AGENTBUS_TRUST=str(place))):
            for _, answer, _ in told.values():
                assert answer["error"]["code"] == "unreadable_bus", answer
                assert "permission denied" in answer["error"]["message"]
                assert f"chmod -R go=rX {place}" in answer["error"]["fix"]
        place.chmod(0o755)
        told = run(place, "status", AGENTBUS_TRUST=str(place))
        assert told["status"][1]["error"]["code"] == "unreadable_bus"
        for path in place.glob("bus.db*"):
            path.chmod(0o644)
        assert run(place, "status", AGENTBUS_TRUST=str(place))["status"][0] == 0
    finally:
        for path in (place, *place.rglob("*")):
            os.chown(path, 0, -1)


def test_an_old_bus_that_cannot_be_brought_up_to_date_says_so(place: Path) -> None:
    raw = sqlite3.connect(place / "bus.db", isolation_level=None)
    raw.execute("PRAGMA user_version = 1")
    raw.close()
    protect(place)
    error = run(place, "status")["status"][1]["error"]
    assert (error["code"], "schema 1 is old" in error["message"]) == ("read_only_bus", True)


_MOUNTED = """
import json, sys
from agentbus.sync.bus import open_bus
from agentbus.errors import AgentBusError

with open_bus(sys.argv[1] + "/bus") as bus:
    found = [agent.id for agent in bus.do(bus.agents.list()).items]
    try:
        bus.register("b", type="worker")
    except AgentBusError as error:
        found += [error.code, error.reason]
print(json.dumps(found))
"""


def test_a_bus_on_a_read_only_file_system_is_looked_at(place: Path) -> None:
    mount = 'mount --bind "$1" "$1" && mount -o remount,bind,ro "$1"'
    assert run_mounted(mount, _MOUNTED, place.parent) == ["a", "read_only_bus", "the file system is read-only"]


def test_a_bus_with_a_view_of_another_program_is_not_inspected(place: Path) -> None:
    with closing(sqlite3.connect(place / "bus.db")) as database:
        database.execute("CREATE VIEW evil AS SELECT * FROM messages")
        database.commit()
    protect(place)
    code, told, _ = run(place, "status")["status"]
    assert (code, told["error"]["code"]) == (1, "foreign_objects")
