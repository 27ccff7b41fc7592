"""``agentbus run`` with real processes: how it ends, what it passes on, what it leaves behind (nothing)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from agentbus.cli.main import main
from tests.cli.conftest import Shell
from tests.cli.run_helpers import error, gone, known, line, record, recorded, running
from tests.support import zygote
from tests.support.processes import eventually

HANDLED = """
import signal, sys
def tell(number, frame):
    print(signal.Signals(number).name, flush=True)
    if number == signal.SIGTERM:
        sys.exit(9)
for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGWINCH", "SIGCONT"):
    signal.signal(getattr(signal, name), tell)
print("ready", flush=True)
while True:
    signal.pause()
"""


def test_a_command_that_ends_well_has_completed(shell: Shell) -> None:
    outcome = shell.run("run", "--agent", "a", "--pool", "p", "--", "sh", "-c", "cat; echo err >&2", input=b"in\n")
    assert (outcome.code, outcome.out, outcome.err) == (0, "in\n", "err\n")
    found = record(shell, "a")
    assert (found.status, found.kind, found.epoch) == ("completed", "resident", 1)
    run = recorded(shell, "a")
    assert (run["exit_code"], run["signal"], run["command"]) == (0, None, "sh"), "its arguments are not recorded"
    assert sorted(run["output"].splitlines()) == ["err", "in"]
    assert run["started"] <= run["ended"]
    assert gone(run["pid"])


def test_a_command_that_fails_has_failed_and_its_parent_is_told(shell: Shell) -> None:
    boss = shell.say("register", "boss", "--type", "coordinator")
    outcome = shell.run("run", "--", "sh", "-c", "echo good; echo it broke >&2; exit 3", agent=boss)
    assert outcome.code == 3
    (note, said) = outcome.err.splitlines()
    agent = note.removeprefix("agentbus: running as ")
    assert agent.startswith("sh-")
    assert said == "it broke"
    found = record(shell, agent)
    assert (found.status, found.error, found.parent) == ("failed", "exit code 3: it broke", "boss")
    (report,) = shell.json("receive", "--ack", agent=boss)
    assert report["payload"] == {"agent": agent, "status": "failed", "error": "exit code 3: it broke"}
    # Also if it has a name of its own.
    assert shell.run("run", "--agent", "a", "--", "false", agent=boss).code == 1
    assert shell.json("receive", "--ack", agent=boss)[0]["payload"]["agent"] == "a"


def test_a_command_that_is_killed_has_failed(shell: Shell) -> None:
    outcome = shell.run("run", "--agent", "a", "--json", "--", "sh", "-c", "printf no-end; kill -9 $$")
    assert outcome.code == 128 + signal.SIGKILL
    told = outcome.out.removeprefix("no-end")
    assert told.startswith('{"schema_version":1,"data":{"agent":"a#1"')
    assert record(shell, "a").error == "killed by SIGKILL: no-end"
    assert recorded(shell, "a")["signal"] == "SIGKILL"


def test_the_command_calls_as_that_agent(shell: Shell) -> None:
    shell.say("register", "other", "--type", "worker")
    script = """
        cd / && test "$AGENTBUS_AGENT" = a#1 && agentbus send other note 1 && agentbus progress 40 half &&
        agentbus heartbeat && agentbus agents show a | grep -c resident
    """
    shell.environment["PATH"] = zygote.search_path(shell.environment)
    outcome = shell.run("run", "--agent", "a", "--", "sh", "-c", script)
    assert (outcome.code, outcome.out) == (0, "m-1\n1\n")
    (message,) = shell.json("receive", agent="other")
    assert message["sender"] == "a"
    found = record(shell, "a")
    assert (found.status, found.progress, found.note) == ("completed", 40, "half")


@pytest.mark.parametrize(("said", "code", "status"), [("complete", 5, "completed"), ("fail 'no way'", 0, "failed")])
def test_what_the_command_says_of_itself_counts(shell: Shell, said: str, code: int, status: str) -> None:
    shell.environment["PATH"] = zygote.search_path(shell.environment)
    outcome = shell.run(
        "run", "--agent", "a", "--restart", "3", "--quiet", "--", "sh", "-c", f"agentbus {said}; exit {code}"
    )
    assert outcome.code == code
    assert record(shell, "a").status == status
    assert (recorded(shell, "a")["exit_code"], recorded(shell, "a")["restarts"]) == (code, 0)


def test_what_cannot_be_started(shell: Shell) -> None:
    broken = shell.directory / "broken"
    broken.write_bytes(b"\x7fELF nonsense")
    broken.chmod(0o755)
    text = shell.directory / "text"
    text.write_text("echo")
    for command, code, reason in [
        ("no-such-command", 127, "command not found"),
        ("./no-such-file", 127, "no such file"),
        ("./text", 126, "not executable"),
        ("/", 126, "not executable"),
        ("./broken", 126, "Exec format error"),
    ]:
        outcome = shell.run("run", "--quiet", "--agent", "a", "--restart", "5", "--", command)
        assert (outcome.code, outcome.out) == (code, "")
        assert outcome.err.startswith(f"agentbus: {command}: {reason}\n")
    # Only the last could not be known before.
    found = record(shell, "a")
    assert (found.epoch, found.status, found.error) == (
        1,
        "failed",
        "could not be started: Exec format error",
    )
    outcome = shell.run("run", "--json", "--", "no-such-command")
    assert (outcome.code, error(outcome)) == (127, "not_started")


def test_bad_input(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(shell.directory)
    for words in [
        ["run"],
        ["run", "true"],
        ["run", "--"],
        ["run", "--restart", "-1", "--", "true"],
        ["run", "--pause", "0", "--", "true"],
        ["run", "--agent", "a#1", "--", "true"],
    ]:
        # Before anything is forked.
        assert main(words) == 2, words
    for words, code in [
        (["run", "--agent", "not a name", "--", "true"], 2),
        (["run", "--type", "wroker", "--", "true"], 2),
        (["run", "--session", "none", "--", "true"], 1),
    ]:
        assert shell.run(*words).code == code, words
    assert shell.json("agents")["items"] == []
    shell.say("register", "a", "--type", "worker")
    assert error(shell.run("run", "--json", "--agent", "a", "--", "true")) == "agent_exists"
    assert error(shell.run("run", "--json", "--url", str(shell.directory / "none"), "--", "true")) == "no_bus"
    # What stands after -- is the command's own.
    shell.run("run", "--agent", "b", "--", "sh", "-c", 'printf %s "$*"', "sh", "--json", "--debug", "--", "-x")
    assert recorded(shell, "b")["output"] == "--json --debug -- -x"
    process = shell.start("run", "--agent", "c", "--", "printf", b"\xff\xfe")
    assert process.communicate(timeout=30) == (b"\xff\xfe", b"")
    assert (recorded(shell, "c")["command"], recorded(shell, "c")["output"]) == (
        "printf",
        "\ufffd\ufffd",
    )


def test_output_passes_as_it_is(shell: Shell) -> None:
    script = "import os; os.write(1, bytes(range(256)) * 40_000); os.write(2, b'no end')"
    process = shell.start("run", "--agent", "a", "--", sys.executable, "-c", script)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 0
    assert out == bytes(range(256)) * 40_000
    assert err == b"no end"
    kept = recorded(shell, "a")["output"]
    assert 0 < len(kept) <= 4000
    assert record(shell, "a").status == "completed"


def test_a_pipe_that_is_closed_ends_the_command_as_it_would_by_itself(shell: Shell) -> None:
    with running(shell, "--agent", "a", "--", "yes") as process:
        assert line(process) == "y"
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(30) == 128 + signal.SIGPIPE
    assert (record(shell, "a").error or "").startswith("killed by SIGPIPE")


def test_signals_are_passed_on(shell: Shell) -> None:
    with running(shell, "--agent", "a", "--", sys.executable, "-c", HANDLED) as process:
        assert line(process) == "ready"
        for name in ("SIGUSR1", "SIGUSR2", "SIGHUP", "SIGINT", "SIGWINCH", "SIGTERM"):
            process.send_signal(getattr(signal, name))
            assert line(process) == name
        assert process.wait(30) == 9
    found = record(shell, "a")
    assert (found.status, found.error) == ("stopped", "SIGTERM; exit code 9: SIGTERM")


def test_a_command_that_is_told_to_end_and_dies_of_it_was_stopped(shell: Shell) -> None:
    with running(shell, "--agent", "a", "--restart", "3", "--", "sh", "-c", "echo ready; exec sleep 60") as process:
        assert line(process) == "ready"
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
    assert record(shell, "a").status == "stopped"
    assert recorded(shell, "a")["signal"] == "SIGINT"


def test_a_run_that_is_stopped_stands_still_with_its_command(shell: Shell) -> None:
    script = "import os, time\nprint(os.getpid(), flush=True)\nwhile True: time.sleep(0.01)"
    with running(shell, "--agent", "a", "--", sys.executable, "-c", script) as process:
        command = int(line(process))
        process.send_signal(signal.SIGTSTP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        assert _state(command) == "T"
        process.send_signal(signal.SIGCONT)
        eventually(lambda: _state(command) != "T", "the command continues")
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 143


def _state(pid: int) -> str:
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0]


FAMILY = """
    sh -c 'echo $$; exec sleep 60' & (trap "" TERM; sh -c 'echo $$; exec sleep 60') &
    timeout 60 sh -c 'echo $$; exec sleep 60' & echo $$; {then}
"""
"""A command with three more processes: one that ignores SIGTERM, and one that has left its group."""


SHORT_GRACE = {"agentbus.cli.run.supervisor.GRACE": 0.2}
"""Less time between SIGTERM and SIGKILL for a family that ignores the first."""


def test_no_orphan_is_left_when_the_run_is_killed(shell: Shell) -> None:
    words = ("--agent", "a", "--", "sh", "-c", FAMILY.format(then="wait"))
    with running(shell, *words, constants=SHORT_GRACE) as process:
        family = [int(line(process)) for _ in range(4)]
        assert not any(map(gone, family))
        process.kill()
        process.wait()
        eventually(lambda: all(map(gone, family)), "everybody is gone")
    # The next who looks finds it dead.
    shell.say("run", "--quiet", "--", "true")
    found = record(shell, "a")
    assert (found.status, found.error) == ("failed", "its process died")


def test_no_orphan_is_left_when_the_command_ends(shell: Shell) -> None:
    script = FAMILY.format(then="read line; exit 0")
    words = ("--agent", "a", "--", "sh", "-c", script)
    with running(shell, *words, constants=SHORT_GRACE, stdin=subprocess.PIPE) as process:
        family = [int(line(process)) for _ in range(4)]
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(30) == 0
        assert all(map(gone, family))
    assert record(shell, "a").status == "completed"


def test_no_orphan_is_left_when_the_guard_is_killed(shell: Shell) -> None:
    script = "import os, time; print(os.getppid(), os.getpid(), flush=True); time.sleep(60)"
    with running(shell, "--agent", "a", "--", sys.executable, "-c", script) as process:
        guard, command = map(int, line(process).split())
        assert guard != process.pid
        os.kill(guard, signal.SIGKILL)
        assert process.wait(30) == 137
        assert gone(command)
    assert record(shell, "a").status == "failed"


def test_no_orphan_is_left_when_both_are_killed(shell: Shell) -> None:
    script = "import os, time; print(os.getppid(), os.getpid(), flush=True); time.sleep(60)"
    with running(shell, "--agent", "a", "--", sys.executable, "-c", script) as process:
        guard, command = map(int, line(process).split())
        for pid in (process.pid, guard):
            os.kill(pid, signal.SIGSTOP)
        for pid in (process.pid, guard):
            os.kill(pid, signal.SIGKILL)
        eventually(lambda: gone(command), "the command is gone")


def test_a_restart_is_a_new_life(shell: Shell) -> None:
    shell.environment["PATH"] = zygote.search_path(shell.environment)
    shell.say("register", "boss", "--type", "coordinator")
    shell.say("register", "other", "--type", "worker", "--pool", "p")
    shell.say("send", "pool:p", "note", "1", agent="boss")
    script = """
        echo $AGENTBUS_AGENT
        case $AGENTBUS_AGENT in
            a#1) agentbus receive > /dev/null && exit 7;;
            a#2) agentbus receive --json | grep -c '"payload":1'; kill -9 $$;;
            *) exit 0;;
        esac
    """
    words = ["run", "--agent", "a", "--pool", "p", "--parent", "boss", "--restart", "5", "--pause", "0.05", "--"]
    outcome = shell.run(*words, "sh", "-c", script)
    # What the first life held was there for the second at once.
    assert (outcome.code, outcome.out) == (0, "a#1\na#2\n1\na#3\n")
    assert outcome.err.splitlines() == [
        "agentbus: exit code 7; restart 1 of 5 in 0.05 s",
        "agentbus: killed by SIGKILL; restart 2 of 5 in 0.1 s",
    ]
    found = record(shell, "a")
    assert (found.status, found.epoch) == ("completed", 3)
    assert recorded(shell, "a")["restarts"] == 2
    # A failure that was followed by a success is not reported.
    assert shell.run("receive", agent="boss").code == 4
    assert shell.json("receive", agent="other")[0]["payload"] == 1


def test_restarts_come_to_an_end(shell: Shell) -> None:
    outcome = shell.run("run", "--agent", "a", "--restart", "2", "--pause", "0.01", "--", "sh", "-c", "echo x; exit 4")
    assert (outcome.code, outcome.out) == (4, "x\nx\nx\n")
    found = record(shell, "a")
    assert (found.status, found.epoch, found.error) == ("failed", 3, "exit code 4: x")
    run = recorded(shell, "a")
    assert (run["restarts"], run["output"]) == (2, "x")


def test_a_run_that_pauses_before_a_restart_can_be_ended(shell: Shell) -> None:
    with running(shell, "--agent", "a", "--restart", "2", "--pause", "600", "--", "false") as process:
        eventually(lambda: known(shell, "a") and record(shell, "a").epoch == 2, "it pauses")
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 143
    assert record(shell, "a").status == "stopped"


def test_a_command_that_is_stopped_by_hand_does_not_stop_the_run(shell: Shell) -> None:
    with running(shell, "--agent", "a", "--", "sh", "-c", "echo $$; exec sleep 60") as process:
        command = int(line(process))
        os.kill(command, signal.SIGSTOP)
        eventually(lambda: _state(command) == "T", "the command stands still")
        assert _state(process.pid) != "T"
        os.kill(command, signal.SIGCONT)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 143


RUNS = 6
"""Enough to write at the same time; more would wait for the lock longer than they do without a warning."""


def test_several_runs_at_once(shell: Shell) -> None:
    shell.environment["PATH"] = zygote.search_path(shell.environment)
    shell.say("register", "boss", "--type", "coordinator")
    script = 'agentbus send boss note "$1" > /dev/null && exit $(($1 % 3))'
    runs = [
        shell.start("run", "--quiet", "--agent", f"r-{number}", "--", "sh", "-c", script, "sh", str(number))
        for number in range(RUNS)
    ]
    outcomes = [(process.communicate(timeout=60), process.returncode) for process in runs]
    assert [code for _, code in outcomes] == [number % 3 for number in range(RUNS)]
    assert {said for said, _ in outcomes} == {(b"", b"")}
    found = {agent["id"]: agent["status"] for agent in shell.json("agents")["items"]}
    assert [found[f"r-{number}"] for number in range(RUNS)] == [
        "failed" if number % 3 else "completed" for number in range(RUNS)
    ]
    payloads = [message["payload"] for message in shell.json("receive", "--max", "50", agent="boss")]
    assert sorted(payload for payload in payloads if isinstance(payload, int)) == list(range(RUNS))
