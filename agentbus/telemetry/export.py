"""Export by OTLP, as the ``OTEL_*`` variables say, for programs that set up no providers: the command line first of
all."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

from opentelemetry import metrics, trace

from agentbus.core.validation import read_number
from agentbus.telemetry.meters import Meters
from agentbus.telemetry.tracer import SpanTracer

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource

FLUSH_TIMEOUT = 1000
"""Milliseconds that the end of a command waits for its spans to be exported, unless OTEL_BSP_EXPORT_TIMEOUT is set."""


class ExportingTracer(SpanTracer):
    """A tracer with its own providers, which are flushed when the command ends."""

    def flush(self) -> None:
        # The exporter tries for ten seconds to reach an endpoint that does not answer: too long for a short command.
        exporting = threading.Thread(target=self._flush, daemon=True)
        exporting.start()
        exporting.join(read_number("OTEL_BSP_EXPORT_TIMEOUT", FLUSH_TIMEOUT) / 1000)

    def _flush(self) -> None:
        for provider in (self._provider, self._meters.provider):
            flush = getattr(provider, "force_flush", None)
            if flush is not None:
                flush()


def exporting_tracer(inherited: str | None) -> SpanTracer:
    """Return a tracer with the global providers, or with exporting ones in place of those that are not set up."""
    resource = _resource()
    tracer_provider = trace.get_tracer_provider()
    if isinstance(tracer_provider, trace.ProxyTracerProvider) and _exports("TRACES"):
        tracer_provider = _tracer_provider(resource)
    meter_provider = metrics.get_meter_provider()
    if type(meter_provider).__name__ == "_ProxyMeterProvider" and _exports("METRICS"):
        return ExportingTracer(tracer_provider, LazyMeters(resource), inherited)
    return ExportingTracer(tracer_provider, Meters(meter_provider), inherited)


def _exports(signal: str) -> bool:
    return os.environ.get(f"OTEL_{signal}_EXPORTER", "otlp").strip().lower() != "none"


def _resource() -> Resource:
    from opentelemetry.sdk.resources import Resource

    # Environment variables take precedence.
    return Resource.create({} if os.environ.get("OTEL_SERVICE_NAME") else {"service.name": "agentbus"})


def _tracer_provider(resource: Resource) -> Any:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider


class LazyMeters(Meters):
    """Meters that export once a bus is open for long. A short command would export a series of its own each time, so
    it has none."""

    def __init__(self, resource: Resource) -> None:
        super().__init__(metrics.NoOpMeterProvider())
        self._resource: Resource | None = resource

    async def observe(self, bus: Any) -> None:
        if self._resource is not None:
            resource, self._resource = self._resource, None
            super().__init__(_meter_provider(resource))
        await super().observe(bus)


def _meter_provider(resource: Resource) -> Any:
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

    return MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter())], resource=resource)
