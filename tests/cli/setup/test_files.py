"""Files that are links, read-only, broken, hostile, or being changed: refused by name, or changed in one step."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import threading

import pytest

from agentbus.cli.setup import files, install, json_text
from agentbus.cli.setup.files import SetupRefused
from tests.cli.conftest import TIMEOUT
from tests.cli.setup.conftest import Box
from tests.cli.setup.test_merge import place


def test_permissions_of_a_file_stay(box: Box) -> None:
    path = place(box, ".gemini/settings.json", "{}")
    for mode in (0o600, 0o640, 0o664):
        path.chmod(mode)
        box.told("setup", "gemini", "--user")
        assert stat.S_IMODE(path.stat().st_mode) == mode
        assert stat.S_IMODE(path.with_name("settings.json.agentbus-backup").stat().st_mode) == mode
        box.told("setup", "gemini", "--user", "--remove")
        assert stat.S_IMODE(path.stat().st_mode) == mode


def test_a_link_of_the_user_stays_a_link(box: Box) -> None:
    real = place(box, "dotfiles/settings.json", '{"a": 1}')
    link = box.home / ".claude" / "settings.json"
    link.parent.mkdir()
    link.symlink_to(real)
    box.told("setup", "claude", "--user")
    assert link.is_symlink()
    assert "hooks" in json.loads(real.read_text())
    assert real.with_name("settings.json.agentbus-backup").exists()
    box.told("setup", "claude", "--user", "--remove")
    assert (link.is_symlink(), real.read_text()) == (True, '{"a": 1}')


@pytest.mark.parametrize("name", [".claude/settings.json", ".claude", ".mcp.json", ".claude/skills"])
def test_a_project_cannot_make_setup_write_outside_of_it(box: Box, name: str) -> None:
    outside = box.home / ".ssh"
    outside.mkdir()
    (outside / "config").write_text("{}")
    link = box.project / name
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(outside / "config" if name.endswith("json") else outside)
    before = box.files()
    error = box.refused("setup", "claude", code=1)
    assert error["code"] == "setup_refused"
    assert "leads out of the project" in error["message"]
    assert box.files() == before


def test_a_project_cannot_have_a_private_file_restored_into_it(box: Box) -> None:
    place(box, ".ssh/key", "secret")
    skill = box.project / ".claude/skills/agentbus/SKILL.md"
    skill.parent.mkdir(parents=True)
    skill.with_name("SKILL.md.agentbus-backup").symlink_to(box.home / ".ssh/key")
    (skill.parent / ".SKILL.md.agentbus-tmp").symlink_to(box.home / ".ssh/key")
    box.told("setup", "claude")
    box.told("setup", "claude", "--remove")
    assert not skill.exists()
    assert (box.home / ".ssh/key").read_text() == "secret"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b'{"a": 1', "is not JSON"),
        (b'{"hooks": []}', "hooks is not an object"),
        (b'{"hooks": {"Stop": {}}}', "hooks.Stop is not a list"),
        (b'{"permissions": {"allow": "all"}}', "permissions.allow is not a list"),
        (b"[]", "the file is not an object"),
        (b'{"a": "\xff"}', "is not UTF-8: byte 7"),
        (b"[" * 100_000, "is not JSON"),
    ],
)
def test_a_broken_file_is_refused_and_nothing_is_written(box: Box, content: bytes, reason: str) -> None:
    path = box.home / ".claude" / "settings.json"
    path.parent.mkdir()
    path.write_bytes(content)
    before = box.files()
    for words in ((), ("--dry-run",)):
        error = box.refused("setup", "claude", "--user", *words, code=1)
        assert error["code"] == "setup_refused"
        assert reason in error["message"], error
        if "UTF-8" not in reason:
            assert "agentbus setup claude --user --print" in error["fix"]
    assert box.files() == before
    # It is listed, not refused.
    assert [one["status"] for one in box.told("setup", "--user") if one["client"] == "claude"] == ["absent"]


def test_what_cannot_be_replaced_is_refused_by_name(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    path = place(box, ".gemini/settings.json", "{}")
    path.chmod(0o444)
    error = box.refused("setup", "gemini", "--user", code=1)
    assert error["fix"] == f"chmod u+w {path}"
    path.chmod(0o644)
    with monkeypatch.context() as patched:
        # As for a file of another user, in a directory of one's own.
        patched.setattr(os, "access", lambda *_: False)
        assert "lets no other write to it" in box.refused("setup", "gemini", "--user", code=1)["message"]
    path.unlink()
    os.mkfifo(path)
    assert "is not a file" in box.refused("setup", "gemini", "--user", code=1)["message"]
    path.unlink()
    path.mkdir()
    assert "is not a file" in box.refused("setup", "gemini", "--user", code=1)["message"]
    path.rmdir()
    monkeypatch.setattr(files, "MAX_BYTES", 10)
    path.write_text('{"a": "0123456789"}')
    assert "at most 10 are edited" in box.refused("setup", "gemini", "--user", code=1)["message"]
    path.unlink()
    path.parent.rmdir()
    path.parent.write_text("a file in place of the directory")
    assert "cannot be read or written" in box.refused("setup", "gemini", "--user", code=1)["message"]


def test_hostile_content_is_kept_and_shown_without_effect(box: Box) -> None:
    text = json.dumps({
        "hooks": {"Stop": [None, 3, {"hooks": None}, {"hooks": [None, {"command": 7}, {"command": "agentbus 'x"}]}]},
        "permissions": {"allow": [None, {"a": 1}, "Bash(agentbus run:*) "]},
        "\u001b[2J": "\u0000\u2028",
    })  # fmt: skip
    path = place(box, ".claude/settings.json", text)
    box.told("setup", "claude", "--user")
    value = json.loads(path.read_text())
    assert value["hooks"]["Stop"][:-1] == json.loads(text)["hooks"]["Stop"]
    box.told("setup", "claude", "--user", "--remove")
    assert path.read_text() == text


def test_secrets_do_not_appear_in_the_diff(box: Box) -> None:
    place(
        box,
        ".claude.json",
        '{\n  "oauthToken": "sk-1",\n  "primaryApiKey": "sk-2",\n  "n": 1,\n  "password": "sk-3"\n}\n',
    )
    place(box, ".codex/config.toml", 'api_key = "sk-4"\n')
    text = box.say("setup", "claude", "--user", "--dry-run") + box.say("setup", "codex", "--user", "--dry-run")
    assert "sk-" not in text
    assert '"password": "…"' in text
    place(box, ".claude.json", json.dumps({"a": "x" * 500, "userToken": "sk-5", "b": "y" * 5000}))
    assert "sk-" not in box.say("setup", "claude", "--user", "--dry-run")
    assert max(map(len, box.say("setup", "claude", "--user", "--dry-run").splitlines())) < 400


def test_the_diff_applies_to_the_file(box: Box) -> None:
    path = place(
        box,
        ".gemini/settings.json",
        '{\n  "a": 1,\n' + "".join(f'  "k{n}": {n},\n' for n in range(40)) + '  "z": 2\n}\n',
    )
    copy = path.read_text()
    report = box.told("setup", "gemini", "--user")
    (diff,) = [one["diff"] for one in report["files"] if one["path"] == str(path)]
    old, new = copy.splitlines(), path.read_text().splitlines()
    header, *body = [line for line in diff.splitlines() if not line.startswith(("---", "+++"))]
    first = int(header.split()[1].split(",")[0].lstrip("-")) - 1
    before = [line[1:] for line in body if line[0] in " -"]
    after = [line[1:] for line in body if line[0] in " +"]
    assert old[first : first + len(before)] == before
    assert [*old[:first], *after, *old[first + len(before) :]] == new


def test_runs_at_once_give_one_installation(box: Box) -> None:
    path = place(box, ".gemini/settings.json", '{"a": 1}')
    before, failed = dict(os.environ), []
    os.environ |= box.environment

    def run() -> None:
        try:
            install.run("gemini", "user", remove=False, dry_run=False)
        except Exception as error:
            failed.append(error)

    try:
        threads = [threading.Thread(target=run) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(TIMEOUT)
    finally:
        os.environ.clear()
        os.environ.update(before)
    assert failed == []
    hooks = json.loads(path.read_text())["hooks"]
    assert {len(groups) for groups in hooks.values()} == {1}
    assert path.with_name("settings.json.agentbus-backup").read_text() == '{"a": 1}'
    assert not path.with_name("settings.json.agentbus-backup-2").exists()
    assert box.told("setup", "gemini", "--user")["action"] == "unchanged"


def test_a_change_of_the_client_in_between_is_not_overwritten(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client writes its file between reading and replacing it: the edit runs again on the new text."""
    path = place(box, ".gemini/settings.json", '{"starts": 0}')
    create, times = files._create, [3]

    def create_late(name: str, text: str, mode: int) -> None:
        create(name, text, mode)
        if name.endswith("-tmp") and times[0]:
            times[0] -= 1
            path.write_text(json_text.set_value(path.read_text(), ("starts",), times[0] + 10))

    monkeypatch.setattr(files, "_create", create_late)
    box.told("setup", "gemini", "--user")
    value = json.loads(path.read_text())
    assert value["starts"] == 10
    assert value["mcpServers"]["agentbus"]
    box.told("setup", "gemini", "--user", "--remove")
    path.write_text('{"starts": 0}')
    times[0] = 100
    with pytest.raises(SetupRefused, match="is being changed by another program"):
        files.change(str(path), lambda _: "{}")
    assert "-tmp" not in "".join(os.listdir(path.parent))


@pytest.mark.parametrize("point", ["_create", "os.replace", "_sync_folder"])
def test_a_run_that_is_killed_leaves_the_old_or_the_new_file(box: Box, point: str) -> None:
    path = place(box, ".gemini/settings.json", '{"a": 1}')
    program = f"""
import os, signal
from agentbus.cli.setup import files, install
def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)
def half(name, text, mode):
    if name.endswith("-tmp"):
        open(name, "w").write(text[:10])
        die()
    create(name, text, mode)
create = files._create
{"files._create = half" if point == "_create" else f"files.{point} = die"}
install.run("gemini", "user", remove=False, dry_run=False)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=box.project, env=box.environment, check=False, timeout=TIMEOUT
    )
    assert done.returncode == -signal.SIGKILL
    now = json.loads(path.read_text())
    assert now["a"] == 1
    assert ("hooks" in now) == (point == "_sync_folder")
    box.told("setup", "gemini", "--user")
    assert "agentbus-tmp" not in "".join(os.listdir(path.parent))
    box.told("setup", "gemini", "--user", "--remove")
    assert path.read_text() == '{"a": 1}'


def test_directories_that_are_missing_are_private_to_the_user(box: Box) -> None:
    box.told("setup", "codex", "--user")
    assert stat.S_IMODE((box.home / ".codex").stat().st_mode) == 0o700
    assert stat.S_IMODE((box.home / ".codex" / "config.toml").stat().st_mode) == 0o600
