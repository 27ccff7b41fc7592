"""Where a message can be sent: an agent's id, a pool, a topic."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Literal

import msgspec

from agentbus.errors import InvalidName
from agentbus.limits import check_name, scope_session

AddressKind = Literal["agent", "pool", "topic"]


class Address(msgspec.Struct, frozen=True):
    """A recipient that is not simply an agent's id.

    >>> str(pool("executors"))
    'pool:executors'
    """

    kind: AddressKind
    name: str

    def __str__(self) -> str:
        return self.name if self.kind == "agent" else f"{self.kind}:{self.name}"


def pool(name: str) -> Address:
    """The pool of this name: any one of its members takes each message.

    >>> pool("executors").kind
    'pool'
    """
    return Address("pool", check_name(name, "pool"))


def topic(name: str) -> Address:
    """The topic of this name: each of its subscribers gets a copy.

    >>> topic("plans").kind
    'topic'
    """
    return Address("topic", check_name(name, "topic"))


def address(recipient: str | Address) -> Address:
    """An address as people write it: an agent's id, ``pool:executors``, ``topic:plans``."""
    if isinstance(recipient, Address):
        return recipient
    return _address(check_name(recipient, "recipient"))


@lru_cache(4096)
def _address(name: str) -> Address:
    if name.startswith("pool:"):
        return pool(name.removeprefix("pool:"))
    if name.startswith("topic:"):
        return topic(name.removeprefix("topic:"))
    return Address("agent", name)


def check_agent(agent: object) -> str:
    """An agent's id. One that reads like a pool or a topic would never get its messages; one that reads like the scope
    of a session would share its state."""
    checked = check_name(agent, "agent")
    if checked.startswith(("pool:", "topic:")):
        raise InvalidName(what="agent", name=agent, rule="pool: and topic: are for addresses of pools and topics")
    if scope_session(checked) is not None:
        raise InvalidName(what="agent", name=agent, rule="session: is for the state of sessions")
    return checked


def plain_names(addresses: Iterable[str | Address], kind: AddressKind) -> tuple[str, ...]:
    """The names of pools, or of topics, given as names or as addresses."""
    if isinstance(addresses, str | Address) or not isinstance(addresses, Iterable):
        raise InvalidName(what=f"{kind}s", name=str(addresses), rule="give a list of names")
    return tuple(
        one.name if isinstance(one, Address) and one.kind == kind else check_name(one, kind) for one in addresses
    )
