"""Errors of a call: invalid arguments, missing entities, conflicts with the present state, and quotas."""

from __future__ import annotations

from typing import Any

from agentbus.errors.base import AgentBusError


class InvalidInput(AgentBusError, ValueError):
    """The call is invalid. Nothing was written."""

    code = "invalid_input"
    fix_text = "{advice}"


class InvalidName(InvalidInput):
    """The name has characters or a length that are not allowed."""

    code = "invalid_name"
    text = "invalid {what} {name!r}"
    fix_text = "{rule}"

    def __init__(self, **facts: Any) -> None:
        super().__init__(**{"rule": "use 1 to 128 of A-Z a-z 0-9 . _ : @ / -", **facts})


class InvalidPayload(InvalidInput):
    """The payload is not JSON, or does not match the schema of its type."""

    code = "invalid_payload"
    text = "invalid payload: {reason}"
    fix_text = "{rule}"
    shell_fix_text = "see what the type accepts: agentbus types show {type}"

    def __init__(self, **facts: Any) -> None:
        rule = "use JSON values: None, True, False, finite numbers, strings, lists, and dicts with string keys"
        super().__init__(**{"rule": rule, **facts})


class PayloadTooLarge(InvalidInput):
    """The payload exceeds the limit of the bus."""

    code = "payload_too_large"
    text = "payload too large: {size} bytes, the limit is {limit}"
    fix_text = "send a reference to a file instead, or raise max_payload in connect()"
    shell_fix_text = "send a reference to a file instead, or raise max_payload in agentbus.toml"


class PayloadMismatch(InvalidInput):
    """The stored value does not match the type that it is decoded as."""

    code = "payload_mismatch"
    text = "{what} does not match {type}: {reason}"
    fix_text = "decode it as plain JSON, or make the type accept the stored value"


class InvalidSchema(InvalidInput):
    """The JSON Schema is invalid, or uses a keyword that is not supported."""

    code = "invalid_schema"
    text = "invalid schema of {type!r}: at {path}, {reason}"
    fix_text = "agentbus.core.jsonschema lists the supported keywords"
    shell_fix_text = "see the supported keywords: agentbus types add --help"


class BuiltInType(InvalidInput):
    """A built-in type accepts any payload and has a fixed description. It cannot be changed."""

    code = "built_in_type"
    text = "{kind} type {name!r} is built in and cannot have another description or a schema"
    fix_text = "choose another name; a Struct takes its name from its tag: class Plan(Struct, tag='my_plan')"
    shell_fix_text = "choose another name"


class SnapshotTooLarge(InvalidInput):
    """The checkpoint or document exceeds the limit of the bus."""

    code = "snapshot_too_large"
    text = "snapshot too large: {size} bytes, the limit is {limit}"
    fix_text = "store large data in files, or raise max_snapshot in connect()"
    shell_fix_text = "store large data in files, or raise max_snapshot in agentbus.toml"


class UnsafePath(InvalidInput):
    """The path does not name a regular file below the root."""

    code = "unsafe_path"
    text = "unsafe path {path!r}: {reason}"
    fix_text = "name regular files by their paths relative to the root, without '..' and symbolic links"


class OutOfRange(InvalidInput):
    """A value is outside its range."""

    code = "out_of_range"
    text = "{what} is {value!r}, must be {allowed}"


class UnknownType(InvalidInput):
    """The agent or message type is not defined."""

    code = "unknown_type"
    text = "unknown {kind} type {name!r}{hint}"
    fix_text = "use a defined type, or define this one: bus.define({name!r}, kind={kind!r})"
    shell_fix_text = "use a defined type (agentbus types list), or add it: agentbus types add {name} --kind {kind}"


class InvalidUrl(InvalidInput):
    """The URL passed to connect() does not name a bus."""

    code = "invalid_url"
    text = "{url!r} does not name a bus: {reason}"
    fix_text = "pass the path of a directory, postgresql://user@host/database, or nothing for .agentbus/"


class NotFound(AgentBusError, LookupError):
    """The call names something that does not exist."""

    code = "not_found"


class UnknownRecipient(NotFound):
    """No agent, pool or topic has this name."""

    code = "unknown_recipient"
    text = "no {kind} {name!r}{hint}"
    fix_text = "register it, or announce it: bus.expect() for an agent, bus.declare() for a pool or topic"
    shell_fix_text = "agentbus agents list shows the agents; register it, or name an existing pool or topic"


class UnknownOperator(NotFound):
    """No person has sent messages under this name, so it has no mailbox."""

    code = "unknown_operator"
    text = "no operator {operator!r}"
    fix_text = "a person has a mailbox from the first message on: bus.messages.send(…, by=NAME)"
    shell_fix_text = "a person has a mailbox from the first message on: agentbus send … --by NAME"


class UnknownAgent(NotFound):
    """No agent has this id."""

    code = "unknown_agent"
    text = "no agent {agent!r}"
    fix_text = "bus.agents.list() returns the agents; bus.agent(…) registers one"
    shell_fix_text = "agentbus agents list shows the agents; agentbus register adds one"


class UnknownMessage(NotFound):
    """No message has this id."""

    code = "unknown_message"
    text = "no message {message_id!r}"
    fix_text = "bus.messages.list() returns the messages; settled ones may have been purged"
    shell_fix_text = "agentbus messages list shows the messages; settled ones may have been purged"


class ReservedScope(InvalidInput):
    """The scope is reserved for the bus, which stores the agents of clients in it."""

    code = "reserved_scope"
    text = "scope {scope!r} is reserved"
    fix_text = "choose another scope"


class InvalidSettings(InvalidInput):
    """A file of the user's own settings is invalid, or other users can read or write it. It was not used."""

    code = "invalid_settings"
    text = "{path}: {reason}"
    fix_text = "{advice}"


class NotRecipient(InvalidInput):
    """The message is in no mailbox that the agent reads, and the agent does not hold it."""

    code = "not_recipient"
    text = "message {message_id!r} is not addressed to {agent!r}"
    fix_text = "only an agent that reads the mailbox of a message can mark it as seen"


class NothingHeld(NotFound):
    """No message of this thread is held."""

    code = "nothing_held"
    text = "no message of thread {thread!r} is held"
    fix_text = "bus.holds.list() returns the threads with held messages"
    shell_fix_text = "agentbus holds list shows the threads with held messages"


class UnknownSession(NotFound):
    """No session has this id."""

    code = "unknown_session"
    text = "no session {session!r}"
    fix_text = "bus.sessions.list() returns the sessions; bus.session(…) starts one"
    shell_fix_text = "agentbus session list shows the sessions; agentbus session start starts one"


class UnknownParticipant(NotFound):
    """The meeting has no participant of this name."""

    code = "unknown_participant"
    text = "no participant {member!r} in meeting {meeting!r} of session {session!r}"
    fix_text = "add it first: session.participants([…, {member!r}], name={meeting!r})"
    shell_fix_text = "agentbus session participants {session} shows the participants"


class UnknownDocument(NotFound):
    """The session has no document of this name."""

    code = "unknown_document"
    text = "session {session!r} has no document {name!r}"
    fix_text = "save it first"
    shell_fix_text = "save it first: agentbus document save"


class UnknownHistory(NotFound):
    """No history has this kind and name."""

    code = "unknown_history"
    text = "no history {name!r} of kind {kind!r}"
    fix_text = "bus.histories.list() returns the histories; retention may have removed it"
    shell_fix_text = "agentbus histories lists the histories; retention may have removed it"


class UnknownCheckpoint(NotFound):
    """No checkpoint has this id."""

    code = "unknown_checkpoint"
    text = "no checkpoint {id}"
    fix_text = "bus.checkpoints.list() returns the checkpoints; older ones may have been pruned"
    shell_fix_text = "agentbus checkpoint list shows the checkpoints; older ones may have been pruned"


class UnknownFile(NotFound):
    """A file that a checkpoint refers to does not exist."""

    code = "unknown_file"
    text = "no file {path!r} in {root}"
    fix_text = "write it first, or pass its directory as root="
    shell_fix_text = "write it first, or pass its directory with --root"


class UnknownNotifier(NotFound):
    """The user's settings have no notifier of this name."""

    code = "unknown_notifier"
    text = "no notifier {notifier!r} in {path}"
    fix_text = "agentbus notifications list shows the notifiers"


class UnknownToken(NotFound):
    """No token of an HTTP client has this id."""

    code = "unknown_token"
    text = "no token {token!r}"
    fix_text = "bus.tokens.list() returns the tokens"
    shell_fix_text = "agentbus token list shows the tokens"


class NoSuchFile(NotFound):
    """The backup or archive does not exist."""

    code = "no_such_file"
    text = "{path}: {reason}"
    fix_text = "pass the path of a file: the backups of a bus are in backups/, its archives in archive/"


class Conflict(AgentBusError):
    """The call is valid, but not in the present state."""

    code = "conflict"


class AgentExists(Conflict):
    """The agent is running elsewhere."""

    code = "agent_exists"
    text = "agent {agent!r} is {status}{where}"
    fix_text = "end it first, choose another id, or pass takeover=True"
    shell_fix_text = "end it first (agentbus stop --agent {agent}), choose another id, or pass --takeover"

    def __init__(self, **facts: Any) -> None:
        pid = facts.get("pid")
        super().__init__(**{"where": "" if pid is None else f" in process {pid}", **facts})


class AgentEnded(Conflict):
    """The recipient has completed or stopped and would not read the message."""

    code = "agent_ended"
    text = "agent {agent!r} has {status}"
    fix_text = "send to another agent or to a pool, or expect it to return: bus.expect()"
    shell_fix_text = "send to another agent or to a pool, or register the agent again"


class AgentFenced(Conflict):
    """The agent was taken over, marked failed, or ended. Its writes are rejected."""

    code = "agent_fenced"
    text = "agent {agent!r} (epoch {epoch}) is fenced: {reason}"
    fix_text = "register again to resume with its state and mailbox"
    shell_fix_text = "register again to resume with its state and mailbox: agentbus register {agent} --type …"


class LeaseLost(Conflict):
    """The lease on the message expired or was released, or the message was not received yet."""

    code = "lease_lost"
    text = "no lease on message {message_id}: it is {status}, held by {holder}"
    fix_text = "discard the result if the lease expired; receive the message first if it was never leased"


class AlreadySettled(LeaseLost):
    """The same caller settled the message before."""

    code = "already_settled"
    text = "message {message_id} was already {what}"
    fix_text = "{advice}"


class MessageIdConflict(Conflict):
    """The message_id was used before with different content."""

    code = "message_id_conflict"
    text = "message_id {message_id!r} was used before with another {differs}"
    fix_text = "use a new message_id: each names one message"


class SessionExists(Conflict):
    """The process that owns this session is alive."""

    code = "session_exists"
    text = "session {session!r} is {status} in process {pid}"
    fix_text = "join it with bus.sessions.open({session!r}), or choose another id"
    shell_fix_text = "join it by registering agents with --session {session}, or choose another id"


class SessionIdTaken(Conflict):
    """A session with the id of the new session exists."""

    code = "session_id_taken"
    text = "session {session!r} already exists: {operation}, {status}"
    fix_text = "resume it with bus.session({operation!r}, id={session!r}), or choose another id"
    shell_fix_text = "join it by registering agents with --session {session}, or choose another id"


class SessionDiffers(Conflict):
    """The session with this id has another operation or milestone."""

    code = "session_differs"
    text = "session {session!r} has the {differs} {found!r}, not {given!r}"
    fix_text = "pass the same {differs} to resume it, or choose another id"


class SessionLost(Conflict):
    """The session was interrupted, and another process resumed it."""

    code = "session_lost"
    text = "session {session!r} is now owned by {holder}"
    fix_text = "leave ending it to the owner; bus.sessions.open({session!r}) joins it"
    shell_fix_text = "leave ending it to the owner"


class VersionConflict(Conflict):
    """The state entry was changed, created or deleted concurrently."""

    code = "version_conflict"
    text = "state {key!r} of {scope} has version {found}, not {expected}"
    fix_text = "re-read the entry and retry; version 0 means that it does not exist"


class HistoryConflict(VersionConflict):
    """The history was changed, created or deleted concurrently."""

    code = "history_conflict"
    text = "history {name!r} ({kind}) has version {found}, not {expected}"
    fix_text = "re-read the history and retry; version 0 means that it does not exist"


class WrongState(Conflict):
    """The transition is not allowed from the present state."""

    code = "wrong_state"
    text = "{what} {name!r} is {status}: cannot {action}"
    fix_text = "{advice}"
    shell_fix_text = "{shell_advice}"


class SessionEnded(WrongState):
    """The session has completed or failed and does not change any more."""

    code = "session_ended"
    fix_text = "start another session with another id"


class TypeChanging(Conflict):
    """The schema of the message type kept changing while a payload was checked. Nothing was sent."""

    code = "type_changing"
    text = "the schema of message type {type!r} changed during each of {rounds} attempts to check and send"
    fix_text = "define it in one program only; bus.events(kind='type_changed') shows which ones do"
    shell_fix_text = "define it in one program only; agentbus events --kind type_changed shows which ones do"


class ArchiveDiffers(Conflict):
    """An imported row has the id of a different row on the bus."""

    code = "archive_differs"
    text = "this bus has a different {what} {id}"
    fix_text = "import into an empty bus"


class Outdated(Conflict):
    """The imported data is older than the data on the bus and would damage it."""

    code = "outdated"
    text = "{what} {id} is older than the data on this bus: {reason}"


class ForeignCheckpoint(Conflict):
    """The checkpoint belongs to another owner."""

    code = "foreign_checkpoint"
    text = "checkpoint {id} belongs to {owner_kind} {owner!r}, not to {wanted}"
    fix_text = "read it with bus.checkpoints.get({id})"
    shell_fix_text = "read it with agentbus checkpoint show {id}"


class PlanOutdated(Conflict):
    """The session changed after its recovery was planned."""

    code = "plan_outdated"
    text = "session {session!r} changed after this plan was made: {reason}"
    fix_text = "plan again: bus.recovery.plan({session!r})"
    shell_fix_text = "plan again: agentbus session recover {session}"


class UnreadableFile(Conflict):
    """The file cannot be read, or changed while it was read."""

    code = "unreadable_file"
    text = "cannot read {path!r} in {root}: {reason}"
    fix_text = "{rule}"
    shell_fix_text = "{shell_rule}"

    def __init__(self, **facts: Any) -> None:
        rule = "check permissions and make sure no other process is writing it"
        super().__init__(**{"rule": rule, **facts})


class RequestFailed(AgentBusError):
    """A request got no reply."""

    code = "request_failed"


class RequestTimedOut(RequestFailed, TimeoutError):
    """No reply arrived within the timeout. A later reply is discarded. ``thread``: the request or its reply is held."""

    code = "request_timed_out"
    text = "{recipient} did not reply to {type!r} within {timeout} s"
    fix_text = "the loop guard holds the {held}: a person lets thread {thread} continue with bus.holds.release()"
    shell_fix_text = "the loop guard holds the {held}: a person runs agentbus holds release {thread}"


class RequestDied(RequestFailed):
    """The request became a dead letter."""

    code = "request_died"
    text = "the request to {recipient} became a dead letter: {reason}"


class Misuse(AgentBusError, RuntimeError):
    """The bus object was used in a way that is not supported."""

    code = "misuse"


class BusClosed(Misuse):
    """The bus is closed."""

    code = "bus_closed"
    text = "the bus is closed"
    fix_text = "use it inside `async with agentbus.connect()`, or `with agentbus.sync.connect()`"
    shell_fix_text = "run the command again"


class BusForked(Misuse):
    """The bus was opened before a fork. The child process cannot use it."""

    code = "bus_forked"
    text = "this bus was opened in process {parent} before the fork"
    fix_text = (
        "pass the URL to the child and call connect() there: start the child before the bus is opened, or with the "
        "start method spawn or forkserver"
    )


class WrongLoop(Misuse):
    """The bus belongs to another event loop."""

    code = "wrong_loop"
    text = "this bus belongs to another event loop"
    fix_text = "open one bus per event loop, and close it in the loop that opened it"


class NoTelemetry(InvalidInput):
    """Telemetry was asked for, and its packages are not installed."""

    code = "no_telemetry"
    text = "telemetry requires {package}, which is not installed"
    fix_text = "python -m pip install {requirements}, or do not set AGENTBUS_OTEL"


class NoEventLoop(Misuse):
    """No asyncio event loop is running: there is none, or one of another library such as trio."""

    code = "no_event_loop"
    text = "agentbus requires asyncio: {found}"
    fix_text = (
        "run it with asyncio.run(main()) or anyio.run(main, backend='asyncio'); without an event loop use "
        "agentbus.sync.connect()"
    )

    def __init__(self, **facts: Any) -> None:
        library = facts.get("library")
        found = "no event loop is running" if library is None else f"the running event loop is one of {library}"
        super().__init__(**{"found": found, **facts})


class NotPicklable(Misuse):
    """A bus, and the objects that belong to it, cannot be copied or passed to another process."""

    code = "not_picklable"
    text = "an open bus and its agents, messages and sessions cannot be copied or passed to another process"
    fix_text = "pass the URL of the bus and the ids, and call connect() there"


class QuotaExceeded(Conflict):
    """A quota of the bus rejected the message. Nothing was written."""

    code = "quota_exceeded"
    transient = True


class QueueFull(QuotaExceeded):
    """The mailbox holds as many messages as its quota allows."""

    code = "queue_full"
    text = "the queue of {address} is full ({waiting}/{most})"
    fix_text = "wait until messages are consumed, or raise the quota: bus.quotas.change(depth=…)"
    shell_fix_text = "wait until messages are consumed, or raise the quota: agentbus quotas --depth N"


class SendingTooFast(QuotaExceeded):
    """The agent exceeds the rate of messages that its quota allows."""

    code = "sending_too_fast"
    text = "agent {agent!r} exceeds {rate} messages per second"
    fix_text = "wait {wait} s, or raise the quota: bus.quotas.change(rate=…)"
    shell_fix_text = "wait {wait} s, or raise the quota: agentbus quotas --rate N"


class BusFull(QuotaExceeded):
    """The bus has reached its size quota. New messages are rejected; other writes are not."""

    code = "bus_full"
    text = "the bus is full ({size}/{most} bytes)"
    fix_text = "delete old data: bus.retention.apply(), or raise the quota: bus.quotas.change(size=…)"
    shell_fix_text = "delete old data: agentbus cleanup --keep-days N, or raise the quota: agentbus quotas --size BYTES"
