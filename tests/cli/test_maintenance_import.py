"""``agentbus import`` and ``agentbus export``, for programs, pipes and people."""

from __future__ import annotations

import os
import pty
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest

from agentbus.sync.bus import open_bus
from tests.api.legacy_files import agent, coordination, session, write
from tests.cli.conftest import TIMEOUT, Shell
from tests.cli.terminals import on_terminal, uncoloured
from tests.support.bombs import MB, overlapping


def test_a_folder_comes_in_once_and_is_reported(shell: Shell) -> None:
    old = shell.directory / "old"
    write(old / "a.json", agent("a"))
    write(old / "b c.json", agent("b c"))
    write(old / "current_session.json", session())
    (old / "bad.json").write_text("{")
    data = shell.json("import", "old")
    assert data["imported"] == {"session": 1, "participant": 4, "state": 3, "agent": 6}
    assert (data["present"], data["refused"], data["changed"], data["file_count"]) == (0, 1, 1, 4)
    refused, changed = data["problems"]
    assert (refused["file"], refused["taken"]) == ("bad.json", False)
    assert (changed["file"], changed["taken"]) == ("b c.json", True)
    lines = shell.say("import", "old").splitlines()
    assert [line.split("\t")[:3] for line in lines] == [
        ["present", "-", "14"], ["refused", "-", "1"], ["changed", "-", "1"],
        ["refused", "bad.json", "0"], ["changed", "b c.json", "0"],
    ]  # fmt: skip
    assert shell.json("agents", "show", "a")["status"] == "completed"


def test_an_imported_meeting_continues_with_those_who_remain(shell: Shell) -> None:
    write(shell.directory / "old" / "current_session.json", session())
    shell.say("import", "old")
    name = "session-20240115"
    (cut,) = shell.json("session", "interrupted")
    assert (cut["session"], cut["inactive_minutes"] > 60 * 24 * 30) == (name, True)
    plan = shell.say("session", "recover", name)
    assert "meeting\tplanning\trisk-assessor, planner-1" in plan.splitlines()
    done = shell.say("session", "recover", name, "--resume").splitlines()
    assert "done\tagents\tplanner-1, risk-assessor" in done
    assert "done\tremaining in planning\trisk-assessor, planner-1" in done
    assert [line.split("\t")[:3] for line in shell.say("session", "participants", name).splitlines()] == [
        ["planning", "scope-analyzer", "finished"],
        ["planning", "estimation-agent", "finished"],
        ["planning", "risk-assessor", "remaining"],
        ["planning", "planner-1", "remaining"],
    ]
    assert shell.say("session", "finish", "risk-assessor", '{"risks": 2}', "--session", name) == "planning\tplanner-1"
    data = shell.json("session", "finish", "risk-assessor", "--session", name)
    assert (data["changed"], data["remaining"]) == (False, ["planner-1"])
    rows = shell.json("session", "participants", name, "--meeting", "planning")
    assert rows[2]["result"] == {"risks": 2}
    assert shell.json("session", "participants", name, "--meeting", "other") == []
    error = shell.json("session", "finish", "nobody", "--session", name, code=4)
    assert error["code"] == "unknown_participant"
    assert f"agentbus session participants {name}" in error["fix"]


def test_a_session_goes_out_and_into_another_bus(shell: Shell, nowhere: Shell) -> None:
    coordination(shell.directory / "old.db")
    shell.json("import", "old.db")
    path = shell.say("export", "out.jsonl.gz", "--session", "plan-1")
    assert Path(path) == shell.directory / "out.jsonl.gz"
    other = Shell(shell.directory / "other")
    other.directory.mkdir()
    other.say("init")
    data = other.json("import", path)
    assert (data["imported"]["session"], data["imported"]["agent"], data["refused"]) == (1, 2, 0)
    whole = shell.json("export", "whole.jsonl.gz")
    assert whole["exported"]["session"] == 2
    assert whole["size"] == os.path.getsize(whole["path"])


def test_what_goes_wrong(shell: Shell) -> None:
    assert shell.json("import", "nothing", code=1)["code"] == "not_importable"
    assert shell.json("import", ".agentbus", code=1)["code"] == "not_importable"
    (shell.directory / "bad.json").write_text("{")
    assert shell.json("import", "bad.json", code=1)["refused"] == 1
    assert shell.json("import", code=2)["code"] == "usage"
    assert shell.json("export", "x", "--session", "nobody", code=1)["code"] == "unknown_session"
    assert shell.json("export", "bad.json", code=1)["code"] == "not_writable"


def test_without_a_bus_it_says_how_to_make_one(nowhere: Shell) -> None:
    write(nowhere.directory / "a.json", agent("a"))
    assert nowhere.json("import", "a.json", code=1)["code"] == "no_bus"
    assert nowhere.json("export", "x", code=1)["code"] == "no_bus"
    assert not (nowhere.directory / ".agentbus").exists()


def test_people_see_how_far_it_is(shell: Shell) -> None:
    for number in range(250):
        write(shell.directory / "old" / f"{number}.json", agent(f"a-{number}"))
    mine, theirs = pty.openpty()
    with shell.start("import", "old", stderr=theirs) as process:
        os.close(theirs)
        shown = b""
        with suppress(OSError):
            while part := os.read(mine, 65536):
                shown += part
        assert process.stdout is not None
        assert process.stdout.read() == b"imported\tagent\t250\t-\n"
    os.close(mine)
    assert process.returncode == 0
    assert "importing" in uncoloured(shown.decode())
    assert "100%" in uncoloured(shown.decode())


FILES = 600
"""Three batches of files, so that an import can be interrupted between two of them."""


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_import_that_is_cut_off_is_finished_by_the_next(shell: Shell, end: signal.Signals) -> None:
    for number in range(FILES):
        write(shell.directory / "old" / f"{number}.json", agent(f"a-{number}"))
    process = shell.start("import", "old")
    with open_bus(shell.directory / ".agentbus") as bus:
        deadline = time.monotonic() + TIMEOUT
        while not bus.do(bus.agents.list(limit=1)).items and time.monotonic() < deadline:
            time.sleep(0.01)
    process.send_signal(end)
    _, errors = process.communicate(timeout=TIMEOUT)
    assert process.returncode in {0, -9 if end == signal.SIGKILL else 128 + end}
    assert b"Traceback" not in errors
    data = shell.json("import", "old")
    assert data["imported"].get("agent", 0) + data["present"] == FILES


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_an_import_of_bombs_ends_when_it_is_told_to(shell: Shell, end: signal.Signals) -> None:
    folder = shell.directory / "old"
    folder.mkdir()
    bomb = overlapping(folder / "bomb.gz", 50, 2000 * MB)
    for number in range(40):
        # Each takes a few seconds: it is inflated up to the budget, twice.
        os.link(bomb, folder / f"{number}.gz")
    process = shell.start("import", "old")
    try:
        deadline = time.monotonic() + TIMEOUT
        while not any(link.endswith(".gz") for link in _opened(process.pid)):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(end)
        _, errors = process.communicate(timeout=TIMEOUT)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 128 + end
    assert b"Traceback" not in errors


def _opened(pid: int) -> list[str]:
    """The files that a process has open."""
    found: list[str] = []
    with suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                found.append(os.readlink(f"/proc/{pid}/fd/{name}"))
    return found


def test_people_see_a_table(shell: Shell) -> None:
    write(shell.directory / "old" / "a.json", agent("a", status="?"))
    code, shown = on_terminal(shell, "import", "old")
    assert code == 0
    assert "imported" in uncoloured(shown)
    assert "running" in uncoloured(shown)


def test_import_and_export_record_the_visit_of_the_agent(shell: Shell) -> None:
    me = shell.register("w", type="worker")
    write(shell.directory / "a.json", agent("a"))
    calls = [shell.json("agents", "show", "w")["last_call"]]
    for words in (("import", "a.json"), ("export", "out.jsonl.gz")):
        shell.say(*words, agent=me)
        calls.append(shell.json("agents", "show", "w")["last_call"])
    assert calls[0] < calls[1] < calls[2]


def test_what_a_killed_export_left_is_removed_by_the_next(shell: Shell) -> None:
    me = shell.register("w", type="worker")
    shell.say("send", "w", "note", '"x"', agent=me)
    with open_bus(shell.directory / ".agentbus") as bus:
        for number in range(60):
            bus.do(bus.state("s").set(f"k{number}", os.urandom(10_000).hex()))

    def unfinished() -> list[Path]:
        return list(shell.directory.glob(".agentbus-export-*"))

    process = shell.start("export", "out.jsonl.gz")
    deadline = time.monotonic() + TIMEOUT
    while not unfinished() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.001)
    process.kill()
    process.communicate(timeout=TIMEOUT)
    shell.say("export", "again.jsonl.gz")
    assert unfinished() == []
