"""Commands in a directory that another user prepared, and the command that trusts it."""

from __future__ import annotations

import os

import pytest

from tests.cli.conftest import Shell


@pytest.fixture(autouse=True)
def configuration(nowhere: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = str(nowhere.directory / "config")
    monkeypatch.setenv("XDG_CONFIG_HOME", folder)
    nowhere.environment["XDG_CONFIG_HOME"] = folder


def test_a_command_in_a_hostile_repository_writes_to_no_file_of_the_user(shell: Shell) -> None:
    victim = shell.directory / "notes"
    victim.write_text("the only copy of a thesis")
    home = shell.directory / ".agentbus"
    for name in ("bus.lock", "bus.ballast"):
        (home / name).unlink()
        (home / name).symlink_to("../notes")
        for words in (("status",), ("send", "a", "note", "--agent", "a"), ("backup",), ("init",)):
            error = shell.refused(*words, code=1)
            assert (error["code"], name in error["message"]) == ("unsafe_file", True)
        (home / name).unlink()
    assert victim.read_text() == "the only copy of a thesis"


def test_a_home_that_is_a_link_has_no_settings_and_is_no_bus(shell: Shell) -> None:
    home = shell.directory / ".agentbus"
    (home / "agentbus.toml").write_text("lease = 'no number'")
    os.rename(home, shell.directory / "real")
    home.symlink_to("real")
    for words in (("status",), ("init",), ("backup", "restore", "x.db"), ("doctor",)):
        error = shell.refused(*words, code=1)
        assert (error["code"], "AGENTBUS_URL" in error["fix"]) == ("unsafe_file", True)


def test_settings_are_not_read_through_a_link_nor_in_a_home_that_is_refused(shell: Shell) -> None:
    home = shell.directory / ".agentbus"
    (shell.directory / "secret").write_text("token = 7")
    (home / "agentbus.toml").symlink_to("../secret")
    error = shell.refused("status", code=1)
    assert (error["code"], "token" in error["message"]) == ("unsafe_file", False)
    (home / "agentbus.toml").unlink()
    (home / "agentbus.toml").write_text("no = 'setting'")
    home.chmod(0o777)
    assert shell.refused("status", code=1)["code"] == "untrusted_home"


def test_nothing_is_copied_or_restored_through_a_link(shell: Shell) -> None:
    home, target = shell.directory / ".agentbus", shell.directory / "target"
    (shell.directory / "victim").write_text("the only copy of a thesis")
    target.mkdir(mode=0o700)
    for name in ("bus.db", "bus.lock", "bus.db-wal"):
        (target / name).symlink_to("../victim")
        assert shell.refused("copy", ".agentbus", "target", code=1)["code"] == "unsafe_file"
        expected = "unsafe_file" if name == "bus.db" else "no_bus"
        assert shell.refused("copy", "target", "new", code=1)["code"] == expected
        (target / name).unlink()
    backup = shell.told("backup", "create", str(shell.directory / "kept.db"))["path"]
    name = "bus-20260101T000000.000Z-1a2b3c4d.db"
    (home / "backups").mkdir(mode=0o700, exist_ok=True)
    (home / "backups" / name).symlink_to(backup)
    assert shell.refused("backup", "restore", name, code=1)["code"] == "unsafe_file"
    assert shell.told("backup", "list") == []
    assert (shell.directory / "victim").read_text() == "the only copy of a thesis"
    assert not (shell.directory / "new").exists()


def test_a_directory_is_trusted_by_a_command(shell: Shell) -> None:
    home = str((shell.directory / ".agentbus").resolve())
    (shell.directory / ".agentbus").chmod(0o777)
    assert shell.told("trust") == []
    error = shell.refused("status", code=1)
    assert (error["code"], f"agentbus trust {home}" in error["fix"]) == ("untrusted_home", True)
    assert shell.told("trust", ".agentbus") == [{"kind": "home", "value": home}]
    shell.say("trust", home)
    shell.told("status")
    shell.told("trust", "--remove", home)
    assert shell.told("trust") == []
    shell.refused("status", code=1)
    shell.environment["AGENTBUS_TRUST"] = "*"
    shell.say("status")
