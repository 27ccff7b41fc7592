"""The rules of tasks without a database: transitions, fencing, release, failure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from agentbus.errors import AgentFenced, NotAnOperator, TaskExists, TaskLost, UnknownTask, WrongState
from agentbus.operations.protocol import Op, Row
from agentbus.operations.task_approvals import (
    AskRequest,
    DecideRequest,
    ExpireRequest,
    ask_approval,
    decide_approval,
    expire_approval,
)
from agentbus.operations.task_control import ControlRequest, control_task
from agentbus.operations.task_ownership import (
    READY,
    HeldRequest,
    HeldTask,
    Hold,
    check_holders,
    ended_channel,
    release_tasks,
    worker_channel,
)
from agentbus.operations.task_steps import (
    FailStepRequest,
    FinishStepRequest,
    StartStepRequest,
    StepIdentity,
    fail_step,
    finish_step,
    start_step,
)
from agentbus.operations.tasks import (
    TRANSITIONS,
    ClaimTasksRequest,
    CompleteRequest,
    FailRequest,
    ReleaseRequest,
    RenewTasksRequest,
    StartRequest,
    claim_tasks,
    complete_task,
    fail_task,
    release_task,
    renew_tasks,
    start_task,
)
from tests.operations.script import ALIVE, NOW, A, B, Played, play

HOLD = Hold(7, "t", 3)
STEP = StepIdentity("step", "plan", "plan", 1)
CLOCK = f"{NOW.boot} {NOW.wall - NOW.awake}"
STATES = ("pending", "running", "waiting", "halted", "completed", "failed", "stopped")


def task(**changes: Any) -> Row:
    found = HeldTask(
        7, "t", "w", "T", None, None, "running", None, 0, 0, 0, "a", 3, 0, 1000, 0, None, 0, 5, None, 0, None,
    )  # fmt: skip
    return msgspec.structs.astuple(msgspec.structs.replace(found, **changes))


def held_as(**changes: Any) -> tuple[str, Sequence[Row]]:
    return "task_held", [task(**changes)]


def driven(operation: Op[Any], *answers: Any) -> Played[Any]:
    return play(operation, ALIVE, *answers)


# The table


def test_every_state_can_be_left_and_come_to() -> None:
    come_to = {after for table in TRANSITIONS.values() for after in table.values()}
    left = {before for table in TRANSITIONS.values() for before in table}
    assert come_to == set(STATES)
    assert left == set(STATES)


def test_an_ended_task_continues_only_by_resume_redo_and_restart() -> None:
    for ended in ("completed", "failed", "stopped"):
        allowed = {action for action, table in TRANSITIONS.items() if ended in table}
        assert allowed <= {"resume", "redo", "restart"}
    assert "completed" not in TRANSITIONS["resume"]


# Who may write


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        ([], "deleted"),
        ([task(status="pending", holder=None)], "it is pending"),
        ([task(status="stopped", holder=None)], "it is stopped"),
        ([task(holder="b", lease=4)], "held by b (lease 4)"),
        ([task(lease=4)], "held by a (lease 4)"),
    ],
)
def test_a_worker_that_lost_a_task_gets_a_named_error(found: list[Row], reason: str) -> None:
    played = driven(check_holders([HeldRequest(A, HOLD)]), ("task_held", found))
    errors, _ = played.outcomes
    assert isinstance(errors[0], TaskLost)
    assert reason in str(errors[0])
    assert (errors[0].task, errors[0].agent, errors[0].lease) == ("t", "a", 3)


def test_a_fenced_agent_writes_nothing_even_for_a_task_that_seems_its_own() -> None:
    gone = ("agent_statuses", [("a", "failed", 1, 1, 2)])
    played = play(finish_step.run([FinishStepRequest(A, HOLD, STEP, ("1", 0))], NOW), gone, held_as())
    assert isinstance(played.outcomes[0], AgentFenced)
    assert played.written("step_finish") == []


def test_of_many_that_finish_together_only_those_that_lost_their_task_get_an_error() -> None:
    other = Hold(8, "u", 1)
    requests = [FinishStepRequest(A, HOLD, STEP, ("1", 5)), FinishStepRequest(B, other, STEP, ("2", 6), "true")]
    rows = [task(lease=4), task(number=8, id="u", holder="b", lease=1)]
    played = driven(finish_step.run(requests, NOW), ("task_held", rows))
    assert isinstance(played.outcomes[0], TaskLost)
    assert played.outcomes[1] is None
    assert played.written("step_finish") == [(NOW.wall, 6, "true", "2", None, 8, "step", "plan")]


# Steps


def test_a_step_begins_as_a_new_row_or_as_another_attempt_of_one() -> None:
    requests = [StartStepRequest(A, HOLD, STEP, 1, note="n"), StartStepRequest(A, HOLD, STEP, 3)]
    played = driven(start_step.run(requests, NOW), held_as())
    assert played.outcomes == [True, True]
    ((_, kind, key, _, position, status, *_),) = played.written("step_insert")
    assert (kind, key, position, status) == ("step", "plan", 1, "running")
    assert played.written("step_again") == [(3, NOW.wall, "", None, 7, "plan")]


def test_no_step_begins_in_a_task_that_is_to_be_halted() -> None:
    played = driven(start_step.run([StartStepRequest(A, HOLD, STEP)], NOW), held_as(halting=1))
    assert played.outcomes == [False]
    assert played.statements == []


@pytest.mark.parametrize(("delay", "status", "due"), [(None, "failed", None), (500, "retrying", NOW.wall + 500)])
def test_a_failed_attempt_is_followed_by_another_or_by_none(delay: int | None, status: str, due: int | None) -> None:
    played = driven(fail_step.run([FailStepRequest(A, HOLD, STEP, "{}", 2, delay)], NOW), held_as())
    assert played.outcomes == [due]
    ((found, when, failures, *_),) = played.written("step_fail")
    assert (found, when, failures) == (status, due, 2)


# Letting go


@pytest.mark.parametrize(
    ("awaits", "there", "halting", "status", "due"),
    [
        ((), [], 0, "pending", 0),
        ((("approval", "plan"),), [("approval", "plan")], 0, "waiting", None),
        ((("approval", "plan"),), [], 0, "pending", 0),
        ((("approval", "plan"), ("task", "c")), [("approval", "plan")], 0, "pending", 0),
        ((("retry", "plan"),), [], 0, "pending", 99),
        ((("retry", "plan"), ("step", "pay")), [("step", "pay")], 0, "waiting", 99),
        ((("approval", "plan"),), [("approval", "plan")], 1, "halted", None),
    ],
)
def test_the_status_of_a_released_task(
    awaits: tuple[tuple[str, str], ...], there: list[Row], halting: int, status: str, due: int | None
) -> None:
    when = 99 if any(kind == "retry" for kind, _ in awaits) else None
    answers = [] if halting else [("task_awaited", there)]
    played = driven(release_task.run([ReleaseRequest(A, HOLD, awaits, when)], NOW), held_as(halting=halting), *answers)
    assert played.outcomes == [status]
    ((found, found_due, *_),) = played.written("task_let_go")
    assert (found, found_due) == (status, due)
    assert (READY in played.woken) == (status == "pending" or due is not None)


# Ends


def test_a_task_that_completes_wakes_waiting_callers_and_its_parent() -> None:
    parent = task(number=9, id="p", status="waiting", holder=None)
    played = driven(
        complete_task.run([CompleteRequest(A, HOLD, ("1", 5))], NOW), held_as(parent="p"), ("task_by_id", [parent])
    )
    assert played.written("task_complete") == [(5, "1", NOW.wall, 7)]
    assert played.written("task_ready_now") == [(NOW.wall, 9)]
    assert {ended_channel("t"), READY} <= set(played.woken)


@pytest.mark.parametrize(
    ("restarts", "restarted", "final", "status", "due"),
    [
        (0, 0, False, "failed", None),
        (3, 0, False, "pending", NOW.wall + 1000),
        (3, 2, False, "pending", NOW.wall + 4000),
        (3, 3, False, "failed", None),
        (3, 0, True, "failed", None),
    ],
)
def test_a_task_that_fails_is_restarted_as_its_policy_says(
    restarts: int, restarted: int, final: bool, status: str, due: int | None
) -> None:
    request = FailRequest(A, HOLD, "{}", "it broke", ("plan",), final)
    played = driven(fail_task.run([request], NOW), held_as(restarts=restarts, restarted=restarted))
    assert played.outcomes == [status]
    if due is None:
        assert played.written("task_fail") == [("{}", NOW.wall, 7)]
    else:
        assert played.written("task_restart_later") == [(due, "{}", NOW.wall, 7)]
        assert played.written("step_supersede_one") == [(1, 7, "plan")]


@pytest.mark.parametrize("halting", [0, 1])
def test_a_task_whose_holder_is_gone_is_free_and_its_steps_are_interrupted(halting: int) -> None:
    present = [] if halting else [("task_awaited", [("approval", "plan")])]
    played = play(release_tasks([HeldTask(*task(halting=halting))], "it died", NOW), *present)
    assert played.written("step_interrupt") == [(7,)]
    assert played.written("task_free") == [(NOW.wall, 7)]
    assert (READY in played.woken) == (not halting)
    assert worker_channel("a") in played.woken


def test_a_task_whose_holder_is_gone_reports_steps_that_an_operator_must_settle() -> None:
    present = ("task_awaited", [("approval", "plan"), ("step", "charge")])
    played = play(release_tasks([HeldTask(*task())], "it died", NOW), present)
    assert played.written("task_free") == []
    assert played.written("task_let_go") == [("pending", 0, '["step:charge"]', NOW.wall, 7)]
    assert READY in played.woken, "other branches of it may be able to go on"


# Claims


def test_a_claim_first_makes_due_tasks_ready_and_releases_lapsed_ones() -> None:
    lapsed = task(number=9, id="u", holder="b")
    played = driven(
        claim_tasks.run([ClaimTasksRequest(A, ("w",), 1, 60_000)], NOW),
        ("task_horizon", [(NOW.wall, NOW.awake, CLOCK)]),
        ("task_waited", []),
        ("task_lapsed", [lapsed]),
        ("task_awaited", []),
        ("task_horizon", [(None, NOW.awake + 5, CLOCK)]),
        ("task_ready", []),
        ("workflow_signatures", []),
    )
    (found,) = played.outcomes
    assert (found.tasks, found.next_wall, found.next_awake) == ([], None, NOW.awake + 5)
    assert played.written("task_promote") == [(NOW.wall,)]
    assert played.written("task_free") == [(NOW.wall, 9)]


def test_a_claim_takes_no_more_than_wanted_and_says_that_there_is_more() -> None:
    ready = [(n, f"t{n}", "w", "T", None, 0, 1, 1, "{}", "{}", "{}", 0, "{}", 0) for n in (1, 2, 3)]
    played = driven(
        claim_tasks.run([ClaimTasksRequest(A, ("w",), 2, 60_000)], NOW),
        ("task_horizon", [(None, None, CLOCK)]),
        ("task_ready", ready),
        ("workflow_signatures", []),
    )
    (found,) = played.outcomes
    assert ([one.number for one in found.tasks], found.more) == ([1, 2], True)
    assert played.written("task_lease") == [("a", NOW.awake + 60_000, NOW.wall, n) for n in (1, 2)]


@pytest.mark.parametrize(
    ("losses", "busy", "given"),
    [
        ((2, 0, 2), False, [1]),
        ((2, 0, 2), True, []),
        ((0, 2, 0), False, [1]),
        ((0, 2, 0), True, [1]),
        ((0, 1, 2), True, [1, 2]),
    ],
)
def test_a_claim_gives_a_task_that_lost_a_worker_alone_and_in_its_turn(
    losses: tuple[int, ...], busy: bool, given: list[int]
) -> None:
    ready = [
        (n, f"t{n}", "w", "T", None, 0, 1, 1, "{}", "{}", "{}", 0, "{}", 0, lost) for n, lost in enumerate(losses, 1)
    ]
    played = driven(
        claim_tasks.run([ClaimTasksRequest(A, ("w",), 5, 60_000, busy)], NOW),
        ("task_horizon", [(None, None, CLOCK)]),
        ("task_ready", ready),
        ("workflow_signatures", []),
    )
    (found,) = played.outcomes
    assert ([one.number for one in found.tasks], found.more) == (given, True)


def test_a_renewal_says_which_tasks_are_lost() -> None:
    request = RenewTasksRequest(A, (HOLD, Hold(8, "u", 1)), 60_000)
    played = driven(renew_tasks.run([request], NOW), ALIVE, held_as())
    assert played.outcomes == [[(8, 1)]]
    assert played.written("task_renew") == [(NOW.awake + 60_000, 7)]


# Starting


def test_two_who_start_the_same_id_at_once_make_one_task() -> None:
    same = StartRequest("t", "w", "T", ('{"a":1,"b":2}', 5))
    other_order = msgspec.structs.replace(same, arguments=('{"b":2,"a":1}', 6))
    different = msgspec.structs.replace(same, arguments=("{}", 7))
    played = play(start_task.run([same, other_order, different], NOW), ("task_known", []), ("workflow_signatures", []))
    assert played.outcomes[:2] == [True, False]
    assert isinstance(played.outcomes[2], TaskExists)
    assert len(played.written("task_insert")) == 1


# People


def test_an_agent_s_name_is_refused_before_anything_else_is_looked_at() -> None:
    request = DecideRequest("t", "plan", True, "planner-1")
    agent = ("agent_status", [("planner-1", "running", None, None)])
    played = play(decide_approval.run([request], NOW), ("task_by_id", [task()]), agent)
    assert isinstance(played.outcomes[0], NotAnOperator)
    assert played.statements == []


@pytest.mark.parametrize("auto", [0, 1])
def test_a_question_is_open_or_passed_through(auto: int) -> None:
    request = AskRequest(A, HOLD, "plan", "plan", 2, ("1", 5), expires=60)
    played = driven(ask_approval.run([request], NOW), held_as(auto=auto))
    (answer,) = played.outcomes
    assert (answer.status, answer.auto, answer.expires) == ("approved" if auto else "open", auto, NOW.wall + 60)


def test_a_worker_that_lost_a_task_cannot_expire_its_approval() -> None:
    played = driven(expire_approval.run([ExpireRequest(A, HOLD, "plan")], NOW), held_as(lease=HOLD.lease + 1))
    assert isinstance(played.outcomes[0], TaskLost)
    assert played.statements == []


@pytest.mark.parametrize("action", ["halt", "continue", "resume", "stop"])
@pytest.mark.parametrize("status", ["completed", "stopped", "waiting"])
def test_a_wrong_transition_is_a_named_error_and_writes_nothing(action: str, status: str) -> None:
    if status in TRANSITIONS[action]:
        return
    played = play(
        control_task.run([ControlRequest("t", action)], NOW), ("task_by_id", [task(status=status, holder=None)])
    )
    (error,) = played.outcomes
    assert isinstance(error, WrongState)
    assert (error.status, error.name) == (status, "t")
    assert error.fix
    assert played.statements == []


def test_a_task_that_is_not_there_is_said_so() -> None:
    played = play(control_task.run([ControlRequest("t", "halt")], NOW), ("task_by_id", []))
    assert isinstance(played.outcomes[0], UnknownTask)
