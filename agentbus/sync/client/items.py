"""``agent.items``: take work items, and finish, fail or release them. Written once, with and without an event loop.

Written by ``make sync`` from ``agentbus.api.tasks.items``: change that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast, overload

from agentbus.api.tasks import items as api
from agentbus.sync.client.base import BlockWrapper, Wrapper

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentbus.api.tasks.items import T
    from agentbus.records import TaskRecord


class WorkItem(BlockWrapper[api.WorkItem, "WorkItem"], wraps=api.WorkItem):
    """A work item that this agent has taken, under a lease.

    ``input`` is its content, ``task`` its record; ``id``, ``name`` and ``workflow`` are those of the record. Settle it
    with ``finish``, ``fail`` or ``release``, or work in its block: the lease is renewed inside, and at the end the item
    is finished. An exception in the block fails it, and propagates; a cancellation releases it.

    >>> item = agent.items.take(workflow="review")                              # doctest: +SKIP
    >>> with item:                                                              # doctest: +SKIP
    ...     item.finish({"approved": True})
    """

    __slots__ = ()

    @property
    def task(self) -> TaskRecord:
        """Its record, as it was taken."""
        return self._inner.task

    @property
    def id(self) -> str:
        """Its id."""
        return self._inner.id

    @property
    def name(self) -> str:
        """Its display name."""
        return self._inner.name

    @property
    def workflow(self) -> str:
        """The kind of work."""
        return self._inner.workflow

    @property
    def lease(self) -> str:
        """Names the item and this lease, for calls of other processes of the agent: ``review-1#2``."""
        return self._inner.lease

    @property
    def input(self) -> Any:
        """The content, as plain JSON; None if it has none.

        >>> item.input                                                                # doctest: +SKIP
        {'file': 'login.py'}
        """
        return self._inner.input

    @overload
    def decode(self, as_: type[T]) -> T: ...

    @overload
    def decode(self, as_: Any) -> Any: ...

    def decode(self, as_: Any) -> Any:
        """Decode the content as a Struct, or any other type that msgspec supports. Raises PayloadMismatch.

        >>> item.decode(Review)                                                       # doctest: +SKIP
        Review(file='login.py')
        """
        return cast(Any, self._inner).decode(as_)

    def finish(self, result: Any = None) -> None:
        """Finish it with a result, which is JSON. Its dependents become ready in the same commit.

        >>> item.finish({"approved": True})                                     # doctest: +SKIP
        """
        self._call(self._inner.finish, result)

    def fail(self, reason: str) -> str:
        """Fail it. With restarts left it is ready again after a delay; return its status.

        >>> item.fail("the file does not exist")                                # doctest: +SKIP
        'failed'
        """
        return self._call(self._inner.fail, reason)

    def release(self, note: str | None = None) -> None:
        """Release it for another agent, with a note on the state of the work.

        >>> item.release("the parser is done, the tests are missing")           # doctest: +SKIP
        """
        self._call(self._inner.release, note)

    def progress(self, percent: int | None = None, note: str | None = None) -> None:
        """Report the progress of the work, from 0 to 100, or a note on its state.

        >>> item.progress(40, "the parser is done")                             # doctest: +SKIP
        """
        self._call(self._inner.progress, percent, note)

    def extend(self, seconds: float) -> None:
        """Extend the lease to this many seconds from now.

        >>> item.extend(600)                                                    # doctest: +SKIP
        """
        self._call(self._inner.extend, seconds)


class Items(Wrapper[api.Items], wraps=api.Items):
    """The work items of an agent. An item is named by its id, or with its lease: ``review-1#2``.

    >>> while item := agent.items.take():                                       # doctest: +SKIP
    ...     item.finishwork(item.input)
    """

    __slots__ = ()

    def take(
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

        >>> item = agent.items.take(workflow="review", timeout=60)              # doctest: +SKIP
        >>> item = agent.items.take("review-1")                                 # doctest: +SKIP
        """
        return cast(
            "WorkItem | None",
            self._call_wrapping(self._inner.take, task, workflow=workflow, timeout=timeout, lease=lease),
        )

    def finish(self, task: str, result: Any = None) -> bool:
        """Finish an item with a result. Return False if it was finished before with the same result: a repeated call
        is safe.

        >>> agent.items.finish("review-1", {"approved": True})                  # doctest: +SKIP
        True
        """
        return self._call(self._inner.finish, task, result)

    def fail(self, task: str, reason: str) -> str:
        """Fail an item; return its status.

        >>> agent.items.fail("review-1", "the file does not exist")             # doctest: +SKIP
        'failed'
        """
        return self._call(self._inner.fail, task, reason)

    def release(self, task: str, note: str | None = None) -> str:
        """Release an item for another agent; return its status.

        >>> agent.items.release("review-1", "half of the files are done")       # doctest: +SKIP
        'pending'
        """
        return self._call(self._inner.release, task, note)

    def progress(self, task: str, percent: int | None = None, note: str | None = None) -> None:
        """Report the progress of an item, from 0 to 100, or a note on its state.

        >>> agent.items.progress("review-1", 40, "the parser is done")          # doctest: +SKIP
        """
        self._call(self._inner.progress, task, percent, note)

    def held(self) -> Sequence[WorkItem]:
        """Return the items that the agent holds, oldest first.

        >>> [item.lease for item in agent.items.held()]                         # doctest: +SKIP
        ['review-1#2']
        """
        return cast("Sequence[WorkItem]", self._call_wrapping(self._inner.held))
