"""Errors of durable tasks."""

from __future__ import annotations

from agentbus.errors.base import AgentBusError
from agentbus.errors.calls import Conflict, InvalidInput, NotFound


class UnknownTask(NotFound):
    """No task has this id."""

    code = "unknown_task"
    text = "there is no task {task!r}"
    fix_text = "bus.tasks.list() shows those there are; what ended long ago may have been archived"


class UnknownStep(NotFound):
    """The task has no such step, or it was not come to yet."""

    code = "unknown_step"
    text = "task {task!r} has no step {step!r}{hint}"
    fix_text = "bus.tasks.steps({task!r}) shows those there are"


class UnknownApproval(NotFound):
    """The task has not asked for this approval."""

    code = "unknown_approval"
    text = "task {task!r} has not asked for the approval {name!r}"
    fix_text = "bus.tasks.approvals({task!r}, status=None) shows those that it has asked for"


class WrongArguments(InvalidInput):
    """A workflow does not take the arguments that a task is given."""

    code = "wrong_arguments"
    text = "workflow {workflow!r} does not take these arguments: {reason}"
    fix_text = "it takes {signature}"


class NotAnOperator(InvalidInput):
    """Agents cannot approve: a decision needs the name of a person."""

    code = "not_an_operator"
    text = "{by!r} is an agent: agents cannot approve or reject"
    fix_text = "let a person decide, and give that person's name"


class TaskExists(Conflict):
    """Another task has this id."""

    code = "task_exists"
    text = "there is a task {task!r} already, with {differs}"
    fix_text = "choose another id; the same id with the same workflow and arguments gives the same task again"


class TaskLost(Conflict):
    """The task is no longer in these hands: its lease ran out, or it was stopped, redone or restarted."""

    code = "task_lost"
    text = "task {task!r} is no longer held by {agent} (hand-out {lease}): {reason}"
    fix_text = "drop the result: nothing of it was written; another worker goes on with the task, or nobody shall"


class WorkflowChanged(Conflict):
    """The workflow no longer comes to the steps that the task has recorded."""

    code = "workflow_changed"
    text = "task {task!r} does not fit its workflow any more: step {step!r} {reason}"
    fix_text = (
        "redo this step: bus.tasks.redo({task!r}, {step!r}); or bring the workflow back to what it was, then "
        "bus.tasks.resume({task!r}); "
        "arguments must be the same each time: what is random or read from a clock belongs into a step"
    )


class StepAbandoned(Conflict):
    """The workflow returned while a step of it was still being executed."""

    code = "step_abandoned"
    text = "the workflow of task {task!r} ended while step {step!r} was still running"
    fix_text = "let the workflow wait for each of its steps, or cancel those it gives up"


class TaskFailure(AgentBusError):
    """What was asked for was tried, and failed."""

    code = "task_failure"


class StepFailed(TaskFailure):
    """A step failed for good: it raised, timed out or was found invalid, and no attempt is left."""

    code = "step_failed"
    text = "step {step!r} of task {task!r} failed (attempts: {failures}): {type}: {message}"
    fix_text = "bus.tasks.resume({task!r}) tries it again; redo({task!r}, {step!r}) also all that follows it"


class WorkersLost(TaskFailure):
    """A task has lost as many workers as it may without making progress: they died, or lost their lease."""

    code = "workers_lost"
    text = "{lost} while running task {task!r}, {where}: {reason}"
    fix_text = "mend the step, then bus.tasks.resume({task!r}) runs it again and starts counting at 0"


class TaskFailed(TaskFailure):
    """A task that somebody waits for has failed or was stopped."""

    code = "task_failed"
    text = "task {task!r} has {status}: {message}"
    fix_text = "bus.tasks.resume({task!r}) goes on with it"


class TaskTimedOut(TaskFailure, TimeoutError):
    """A task has not ended within the time that somebody was ready to wait. It goes on."""

    code = "task_timed_out"
    text = "task {task!r} has not ended within {timeout} s"
