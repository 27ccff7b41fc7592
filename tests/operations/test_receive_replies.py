"""Replies reach the one that asked, once."""

from __future__ import annotations

from agentbus.errors import AgentFenced
from agentbus.operations.protocol import Actor
from agentbus.operations.receive import ReplyRequest, take_reply
from agentbus.operations.rows import MessageRow
from tests.operations.script import ALIVE, NOW, A, Answer, B, play, row

QUIET: Answer = ("mailbox_horizon", [])


def test_a_reply_is_delivered_by_its_correlation() -> None:
    requests = [ReplyRequest(A, 11, "r-1"), ReplyRequest(B, 21, "r-2")]
    played = play(take_reply.run(requests, NOW), ALIVE, QUIET, ("reply_take", [row(7)]), ("reply_take", []))
    assert played.outcomes == [MessageRow(*row(7)), None]
    assert played.written("reply_take") == [(NOW.wall, 11, "r-1"), (NOW.wall, 21, "r-2")]


def test_a_fenced_agent_takes_no_reply() -> None:
    requests = [ReplyRequest(Actor("a", 9), 11, "r-1"), ReplyRequest(B, 21, "r-2")]
    played = play(take_reply.run(requests, NOW), ALIVE, QUIET, ("reply_take", [row(8)]))
    assert isinstance(played.outcomes[0], AgentFenced)
    assert played.outcomes[1] == MessageRow(*row(8))
    assert played.written("reply_take") == [(NOW.wall, 21, "r-2")]


def test_a_reply_that_came_too_late_expires_before_it_could_be_taken() -> None:
    due: Answer = ("mailbox_horizon", [(11, None, None, NOW.wall - 1)])
    played = play(take_reply.run([ReplyRequest(A, 11, "r-1")], NOW), ALIVE, due, ("reply_take", []))
    assert played.wrote == ["message_expire", "reply_take"]
