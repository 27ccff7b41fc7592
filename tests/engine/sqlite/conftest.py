"""Fixtures of tests of SQLite only: each test has its own store; syncs of the log that a test controls."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentbus.engine.sqlite import engine as engines
from tests.conftest import SQLiteStore
from tests.engine.sqlite.log_syncs import Kernel, Thread
from tests.support.clock import FakeClock


@pytest.fixture
def engine(clock: FakeClock, template: Path) -> Iterator[SQLiteStore]:
    """An empty store in a directory of its own."""
    with tempfile.TemporaryDirectory(prefix="agentbus-test-") as directory:
        yield SQLiteStore(Path(directory) / "bus", clock, template)


@pytest.fixture
def thread(monkeypatch: pytest.MonkeyPatch) -> Thread:
    return Thread(monkeypatch)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    kernel = Kernel()
    monkeypatch.setattr(engines, "open_kernel_sync", kernel.open)
    return kernel
