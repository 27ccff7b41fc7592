"""Traces in tests: a process that was started within one, and spans that are kept in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from agentbus import core, telemetry
from agentbus.core.trace_context import Propagation

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
OTHER = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
STATE = "vendor=abc,other=1"
TRACE = f"{PARENT} {STATE}"


@contextmanager
def traced(trace: str | None = TRACE) -> Iterator[None]:
    """Let this process carry a trace, as one does that was started within it, for the length of a block."""
    core.tracer = Propagation(trace)
    try:
        yield
    finally:
        telemetry.disable()


class Recorded:
    """The spans and metrics of a test, in memory."""

    def __init__(self) -> None:
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import InMemoryMetricReader
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor
        from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.reader = InMemoryMetricReader()
        self.meters = MeterProvider([self.reader])

    def close(self) -> None:
        self.provider.shutdown()
        self.meters.shutdown()

    def spans(self) -> Sequence[Any]:
        """Return the spans that have ended, oldest first, and forget them."""
        found = sorted(self.exporter.get_finished_spans(), key=lambda span: span.start_time or 0)
        self.exporter.clear()
        return found

    def span(self, name: str) -> Any:
        """Return the only span of this name, and forget all."""
        (found,) = [span for span in self.spans() if span.name == name]
        return found

    def metrics(self) -> dict[str, list[tuple[dict[str, Any], Any]]]:
        """Return the attributes and the value, or the count, of each point, by metric."""
        data = self.reader.get_metrics_data()
        return {
            metric.name: [(dict(point.attributes or {}), _value(point)) for point in metric.data.data_points]
            for resource in ([] if data is None else data.resource_metrics)
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }


@contextmanager
def recording() -> Iterator[Recorded]:
    """Record the spans and metrics of this process for the length of a block; skip the test without OpenTelemetry."""
    pytest.importorskip("opentelemetry.sdk", reason="needs opentelemetry-sdk")
    found = Recorded()
    telemetry.enable(found.provider, found.meters)
    try:
        yield found
    finally:
        telemetry.disable()
        found.close()


def _value(point: Any) -> Any:
    return point.value if hasattr(point, "value") else point.count


def text_of(span: Any) -> str:
    """Return the ``traceparent`` that names a span."""
    return _text(span.get_span_context())


def parent_of(span: Any) -> str:
    """Return the ``traceparent`` that names the parent of a span."""
    return _text(span.parent)


def _text(context: Any) -> str:
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def linked(span: Any) -> list[int]:
    """Return the ids of the spans that a span links to."""
    return [link.context.span_id for link in span.links]
