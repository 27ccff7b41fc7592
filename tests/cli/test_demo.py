"""``agentbus demo``: the whole story, with its real processes."""

from __future__ import annotations

import os
import re
import signal

import msgspec
import pytest

from agentbus.cli.commands.demo import Closing, Narrator, print_summary
from agentbus.cli.demo.story import Figures
from agentbus.core import process_info
from tests.cli.conftest import Shell
from tests.support.processes import eventually

CHAPTERS = ["plan", "work", "kill -9", "monitor", "work", "kill -9", "monitor", "recover", "work"]
GOOD = Figures(
    planned=24, done=24, acknowledged=24, lost=0, twice=0, undone=0, deliveries=27, noticed=0.5, interrupted=0.5,
    session="completed", seconds=15,
)  # fmt: skip


@pytest.mark.timeout(1000)
def test_the_promise_is_kept(nowhere: Shell) -> None:
    # A temporary directory of its own shows what is left over.
    nowhere.environment["TMPDIR"] = str(nowhere.directory)
    constants = {"agentbus.cli.demo.story.INTERVAL": 0.1, "agentbus.cli.demo.story.TIMEOUT": 300}
    process = nowhere.start("demo", "--pace", "0.15", constants=constants)
    out, err = process.communicate(timeout=900)
    assert (process.returncode, err) == (0, b""), (out, err)
    rows = [line.split("\t") for line in out.decode().splitlines()]
    told = [row for row in rows if row[0] != "result"]
    figures = {name: value for _, name, value in rows[len(told) :]}
    chapters = [row[0] for row in told]
    assert [one for index, one in enumerate(chapters) if index == 0 or chapters[index - 1] != one] == CHAPTERS
    assert {name: figures[name] for name in ("planned", "done", "lost", "twice", "undone", "session", "holds")} == {
        "planned": "24", "done": "24", "lost": "0", "twice": "0", "undone": "0", "session": "completed",
        "holds": "true",
    }  # fmt: skip
    # One death, then of up to three more: what they had in their hands was handed out again.
    assert 25 <= int(figures["deliveries"]) <= 28
    assert int(figures["acknowledged"]) > 12
    assert float(figures["noticed"]) < 300
    assert list(nowhere.directory.iterdir()) == []
    pids = [int(pid) for pid in re.findall(r"(?:coordinator|worker-\d|process) (\d+)", out.decode())]
    assert len(set(pids)) == 8
    assert all(process_info.is_gone(pid, "", None) for pid in pids)


def test_a_broken_promise_is_a_failure() -> None:
    assert Closing(GOOD).code == 0
    for broken in ({"lost": 1}, {"twice": 1}, {"undone": 1}, {"session": "interrupted"}):
        assert Closing(msgspec.structs.replace(GOOD, **broken)).code == 1


def test_a_terminal_shows_each_chapter_once_and_the_verdict(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    narrate = Narrator(on_stderr=False)
    for chapter, text in (("plan", "24 tasks"), ("work", "worker 1"), ("work", "worker 2")):
        narrate(chapter, text)
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == [
        "plan     24 tasks", "work     worker 1", "         worker 2",
    ]  # fmt: skip
    Closing(GOOD).show()
    assert "No acknowledged work was lost or repeated (15 s)." in capsys.readouterr().out
    Closing(msgspec.structs.replace(GOOD, lost=1)).show()
    shown = capsys.readouterr().out
    assert "A guarantee was violated." in shown
    assert "No acknowledged work" not in shown


def test_a_narrow_terminal_cuts_no_word(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [("acknowledged to a worker", "24", None), ("session", "completed", True), ("of these lost", "1", False)]
    for width in ("20", "80"):
        monkeypatch.setenv("COLUMNS", width)
        print_summary(rows, "Kept.", good=True)
        shown = capsys.readouterr().out
        assert "…" not in shown
        assert {"acknowledged", "completed", "✓", "✗", "Kept."} <= set(shown.split())


def test_ctrl_c_ends_all_processes(nowhere: Shell) -> None:
    nowhere.environment["TMPDIR"] = str(nowhere.directory)
    process = nowhere.start("demo")
    assert process.stdout is not None
    assert process.stderr is not None
    with process.stdout, process.stderr:
        pids = [int(pid) for pid in re.findall(r" (\d+)(?:,|$)", process.stdout.readline().decode().rstrip())]
        assert len(pids) == 4
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(90) == 130
        assert b"Traceback" not in process.stderr.read()
    assert all(process_info.is_gone(pid, "", None) for pid in pids)
    assert list(nowhere.directory.iterdir()) == []


def test_kill_nine_leaves_no_process(nowhere: Shell) -> None:
    """Two at once do not disturb each other: one is killed, its team ends; the other team works on."""
    nowhere.environment["TMPDIR"] = str(nowhere.directory)
    teams, processes = [], [nowhere.start("demo"), nowhere.start("demo")]
    try:
        for process in processes:
            assert process.stdout is not None
            teams.append(
                [int(pid) for pid in re.findall(r" (\d+)(?:,|$)", process.stdout.readline().decode().rstrip())]
            )
        assert [len(team) for team in teams] == [4, 4]
        processes[0].kill()
        eventually(lambda: all(process_info.is_gone(pid, "", None) for pid in teams[0]), "its team is gone")
        assert not any(process_info.is_gone(pid, "", None) for pid in teams[1])
        processes[1].terminate()
        assert processes[1].wait(90) == 143
        assert all(process_info.is_gone(pid, "", None) for pid in teams[1])
    finally:
        for process in processes:
            process.kill()
            process.communicate()
