"""``agentbus trust``: servers and directories that the user accepts, in a file that only the user can write."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from agentbus.core import trust
from agentbus.errors import InvalidInput, NotWritable
from tests.cli.conftest import Shell


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config" / "agentbus" / "trusted"


def test_a_target_is_accepted_listed_and_removed(nowhere: Shell, config: Path) -> None:
    server = [
        {"kind": "host", "value": "db.example.org:5432"},
        {"kind": "host", "value": "[::1]:5433"},
    ]
    assert nowhere.told("trust", "postgresql://u:p@DB.example.org:5432,[::1]:5433/d?schema=s") == server
    (home,) = nowhere.told("trust", "./some/directory")
    assert home == {"kind": "home", "value": os.path.realpath(nowhere.directory / "some" / "directory")}
    assert nowhere.told("trust", "postgresql://db.example.org") == server[:1]
    assert nowhere.told("trust", "--list") == nowhere.told("trust") == [*server, home]
    assert (config.stat().st_mode & 0o777, config.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    nowhere.told("trust", "--remove", "postgresql://db.example.org:5432")
    assert nowhere.told("trust") == [server[1], home]
    assert config.stat().st_mode & 0o777 == 0o600
    assert nowhere.refused("trust", "--remove", "postgresql://db.example.org:5432", code=4)["code"] == "nothing_there"
    assert nowhere.refused("trust", "nothing", code=2)["code"] == "usage"
    assert nowhere.refused("trust", "--remove", code=2)["code"] == "usage"


def test_entries_that_are_accepted_at_once_are_all_stored(config: Path) -> None:
    threads = [threading.Thread(target=trust.trust, args=("home", f"/{number}")) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {value for _, value in trust.entries()} == {f"/{number}" for number in range(8)}


def test_a_value_cannot_smuggle_a_second_line(config: Path) -> None:
    with pytest.raises(InvalidInput):
        trust.trust("home", "/a\nhost evil:5432")
    assert trust.entries() == []


def test_a_file_that_cannot_be_read_or_written_is_an_error_and_accepts_nothing(nowhere: Shell, config: Path) -> None:
    config.parent.parent.mkdir()
    config.parent.write_text("no directory")
    assert nowhere.refused("trust", "./here", code=1)["code"] == "not_writable"
    config.parent.unlink()
    config.parent.mkdir()
    config.symlink_to(config)
    assert nowhere.refused("trust", "--list", code=1)["code"] == "not_writable"
    assert not trust.is_trusted("host", "h:1")


def test_a_file_that_another_user_can_write_accepts_nothing(config: Path) -> None:
    trust.trust("host", "h:1")
    assert trust.is_trusted("host", "h:1")
    config.chmod(0o666)
    assert not trust.is_trusted("host", "h:1")
    with pytest.raises(NotWritable):
        trust.trust("host", "h:2")


def test_a_line_that_is_no_text_stays_when_another_is_removed(config: Path) -> None:
    trust.trust("host", "h:1")
    with config.open("ab") as file:
        file.write(b"home /\xff\n")
    assert trust.distrust("host", "h:1")
    assert config.read_bytes() == b"home /\xff\n"
    assert [path.name for path in config.parent.iterdir()] == ["trusted"]


def test_a_relative_configuration_directory_is_ignored(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be a directory of the repository that the user stands in."""
    monkeypatch.setenv("XDG_CONFIG_HOME", "config")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert trust.path() == str(tmp_path / ".config" / "agentbus" / "trusted")


def test_the_root_directory_cannot_be_accepted(nowhere: Shell, config: Path) -> None:
    assert nowhere.refused("trust", "/", code=2)["code"] == "usage"
    assert nowhere.refused("trust", "/tmp/..", code=2)["code"] == "usage"
    assert nowhere.told("trust") == []


def test_accepting_and_removing_say_what_was_done(nowhere: Shell, config: Path) -> None:
    added, removed = nowhere.run("trust", "./missing"), nowhere.run("trust", "--remove", "./missing")
    assert added.out != removed.out
    assert "missing" in added.err
