"""Formats hold even against someone who writes with the sqlite3 shell."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import agentbus
from tests.support.cases import each

CRC = "0" * 64

# One good row of each table; every case below makes one column of it bad.
ROWS: dict[str, dict[str, Any]] = {
    "meta": {"key": "k", "value": "v"},
    "counters": {"name": "n", "value": 0},
    "processes": {"id": 900, "host": "h", "boot": "b", "pid": 1, "started": "", "bell": "x", "beat": 0, "created": 0},
    "listeners": {"channel": "c", "process": 900},
    "vocabulary": {"kind": "message", "name": "own", "schema": "{}", "created": 0},
    "sessions": {"id": "s", "operation": "o", "milestone": "m", "created": 0, "updated": 0},
    "participants": {
        "session": "s", "meeting": "m", "member": "a", "position": 0, "created": 0, "finished": 0, "checksum": 0,
        "result": "null",
    },
    "mailboxes": {"id": 900, "kind": "agent", "name": "n", "owner": "o", "created": 0},
    "agents": {
        "id": "a", "name": "A", "type": "worker", "milestone": "m", "parent": "p", "load": 5, "estimate": 5,
        "status": "running", "process": 900, "epoch": 1, "cut_off": 1, "patience": 5, "last_call": 0, "busy_until": 0,
        "mailbox": 900, "replies": 900, "evidence": "{}", "created": 0, "started": 0, "updated": 0,
    },
    "pool_members": {"pool": 900, "agent": "a", "joined": 0},
    "subscriptions": {"topic": 900, "agent": "a", "mailbox": 900, "since": 0},
    "messages": {
        "id": 900, "message_id": "i", "mailbox": 900, "sender": "a", "type": "note", "checksum": 0, "priority": 5,
        "status": "queued", "max_attempts": 5, "correlation": "c", "session": "s", "created": 0, "payload": "{}",
        "headers": "{}", "leased_at": 0,
    },
    "state": {
        "scope": "s", "key": "k", "value": "1", "version": 1, "change": 900, "checksum": 0, "expires": 0,
        "author": "a", "created": 0, "updated": 0,
    },
    "state_floors": {"scope": "s", "version": 1},
    "checkpoints": {
        "owner_kind": "agent", "owner": "a", "name": "n", "snapshot": "{}", "checksum": CRC, "size": 2, "session": "s",
        "file_count": 0, "created": 0,
    },
    "documents": {"session": "s", "name": "n", "version": 1, "value": "1", "checksum": CRC, "created": 0},
    "document_floors": {"session": "s", "name": "n", "version": 1},
    "events": {"at": 0, "kind": "k", "subject_kind": "agent", "subject": "a"},
    "tasks": {
        "number": 900, "id": "t", "workflow": "w", "name": "T", "session": "s", "parent": "p", "status": "running",
        "phase": "x", "holder": "a", "lease": 1, "lease_until": 5, "error": "{}", "created": 0, "started": 0,
        "updated": 0, "checksum": 0, "arguments": "{}", "losses": 1, "max_losses": 5, "redo": "[]",
        "manual": 1, "priority": 9, "on_failed": "cancel", "not_before": 5, "trace": "00-a",
    },
    "dependencies": {"task": 900, "dependency": "t-2", "completed": 5},
    "steps": {
        "id": 900, "task": 900, "kind": "step", "key": "k#2", "name": "k", "position": 1, "status": "finished",
        "digest": "0af", "progress": 5, "due": 0, "error": "{}", "started": 0, "finished": 0, "checksum": 0,
        "validation": "1", "result": "1", "seen": 0, "ending": 1, "trace": "00-a",
    },
    "approvals": {
        "id": 900, "task": 900, "key": "k", "name": "k", "position": 1, "status": "rejected", "notify": "a",
        "expires": 0, "created": 0, "decided": 0, "decided_by": "ada", "checksum": 0, "shown": "1", "seen": 0,
        "ending": 1,
    },
    "signals": {
        "id": 900, "task": 900, "name": "go", "signal_id": "s", "sender": "ada", "position": 1, "created": 0,
        "checksum": 0, "value": "1",
    },
    "workflows": {"workflow": "w", "agent": "a", "signature": "[]"},
    "receipts": {"message": 900, "agent": "a", "epoch": 1, "client": "s", "channel": "hook", "at": 0},
    "reach": {"agent": "a", "channel": "hook", "epoch": 1, "wakes": "tool", "declared": 0},
    "threads": {"thread": "t", "opened": 2, "messages": 1, "held": 1, "since": 0, "updated": 0, "agents": ",a"},
    "holds": {"message": 900, "thread": "t", "due": 0, "created": 0},
    "histories": {
        "id": 900, "kind": "k", "name": "two words", "version": 1, "last": 1, "items": 1, "size": 2, "created": 0,
        "updated": 0, "meta": "{}",
    },
    "history_items": {
        "history": 900, "part": "", "key": "k", "number": 1, "encoding": "json", "checksum": 0, "size": 2,
        "created": 0, "meta": "{}", "body": b"{}",
    },
    "notifiers": {
        "name": "ada/ops", "cursor": 1, "first": 2, "until": 3, "skipped": 1, "attempts": 1, "failures": 1, "lease": 1,
        "lease_until": 5, "due": 5, "delivered": 1, "dropped": 1, "dead": 1, "error": "e", "created": 0, "updated": 0,
    },
    "tokens": {"id": "t-1", "hash": "0" * 64, "role": "agent:a", "operator": "ada", "created": 0, "expires": 0},
}  # fmt: skip

NO_NAME = ["", "two words", "x" * 129, "ü", "a\nb", "a\0b", "\0", None]
NO_LABEL = ["", "x" * 129]
NO_JSON = ["", "{", "NaN", "{'a': 1}", "[1,]", "nul\0"]
NO_OBJECT = [*NO_JSON, "[]", "1", None]
NO_LIST = [*NO_JSON, "{}", "1", None]
NO_TIME = [-1, "soon", 1.5]

BAD: dict[str, dict[str, list[Any]]] = {
    "meta": {"key": ["", None], "value": [None]},
    "counters": {"name": ["", None], "value": [-1, "x", None]},
    "processes": {
        "host": ["", None], "boot": ["", None], "pid": [0, -1, "x", None], "bell": [""], "beat": [*NO_TIME, None],
        "status": ["alive", "", None, "ended", "dead"], "created": [*NO_TIME, None], "ended": [*NO_TIME, 5],
        "watched": [2, -1, "x", None], "silent": [-1, "x", None], "every": [0, -1, "x", None],
    },
    "listeners": {"channel": ["", None], "process": ["x", None]},
    "vocabulary": {
        # With a schema it must be a message type that is not built in.
        "kind": ["agent", "task", "", None], "name": NO_NAME, "builtin": [1, 2, -1, None],
        "schema": [*NO_JSON, "[]", "1", f'{{"a": "{"x" * 65536}"}}'],
        "created": [*NO_TIME, None],
    },
    "sessions": {
        "id": NO_NAME, "operation": NO_NAME, "milestone": [name for name in NO_NAME if name is not None],
        "troubled": [2, -1, "x", None], "resume_by": NO_TIME,
        "status": ["open", "", None, "completed", "failed"], "progress": [-1, 101, 5.5, "x", None],
        "expected": NO_OBJECT, "metadata": NO_OBJECT, "created": [*NO_TIME, None], "updated": [*NO_TIME, None],
        "ended": [*NO_TIME, 5],
    },
    "participants": {
        "meeting": NO_NAME, "member": NO_NAME, "position": [-1, "x", None], "created": [*NO_TIME, None],
        "finished": [*NO_TIME, None], "checksum": ["x", None], "result": [*NO_JSON, None],
    },
    "mailboxes": {
        "kind": ["other", "", None, "pool", "topic"], "name": NO_NAME, "owner": ["", None], "created": [*NO_TIME, None],
    },
    "agents": {
        "id": NO_NAME, "name": ["", None], "type": ["nobody", "note", "", None], "kind": ["other", "", None],
        "milestone": NO_LABEL, "parent": NO_LABEL, "capabilities": NO_LIST, "load": [-1, 101, 5.5, "x"],
        "estimate": [-1, "x"], "metadata": NO_OBJECT, "progress": [-1, 101, 5.5, "x", None],
        "status": ["alive", "", None, "Running", "completed", "failed", "stopped"], "epoch": [-1, "x", None],
        "cut_off": [-1, 3, "x", None],
        "patience": [0, -1, "x"], "last_call": NO_TIME, "busy_until": NO_TIME, "evidence": NO_JSON,
        "created": [*NO_TIME, None], "started": NO_TIME, "updated": [*NO_TIME, None], "ended": [*NO_TIME, 5],
        "mailbox": ["x", None], "replies": ["x", None],
    },
    "pool_members": {"joined": [*NO_TIME, None]},
    "subscriptions": {"since": [*NO_TIME, None]},
    "messages": {
        "message_id": NO_LABEL, "mailbox": ["x", None], "sender": [*NO_LABEL, None],
        "type": ["nothing", "worker", "", None], "checksum": ["x", None], "priority": [-1, 10, 5.5, "high", None],
        "status": ["done", "", None, "Queued", "leased", "acked", "dead", "expired"],
        "attempts": [-1, "x", None], "max_attempts": [0, 1001, "x", None], "lease": [-1, "x", None],
        "correlation": NO_LABEL, "session": NO_LABEL, "payload": [*NO_JSON, None, b"{}"], "finished": [5, "x"],
        "created": ["x", None], "due": ["x"], "expires": ["x"], "lease_until": ["x"],
        "leased_at": NO_TIME,
        "headers": [*NO_JSON, "[]", "1", b"{}", '{"k":"' + "x" * 4096 + '"}'],
    },
    "state": {
        "scope": [*NO_NAME, "session:" + "x" * 129], "key": ["", "two words", "x" * 257, "ü", "a\0b", None],
        "value": [*NO_JSON, None], "author": NO_LABEL,
        "type": ["other", "", None], "version": [0, -1, "x", None], "change": [0, -1, None], "checksum": ["x", None],
        "expires": NO_TIME, "created": [*NO_TIME, None], "updated": [*NO_TIME, None],
    },
    "state_floors": {"scope": ["", "x" * 137, None], "version": [0, -1, "one", None]},
    "document_floors": {"name": [*NO_LABEL, None], "version": [0, -1, "one", None]},
    "checkpoints": {
        "owner_kind": ["bus", "", None], "owner": NO_NAME, "name": NO_NAME, "snapshot": [*NO_JSON, None],
        "checksum": ["", "0" * 63, "0" * 65, "G" * 64, None], "size": [0, 3, -1, None], "file_count": [1, -1, None],
        "files": [*NO_LIST, "[1]"], "notes": ["x" * 10_001, None], "session": NO_LABEL, "created": [*NO_TIME, None],
    },
    "documents": {
        "name": NO_NAME, "version": [0, -1, "x", None], "value": [*NO_JSON, None],
        "checksum": ["", "0" * 65, "G" * 64, None],
        "author": NO_LABEL, "created": [*NO_TIME, None],
    },
    "events": {
        "at": [*NO_TIME, None], "kind": ["", None], "subject_kind": ["other", "", None], "subject": ["", None],
        "facts": NO_OBJECT,
    },
    "tasks": {
        "id": NO_NAME, "workflow": NO_NAME, "name": ["", "x" * 201, None], "parent": NO_LABEL,
        "status": ["done", "", None, "Running", "pending", "waiting", "halted", "completed", "failed", "stopped"],
        "phase": [name for name in NO_NAME if name is not None], "auto": [2, -1, "x", None],
        "halting": [2, -1, "x", None], "progress": [-1, 101, 5.5, "x", None], "generation": [-1, "x", None],
        "holder": [*NO_LABEL, None], "lease": [-1, "x", None], "lease_until": ["x", None], "due": [0, 5, -1, "x"],
        "waits": NO_LIST, "restarts": [-1, 1001, "x", None], "backoff": [-1, "x", None], "restarted": [-1, "x", None],
        "error": [*NO_JSON, "[]", "1"], "created": [*NO_TIME, None], "started": NO_TIME, "updated": [*NO_TIME, None],
        "ended": [*NO_TIME, 5], "notes": NO_OBJECT, "context": NO_OBJECT, "settings": NO_OBJECT,
        "checksum": ["x", None], "result_sum": [5, "x"], "arguments": NO_OBJECT, "result": [*NO_JSON, "1"],
        "losses": [-1, "x", None], "max_losses": [0, 1001, "x", None], "redo": [*NO_JSON, "{}", "1"],
        "manual": [2, -1, "x", None], "priority": [-1, 10, 5.5, "x", None], "on_failed": ["", "ignore"],
        "not_before": [*NO_TIME, None], "trace": ["x" * 513],
    },
    "dependencies": {"task": [None, "x"], "dependency": NO_NAME, "completed": NO_TIME},
    "steps": {
        "task": ["x", None], "kind": ["other", "", None, "task"],
        "key": ["", "two words", "x" * 141, "ü", "a\0b", None], "superseded": [-1, "x", None], "name": NO_NAME,
        "position": [0, -1, "x", None],
        "status": ["done", "", None, "running", "retrying", "failed", "interrupted", "unknown", "cancelled"],
        "main": [2, -1, None], "once": [2, -1, None], "attempt": [0, "x", None], "failures": [-1, "x", None],
        "digest": ["G", "0" * 65, None], "progress": [-1, 101, "x"], "child": [*NO_LABEL, "c"], "due": NO_TIME,
        "error": [*NO_JSON, "[]"], "started": [*NO_TIME, None], "finished": [*NO_TIME, None],
        "checksum": ["x", None], "validation": NO_JSON, "result": [*NO_JSON, None], "seen": [-1, "x"],
        "ending": [-1, "x"], "trace": ["x" * 513],
    },
    "approvals": {
        "task": ["x", None], "key": ["", "two words", "x" * 141, "ü", "a\0b", None], "superseded": [-1, "x", None],
        "name": NO_NAME, "position": [0, -1, "x", None], "status": ["done", "", None, "open", "expired"],
        "auto": [1, 2, -1, None], "notify": ["", "x" * 141], "expires": NO_TIME, "created": [*NO_TIME, None],
        "decided": [*NO_TIME, None], "decided_by": ["", "x" * 201, None], "checksum": ["x", None],
        "shown": [*NO_JSON, None], "seen": [-1, "x"], "ending": [-1, "x"],
    },
    "signals": {
        "task": ["x", None], "name": NO_NAME, "signal_id": ["", "x" * 129], "sender": ["", "x" * 201],
        "position": [0, "x"], "created": [*NO_TIME, None], "checksum": ["x", None], "value": [*NO_JSON, None],
    },
    "workflows": {"workflow": NO_NAME, "agent": [None], "signature": NO_LIST},
    "receipts": {
        "message": [0, "x", None], "agent": ["", "x" * 129, None], "epoch": [-1, "x", None],
        "client": ["x" * 201, None], "channel": ["", "Hook", "a b", "x" * 33, None], "at": [*NO_TIME, None],
    },
    "reach": {
        "agent": [None], "channel": ["", "Hook", "x" * 33, None], "epoch": [-1, "x", None],
        "wakes": ["now", "", None], "declared": [*NO_TIME, None],
    },
    "threads": {
        "thread": [*NO_LABEL, None], "opened": [-1, "x", None], "messages": [-1, "x", None], "held": [-1, 2, "x", None],
        "since": [*NO_TIME, None], "updated": [*NO_TIME, None], "agents": [None],
    },
    "holds": {"message": ["x"], "thread": [*NO_LABEL, None], "due": NO_TIME, "created": [*NO_TIME, None]},
    "histories": {
        "kind": [*NO_NAME, "k" * 65], "name": ["", "x" * 513, "a\0b", None], "version": [0, -1, "x", None],
        "last": [-1, "x", None], "items": [-1, "x", None], "size": [-1, "x", None], "created": [*NO_TIME, None],
        "updated": [*NO_TIME, None], "meta": [*NO_OBJECT, '{"k":"' + "x" * 65536 + '"}'],
    },
    "history_items": {
        "history": ["x", None], "part": ["x" * 513, "a\0b", None, "\U0010ffff" * 512],
        "key": ["", "x" * 513, "a\0b", None, "\U0010ffff" * 513],
        "number": [0, -1, "x", None], "encoding": ["", "x" * 65, "a\0b", None], "checksum": [-1, 2**32, "x", None],
        "size": [1, 3, -1, "x", None], "created": [*NO_TIME, None],
        "meta": [*NO_OBJECT, '{"k":"' + "x" * 65536 + '"}'], "body": ["{}", b"", 1, None],
    },
    "notifiers": {
        "name": ["", "x" * 301, None], "cursor": [-1, 2, "x", None], "first": [1, 4, None], "until": [1, "x", None],
        "skipped": [-1, "x", None], "attempts": [-1, "x", None], "failures": [-1, "x", None], "lease": [-1, "x", None],
        "lease_until": NO_TIME, "due": NO_TIME, "delivered": [-1, "x", None], "dropped": [-1, "x", None],
        "dead": [-1, "x", None], "error": ["", "x" * 501], "created": [*NO_TIME, None], "updated": [*NO_TIME, None],
    },
    "tokens": {
        "id": ["", "T", "x" * 33, None], "hash": ["", "0" * 63, "G" * 64, None], "role": ["", "admin", "agent:", None],
        "operator": ["", "x" * 201, None], "created": [*NO_TIME, None], "expires": NO_TIME,
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("constraints")

    async def make() -> None:
        async with agentbus.connect(directory):
            pass

    asyncio.run(make())
    return directory / "bus.db"


@pytest.fixture
def raw(database: Path) -> Iterator[sqlite3.Connection]:
    """As the shell would: no foreign keys, no knowledge of the bus. What a test does is undone."""
    connection = sqlite3.connect(database, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield connection
    finally:
        connection.execute("ROLLBACK")
        connection.close()


@pytest.fixture
def filled(raw: sqlite3.Connection) -> sqlite3.Connection:
    """With the good row of each table."""
    for table, row in ROWS.items():
        insert(raw, table, row)
    return raw


@contextmanager
def undone(connection: sqlite3.Connection) -> Iterator[None]:
    """Undo what one case did."""
    connection.execute("SAVEPOINT one_case")
    try:
        yield
    finally:
        connection.execute("ROLLBACK TO one_case")


def insert(connection: sqlite3.Connection, table: str, row: dict[str, Any]) -> None:
    marks = ", ".join("?" * len(row))
    connection.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({marks})", tuple(row.values()))


def test_every_table_is_looked_at_and_strict(raw: sqlite3.Connection) -> None:
    tables = raw.execute(
        "SELECT name, strict FROM pragma_table_list WHERE schema = 'main' AND type = 'table'"
    ).fetchall()
    own = {name: strict for name, strict in tables if not name.startswith("sqlite_")}
    assert set(own) == set(ROWS) == set(BAD)
    assert all(own.values())


CASES = [(table, column) for table in BAD for column in BAD[table]]


@each(("table", "column"), CASES)
def test_a_new_row_with_a_bad_value_is_refused(raw: sqlite3.Connection, table: str, column: str) -> None:
    with undone(raw):
        for other, row in ROWS.items():
            if other != table:
                insert(raw, other, row)
        for value in BAD[table][column]:
            with pytest.raises(sqlite3.IntegrityError):
                insert(raw, table, {**ROWS[table], column: value})
        insert(raw, table, ROWS[table])


@each(("table", "column"), CASES)
def test_a_row_cannot_be_changed_to_a_bad_value(filled: sqlite3.Connection, table: str, column: str) -> None:
    good = ROWS[table]
    where = " AND ".join(f"{name} IS ?" for name in good)
    for value in BAD[table][column]:
        with pytest.raises(sqlite3.IntegrityError):
            filled.execute(f"UPDATE {table} SET {column} = ? WHERE {where}", (value, *good.values()))
    assert filled.execute(f"SELECT count(*) FROM {table} WHERE {where}", tuple(good.values())).fetchone() == (1,)


@each("status", ["scheduled", "queued", "leased", "acked", "dead", "expired"])
def test_every_status_of_a_message_is_accepted_with_what_belongs_to_it(filled: sqlite3.Connection, status: str) -> None:
    finished = 5 if status in {"acked", "dead", "expired"} else None
    filled.execute(
        "UPDATE messages SET status = ?, finished = ?, holder = 'a', lease_until = 5, due = 5 WHERE id = 900",
        (status, finished),
    )


@each("status", ["pending", "spawning", "running", "suspect", "completed", "failed", "stopped"])
def test_every_status_of_an_agent_is_accepted_with_what_belongs_to_it(filled: sqlite3.Connection, status: str) -> None:
    ended = 5 if status in {"completed", "failed", "stopped"} else None
    filled.execute("UPDATE agents SET status = ?, ended = ? WHERE id = 'a'", (status, ended))


TASKS = {
    "pending": "due = 0", "running": "holder = 'a', lease_until = 5", "waiting": "due = 5", "halted": "due = NULL",
    "completed": "result = '1', result_sum = 0, ended = 5", "failed": "ended = 5", "stopped": "ended = 5",
}  # fmt: skip


@each("status", TASKS)
def test_every_status_of_a_task_is_accepted_with_what_belongs_to_it(filled: sqlite3.Connection, status: str) -> None:
    redo = "'[]'" if status == "running" else "NULL"
    free = "holder = NULL, lease_until = NULL"
    with undone(filled):
        filled.execute(f"UPDATE tasks SET {free}, redo = {redo}, status = '{status}', {TASKS[status]}")
        if status not in {"waiting", "halted"}:
            with pytest.raises(sqlite3.IntegrityError):
                filled.execute(
                    "UPDATE tasks SET holder = NULL, lease_until = NULL, due = NULL, ended = NULL, result = NULL,"
                    " result_sum = NULL"
                )


@each("status", ["running", "retrying", "failed", "interrupted", "unknown", "cancelled"])
def test_every_status_of_a_step_is_accepted_without_a_result(filled: sqlite3.Connection, status: str) -> None:
    finished = 5 if status in {"failed", "cancelled"} else None
    with undone(filled):
        with pytest.raises(sqlite3.IntegrityError):
            filled.execute("UPDATE steps SET status = ?, finished = ?", (status, finished))
        filled.execute("UPDATE steps SET status = ?, finished = ?, result = NULL, checksum = NULL", (status, finished))


def test_an_approval_is_decided_by_a_person_or_passed_through(filled: sqlite3.Connection) -> None:
    filled.execute("UPDATE approvals SET status = 'approved', auto = 1, decided_by = NULL")
    for bad in ("auto = 0", "decided_by = 'ada'", "status = 'rejected'"):
        with pytest.raises(sqlite3.IntegrityError):
            filled.execute(f"UPDATE approvals SET {bad}")


def test_a_step_that_counts_is_there_once(filled: sqlite3.Connection) -> None:
    with pytest.raises(sqlite3.IntegrityError):
        insert(filled, "steps", {**ROWS["steps"], "id": 901})
    insert(filled, "steps", {**ROWS["steps"], "id": 901, "superseded": 1})


def test_a_visiting_agent_has_a_timeout(filled: sqlite3.Connection) -> None:
    with pytest.raises(sqlite3.IntegrityError):
        filled.execute("UPDATE agents SET kind = 'visiting', patience = NULL WHERE id = 'a'")
    filled.execute("UPDATE agents SET kind = 'visiting' WHERE id = 'a'")


def test_a_type_that_was_added_to_the_vocabulary_is_accepted(filled: sqlite3.Connection) -> None:
    filled.execute("UPDATE messages SET type = 'own' WHERE id = 900")


def test_only_a_message_in_a_thread_is_held(filled: sqlite3.Connection) -> None:
    filled.execute("UPDATE messages SET status = 'scheduled', due = NULL")
    with pytest.raises(sqlite3.IntegrityError):
        filled.execute("UPDATE messages SET correlation = NULL")


def test_a_message_id_is_used_once_in_a_mailbox(filled: sqlite3.Connection) -> None:
    with pytest.raises(sqlite3.IntegrityError):
        insert(filled, "messages", {**ROWS["messages"], "id": 901})


def test_a_change_number_is_used_once_in_a_scope(filled: sqlite3.Connection) -> None:
    with pytest.raises(sqlite3.IntegrityError):
        insert(filled, "state", {**ROWS["state"], "key": "other"})


def test_a_tombstone_has_neither_value_nor_checksum_nor_expiry(filled: sqlite3.Connection) -> None:
    for half in ("value = NULL", "value = NULL, checksum = NULL", "checksum = NULL, expires = NULL"):
        with pytest.raises(sqlite3.IntegrityError):
            filled.execute(f"UPDATE state SET {half}")
    filled.execute("UPDATE state SET value = NULL, checksum = NULL, expires = NULL")


def test_a_sessions_scope_has_room_for_the_longest_session_id(filled: sqlite3.Connection) -> None:
    filled.execute("UPDATE state SET scope = ?", ("session:" + "x" * 128,))


def test_a_type_is_never_removed_or_renamed(filled: sqlite3.Connection) -> None:
    for change in (
        "DELETE FROM vocabulary",
        "UPDATE vocabulary SET name = 'other'",
        "UPDATE vocabulary SET kind = 'agent'",
    ):
        for name in ("own", "note"):
            with pytest.raises(sqlite3.IntegrityError):
                filled.execute(f"{change} WHERE name = ?", (name,))
    filled.execute("UPDATE vocabulary SET description = 'better' WHERE name = 'own'")


def test_a_row_may_not_be_orphaned_where_foreign_keys_are_on(raw: sqlite3.Connection) -> None:
    raw.execute("ROLLBACK")
    raw.execute("PRAGMA foreign_keys = ON")
    raw.execute("BEGIN IMMEDIATE")
    with pytest.raises(sqlite3.IntegrityError):
        insert(raw, "messages", ROWS["messages"])
