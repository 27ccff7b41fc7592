"""Who decides. Agents do not: a decision has the name of a person.

This keeps an agent from approving by accident, because its shell is that of a person. It is no protection against one
that means to: whoever may run this command may give any name.
"""

from __future__ import annotations

import os
import sys

from agentbus.errors import InvalidInput
from agentbus.interfaces.cli.command import Call
from agentbus.interfaces.cli.failures import check_text

VARIABLE = "AGENTBUS_OPERATOR"
_LONGEST = 200


class AgentsCannotDecide(InvalidInput):
    """An agent calls, and only people decide."""

    code = "not_an_operator"
    text = "{agent} is an agent: agents cannot {action}"
    fix_text = "leave it to a person, who gives a name: --by NAME"


class WhoDecides(InvalidInput):
    """Nobody is named, and nobody sits at a terminal."""

    code = "no_operator"
    text = "who decides? nobody sits at a terminal here"
    fix_text = "name the person: --by NAME, or set AGENTBUS_OPERATOR"


def decider(call: Call, action: str) -> str:
    """The person who decides: the one that is named, or whose terminal this is."""
    if call.arguments.by is not None:
        name: str = call.arguments.by
        return name
    agent = call.settings.text("agent")
    if agent is not None:
        raise AgentsCannotDecide(agent=agent.partition("#")[0], action=action)
    named = _named()
    if named is None and not sys.stdin.isatty():
        raise WhoDecides
    return named or account()


def caller(call: Call) -> str:
    """Whoever calls, for the audit trail: the one that is named, an agent, or a person."""
    if call.arguments.by is not None:
        name: str = call.arguments.by
        return name
    agent = call.settings.text("agent")
    return _named() or account() if agent is None else agent.partition("#")[0]


def account() -> str:
    """The person whose account this is: ``ada@laptop``."""
    import pwd

    try:
        user = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        user = f"user-{os.geteuid()}"
    return f"{user}@{os.uname().nodename}"[:_LONGEST]


def _named() -> str | None:
    name = os.environ.get(VARIABLE) or None
    if name is not None:
        check_text(name, VARIABLE)
    return name
