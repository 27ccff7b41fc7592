"""Addresses of messages: an agent, a pool, a topic or a task."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Literal

import msgspec

from agentbus.core.validation import CLIENTS_SCOPE, check_name, scope_session
from agentbus.errors import InvalidName

AddressKind = Literal["agent", "pool", "topic", "task"]
_TASK = "task:"
OPERATOR = "operator:"
"""The prefix of the names under which people send messages. No agent id starts with it."""


class Address(msgspec.Struct, frozen=True):
    """A recipient: an agent, a pool, a topic or a task.

    >>> str(pool("executors"))
    'pool:executors'
    """

    kind: AddressKind
    name: str

    def __str__(self) -> str:
        return address_text(self.kind, self.name)


def address_text(kind: str, name: str) -> str:
    """Return the text of the address of a mailbox: that of an agent is its id."""
    return name if kind == "agent" else f"{kind}:{name}"


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
    """Parse an address: an agent's id, ``pool:executors``, ``topic:plans``, ``task:feature-1``."""
    if isinstance(recipient, Address):
        return recipient
    return parse_text(recipient) if type(recipient) is str else parse_text(check_name(recipient, "recipient"))


@lru_cache(4096)
def parse_text(text: str) -> Address:
    """Parse an address that is a plain ``str``. An agent sends to few recipients, each of which is parsed once."""
    if text.startswith(_TASK):
        # The id of a task may have the full length of a name.
        return Address("task", check_name(text.removeprefix(_TASK), "task"))
    name = check_name(text, "recipient")
    if name.startswith("pool:"):
        return pool(name.removeprefix("pool:"))
    if name.startswith("topic:"):
        return topic(name.removeprefix("topic:"))
    return Address("agent", name)


def check_agent(agent: object) -> str:
    """Return a valid agent id. ``pool:``, ``topic:``, ``task:``, ``session:`` and ``operator:`` are reserved."""
    checked = check_name(agent, "agent")
    if is_operator(checked):
        rule = "operator: is for people; an agent needs an id without it"
        raise InvalidName(what="agent", name=agent, rule=rule)
    if checked.startswith(("pool:", "topic:")):
        raise InvalidName(what="agent", name=agent, rule="pool: and topic: are for addresses of pools and topics")
    if checked == CLIENTS_SCOPE:
        raise InvalidName(what="agent", name=agent, rule=f"{CLIENTS_SCOPE} is the scope of what the bus stores")
    if checked.startswith(_TASK):
        raise InvalidName(what="agent", name=agent, rule="task: is for addresses of tasks")
    if scope_session(checked) is not None:
        raise InvalidName(what="agent", name=agent, rule="session: is for the state of sessions")
    return checked


@lru_cache(4096)
def is_operator(name: str) -> bool:
    """Return True if a sender, recipient or holder is a person: ``operator:ada``."""
    return name.startswith(OPERATOR)


def operator_name(name: object) -> str:
    """Return the name under which a person sends: ``operator:ada`` for ``ada``.

    >>> operator_name("ada")
    'operator:ada'
    """
    if type(name) is not str or len(name) > _MAX_OPERATOR or is_operator(name):
        rule = f"use 1 to {_MAX_OPERATOR} of A-Z a-z 0-9 . _ : @ / -, without operator: in front"
        raise InvalidName(what="operator", name=name, rule=rule)
    return OPERATOR + check_name(name, "operator")


_MAX_OPERATOR = 128 - len(OPERATOR)


def address_names(addresses: Iterable[str | Address], kind: AddressKind) -> tuple[str, ...]:
    """Return the names of pools or topics given as names or addresses."""
    if isinstance(addresses, str | Address) or not isinstance(addresses, Iterable):
        raise InvalidName(what=f"{kind}s", name=str(addresses), rule="give a list of names")
    return tuple(
        one.name if isinstance(one, Address) and one.kind == kind else check_name(one, kind) for one in addresses
    )


def split_identity(name: str, what: str = "agent") -> tuple[str, int | None]:
    """Split a name and the number after it, as in ``planner-1#3``: the epoch of an agent, the lease of a message."""
    plain, mark, number = name.partition("#")
    if mark and not (number.isascii() and number.isdigit() and len(number) <= 18):
        rule = f"write the {what} alone, or with a number: {plain or what}#3"
        raise InvalidName(what=what, name=name, rule=rule)
    return check_name(plain, what), int(number) if mark else None
