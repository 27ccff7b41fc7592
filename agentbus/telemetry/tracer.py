"""Spans of messages, tasks, agents and MCP requests, by the conventions of OpenTelemetry for messaging and GenAI.

The names are written out: those conventions are still in development, and their package changes with them. No payload,
error text or name without a bound becomes part of a span: the mailboxes of agents and tasks are named by a template,
and an error by its code.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from time import perf_counter, time_ns
from typing import TYPE_CHECKING, Any

import msgspec
from opentelemetry import context as contexts
from opentelemetry import metrics, trace
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
)

from agentbus.core.addresses import OPERATOR, Address
from agentbus.core.trace_context import Propagation, SendSpan, Span, ids_of, join, trace_of
from agentbus.errors import AgentBusError
from agentbus.telemetry import VERSION

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

    from agentbus.api.message import Message
    from agentbus.api.tasks.run import Run
    from agentbus.operations.rows import Draft, MessageRow
    from agentbus.operations.task_steps import StepIdentity
    from agentbus.operations.tasks import ClaimedTask, StartRequest
    from agentbus.records import TaskRecord
    from agentbus.telemetry.meters import Meters

SCOPE = "agentbus"
Attributes = dict[str, Any]


def default_tracer_provider() -> TracerProvider:
    return trace.get_tracer_provider()


def default_meter_provider() -> MeterProvider:
    return metrics.get_meter_provider()


@lru_cache(1024)
def span_context(text: str | None) -> SpanContext | None:
    """Return the context that a text names; None if it is not valid."""
    ids = ids_of(text)
    if ids is None or text is None:
        return None
    parent, _, state = text.partition(" ")
    flags = TraceFlags(int(parent.split("-")[3], 16))
    states = TraceState.from_header([state]) if state else TraceState()
    return SpanContext(int(ids[0], 16), int(ids[1], 16), is_remote=True, trace_flags=flags, trace_state=states)


def text_of(context: SpanContext) -> str | None:
    """Return the text of a context; None if it is not valid."""
    if not context.is_valid:
        return None
    parent = f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
    return join(parent, context.trace_state.to_header()) if context.trace_state else parent


def error_type(error: BaseException | str) -> str:
    """Return the kind of an error: the code of one of this package, else the name of its class.

    >>> error_type(ValueError("secret")), error_type(KeyError("secret"))
    ('ValueError', 'KeyError')
    """
    if isinstance(error, str):
        return error
    kind = type(error)
    if isinstance(error, AgentBusError) or kind.__module__.partition(".")[0] == "agentbus":
        return str(getattr(error, "code", kind.__qualname__))
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def destination_of(address: Address | str | int | None) -> Attributes:
    """Return the attributes that name a recipient: pools and topics by name, the others by a template.

    >>> destination_of("pool:builders")
    {'messaging.destination.name': 'pool:builders'}
    >>> destination_of("planner-1")
    {'messaging.destination.template': 'agent:{id}'}
    """
    if address is None:
        return {}
    if isinstance(address, int):
        return {"messaging.destination.template": "replies:{id}"}
    text = str(address)
    kind, separator, _ = text.partition(":")
    if separator and kind in {"pool", "topic"}:
        return {"messaging.destination.name": text}
    template = "task:{id}" if separator and kind == "task" else "agent:{id}"
    return {"messaging.destination.template": f"{OPERATOR}{{name}}" if text.startswith(OPERATOR) else template}


def name_of(attributes: Attributes) -> str | None:
    """Return the recipient in the name of a span."""
    found: str | None = attributes.get("messaging.destination.name") or attributes.get("messaging.destination.template")
    return found


def _titled(operation: str, attributes: Attributes) -> str:
    name = name_of(attributes)
    return operation if name is None else f"{operation} {name}"


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def _messaging(operation: str, kind: str, destinations: Iterable[Address | str | int | None]) -> Attributes:
    """Return the attributes of an operation on messages, with their recipient if they have the same one."""
    attributes: Attributes = {
        "messaging.system": SCOPE, "messaging.operation.name": operation, "messaging.operation.type": kind
    }  # fmt: skip
    different = dict.fromkeys(destinations)
    if len(different) == 1:
        attributes |= destination_of(next(iter(different)))
    return attributes


class RecordedSpan(Span):
    """A span that is recorded when it ends."""

    def __init__(self, span: trace.Span, parent: Context, meter: Meter | None = None) -> None:
        # Not super(): a subclass has another base that takes other arguments.
        Span.__init__(self, text_of(span.get_span_context()))
        self._span = span
        self._parent = parent
        self._meter = meter
        self._started = perf_counter()
        self._type: str | None = None

    def begin(self) -> None:
        self._token = contexts.attach(trace.set_span_in_context(self._span, self._parent))

    def share(self) -> Span:
        return SharedSpan(self._span, self._parent)

    def note(self, facts: Mapping[str, str | int | None]) -> None:
        for name, value in facts.items():
            if value is not None:
                self._span.set_attribute(name, value)

    def fail(self, error: BaseException | str) -> None:
        self._type = error_type(error)
        self._span.set_attribute("error.type", self._type)
        self._span.set_status(Status(StatusCode.ERROR))

    def end(self, error: BaseException | None = None) -> None:
        super().end(error)
        if error is not None:
            self.fail(error)
        self._span.end()
        if self._meter is not None:
            self._meter.record(perf_counter() - self._started, self._type)


class SharedSpan(Span):
    """A recorded span in another thread, which does not end it."""

    def __init__(self, span: trace.Span, parent: Context) -> None:
        super().__init__(text_of(span.get_span_context()))
        self._span = span
        self._parent = parent

    def begin(self) -> None:
        self._token = contexts.attach(trace.set_span_in_context(self._span, self._parent))


class RecordedSend(RecordedSpan, SendSpan):
    """The span of a send, whose context the messages carry."""

    def __init__(self, span: trace.Span, parent: Context, meter: Meter, drafts: Sequence[Draft]) -> None:
        RecordedSpan.__init__(self, span, parent, meter)
        SendSpan.__init__(self, drafts, self.trace)

    def end(self, error: BaseException | None = None) -> None:
        if len(self.receipts) == 1 and len(self.drafts) == 1:
            self.note({"messaging.message.id": self.receipts[0].message_id})
        super().end(error)


class Meter:
    """Records the metrics of one operation when it ends."""

    def __init__(self, meters: Meters, attributes: Attributes, count: int = 0, *, process: bool = False) -> None:
        self._meters = meters
        self._attributes = attributes
        self._count = count
        self._process = process

    def record(self, seconds: float, error: str | None) -> None:
        self._meters.record(self._attributes, seconds, self._count, error, process=self._process)


class SpanTracer(Propagation):
    """Makes spans, and carries their contexts."""

    def __init__(self, provider: TracerProvider, meters: Meters, inherited: str | None) -> None:
        super().__init__(inherited)
        self._provider = provider
        self._tracer = provider.get_tracer(SCOPE, VERSION)
        self._meters = meters
        found = span_context(inherited)
        self._root = None if found is None else NonRecordingSpan(found)

    # Contexts

    def current(self) -> str | None:
        return text_of(trace.get_current_span(self._context()).get_span_context())

    def _context(self) -> Context:
        """Return the present context; that of the environment if there is no span in it."""
        present = contexts.get_current()
        if self._root is None or trace.get_current_span(present).get_span_context().is_valid:
            return present
        return trace.set_span_in_context(self._root, present)

    def _within(self, text: str | None) -> Context:
        """Return the present context, below the remote span that a text names."""
        found = span_context(text)
        return self._context() if found is None else trace.set_span_in_context(NonRecordingSpan(found))

    def _start(
        self,
        name: str,
        kind: SpanKind,
        attributes: Attributes,
        *,
        parent: Context | None = None,
        links: Iterable[str | None] = (),
        meter: Meter | None = None,
    ) -> RecordedSpan:
        context = self._context() if parent is None else parent
        span = self._tracer.start_span(name, context, kind, attributes, links_to(links))
        return RecordedSpan(span, context, meter)

    # Messages

    def now(self) -> int:
        return time_ns()

    def send(self, drafts: Sequence[Draft]) -> SendSpan:
        attributes = _messaging("send", "send", (draft.to for draft in drafts))
        measured = dict(attributes)
        if len(drafts) == 1:
            (draft,) = drafts
            attributes["messaging.message.body.size"] = _size(draft.payload[0])
            attributes["agentbus.message.type"] = draft.type
            if draft.correlation is not None:
                attributes["messaging.message.conversation_id"] = draft.correlation
        else:
            attributes["messaging.batch.message_count"] = len(drafts)
        context = self._context()
        given = [_trace_of(draft.headers) for draft in drafts]
        span = self._tracer.start_span(
            _titled("send", attributes), context, SpanKind.PRODUCER, attributes, links_to(given)
        )
        return RecordedSend(span, context, Meter(self._meters, measured, len(drafts)), drafts)

    def received(self, since: int, rows: Sequence[MessageRow], addresses: Mapping[int, str]) -> None:
        places = [addresses.get(row.mailbox) for row in rows]
        attributes = _messaging("receive", "receive", places)
        measured = dict(attributes)
        attributes |= _group(attributes)
        if len(rows) == 1:
            (row,) = rows
            attributes |= _identity(row.public_id, row.correlation, row.payload)
            attributes["agentbus.message.type"] = row.type
        else:
            attributes["messaging.batch.message_count"] = len(rows)
        ended = time_ns()
        span = self._tracer.start_span(
            _titled("receive", attributes), self._context(), SpanKind.CLIENT, attributes,
            links_to(_trace_of(row.headers) for row in rows), start_time=since,
        )  # fmt: skip
        span.end(ended)
        self._meters.record(measured, (ended - since) / 1e9, len(rows), None)

    def process(self, message: Message) -> Span:
        attributes = _messaging("process", "process", (message.recipient,))
        meter = Meter(self._meters, dict(attributes), process=True)
        attributes |= _group(attributes) | _identity(message.message_id, message.correlation, message._row.payload)
        attributes["agentbus.message.type"] = message.type
        attributes["agentbus.message.attempt"] = message.attempts
        attributes["agentbus.lease.age"] = message._lease_age()
        created = trace_of(message.headers)
        # As the parent too, so that one trace leads from the sender through the handler.
        return self._start(
            _titled("process", attributes), SpanKind.CONSUMER, attributes,
            parent=self._within(created), links=(created,), meter=meter,
        )  # fmt: skip

    def settle(self, operation: str, messages: Iterable[Any], addresses: Mapping[int, str] | None = None) -> Span:
        found = list(messages)
        places = (message.recipient if addresses is None else addresses.get(message.mailbox) for message in found)
        attributes = _messaging(operation, "settle", places)
        meter = Meter(self._meters, dict(attributes))
        if len(found) == 1:
            attributes["messaging.message.id"] = found[0].message_id or f"m-{found[0].id}"
        else:
            attributes["messaging.batch.message_count"] = len(found)
        created = (trace_of(message.headers) for message in found) if addresses is None else ()
        return self._start(_titled(operation, attributes), SpanKind.CLIENT, attributes, links=created, meter=meter)

    # Tasks

    def start_task(self, request: StartRequest) -> Span:
        attributes = {
            "gen_ai.workflow.name": request.workflow, "gen_ai.conversation.id": request.session or request.id,
            "agentbus.task.id": request.id,
        }  # fmt: skip
        return self._start(f"start {request.workflow}", SpanKind.PRODUCER, attributes)

    def run_task(self, task: ClaimedTask | TaskRecord) -> Span:
        attributes = {
            "gen_ai.operation.name": "invoke_workflow", "gen_ai.workflow.name": task.workflow,
            "gen_ai.conversation.id": task.session or task.id, "agentbus.task.id": task.id,
        }  # fmt: skip
        return self._start(
            f"invoke_workflow {task.workflow}", SpanKind.INTERNAL, attributes,
            parent=self._within(task.trace), links=(task.trace,),
        )  # fmt: skip

    def attempt_step(self, run: Run, step: StepIdentity, attempt: int, before: str | None) -> Span:
        attributes = {
            "gen_ai.workflow.name": run.claimed.workflow, "agentbus.task.id": run.claimed.id,
            "agentbus.step.key": step.key, "agentbus.step.attempt": attempt,
        }  # fmt: skip
        return self._start(f"step {step.name}", SpanKind.INTERNAL, attributes, links=(before,))

    # Agents and requests

    def run_agent(self, agent: str, type: str, restart: int) -> Span:
        attributes: Attributes = {
            "gen_ai.operation.name": "invoke_agent", "gen_ai.agent.id": agent, "gen_ai.agent.name": type,
            "agentbus.agent.restart": restart,
        }  # fmt: skip
        return self._start(f"invoke_agent {type}", SpanKind.INTERNAL, attributes)

    def answer(self, method: str, name: str | None, version: str, id: object, meta: Mapping[str, Any]) -> Span:
        attributes: Attributes = {
            "mcp.method.name": method, "mcp.protocol.version": version, "jsonrpc.request.id": str(id)[:64],
        }  # fmt: skip
        if name is not None:
            attributes |= {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": name}
        title = method if name is None else f"{method} {name}"
        return self._start(title, SpanKind.SERVER, attributes, parent=self._within(trace_of(meta)))

    def serve(self, method: str, route: str, headers: Mapping[str, Any]) -> Span:
        attributes: Attributes = {"http.request.method": method, "http.route": route}
        return self._start(f"{method} {route}", SpanKind.SERVER, attributes, parent=self._within(trace_of(headers)))

    # The process

    async def opened(self, bus: Any) -> None:
        await self._meters.observe(bus)

    def closed(self, bus: Any) -> None:
        self._meters.forget(bus)

    def stop(self) -> None:
        self._meters.stop()


def links_to(texts: Iterable[str | None]) -> list[Link]:
    """Return links to the contexts that texts name, each once."""
    found = (span_context(text) for text in dict.fromkeys(texts))
    return [Link(context) for context in found if context is not None]


def _trace_of(headers: str | None) -> str | None:
    """Return the context that the headers of a message carry."""
    if headers is None or "traceparent" not in headers:
        return None
    try:
        found = msgspec.json.decode(headers)
    except msgspec.DecodeError:
        return None
    return trace_of(found) if isinstance(found, dict) else None


def _identity(message_id: str, correlation: str | None, payload: str) -> Attributes:
    attributes: Attributes = {"messaging.message.id": message_id, "messaging.message.body.size": _size(payload)}
    if correlation is not None:
        attributes["messaging.message.conversation_id"] = correlation
    return attributes


def _group(attributes: Attributes) -> Attributes:
    """Return the group of consumers that takes the messages of a pool."""
    name = str(attributes.get("messaging.destination.name", ""))
    return {"messaging.consumer.group.name": name.removeprefix("pool:")} if name.startswith("pool:") else {}
