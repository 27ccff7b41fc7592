"""The person who calls: the name of one who decides, controls tasks or sends messages.

A name keeps an agent, whose shell is that of a person, from acting as a person by accident. It does not protect against
malice: a caller can pass any name.
"""

from __future__ import annotations

import os
import sys

from agentbus.cli.context import Call
from agentbus.cli.errors import NoIdentity, check_text
from agentbus.errors import InvalidInput
from agentbus.sync.agent import BlockingAgent

VARIABLE = "AGENTBUS_OPERATOR"
_MAX_NAME = 200


class AgentsCannotDecide(InvalidInput):
    """The caller is an agent, and only a person can decide."""

    code = "not_an_operator"
    text = "{agent} is an agent: agents cannot {action}"
    fix_text = "ask a person to decide; they run the command in their own shell, without AGENTBUS_AGENT and --agent"


class AgentsSendAsThemselves(InvalidInput):
    """The caller is an agent, and names another sender."""

    code = "not_an_operator"
    text = "{agent} is an agent: it cannot {action} as {name!r}"
    fix_text = "leave out --by; a person unsets AGENTBUS_AGENT, and passes no --agent"


class NoOperator(InvalidInput):
    """No operator is named, and there is no terminal to derive one from."""

    code = "no_operator"
    text = "operator name required in non-interactive mode"
    fix_text = "pass --by NAME, or set AGENTBUS_OPERATOR"


def require_operator(call: Call, action: str) -> str:
    """Return the name of the person who decides: the one given, or the owner of the terminal. An agent cannot decide in
    the name of a person."""
    agent = call.settings.text("agent")
    if agent is not None:
        raise AgentsCannotDecide(agent=agent.partition("#")[0], action=action)
    named: str | None = call.arguments.by
    if named is not None:
        return named
    named = _named()
    if named is None and not sys.stdin.isatty():
        raise NoOperator
    return named or account()


def caller(call: Call) -> str:
    """Return the caller for the audit log: the name given, an agent, or a person."""
    if call.arguments.by is not None:
        name: str = call.arguments.by
        return name
    agent = call.settings.text("agent")
    return _named() or account() if agent is None else agent.partition("#")[0]


def sender(call: Call) -> str:
    """Return the sender of a signal, as ``caller`` does. An agent cannot name another."""
    agent = call.settings.text("agent")
    if agent is not None and call.arguments.by is not None:
        raise AgentsSendAsThemselves(agent=agent.partition("#")[0], name=call.arguments.by, action="send a signal")
    return caller(call)


def correspondent(call: Call) -> BlockingAgent:
    """Return the person that --by or AGENTBUS_OPERATOR names. An agent cannot act as one."""
    agent = call.settings.text("agent")
    if agent is not None:
        raise AgentsSendAsThemselves(agent=agent.partition("#")[0], name=call.arguments.by, action=call.command)
    name = _named() if call.arguments.by is None else call.arguments.by
    if name is None:
        raise NoIdentity(f"; a person passes --by NAME, or sets {VARIABLE}")
    return call.bus.operator(name)


def account() -> str:
    """Return the person whose account this is: ``ada@laptop``."""
    import pwd

    try:
        user = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        user = f"user-{os.geteuid()}"
    return f"{user}@{os.uname().nodename}"[:_MAX_NAME]


def _named() -> str | None:
    name = os.environ.get(VARIABLE) or None
    if name is not None:
        check_text(name, VARIABLE)
    return name
