"""Fencing: an agent of the current epoch that has not ended may act."""

from __future__ import annotations

import pytest

from agentbus.operations.common import INCOMPLETE, LIVE, fence
from agentbus.operations.protocol import Actor
from tests.operations.script import ENDED, A, B, play, standing


def test_a_live_agent_of_the_current_epoch_may_act() -> None:
    played = play(fence([A, B]), ("agent_statuses", [standing("a"), standing("b")]))
    assert played.outcomes == {}


@pytest.mark.parametrize("status", sorted(LIVE))
def test_every_live_status_may_act(status: str) -> None:
    assert play(fence([A]), ("agent_statuses", [standing(status=status)])).outcomes == {}


def test_an_unknown_agent_is_fenced() -> None:
    refused = play(fence([A]), ("agent_statuses", [])).outcomes
    assert refused[A].facts == {"agent": "a", "epoch": 1, "reason": "it was deleted"}


def test_an_older_epoch_is_fenced_and_the_error_names_the_newer_one() -> None:
    refused = play(fence([A]), ("agent_statuses", [standing(epoch=3)])).outcomes
    assert refused[A].reason == "epoch 3 has taken over"
    assert refused[A].epoch == 1


def test_an_epoch_from_the_future_is_fenced_too() -> None:
    assert A in play(fence([A]), ("agent_statuses", [standing(epoch=0)])).outcomes


@pytest.mark.parametrize("status", ENDED)
def test_an_ended_agent_is_fenced(status: str) -> None:
    refused = play(fence([A]), ("agent_statuses", [standing(status=status)])).outcomes
    assert status in refused[A].reason


@pytest.mark.parametrize("status", ["pending", "spawning"])
def test_an_agent_that_has_yet_to_come_cannot_act(status: str) -> None:
    # Nor can its last life, which has the same epoch.
    assert A in play(fence([A]), ("agent_statuses", [standing(status=status)])).outcomes


def test_only_the_stale_one_of_two_epochs_is_fenced() -> None:
    old, new = Actor("a", 1), Actor("a", 2)
    refused = play(fence([old, new, old]), ("agent_statuses", [standing(epoch=2)])).outcomes
    assert list(refused) == [old]


def test_each_agent_is_looked_up_once_however_often_it_calls() -> None:
    played = play(fence([A, None, Actor("a", 2), A, B]), ("agent_statuses", [standing("a"), standing("b")]))
    assert sorted(played.parameters("agent_statuses")[0]) == ["a", "b"]


def test_the_statuses_are_either_incomplete_or_ended() -> None:
    assert not INCOMPLETE & set(ENDED)
    assert {"pending", "spawning"} == INCOMPLETE - LIVE
    assert len(INCOMPLETE | set(ENDED)) == 7


def test_without_an_actor_nothing_is_fenced_and_nothing_is_queried() -> None:
    played = play(fence([None, None]))
    assert (played.outcomes, played.asked) == ({}, [])
