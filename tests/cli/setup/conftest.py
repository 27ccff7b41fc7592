"""A home and a project without configuration, and ``agentbus setup`` run there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Shell

CLIENTS = ("claude", "codex", "gemini", "opencode", "kimi", "cursor")
VARIABLES = ("CLAUDE_CONFIG_DIR", "CODEX_HOME", "GEMINI_CLI_HOME", "XDG_CONFIG_HOME", "KIMI_CODE_HOME", "VIRTUAL_ENV")


class Box(Shell):
    """A project in a home of its own. ``agentbus`` is on the path."""

    def __init__(self, root: Path) -> None:
        self.home = root / "home"
        self.project = self.home / "work"
        (self.project / ".git").mkdir(parents=True)
        programs = root / "bin"
        programs.mkdir()
        (programs / "agentbus").write_text("#!/bin/sh\n")
        (programs / "agentbus").chmod(0o755)
        super().__init__(self.project)
        for name in VARIABLES:
            self.environment.pop(name, None)
        self.environment |= {"HOME": str(self.home), "PATH": f"{programs}:/usr/bin:/bin"}
        self.programs = programs

    def files(self) -> dict[str, bytes]:
        """Return every file and its content, by its path in the home."""
        return {
            str(path.relative_to(self.home)): path.read_bytes()
            for path in sorted(self.home.rglob("*"))
            if path.is_file() and not path.is_symlink()
        }


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    """A home and a project. Files are created with usual permissions, whatever the caller's are."""
    before = os.umask(0o022)
    yield Box(tmp_path)
    os.umask(before)
