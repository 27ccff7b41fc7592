"""Durable execution for Pydantic AI: in a workflow, each model request, tool call and MCP call of an agent is a step.

An agent with the capability ``AgentBusDurability`` records every result with ``task.step`` while it runs in a workflow.
After ``kill -9`` another worker replays what is recorded and calls neither the model nor the tools for it again.
Outside a workflow, and inside another step, the agent runs as it does without the capability.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal, cast
from weakref import WeakKeyDictionary

from pydantic import TypeAdapter, ValidationError
from pydantic_ai import RunContext
from pydantic_ai.agent import EventStreamHandler
from pydantic_ai.durable_exec import (
    JSON_CODEC,
    BaseDurabilityCapability,
    CallableOperationBackend,
    CallToolResult,
    CapabilityOperationId,
    DurabilityEngineSpec,
    DurableOperationId,
    EventStreamHandlerId,
    JournalOperationNamer,
    ModelCancelSuspendedResponseId,
    ModelCompactMessagesId,
    ModelRequestId,
    RoleBasedOperationConfig,
    ToolsetCallToolId,
    ToolsetGetInstructionsId,
    ToolsetGetToolsId,
    ToolsetKind,
    ToolsetValidateToolArgumentsId,
    conversation_id_from_run_id,
)
from pydantic_ai.messages import ToolCallPart
from pydantic_ai.models import Model
from pydantic_ai.tools import AgentDepsT, DeferredToolRequests, DeferredToolResults, ToolApproved, ToolDenied

from agentbus.api.tasks.step import CURRENT, step_options
from agentbus.api.tasks.task import RUNNING, StepOptions, Task
from agentbus.core.addresses import Address
from agentbus.core.validation import check_options

__all__ = ["AgentBusDurability", "StepOptions"]

_TOOL_RESULT: TypeAdapter[Any] = TypeAdapter(CallToolResult)
_MAX_NAME = 100
"""Characters of the name of a step, without the number of a repeated name; the bus accepts 128."""
_DIGEST = 12
_MAX_CALL = 16
_CALL_DIGEST = 8
_ALPHABET = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")
_ALLOWED = ("retries", "backoff", "timeout", "once")


@dataclass
class _Runs:
    """The runs of agents in one execution of a workflow, each with a label that is the same on every replay."""

    labels: dict[str, str] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)

    def label(self, agent: str, run_id: str) -> str:
        """Return the label of a run: the name of its agent, with a number from the second run on."""
        if run_id not in self.labels:
            self.counts[agent] += 1
            count = self.counts[agent]
            self.labels[run_id] = agent if count == 1 else f"{agent}-{count}"
        return self.labels[run_id]


_RUNS: WeakKeyDictionary[Task, _Runs] = WeakKeyDictionary()


def _runs(task: Task) -> _Runs:
    found = _RUNS.get(task)
    if found is None:
        found = _RUNS[task] = _Runs()
    return found


def _current() -> Task | None:
    """Return the task whose workflow runs here; None inside a step, which is recorded as a whole."""
    return RUNNING.get() if CURRENT.get() is None else None


def step_name(*parts: str | None) -> str:
    """Return a name that the bus accepts for a step, always the same for the same parts.

    >>> step_name("assistant", "weather", None)
    'assistant.weather'
    """
    text = ".".join(part for part in parts if part)
    name = "".join(char if char in _ALPHABET else "_" for char in text)
    if name == text and len(name) <= _MAX_NAME:
        return name
    digest = hashlib.sha256(text.encode()).hexdigest()[:_DIGEST]
    return f"{name[: _MAX_NAME - _DIGEST - 1]}-{digest}"


def _operation(operation_id: DurableOperationId, default: str | None, call: str | None) -> tuple[str | None, ...]:
    """Return the parts of the name of a step behind the run; they are stored, and must not change."""
    match operation_id:
        case ModelRequestId(model_id=model_id, streaming=streaming):
            return ("stream" if streaming else "model", model_id if model_id != default else None)
        case ModelCompactMessagesId(model_id=model_id):
            return ("compact", model_id if model_id != default else None)
        case ModelCancelSuspendedResponseId(model_id=model_id):
            return ("cancel", model_id if model_id != default else None)
        case EventStreamHandlerId():
            return ("event",)
        case CapabilityOperationId(capability_id=capability_id, operation=operation):
            return (capability_id, operation)
        case ToolsetGetToolsId(toolset_id=toolset_id):
            return (toolset_id, "tools")
        case ToolsetGetInstructionsId(toolset_id=toolset_id):
            return (toolset_id, "instructions")
        case ToolsetValidateToolArgumentsId():
            return (call, "validate")
        case ToolsetCallToolId():
            return (call,)
    return (type(operation_id).__name__,)


class _Backend(CallableOperationBackend[StepOptions]):
    """Execute each operation of an agent with ``task.step``."""

    def __init__(self, agent: str, default: str | None, config: RoleBasedOperationConfig[StepOptions]) -> None:
        """``default``: the model of the agent, which the names of the steps leave out so that it can be replaced."""
        super().__init__(namer=JournalOperationNamer(agent), config=config)
        self._agent = agent
        self._default = default

    async def execute(
        self,
        *,
        operation_id: DurableOperationId,
        name: str,
        body: Callable[[], Awaitable[object]],
        cache_key: tuple[object, ...],
        config: StepOptions,
    ) -> object:
        task = _current()
        if task is None:
            return await body()
        context = next((part for part in cache_key if isinstance(part, RunContext)), None)
        run_id = None if context is None else context.run_id
        label = self._agent if run_id is None else _runs(task).label(self._agent, run_id)
        call: str | None = None
        if isinstance(operation_id, ToolsetCallToolId | ToolsetValidateToolArgumentsId):
            # Concurrent calls of one tool may come in another order on a replay: the id of a call, which is recorded
            # with the response of the model, tells them apart.
            call = _call(str(cache_key[0]), None if context is None else context.tool_call_id)
        # The arguments are in the recorded response of the model, and messages contain the time: neither is compared.
        name = step_name(label, *_operation(operation_id, self._default, call))
        result: object = await task.options(**config).step(name, body)
        return result if call is None else _tool_result(result)


def _tool_result(recorded: object) -> object:
    """Return the record of a tool call as Pydantic AI reads it; the value that a person settled it with is its result.

    >>> _tool_result(7)
    {'result': 7, 'kind': 'tool_return'}
    """
    try:
        _TOOL_RESULT.validate_python(recorded)
        return recorded
    except ValidationError:
        content = isinstance(recorded, dict) and recorded.get("kind") == "tool-return"
        return {"result": recorded, "kind": "tool_content_result" if content else "tool_return"}


def _call(tool: str, call_id: str | None) -> str:
    """Return the name of a call of a tool, with its id, of which a long one is shortened to a digest."""
    if call_id is None:
        return tool
    short = call_id if len(call_id) <= _MAX_CALL else hashlib.sha256(call_id.encode()).hexdigest()[:_CALL_DIGEST]
    return f"{tool}.{short}"


class AgentBusDurability(BaseDurabilityCapability[AgentDepsT]):
    """Make the runs of an agent durable inside workflows of agentbus.

    >>> agent = Agent("openai:gpt-5", name="assistant", capabilities=[AgentBusDurability()])   # doctest: +SKIP
    >>> @agentbus.workflow("research")                                                # doctest: +SKIP
    ... async def research(task: agentbus.Task, question: str) -> str:
    ...     return (await agent.run(question)).output
    """

    engine_spec = DurabilityEngineSpec(
        engine_name="agentbus",
        durable_unit_noun="step",
        durable_container_noun="workflow",
        codec=JSON_CODEC,
        wrapped_toolset_kinds=frozenset({"function", "mcp", "dynamic"}),
        unsupported_runtime_toolset_kinds=frozenset({"function", "mcp", "dynamic"}),
        toolset_lifecycles={"function": "enter-always", "mcp": "enter-in-durable-unit", "dynamic": "enter-never"},
        tool_call_result_upgrade_lenient=False,
        journal_discovery=True,
        sequential_tools_in_durable_context=False,
        tool_config_key="agentbus",
    )

    def __init__(
        self,
        *,
        name: str | None = None,
        models: Mapping[str, Model] | None = None,
        event_stream_handler: EventStreamHandler[AgentDepsT] | None = None,
        model_options: StepOptions | None = None,
        tool_options: StepOptions | None = None,
        mcp_options: StepOptions | None = None,
        event_options: StepOptions | None = None,
        approvals: bool = True,
        approval_expires: float | None = None,
        approval_notify: str | Address | None = None,
    ) -> None:
        """Create the capability.

        ``name`` starts the names of the steps (default: the name of the agent); it must not change while tasks are
        open. ``models`` are further models that a run may name, and ``event_stream_handler`` receives the events of the
        runs. The options are those of ``task.step``: ``retries``, ``backoff``, ``timeout`` and ``once``, for requests
        to the model, calls of tools, calls of MCP servers, and events. The metadata of a tool overrides them:
        ``metadata={"agentbus": {"once": True}}``; with ``False`` the tool is not a step and runs again on every replay.

        A tool call that requires approval becomes an approval of the task, unless ``approvals`` is False. After
        ``approval_expires`` seconds it counts as rejected; ``approval_notify`` receives an ``approval_request``.
        """
        super().__init__(models=models, event_stream_handler=event_stream_handler, name=name)
        self._model_options = _checked(model_options)
        self._tool_options = _checked(tool_options)
        self._mcp_options = _checked(mcp_options)
        self._event_options = _checked(event_options)
        self._approvals = approvals
        self._approval_expires = approval_expires
        self._approval_notify = approval_notify

    @property
    def in_durable_context(self) -> bool:
        """True in a workflow, outside its steps."""
        return _current() is not None

    def get_default_run_id(self) -> str | None:
        """Return an id for the next run that is the same on every replay."""
        task = _current()
        if task is None:
            return None
        runs = _runs(task)
        run_id = f"{task.id}/{self.name}/{runs.counts[self.name] + 1}"
        runs.label(self.name, run_id)
        return run_id

    def get_default_conversation_id(self, run_id: str) -> str | None:
        """Return an id for the conversation that is the same on every replay."""
        return None if _current() is None else conversation_id_from_run_id(run_id)

    async def get_run_start_time(self, run_id: str) -> datetime | None:
        """Return the time at which a run with a timeout first started, recorded as a step."""
        task = _current()
        if task is None:
            return None
        seconds = await task.step(step_name(_runs(task).label(self.name, run_id), "start"), _now)
        return datetime.fromtimestamp(seconds, UTC)

    def get_durable_operation_backend(self) -> _Backend:
        """Return the backend that executes operations as steps."""
        return _Backend(
            self.name,
            self.default_model_id,
            RoleBasedOperationConfig(
                model=self._model_options,
                event=self._event_options,
                capability=self._tool_options,
                tool=self._tool_options,
                resolve_tool=self._resolve_tool,
            ),
        )

    async def handle_deferred_tool_calls(
        self, ctx: RunContext[AgentDepsT], *, requests: DeferredToolRequests
    ) -> DeferredToolResults | None:
        """Ask for the approval of each call that requires it, as an approval of the task."""
        task = _current()
        if task is None or not self._approvals or not requests.approvals:
            return None
        label = _runs(task).label(self.name, ctx.run_id or "")
        calls = requests.approvals
        decided = await asyncio.gather(*[self._decide(task, label, call, requests) for call in calls])
        return DeferredToolResults(
            approvals={call.tool_call_id: verdict for call, verdict in zip(calls, decided, strict=True)}
        )

    async def _decide(
        self, task: Task, label: str, call: ToolCallPart, requests: DeferredToolRequests
    ) -> ToolApproved | ToolDenied:
        shown = {"agent": self.name, "tool": call.tool_name, "arguments": call.args_as_dict()}
        if call.tool_call_id in requests.metadata:
            shown["metadata"] = requests.metadata[call.tool_call_id]
        verdict = await task.approval(
            step_name(label, _call(call.tool_name, call.tool_call_id)),
            show=shown,
            expires=self._approval_expires,
            notify=self._approval_notify,
        )
        if verdict.approved:
            return ToolApproved()
        if verdict.expired:
            return ToolDenied("No decision was made in time: the tool call was not executed.")
        return ToolDenied(f"The tool call was denied: {verdict.reason}")

    def _toolset_base_config(self, kind: ToolsetKind) -> StepOptions:
        return self._mcp_options if kind == "mcp" else self._tool_options

    def _normalize_unit_config(self, config: StepOptions | None) -> StepOptions:
        return _checked(config)

    def _resolve_tool(
        self, operation_id: DurableOperationId, tool: object | None, tool_name: str
    ) -> StepOptions | Literal[False]:
        kind = getattr(operation_id, "toolset_kind", "function")
        resolve = self._build_resolve_tool_config(self._toolset_base_config(kind))
        return cast("StepOptions | Literal[False]", resolve(cast("Any", tool), tool_name))


def _checked(options: StepOptions | None) -> StepOptions:
    """Return options of a step, refused now rather than in a run."""
    checked: StepOptions = {} if options is None else options
    check_options(checked, _ALLOWED)
    step_options(**checked)
    return checked


def _now() -> float:
    return datetime.now(UTC).timestamp()
