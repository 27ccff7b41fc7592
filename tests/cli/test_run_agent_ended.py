"""A command whose agent is over does not work on: ``agentbus run`` notices, says so, and ends it."""

from __future__ import annotations

import json
import signal
import subprocess
import termios

import anyio
import pytest

from agentbus import Bus
from agentbus.cli.run import agent
from agentbus.cli.run.agent import FENCED, Ended
from agentbus.sync.bus import open_bus
from tests.cli.conftest import TIMEOUT, Shell
from tests.cli.fake_commands import Pretender, going, looked, resident
from tests.cli.run_helpers import gone, line, record, recorded, running
from tests.support.processes import eventually

STUBBORN = "trap '' TERM; echo $$; while :; do sleep 0.1; done"
OFTEN = {"agentbus.cli.run.agent.EVERY": 0.1}
"""A shorter interval between the checks of the agent."""


def test_a_command_whose_agent_is_stopped_ends(shell: Shell) -> None:
    """Also one that does not want to, and it is not restarted."""
    words = ["run", "--agent", "a", "--restart", "3", "--", "sh", "-c"]
    # It would not be killed in time.
    patient = {**OFTEN, "agentbus.cli.run.agent._KILL_AFTER": 3600.0}
    kind, stubborn = shell.start(*words, "echo $$; exec sleep 60", constants=patient), None
    try:
        words[2] = "b"
        constants = {**OFTEN, "agentbus.cli.run.agent._KILL_AFTER": 0.5}
        stubborn = shell.start(*words, STUBBORN, constants=constants)
        pids = [int(line(process)) for process in (kind, stubborn)]
        shell.say("stop", "--agent", "a", "enough")
        shell.say("stop", "--agent", "b")
        _, said = kind.communicate(timeout=TIMEOUT)
        assert said.startswith(b"agentbus: a is fenced: ")
        stubborn.communicate(timeout=TIMEOUT)
        assert (kind.returncode, stubborn.returncode) == (125, 125)
        assert all(map(gone, pids))
    finally:
        for process in (kind, stubborn):
            if process is not None and process.poll() is None:
                process.kill()
                process.communicate()
    found = record(shell, "a")
    assert (found.status, found.error, found.epoch) == ("stopped", "enough", 1)
    assert recorded(shell, "a")["signal"] == "SIGTERM"
    assert recorded(shell, "b")["signal"] == "SIGKILL"


def test_a_command_whose_agent_was_taken_over_ends(shell: Shell) -> None:
    words = ("--agent", "a", "--json", "--restart", "5", "--", "sh", "-c", "echo $$; exec sleep 60")
    with running(shell, *words, constants=OFTEN) as run:
        pid = int(line(run))
        assert shell.register("a", takeover=True) == "a#2"
        assert run.wait(TIMEOUT) == 125
        assert gone(pid)
        told = json.loads(line(run))["data"]
        assert (told["agent"], told["exit_code"], told["signal"]) == ("a#1", 143, "SIGTERM")
    found = record(shell, "a")
    assert (found.status, found.epoch) == ("running", 2)


def test_an_agent_that_is_stopped_in_a_pause_is_not_restarted(shell: Shell) -> None:
    words = ("run", "--agent", "a", "--restart", "2", "--pause", "600", "--", "false")
    run = shell.start(*words, constants=OFTEN, stdout=subprocess.PIPE)
    try:
        assert run.stderr is not None
        assert b"restart 1 of 2" in run.stderr.readline()
        with open_bus(shell.directory / ".agentbus") as bus:
            bus.agent("a").stop("enough")
        _, said = run.communicate(timeout=TIMEOUT)
        assert (run.returncode, said) == (125, b"agentbus: a is not restarted: it has stopped\n")
    finally:
        if run.poll() is None:
            run.kill()
            run.communicate()
    assert record(shell, "a").error == "enough"


@pytest.mark.parametrize("status", ["completed", "failed"])
async def test_a_command_that_says_it_is_done_has_time_to_end(
    bus: Bus, monkeypatch: pytest.MonkeyPatch, status: str
) -> None:
    monkeypatch.setattr(agent, "EVERY", 0.01)
    pretender = Pretender()
    run = resident(bus, pretender)
    async with going(run, pretender) as ended:
        await (run.agent.complete() if status == "completed" else run.agent.fail("no way"))
        await anyio.sleep(0.1)
        assert pretender.told == ["a#1"], "no signal was sent"
        pretender.report(exited=5)
    (end,) = ended
    assert isinstance(end, Ended)
    assert (end.status, end.code) == (status, 5)


async def test_but_only_for_a_limited_time(
    bus: Bus, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(agent, "EVERY", 0.01)
    monkeypatch.setattr(agent, "EXIT_TIMEOUT", 0.05)
    pretender = Pretender()
    run = resident(bus, pretender)
    async with going(run, pretender) as ended:
        await run.agent.complete()
        await looked(lambda: pretender.told == ["a#1", (signal.SIGTERM, True), (signal.SIGCONT, True)])
        assert capsys.readouterr().out.endswith("ending its command\n")
        pretender.report(killed=signal.SIGTERM)
    (end,) = ended
    assert (end.status, end.code) == ("completed", FENCED)


def test_the_keys_of_a_terminal_are_heard_in_a_pause(shell: Shell) -> None:
    """And what is said in it begins at the margin."""
    from tests.cli.terminals import Terminal

    words = ("--agent", "a", "--restart", "3", "--pause", "0.05", "--", "sh", "-c", "echo one; exit 4")
    terminal = Terminal(shell, *words, quiet=False)
    try:
        for number in (1, 2, 3):
            assert terminal.expect("one") == []
            assert terminal.expect("agentbus: exit code 4;")[3:5] == ["restart", str(number)]
        assert terminal.process.wait(TIMEOUT) == 4
    finally:
        terminal.close()
    terminal = Terminal(shell, "--agent", "b", "--restart", "3", "--pause", "600", "--", "false", quiet=False)
    try:
        terminal.expect("agentbus: exit code 1;")
        terminal.type(b"\x03")
        assert terminal.process.wait(TIMEOUT) == 130
    finally:
        terminal.close()
    eventually(lambda: record(shell, "b").status == "stopped", "it is over")


def test_what_is_said_on_a_raw_terminal_is_a_line_of_its_own(shell: Shell) -> None:
    from tests.cli.terminals import Terminal

    words = ("--agent", "a", "--", "sh", "-c", "echo ready; exec sleep 60")
    terminal = Terminal(shell, *words, quiet=False, constants=OFTEN)
    try:
        terminal.expect("ready")
        eventually(lambda: termios.tcgetattr(terminal.slave) != terminal.before, "the terminal is raw")
        with open_bus(shell.directory / ".agentbus") as bus:
            bus.agent("a").stop()
        assert terminal.expect("agentbus: a is fenced")[-3:] == ["ending", "its", "command"]
        assert terminal.process.wait(TIMEOUT) == 125
        assert termios.tcgetattr(terminal.slave) == terminal.before
    finally:
        terminal.close()
