"""Telemetry that records in memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from agentbus import telemetry
from tests.support.traces import Recorded


@pytest.fixture
def recorded() -> Iterator[Recorded]:
    """Spans and metrics of this process, for the length of a test."""
    pytest.importorskip("opentelemetry.sdk", reason="needs opentelemetry-sdk")
    found = Recorded()
    telemetry.enable(found.provider, found.meters)
    yield found
    telemetry.disable()
    found.close()
