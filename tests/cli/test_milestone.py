"""The milestone story as a shell script tells it: register, state, message, checkpoint, kill, detect, recover."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.cli.conftest import Shell

SCRIPT = Path(__file__).with_name("milestone.sh")


def test_a_shell_script_plays_the_milestone_story(nowhere: Shell) -> None:
    path = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
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
