"""Durable tasks for MCP clients: the tool ``task``, and the Tasks extension, in which a task is a handle to poll.

An approval is input that a task requires. The client shows it to its user; whether an answer counts as the decision of
a person is a setting, because a client may also answer by itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from agentbus.core.validation import TASK_ENDED
from agentbus.errors import InvalidName, UnknownTask
from agentbus.mcp.errors import InvalidArguments
from agentbus.mcp.protocol import TASKS
from agentbus.mcp.tools import Arguments, TaskHandle, ToolCall, Wait, compact, tool_result

if TYPE_CHECKING:
    from agentbus.mcp.buses import Buses
    from agentbus.mcp.dispatcher import Context
    from agentbus.records import ApprovalRecord, TaskRecord
    from agentbus.sync.bus import BlockingBus

_POLL = 1000
"""Milliseconds between two polls of a client."""
_POLL_PERSON = 5000
"""The same while the task waits for a person."""
_MAX_SHOWN = 50
"""Tasks that a result lists."""
_MAX_TEXT = 4000
"""Characters of the value that an approval shows."""


class TaskArguments(Arguments, frozen=True):
    """The arguments of ``task``."""

    action: Literal["start", "show", "list", "wait", "stop", "ready", "take", "finish"]
    workflow: str | None = None
    input: Any = msgspec.UNSET
    id: str | None = None
    wait: Wait = 0


PROPERTIES: dict[str, Any] = {
    "action": {"enum": ["start", "show", "list", "wait", "stop", "ready", "take", "finish"]},
    "workflow": {"type": "string"},
    "input": {"description": "a list of arguments, or an object of named ones"},
    "id": {"type": "string"},
    "wait": {"type": "number", "maximum": 55},
}
"""The schema of the arguments."""


def task(call: ToolCall, given: TaskArguments) -> Any:
    """Start, show, await or stop a task; list, take or finish work items."""
    return _ACTIONS[given.action](call, given)


def _start(call: ToolCall, given: TaskArguments) -> Any:
    if given.workflow is None:
        raise InvalidArguments(tool="task", reason="start needs a workflow")
    arguments: Sequence[Any] = ()
    keywords: dict[str, Any] | None = None
    if isinstance(given.input, dict):
        keywords = given.input
    elif isinstance(given.input, list):
        arguments = given.input
    elif given.input is not msgspec.UNSET:
        arguments = (given.input,)
    me, bus = None if call.operator is not None else call.me, call.bus
    session = None if me is None else me.session
    started = bus.do(bus.tasks.start(given.workflow, *arguments, keywords=keywords, id=given.id, session=session))
    if me is not None:
        me.called()
    return _answer(call, given, started)


def _wait(call: ToolCall, given: TaskArguments) -> Any:
    return _answer(call, given, _record(call.bus, given.id))


def _answer(call: ToolCall, given: TaskArguments, record: TaskRecord) -> Any:
    """Return a handle to clients that poll; to others the task itself, after a while if they wish."""
    if call.context.has_extension(TASKS):
        return TaskHandle(brief(record))
    if given.wait and record.status not in TASK_ENDED:
        record = _await_end(call.bus, record, given.wait)
    return _described(call.bus, record)


def _show(call: ToolCall, given: TaskArguments) -> Any:
    record = _record(call.bus, given.id)
    steps = call.bus.do(call.bus.tasks.steps(record.id))
    return {
        **_described(call.bus, record),
        "steps": [compact({"key": one.key, "status": one.status, "note": one.note}) for one in steps],
    }


def _list(call: ToolCall, given: TaskArguments) -> Any:
    page = call.bus.do(call.bus.tasks.list(workflow=given.workflow, limit=_MAX_SHOWN))
    return {
        "tasks": [
            compact({
                "id": one.id, "workflow": one.workflow, "status": one.status, "phase": one.phase, "waits": one.waits,
            })
            for one in page.items
        ]
    }  # fmt: skip


def _stop(call: ToolCall, given: TaskArguments) -> Any:
    record = _record(call.bus, given.id)
    by = call.me.id if call.operator is None else call.operator
    stopped = call.bus.do(call.bus.tasks.stop(record.id, by=by, reason="stopped over MCP"))
    return _described(call.bus, stopped)


# Work items, which agents share


def _ready(call: ToolCall, given: TaskArguments) -> Any:
    found = call.bus.do(call.bus.tasks.ready(workflow=given.workflow, manual=True, limit=_MAX_SHOWN))
    return {
        "ready": [
            compact({"id": one.id, "workflow": one.workflow, "name": one.name, "note": one.note}) for one in found
        ]
    }


def _take(call: ToolCall, given: TaskArguments) -> Any:
    me, bus = call.me, call.bus
    workflow = None if given.id is not None else given.workflow
    item = bus.do(me.items.take(given.id, workflow=workflow, timeout=given.wait))
    me.called()
    if item is None:
        return {"item": None}
    call.unless_delivered(lambda: bus.do(item.release()))
    about = {"name": item.name, "workflow": item.workflow, "note": item.task.note, "context": item.task.context}
    return {"item": {"id": item.id, "lease": item.lease, "input": item.input, **compact(about)}}


def _finish(call: ToolCall, given: TaskArguments) -> Any:
    if given.id is None:
        raise InvalidArguments(tool="task", reason="finish needs the id or the lease of an item")
    result = None if given.input is msgspec.UNSET else given.input
    before = not call.bus.do(call.me.items.finish(given.id, result))
    return {"id": given.id, "status": "completed", **({"note": "it was finished before"} if before else {})}


_ACTIONS: dict[str, Callable[[ToolCall, TaskArguments], Any]] = {
    "start": _start, "show": _show, "list": _list, "wait": _wait, "stop": _stop,
    "ready": _ready, "take": _take, "finish": _finish,
}  # fmt: skip
"""The function of each action."""


def _record(bus: BlockingBus, id: str | None) -> TaskRecord:
    if id is None:
        raise InvalidArguments(tool="task", reason="the action needs the id of a task")
    record = bus.do(bus.tasks.get(id))
    if record is None:
        raise UnknownTask(task=id)
    return record


def _described(bus: BlockingBus, record: TaskRecord) -> dict[str, Any]:
    """Return a task as a model reads it."""
    asked = [] if record.status in TASK_ENDED else bus.do(bus.tasks.approvals(record.id))
    return {
        "id": record.id,
        "status": record.status,
        **compact({
            "phase": record.phase,
            "progress": record.progress,
            "note": record.note,
            "waits": record.waits,
            "approvals": [
                {"name": one.key, "ask_a_person": f"agentbus task approve {one.task} {one.key} --by NAME"}
                for one in asked
            ],
            "error": None if record.error is None else f"{record.error.type}: {record.error.message}",
        }),
        **({"result": record.result} if record.status == "completed" else {}),
    }  # fmt: skip


def _await_end(bus: BlockingBus, record: TaskRecord, seconds: float) -> TaskRecord:
    """Wait for the end of a task for a while, and return it as it is then."""
    from agentbus.operations.task_ownership import ENDED

    clock = bus._engine.clock
    deadline = clock.now().awake + int(seconds * 1000)

    async def waiting() -> TaskRecord:
        # Listen before reading: a change in between wakes the waiter.
        async with bus._listening.to(ENDED) as waiter:
            while True:
                found = await bus.tasks.get(record.id)
                left = deadline - clock.now().awake
                if found is None or found.status in TASK_ENDED or left <= 0:
                    return found or record
                await waiter.wait(left / 1000)

    return bus.do(waiting())


# The Tasks extension


def brief(record: TaskRecord) -> dict[str, Any]:
    """Return a task without its result, as the answer that creates it."""
    waits = record.status == "waiting"
    return {
        "taskId": record.id,
        "status": "working" if record.status not in TASK_ENDED else _ENDED[record.status],
        "statusMessage": message(record),
        "createdAt": iso_time(record.created),
        "lastUpdatedAt": iso_time(record.updated),
        "ttlMs": None,
        "pollIntervalMs": _POLL_PERSON if waits else _POLL,
    }


_ENDED = {"completed": "completed", "failed": "completed", "stopped": "cancelled"}
"""The status of a task that has ended. ``failed`` would be a fault of the protocol: that a workflow raised is a result
of the tool."""


def message(record: TaskRecord) -> str:
    """Return the state of a task in words."""
    parts = [record.status, record.phase, record.note, *record.waits]
    return ", ".join(part for part in parts if part)


def detailed(
    record: TaskRecord, approvals: Sequence[ApprovalRecord], decider: str | None, asks: bool
) -> dict[str, Any]:
    """Return a task with its result, or the input that it requires. ``asks``: the client asks its user."""
    found = brief(record)
    if record.status == "completed":
        found["result"] = tool_result(record.result)
    elif record.status == "failed":
        why = "" if record.error is None else f": {record.error.type}: {record.error.message}"
        problem = {
            "code": "task_failed",
            "message": f"task {record.id} has failed{why}",
            "fix": f"see agentbus task show {record.id}; a person may resume it: agentbus task resume {record.id}",
        }
        found["result"] = {**tool_result({"error": problem}), "isError": True}
    elif approvals and asks:
        found["status"] = "input_required"
        found["inputRequests"] = {input_key(one): _question(one, decider) for one in approvals}
    elif approvals:
        names = ", ".join(f"agentbus task approve {one.task} {one.key}" for one in approvals)
        found["statusMessage"] = f"waits for a person: {names}"
    return found


def input_key(approval: ApprovalRecord) -> str:
    """Return the key of the question for an approval, which no other question of the task ever has."""
    return f"{approval.key}@{approval.created}.{approval.position}"


def _question(approval: ApprovalRecord, decider: str | None) -> dict[str, Any]:
    value = msgspec.json.encode(approval.shown).decode()
    about = f"Task {approval.task} asks for approval {approval.key!r} of: {value[:_MAX_TEXT]}"
    if decider is None:
        schema: dict[str, Any] = {"type": "object", "properties": {}}
        command = f"agentbus task approve {approval.task} {approval.key}"
        about += f"\nDecide in a terminal: {command}, or reject. Answers here are not counted as a person's decision."
    else:
        schema = {
            "type": "object",
            "properties": {
                "decision": {"type": "string", "enum": ["approve", "reject"]},
                "reason": {"type": "string", "description": "why"},
            },
            "required": ["decision"],
        }
    return {"method": "elicitation/create", "params": {"mode": "form", "message": about, "requestedSchema": schema}}


class BusTasks:
    """The durable tasks of a bus."""

    def __init__(self, buses: Buses) -> None:
        self._buses = buses

    def get(self, context: Context, task: str) -> dict[str, Any]:
        with self._buses.borrow(context.cancellation) as bus:
            return self.state(bus, task, asks="elicitation" in context.capabilities, decider=context.connection.decider)

    def state(self, bus: BlockingBus, task: str, *, asks: bool, decider: str | None) -> dict[str, Any]:
        """Return a task as it is now; LookupError if there is none."""
        record = known_task(bus, task)
        asked = bus.do(bus.tasks.approvals(task)) if record.status not in TASK_ENDED else []
        return detailed(record, asked, decider, asks)

    def update(self, context: Context, task: str, responses: dict[str, Any]) -> None:
        """Decide the approvals that are answered, if answers count. Others are ignored: they are decided, or no
        question."""
        decider = context.connection.decider
        with self._buses.borrow(context.cancellation) as bus:
            known_task(bus, task)
            if decider is None:
                return
            for approval in bus.do(bus.tasks.approvals(task)):
                decision, reason = _decision(responses.get(input_key(approval)))
                if decision is not None:
                    decide = bus.tasks.approve if decision == "approve" else bus.tasks.reject
                    bus.do(decide(task, approval.key, by=decider, reason=reason))

    def cancel(self, context: Context, task: str) -> None:
        with self._buses.borrow(context.cancellation) as bus:
            if known_task(bus, task).status not in TASK_ENDED:
                by = getattr(context.connection.identity, "operator", None)
                bus.do(bus.tasks.stop(task, by=by, reason="cancelled by the MCP client"))


def _decision(answer: object) -> tuple[str | None, str | None]:
    """Return what a user decided in a form, and why."""
    if not isinstance(answer, dict) or answer.get("action") != "accept":
        return None, None
    content = answer.get("content")
    decision = content.get("decision") if isinstance(content, dict) else None
    reason = content.get("reason") if isinstance(content, dict) else None
    if decision not in {"approve", "reject"}:
        return None, None
    return decision, reason if isinstance(reason, str) and reason else None


def known_task(bus: BlockingBus, task: str) -> TaskRecord:
    """Return the record of a task; LookupError if there is none."""
    try:
        record = bus.do(bus.tasks.get(task))
    except InvalidName:
        record = None
    if record is None:
        raise LookupError(task)
    return record


def iso_time(milliseconds: int) -> str:
    """Return a wall time as ISO 8601.

    >>> iso_time(1_795_000_000_250)
    '2026-11-18T11:06:40.250Z'
    """
    seconds, rest = divmod(milliseconds, 1000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{rest:03d}Z"
