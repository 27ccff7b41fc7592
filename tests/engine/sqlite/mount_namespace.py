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

from tests.support import zygote

_ENTER = """
import ctypes, subprocess, sys

if ctypes.CDLL(None).unshare(0x00020000):  # CLONE_NEWNS
    sys.exit("unshare failed")
mount, script = sys.argv[2:]
del sys.argv[2:]
subprocess.run(["sh", "-e", "-c", f'mount --make-rprivate /\\n{mount}', "sh", sys.argv[1]], check=True)
exec(compile(script, "<script>", "exec"))
"""


def run_mounted(mount: str, script: str, directory: Path) -> Any:
    """Run a mount command, then a Python script, both with ``directory`` as their argument; what the script prints is
    JSON."""
    if not _possible():
        pytest.skip("mounting needs root or user namespaces, and the unshare command")
    if os.getuid() == 0:
        return ran([sys.executable, "-c", _ENTER, str(directory), mount, script])
    command = [*_unshare(), "sh", "-e", "-c", f'{mount}\nexec "$0" -c "$2" "$1"']
    return ran([*command, sys.executable, str(directory), script])


def ran(command: list[str]) -> Any:
    """Run a command that uses the bus; what it prints is JSON."""
    done = zygote.run(command, timeout=60)
    assert done.returncode == 0, f"{done.stdout.decode()}\n{done.stderr.decode()}"
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
