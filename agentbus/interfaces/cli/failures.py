"""From errors to exit codes and to what people and programs are told."""

from __future__ import annotations

from typing import Any

from agentbus.errors import AgentBusError, InvalidInput, RequestTimedOut

DONE = 0
FAILED = 1
USAGE = 2
TRANSIENT = 3
NOTHING = 4
INTERRUPTED = 130
CLOSED_PIPE = 141
_LONGEST = 2000
"""Characters of a message that are shown."""


class Usage(InvalidInput):
    """The command line itself is wrong."""

    code = "usage"
    text = "{reason}"
    fix_text = "{advice}"


class NoIdentity(InvalidInput):
    """Nobody said who is calling."""

    code = "no_identity"
    text = "who is calling?"
    fix_text = "say it with --agent ID, or set AGENTBUS_AGENT to what `agentbus register` printed"


class InvalidJSON(InvalidInput):
    """What was given is not JSON."""

    code = "invalid_json"
    text = "{what} is not JSON: {reason} at line {line}, column {column}: {near}"
    fix_text = "{advice}"


class NotText(InvalidInput):
    """What was given is not UTF-8."""

    code = "invalid_text"
    text = "{what} is not UTF-8: byte {position} is {byte}"
    fix_text = "convert it: iconv -f LATIN1 -t UTF-8"


class OutputFailed(AgentBusError):
    """The output of the command could not be written. Its changes are committed."""

    code = "output_failed"
    text = "the output cannot be written: {reason}"
    fix_text = "what was asked for is done, but not all of it was printed: make room, and look at it again"


class NothingThere(AgentBusError):
    """What was asked for is not there."""

    code = "nothing_there"
    text = "{what}"
    fix_text = "{advice}"


_FIXES = {
    "unknown_agent": "`agentbus agents list` shows those there are; `agentbus register` makes one",
    "unknown_recipient": "`agentbus agents list` shows the agents; register it, or name a pool or topic that exists",
    "unknown_message": "`agentbus messages list` shows those there are; what is done may have been purged",
    "unknown_session": "`agentbus session list` shows those there are; `agentbus session start` begins one",
    "unknown_document": "`agentbus document save` makes it",
    "unknown_checkpoint": "`agentbus checkpoint list` shows those there are; older ones may have been pruned",
    "unknown_task": "`agentbus task list` shows those there are; what ended long ago may have been archived",
    "unknown_step": "`agentbus task show {task}` shows those there are",
    "unknown_approval": "`agentbus task show {task}` shows what it has asked for",
    "not_an_operator": "let a person decide, and give that person's name: --by NAME",
    "unknown_type": "use a known type (`agentbus types list`), or add it: agentbus types add {name} --kind {kind}",
    "unknown_file": "write it first, or say with --root where it is",
    "agent_exists": "end it first (`agentbus stop --agent {agent}`), choose another id, or pass --takeover",
    "agent_ended": "send to another agent or to a pool; registering it again lets it come back",
    "agent_fenced": "`agentbus register {agent} --type …` begins a new life with its state and mailbox",
    "session_exists": "register agents with --session {session} to take part; or choose another id",
    "session_lost": "leave its end to others",
    "plan_outdated": "look again what can be done: agentbus session recover {session}",
    "payload_too_large": "send a reference to a file instead, or raise max_payload in agentbus.toml",
    "snapshot_too_large": "keep large things in files, or raise max_snapshot in agentbus.toml",
    "foreign_checkpoint": "`agentbus checkpoint show {id}` reads it",
    "type_changing": "let one program define it; `agentbus events --kind type_changed` shows who does",
    "session_id_taken": "register agents with --session {session} to take part in it; or choose another id",
    "unknown_participant": "`agentbus session participants {session}` shows who takes part",
    "built_in_type": "choose another name",
    "not_a_database": "`agentbus doctor` says more, and names the newest backup for `agentbus backup restore`",
    "queue_full": "wait until some are taken, or allow more: agentbus quotas --depth N",
    "sending_too_fast": "wait {wait} s, or allow more: agentbus quotas --rate N",
    "bus_full": "let old things go (agentbus cleanup --keep-days N), or allow more: agentbus quotas --size BYTES",
    "outcome_unknown": "call again; a send with the same --id is sent only once",
    "bus_closed": "call again",
    "invalid_schema": "`agentbus types add --help` says what a schema may have",
}


def missing(error: AgentBusError) -> AgentBusError:
    """The error of one who only looked: what was asked for is not there, and that is all."""
    error.__dict__["exit_code"] = NOTHING
    return error


def named(error: OSError) -> AgentBusError:
    """An error of the system that no command expected, in the bus's words."""
    import errno

    from agentbus.errors import StoreError, TooManyFiles

    reason = error.strerror or str(error)
    if error.errno in {errno.EMFILE, errno.ENFILE}:
        return TooManyFiles(path=str(error.filename or "a file"), reason=reason)
    # Only a stream that is open already has no name.
    return OutputFailed(reason=reason) if error.filename is None else StoreError(path=error.filename, reason=reason)


def exit_code(error: AgentBusError) -> int:
    """What a shell is told."""
    if "exit_code" in error.__dict__:
        return int(error.__dict__["exit_code"])
    if isinstance(error, RequestTimedOut | NothingThere):
        return NOTHING
    if isinstance(error, InvalidInput):
        return USAGE
    return TRANSIENT if error.transient else FAILED


def described(error: AgentBusError) -> dict[str, Any]:
    """What programs are told: a stable code, a message, and what to do, in the words of the command line."""
    advice = fix(error)
    return {"code": error.code, "message": _told(str(error.args[0])), "fix": advice and _told(advice)}


def _told(text: str) -> str:
    """A text that can be printed whatever was given, and is not longer than anybody reads."""
    shown = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}… ({len(text)} characters)"
    return shown.encode(errors="backslashreplace").decode()


def fix(error: AgentBusError) -> str | None:
    """What to do, in the words of the command line."""
    if error.code == "no_bus":
        return _make_one(str(error.facts.get("path", "")))
    template = _FIXES.get(error.code)
    if template is None:
        return typed(error.fix) if error.fix else None
    return template.format_map(_Facts(error.facts))


def typed(text: str) -> str:
    """Advice that is meant for programs, in words that can be typed.

    >>> typed("there is none; await bus.backup() makes one")
    'there is none; agentbus backup makes one'
    """
    import re

    for pattern, words in _TYPED:
        text = re.sub(pattern, words, text)
    return text


_TYPED = (
    (r"(await )?bus\.backup\(\)", "agentbus backup"),
    (r"agentbus\.restore_backup\(('[^']*'|\"[^\"]*\"), ('[^']*'|\"[^\"]*\")\)", r"agentbus backup restore \1 --url \2"),
    (r"agentbus\.restore_backup\(…\)", "agentbus backup restore …"),
    (r"(await )?bus\.import_archive\((.*?)\)", r"\2 (import_archive of the Python API reads it)"),
    (r"agentbus\.connect\(…\)", "agentbus init"),
    (r"(await )?agentbus\.doctor\((.*?)\)", r"agentbus doctor --url \2"),
    (r"bus\.messages\.dead\(\)", "agentbus messages dead"),
    (r"abandon\(reason\)", "--abandon REASON"),
    (r"session\.checkpoint_all\(\)", "agentbus checkpoint create --all"),
    (r"session\.composites\(\)", "agentbus checkpoint list"),
    (r"\broot=", "--root"),
    (r"bus\.tasks\.(\w+?)_?\('([^']*)', '([^']*)'\)", r"agentbus task \1 \2 \3"),
    (r"bus\.tasks\.(\w+?)_?\('([^']*)'\)", r"agentbus task \1 \2"),
    (r"\b(redo|restart|resume|settle|stop|halt)\(\)", r"`agentbus task \1`"),
)
"""What the texts of the bus say to programs, and what does the same on the command line."""


def _make_one(path: str) -> str:
    import os
    from shlex import quote

    if "://" in path:
        return "make one there: agentbus init, with the same --url or AGENTBUS_URL"
    below = os.path.join(path, ".agentbus")
    if os.path.isdir(below):
        return f"there is one in {quote(below)}"
    try:
        here = os.path.dirname(path) == os.getcwd()
    except OSError:
        here = False
    return "make one here: agentbus init" if here else f"make one there: agentbus init --url {quote(path)}"


class _Facts(dict[str, Any]):
    def __missing__(self, name: str) -> str:
        return "…"


def check_text(word: str, what: str) -> None:
    """Bytes that are no UTF-8 arrive as something that no database takes."""
    try:
        word.encode()
    except UnicodeEncodeError as error:
        byte = f"0x{ord(word[error.start]) & 0xFF:02x}"
        raise NotText(what=what, position=error.start, byte=byte) from None
