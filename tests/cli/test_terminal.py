"""Output on a terminal, and completion by shells."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

from agentbus.sync.bus import open_bus
from tests.cli.conftest import TIMEOUT, Shell
from tests.cli.task_workers import begun
from tests.cli.terminals import on_terminal, uncoloured
from tests.support import zygote


def test_people_see_tables_with_colours_and_relative_times(shell: Shell) -> None:
    shell.register("planner-1", type="planner")
    code, shown = on_terminal(shell, "agents")
    assert code == 0
    assert "\x1b[32mrunning" in shown
    lines = uncoloured(shown).splitlines()
    assert lines[0].split() == ["id", "type", "status", "progress", "seen", "note", "session"]
    assert re.search(r"planner-1 +planner +running +0 % +\d+ s ago +– +–", lines[1])
    code, shown = on_terminal(shell, "agents", "show", "planner-1")
    assert re.search(r"seen +\d+ s ago", uncoloured(shown))
    assert "last call" not in shown
    code, shown = on_terminal(shell, "messages")
    assert (code, "no matching messages" in shown) == (0, True)
    code, shown = on_terminal(shell, "agents", "--json")
    assert shown.startswith('{"schema_version":1')


def test_status_is_refreshed_in_place_until_ctrl_c(shell: Shell) -> None:
    shell.register("planner-1", type="planner")
    code, shown = on_terminal(shell, "status", "--watch", "--interval", "0.05", until="planner-1", interrupt=True)
    assert code == 130
    assert "planner-1" in shown
    assert "Traceback" not in shown


def test_without_rich_a_terminal_gets_plain_lines(shell: Shell) -> None:
    shell.register("planner-1", type="planner")
    (shell.directory / "rich.py").write_text("raise ImportError('not installed')")
    hidden = shell.directory / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text(
        "import importlib.util as u\nfind = u.find_spec\n"
        "u.find_spec = lambda name, package=None: None if name == 'rich' else find(name, package)\n"
    )
    shell.environment["PYTHONPATH"] = str(hidden)
    code, shown = on_terminal(shell, "agents")
    assert (code, shown.split("\t")[:3]) == (0, ["planner-1", "planner", "running"])


def test_what_was_cut_off_is_a_table_and_a_plan_says_what_to_type(shell: Shell) -> None:
    with open_bus(shell.directory / ".agentbus") as bus:
        bus.start_session("planning", id="planning-001", milestone="ms-123", expects={"a": "plan"})
        bus.register("a", type="worker", session="planning-001").fail("crashed")
    code, shown = on_terminal(shell, "session", "interrupted")
    heading, row, *_ = uncoloured(shown).splitlines()
    assert re.split("  +", heading.strip()) == [
        "session", "milestone", "operation", "inactive minutes", "agents", "active", "failed", "status",
    ]  # fmt: skip
    assert re.split("  +", row.strip()) == ["planning-001", "ms-123", "planning", "0", "1", "0", "1", "interrupted"]
    assert (code, "\x1b[31minterrupted" in shown) == (0, True)
    code, shown = on_terminal(shell, "session", "recover", "planning-001")
    lines = uncoloured(shown).splitlines()
    assert any(re.match(r"--resume +continues it and expects a again", line) for line in lines)
    assert any(re.match(r"--abandon REASON +ends it as failed", line) for line in lines)
    assert "options, the likeliest first" in lines
    code, shown = on_terminal(shell, "doctor")
    assert (code, "\x1b[32mok" in shown) == (0, True)


def test_long_work_shows_how_far_it_is_and_leaves_no_trace(shell: Shell) -> None:
    code, shown = on_terminal(shell, "backup", errors=True)
    assert (code, "backing up" in shown) == (0, True)
    assert uncoloured(shown).strip().endswith(".db")
    code, shown = on_terminal(shell, "cleanup", errors=True)
    assert (code, "cleaning up" in shown, "nothing to delete" in shown) == (0, True, True)
    code, shown = on_terminal(shell, "backup", "--quiet", errors=True)
    assert (code, "backing up" in shown) == (0, False)


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_completes_commands_options_and_agents(shell: Shell) -> None:
    shell.register("planner-1", type="planner")
    with open_bus(shell.directory / ".agentbus") as bus:
        bus.start_session("planning", id="s-1")
    assert completed(
        shell,
        'agentbus rec', 'agentbus agents ""', 'agentbus send ""', "agentbus send planner-1 note --pri",
        "agentbus state get k --agent pl", "agentbus messages list --st", 'agentbus session recover ""',
        "agentbus session recover s-1 --fol", "agentbus register x --type plann", 'agentbus ack ""',
    ) == [
        "receive recovery", "list show find delete clear", "planner-1", "--priority", "planner-1", "--status", "s-1",
        "--follow-on --follow-on-id", "planner", "",
    ]  # fmt: skip


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_completes_tasks_their_steps_and_what_they_ask(shell: Shell) -> None:
    begun(shell)
    assert completed(
        shell,
        'agentbus task show ""', "agentbus task redo f-1 pl", 'agentbus task approve f-1 ""', 'agentbus task start ""',
        "agentbus task auto f-1 o", "agentbus task start feature --co",
    ) == ["f-1", "planning plan", "plan", "feature", "on off", "--context"]  # fmt: skip


def completed(shell: Shell, *lines: str) -> list[str]:
    """Return the completions of bash for each of these lines."""
    script = """
        eval "$(agentbus completion bash)"
        complete_words() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); _agentbus; echo "${COMPREPLY[@]}"; }
    """ + "\n".join(f"complete_words {line}" for line in lines)
    environment = {**shell.environment, "PATH": zygote.search_path(shell.environment)}
    done = subprocess.run(
        ["bash", "-c", script], cwd=shell.directory, env=environment, capture_output=True, timeout=TIMEOUT, check=True
    )
    assert done.stderr == b""
    return done.stdout.decode().splitlines()


@pytest.mark.skipif(shutil.which("zsh") is None, reason="there is no zsh")
def test_zsh_reads_its_script(shell: Shell) -> None:
    script = shell.say("completion", "zsh")
    subprocess.run(["zsh", "-n"], input=script.encode(), timeout=TIMEOUT, check=True)


def test_control_characters_in_a_foreign_text_are_escaped(shell: Shell) -> None:
    shell.register("a")
    with open_bus(shell.directory / ".agentbus") as bus:
        bus.do(bus.state("a").set("k", "\x1b[2Jgone"))
    code, shown = on_terminal(shell, "state", "get", "k", "--of", "a")
    assert (code, "\x1b[2J" in shown, "\\x1b[2Jgone" in shown) == (0, False, True)
