"""Errors of the database, its files, and its server."""

from __future__ import annotations

from typing import Any

from agentbus.errors.base import AgentBusError
from agentbus.errors.calls import InvalidUrl


class StoreError(AgentBusError):
    """The database, its files, or its server."""

    code = "store_error"
    text = "{path}: {reason}"


class NoBus(StoreError):
    """There is no bus at this location."""

    code = "no_bus"
    text = "no bus in {path}"
    fix_text = "create one: agentbus init"

    @property
    def shell_fix(self) -> str | None:
        """The command that creates the bus, as seen from the working directory."""
        import os
        from shlex import quote

        path = str(self.facts.get("path", ""))
        if "://" in path:
            return "create one: agentbus init, with the same --url or AGENTBUS_URL"
        below = os.path.join(path, ".agentbus")
        if os.path.isdir(below):
            return f"there is one in {quote(below)}"
        try:
            here = os.path.dirname(path) == os.getcwd()
        except OSError:
            here = False
        return "create one: agentbus init" if here else f"create one: agentbus init --url {quote(path)}"


class NotADatabase(StoreError):
    """The file is not a database, or is damaged."""

    code = "not_a_database"
    text = "{path} is not a usable database: {reason}"
    fix_text = "await agentbus.doctor({path!r}) reports details and the newest backup for agentbus.restore_backup(…)"
    shell_fix_text = "agentbus doctor reports details and the newest backup for agentbus backup restore"


class DamagedPayload(NotADatabase):
    """The stored bytes of a payload do not match their checksum."""

    code = "damaged_payload"
    text = "the stored bytes of {what} do not match their checksum"
    fix_text = "check the disk, and restore the missing data from a backup"


class DamagedBackup(NotADatabase):
    """The file is damaged, or is not a backup of a bus. Nothing was replaced."""

    code = "damaged_backup"
    text = "{path} is not a usable backup: {reason}"
    fix_text = "use another backup"


class DamagedArchive(StoreError):
    """The file is not an archive of a bus, or cannot be read. Nothing was imported."""

    code = "damaged_archive"
    text = "{path} is not a usable archive: {reason}"


class NotImportable(StoreError):
    """The source of an import does not exist, or is a bus. Nothing was imported."""

    code = "not_importable"
    text = "cannot import {path}: {reason}"
    fix_text = "{advice}"

    def __init__(self, **facts: Any) -> None:
        super().__init__(**{"advice": "name a directory, a file, a database or an archive", **facts})


class BackupFailed(StoreError):
    """The backup was not made. Nothing else was changed."""

    code = "backup_failed"
    text = "cannot back up {path}: {reason}"


class UseServerTools(BackupFailed):
    """A bus on a server is backed up and restored with the tools of the server. Nothing was changed."""

    code = "use_server_tools"
    text = "{path} is on a server: use the tools of the server"
    fix_text = "{command}"


class BusInUse(StoreError):
    """The bus to be replaced is open. Nothing was replaced."""

    code = "bus_in_use"
    text = "{path} is in use: {reason}"
    fix_text = "close the bus in all processes, then restore"


class CopyFailed(StoreError):
    """The bus was not copied completely. An incomplete copy cannot be opened."""

    code = "copy_failed"
    text = "{path}: {reason}"


class NotEmpty(CopyFailed):
    """The target of a copy is not empty. Nothing was copied."""

    code = "not_empty"
    text = "{path} is not empty: it has {what}"
    fix_text = "name a directory, or a schema of a database, without a bus"


class SameBus(CopyFailed):
    """The target of a copy is the source itself, or a finished copy of it."""

    code = "same_bus"
    text = "{path} is the same bus, or a finished copy of it"
    fix_text = "name a directory, or a schema of a database, without a bus"


class NotAtRest(CopyFailed):
    """The bus to be copied is open. Nothing was copied."""

    code = "not_at_rest"
    text = "{path} is in use: {who}"
    fix_text = "end these processes or close the bus in them, then copy it"


class CopyOvertaken(CopyFailed):
    """Another process is copying into the same bus."""

    code = "copy_overtaken"
    text = "{path}: another process is copying into it"
    fix_text = "wait for the other copy to finish, or rerun to resume it"


class CopyDiffers(CopyFailed):
    """The copy differs from its source."""

    code = "copy_differs"
    text = "{path} differs from {source}: {what}"
    fix_text = (
        "if {source} was used during the copy: delete the copy (its directory or schema), and copy {source} while it "
        "is not in use"
    )


class CopyUnfinished(StoreError):
    """The bus is an incomplete copy: copying it was interrupted."""

    code = "copy_unfinished"
    text = "{path} is an incomplete copy of {source}"
    fix_text = "finish it: {command}"


class SchemaTooNew(StoreError):
    """The bus was made by a newer version of agentbus."""

    code = "schema_too_new"
    text = "{path} has schema {found}, this agentbus supports schemas up to {known}"
    fix_text = "upgrade agentbus"


class MigrationFailed(StoreError):
    """The bus could not be upgraded to the schema of this agentbus. Nothing was changed."""

    code = "migration_failed"
    text = "{path} has schema {found} and cannot be upgraded to {wanted}: {reason}"
    fix_text = "await agentbus.doctor({path!r}) reports the rows and the newest backup; or use an older agentbus"
    shell_fix_text = "agentbus doctor --url {path!r} reports the rows and the newest backup; or use an older agentbus"


class ForeignObjects(StoreError):
    """The database has triggers, views or virtual tables that agentbus did not create. It was not opened."""

    code = "foreign_objects"
    text = "{path} has objects that agentbus did not create and that would act on every write: {objects}"
    fix_text = (
        "if you created them, remove them with the sqlite3 shell (DROP TRIGGER, DROP VIEW, DROP TABLE); if not, do not "
        "use this bus: restore a backup"
    )


class SQLiteTooOld(StoreError):
    """The SQLite library that Python was built with is too old."""

    code = "sqlite_too_old"
    text = "SQLite {found} is too old, {needed} is required"
    fix_text = "use a Python built with a newer SQLite"


class ServerTooOld(StoreError):
    """The PostgreSQL server is too old, or its configuration is not supported."""

    code = "server_too_old"
    text = "{path}: PostgreSQL {found} is not supported, {needed} is required"
    fix_text = "name another server; or another database: createdb --encoding=UTF8 --template=template0"


class NoDriver(InvalidUrl):
    """The URL names a server, and its driver is not installed."""

    code = "no_driver"
    text = "{url!r} requires {package}, which is not installed"
    fix_text = "python -m pip install '{requirement}'"


class ServerUnreachable(StoreError):
    """There is no connection to the server. Nothing was written."""

    code = "server_unreachable"
    text = "cannot reach {path}: {reason}"
    fix_text = "check that the server is running and that host and port are correct, then try again"
    transient = True


class TooManyConnections(ServerUnreachable):
    """The server, the database or the user has no connection left. Nothing was written."""

    code = "too_many_connections"
    text = "{path} has no connection left: {reason}"
    fix_text = (
        "close unused buses, or raise max_connections, or CONNECTION LIMIT of the user or the database; a bus uses "
        "three connections, and up to six during large reads"
    )
    transient = True


class UnsupportedPooler(StoreError):
    """A connection pooler between agentbus and the server does not preserve sessions."""

    code = "unsupported_pooler"
    text = "{path}: {reason}"
    fix_text = (
        "connect to the server directly, not to a pooler such as PgBouncer; a pooler in session mode works with the "
        "option pooler=session in the URL"
    )


class AccessDenied(StoreError):
    """The server denies this user the connection or the operation. Nothing was written."""

    code = "access_denied"
    text = "{path}: access denied: {reason}"
    fix_text = (
        "check user and password; creating a bus requires CREATE on the database, or a schema that the user owns; "
        "using one requires USAGE on its schema, and ALL on its tables and sequences"
    )


class UntrustedServer(AccessDenied):
    """A file names the server, and the user has not trusted it: only the credentials in its URL are sent."""

    code = "untrusted_server"
    text = "{path}: {reason}; agentbus.toml names this server, so only the credentials in that URL are sent"
    fix_text = "if you trust this server: agentbus trust {server}"


class UnknownDatabase(StoreError):
    """The server has no such database."""

    code = "unknown_database"
    text = "{path}: {reason}"
    fix_text = "create it with createdb, or name another one"


class StatementTimeout(StoreError):
    """The server cancelled a statement that exceeded its statement_timeout. Nothing was written."""

    code = "statement_timeout"
    text = "{path}: {reason}"
    fix_text = "try again; statement_timeout of the server or the user should be at least several seconds"
    transient = True


class UnsupportedFileSystem(StoreError):
    """The shared memory of SQLite does not work on this file system."""

    code = "unsupported_file_system"
    text = "{path} is on {filesystem}, where processes cannot share a database"
    fix_text = "put the bus on a local disk"


class NotWritable(StoreError):
    """The directory or the database is not writable."""

    code = "not_writable"
    text = "cannot write {path}: {reason}"
    fix_text = "{advice}"


class ReadOnlyBus(NotWritable):
    """This user can read the bus, but not write it. Nothing was written."""

    code = "read_only_bus"
    text = "{path} is read-only here: {reason}"
    fix_text = "run as the user who owns it, on a file system that is not read-only; or copy a backup of it"


class UnreadableBus(NotWritable):
    """This user cannot read the bus. Nothing was written."""

    code = "unreadable_bus"
    text = "cannot read {path}: {reason}"
    fix_text = (
        "run as the user who owns it; or let others read it, as that user: chmod -R go=rX {path}, then "
        "agentbus trust {path} as the reader"
    )


class TooManyFiles(StoreError):
    """The process or the system has no file descriptor left. Nothing was written."""

    code = "too_many_files"
    text = "cannot open {path}: {reason}"
    fix_text = "close unused files, or raise the limit: ulimit -n"
    transient = True


class UntrustedHome(StoreError):
    """Another user owns the directory of the bus, or can write to it. The directory was not used."""

    code = "untrusted_home"
    text = "{path} is not trusted: {reason}"
    fix_text = "{command}"


class UnsafeFile(StoreError):
    """A file or directory of the bus is a link, or belongs to another user. It was not used."""

    code = "unsafe_file"
    text = "{path} is not used: {reason}"
    fix_text = "{advice}"

    def __init__(self, **facts: Any) -> None:
        advice = "check where it comes from, and move it away: a bus creates its own files and follows no links"
        super().__init__(**{"advice": advice, **facts})


class DatabaseGone(StoreError):
    """The database file was deleted or replaced while it was open."""

    code = "database_gone"
    text = "{path} was deleted or replaced while the bus was open"
    fix_text = "close the bus and open it again; what was written since then is in the old file"


class LockTimeout(StoreError):
    """Another process held the write lock until the timeout. Nothing was written."""

    code = "lock_timeout"
    text = "{path}: could not get the write lock within {waited} s, process {pid} holds it"
    fix_text = "try again; if process {pid} hangs, end it"
    transient = True


class LockedElsewhere(LockTimeout):
    """A program other than agentbus has locked the database. Nothing was written."""

    code = "locked_elsewhere"
    text = "{path} is locked by another program"
    fix_text = "wait until that program releases it, or end it"
    transient = True


class DiskFull(StoreError):
    """The disk is full. Nothing was written."""

    code = "disk_full"
    text = "{path}: the disk is full"
    fix_text = "free disk space and try again"
    transient = True


class LogNotSynced(StoreError):
    """After an I/O error the log must be written again before any commit, and that failed. Nothing was written."""

    code = "log_not_synced"
    text = "{path}: the log could not be synced after an I/O error"
    fix_text = "try again; if the error remains, check the disk"
    transient = True


class FormatRefused(StoreError):
    """A constraint of the tables rejected the row. Nothing was written."""

    code = "format_refused"
    text = "the database rejected the row: {reason}"


class OutcomeUnknown(StoreError):
    """An I/O error or a lost connection during a commit: the write may or may not have happened."""

    code = "outcome_unknown"
    text = "{path}: {reason}; the outcome is unknown"
    fix_text = "repeat the call with the same message_id"
    shell_fix_text = "run the command again; with the same --id a message is sent only once"
    transient = True
