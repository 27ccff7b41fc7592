"""``agent.items``: take work items, and finish, fail or release them. Written once, with and without an event loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, overload

from agentbus import core
from agentbus.api.block import AsyncOnly
from agentbus.core.codec import decode_as, encode, plain
from agentbus.core.validation import (
    MAX_ERROR,
    check_name,
    check_range,
    check_seconds,
    check_text,
    name_or_none,
)
from agentbus.errors import AgentBusError, InvalidInput, InvalidName, Misuse, TaskLost
from agentbus.operations.protocol import Actor, Operation
from agentbus.operations.task_items import (
    ExtendItemRequest,
    FailItemRequest,
    FinishItemRequest,
    ItemProgressRequest,
    ReleaseItemRequest,
    Taken,
    TakeRequest,
    extend_item,
    fail_item,
    finish_item,
    held_items,
    progress_item,
    release_item,
    take_item,
)
from agentbus.operations.task_ownership import ITEMS
from agentbus.records import TaskProblem, TaskRecord

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable

    from agentbus.core.trace_context import Span
    from agentbus.engine.interface import Engine

R = TypeVar("R")
T = TypeVar("T")


class _Waiter(Protocol):
    async def wait(self, seconds: float | None) -> None: ...


class _Listening(Protocol):
    """The channels that a process watches."""

    def to(self, channel: str) -> AbstractAsyncContextManager[_Waiter]: ...


class _Renewer(Protocol):
    """Renews the leases of what a block works on."""

    def add(self, item: WorkItem) -> None: ...
    def discard(self, item: WorkItem) -> None: ...
    def reschedule(self, item: WorkItem) -> None: ...


class Holder(Protocol):
    """The attributes of an agent that items need, with or without an event loop."""

    @property
    def id(self) -> str: ...
    @property
    def _actor(self) -> Actor: ...
    @property
    def _engine(self) -> Engine: ...

    _waiting: int

    def _write(
        self, operation: Operation[R, T], request: R, *, on_abandoned: Callable[[T], None] | None = None
    ) -> Awaitable[T]: ...


class WorkItem(AsyncOnly):
    """A work item that this agent has taken, under a lease.

    ``input`` is its content, ``task`` its record; ``id``, ``name`` and ``workflow`` are those of the record. Settle it
    with ``finish``, ``fail`` or ``release``, or work in its block: the lease is renewed inside, and at the end the item
    is finished. An exception in the block fails it, and propagates; a cancellation releases it.

    >>> item = await agent.items.take(workflow="review")                              # doctest: +SKIP
    >>> async with item:                                                              # doctest: +SKIP
    ...     await item.finish({"approved": True})
    """

    _block_form = "async with item:"

    task: TaskRecord
    """Its record, as it was taken."""
    id: str
    """Its id."""
    name: str
    """Its display name."""
    workflow: str
    """The kind of work."""
    lease: str
    """Names the item and this lease, for calls of other processes of the agent: ``review-1#2``."""

    def __init__(
        self, items: Items, task: TaskRecord, lease: int, duration: int, renew_at: int, *, known: bool
    ) -> None:
        self.task = task
        self.id = task.id
        self.name = task.name
        self.workflow = task.workflow
        self.lease = f"{task.id}#{lease}"
        self._settled = False
        self._duration = duration
        """Milliseconds of the lease."""
        self._renew_at = renew_at
        self._known = known
        """True if the agent held it before this call."""
        self._items = items
        self._number = lease
        self._block: asyncio.Task[Any] | None = None
        self._span: Span | None = None
        self._loss: AgentBusError | None = None

    def __repr__(self) -> str:
        return f"<WorkItem {self.lease} {self.workflow}>"

    @property
    def input(self) -> Any:
        """The content, as plain JSON; None if it has none.

        >>> item.input                                                                # doctest: +SKIP
        {'file': 'login.py'}
        """
        return self.task.arguments[0] if self.task.arguments else None

    @overload
    def decode(self, as_: type[T]) -> T: ...
    @overload
    def decode(self, as_: Any) -> Any: ...
    def decode(self, as_: Any) -> Any:
        """Decode the content as a Struct, or any other type that msgspec supports. Raises PayloadMismatch.

        >>> item.decode(Review)                                                       # doctest: +SKIP
        Review(file='login.py')
        """
        return decode_as(plain(self.input), as_, f"the input of {self.id}")

    async def finish(self, result: Any = None) -> None:
        """Finish it with a result, which is JSON. Its dependents become ready in the same commit.

        >>> await item.finish({"approved": True})                                     # doctest: +SKIP
        """
        await self._items.finish(self.lease, result)
        self._settled = True

    async def fail(self, reason: str) -> str:
        """Fail it. With restarts left it is ready again after a delay; return its status.

        >>> await item.fail("the file does not exist")                                # doctest: +SKIP
        'failed'
        """
        status = await self._items.fail(self.lease, reason)
        self._settled = True
        return status

    async def release(self, note: str | None = None) -> None:
        """Release it for another agent, with a note on the state of the work.

        >>> await item.release("the parser is done, the tests are missing")           # doctest: +SKIP
        """
        await self._items.release(self.lease, note)
        self._settled = True

    async def progress(self, percent: int | None = None, note: str | None = None) -> None:
        """Report the progress of the work, from 0 to 100, or a note on its state.

        >>> await item.progress(40, "the parser is done")                             # doctest: +SKIP
        """
        await self._items.progress(self.lease, percent, note)

    async def extend(self, seconds: float) -> None:
        """Extend the lease to this many seconds from now.

        >>> await item.extend(600)                                                    # doctest: +SKIP
        """
        self._duration = check_seconds(seconds, "lease")
        now = self._items._agent._engine.clock.now().awake
        await self._items._agent._write(*self._renewing())
        self._renew_at = now + self._duration // 3
        self._items._reschedule(self)

    async def _release_if_new(self) -> None:
        """Release it because the caller did not receive it, unless the agent held it before."""
        if not self._known:
            await self.release()

    # As messages have them, for the renewal of leases.

    def _renewing(self) -> tuple[Operation[ExtendItemRequest, None], ExtendItemRequest]:
        """Return the operation that renews the lease, and its request."""
        return extend_item, ExtendItemRequest(self._items._agent._actor, self.id, self._number, self._duration)

    def _title(self, task: asyncio.Task[Any] | None) -> str | None:
        """Return its name for the log; None if a task is given that does not work in its block."""
        return f"item {self.id} of {self._items._agent.id}" if task is None or task is self._block else None

    def _lose(self, error: AgentBusError) -> None:
        """End the block, which then raises ``error``: the lease is lost."""
        self._loss = error
        if self._block is not None:
            self._block.cancel()

    async def __aenter__(self) -> WorkItem:
        import asyncio

        if self._settled:
            raise TaskLost(task=self.id, agent=self._items._agent.id, lease=self._number, reason="it is settled")
        if self._block is not None:
            raise Misuse(reason=f"the block of {self.id} is open already")
        renewer = self._items._renewer
        if renewer is None:
            raise Misuse(reason="the block of an item needs an event loop: use agentbus.connect()")
        self._block = asyncio.current_task()
        if core.tracer is None and self.task.trace is not None:
            from agentbus.core.trace_context import propagate

            propagate(self.task.trace)
        if core.tracer is not None:
            self._span = core.tracer.run_task(self.task)
            self._span.begin()
        renewer.add(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        span, self._span = self._span, None
        try:
            await self._leave(error)
        except BaseException as loss:
            error = loss
            raise
        finally:
            if span is not None:
                span.end(error)

    async def _leave(self, error: BaseException | None) -> None:
        import asyncio

        block, self._block = self._block, None
        assert block is not None  # noqa: S101 - set on entering
        if self._items._renewer is not None:
            self._items._renewer.discard(self)
        if self._loss is not None:
            others = block.uncancel()
            if error is None or (isinstance(error, asyncio.CancelledError) and not others):
                raise self._loss
        elif self._settled:
            return
        elif error is None:
            await self.finish()
        else:
            await self._settle_after(error)

    async def _settle_after(self, error: BaseException) -> None:
        """Fail it after an exception; release it after a cancellation or an interrupt."""
        from agentbus.core.cancellation import is_foreign_cancellation, shielded, unwrap_exit
        from agentbus.core.validation import error_text

        with shielded(self._items._agent._engine), suppress(AgentBusError):
            if isinstance(error, Exception) or is_foreign_cancellation(error):
                await self.fail(error_text(unwrap_exit(error)))
            else:
                await self.release()


class Items:
    """The work items of an agent. An item is named by its id, or with its lease: ``review-1#2``.

    >>> while item := await agent.items.take():                                       # doctest: +SKIP
    ...     await item.finish(await work(item.input))
    """

    def __init__(
        self, agent: Holder, listening: _Listening, lease: int, max_result: int, renewer: _Renewer | None = None
    ) -> None:
        self._agent = agent
        self._renewer = renewer
        self._max_result = max_result
        self._listening = listening
        self._lease = lease
        """Milliseconds of a lease, unless the caller names another."""

    async def take(
        self,
        task: str | None = None,
        *,
        workflow: str | None = None,
        timeout: float | None = 0,
        lease: float | None = None,
    ) -> WorkItem | None:
        """Take the most urgent work item that is ready, then the oldest; of one ``workflow``, or the one that is named.
        Return None if there is none after ``timeout`` seconds (None: wait indefinitely). No other agent gets it until
        it is released, or its lease ends.

        A named item that another agent holds, or that waits, raises WrongState. One that this agent holds is returned
        with the same lease, extended.

        >>> item = await agent.items.take(workflow="review", timeout=60)              # doctest: +SKIP
        >>> item = await agent.items.take("review-1")                                 # doctest: +SKIP
        """
        if task is not None and workflow is not None:
            raise InvalidInput(reason="take() takes one of an id and workflow=")
        duration = self._lease if lease is None else check_seconds(lease, "lease")
        request = TakeRequest(
            self._agent._actor,
            duration,
            None if task is None else check_name(task, "task"),
            name_or_none(workflow, "workflow"),
        )
        limit = None if timeout is None else check_seconds(timeout, "timeout", zero=True)
        found, taken = await self._claim(request)
        if found.task is None and limit != 0:
            found, taken = await self._wait(request, limit)
        if found.task is None:
            return None
        return WorkItem(self, found.task, found.lease, duration, taken + duration // 3, known=found.known)

    async def finish(self, task: str, result: Any = None) -> bool:
        """Finish an item with a result. Return False if it was finished before with the same result: a repeated call
        is safe.

        >>> await agent.items.finish("review-1", {"approved": True})                  # doctest: +SKIP
        True
        """
        encoded = encode(result, self._max_result)
        return await self._agent._write(finish_item, FinishItemRequest(self._agent._actor, *_named(task), encoded))

    async def fail(self, task: str, reason: str) -> str:
        """Fail an item; return its status.

        >>> await agent.items.fail("review-1", "the file does not exist")             # doctest: +SKIP
        'failed'
        """
        text = check_text(reason, "reason", MAX_ERROR)
        problem = plain(TaskProblem("ItemFailed", text))
        return await self._agent._write(fail_item, FailItemRequest(self._agent._actor, *_named(task), problem, text))

    async def release(self, task: str, note: str | None = None) -> str:
        """Release an item for another agent; return its status.

        >>> await agent.items.release("review-1", "half of the files are done")       # doctest: +SKIP
        'pending'
        """
        checked = None if note is None else check_text(note, "note")
        return await self._agent._write(release_item, ReleaseItemRequest(self._agent._actor, *_named(task), checked))

    async def progress(self, task: str, percent: int | None = None, note: str | None = None) -> None:
        """Report the progress of an item, from 0 to 100, or a note on its state.

        >>> await agent.items.progress("review-1", 40, "the parser is done")          # doctest: +SKIP
        """
        if percent is None and note is None:
            raise InvalidInput(reason="progress() needs a percentage or a note")
        request = ItemProgressRequest(
            self._agent._actor,
            *_named(task),
            None if percent is None else check_range(percent, "progress", 0, 100),
            None if note is None else check_text(note, "note"),
        )
        await self._agent._write(progress_item, request)

    async def held(self) -> Sequence[WorkItem]:
        """Return the items that the agent holds, oldest first.

        >>> [item.lease for item in await agent.items.held()]                         # doctest: +SKIP
        ['review-1#2']
        """
        now = self._agent._engine.clock.now().awake
        found = await self._agent._engine.read(held_items, self._agent.id)
        # Their leases may end soon: a block renews them at once.
        return [WorkItem(self, task, lease, self._lease, now, known=True) for task, lease in found]

    def _reschedule(self, item: WorkItem) -> None:
        """Note that the lease of an item was extended."""
        if self._renewer is not None:
            self._renewer.reschedule(item)

    async def _claim(self, request: TakeRequest) -> tuple[Taken, int]:
        taken = self._agent._engine.clock.now().awake
        return await self._agent._write(take_item, request, on_abandoned=self._release_abandoned), taken

    async def _wait(self, request: TakeRequest, limit: int | None) -> tuple[Taken, int]:
        """Wait for an item, for ``limit`` milliseconds at most."""
        clock = self._agent._engine.clock
        deadline = None if limit is None else clock.now().awake + limit
        self._agent._waiting += 1
        try:
            # Listen, then claim: an item that becomes ready in between wakes the waiter.
            async with self._listening.to(ITEMS) as waiter:
                while True:
                    found, taken = await self._claim(request)
                    now = clock.now()
                    if found.task is not None or (deadline is not None and deadline <= now.awake):
                        return found, taken
                    waits = [
                        None if found.next_wall is None else found.next_wall - now.wall,
                        None if found.next_awake is None else found.next_awake - now.awake,
                        None if deadline is None else deadline - now.awake,
                    ]
                    soonest = min((wait for wait in waits if wait is not None), default=None)
                    await waiter.wait(None if soonest is None else max(0.001, soonest / 1000))
        finally:
            self._agent._waiting -= 1

    def _release_abandoned(self, found: Taken) -> None:
        """Release the item of a call that was cancelled, unless the agent held it before."""
        if found.task is None or found.known:
            return
        from agentbus.core.cancellation import fire_and_forget

        request = ReleaseItemRequest(self._agent._actor, found.task.id, found.lease)
        with suppress(AgentBusError):
            fire_and_forget(self._agent._engine.write(release_item, request))


def _named(name: object) -> tuple[str, int | None]:
    """Split the id of an item and the number of its lease, if there is one."""
    id, mark, number = name.partition("#") if isinstance(name, str) else (name, "", "")
    if mark and not (number.isascii() and number.isdigit() and len(number) <= 18):
        rule = f"write its id alone, or with the number of the lease: {id}#3"
        raise InvalidName(what="item", name=name, rule=rule)
    return check_name(id, "task"), int(number) if mark else None
