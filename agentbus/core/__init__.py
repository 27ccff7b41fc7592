"""Leaves: formats, names, limits, clocks, files and processes. They import nothing of the package but the errors.

The package itself holds the hook of tracing: ``tracer``, which is None unless the environment or the program asks for
it. The code on the way of a message or a task checks just that, so that tracing costs nothing where it is off.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentbus.core.trace_context import Propagation

tracer: Propagation | None = None
"""Carries the trace context of this process, with or without spans."""


class NoSpan:
    """The span of a call where tracing is off."""

    __slots__ = ()

    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> None: ...


NO_SPAN = NoSpan()


def trace_if_asked() -> None:
    """Start tracing if the environment asks for it: ``AGENTBUS_OTEL``, or a ``TRACEPARENT`` to continue."""
    if tracer is None and ("AGENTBUS_OTEL" in os.environ or "TRACEPARENT" in os.environ):
        from agentbus.core.trace_context import start

        start()
