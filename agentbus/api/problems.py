"""The description of an error that interfaces to other programs return: code, message and fix."""

from __future__ import annotations

import msgspec

from agentbus.errors import AgentBusError

_MAX_CHARACTERS = 2000


class Problem(msgspec.Struct, frozen=True):
    """An error as a program reads it: a stable code, a message, and the fix or None."""

    code: str
    message: str
    fix: str | None


def describe_error(error: AgentBusError, *, for_shell: bool = False) -> Problem:
    """Return the description of an error, with the fix for the API, or with ``for_shell`` for the command line."""
    fix = error.shell_fix if for_shell else error.fix
    return Problem(error.code, _printable(str(error.args[0])), None if fix is None else _printable(fix))


def _printable(text: str) -> str:
    """Return a text of bounded length that every encoding of Unicode can represent."""
    shown = text if len(text) <= _MAX_CHARACTERS else f"{text[:_MAX_CHARACTERS]}… ({len(text)} characters)"
    return shown.encode(errors="backslashreplace").decode()
