"""Tokens of HTTP clients: stored as hashes, with a role, an operator and an end."""

from __future__ import annotations

import pytest

from agentbus import Bus
from agentbus.api.tokens import hash_secret
from agentbus.errors import AgentBusError, InvalidName, OutOfRange, UnknownToken
from tests.support.clock import FakeClock


async def test_a_token_is_found_by_its_hash_until_it_is_revoked(bus: Bus) -> None:
    made = await bus.tokens.create("agent:planner-1", operator="ada", by="grace")
    assert await bus.tokens.find(hash_secret(made.secret)) == made.token
    assert list(await bus.tokens.list()) == [made.token]
    assert await bus.tokens.find(hash_secret("another")) is None
    assert await bus.tokens.revoke(made.token.id, by="grace") == made.token
    assert await bus.tokens.find(hash_secret(made.secret)) is None
    with pytest.raises(UnknownToken):
        await bus.tokens.revoke(made.token.id)
    events = [event async for event in bus.events(subject="bus:tokens")]
    facts = {"token": made.token.id, "role": "agent:planner-1", "operator": "ada"}
    assert [(one.kind, one.actor, one.facts) for one in events] == [
        ("token_created", "grace", facts), ("token_revoked", "grace", facts),
    ]  # fmt: skip


async def test_a_token_ends_after_its_time(bus: Bus, clock: FakeClock) -> None:
    made = await bus.tokens.create("read", operator="ada", expires=60)
    clock.advance(59)
    assert await bus.tokens.find(hash_secret(made.secret)) is not None
    clock.advance(2)
    assert await bus.tokens.find(hash_secret(made.secret)) is None


@pytest.mark.one_engine
@pytest.mark.parametrize(
    ("role", "operator", "error"),
    [
        ("admin", "ada", OutOfRange), ("agent:", "ada", InvalidName), ("agent:a b", "ada", InvalidName),
        ("agent:pool:x", "ada", InvalidName), ("read", "", OutOfRange), (7, "ada", OutOfRange),
    ],
)  # fmt: skip
async def test_a_role_of_another_form_is_refused(
    bus: Bus, role: str, operator: str, error: type[AgentBusError]
) -> None:
    with pytest.raises(error):
        await bus.tokens.create(role, operator=operator)
    assert list(await bus.tokens.list()) == []
