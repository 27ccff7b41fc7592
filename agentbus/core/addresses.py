"""Addresses of messages: an agent, a pool or a topic."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Literal

import msgspec

from agentbus.core.validation import check_name, scope_session
from agentbus.errors import InvalidName

AddressKind = Literal["agent", "pool", "topic"]


class Address(msgspec.Struct, frozen=True):
    """A recipient: an agent, a pool or a topic.

    >>> str(pool("executors"))
    'pool:executors'
    """

    kind: AddressKind
    name: str

    def __str__(self) -> str:
        return self.name if self.kind == "agent" else f"{self.kind}:{self.name}"


def pool(name: str) -> Address:
    """Return the address of a pool: each message goes to one of its members.

    >>> pool("executors").kind
    'pool'
    """
    return Address("pool", check_name(name, "pool"))


def topic(name: str) -> Address:
    """Return the address of a topic: each subscriber gets a copy.

    >>> topic("plans").kind
    'topic'
    """
    return Address("topic", check_name(name, "topic"))


def parse_address(recipient: str | Address) -> Address:
    """Parse an address: an agent's id, ``pool:executors``, ``topic:plans``."""
    if isinstance(recipient, Address):
        return recipient
    return _parse(check_name(recipient, "recipient"))


@lru_cache(4096)
def _parse(name: str) -> Address:
    if name.startswith("pool:"):
        return pool(name.removeprefix("pool:"))
    if name.startswith("topic:"):
        return topic(name.removeprefix("topic:"))
    return Address("agent", name)


def check_agent(agent: object) -> str:
    """Return a valid agent id. The prefixes ``pool:``, ``topic:`` and ``session:`` are reserved."""
    checked = check_name(agent, "agent")
    if checked.startswith(("pool:", "topic:")):
        raise InvalidName(what="agent", name=agent, rule="pool: and topic: are for addresses of pools and topics")
    if scope_session(checked) is not None:
        raise InvalidName(what="agent", name=agent, rule="session: is for the state of sessions")
    return checked


def address_names(addresses: Iterable[str | Address], kind: AddressKind) -> tuple[str, ...]:
    """Return the names of pools or topics given as names or addresses."""
    if isinstance(addresses, str | Address) or not isinstance(addresses, Iterable):
        raise InvalidName(what=f"{kind}s", name=str(addresses), rule="give a list of names")
    return tuple(
        one.name if isinstance(one, Address) and one.kind == kind else check_name(one, kind) for one in addresses
    )
