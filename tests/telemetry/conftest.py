"""Telemetry that records in memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.traces import Recorded, recording


@pytest.fixture
def recorded() -> Iterator[Recorded]:
    """Spans and metrics of this process, for the length of a test."""
    with recording() as found:
        yield found
