"""Fixtures of tests of SQLite only: each test has its own store."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import SQLiteStore
from tests.support.clock import FakeClock


@pytest.fixture
def engine(clock: FakeClock, template: Path) -> Iterator[SQLiteStore]:
    """An empty store in a directory of its own."""
    with tempfile.TemporaryDirectory(prefix="agentbus-test-") as directory:
        yield SQLiteStore(Path(directory) / "bus", clock, template)
