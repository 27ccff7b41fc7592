"""Where a message can be sent: an agent's id, a pool, a topic."""

from __future__ import annotations

from typing import Literal

import msgspec

from agentbus.limits import check_name

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
    return recipient if isinstance(recipient, Address) else Address("agent", check_name(recipient, "recipient"))
