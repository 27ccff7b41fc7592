"""People act without an incarnation; an agent of such an id from an older version does not act as one."""

from __future__ import annotations

from agentbus.operations.common import OPERATOR_EPOCH, fenced
from agentbus.operations.protocol import Actor


def test_an_incarnation_with_the_id_of_a_person_is_fenced() -> None:
    assert fenced(Actor("operator:ada", OPERATOR_EPOCH), None) is None
    assert fenced(Actor("operator:ada", 1), None) is not None
    assert fenced(Actor("ada", OPERATOR_EPOCH), None) is not None
