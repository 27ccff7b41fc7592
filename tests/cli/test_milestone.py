"""The milestone story as a shell script tells it: register, state, message, checkpoint, kill, detect, recover."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.cli.conftest import Shell
from tests.support import zygote

SCRIPT = Path(__file__).with_name("milestone.sh")


def test_a_shell_script_plays_the_milestone_story(nowhere: Shell) -> None:
    path = zygote.search_path(nowhere.environment)
    done = subprocess.run(
        ["sh", str(SCRIPT)],
        cwd=nowhere.directory,
        env={**nowhere.environment, "PATH": path},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout.splitlines()[-1] == "messages left: 0"
