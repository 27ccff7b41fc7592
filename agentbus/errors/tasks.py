"""Errors of durable tasks."""

from __future__ import annotations

from typing import Any

from agentbus.errors.base import AgentBusError
from agentbus.errors.calls import Conflict, InvalidInput, NotFound


class UnknownTask(NotFound):
    """No task has this id."""

    code = "unknown_task"
    text = "no task {task!r}"
    fix_text = "bus.tasks.list() returns the tasks; old ones may have been archived"
    shell_fix_text = "agentbus task list shows the tasks; old ones may have been archived"


class UnknownStep(NotFound):
    """The task has no such step, or has not reached it."""

    code = "unknown_step"
    text = "task {task!r} has no step {step!r}{hint}"
    fix_text = "bus.tasks.steps({task!r}) returns its steps"
    shell_fix_text = "agentbus task show {task} shows its steps"


class UnknownApproval(NotFound):
    """The task has not requested this approval."""

    code = "unknown_approval"
    text = "task {task!r} has not requested the approval {name!r}"
    fix_text = "bus.tasks.approvals({task!r}, status=None) returns its approvals"
    shell_fix_text = "agentbus task show {task} shows its approvals"


class NotExposed(NotFound):
    """The task has not exposed a value of this name."""

    code = "not_exposed"
    text = "task {task!r} has not exposed {name!r}{hint}"
    fix_text = "bus.tasks.query({task!r}) returns all its values; its workflow sets them with task.expose(name, value)"
    shell_fix_text = "agentbus task query {task} shows all its values; its workflow sets them with task.expose"


class WrongArguments(InvalidInput):
    """The workflow does not accept the arguments of the task."""

    code = "wrong_arguments"
    text = "workflow {workflow!r} does not accept these arguments: {reason}"
    fix_text = "its signature is {signature}"


class NotAnOperator(InvalidInput):
    """An agent cannot approve, reject or steer: that needs the name of a person."""

    code = "not_an_operator"
    text = "{by!r} is an agent: agents cannot {action}"
    fix_text = "ask a person to decide, and pass their name"
    shell_fix_text = "ask a person to decide; they run the command in their own shell, without AGENTBUS_AGENT"

    def __init__(self, **facts: Any) -> None:
        super().__init__(**{"action": "approve or reject", **facts})


class TaskExists(Conflict):
    """A different task has this id."""

    code = "task_exists"
    text = "task {task!r} already exists, with {differs}"
    fix_text = "choose another id; the same id with the same workflow and arguments returns the existing task"


_NEXT_ACTION = {"completed": "restart", "failed": "resume", "stopped": "resume"}
"""The action that lets an ended task run again, by its status."""


class TaskEnded(Conflict):
    """The task has ended and would receive neither the signal nor the message."""

    code = "task_ended"
    text = "task {task!r} has {status}"
    fix_text = "let it run again first: bus.tasks.{action}({task!r})"
    shell_fix_text = "let it run again first: agentbus task {action} {task}"

    def __init__(self, **facts: Any) -> None:
        if (action := _NEXT_ACTION.get(facts.get("status", ""))) is not None:
            facts = {"action": action, **facts}
        super().__init__(**facts)


class SignalIdConflict(Conflict):
    """The signal_id was used before for this task with different content."""

    code = "signal_id_conflict"
    text = "signal_id {signal_id!r} was used before for task {task!r} with another {differs}"
    fix_text = "use a new signal_id: each names one signal of the task"


class DependencyCycle(Conflict):
    """The task would wait for itself: its dependency cannot end before it."""

    code = "dependency_cycle"
    text = "task {task!r} cannot depend on {dependency!r}, which cannot end before it: {path}"
    fix_text = "remove one of these dependencies: bus.tasks.edit(…, no_after=[…])"
    shell_fix_text = "remove one of these dependencies: agentbus task edit TASK --no-after TASK"


class ReceivesNothing(Conflict):
    """The task is a work item: it has no code that waits for a signal or a message."""

    code = "receives_nothing"
    text = "task {task!r} is a work item and receives no signals or messages"
    fix_text = "send the agent that holds it a message: (await bus.tasks.get({task!r})).holder"
    shell_fix_text = "send the agent that holds it a message; agentbus task show {task} names it"


class NotAnItem(Conflict):
    """The task is run by workers; an agent can only take a work item."""

    code = "not_an_item"
    text = "task {task!r} is not a work item: workers run its workflow {workflow!r}"
    fix_text = "bus.tasks.ready(manual=True) returns the items that can be taken; bus.tasks.add() adds one"
    shell_fix_text = "agentbus task ready --manual lists what can be taken; agentbus task start --manual adds an item"


class TaskLost(Conflict):
    """The worker or agent does not hold the task: its lease expired, the task was stopped, redone or restarted, or the
    agent never took it."""

    code = "task_lost"
    text = "task {task!r} is not held by {agent} under lease {lease}: {reason}"
    fix_text = "only its holder can settle it; discard the result"


class WorkflowChanged(Conflict):
    """The workflow no longer matches the steps that the task has recorded."""

    code = "workflow_changed"
    text = "task {task!r} does not match its workflow: step {step!r} {reason}"
    fix_text = (
        "redo the step: bus.tasks.redo({task!r}, {step!r}); or restore the workflow, then bus.tasks.resume({task!r}); "
        "a workflow must be deterministic: take random values and times in a step"
    )
    shell_fix_text = (
        "redo the step: agentbus task redo {task} {step}; or restore the workflow, then agentbus task resume {task}; "
        "a workflow must be deterministic: take random values and times in a step"
    )


class StepAbandoned(Conflict):
    """The workflow returned while one of its steps was running."""

    code = "step_abandoned"
    text = "the workflow of task {task!r} ended while step {step!r} was running"
    fix_text = "wait for every step in the workflow, or cancel the ones that it does not need"


class TaskFailure(AgentBusError):
    """The work was attempted and failed."""

    code = "task_failure"


class StepFailed(TaskFailure):
    """The step raised, timed out or was invalid, and has no attempt left."""

    code = "step_failed"
    text = "step {step!r} of task {task!r} failed (attempts: {failures}): {type}: {message}"
    fix_text = "retry it: bus.tasks.resume({task!r}); with all later steps: bus.tasks.redo({task!r}, {step!r})"
    shell_fix_text = "retry it: agentbus task resume {task}; with all later steps: agentbus task redo {task} {step}"


class SignalTimedOut(TaskFailure, TimeoutError):
    """The signal did not arrive within the timeout."""

    code = "signal_timed_out"
    text = "task {task!r} received no signal {name!r} in time"
    fix_text = "send it, then bus.tasks.resume({task!r}) waits for it again"
    shell_fix_text = "send it after agentbus task resume {task}: agentbus task signal {task} {name}"


class WorkersLost(TaskFailure):
    """Too many workers died or lost their lease while they ran the task, without progress."""

    code = "workers_lost"
    text = "{lost} while running task {task!r}, {where}: {reason}"
    fix_text = "correct the step, then bus.tasks.resume({task!r}) runs it again and resets the count"
    shell_fix_text = "correct the step, then agentbus task resume {task} runs it again and resets the count"


class TaskFailed(TaskFailure):
    """The awaited task failed or was stopped."""

    code = "task_failed"
    text = "task {task!r} has {status}: {message}"
    fix_text = "resume it: bus.tasks.resume({task!r})"
    shell_fix_text = "resume it: agentbus task resume {task}"


class TaskTimedOut(TaskFailure, TimeoutError):
    """The task did not end within the timeout. It continues to run."""

    code = "task_timed_out"
    text = "task {task!r} has not ended within {timeout} s"
