"""What is kept of an exception: its type, its message and where it was raised; no values of variables."""

from __future__ import annotations

import os
from collections import deque
from traceback import walk_tb
from types import FrameType

from agentbus.errors import StepAbandoned, StepFailed, TaskFailed, TaskFailure
from agentbus.limits import error_text, plain_text
from agentbus.records import TaskProblem
from agentbus.services.callbacks import chain

_FRAMES = 8
_MESSAGE = 2000


def problem_of(error: BaseException, task: str, step: str | None = None) -> TaskProblem:
    """What is kept of an exception; ``step``: the one that it comes from, found out if it is not said."""
    cause = first_of(error)
    name, _, message = error_text(cause).partition(": ")
    if isinstance(cause, TaskFailure) and cause.fix:
        # Whoever looks at the task is told what can be done about it.
        message = message.removesuffix(f" ({cause.fix})")
    frames = deque(walk_tb(cause.__traceback__), _FRAMES)
    places = [plain_text(f"{_file(frame)}:{line} in {frame.f_code.co_name}") for frame, line in frames]
    return TaskProblem(name, message[:_MESSAGE], places, step or _step(cause, task))


def steps_of(error: BaseException, task: str) -> list[str]:
    """The steps of this task that an exception comes from; several, if it is of several that came together."""
    found: list[str] = []
    waiting = [error]
    while waiting:
        one = waiting.pop()
        if isinstance(one, BaseExceptionGroup):
            waiting += reversed(one.exceptions)
        elif (step := _step(one, task)) is not None:
            found.append(step)
    return found


def summary_of(problem: TaskProblem) -> str:
    """The same in a line."""
    return f"{problem.type}: {problem.message}"[:500]


def first_of(error: BaseException) -> BaseException:
    """Of several that came together the first."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _step(error: BaseException, task: str) -> str | None:
    """The step of this task that an exception comes from, itself or what caused it."""
    for found in chain(error):
        if isinstance(found, StepFailed | StepAbandoned) and found.facts.get("task") == task:
            return str(found.facts["step"])
        if isinstance(found, TaskFailed) and found.facts.get("parent") == task:
            return str(found.facts["step"])
    return None


def _file(frame: FrameType) -> str:
    return os.path.basename(frame.f_code.co_filename)
