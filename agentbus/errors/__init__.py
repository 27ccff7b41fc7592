"""All errors of agentbus.

    AgentBusError
    ├── InvalidInput (ValueError)     the call is invalid; nothing was written
    │   ├── InvalidName               outside [A-Za-z0-9._:@/-]{1,128}
    │   ├── InvalidPayload            not JSON, or does not match the schema of its type
    │   ├── PayloadMismatch           the stored value does not match the type it is decoded as
    │   ├── PayloadTooLarge
    │   ├── InvalidSchema             invalid, or uses an unsupported keyword
    │   ├── BuiltInType               a built-in type cannot be changed
    │   ├── SnapshotTooLarge          a checkpoint or document over the limit
    │   ├── UnsafePath                not a regular file below the root
    │   ├── OutOfRange                priority, progress, ttl, delay …
    │   ├── UnknownType               the agent or message type is not defined
    │   ├── WrongArguments            the workflow does not accept the arguments of the task
    │   ├── NotAnOperator             agents cannot approve, reject or steer
    │   ├── NotRecipient              an agent marks a message of others as seen
    │   ├── InvalidSettings           a file of the user's own settings
    │   ├── ReservedScope             the scope belongs to the bus
    │   ├── NoTelemetry               the packages of telemetry are not installed
    │   └── InvalidUrl                the URL does not name a bus
    │       └── NoDriver              the driver for the server is not installed
    ├── NotFound (LookupError)        the call names something that does not exist
    │   ├── UnknownRecipient
    │   ├── UnknownOperator
    │   ├── UnknownAgent
    │   ├── UnknownMessage
    │   ├── NothingHeld               no message of the thread is held
    │   ├── UnknownSession
    │   ├── UnknownParticipant
    │   ├── UnknownDocument
    │   ├── UnknownCheckpoint
    │   ├── UnknownHistory
    │   ├── UnknownFile               a checkpoint refers to it
    │   ├── UnknownTask
    │   ├── UnknownStep
    │   ├── UnknownApproval
    │   ├── NotExposed                the task has no value of this name
    │   ├── UnknownToken              of an HTTP client
    │   ├── UnknownNotifier           the user's settings have none of this name
    │   └── NoSuchFile                a backup or an archive
    ├── Conflict                      the call is valid, but not in the present state
    │   ├── AgentExists               the agent is running elsewhere
    │   ├── AgentEnded                the recipient completed or stopped
    │   ├── AgentFenced               the agent was taken over, marked failed, or ended
    │   ├── LeaseLost                 the lease expired or was released
    │   │   └── AlreadySettled        the same caller settled it before
    │   ├── MessageIdConflict         the message_id was used with different content
    │   ├── SessionExists             the process that owns it is alive
    │   ├── SessionIdTaken            a session with the id of the new one exists
    │   ├── SessionDiffers            the id has another operation or milestone
    │   ├── SessionLost               another process resumed it
    │   ├── VersionConflict           a state entry was changed concurrently
    │   │   └── HistoryConflict       a history was changed concurrently
    │   ├── TypeChanging              the schema kept changing while a payload was checked
    │   ├── ArchiveDiffers            a different row has the id of an imported one
    │   ├── Outdated                  the imported data is older than the data on the bus
    │   ├── ForeignCheckpoint         it belongs to another owner
    │   ├── QuotaExceeded             transient: a quota of the bus rejected the message
    │   │   ├── QueueFull             the mailbox is full
    │   │   ├── SendingTooFast        the agent exceeds its rate
    │   │   └── BusFull               the bus has reached its size quota
    │   ├── PlanOutdated              the session changed after its recovery was planned
    │   ├── TaskExists                a different task has this id
    │   ├── TaskEnded                 it receives no signal and no message
    │   ├── SignalIdConflict          the signal_id was used with different content
    │   ├── DependencyCycle           the task would wait for itself
    │   ├── ReceivesNothing           a work item receives no signals or messages
    │   ├── NotAnItem                 workers run the task; an agent cannot take it
    │   ├── TaskLost                  the worker or agent no longer holds the task
    │   ├── StepAbandoned             the workflow ended while a step was running
    │   ├── WorkflowChanged           the workflow no longer matches the recorded steps
    │   ├── UnreadableFile            no permission, or changed while it was read
    │   └── WrongState                the transition is not allowed
    │       └── SessionEnded          it completed or failed
    ├── RequestFailed                 a request got no reply
    │   ├── RequestTimedOut (TimeoutError)
    │   └── RequestDied               the request became a dead letter
    ├── TaskFailure                   the work was attempted and failed
    │   ├── StepFailed
    │   ├── SignalTimedOut (TimeoutError)
    │   ├── WorkersLost               too many workers died or lost their lease
    │   ├── TaskFailed                the awaited task failed or was stopped
    │   └── TaskTimedOut (TimeoutError)
    ├── Misuse (RuntimeError)         the bus object was used in an unsupported way
    │   ├── BusClosed
    │   ├── BusForked
    │   ├── NoEventLoop               no asyncio event loop is running
    │   ├── NotPicklable              cannot be copied or passed to another process
    │   └── WrongLoop
    └── StoreError                    the database, its files, or its server
        ├── NoBus                     there is no bus at this location
        ├── NotADatabase
        │   ├── DamagedPayload        the stored bytes do not match their checksum
        │   └── DamagedBackup         damaged, or not a backup of a bus
        ├── DamagedArchive
        ├── NotImportable             the source does not exist, or is a bus
        ├── BackupFailed
        │   └── UseServerTools        ``command`` is the pg_dump or pg_restore command
        ├── BusInUse                  an open bus cannot be replaced
        ├── CopyFailed
        │   ├── NotEmpty              the target of a copy has data
        │   ├── SameBus
        │   ├── NotAtRest             the bus to be copied is open
        │   ├── CopyOvertaken         another process is copying into the same bus
        │   └── CopyDiffers           the copy differs from its source
        ├── CopyUnfinished            the bus is an incomplete copy
        ├── SchemaTooNew
        ├── MigrationFailed           the old schema remains
        ├── ForeignObjects            triggers or views that agentbus did not create
        ├── SQLiteTooOld
        ├── ServerTooOld
        ├── ServerUnreachable         transient: no connection to the server
        │   └── TooManyConnections    transient: the server has no connection left
        ├── UnsupportedPooler         a pooler does not preserve sessions
        ├── AccessDenied              the server denies the connection or the operation
        │   └── UntrustedServer       a file names the server, and the user has not trusted it
        ├── UnknownDatabase           the server has no such database
        ├── StatementTimeout          transient: the server cancelled a statement
        ├── UnsupportedFileSystem
        ├── NotWritable
        │   ├── ReadOnlyBus           this user can read the bus, but not write it
        │   └── UnreadableBus         this user cannot read the bus
        ├── TooManyFiles              transient: no file descriptor is left
        ├── UntrustedHome             another user owns the directory, or can write to it
        ├── UnsafeFile                a file of the bus is a link, or belongs to another user
        ├── DatabaseGone              deleted or replaced while open
        ├── LockTimeout               transient: another process holds the write lock
        │   └── LockedElsewhere       a program other than agentbus holds it
        ├── DiskFull
        ├── LogNotSynced              transient: the log is not synced after an I/O error
        ├── FormatRefused             a constraint rejected the row
        └── OutcomeUnknown            an error during a commit: repeat the call with the same message_id

Each class has a stable ``code``. Each error has its ``facts`` and, where there is one, a ``fix`` for callers of the API
and a ``shell_fix`` for the command line. Facts are attributes:

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
    BusFull,
    Conflict,
    ForeignCheckpoint,
    HistoryConflict,
    InvalidInput,
    InvalidName,
    InvalidPayload,
    InvalidSchema,
    InvalidSettings,
    InvalidUrl,
    LeaseLost,
    MessageIdConflict,
    Misuse,
    NoEventLoop,
    NoSuchFile,
    NoTelemetry,
    NotFound,
    NothingHeld,
    NotPicklable,
    NotRecipient,
    Outdated,
    OutOfRange,
    PayloadMismatch,
    PayloadTooLarge,
    PlanOutdated,
    QueueFull,
    QuotaExceeded,
    RequestDied,
    RequestFailed,
    RequestTimedOut,
    ReservedScope,
    SendingTooFast,
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
    UnknownHistory,
    UnknownMessage,
    UnknownNotifier,
    UnknownOperator,
    UnknownParticipant,
    UnknownRecipient,
    UnknownSession,
    UnknownToken,
    UnknownType,
    UnreadableFile,
    UnsafePath,
    VersionConflict,
    WrongLoop,
    WrongState,
)
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
    DependencyCycle,
    NotAnItem,
    NotAnOperator,
    NotExposed,
    ReceivesNothing,
    SignalIdConflict,
    SignalTimedOut,
    StepAbandoned,
    StepFailed,
    TaskEnded,
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
    "DependencyCycle",
    "DiskFull",
    "ForeignCheckpoint",
    "ForeignObjects",
    "FormatRefused",
    "HistoryConflict",
    "InvalidInput",
    "InvalidName",
    "InvalidPayload",
    "InvalidSchema",
    "InvalidSettings",
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
    "NoTelemetry",
    "NotADatabase",
    "NotAnItem",
    "NotAnOperator",
    "NotAtRest",
    "NotEmpty",
    "NotExposed",
    "NotFound",
    "NotImportable",
    "NotPicklable",
    "NotRecipient",
    "NotWritable",
    "NothingHeld",
    "OutOfRange",
    "OutcomeUnknown",
    "Outdated",
    "PayloadMismatch",
    "PayloadTooLarge",
    "PlanOutdated",
    "QueueFull",
    "QuotaExceeded",
    "ReadOnlyBus",
    "ReceivesNothing",
    "RequestDied",
    "RequestFailed",
    "RequestTimedOut",
    "ReservedScope",
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
    "SignalIdConflict",
    "SignalTimedOut",
    "SnapshotTooLarge",
    "StatementTimeout",
    "StepAbandoned",
    "StepFailed",
    "StoreError",
    "TaskEnded",
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
    "UnknownHistory",
    "UnknownMessage",
    "UnknownNotifier",
    "UnknownOperator",
    "UnknownParticipant",
    "UnknownRecipient",
    "UnknownSession",
    "UnknownStep",
    "UnknownTask",
    "UnknownToken",
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
