"""OpenTelemetry: traces and metrics of a bus, if a program or its environment asks for them.

    >>> agentbus.telemetry.enable()                                                   # doctest: +SKIP

records spans and metrics with the providers that the program has set up. ``AGENTBUS_OTEL=1`` in the environment does
the same for the command line and for programs that do not know of it, and exports by OTLP to the endpoint that the
``OTEL_*`` variables name. The package opentelemetry is imported only then.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from agentbus import core
from agentbus.core import logs, trace_context
from agentbus.errors import NoTelemetry

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

__all__ = ["current_ids", "disable", "enable", "environment"]

VERSION: str = import_module("agentbus").__version__
"""Of the instrumentation. Not imported by name: the package is above this floor."""
REQUIREMENTS = ("opentelemetry-sdk>=1.40,<2", "opentelemetry-exporter-otlp-proto-http>=1.40,<2")
"""The extra otel of pyproject.toml."""


def enable(tracer_provider: TracerProvider | None = None, meter_provider: MeterProvider | None = None) -> None:
    """Record spans and metrics from now on, of all buses of this process; by default with the global providers.

    A second call replaces the first.

    >>> agentbus.telemetry.enable(tracer_provider)                                    # doctest: +SKIP
    """
    try:
        from agentbus.telemetry.meters import Meters
        from agentbus.telemetry.tracer import SpanTracer, default_meter_provider, default_tracer_provider
    except ModuleNotFoundError as error:
        raise _missing(error) from None
    disable()
    meters = Meters(default_meter_provider() if meter_provider is None else meter_provider)
    provider = default_tracer_provider() if tracer_provider is None else tracer_provider
    _install(SpanTracer(provider, meters, trace_context.inherited()))


def enable_export() -> None:
    """Record spans and metrics as the environment asks for: with the global providers if a program has set them up,
    else with providers of this package, which export as the ``OTEL_*`` variables say."""
    try:
        from agentbus.telemetry.export import exporting_tracer

        _install(exporting_tracer(trace_context.inherited()))
    except ModuleNotFoundError as error:
        raise _missing(error) from None


def disable() -> None:
    """Record nothing more. Spans that are open are recorded when they end.

    >>> disable()
    """
    tracer, core.tracer = core.tracer, None
    if tracer is not None:
        tracer.stop()
        logs.trace_ids = None


def environment() -> dict[str, str]:
    """Return the variables that make a child process continue the trace of this moment: ``TRACEPARENT``, and
    ``TRACESTATE`` if there is one; empty without a trace.

    >>> subprocess.run(command, env={**os.environ, **agentbus.telemetry.environment()})   # doctest: +SKIP
    """
    trace = None if core.tracer is None else core.tracer.current()
    return {} if trace is None else {name.upper(): value for name, value in trace_context.headers_of(trace).items()}


def current_ids() -> tuple[str, str] | None:
    """Return the trace id and the span id of this moment, in hexadecimal; None without a trace.

    >>> current_ids() is None
    True
    """
    return trace_context.current_ids()


def _install(tracer: trace_context.Propagation) -> None:
    core.tracer = tracer
    logs.trace_ids = trace_context.current_ids


def _missing(error: ModuleNotFoundError) -> Exception:
    package = (error.name or "").partition(".")[0]
    if package == "agentbus":
        return error
    return NoTelemetry(package=error.name, requirements=" ".join(f"'{one}'" for one in REQUIREMENTS))
