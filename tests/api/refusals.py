"""Values that a call must refuse without writing anything."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

import pytest

from agentbus import Agent, Bus
from agentbus.errors import AgentBusError
from tests.api.helpers import refusing

E = TypeVar("E", bound=AgentBusError)


async def refused_each(
    bus: Bus, agent: Agent, expected: type[E], use: Callable[[Any], Awaitable[object]], values: Iterable[Any]
) -> list[E]:
    """Return the errors of a call that must refuse each value; then check once that nothing was written."""
    errors: list[E] = []

    async def try_all() -> None:
        for value in values:
            with pytest.raises(expected) as refused:
                await use(value)
                pytest.fail(f"{value!r} was accepted")
            assert type(refused.value).code != AgentBusError.code, "an error of its own, with a code of its own"
            errors.append(refused.value)
        raise errors[-1]

    async with refusing(bus, agent, expected):
        await try_all()
    return errors
