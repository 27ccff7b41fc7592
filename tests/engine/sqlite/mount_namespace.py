"""Scripts in a mount namespace of their own: small disks and read-only directories that vanish with the process."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import agentbus

_SOURCE = str(Path(agentbus.__file__).resolve().parents[1])


def run_mounted(mount: str, script: str, directory: Path) -> Any:
    """Run a mount command, then a Python script, both with ``directory`` as their argument; what the script prints is
    JSON."""
    if not _possible():
        pytest.skip("mounting needs root or user namespaces, and the unshare command")
    command = [*_unshare(), "sh", "-e", "-c", f'{mount}\nexec "$0" -c "$2" "$1"']
    return ran([*command, sys.executable, str(directory), script])


def ran(command: list[str]) -> Any:
    """Run a command that uses the bus; what it prints is JSON."""
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": _SOURCE},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return json.loads(done.stdout)


def _unshare() -> list[str]:
    as_root = [] if os.getuid() == 0 else ["--user", "--map-root-user"]
    return ["unshare", *as_root, "--mount"]


@cache
def _possible() -> bool:
    if shutil.which("unshare") is None:
        return False
    command = [*_unshare(), "mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", "/mnt"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0
