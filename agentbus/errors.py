"""Everything that can go wrong, as named errors with the facts in them.

    AgentBusError
    ├── InvalidInput (ValueError)     the call itself is wrong; nothing was written
    │   ├── InvalidName               outside [A-Za-z0-9._:@/-]{1,128}
    │   ├── InvalidPayload            not JSON as the bus understands it: NaN, lone surrogates, too deep …
    │   ├── PayloadTooLarge
    │   ├── OutOfRange                priority, progress, ttl, delay …
    │   ├── UnknownType               an agent or message type that is not in the vocabulary
    │   └── InvalidUrl                connect() was given something that is not a bus
    ├── NotFound (LookupError)        it names something that is not there
    │   ├── UnknownRecipient
    │   ├── UnknownAgent
    │   ├── UnknownMessage
    │   └── UnknownSession
    ├── Conflict                      right call, wrong moment
    │   ├── AgentExists               the id is alive elsewhere
    │   ├── AgentEnded                the recipient completed or stopped
    │   ├── AgentFenced               this agent was taken over, failed or ended
    │   ├── LeaseLost                 the message is no longer ours
    │   ├── MessageIdConflict         the same message_id with other content
    │   └── WrongState                this transition is not allowed
    ├── RequestFailed                 request() got no answer
    │   ├── RequestTimedOut (TimeoutError)
    │   └── RequestDied               the request became a dead letter
    ├── Misuse (RuntimeError)         the bus object was used in a way that cannot work
    │   ├── BusClosed
    │   ├── BusForked
    │   └── WrongLoop
    └── StoreError                    the database or its surroundings
        ├── NotADatabase
        │   └── DamagedPayload        the stored bytes do not match their checksum
        ├── SchemaTooNew
        ├── SQLiteTooOld
        ├── UnsupportedFileSystem
        ├── NotWritable
        ├── DatabaseGone              unlinked or replaced while open
        ├── LockTimeout               transient: another process holds the write lock
        ├── DiskFull
        ├── FormatRefused             a CHECK constraint or a trigger refused the row
        └── OutcomeUnknown            an I/O error at commit: call again with the same message_id

Each class has a stable ``code`` (used by the command line and by wire formats), each error its ``facts`` and,
where there is one, a ``fix``. Facts can be read as attributes:

    >>> error = LeaseLost(message_id="m-7", holder="executor-2")
    >>> error.code, error.holder
    ('lease_lost', 'executor-2')
"""

from __future__ import annotations

from typing import Any, ClassVar


class AgentBusError(Exception):
    """The root of all errors of agentbus.

    ``text`` and ``fix`` are templates that the facts are put into.
    """

    code: ClassVar[str] = "error"
    text: ClassVar[str] = "{reason}"
    fix_text: ClassVar[str | None] = None
    transient: ClassVar[bool] = False

    def __init__(self, **facts: Any) -> None:
        self.facts = facts
        super().__init__(self.text.format_map(_Facts(facts)))

    @property
    def fix(self) -> str | None:
        """What to do about it, where there is something.

        >>> AgentExists(agent="a", status="running", pid=41).fix
        'end it first, choose another id, or pass takeover=True'
        """
        return None if self.fix_text is None else self.fix_text.format_map(_Facts(self.facts))

    def __str__(self) -> str:
        message = str(self.args[0])
        return f"{message} ({self.fix})" if self.fix else message

    def __getattr__(self, name: str) -> Any:
        facts = self.__dict__.get("facts", {})
        if name in facts:
            return facts[name]
        raise AttributeError(name)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.facts)


class _Facts(dict[str, Any]):
    def __missing__(self, key: str) -> str:
        if key == "hint":
            near = self.get("near")
            return f"; did you mean {' or '.join(near)}?" if near else ""
        return "?"


def _rebuild(kind: type[AgentBusError], facts: dict[str, Any]) -> AgentBusError:
    return kind(**facts)


class InvalidInput(AgentBusError, ValueError):
    """The call itself is wrong; nothing was written."""

    code = "invalid_input"


class InvalidName(InvalidInput):
    """A name with characters or a length that the bus does not take."""

    code = "invalid_name"
    text = "{what} {name!r} is not a name"
    fix_text = "{rule}"

    def __init__(self, **facts: Any) -> None:
        super().__init__(**{"rule": "use 1 to 128 of A-Z a-z 0-9 . _ : @ / -", **facts})


class InvalidPayload(InvalidInput):
    """A payload that is not JSON as the bus understands it."""

    code = "invalid_payload"
    text = "the payload cannot be sent as JSON: {reason}"


class PayloadTooLarge(InvalidInput):
    """A payload over the limit of the bus."""

    code = "payload_too_large"
    text = "the payload has {size} bytes, the limit is {limit}"
    fix_text = "send a reference to a file instead, or raise max_payload in connect()"


class OutOfRange(InvalidInput):
    """A number outside its range."""

    code = "out_of_range"
    text = "{what} is {value!r}, it must be {allowed}"


class UnknownType(InvalidInput):
    """An agent or message type that is not in the vocabulary."""

    code = "unknown_type"
    text = "{kind} type {name!r} is not in the vocabulary{hint}"
    fix_text = "use a known type, or add this one with bus.define({name!r}, kind={kind!r})"


class InvalidUrl(InvalidInput):
    """connect() was given something that does not name a bus."""

    code = "invalid_url"
    text = "{url!r} does not name a bus: {reason}"
    fix_text = "give the path of a directory, or nothing to use .agentbus/"


class NotFound(AgentBusError, LookupError):
    """Something that is not there."""

    code = "not_found"


class UnknownRecipient(NotFound):
    """No agent, pool or topic has this name."""

    code = "unknown_recipient"
    text = "there is no {kind} {name!r}{hint}"
    fix_text = "register it first, or announce it: bus.expect() for an agent, bus.declare() for a pool or topic"


class UnknownAgent(NotFound):
    """No agent has this id."""

    code = "unknown_agent"
    text = "there is no agent {agent!r}"


class UnknownMessage(NotFound):
    """No message has this id."""

    code = "unknown_message"
    text = "there is no message {message_id!r}"


class UnknownSession(NotFound):
    """No session has this id."""

    code = "unknown_session"
    text = "there is no session {session!r}"


class Conflict(AgentBusError):
    """The right call at the wrong moment."""

    code = "conflict"


class AgentExists(Conflict):
    """The id is alive elsewhere."""

    code = "agent_exists"
    text = "agent {agent!r} is {status} in process {pid}"
    fix_text = "end it first, choose another id, or pass takeover=True"


class AgentEnded(Conflict):
    """The recipient completed or stopped; nobody would read the message."""

    code = "agent_ended"
    text = "agent {agent!r} has {status}"
    fix_text = "send to another agent or to a pool, or announce with bus.expect() that it comes back"


class AgentFenced(Conflict):
    """This agent was taken over, declared failed, or ended: nothing it does counts any more."""

    code = "agent_fenced"
    text = "agent {agent!r} (epoch {epoch}) may not act any more: {reason}"
    fix_text = "register again to go on with its state and mailbox"


class LeaseLost(Conflict):
    """The message is no longer ours: its lease ran out or was given up."""

    code = "lease_lost"
    text = "the lease on message {message_id} is lost; it is now {status}, held by {holder}"
    fix_text = "drop the result: the message is someone else's, or done"


class MessageIdConflict(Conflict):
    """The same message_id was used before, with other content."""

    code = "message_id_conflict"
    text = "message_id {message_id!r} was used before with another {differs}"
    fix_text = "a message_id names one message: use a new one"


class WrongState(Conflict):
    """This transition is not allowed from the present state."""

    code = "wrong_state"
    text = "{what} {name!r} is {status}: cannot {action}"


class RequestFailed(AgentBusError):
    """request() got no answer."""

    code = "request_failed"


class RequestTimedOut(RequestFailed, TimeoutError):
    """No reply came in time. The request may still be answered; nobody will read that."""

    code = "request_timed_out"
    text = "{recipient} did not reply to {type!r} within {timeout} s"


class RequestDied(RequestFailed):
    """The request became a dead letter."""

    code = "request_died"
    text = "the request to {recipient} became a dead letter: {reason}"


class Misuse(AgentBusError, RuntimeError):
    """The bus object was used in a way that cannot work."""

    code = "misuse"


class BusClosed(Misuse):
    """The bus is closed."""

    code = "bus_closed"
    text = "the bus is closed"
    fix_text = "use it inside `async with agentbus.connect()`"


class BusForked(Misuse):
    """The bus was opened before a fork; the child cannot use it."""

    code = "bus_forked"
    text = "this bus was open in process {parent} when it forked"
    fix_text = "fork before the bus is opened, or start the process with spawn"


class WrongLoop(Misuse):
    """The bus belongs to another event loop."""

    code = "wrong_loop"
    text = "this bus belongs to another event loop"
    fix_text = "open one bus for each event loop"


class StoreError(AgentBusError):
    """The database or its surroundings."""

    code = "store_error"
    text = "{path}: {reason}"


class NotADatabase(StoreError):
    """The file is not a database, or it is damaged."""

    code = "not_a_database"
    text = "{path} is not a usable database: {reason}"
    fix_text = "move it away, or restore a backup"


class DamagedPayload(NotADatabase):
    """The stored bytes of one payload do not match their checksum."""

    code = "damaged_payload"
    text = "the stored bytes of {what} do not match their checksum"
    fix_text = "check the disk, and restore what is missing from a backup"


class SchemaTooNew(StoreError):
    """The bus was made by a newer agentbus."""

    code = "schema_too_new"
    text = "{path} has schema {found}, this agentbus knows schemas up to {known}"
    fix_text = "upgrade agentbus"


class SQLiteTooOld(StoreError):
    """The SQLite library that Python was built with is too old."""

    code = "sqlite_too_old"
    text = "SQLite {found} is too old, {needed} is needed"
    fix_text = "use a Python built with a newer SQLite"


class UnsupportedFileSystem(StoreError):
    """SQLite's shared memory does not work on this file system."""

    code = "unsupported_file_system"
    text = "{path} is on {filesystem}, where several processes cannot share a database"
    fix_text = "put the bus on a local disk"


class NotWritable(StoreError):
    """The directory or the database cannot be written."""

    code = "not_writable"
    text = "{path} cannot be written: {reason}"


class DatabaseGone(StoreError):
    """The database file was unlinked or replaced while it was open."""

    code = "database_gone"
    text = "{path} was removed or replaced while the bus was open"
    fix_text = "close the bus and open it again; what was written since is in the old file"


class LockTimeout(StoreError):
    """Another process held the write lock for too long. Nothing was written."""

    code = "lock_timeout"
    text = "{path}: the write lock was not to be had within {waited} s, process {pid} holds it"
    fix_text = "try again; if process {pid} hangs, end it"
    transient = True


class DiskFull(StoreError):
    """There is no room on the disk. Nothing was written."""

    code = "disk_full"
    text = "{path}: the disk is full"
    fix_text = "make room and try again"
    transient = True


class FormatRefused(StoreError):
    """A constraint of the tables refused the row. Nothing was written."""

    code = "format_refused"
    text = "the database refused the row: {reason}"


class OutcomeUnknown(StoreError):
    """An I/O error at commit: it may or may not be written."""

    code = "outcome_unknown"
    text = "{path}: {reason}; the outcome is unknown"
    fix_text = "call again with the same message_id"
    transient = True
