"""Maintenance of its mailboxes by a claim, so that delivery works without a monitor: promote, expire, take back."""

from __future__ import annotations

from typing import Any

from agentbus.operations.protocol import mailbox_channel
from agentbus.operations.receive import Claim, ClaimRequest, claim
from tests.operations.script import ALIVE, NOW, A, Answer, Played, held, play

NOTHING: Answer = ("message_ready", [])


def horizon(due: int | None = None, lapses: int | None = None, expires: int | None = None, box: int = 10) -> Answer:
    """When one mailbox has something due next."""
    return "mailbox_horizon", [(box, due, lapses, expires)]


def play_claim(*answers: Answer, pools: tuple[int, ...] = ()) -> Played[Any]:
    # What is ready is asked for together with what is due, and again once something was tended.
    nothing: Answer = ("message_ready" if pools else "message_next", [])
    looks = [nothing for name, _ in answers if name == "mailbox_horizon"]
    return play(claim.run([ClaimRequest(A, (), (10,), pools, 1, 1_000)], NOW), ALIVE, *answers, *looks)


def test_a_quiet_mailbox_costs_one_query() -> None:
    played = play_claim(horizon(due=NOW.wall + 1, lapses=NOW.awake + 1, expires=NOW.wall + 1))
    assert played.statements == []
    assert [name for name, _ in played.asked].count("mailbox_horizon") == 1


def test_a_claim_learns_when_the_next_message_is_due_and_the_next_lease_runs_out() -> None:
    played = play_claim(
        ("mailbox_horizon", [(10, NOW.wall + 500, None, None), (30, NOW.wall + 200, NOW.awake + 900, None)]),
        pools=(30,),
    )
    assert played.outcomes == [Claim([], False, NOW.wall + 200, NOW.awake + 900)]


def test_a_claim_gets_the_horizon_of_its_own_mailboxes() -> None:
    requests = [ClaimRequest(A, (), (10,), (), 1, 1_000), ClaimRequest(A, (), (20,), (), 1, 1_000)]
    soon: Answer = ("mailbox_horizon", [(10, NOW.wall + 500, None, None), (20, None, NOW.awake + 5, None)])
    played = play(claim.run(requests, NOW), ALIVE, soon, NOTHING)
    assert played.outcomes == [Claim([], False, NOW.wall + 500, None), Claim([], False, None, NOW.awake + 5)]


def test_what_is_due_now_is_promoted() -> None:
    played = play_claim(horizon(due=NOW.wall), horizon())
    assert played.written("message_promote") == [(NOW.wall, [10])]


def test_what_is_too_old_now_expires() -> None:
    played = play_claim(horizon(expires=NOW.wall), horizon())
    assert played.written("message_expire") == [(NOW.wall, [10])]


def test_what_became_ready_and_too_old_meanwhile_expires() -> None:
    played = play_claim(horizon(due=NOW.wall - 9, expires=NOW.wall - 1), horizon())
    assert played.wrote == ["message_promote", "message_expire"]


def test_what_is_taken_back_may_be_too_old_by_then() -> None:
    played = play_claim(horizon(lapses=NOW.awake), ("message_lapsed", [held(1)]), horizon())
    assert played.wrote == ["message_release", "message_expire"]
    assert played.written("message_expire") == [(NOW.wall, [10])]


def test_only_mailboxes_with_something_due_are_maintained() -> None:
    both: Answer = ("mailbox_horizon", [(10, NOW.wall, None, None), (30, NOW.wall + 1, None, None)])
    played = play_claim(both, horizon(), pools=(30,))
    assert played.written("message_promote") == [(NOW.wall, [10])]


def test_after_maintenance_the_claim_has_the_new_horizon() -> None:
    played = play_claim(horizon(due=NOW.wall), horizon(due=NOW.wall + 70))
    assert played.outcomes == [Claim([], False, NOW.wall + 70, None)]


def test_an_expired_lease_is_queued_with_its_attempts() -> None:
    lapsed: Answer = ("message_lapsed", [held(1, holder="dead-one", attempts=2)])
    played = play_claim(horizon(lapses=NOW.awake), lapsed, horizon())
    assert played.written("message_release") == [("queued", None, 2, "dead-one: its lease ran out", 1)]
    assert played.woken == [mailbox_channel(10)]


def test_an_expired_lease_of_the_last_attempt_makes_a_dead_letter() -> None:
    rows = [held(1, attempts=5, max_attempts=5), held(2, attempts=4, max_attempts=5)]
    played = play_claim(horizon(lapses=NOW.awake - 1), ("message_lapsed", rows), horizon())
    assert played.ids("message_dead_letter") == [1]
    assert played.ids("message_release") == [2]
    ((error, finished, _),) = played.written("message_dead_letter")
    assert "its lease ran out" in error
    assert "attempt 5 of 5" in error
    assert finished == NOW.wall


def test_leases_run_out_by_awake_time_and_messages_fall_due_by_wall_time() -> None:
    # A wall clock that jumped must not void a lease, nor the time of a boot promote a message.
    played = play_claim(horizon(due=NOW.awake + NOW.wall, lapses=NOW.wall - 1))
    assert NOW.awake < NOW.wall - 1
    assert played.statements == []
