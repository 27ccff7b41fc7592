"""Errors that only the MCP server raises, and the description of an error that a model reads."""

from __future__ import annotations

from typing import Any

from agentbus.errors import AgentBusError, InvalidInput


class NotJoined(InvalidInput):
    """The tool acts as an agent, and the client is none yet."""

    code = "not_joined"
    text = "you are not an agent on this bus yet"
    fix_text = "call join with a name first"


class NoAgentIdentity(InvalidInput):
    """The tool acts as an agent, and the token of the client is none of an agent."""

    code = "no_agent_identity"
    text = "your token belongs to no agent"
    fix_text = "use the token of an agent: agentbus token create agent:ID"


class InvalidArguments(InvalidInput):
    """The arguments of a tool do not fit its schema."""

    code = "invalid_arguments"
    text = "invalid arguments of {tool}: {reason}"
    fix_text = "call it again with arguments that fit its schema"


_FIXES = {
    "agent_exists": "join under another name",
    "agent_fenced": "call join again: you continue as a new incarnation, with your mailbox, state and checkpoints",
    "unknown_agent": "join shows the agents of this bus",
}
"""The fix for a model, where that of an error speaks of the API or the command line."""


def describe(error: AgentBusError) -> dict[str, Any]:
    """Return an error as a model reads it: code, message and fix."""
    from agentbus.api.problems import describe_error

    found = describe_error(error, for_shell=True)
    fix = _FIXES.get(found.code, found.fix)
    return {"code": found.code, "message": found.message, **({} if fix is None else {"fix": fix})}
