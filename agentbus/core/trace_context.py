"""Trace context (W3C): check it, and carry it from the environment to messages, tasks and child processes.

``Propagation`` carries a context that others made, and makes no spans: it needs no package. ``agentbus.telemetry``
makes one that does both. The text of a context is its ``traceparent`` and, after a space, its ``tracestate`` if there
is one. A context that the caller has given is never replaced.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar, Token
from typing import TYPE_CHECKING, Any, Self

import msgspec

from agentbus import core
from agentbus.core.validation import MAX_HEADERS, read_flag

if TYPE_CHECKING:
    from agentbus.api.message import Message
    from agentbus.api.tasks.run import Run
    from agentbus.operations.rows import Draft, MessageRow
    from agentbus.operations.send import Receipt
    from agentbus.operations.task_steps import StepIdentity
    from agentbus.operations.tasks import ClaimedTask, StartRequest
    from agentbus.records import TaskRecord

MAX_TRACE = 512
"""Characters of a trace context, as the tables limit it."""
_FORM = re.compile("(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-[0-9a-f]{2}(?![^ -])")
"""The version, the trace id, the span id and the flags."""
_LENGTH = 55
"""Characters of version 00; later versions may append fields."""


def ids_of(trace: str | None) -> tuple[str, str] | None:
    """Return the trace id and the span id of a context; None if it is not valid.

    >>> ids_of("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
    ('0af7651916cd43dd8448eb211c80319c', 'b7ad6b7169203331')
    >>> ids_of("00-00000000000000000000000000000000-b7ad6b7169203331-01") is None
    True
    """
    found = None if trace is None else _FORM.match(trace)
    if trace is None or found is None or (trace.startswith("00") and trace[_LENGTH : _LENGTH + 1] == "-"):
        return None
    return found[1], found[2]


def trace_of(headers: Mapping[str, Any]) -> str | None:
    """Return the context that headers (or ``_meta``) carry; None without a valid one.

    >>> trace_of({"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": "a=1"})
    '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01 a=1'
    """
    parent, state = headers.get("traceparent"), headers.get("tracestate")
    if not isinstance(parent, str) or len(parent) > MAX_TRACE or " " in parent or ids_of(parent) is None:
        return None
    return join(parent, state if isinstance(state, str) else "")


def join(parent: str, state: str) -> str:
    """Return the text of a context. A state that is too long, or has other characters than printable ones, is left
    out, as its specification allows."""
    state = state.strip()
    both = f"{parent} {state}"
    return both if state and state.isascii() and state.isprintable() and len(both) <= MAX_TRACE else parent


def headers_of(trace: str) -> dict[str, str]:
    """Return the headers that carry a context."""
    parent, _, state = trace.partition(" ")
    return {"traceparent": parent, "tracestate": state} if state else {"traceparent": parent}


def inherited() -> str | None:
    """Return the context that the environment of this process carries (``TRACEPARENT``, ``TRACESTATE``)."""
    names = ("traceparent", "tracestate")
    return trace_of({name: os.environ.get(name.upper()) for name in names})


def start() -> None:
    """Install the tracer that the environment asks for; none without a reason for one."""
    if read_flag("AGENTBUS_OTEL"):
        from agentbus.telemetry import enable_export

        enable_export()
    else:
        propagate(inherited())


def propagate(trace: str | None) -> None:
    """Carry trace contexts from now on, if there is one to carry and nothing does so yet."""
    if core.tracer is None and trace is not None:
        core.tracer = Propagation(inherited())


def current_ids() -> tuple[str, str] | None:
    """Return the trace id and the span id of this moment, in hexadecimal; None without a trace."""
    return None if core.tracer is None else ids_of(core.tracer.current())


class Span:
    """A part of the work, and the trace context of what happens within. This one records nothing."""

    def __init__(self, trace: str | None) -> None:
        self.trace = trace
        """The context that what happens within continues; None if there is none."""
        self._token: Token[Any] | None = None

    def begin(self) -> None:
        """Make this the current span."""
        if self.trace is not None:
            self._token = _context.set(self.trace)

    def end(self, error: BaseException | None = None) -> None:
        """End the span, with the error of its work."""
        if self._token is not None:
            # It may be ended by another task than the one that started it.
            with suppress(ValueError):
                self._token.var.reset(self._token)
            self._token = None

    def share(self) -> Span:
        """Return a span by which another thread takes part in this one."""
        return Span(self.trace)

    def note(self, facts: Mapping[str, str | int | None]) -> None:
        """Add facts that were not known at the beginning."""

    def fail(self, error: BaseException | str) -> None:
        """Note that the work failed, by an error that is not raised."""

    def __enter__(self) -> Self:
        self.begin()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self.end(error)


class SendSpan(Span):
    """The span of a send. ``drafts`` carry its context; ``receipts`` are set when they are committed."""

    def __init__(self, drafts: Sequence[Draft], trace: str | None) -> None:
        super().__init__(trace)
        self.drafts = tuple(drafts) if trace is None else tuple(with_trace(draft, trace) for draft in drafts)
        self.receipts: Sequence[Receipt] = ()


_context: ContextVar[str | None] = ContextVar("agentbus_trace", default=None)


def with_trace(draft: Draft, trace: str) -> Draft:
    """Return a draft whose headers carry a context. One that has a context, or no room for it, is left as it is."""
    carried = headers_of(trace)
    if draft.headers is not None:
        given: dict[str, str] = msgspec.json.decode(draft.headers)
        if "traceparent" in given or "tracestate" in given:
            return draft
        carried = {**given, **carried}
    text = msgspec.json.encode(carried)
    return draft if len(text) > MAX_HEADERS else msgspec.structs.replace(draft, headers=text.decode())


class Propagation:
    """Carry the context that came with the environment, a task or a request. Each method is the hook of one place."""

    def __init__(self, trace: str | None) -> None:
        self._inherited = trace

    def current(self) -> str | None:
        """Return the trace context of this moment."""
        return _context.get() or self._inherited

    def now(self) -> int:
        """Return the time at which a span starts, in nanoseconds."""
        return 0

    def send(self, drafts: Sequence[Draft]) -> SendSpan:
        """Return the span of a send."""
        return SendSpan(drafts, self.current())

    def received(self, since: int, rows: Sequence[MessageRow], addresses: Mapping[int, str]) -> None:
        """Record that messages were received, by a claim that started then."""

    def process(self, message: Message) -> Span:
        """Return the span of the block of a message."""
        return Span(trace_of(message.headers))

    def settle(self, operation: str, messages: Iterable[Any], addresses: Mapping[int, str] | None = None) -> Span:
        """Return the span of an acknowledgement, a release or a rejection."""
        return Span(None)

    def start_task(self, request: StartRequest) -> Span:
        """Return the span of the start of a task, which continues its context."""
        return Span(self.current())

    def run_task(self, task: ClaimedTask | TaskRecord) -> Span:
        """Return the span of a run of a task by a worker, or of the block of a work item."""
        return Span(task.trace)

    def attempt_step(self, run: Run, step: StepIdentity, attempt: int, before: str | None) -> Span:
        """Return the span of an attempt of a step; ``before`` is the context of the attempt before."""
        return Span(self.current())

    def run_agent(self, agent: str, type: str, restart: int) -> Span:
        """Return the span of a command as an agent."""
        return Span(self.current())

    def answer(self, method: str, name: str | None, version: str, id: object, meta: Mapping[str, Any]) -> Span:
        """Return the span of a request of an MCP client."""
        return Span(trace_of(meta))

    def serve(self, method: str, route: str, headers: Mapping[str, Any]) -> Span:
        """Return the span of an HTTP request."""
        return Span(trace_of(headers))

    async def opened(self, bus: Any) -> None:
        """Observe an open bus."""

    def closed(self, bus: Any) -> None:
        """Stop observing a bus."""

    def stop(self) -> None:
        """Observe nothing any more: tracing is turned off."""

    def flush(self) -> None:
        """Export what is recorded: the process ends."""
