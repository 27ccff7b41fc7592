"""Everything that can go wrong, as named errors with the facts in them.

    AgentBusError
    ├── InvalidInput (ValueError)     the call itself is wrong; nothing was written
    │   ├── InvalidName               outside [A-Za-z0-9._:@/-]{1,128}
    │   ├── InvalidPayload            not JSON as the bus understands it, or not what its type's schema asks for
    │   ├── PayloadMismatch           what was stored does not fit the type it is read as
    │   ├── PayloadTooLarge
    │   ├── InvalidSchema             wrong, or with a keyword that the bus does not check
    │   ├── BuiltInType               a built-in type stays as it is
    │   ├── SnapshotTooLarge          over the limit of a checkpoint or document
    │   ├── UnsafePath                not a plain file below the root
    │   ├── OutOfRange                priority, progress, ttl, delay …
    │   ├── UnknownType               an agent or message type that is not in the vocabulary
    │   ├── WrongArguments            of a task; they do not fit its workflow
    │   ├── NotAnOperator             agents cannot approve
    │   └── InvalidUrl                connect() was given something that is not a bus
    │       └── NoDriver              it is on a server, and the package that talks to it is not installed
    ├── NotFound (LookupError)        it names something that is not there
    │   ├── UnknownRecipient
    │   ├── UnknownAgent
    │   ├── UnknownMessage
    │   ├── UnknownSession
    │   ├── UnknownParticipant
    │   ├── UnknownDocument
    │   ├── UnknownCheckpoint
    │   ├── UnknownFile               a checkpoint shall refer to it
    │   ├── UnknownTask
    │   ├── UnknownStep
    │   ├── UnknownApproval
    │   └── NoSuchFile                a backup or an archive
    ├── Conflict                      right call, wrong moment
    │   ├── AgentExists               the id is alive elsewhere
    │   ├── AgentEnded                the recipient completed or stopped
    │   ├── AgentFenced               this agent was taken over, failed or ended
    │   ├── LeaseLost                 the message is no longer ours
    │   │   └── AlreadySettled        we settled it before
    │   ├── MessageIdConflict         the same message_id with other content
    │   ├── SessionExists             the process that owns it is alive
    │   ├── SessionIdTaken            a new session cannot have the id of another
    │   ├── SessionDiffers            the id belongs to another operation or milestone
    │   ├── SessionLost               another process went on with it
    │   ├── VersionConflict           a state entry was changed by somebody else meanwhile
    │   ├── TypeChanging              its schema was changed again and again while a payload was checked
    │   ├── ArchiveDiffers            another row has the id of an archived one
    │   ├── Outdated                  an import is older than what the bus has, and would do harm
    │   ├── ForeignCheckpoint         it belongs to somebody else
    │   ├── QuotaExceeded             transient: more than the bus allows
    │   │   ├── QueueFull             as many wait in the mailbox as may
    │   │   ├── SendingTooFast        more messages a second than one agent may send
    │   │   └── BusFull               the bus is as large as it may be
    │   ├── PlanOutdated              the session changed since its recovery was planned
    │   ├── TaskExists                another task has this id
    │   ├── TaskLost                  the task is no longer in these hands
    │   ├── StepAbandoned             the workflow ended while a step of it was running
    │   ├── WorkflowChanged           it no longer comes to the steps that are recorded
    │   ├── UnreadableFile            no permission, or it changed while it was read
    │   └── WrongState                this transition is not allowed
    │       └── SessionEnded          it completed or failed
    ├── RequestFailed                 request() got no answer
    │   ├── RequestTimedOut (TimeoutError)
    │   └── RequestDied               the request became a dead letter
    ├── TaskFailure                   what was asked for was tried, and failed
    │   ├── StepFailed
    │   ├── WorkersLost               too many workers died or lost their lease in a row
    │   ├── TaskFailed                or was stopped
    │   └── TaskTimedOut (TimeoutError)
    ├── Misuse (RuntimeError)         the bus object was used in a way that cannot work
    │   ├── BusClosed
    │   ├── BusForked
    │   ├── NoEventLoop               no asyncio event loop runs here
    │   ├── NotPicklable              it cannot be passed to another process
    │   └── WrongLoop
    └── StoreError                    the database or its surroundings
        ├── NoBus                     there is none at this place
        ├── NotADatabase
        │   ├── DamagedPayload        the stored bytes do not match their checksum
        │   └── DamagedBackup         not a backup of a bus, or a damaged one
        ├── DamagedArchive
        ├── NotImportable             it is not there, or it is a bus
        ├── BackupFailed
        │   └── UseServerTools        pg_dump, pg_restore; ``command`` is the one
        ├── BusInUse                  a bus that is open cannot be replaced
        ├── CopyFailed
        │   ├── NotEmpty              what it shall be copied into
        │   ├── SameBus
        │   ├── NotAtRest             somebody has it open that shall be copied
        │   ├── CopyOvertaken         somebody else copies into the same bus
        │   └── CopyDiffers           the source was changed meanwhile
        ├── CopyUnfinished            it is only part of a copy
        ├── SchemaTooNew
        ├── MigrationFailed           the old schema stays
        ├── ForeignObjects            triggers or views that agentbus did not create
        ├── SQLiteTooOld
        ├── ServerTooOld
        ├── ServerUnreachable         transient: no connection to the server
        │   └── TooManyConnections    transient: it has none left
        ├── UnsupportedPooler         a pooler does not keep a session together
        ├── AccessDenied              the server does not let this user in, or not do this
        │   └── UntrustedServer       a file names it, and the user has not accepted it
        ├── UnknownDatabase           the server has no such database
        ├── StatementTimeout          transient: the server cut a statement off
        ├── UnsupportedFileSystem
        ├── NotWritable
        │   ├── ReadOnlyBus           this user can look at the bus, and not write
        │   └── UnreadableBus         this user cannot even look at it
        ├── TooManyFiles              transient: no file descriptor is left
        ├── UntrustedHome             another user owns the bus, or can write to its directory
        ├── UnsafeFile                a link, or a file of another user, in the place of a file of the bus
        ├── DatabaseGone              unlinked or replaced while open
        ├── LockTimeout               transient: another process holds the write lock
        │   └── LockedElsewhere       a program that is not agentbus does
        ├── DiskFull
        ├── LogNotSynced              transient: what an I/O error undid is not on the disk yet
        ├── FormatRefused             a CHECK constraint or a trigger refused the row
        └── OutcomeUnknown            an I/O error or a lost connection at commit: call again with the same message_id

Each class has a stable ``code`` (used by the command line and by wire formats), each error its ``facts`` and,
where there is one, a ``fix``. Facts can be read as attributes:

    >>> error = LeaseLost(message_id="m-7", holder="executor-2")
    >>> error.code, error.holder
    ('lease_lost', 'executor-2')
"""

from __future__ import annotations

from agentbus.errors.base import AgentBusError
from agentbus.errors.calls import (
    AgentEnded,
    AgentExists,
    AgentFenced,
    AlreadySettled,
    ArchiveDiffers,
    BuiltInType,
    BusClosed,
    BusForked,
    Conflict,
    ForeignCheckpoint,
    InvalidInput,
    InvalidName,
    InvalidPayload,
    InvalidSchema,
    InvalidUrl,
    LeaseLost,
    MessageIdConflict,
    Misuse,
    NoEventLoop,
    NoSuchFile,
    NotFound,
    NotPicklable,
    Outdated,
    OutOfRange,
    PayloadMismatch,
    PayloadTooLarge,
    PlanOutdated,
    RequestDied,
    RequestFailed,
    RequestTimedOut,
    SessionDiffers,
    SessionEnded,
    SessionExists,
    SessionIdTaken,
    SessionLost,
    SnapshotTooLarge,
    TypeChanging,
    UnknownAgent,
    UnknownCheckpoint,
    UnknownDocument,
    UnknownFile,
    UnknownMessage,
    UnknownParticipant,
    UnknownRecipient,
    UnknownSession,
    UnknownType,
    UnreadableFile,
    UnsafePath,
    VersionConflict,
    WrongLoop,
    WrongState,
)
from agentbus.errors.quotas import BusFull, QueueFull, QuotaExceeded, SendingTooFast
from agentbus.errors.store import (
    AccessDenied,
    BackupFailed,
    BusInUse,
    CopyDiffers,
    CopyFailed,
    CopyOvertaken,
    CopyUnfinished,
    DamagedArchive,
    DamagedBackup,
    DamagedPayload,
    DatabaseGone,
    DiskFull,
    ForeignObjects,
    FormatRefused,
    LockedElsewhere,
    LockTimeout,
    LogNotSynced,
    MigrationFailed,
    NoBus,
    NoDriver,
    NotADatabase,
    NotAtRest,
    NotEmpty,
    NotImportable,
    NotWritable,
    OutcomeUnknown,
    ReadOnlyBus,
    SameBus,
    SchemaTooNew,
    ServerTooOld,
    ServerUnreachable,
    SQLiteTooOld,
    StatementTimeout,
    StoreError,
    TooManyConnections,
    TooManyFiles,
    UnknownDatabase,
    UnreadableBus,
    UnsafeFile,
    UnsupportedFileSystem,
    UnsupportedPooler,
    UntrustedHome,
    UntrustedServer,
    UseServerTools,
)
from agentbus.errors.tasks import (
    NotAnOperator,
    StepAbandoned,
    StepFailed,
    TaskExists,
    TaskFailed,
    TaskFailure,
    TaskLost,
    TaskTimedOut,
    UnknownApproval,
    UnknownStep,
    UnknownTask,
    WorkersLost,
    WorkflowChanged,
    WrongArguments,
)

__all__ = [
    "AccessDenied",
    "AgentBusError",
    "AgentEnded",
    "AgentExists",
    "AgentFenced",
    "AlreadySettled",
    "ArchiveDiffers",
    "BackupFailed",
    "BuiltInType",
    "BusClosed",
    "BusForked",
    "BusFull",
    "BusInUse",
    "Conflict",
    "CopyDiffers",
    "CopyFailed",
    "CopyOvertaken",
    "CopyUnfinished",
    "DamagedArchive",
    "DamagedBackup",
    "DamagedPayload",
    "DatabaseGone",
    "DiskFull",
    "ForeignCheckpoint",
    "ForeignObjects",
    "FormatRefused",
    "InvalidInput",
    "InvalidName",
    "InvalidPayload",
    "InvalidSchema",
    "InvalidUrl",
    "LeaseLost",
    "LockTimeout",
    "LockedElsewhere",
    "LogNotSynced",
    "MessageIdConflict",
    "MigrationFailed",
    "Misuse",
    "NoBus",
    "NoDriver",
    "NoEventLoop",
    "NoSuchFile",
    "NotADatabase",
    "NotAnOperator",
    "NotAtRest",
    "NotEmpty",
    "NotFound",
    "NotImportable",
    "NotPicklable",
    "NotWritable",
    "OutOfRange",
    "OutcomeUnknown",
    "Outdated",
    "PayloadMismatch",
    "PayloadTooLarge",
    "PlanOutdated",
    "QueueFull",
    "QuotaExceeded",
    "ReadOnlyBus",
    "RequestDied",
    "RequestFailed",
    "RequestTimedOut",
    "SQLiteTooOld",
    "SameBus",
    "SchemaTooNew",
    "SendingTooFast",
    "ServerTooOld",
    "ServerUnreachable",
    "SessionDiffers",
    "SessionEnded",
    "SessionExists",
    "SessionIdTaken",
    "SessionLost",
    "SnapshotTooLarge",
    "StatementTimeout",
    "StepAbandoned",
    "StepFailed",
    "StoreError",
    "TaskExists",
    "TaskFailed",
    "TaskFailure",
    "TaskLost",
    "TaskTimedOut",
    "TooManyConnections",
    "TooManyFiles",
    "TypeChanging",
    "UnknownAgent",
    "UnknownApproval",
    "UnknownCheckpoint",
    "UnknownDatabase",
    "UnknownDocument",
    "UnknownFile",
    "UnknownMessage",
    "UnknownParticipant",
    "UnknownRecipient",
    "UnknownSession",
    "UnknownStep",
    "UnknownTask",
    "UnknownType",
    "UnreadableBus",
    "UnreadableFile",
    "UnsafeFile",
    "UnsafePath",
    "UnsupportedFileSystem",
    "UnsupportedPooler",
    "UntrustedHome",
    "UntrustedServer",
    "UseServerTools",
    "VersionConflict",
    "WorkersLost",
    "WorkflowChanged",
    "WrongArguments",
    "WrongLoop",
    "WrongState",
]
