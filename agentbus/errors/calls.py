"""Errors of a call: its arguments, what it names, the moment it came at."""

from __future__ import annotations

from typing import Any

from agentbus.errors.base import AgentBusError


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
    """A payload that is not JSON as the bus understands it, or not what the schema of its type asks for."""

    code = "invalid_payload"
    text = "the bus does not take this value: {reason}"
    fix_text = "{rule}"

    def __init__(self, **facts: Any) -> None:
        rule = "give what JSON has: None, True, False, finite numbers, texts, lists, and dicts with texts as keys"
        super().__init__(**{"rule": rule, **facts})


class PayloadTooLarge(InvalidInput):
    """A payload over the limit of the bus."""

    code = "payload_too_large"
    text = "the payload has {size} bytes, the limit is {limit}"
    fix_text = "send a reference to a file instead, or raise max_payload in connect()"


class PayloadMismatch(InvalidInput):
    """A value that was stored does not fit the type it is read as."""

    code = "payload_mismatch"
    text = "{what} does not fit {type}: {reason}"
    fix_text = "decode it as plain JSON, or give the type a form that still reads it"


class InvalidSchema(InvalidInput):
    """A JSON Schema that is wrong, or has something that the bus does not check."""

    code = "invalid_schema"
    text = "the schema of {type!r} cannot be used: at {path}, {reason}"
    fix_text = "agentbus.schema lists what a schema may have"


class BuiltInType(InvalidInput):
    """A type of the built-in vocabulary stays as it is: it takes any payload, and has its own description."""

    code = "built_in_type"
    text = "{kind} type {name!r} is built in: it cannot be given another description or a schema"
    fix_text = "choose another name; a Struct takes its name from its tag: class Plan(Struct, tag='my_plan')"


class SnapshotTooLarge(InvalidInput):
    """A checkpoint or a document over the limit of the bus."""

    code = "snapshot_too_large"
    text = "the snapshot has {size} bytes, the limit is {limit}"
    fix_text = "keep large things in files, or raise max_snapshot in connect()"


class UnsafePath(InvalidInput):
    """A path that does not name a plain file below the root."""

    code = "unsafe_path"
    text = "the path {path!r} is refused: {reason}"
    fix_text = "name plain files by their paths relative to the root, without '..' and symbolic links"


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
    fix_text = "give the path of a directory, postgresql://user@host/database, or nothing to use .agentbus/"


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
    fix_text = "bus.agents.list() shows those there are; bus.agent(…) registers one"


class UnknownMessage(NotFound):
    """No message has this id."""

    code = "unknown_message"
    text = "there is no message {message_id!r}"
    fix_text = "bus.messages.list() shows those there are; what is done may have been purged"


class UnknownSession(NotFound):
    """No session has this id."""

    code = "unknown_session"
    text = "there is no session {session!r}"
    fix_text = "bus.sessions.list() shows those there are; bus.session(…) begins one"


class UnknownParticipant(NotFound):
    """Nobody of this name takes part."""

    code = "unknown_participant"
    text = "{member!r} is not one of the {meeting} of session {session!r}"
    fix_text = "add it first: session.participants([…, {member!r}], name={meeting!r})"


class UnknownDocument(NotFound):
    """The session has no document of this name."""

    code = "unknown_document"
    text = "session {session!r} has no document {name!r}"
    fix_text = "save it first"


class UnknownCheckpoint(NotFound):
    """No checkpoint has this id."""

    code = "unknown_checkpoint"
    text = "there is no checkpoint {id}"
    fix_text = "bus.checkpoints.list() shows those there are; older ones may have been pruned"


class UnknownFile(NotFound):
    """A file that a checkpoint shall refer to is not there."""

    code = "unknown_file"
    text = "there is no file {path!r} in {root}"
    fix_text = "write it first, or say with root= where it is"


class NoSuchFile(NotFound):
    """A backup or an archive is not where it should be."""

    code = "no_such_file"
    text = "{path}: {reason}"
    fix_text = "give the path of a file: a bus has its backups in backups/, its archives in archive/"


class Conflict(AgentBusError):
    """The right call at the wrong moment."""

    code = "conflict"


class AgentExists(Conflict):
    """The id is alive elsewhere."""

    code = "agent_exists"
    text = "agent {agent!r} is {status}{where}"
    fix_text = "end it first, choose another id, or pass takeover=True"

    def __init__(self, **facts: Any) -> None:
        pid = facts.get("pid")
        super().__init__(**{"where": "" if pid is None else f" in process {pid}", **facts})


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


class AlreadySettled(LeaseLost):
    """It was settled before, by the one who tries it again."""

    code = "already_settled"
    text = "message {message_id} was {what} before"
    fix_text = "{advice}"


class MessageIdConflict(Conflict):
    """The same message_id was used before, with other content."""

    code = "message_id_conflict"
    text = "message_id {message_id!r} was used before with another {differs}"
    fix_text = "a message_id names one message: use a new one"


class SessionExists(Conflict):
    """The process that owns this session is alive."""

    code = "session_exists"
    text = "session {session!r} is {status} in process {pid}"
    fix_text = "bus.sessions.open({session!r}) joins it; or choose another id"


class SessionIdTaken(Conflict):
    """A new session cannot have this id: there is one."""

    code = "session_id_taken"
    text = "there is a session {session!r} already: {operation}, {status}"
    fix_text = "go on with it by bus.session({operation!r}, id={session!r}), or give the new one another id"


class SessionDiffers(Conflict):
    """The session that is there under this id is another one."""

    code = "session_differs"
    text = "session {session!r} has the {differs} {found!r}, not {given!r}"
    fix_text = "name the same {differs} to go on with it, or choose another id"


class SessionLost(Conflict):
    """The session is no longer ours: it counted as interrupted, and another process went on with it."""

    code = "session_lost"
    text = "session {session!r} is no longer ours, {holder} owns it now"
    fix_text = "leave its end to others; bus.sessions.open({session!r}) takes part in it"


class VersionConflict(Conflict):
    """A state entry was changed, made or deleted by somebody else meanwhile."""

    code = "version_conflict"
    text = "state {key!r} of {scope} has version {found}, not {expected}"
    fix_text = "read it again and decide anew; version 0 means that it is not there"


class WrongState(Conflict):
    """This transition is not allowed from the present state."""

    code = "wrong_state"
    text = "{what} {name!r} is {status}: cannot {action}"
    fix_text = "{advice}"


class SessionEnded(WrongState):
    """The session has completed or failed; nothing of it changes any more."""

    code = "session_ended"
    fix_text = "begin another session, under another id"


class TypeChanging(Conflict):
    """The schema of a message type was changed again and again while a payload was checked; nothing was sent."""

    code = "type_changing"
    text = "message type {type!r} had another schema each of the {rounds} times that this was checked and sent"
    fix_text = "let one program define it; bus.events(kind='type_changed') shows who does"


class ArchiveDiffers(Conflict):
    """What shall be imported has an id under which the bus has something else."""

    code = "archive_differs"
    text = "there is another {what} {id} on this bus"
    fix_text = "import it into an empty bus"


class Outdated(Conflict):
    """What shall be imported is older than what the bus has, and would do harm."""

    code = "outdated"
    text = "{what} {id} is older than what this bus has: {reason}"


class ForeignCheckpoint(Conflict):
    """The checkpoint is somebody else's."""

    code = "foreign_checkpoint"
    text = "checkpoint {id} belongs to {owner_kind} {owner!r}, not to {wanted}"
    fix_text = "read it with bus.checkpoints.get({id})"


class PlanOutdated(Conflict):
    """The session changed since its recovery was planned."""

    code = "plan_outdated"
    text = "session {session!r} has changed since this plan was made: {reason}"
    fix_text = "look again what can be done: bus.recovery.plan({session!r})"


class UnreadableFile(Conflict):
    """A file cannot be read now, or changed while it was."""

    code = "unreadable_file"
    text = "{path!r} in {root} could not be read: {reason}"
    fix_text = "{rule}"

    def __init__(self, **facts: Any) -> None:
        super().__init__(**{"rule": "let this process read it, at a moment when nobody writes to it", **facts})


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
    fix_text = (
        "pass its URL to the child and connect() there: start the child before the bus is opened, or with the start "
        "method spawn or forkserver"
    )


class WrongLoop(Misuse):
    """The bus belongs to another event loop."""

    code = "wrong_loop"
    text = "this bus belongs to another event loop"
    fix_text = "open one bus for each event loop, and close it in the loop that opened it"


class NoEventLoop(Misuse):
    """No asyncio event loop runs here: another library such as trio does, or none."""

    code = "no_event_loop"
    text = "agentbus runs on asyncio, and {found}"
    fix_text = "run it with asyncio.run(main()) or anyio.run(main, backend='asyncio')"

    def __init__(self, **facts: Any) -> None:
        library = facts.get("library")
        found = "no event loop runs here" if library is None else f"the event loop that runs here is that of {library}"
        super().__init__(**{"found": found, **facts})


class NotPicklable(Misuse):
    """A bus, or something that belongs to one, cannot be copied or passed to another process."""

    code = "not_picklable"
    text = "an open bus and its agents, messages and sessions cannot be copied or passed to another process"
    fix_text = "pass the URL of the bus and the ids, and connect() there"
