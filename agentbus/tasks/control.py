"""What people do with tasks: decide, settle, halt, continue, stop, resume, redo, restart, edit; without an event
loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from agentbus.codec import encode, plain
from agentbus.errors import InvalidInput, WrongArguments
from agentbus.limits import check_name, check_range, check_seconds, check_text
from agentbus.operations import Operation
from agentbus.operations.approvals import DecideRequest, decide_approval
from agentbus.operations.controls import (
    AutoRequest,
    ControlRequest,
    EditRequest,
    SettleRequest,
    control_task,
    edit_task,
    set_auto,
    settle_step,
)
from agentbus.records import ApprovalRecord, TaskProblem, TaskRecord
from agentbus.tasks.starting import MAX_NAME, MAX_RESTARTS, MOST_LOSSES, check_switch, encode_notes

if TYPE_CHECKING:
    from agentbus.bus import Bus

_UNSET: Any = object()

R = TypeVar("R")
T = TypeVar("T")


class Control:
    """Tasks as people control them; ``bus.tasks`` is one.

    >>> await bus.tasks.approve("feature-1", "plan", by="ada")                        # doctest: +SKIP
    """

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._engine = bus.engine

    # Deciding

    async def approve(
        self, task: str, name: str | None = None, *, by: str, reason: str | None = None
    ) -> ApprovalRecord:
        """Approve what a task asks for: ``by`` is the name of a person. Without a name it is the only open approval.

        >>> await bus.tasks.approve("feature-1", "plan", by="ada")                    # doctest: +SKIP
        """
        return await self._decide(task, name, True, by, reason)

    async def reject(self, task: str, name: str | None = None, *, by: str, reason: str | None = None) -> ApprovalRecord:
        """Reject what a task asks for. Its workflow gets the verdict and the reason, and decides how to go on.

        >>> await bus.tasks.reject("feature-1", "plan", by="ada", reason="too large")  # doctest: +SKIP
        """
        return await self._decide(task, name, False, by, reason)

    async def settle(
        self, task: str, step: str, *, by: str, result: Any = _UNSET, error: str | None = None, redo: bool = False
    ) -> TaskRecord:
        """Say what became of a step with ``once=True`` whose worker went away: its ``result``; or the ``error`` that it
        failed with; or let it run again (``redo``). ``by`` is the name of a person.

        >>> await bus.tasks.settle("order-7", "charge", by="ada", result={"paid": True})   # doctest: +SKIP
        """
        if (result is not _UNSET) + (error is not None) + bool(redo) != 1:
            raise InvalidInput(reason="settle() takes one of result=, error= and redo=True")
        step = _check_key(step).removeprefix("step:")
        request = SettleRequest(
            check_name(task, "task"),
            step,
            _operator(by),
            None if result is _UNSET else encode(result, self._bus.max_payload),
            None if error is None else plain(TaskProblem("Settled", check_text(error, "error", 10_000), [], step)),
        )
        return await self._engine.write(settle_step, request)

    # Control

    async def halt(self, task: str, *, by: str | None = None, reason: str | None = None) -> TaskRecord:
        """Let a task, and its sub-tasks, come to a halt before the next step.

        >>> await bus.tasks.halt("feature-1", by="ada")                               # doctest: +SKIP
        """
        return await self._control("halt", task, by, reason)

    async def continue_(self, task: str, *, by: str | None = None, reason: str | None = None) -> TaskRecord:
        """Let a task that was halted go on.

        >>> await bus.tasks.continue_("feature-1")                                    # doctest: +SKIP
        """
        return await self._control("continue", task, by, reason)

    async def stop(self, task: str, *, by: str | None = None, reason: str | None = None) -> TaskRecord:
        """Give a task up, with its sub-tasks: the step that runs is cancelled. It can be resumed.

        >>> await bus.tasks.stop("feature-1", reason="not wanted any more")           # doctest: +SKIP
        """
        return await self._control("stop", task, by, reason)

    async def resume(self, task: str, *, by: str | None = None, reason: str | None = None) -> TaskRecord:
        """Let a task go on that was halted, stopped or failed, after its last finished step; the step that failed runs
        again. One that waits for its time goes on at once.

        >>> await bus.tasks.resume("feature-1")                                       # doctest: +SKIP
        """
        return await self._control("resume", task, by, reason)

    async def redo(
        self, task: str, step: str, *, note: str | None = None, by: str | None = None, reason: str | None = None
    ) -> TaskRecord:
        """Do a step again, and everything that began after it had ended. What it made void is kept as history;
        sub-tasks among it are stopped. The step finds the ``note`` as ``task.note``. An approval is named like
        ``approval:plan``.

        Steps that run beside it, and do not depend on it, finish first; until then no other begins, and the record
        names the step in ``redo``. If their worker dies meanwhile, the redo is carried out at once.

        >>> await bus.tasks.redo("feature-1", "implement", note="use the new client")  # doctest: +SKIP
        """
        checked = None if note is None else check_text(note, "note")
        return await self._control("redo", task, by, reason, _check_key(step), checked)

    async def restart(self, task: str, *, by: str | None = None, reason: str | None = None) -> TaskRecord:
        """Do a task again from its beginning. What was done is kept as history.

        >>> await bus.tasks.restart("feature-1")                                      # doctest: +SKIP
        """
        return await self._control("restart", task, by, reason)

    async def auto(self, task: str, on: bool = True, *, by: str | None = None) -> TaskRecord:
        """Pass the approvals of a task through from now on, the open ones too, and those of its sub-tasks; or ask
        people again. It is recorded which were passed through.

        >>> await bus.tasks.auto("feature-1", True)                                   # doctest: +SKIP
        """
        request = AutoRequest(check_name(task, "task"), check_switch(on, "on"), _name(by))
        return await self._engine.write(set_auto, request)

    async def edit(
        self,
        task: str,
        *,
        name: str | None = None,
        context: Mapping[str, Any] | None = None,
        settings: Mapping[str, Any] | None = None,
        restarts: int | None = None,
        backoff: float | None = None,
        max_losses: int | None = None,
        arguments: Sequence[Any] | None = None,
        keywords: Mapping[str, Any] | None = None,
        by: str | None = None,
    ) -> TaskRecord:
        """Change what a task is called, what its workflow is told, or how it is restarted. A worker that is at it
        learns of a new context and new settings when it takes the task next.

        ``arguments`` and ``keywords`` replace those of a task that no worker has and that is not completed: one that
        failed because they were wrong can be resumed then. Finished steps stay finished. A finished step that the
        workflow now asks for with other arguments fails the task with WorkflowChanged, which names it: redo it.

        >>> await bus.tasks.edit("feature-1", settings={"model": "small"})            # doctest: +SKIP
        >>> await bus.tasks.edit("feature-1", arguments=["Add logout"])               # doctest: +SKIP
        """
        changes = (name, context, settings, restarts, backoff, max_losses, arguments, keywords)
        if all(one is None for one in changes):
            raise InvalidInput(
                reason="edit() takes what is to be changed: name, context, settings, restarts, backoff, max_losses, "
                "arguments, keywords"
            )
        if arguments is not None and (isinstance(arguments, str) or not isinstance(arguments, Sequence)):
            raise InvalidInput(reason="arguments must be a list: arguments=[…]")
        limit = self._bus.max_payload
        request = EditRequest(
            check_name(task, "task"),
            None if name is None else check_text(name, "name", MAX_NAME, low=1),
            None if context is None else encode_notes(context, "context", limit),
            None if settings is None else encode_notes(settings, "settings", limit),
            None if restarts is None else check_range(restarts, "restarts", 0, MAX_RESTARTS),
            None if backoff is None else check_seconds(backoff, "backoff", zero=True),
            None if max_losses is None else check_range(max_losses, "max_losses", 1, MOST_LOSSES),
            None if arguments is None else encode(list(arguments), limit)[0],
            None if keywords is None else encode_notes(keywords, "keywords", limit),
            limit,
            _name(by),
        )
        return await self._checked(edit_task, request)

    async def _checked(self, operation: Operation[R, T], request: R) -> T:
        """Write something with arguments for a workflow. A worker that died without a word does not refuse them."""
        try:
            return await self._engine.write(operation, request)
        except WrongArguments:
            from agentbus.services.presence import notice_deaths

            if not await notice_deaths(self._engine):
                raise
        return await self._engine.write(operation, request)

    async def _control(
        self,
        action: str,
        task: str,
        by: str | None,
        reason: str | None,
        step: str | None = None,
        note: str | None = None,
    ) -> TaskRecord:
        checked = None if reason is None else check_text(reason, "reason")
        request = ControlRequest(check_name(task, "task"), action, _name(by), checked, step, note)
        return await self._engine.write(control_task, request)

    async def _decide(self, task: str, name: str | None, approved: bool, by: str, reason: str | None) -> ApprovalRecord:
        request = DecideRequest(
            check_name(task, "task"),
            None if name is None else _check_key(name),
            approved,
            _operator(by),
            None if reason is None else check_text(reason, "reason"),
        )
        return await self._engine.write(decide_approval, request)


def _check_key(key: object) -> str:
    """A step's name, with the number that it may have, and its kind before it: ``plan``, ``plan#2``,
    ``approval:plan``."""
    name, mark, number = key.partition("#") if isinstance(key, str) else (key, "", "")
    if mark and not (number.isascii() and number.isdigit()):
        raise InvalidInput(reason=f"{key!r} is not a step; write plan, or plan#2 for the second of that name")
    check_name(name, "step")
    return str(key)


def _operator(by: object) -> str:
    return check_text(by, "by", 200, low=1)


def _name(by: object) -> str | None:
    return None if by is None else _operator(by)
