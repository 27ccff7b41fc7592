"""Tasks: starting them, handing them to workers, and how they end. Their steps, approvals and control are elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Any

import msgspec

from agentbus.clock import Now
from agentbus.codec import canonical, plain
from agentbus.errors import AgentBusError, TaskExists, WrongState
from agentbus.limits import TASK_STATUSES
from agentbus.operations import Actor, Each, Op, Outcome, Query, Wake, operation, several
from agentbus.operations.closed import not_open
from agentbus.operations.events import event, record
from agentbus.operations.fencing import fence
from agentbus.operations.holding import (
    READY,
    HeldRequest,
    HeldTask,
    Hold,
    after,
    apply_redos,
    for_holders,
    free,
    held,
    task_events,
    tell_parents,
    unsettled,
)
from agentbus.operations.signatures import Signatures, signatures_of

_LONGEST_BACKOFF = 3600 * 1000
_MOST_SKIPPED = 1000
"""Tasks at the head of the queue that a claim passes over because other workers have to take them."""
_SET = 1000
"""Milliseconds by which the wall clock differs from awake time once it was set; less is drift."""
CLOCK = "task_clock"
"""The fact of the bus that says how far the wall clock is ahead of awake time, and in which boot."""
SUSPECT_LOSSES = 2
"""Workers that a task may lose in a row before it runs alone."""
MAX_LOSSES = 5
"""Workers that a task may lose in a row, by default, before it fails."""

TRANSITIONS: dict[str, dict[str, str]] = {
    "claim": {"pending": "running"},
    "complete": {"running": "completed"},
    "fail": {"running": "failed"},
    "let go": {"running": "waiting"},
    "go on": {"waiting": "pending"},
    "free": {"running": "pending"},
    "halt": {"pending": "halted", "waiting": "halted", "running": "running"},
    "continue": {"halted": "pending", "running": "running"},
    "resume": {"pending": "pending", "halted": "pending", "failed": "pending", "stopped": "pending"},
    "stop": dict.fromkeys(("pending", "running", "waiting", "halted"), "stopped"),
    "redo": dict.fromkeys(TASK_STATUSES, "pending"),
    "restart": dict.fromkeys(TASK_STATUSES, "pending"),
}
"""What may be done with a task, and what becomes of it, by the status that it has. A running one that is to be halted
is so before its next step; one that fails and may be restarted is pending, and so is one that nobody holds any
more."""


class StartRequest(msgspec.Struct, frozen=True):
    """A task to be done. ``delay`` and ``backoff`` are milliseconds. ``parent``: the task that it is a sub-task of."""

    id: str
    workflow: str
    name: str
    arguments: tuple[str, int]
    """JSON text and its checksum."""
    session: str | None = None
    auto: bool = False
    context: str = "{}"
    settings: str = "{}"
    restarts: int = 0
    backoff: int = 1000
    delay: int = 0
    parent: str | None = None
    by: str | None = None
    max_losses: int = MAX_LOSSES

    @property
    def weight(self) -> int:
        return len(self.arguments[0]) + len(self.context) + len(self.settings)

    def named(self, id: str) -> StartRequest:
        """The same under another id."""
        return msgspec.structs.replace(self, id=id)


class ClaimTasksRequest(msgspec.Struct, frozen=True):
    """Up to ``limit`` tasks of these workflows, the oldest first, for ``duration`` milliseconds. ``busy``: the worker
    runs others already."""

    actor: Actor
    workflows: tuple[str, ...]
    limit: int
    duration: int
    busy: bool = False

    @property
    def touches(self) -> int:
        return 4 * self.limit


class ClaimedTask(msgspec.Struct, frozen=True):
    """A task as a worker gets it. A ``fresh`` one has nothing recorded yet."""

    number: int
    id: str
    workflow: str
    name: str
    session: str | None
    auto: int
    lease: int
    fresh: int
    notes: str
    context: str
    settings: str
    checksum: int
    arguments: str
    generation: int
    losses: int = 0

    @property
    def suspect(self) -> bool:
        """Return whether it has lost several workers since its last progress. It may have killed them: it runs alone.

        One loss says little: a worker that was killed makes all its tasks lose it.
        """
        return self.losses >= SUSPECT_LOSSES

    @property
    def hold(self) -> Hold:
        return Hold(self.number, self.id, self.lease)


class ClaimedTasks(msgspec.Struct, frozen=True):
    """A claim's result. ``more``: something is left, because there are more than wanted or the next one runs alone. It
    learns when to look again: ``next_wall``, when the next task is due, and ``next_awake``, when the next lease runs
    out."""

    tasks: Sequence[ClaimedTask]
    more: bool = False
    next_wall: int | None = None
    next_awake: int | None = None


class RenewTasksRequest(msgspec.Struct, frozen=True):
    """Tasks to hold for ``duration`` milliseconds from now."""

    actor: Actor
    holds: tuple[Hold, ...]
    duration: int

    @property
    def touches(self) -> int:
        return len(self.holds)


class LetGoRequest(HeldRequest, frozen=True):
    """A task that its worker can do nothing for at present: ``awaits`` are pairs of what kind of thing it waits for
    (approval, task, step, retry) and which; ``due`` is when to look again in any case (wall). ``lost``: user code
    ended the worker, which counts as lost."""

    awaits: tuple[tuple[str, str], ...] = ()
    due: int | None = None
    lost: bool = False


class CompleteRequest(HeldRequest, frozen=True):
    """A task whose workflow returned: the JSON of the result and its checksum."""

    result: tuple[str, int] = ("null", 0)

    @property
    def weight(self) -> int:
        return len(self.result[0])


class FailRequest(HeldRequest, frozen=True):
    """A task whose workflow raised: the problem as JSON. ``steps`` are those that it comes from, ``final``: trying
    again would not help."""

    problem: str = "{}"
    summary: str = ""
    steps: tuple[str, ...] = ()
    final: bool = False


@operation(durable=True, grows=True)
def start_task(requests: Sequence[StartRequest], now: Now) -> Op[list[Outcome[bool]]]:
    """Make tasks. The same id with the same workflow and arguments is the same task: the outcome says whether it is
    new."""
    rows, announced = yield from several(
        Query("task_known", ([request.id for request in requests],)),
        signatures_of(request.workflow for request in requests),
    )
    known = {id: (workflow, arguments) for id, workflow, arguments in rows}
    takes = Signatures(announced)
    fresh: list[StartRequest] = []
    outcomes: list[Outcome[bool]] = []
    for request in requests:
        if request.id in known:
            workflow, arguments = known[request.id]
            if workflow != request.workflow:
                outcomes.append(TaskExists(task=request.id, differs="another workflow"))
            elif canonical(arguments) != canonical(request.arguments[0]):
                outcomes.append(TaskExists(task=request.id, differs="other arguments"))
            else:
                outcomes.append(False)
            continue
        closed = None if request.session is None else (yield from not_open(request.session, "start a task in it"))
        error = closed or takes.misfit(request.workflow, request.arguments[0])
        if error is not None:
            outcomes.append(error)
            continue
        known[request.id] = (request.workflow, request.arguments[0])
        fresh.append(request)
        outcomes.append(True)
    yield from insert(fresh, now)
    return outcomes


def insert(requests: Sequence[StartRequest], now: Now) -> Op[None]:
    """Write new tasks."""
    if not requests:
        return
    yield Each(
        "task_insert",
        [
            (
                request.id, request.workflow, request.name, request.session, request.parent, "pending",
                int(request.auto), now.wall + request.delay if request.delay else 0, request.restarts, request.backoff,
                now.wall, now.wall, request.context, request.settings, request.arguments[1], request.arguments[0],
                request.max_losses,
            )
            for request in requests
        ],
    )  # fmt: skip
    yield from record([
        event(
            now.wall, "task_started", ("task", request.id), request.by,
            workflow=request.workflow, session=request.session, parent=request.parent, auto=request.auto,
        )
        for request in requests
    ])  # fmt: skip
    yield Wake([READY] * len(requests))


@operation(durable=False, last=True)
def claim_tasks(requests: Sequence[ClaimTasksRequest], now: Now) -> Op[list[Outcome[ClaimedTasks]]]:
    """Hand tasks to workers. First it looks after them: what is due becomes ready, what was held for too long is
    freed, so that all goes on with no monitor running."""
    refused = yield from fence(request.actor for request in requests)
    horizon = yield from tend_tasks(now)
    outcomes: list[Outcome[ClaimedTasks]] = []
    for request in requests:
        error = refused.get(request.actor)
        if error is not None:
            outcomes.append(error)
            continue
        tasks, more = yield from _ready(request)
        if not tasks:
            outcomes.append(ClaimedTasks([], more, *horizon))
            continue
        agent = request.actor.agent
        until = now.awake + request.duration
        yield Each("task_lease", [(agent, until, now.wall, task.number) for task in tasks])
        yield from record([
            event(now.wall, "task_running", ("task", task.id), agent, before="pending", lease=task.lease)
            for task in tasks
        ])  # fmt: skip
        outcomes.append(ClaimedTasks(tasks, more, *horizon))
    return outcomes


def _ready(request: ClaimTasksRequest) -> Op[tuple[list[ClaimedTask], bool]]:
    """The oldest tasks that this worker may take, and whether there are more. Where live workers have different
    versions of a workflow, a task goes to one whose version takes its arguments.

    A suspect task is given alone, to a worker that runs nothing else. Tasks behind it in the queue are not given before
    it is, so that a worker with enough to do becomes idle and takes it."""
    wanted = request.limit + 1
    while True:
        rows, announced = yield from several(
            Query("task_ready", (list(request.workflows), wanted)), signatures_of(request.workflows)
        )
        takes = Signatures(announced)
        found = [ClaimedTask(*row) for row in rows]
        tasks = [
            task for task in found if not takes.better_elsewhere(task.workflow, request.actor.agent, task.arguments)
        ]
        if tasks and tasks[0].suspect and not request.busy:
            return tasks[:1], len(tasks) > 1
        share = list(takewhile(lambda task: not task.suspect, tasks))[: request.limit]
        if len(share) < len(tasks) or len(found) < wanted or wanted > _MOST_SKIPPED:
            return share, len(share) < len(tasks)
        wanted *= 4


def tend_tasks(now: Now) -> Op[tuple[int | None, int | None]]:
    """Make ready what is due, and free what was held for too long; when to look again (wall, awake)."""
    ((due, until, known),) = yield Query("task_horizon")
    if (yield from _set_back(known, now)):
        ((due, until, _),) = yield Query("task_horizon")
    if due is not None and due <= now.wall:
        waited = yield Query("task_waited", (now.wall,))
        yield from record([event(now.wall, "task_pending", ("task", id), None, before="waiting") for (id,) in waited])
        yield Query("task_promote", (now.wall,))
    if until is not None and until <= now.awake:
        rows = yield Query("task_lapsed", (now.awake,))
        yield from free([HeldTask(*row) for row in rows], "its lease ran out", now)
    if (due is not None and due <= now.wall) or (until is not None and until <= now.awake):
        ((due, until, _),) = yield Query("task_horizon")
    return due, until


def _set_back(known: str | None, now: Now) -> Op[bool]:
    """Look whether the wall clock was set back since the last claim. What was to be done a while after it was written
    would otherwise wait for longer, by as much: that time is counted from now on. Says whether anything changed."""
    boot, _, offset = (known or "").rpartition(" ")
    ahead = now.wall - now.awake
    if boot == now.boot and abs(ahead - int(offset)) < _SET:
        return False
    yield Query("meta_set", (CLOCK, f"{now.boot} {ahead}"))
    if boot != now.boot or ahead > int(offset):
        return False
    rows = yield Query("task_written_later", (now.wall,))
    yield Each("task_shift", [(updated - now.wall, now.wall, number) for number, updated in rows])
    yield Each("step_shift", [(updated - now.wall, number) for number, updated in rows])
    return bool(rows)


@operation(durable=False)
def free_lapsed_tasks(requests: Sequence[None], now: Now) -> Op[list[Outcome[int]]]:
    """Free what was held for too long, where no worker claims; the outcome says how many."""
    rows = yield Query("task_lapsed", (now.awake,))
    yield from free([HeldTask(*row) for row in rows], "its lease ran out", now)
    return [len(rows)] * len(requests)


@operation(durable=False)
def renew_tasks(requests: Sequence[RenewTasksRequest], now: Now) -> Op[list[Outcome[list[tuple[int, int]]]]]:
    """Hold tasks for longer; the outcome has the numbers and leases of those that are lost."""
    refused = yield from fence(request.actor for request in requests)
    outcomes: list[Outcome[list[tuple[int, int]]]] = []
    for request in requests:
        if request.actor in refused:
            outcomes.append(refused[request.actor])
            continue
        errors, _ = yield from held([HeldRequest(request.actor, hold) for hold in request.holds])
        until = now.awake + request.duration
        yield Each(
            "task_renew",
            [(until, hold.number) for index, hold in enumerate(request.holds) if index not in errors],
        )
        outcomes.append([(hold.number, hold.lease) for index, hold in enumerate(request.holds) if index in errors])
    return outcomes


@operation(durable=True)
def let_go_task(requests: Sequence[LetGoRequest], now: Now) -> Op[list[Outcome[str]]]:
    """Nothing more can be done for these tasks now. The outcome is what they are from here on: waiting; halted, if that
    was asked for; pending, if what they wait for came meanwhile, or they wait for nobody."""
    return (yield from for_holders(requests, _let_go, now))


def _let_go(request: LetGoRequest, task: HeldTask, now: Now) -> Op[str]:
    if request.lost:
        failed = yield from free([task], "user code ended the event loop of its worker", now)
        return "failed" if failed else after(task)
    again = task.redo is not None
    task = yield from apply_redos(task, now)
    yield Each("step_interrupt", [(task.number,)])
    status, due, waits = yield from _standing(task, request, again)
    yield Query("task_let_go", (status, due, plain(waits), now.wall, task.number))
    facts = {"waits": waits} if waits else {}
    yield from record(task_events([task], f"task_{status}", request.actor.agent, now, **facts))
    yield Wake([READY] if status == "pending" else [])
    return status


def _standing(task: HeldTask, request: LetGoRequest, again: bool) -> Op[tuple[str, int | None, list[str]]]:
    """Return the status of a released task, when it is due, and what it waits for. ``again``: a redo was applied."""
    waits = [f"{kind}:{name}" for kind, name in request.awaits]
    if task.halting:
        return "halted", None, waits
    rows = yield Query("task_awaited", (task.number,))
    present = {(kind, name) for kind, name in rows}
    people = [one for one in request.awaits if one[0] != "retry"]
    if again or not request.awaits or any(one not in present for one in people):
        # Whoever takes it finds out how it goes on; until then a person is told what nobody else can say.
        return "pending", 0, unsettled(rows)
    if not people:
        return "pending", request.due or 0, waits if request.due else []
    return "waiting", request.due, waits


@operation(durable=True, grows=True)
def complete_task(requests: Sequence[CompleteRequest], now: Now) -> Op[list[Outcome[str]]]:
    """Tasks are done; their results are kept. The outcome is what they are: one that a redo waits for is done again."""
    errors, tasks = yield from held(requests)
    done: list[CompleteRequest] = []
    again: dict[int, str] = {}
    for index, request in enumerate(requests):
        task = tasks.get(request.hold.number)
        if index in errors or task is None:
            continue
        if task.redo is None:
            done.append(request)
        else:
            again[task.number] = yield from _let_go(LetGoRequest(request.actor, request.hold), task, now)
    # What the workflow itself has given up.
    yield Each("step_cancel", [(now.wall, request.hold.number) for request in done])
    yield Each("task_complete", [(*reversed(request.result), now.wall, request.hold.number) for request in done])
    for request in done:
        task = tasks[request.hold.number]
        yield from record(task_events([task], "task_completed", request.actor.agent, now))
    yield from tell_parents([tasks[request.hold.number] for request in done], now)
    return [errors.get(index) or again.get(request.hold.number, "completed") for index, request in enumerate(requests)]


@operation(durable=True)
def fail_task(requests: Sequence[FailRequest], now: Now) -> Op[list[Outcome[str]]]:
    """Tasks have failed. One that may be restarted is pending again after a while, from the step that failed on; the
    outcome says what it is."""
    return (yield from for_holders(requests, _fail, now))


def _fail(request: FailRequest, task: HeldTask, now: Now) -> Op[str]:
    task = yield from apply_redos(task, now)
    yield Each("step_interrupt", [(task.number,)])
    facts: dict[str, Any] = {"error": request.summary}
    again = not request.final and task.restarted < task.restarts
    if again:
        delay = backoff(task.backoff, task.restarted + 1)
        facts |= {"delay": delay, "restart": task.restarted + 1}
        yield from try_again(task, request.steps)
        yield Query("task_restart_later", (now.wall + delay, request.problem, now.wall, task.number))
    else:
        yield Query("task_fail", (request.problem, now.wall, task.number))
    status = after(task) if again else "failed"
    yield from record(task_events([task], f"task_{status}", request.actor.agent, now, **facts))
    if not again:
        yield from tell_parents([task], now)
    return status


def try_again(task: HeldTask, steps: Sequence[str]) -> Op[None]:
    """Make void the steps that a task failed at, so that they run again. What is finished stays so."""
    if steps:
        yield Query("task_generation", (task.number,))
        yield Each("step_supersede_one", [(task.generation + 1, task.number, step) for step in steps])


# What others need


def backoff(first: int, failures: int) -> int:
    """How long to wait after so many failures, in milliseconds: at first so long, then ever longer."""
    return min(_LONGEST_BACKOFF, first << min(failures - 1, 30))


def problem_steps(problem: str | None) -> list[str]:
    """The steps that a task failed at, as far as it was any."""
    found = {} if problem is None else msgspec.json.decode(problem)
    return [str(step) for step in (found.get("step"), *found.get("others", ())) if step is not None]


def refuse(task: HeldTask, action: str, advice: str) -> AgentBusError:
    """A named error for what cannot be done with a task as it is."""
    return WrongState(what="task", name=task.id, status=task.status, action=f"{action} it", advice=advice)
