"""Fixtures of the fault tests: workers that end with their test, a runtime directory, and a bus on a server."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.postgres import Schemas, at_schema
from tests.support.processes import Team


@pytest.fixture
def team() -> Iterator[Team]:
    with Team() as team:
        yield team


@pytest.fixture
def short() -> Iterator[Path]:
    """A directory whose sockets have short enough paths, which those of ``tmp_path`` may not have."""
    directory = Path(tempfile.mkdtemp(prefix="bus-"))
    yield directory
    shutil.rmtree(directory)


@pytest.fixture(autouse=True)
def runtime(short: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the bells of a bus go whose own path is too long."""
    directory = short / "run"
    directory.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(directory))
    return directory


@pytest.fixture
def url(schemas: Schemas, short: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An empty bus on a server that is not to be stopped."""
    monkeypatch.setenv("XDG_STATE_HOME", str(short / "state"))
    name = schemas.take()
    yield at_schema(schemas.url, name)
    schemas.give_back(name)
