"""``agentbus setup`` writes exactly the files in ``golden/``, for every client and scope.

    python -m tests.cli.setup.test_golden

writes them again. Review the difference: it changes the configuration of every user.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from tests.cli.setup.conftest import CLIENTS, Box

GOLDEN = Path(__file__).parent / "golden"
CASES = [(client, scope) for client in CLIENTS for scope in ("user", "project")]


def written(box: Box) -> str:
    """Return every file with its permissions, one after the other."""
    parts = []
    for name, content in box.files().items():
        mode = (box.home / name).stat().st_mode & 0o777
        # The code and the skill are in the package; here only that they are there.
        text = content.decode()
        whole = name.endswith((".json", ".toml"))
        parts.append(f"=== ~/{name} {mode:o}\n{text if whole else text.splitlines()[0]}")
    return "\n".join(parts).rstrip("\n") + "\n"


@pytest.mark.parametrize(("client", "scope"), CASES)
def test_an_installation_is_written_once_and_removed_without_a_trace(box: Box, client: str, scope: str) -> None:
    words = ("setup", client, f"--{scope}")
    nothing = box.files()
    dry = box.told(*words, "--dry-run")
    assert box.files() == nothing
    first = box.told(*words)
    assert written(box) == (GOLDEN / f"{client}-{scope}.txt").read_text()
    assert dry["files"] == first["files"]
    assert (dry["dry_run"], first["dry_run"], first["action"]) == (True, False, "installed")
    assert {one["action"] for one in first["files"]} == {"created"}
    assert first["command"] == ["agentbus"]
    there = box.files()
    again = box.told(*words)
    assert (again["action"], {one["diff"] for one in again["files"]}) == ("unchanged", {""})
    assert box.files() == there
    assert "already installed" in box.say(*words)
    (status,) = [one for one in box.told("setup") if (one["client"], one["scope"]) == (client, scope)]
    assert (status["status"], status["missing"]) == ("installed", [])
    removed = box.told(*words, "--remove")
    assert removed["action"] == "removed"
    assert box.files() == nothing
    # The directory of the client alone may stay.
    assert len([path for path in box.home.rglob("*") if path.is_dir()]) <= 5
    assert box.told(*words, "--remove")["action"] == "unchanged"
    assert "is not installed" in box.say(*words, "--remove")
    assert box.files() == nothing


def test_removal_without_an_installation_creates_nothing(box: Box) -> None:
    before = sorted(box.home.rglob("*"))
    for client in CLIENTS:
        assert box.told("setup", client, "--user", "--remove")["action"] == "unchanged"
    assert sorted(box.home.rglob("*")) == before


def _write() -> None:
    for client, scope in CASES:
        with tempfile.TemporaryDirectory() as directory:
            box = Box(Path(directory))
            box.told("setup", client, f"--{scope}")
            (GOLDEN / f"{client}-{scope}.txt").write_text(written(box))


if __name__ == "__main__":
    _write()
