"""Exit codes, and the errors that only commands raise."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from agentbus.errors import (
    AgentBusError,
    InvalidInput,
    NotFound,
    NothingHeld,
    RequestTimedOut,
    UnknownApproval,
    UnknownParticipant,
    UnknownStep,
    UnknownTask,
)
from agentbus.errors.base import shortened

DONE = 0
FAILED = 1
USAGE = 2
TRANSIENT = 3
NOTHING = 4
INTERRUPTED = 130
CLOSED_PIPE = 141


class Usage(InvalidInput):
    """The command line is invalid."""

    code = "usage"
    text = "{reason}"
    fix_text = "{advice}"


class NoIdentity(InvalidInput):
    """The command acts as an agent, and none was named."""

    code = "no_identity"
    text = "no agent specified"
    fix_text = "pass --agent ID, or set AGENTBUS_AGENT to the output of agentbus register{otherwise}"

    def __init__(self, otherwise: str = "") -> None:
        super().__init__(otherwise=otherwise)

    def __reduce__(self) -> tuple[type[NoIdentity], tuple[str]]:
        return NoIdentity, (self.otherwise,)


class InvalidJSON(InvalidInput):
    """The argument is not JSON."""

    code = "invalid_json"
    text = "{what} is not JSON: {reason} at line {line}, column {column}: {near}"
    fix_text = "{advice}"


class NotText(InvalidInput):
    """The argument is not UTF-8."""

    code = "invalid_text"
    text = "{what} is not UTF-8: byte {position} is {byte}"
    fix_text = "convert it: iconv -f LATIN1 -t UTF-8"


class OutputFailed(AgentBusError):
    """The output of the command could not be written. Its changes are committed."""

    code = "output_failed"
    text = "cannot write the output: {reason}"
    fix_text = "the command succeeded, but its output is incomplete: free disk space, and query the result"


class NothingThere(AgentBusError):
    """The requested entry does not exist."""

    code = "nothing_there"
    text = "{what}"
    fix_text = "{advice}"


_NOTHING = (RequestTimedOut, NothingThere, NothingHeld, UnknownTask, UnknownStep, UnknownApproval, UnknownParticipant)
"""Errors whose exit code is that of a query that found nothing."""


def echoed(word: str) -> str:
    """Return a word of the command line as an error shows it: quoted, and not longer than a name can be."""
    return repr(shortened(word))


def missing(error: AgentBusError) -> AgentBusError:
    """Return the error with the exit code of a query that found nothing."""
    error.__dict__["exit_code"] = NOTHING
    return error


@contextmanager
def querying() -> Iterator[None]:
    """Give the errors of a query about something that does not exist the exit code for that."""
    try:
        yield
    except NotFound as error:
        raise missing(error) from None


def from_os_error(error: OSError) -> AgentBusError:
    """Return the named error for an error of the system that no command handled."""
    import errno

    from agentbus.errors import StoreError, TooManyFiles

    reason = error.strerror or str(error)
    if error.errno in {errno.EMFILE, errno.ENFILE}:
        return TooManyFiles(path=str(error.filename or "a file"), reason=reason)
    # Only an error of an open stream has no file name.
    return OutputFailed(reason=reason) if error.filename is None else StoreError(path=error.filename, reason=reason)


def exit_code(error: AgentBusError) -> int:
    """Return the exit code for an error."""
    if "exit_code" in error.__dict__:
        return int(error.__dict__["exit_code"])
    if isinstance(error, _NOTHING):
        return NOTHING
    if isinstance(error, InvalidInput):
        return USAGE
    return TRANSIENT if error.transient else FAILED


def check_text(word: str, what: str) -> None:
    """Reject an argument that is not UTF-8: no database accepts it."""
    try:
        word.encode()
    except UnicodeEncodeError as error:
        byte = f"0x{ord(word[error.start]) & 0xFF:02x}"
        raise NotText(what=what, position=error.start, byte=byte) from None
