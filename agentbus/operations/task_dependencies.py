"""Dependencies of tasks: a task starts when all tasks that it depends on have completed.

A task that waits for others has the status ``waiting`` and has not started. The commit that ends a task also records
the end with its dependents, and makes those ready that wait for nothing else. A failed or stopped dependency blocks its
dependents until it completes after all (policy ``block``), or stops them (``cancel``). Once a task has started, its
dependencies no longer matter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, TypeAlias

import msgspec

from agentbus.core.clock import Now
from agentbus.errors import AgentBusError, DependencyCycle, UnknownTask, WrongState
from agentbus.operations.events import event, record
from agentbus.operations.protocol import ExecuteMany, Op, Query, Row

OnFailedDependency: TypeAlias = Literal["block", "cancel"]
POLICIES: tuple[OnFailedDependency, ...] = ("block", "cancel")
"""The policies for a dependency that fails or is stopped: wait for it, or stop the dependent."""
_STARTED_ADVICE = "it has started: dependencies only delay the start of a task"


class Dependencies(msgspec.Struct, frozen=True):
    """The tasks that a new task waits for, and the policy."""

    after: tuple[str, ...]
    on_failed: str = POLICIES[0]


class ChangedDependencies(msgspec.Struct, frozen=True):
    """Dependencies to add to a task and to remove from it; None leaves the policy."""

    add: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()
    on_failed: str | None = None


class Resolved(msgspec.Struct, frozen=True):
    """Dependencies of a new task: when each completed, if it has; and one that makes the policy stop the task."""

    completed: dict[str, int | None]
    stops: tuple[str, str] | None = None

    @property
    def blocked(self) -> bool:
        return None in self.completed.values()


class Settled(msgspec.Struct, frozen=True):
    """Tasks that became ready, with whether each is a work item; and tasks that were stopped."""

    ready: Sequence[tuple[str, int]] = ()
    stopped: Sequence[str] = ()


def resolve_dependencies(
    task: str, wanted: Dependencies, starting: Mapping[str, str], now: Now
) -> Op[Resolved | AgentBusError]:
    """Return the dependencies of a new task. Unknown tasks and cycles are refused. ``starting``: the statuses of tasks
    that start in the same transaction."""
    rows = yield Query("dependency_statuses", (list(wanted.after),))
    found = {id: (status, ended) for id, status, ended in rows}
    completed: dict[str, int | None] = {}
    stops: tuple[str, str] | None = None
    for id in wanted.after:
        if id == task:
            return DependencyCycle(task=task, dependency=id, path=f"{task} → {task}")
        if id not in found and id not in starting:
            return UnknownTask(task=id)
        status, ended = found.get(id, (starting.get(id), None))
        completed[id] = ended if status == "completed" else None
        if status in {"failed", "stopped"} and wanted.on_failed == "cancel":
            stops = stops or (id, str(status))
    # A new task can only be part of a cycle if another one waits for an earlier task of its id, deleted since.
    cycle = yield from _find_cycle(task, [id for id, at in completed.items() if at is None])
    return cycle or Resolved(completed, stops)


def insert_dependencies(found: Mapping[str, Resolved]) -> Op[None]:
    """Insert the dependencies of new tasks."""
    if not found:
        return
    rows = yield Query("dependency_numbers", (list(found),))
    inserted = [(number, *one) for id, number in rows for one in found[id].completed.items()]
    yield ExecuteMany("dependency_insert", inserted)


def settle_dependents(ended: Sequence[str], now: Now) -> Op[Settled]:
    """Record the end of tasks with those that wait for them. Return the tasks that became ready, and those that the
    policy stopped; these are tasks that ended, too."""
    stopped: list[str] = []
    touched: list[int] = []
    while ended and (rows := (yield Query("dependency_dependents", (list(ended),)))):
        done = [row for row in rows if row[5] == "completed"]
        yield ExecuteMany("dependency_complete", [(at, number, id) for number, _, _, _, id, _, at in done])
        touched += [number for number, *_ in done]
        cancelled = {row[0]: row for row in rows if row[5] != "completed" and row[3] == "cancel" and _waits(row)}
        for number, id, status, _, dependency, outcome, _ in cancelled.values():
            yield from stop_dependent(number, id, status, (dependency, outcome), now)
        ended = [row[1] for row in cancelled.values()]
        stopped += ended
    if not touched:
        return Settled((), stopped)
    rows = yield Query("dependency_satisfied", (list(dict.fromkeys(touched)),))
    yield ExecuteMany("dependency_release", [(now.wall, number) for number, *_ in rows])
    yield from record([event(now.wall, "task_pending", ("task", id), None, before="waiting") for _, id, _ in rows])
    return Settled([(id, manual) for _, id, manual in rows], stopped)


def _waits(row: Row) -> bool:
    """Return whether a dependent has not been stopped. One that a person resumed afterwards waits again."""
    return row[2] in {"waiting", "halted"}


def stop_dependent(number: int, id: str, status: str, cause: tuple[str, str], now: Now) -> Op[None]:
    """Stop a task, which has not started, because a dependency failed or was stopped."""
    yield Query("task_stop", (now.wall, number))
    dependency, outcome = cause
    reason = f"dependency {dependency} {'was stopped' if outcome == 'stopped' else 'failed'}"
    yield from record([event(now.wall, "task_stopped", ("task", id), None, before=status, reason=reason)])


def missed_completions(limit: int, now: Now) -> Op[list[str]]:
    """Return completed tasks that others still wait for. A process of an older version that completes a task does not
    know its dependents."""
    rows = yield Query("dependency_missed", (limit,))
    return [id for (id,) in rows]


def is_blocked(number: int, on_failed: str | None) -> Op[bool]:
    """Return whether a task waits for another one to complete. ``on_failed`` is its policy."""
    return on_failed is not None and bool((yield Query("dependency_open", (number,))))


def reopen_dependency(task: str) -> Op[None]:
    """Let the dependents of a completed task wait for it again: it is repeated. Those that are ready or have started
    continue."""
    yield Query("dependency_reopen", (task,))


def change_dependencies(task: str, changed: ChangedDependencies, now: Now) -> Op[str | AgentBusError | None]:
    """Change the dependencies of a task that has not started. Return its status if it changed, or the error."""
    ((number, status, started, policy),) = yield Query("dependency_subject", (task,))
    if started is not None or status in {"running", "completed"}:
        return WrongState(
            what="task", name=task, status=status, action="change its dependencies", advice=_STARTED_ADVICE
        )
    wanted = Dependencies(changed.add, changed.on_failed or policy or POLICIES[0])
    resolved = yield from resolve_dependencies(task, wanted, {}, now)
    if isinstance(resolved, AgentBusError):
        return resolved
    rows = yield Query("dependency_of", ([number],))
    foreign = set(changed.remove) - {id for _, id, *_ in rows}
    if foreign:
        advice = f"it does not depend on that task{''.join(f', only on {id}' for _, id, *_ in rows[:1])}"
        action = f"remove its dependency {min(foreign)}"
        return WrongState(what="task", name=task, status=status, action=action, advice=advice)
    yield ExecuteMany("dependency_remove", [(number, id) for id in changed.remove])
    yield ExecuteMany("dependency_add", [(number, *one) for one in resolved.completed.items()])
    rows = yield Query("dependency_of", ([number],))
    if changed.on_failed is not None and not rows:
        advice = "it depends on no task; add one in the same call"
        return WrongState(what="task", name=task, status=status, action="set its on_failed_dependency", advice=advice)
    yield Query("dependency_policy", (wanted.on_failed if rows else None, now.wall, number))
    stops = resolved.stops or (_first_failed(rows) if changed.on_failed == "cancel" else None)
    if stops is not None and status != "stopped":
        yield from stop_dependent(number, task, status, stops, now)
        return "stopped"
    waits = any(completed is None for *_, completed in rows)
    if waits and status == "pending":
        yield Query("dependency_block", (now.wall, number))
        return "waiting"
    if status == "waiting" and not waits:
        yield Query("dependency_release", (now.wall, number))
        return "pending"
    return None


def _first_failed(rows: Sequence[Row]) -> tuple[str, str] | None:
    """Return the first open dependency that has failed or was stopped, with its status."""
    failed = ((id, status) for _, id, status, completed in rows if completed is None)
    return next((one for one in failed if one[1] in {"failed", "stopped"}), None)


def _find_cycle(task: str, wanted: Sequence[str]) -> Op[DependencyCycle | None]:
    """Return the error if one of the wanted tasks cannot end before ``task``: it waits for it, directly or not, or
    ``task`` is a sub-task of it."""
    if not wanted:
        return None
    because: dict[str, str | None] = {task: None}
    level = [task]
    while level:
        found = yield Query("dependency_needed_by", (level,))
        level = []
        for needed, by in found:
            if by not in because:
                because[by] = needed
                level.append(by)
        for id in wanted:
            if id in because:
                return DependencyCycle(task=task, dependency=id, path=" → ".join((task, *_path(id, because))))
    return None


def _path(start: str, because: Mapping[str, str | None]) -> Iterable[str]:
    """Yield the tasks from one to the task that it waits for in the end."""
    one: str | None = start
    while one is not None:
        yield one
        one = because[one]
