"""Errors of the database and its surroundings."""

from __future__ import annotations

from typing import Any

from agentbus.errors.base import AgentBusError
from agentbus.errors.calls import InvalidUrl


class StoreError(AgentBusError):
    """The database or its surroundings."""

    code = "store_error"
    text = "{path}: {reason}"


class NoBus(StoreError):
    """There is no bus at this place."""

    code = "no_bus"
    text = "there is no bus in {path}"
    fix_text = "make one here: agentbus init"


class NotADatabase(StoreError):
    """The file is not a database, or it is damaged."""

    code = "not_a_database"
    text = "{path} is not a usable database: {reason}"
    fix_text = "await agentbus.doctor({path!r}) says more, and names the newest backup for agentbus.restore_backup(…)"


class DamagedPayload(NotADatabase):
    """The stored bytes of one payload do not match their checksum."""

    code = "damaged_payload"
    text = "the stored bytes of {what} do not match their checksum"
    fix_text = "check the disk, and restore what is missing from a backup"


class DamagedBackup(NotADatabase):
    """A backup that is damaged, or is not a backup of a bus. Nothing was replaced."""

    code = "damaged_backup"
    text = "{path} is not a usable backup: {reason}"
    fix_text = "take another backup"


class DamagedArchive(StoreError):
    """A file that is not an archive of a bus, or of which nothing can be read. Nothing was imported."""

    code = "damaged_archive"
    text = "{path} is not a usable archive: {reason}"


class NotImportable(StoreError):
    """What shall be imported is not there, or is a bus itself. Nothing was imported."""

    code = "not_importable"
    text = "{path} cannot be imported: {reason}"
    fix_text = "{advice}"

    def __init__(self, **facts: Any) -> None:
        super().__init__(**{"advice": "name a folder, a file, a database or an archive", **facts})


class BackupFailed(StoreError):
    """There is no new backup. Nothing else was changed."""

    code = "backup_failed"
    text = "no backup in {path}: {reason}"


class UseServerTools(BackupFailed):
    """The bus is on a server, which is backed up and restored with its own tools. Nothing was changed."""

    code = "use_server_tools"
    text = "{path} is on a server, which has tools of its own for that"
    fix_text = "{command}"


class BusInUse(StoreError):
    """The bus that shall be replaced is open somewhere. Nothing was replaced."""

    code = "bus_in_use"
    text = "{path} is in use: {reason}"
    fix_text = "close it everywhere, then restore"


class CopyFailed(StoreError):
    """A bus was not copied, or not to the end. What there is of the copy is opened by nobody."""

    code = "copy_failed"
    text = "{path}: {reason}"


class NotEmpty(CopyFailed):
    """Only an empty bus can become a copy. Nothing was copied."""

    code = "not_empty"
    text = "{path} is not empty: it has {what}"
    fix_text = "name a directory, or a schema of a database, in which no bus is yet"


class SameBus(CopyFailed):
    """A bus cannot become a copy of itself, nor a copy that is finished be made again."""

    code = "same_bus"
    text = "{path} is that bus itself, or a copy of it that was finished"
    fix_text = "name a directory, or a schema of a database, in which no bus is yet"


class NotAtRest(CopyFailed):
    """Somebody has the bus open that shall be copied. Nothing was copied."""

    code = "not_at_rest"
    text = "{path} is in use: {who}"
    fix_text = "end them, or close the bus in them; then copy it"


class CopyOvertaken(CopyFailed):
    """Somebody else copies into the same bus at this moment."""

    code = "copy_overtaken"
    text = "{path}: somebody else is copying into it"
    fix_text = "leave it to them; the same command goes on if they do not"


class CopyDiffers(CopyFailed):
    """What was copied is not what the source has."""

    code = "copy_differs"
    text = "{path} is not the same as {source}: {what}"
    fix_text = (
        "if {source} was used meanwhile: remove the copy (its directory, or its schema), and copy it again at rest"
    )


class CopyUnfinished(StoreError):
    """The bus is only part of a copy: whoever copied it was cut off."""

    code = "copy_unfinished"
    text = "{path} is only part of a copy of {source}"
    fix_text = "finish it: {command}"


class SchemaTooNew(StoreError):
    """The bus was made by a newer agentbus."""

    code = "schema_too_new"
    text = "{path} has schema {found}, this agentbus knows schemas up to {known}"
    fix_text = "upgrade agentbus"


class MigrationFailed(StoreError):
    """The bus could not be brought to the schema of this agentbus. Nothing was changed."""

    code = "migration_failed"
    text = "{path} has schema {found} and cannot be brought to {wanted}: {reason}"
    fix_text = (
        "await agentbus.doctor({path!r}) names the rows and the newest sound backup; or open it with an older agentbus"
    )


class ForeignObjects(StoreError):
    """The database has triggers, views or virtual tables that agentbus did not create. It was not opened."""

    code = "foreign_objects"
    text = "{path} has what agentbus did not create, and what would act on every write: {objects}"
    fix_text = (
        "if you created it, remove it with the sqlite3 shell (DROP TRIGGER, DROP VIEW, DROP TABLE); if not, do not use"
        " this bus: restore a backup"
    )


class SQLiteTooOld(StoreError):
    """The SQLite library that Python was built with is too old."""

    code = "sqlite_too_old"
    text = "SQLite {found} is too old, {needed} is needed"
    fix_text = "use a Python built with a newer SQLite"


class ServerTooOld(StoreError):
    """The PostgreSQL server is too old, or set up in a way that does not do."""

    code = "server_too_old"
    text = "{path}: PostgreSQL {found} does not do, {needed} is needed"
    fix_text = "name another server; or another database: createdb --encoding=UTF8 --template=template0"


class NoDriver(InvalidUrl):
    """The URL names a server, and the package that talks to it is not installed."""

    code = "no_driver"
    text = "{url!r} needs {package}, which is not installed"
    fix_text = "python -m pip install '{requirement}'"


class ServerUnreachable(StoreError):
    """There is no connection to the server. Nothing was written."""

    code = "server_unreachable"
    text = "{path} cannot be reached: {reason}"
    fix_text = "see that the server runs and that host and port are right, then try again"
    transient = True


class TooManyConnections(ServerUnreachable):
    """The server, the database or the user has no connection left. Nothing was written."""

    code = "too_many_connections"
    text = "{path} has no connection left: {reason}"
    fix_text = (
        "close buses that are not needed, or raise max_connections, or CONNECTION LIMIT of the user or the database;"
        " a bus takes three connections, and up to six while it reads a lot"
    )
    transient = True


class UnsupportedPooler(StoreError):
    """A connection pooler is between agentbus and the server, and does not keep a session together."""

    code = "unsupported_pooler"
    text = "{path}: {reason}"
    fix_text = (
        "name the server itself, not a pooler such as PgBouncer; one that is in session mode can be used with"
        " the option pooler=session in the URL"
    )


class AccessDenied(StoreError):
    """The server does not let this user in, or not do this. Nothing was written."""

    code = "access_denied"
    text = "{path} refuses: {reason}"
    fix_text = (
        "check user and password; to make a bus, a user needs CREATE on the database, or a schema of its own; to use"
        " one, USAGE on its schema, and ALL on the tables and sequences in it"
    )


class UntrustedServer(AccessDenied):
    """A file names the server, and the user has not accepted it: it gets no credentials but those in its URL."""

    code = "untrusted_server"
    text = "{path}: {reason}; agentbus.toml names it, so that it gets only the credentials in the URL there"
    fix_text = "if you trust this server: agentbus trust {server}"


class UnknownDatabase(StoreError):
    """The server has no such database."""

    code = "unknown_database"
    text = "{path}: {reason}"
    fix_text = "make it with createdb, or name another one"


class StatementTimeout(StoreError):
    """The server cut a statement off that took longer than the server or its user allows. Nothing was written."""

    code = "statement_timeout"
    text = "{path}: {reason}"
    fix_text = "try again; statement_timeout of the server or the user should be some seconds at least"
    transient = True


class UnsupportedFileSystem(StoreError):
    """SQLite's shared memory does not work on this file system."""

    code = "unsupported_file_system"
    text = "{path} is on {filesystem}, where several processes cannot share a database"
    fix_text = "put the bus on a local disk"


class NotWritable(StoreError):
    """The directory or the database cannot be written."""

    code = "not_writable"
    text = "{path} cannot be written: {reason}"


class ReadOnlyBus(NotWritable):
    """The bus can be looked at by this user, and not be written. Nothing was written."""

    code = "read_only_bus"
    text = "{path} can only be read here: {reason}"
    fix_text = "call as the user who owns it, on a file system that is not read-only; or copy a backup of it"


class UnreadableBus(NotWritable):
    """The bus cannot even be read by this user. Nothing was written."""

    code = "unreadable_bus"
    text = "{path} cannot be read: {reason}"
    fix_text = (
        "call as the user who owns it; or let others read it, as that user: "
        "chmod -R go=rX {path}, then agentbus trust {path} as the one who reads"
    )


class TooManyFiles(StoreError):
    """This process, or the system, has no file descriptor left. Nothing was written."""

    code = "too_many_files"
    text = "{path} cannot be opened: {reason}"
    fix_text = "close what is open and not needed, or allow more: ulimit -n"
    transient = True


class UntrustedHome(StoreError):
    """The directory of the bus belongs to another user, or other users can write to it. Nothing in it was used."""

    code = "untrusted_home"
    text = "{path} is not used: {reason}"
    fix_text = "{command}"


class UnsafeFile(StoreError):
    """The file or directory in the place of one of a bus leads elsewhere, or belongs to another user. It was not
    used."""

    code = "unsafe_file"
    text = "{path} is not used: {reason}"
    fix_text = "{advice}"

    def __init__(self, **facts: Any) -> None:
        advice = "look where it comes from, and move it away: a bus makes its own files, and follows no links"
        super().__init__(**{"advice": advice, **facts})


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


class LockedElsewhere(LockTimeout):
    """A program that is not agentbus has locked the database. Nothing was written."""

    code = "locked_elsewhere"
    text = "{path} is locked by another program"
    fix_text = "wait until that program is done with it, or end it"
    transient = True


class DiskFull(StoreError):
    """There is no room on the disk. Nothing was written."""

    code = "disk_full"
    text = "{path}: the disk is full"
    fix_text = "make room and try again"
    transient = True


class LogNotSynced(StoreError):
    """After an I/O error the log is written again before anything is promised, and that failed too. Nothing was
    written."""

    code = "log_not_synced"
    text = "{path}: after an I/O error the log could not be synced again yet"
    fix_text = "try again; if that does not help, see what is wrong with the disk"
    transient = True


class FormatRefused(StoreError):
    """A constraint of the tables refused the row. Nothing was written."""

    code = "format_refused"
    text = "the database refused the row: {reason}"


class OutcomeUnknown(StoreError):
    """An I/O error at commit, or a connection that was lost at it: it may or may not be written."""

    code = "outcome_unknown"
    text = "{path}: {reason}; the outcome is unknown"
    fix_text = "call again with the same message_id"
    transient = True
