"""Tasks of the Agent2Agent protocol on a bus, and an executor that passes them to agents of the bus.

Each A2A task is a history of kind ``a2a`` named by its owner and id. Install the SDK with
``pip install '.[a2a]'`` in the checkout.
"""

from __future__ import annotations

import hashlib
import json
import logging
from typing import TYPE_CHECKING, Any

from a2a.helpers import get_message_text, new_data_part, new_task_from_user_message, new_text_message, new_text_part
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.owner_resolver import OwnerResolver, resolve_user_scope
from a2a.server.tasks import TaskStore, TaskUpdater
from a2a.types.a2a_pb2 import ListTasksRequest, ListTasksResponse, Part, Task, TaskState
from a2a.utils.constants import DEFAULT_LIST_TASKS_PAGE_SIZE
from a2a.utils.errors import InvalidParamsError
from a2a.utils.task import ListTasksCursor, decode_list_tasks_cursor, encode_list_tasks_cursor
from google.protobuf.json_format import MessageToDict, ParseDict, SerializeToJsonError

from agentbus.core.validation import MAX_HISTORY_TEXT
from agentbus.errors import RequestFailed, RequestTimedOut
from agentbus.integrations._histories import BusOrUrl, HistoryAdapter, encode, join, list_all
from agentbus.records import HistoryPut

if TYPE_CHECKING:
    from a2a.server.context import ServerCallContext

    from agentbus.api.agent import Agent
    from agentbus.core.addresses import Address
    from agentbus.records import History, HistoryItem

KIND = "a2a"
_KEY = "task"
_BINARY = "protobuf"

log = logging.getLogger("agentbus.integrations")


class AgentBusTaskStore(HistoryAdapter, TaskStore):
    """A ``TaskStore`` of the A2A SDK: tasks as histories of a bus, shared by any number of server processes. A saved
    task survives ``kill -9`` and power loss.

    >>> async with agentbus.connect() as bus:                                         # doctest: +SKIP
    ...     handler = DefaultRequestHandler(executor, AgentBusTaskStore(bus), card)
    """

    def __init__(self, bus: BusOrUrl, *, owner_resolver: OwnerResolver = resolve_user_scope) -> None:
        """``owner_resolver`` names the owner of a call, who sees only their own tasks: by default the user."""
        super().__init__(bus)
        self._owner = owner_resolver

    async def save(self, task: Task, context: ServerCallContext) -> None:
        """Store a task of the owner of the call. Raise InvalidParamsError if its ids are too long.

        >>> await store.save(task, context)                                           # doctest: +SKIP
        """
        owner = self._owner(context)
        name = _name(owner, task.id)
        if name is None:
            raise InvalidParamsError(
                f"The task id, with its owner, must have 1 to {MAX_HISTORY_TEXT} characters and no NUL"
            )
        _check_context(task.context_id)
        try:
            body, encoding = encode(MessageToDict(task)), "json"
        except (SerializeToJsonError, ValueError):
            # JSON has no NaN and no infinity.
            body, encoding = task.SerializeToString(), _BINARY
        meta = {
            "owner": owner,
            "task": task.id,
            "context": task.context_id,
            "state": _state(task.status.state) or str(task.status.state),
            "timestamp": _timestamp(task),
        }
        await self._histories.write(KIND, name, [HistoryPut(key=_KEY, body=body, encoding=encoding)], meta=meta)

    async def get(self, task_id: str, context: ServerCallContext) -> Task | None:
        """Return a task of the owner of the call, or None.

        >>> (await store.get("7c4b", context)).status.state                           # doctest: +SKIP
        3
        """
        name = _name(self._owner(context), task_id)
        item = None if name is None else await self._histories.get(KIND, name, _KEY)
        return None if item is None else _decode(item)

    async def list(self, params: ListTasksRequest, context: ServerCallContext) -> ListTasksResponse:
        """Return a page of the tasks of the owner of the call, the one that changed last first.

        >>> (await store.list(ListTasksRequest(page_size=10), context)).total_size    # doctest: +SKIP
        42
        """
        owner = self._owner(context)
        if params.page_size < 0:
            raise InvalidParamsError(f"The page size must not be negative: {params.page_size}")
        where: dict[str, Any] = {}
        if params.context_id:
            _check_context(params.context_id)
            where["context"] = params.context_id
        if params.status:
            where["state"] = _state(params.status)
            if where["state"] is None:
                raise InvalidParamsError(f"Unknown state of a task: {params.status}")
        found = await list_all(self._histories, KIND, f"{join(owner)}/", where)
        if params.HasField("status_timestamp_after"):
            after = params.status_timestamp_after.ToNanoseconds()
            found = [one for one in found if one.meta["timestamp"] is not None and one.meta["timestamp"] >= after]
        found.sort(key=_order, reverse=True)
        total, size = len(found), params.page_size or DEFAULT_LIST_TASKS_PAGE_SIZE
        if params.page_token:
            cursor = decode_list_tasks_cursor(params.page_token)
            if cursor is None:
                raise InvalidParamsError(f"Invalid page token: {params.page_token}")
            found = [one for one in found if _order(one) < cursor.sort_key()]
        token = encode_list_tasks_cursor(_cursor(found[size - 1])) if len(found) > size else None
        items = [await self._histories.get(KIND, one.name, _KEY) for one in found[:size]]
        # One that has been deleted is left out.
        tasks = [_decode(item) for item in items if item is not None]
        return ListTasksResponse(next_page_token=token, tasks=tasks, total_size=total, page_size=size)

    async def delete(self, task_id: str, context: ServerCallContext) -> None:
        """Delete a task of the owner of the call, if there is one.

        >>> await store.delete("7c4b", context)                                       # doctest: +SKIP
        """
        name = _name(self._owner(context), task_id)
        if name is not None:
            await self._histories.delete(KIND, name)


class AgentBusExecutor(AgentExecutor):
    """An ``AgentExecutor`` of the A2A SDK that passes each message to an agent, pool or topic of the bus as a request,
    and its reply back as an artifact.

    >>> executor = AgentBusExecutor(gateway, "pool:translators")                      # doctest: +SKIP
    """

    def __init__(
        self, agent: Agent, to: str | Address, *, type: str = "coordination_request", timeout: float = 300
    ) -> None:
        """``agent`` sends the requests, ``type`` is their type, and a task fails without a reply within ``timeout``
        seconds.

        The payload of a request is the text of the message as ``question``, the ``message`` itself, and the ids of its
        ``task`` and ``context``. A reply that is a text, or an object with an ``answer`` or a ``text``, becomes a part
        of text, and any other a part of data.
        """
        self._agent = agent
        self._to = to
        self._type = type
        self._timeout = timeout

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Pass a message to the bus and publish the reply."""
        message = context.message
        if message is None:
            raise InvalidParamsError("there is no message")
        _check_context(message.context_id)
        task = context.current_task
        if task is None:
            task = new_task_from_user_message(message)
            await event_queue.enqueue_event(task)
        updater = TaskUpdater(event_queue, task.id, task.context_id)
        await updater.start_work()
        payload = {
            "question": get_message_text(message),
            "message": MessageToDict(message),
            "task": task.id,
            "context": task.context_id,
        }
        # A message that the client sends again after the server has died is the same request: it is executed once.
        words = join(context.call_context.user.user_name, task.id, message.message_id)
        message_id = f"a2a-{hashlib.sha256(words.encode()).hexdigest()[:32]}"
        try:
            reply = await self._agent.request(
                self._to, self._type, payload, timeout=self._timeout, message_id=message_id
            )
        except RequestFailed as error:
            # The client is another party: it learns neither the names of agents nor their errors.
            log.warning("A2A task %s failed: %s", task.id, error)
            timed_out = isinstance(error, RequestTimedOut)
            reason = f"No reply within {self._timeout:g} s" if timed_out else "The request could not be processed"
            await updater.failed(new_text_message(reason, task.context_id, task.id))
            return
        await updater.add_artifact([_part(reply.payload)], name="reply")
        await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Cancel a task: its reply is not awaited any more."""
        await TaskUpdater(event_queue, context.task_id or "", context.context_id or "").cancel()


def _name(owner: str, task_id: str) -> str | None:
    """Return the name of the history of a task; None if there cannot be one, so that the task is unknown."""
    name = join(owner, task_id)
    return name if task_id and len(name) <= MAX_HISTORY_TEXT and "\0" not in name else None


def _check_context(context_id: str) -> None:
    if len(context_id) > MAX_HISTORY_TEXT or "\0" in context_id:
        raise InvalidParamsError(f"The context id must have at most {MAX_HISTORY_TEXT} characters and no NUL")


def _state(number: int) -> str | None:
    """Return the name of a state, or None if the protocol has no such state."""
    return TaskState.Name(number) if number in TaskState.values() else None


def _part(payload: Any) -> Part:
    """Return a reply of the bus as a part of an artifact."""
    text = payload
    if isinstance(payload, dict):
        text = payload.get("answer", payload.get("text"))
    return new_text_part(text) if isinstance(text, str) else new_data_part(payload)


def _decode(item: HistoryItem) -> Task:
    if item.encoding == _BINARY:
        return Task.FromString(item.body)
    return ParseDict(json.loads(item.body), Task())


def _timestamp(task: Task) -> int | None:
    """Return the time of the last change of the status in nanoseconds, or None."""
    known = task.HasField("status") and task.status.HasField("timestamp")
    return int(task.status.timestamp.ToNanoseconds()) if known else None


def _cursor(history: History) -> ListTasksCursor:
    return ListTasksCursor(timestamp_ns=history.meta["timestamp"], task_id=history.meta["task"])


def _order(history: History) -> tuple[bool, int, str]:
    return _cursor(history).sort_key()
