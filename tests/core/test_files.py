"""Atomic replacement of a file: an error leaves the old one, and never a part of the new one."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from agentbus.core import files
from agentbus.core.files import write_json
from agentbus.errors import DiskFull, NotWritable


@pytest.fixture
def target(tmp_path: Path) -> Path:
    target = tmp_path / "plan.json"
    target.write_text("old")
    return target


@pytest.mark.parametrize("step", ["fsync", "replace"])
@pytest.mark.parametrize(("number", "error"), [(errno.ENOSPC, DiskFull), (errno.EIO, NotWritable)])
def test_an_error_leaves_the_old_file_and_no_other(
    target: Path, step: str, number: int, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise OSError(number, "no")

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(error):
        write_json(target, {"new": 1})
    assert target.read_text() == "old"
    assert os.listdir(target.parent) == ["plan.json"]


def test_a_directory_that_cannot_be_synced_is_no_error_once_the_file_is_there(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(directory: Path) -> None:
        assert "new" in target.read_text()
        raise PermissionError(errno.EACCES, "not readable", str(directory))

    monkeypatch.setattr(files, "sync", fail)
    write_json(target, {"new": 1})
    assert "new" in target.read_text()
    assert os.listdir(target.parent) == ["plan.json"]
