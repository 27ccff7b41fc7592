"""The cache of lookups: an answer is never older than the transaction that uses it, whatever has changed it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from agentbus.core.addresses import Address
from agentbus.core.clock import Now
from agentbus.core.codec import encode
from agentbus.engine.queries import DIRECTORY, load
from agentbus.engine.sqlite import lock, paths, transaction
from agentbus.engine.sqlite.blocking import BlockingSQLite
from agentbus.engine.sqlite.doorbell import Bell, open_doorbell
from agentbus.engine.sqlite.transaction import TransactionRunner
from agentbus.errors import AgentBusError, StoreError
from agentbus.operations.agent_deletion import DeleteRequest, delete
from agentbus.operations.agent_identity import Registration
from agentbus.operations.agents import DeclareRequest, EndRequest, RegisterRequest, declare, finish, register
from agentbus.operations.processes import EnterRequest, LeaveRequest, ListenRequest, enter, leave, listen
from agentbus.operations.protocol import (
    LIVE,
    Actor,
    Call,
    Op,
    Operation,
    Outcome,
    Part,
    Query,
    Rows,
    UnitRequest,
    mailbox_channel,
    operation,
    unit,
)
from agentbus.operations.quotas import ChangeQuotasRequest, change_quotas
from agentbus.operations.receive import AckRequest, ClaimRequest, ack, claim, list_held
from agentbus.operations.rows import Draft, Lease, Profile
from agentbus.operations.send import SendRequest, send
from agentbus.operations.types import DefineRequest, define
from tests.support.cases import each
from tests.support.clock import FakeClock


@operation(durable=False)
def look_up(requests: Sequence[Query], now: Now) -> Op[list[Outcome[Rows]]]:
    found: list[Outcome[Rows]] = []
    for query in requests:
        found.append((yield query))
    return found


def note(to: str, *, kind: Any = "agent", type: str = "note") -> SendRequest:
    draft = Draft(Address(kind, to), type, encode(1, 1_000), 5, 5)
    return SendRequest(Actor("a", 1), (draft,))


def standing(*agents: str) -> Query:
    return Query("agent_statuses", (list(agents),))


class Place:
    """A bus with two connections, as of two processes. Both have sent from ``a`` to ``b`` before."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self.home = paths.find(directory)
        self._stack = stack
        self.one, self.other = self.open(), self.open()
        self.registered = {agent: self.register(agent) for agent in "ab"}
        self.leases: list[Lease] = []
        self.one.write(declare, DeclareRequest(("p",), ()))

    def open(self) -> BlockingSQLite:
        return self._stack.enter_context(
            closing(BlockingSQLite(self.home, durability="process", clock=FakeClock(), lock_timeout=5))
        )

    @property
    def runner(self) -> TransactionRunner:
        assert self.one._runner is not None
        return self.one._runner

    def register(self, agent: str, **options: Any) -> Registration:
        return self.other.write(register, visiting(agent, **options))

    def claiming(self) -> ClaimRequest:
        return ClaimRequest(Actor("b", 1), (), (self.registered["b"].mailbox,), (), 1, 60_000)

    def sql(self, *statements: str) -> None:
        """Write with another program."""
        with closing(sqlite3.connect(self.home.file, isolation_level=None)) as connection:
            for statement in statements:
                connection.execute(statement)

    def rows(self, sql: str) -> list[Any]:
        with closing(sqlite3.connect(self.home.file)) as connection:
            return [row[0] for row in connection.execute(sql)]

    def write(self, operation: Operation[Any, Any], request: Any) -> str:
        """Return the name of the error, if there is one."""
        try:
            self.one.write(operation, request)
        except AgentBusError as error:
            return type(error).__name__
        return OK


def visiting(agent: str, **options: Any) -> RegisterRequest:
    return RegisterRequest(agent, "worker", None, Profile(), kind="visiting", **options)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with ExitStack() as stack:
        yield Place(tmp_path / "bus", stack)


# Changes by others

OK = ""
Probe = Callable[[Place], str]
Change = Callable[[Place], object]
Request = tuple[Operation[Any, Any], Any]


def sends_to(name: str, **options: Any) -> Probe:
    return lambda place: place.write(send, note(name, **options))


def claims(place: Place) -> str:
    return place.write(claim, place.claiming())


def held(place: Place) -> None:
    """Let ``b`` hold three messages."""
    for _ in range(3):
        place.other.write(send, note("b"))
        place.leases.append(place.other.write(claim, place.claiming()).rows[0].delivered)


def settles(place: Place) -> str:
    return place.write(ack, AckRequest(Actor("b", 1), (place.leases.pop(),)))


def replies_of_b(place: Place) -> str:
    """Return the name and kind of the mailbox for replies to ``b``."""
    ((_, _, _, _, mailbox),) = place.one.write(look_up, standing("b"))
    (found,) = place.rows(f"SELECT name || ' ' || kind FROM mailboxes WHERE id = {mailbox:d}")
    return str(found)


def arrives_in(place: Place) -> str:
    """Send to ``b`` and return the name of the mailbox."""
    assert place.write(send, note("b")) == OK
    (name,) = place.rows("SELECT name FROM mailboxes JOIN messages ON mailbox = mailboxes.id ORDER BY messages.id")[-1:]
    return str(name)


def statement(*sql: str) -> Change:
    return lambda place: place.sql(*sql)


def ended(place: Place, agent: str = "b") -> None:
    place.other.write(finish, EndRequest(Actor(agent, 1), "completed"))


def deleted(place: Place) -> None:
    ended(place)
    place.other.write(delete, DeleteRequest("b"))


def renewed(place: Place) -> None:
    deleted(place)
    place.sql("UPDATE mailboxes SET name = 'old' WHERE name = 'b'")
    place.register("b")


def quota(**changes: Any) -> Change:
    return lambda place: place.other.write(change_quotas, ChangeQuotasRequest(changes))


def declared(pools: tuple[str, ...] = (), topics: tuple[str, ...] = ()) -> Change:
    return lambda place: place.other.write(declare, DeclareRequest(pools, topics))


def defined(name: str, schema: str | None = None) -> Change:
    return lambda place: place.other.write(define, DefineRequest("message", name, "", schema))


COMPLETED = "UPDATE agents SET status = 'completed', ended = 1 WHERE id = "
COPIED = """
INSERT OR REPLACE INTO agents (id, name, type, status, epoch, mailbox, replies, created, updated)
SELECT id, name, type, 'running', 7, mailbox, replies, created, updated FROM agents WHERE id = 'a'
"""
ADDED = """
INSERT INTO agents (id, name, type, status, epoch, mailbox, replies, created, updated)
SELECT 'c', name, type, 'running', 1, mailbox, replies, created, updated FROM agents WHERE id = 'b'
"""
TYPE = "INSERT INTO vocabulary (kind, name, created) VALUES ('message', 'new', 1)"
POOL = "INSERT INTO mailboxes (kind, name, created) VALUES ('pool', 'q', 1)"
QUOTA = """INSERT INTO meta (key, value) VALUES ('quotas', '{"depth": 0}')"""
to_p = sends_to("p", kind="pool")
to_q = sends_to("q", kind="pool")
typed = sends_to("b", type="new")


@dataclass(frozen=True)
class Case:
    """A change of one thing by another connection, and an operation whose outcome it changes."""

    name: str
    probe: Probe
    before: str
    change: Change
    after: str
    first: Sequence[Change] = field(default=())


CASES = [
    Case("the recipient has ended", sends_to("b"), OK, ended, "AgentEnded"),
    Case("the recipient has ended, by SQL", sends_to("b"), OK, statement(COMPLETED + "'b'"), "AgentEnded"),
    Case("the sender has ended", sends_to("b"), OK, lambda place: ended(place, "a"), "AgentFenced"),
    Case("the receiver has ended", claims, OK, ended, "AgentFenced"),
    Case("the receiver has ended, by SQL", claims, OK, statement(COMPLETED + "'b'"), "AgentFenced"),
    Case(
        "the recipient has returned", sends_to("b"), "AgentEnded", lambda place: place.register("b"), OK,
        first=[ended],
    ),
    Case(
        "the recipient has returned, by SQL", sends_to("b"), "AgentEnded",
        statement("UPDATE agents SET status = 'running', ended = NULL WHERE id = 'b'"), OK, first=[ended],
    ),
    Case("the holder has ended, by SQL", settles, OK, statement(COMPLETED + "'b'"), "AgentFenced", first=[held]),
    Case("taken over", claims, OK, lambda place: place.register("b", takeover=True), "AgentFenced"),
    Case("another epoch, by SQL", claims, OK, statement("UPDATE agents SET epoch = 2 WHERE id = 'b'"), "AgentFenced"),
    Case("a row replaced, by SQL", sends_to("b"), OK, statement(COPIED), "AgentFenced"),
    Case("deleted", sends_to("b"), OK, deleted, "UnknownRecipient"),
    Case("deleted, by SQL", sends_to("b"), OK, statement("DELETE FROM agents WHERE id = 'b'"), "UnknownRecipient"),
    Case("all deleted, by SQL", sends_to("b"), OK, statement("DELETE FROM agents"), "AgentFenced"),
    Case("the receiver is deleted", claims, OK, statement("DELETE FROM agents"), "AgentFenced"),
    Case("added", sends_to("c"), "UnknownRecipient", lambda place: place.register("c"), OK),
    Case("added, by SQL", sends_to("c"), "UnknownRecipient", statement(ADDED), OK),
    Case(
        "renamed, by SQL", sends_to("c"), "UnknownRecipient",
        statement("UPDATE agents SET id = 'c' WHERE id = 'b'"), OK,
    ),
    Case("deleted and registered", arrives_in, "b", renewed, "b"),
    Case(
        "another mailbox, by SQL", arrives_in, "b",
        statement("UPDATE agents SET mailbox = (SELECT mailbox FROM agents WHERE id = 'a') WHERE id = 'b'"), "a",
    ),
    Case(
        "another mailbox for replies, by SQL", replies_of_b, "b replies",
        statement("UPDATE agents SET replies = mailbox WHERE id = 'b'"), "b agent",
    ),
    Case("a pool is added", to_q, "UnknownRecipient", declared(pools=("q",)), OK),
    Case("a pool is added, by SQL", to_q, "UnknownRecipient", statement(POOL), OK),
    Case(
        "a pool is joined for the first time", to_q, "UnknownRecipient",
        lambda place: place.register("c", pools=("q",)), OK,
    ),
    Case("a pool is deleted", to_p, OK, statement("DELETE FROM mailboxes WHERE kind = 'pool'"), "UnknownRecipient"),
    Case(
        "a pool is renamed", to_q, "UnknownRecipient", statement("UPDATE mailboxes SET name = 'q' WHERE name = 'p'"), OK
    ),
    Case(
        "a pool becomes a topic", to_p, OK, statement("UPDATE mailboxes SET kind = 'topic' WHERE name = 'p'"),
        "UnknownRecipient",
    ),
    Case(
        "a topic becomes a pool", to_q, "UnknownRecipient",
        statement("UPDATE mailboxes SET kind = 'pool' WHERE name = 'q'"), OK, first=[declared(topics=("q",))],
    ),
    Case("a type is defined", typed, "UnknownType", defined("new"), OK),
    Case("a type is defined, by SQL", typed, "UnknownType", statement(TYPE), OK),
    Case("a type gets a schema", typed, OK, defined("new", '{"type":"object"}'), "Unchecked", first=[defined("new")]),
    Case(
        "a type loses its schema, by SQL", typed, "Unchecked", statement("UPDATE vocabulary SET schema = NULL"), OK,
        first=[defined("new", '{"type":"object"}')],
    ),
    Case("quotas are set", sends_to("b"), OK, quota(depth=1), "QueueFull"),
    Case("quotas are set, by SQL", sends_to("b"), OK, statement(QUOTA), "QueueFull"),
    Case("quotas are changed", sends_to("b"), "QueueFull", quota(depth=100), OK, first=[statement(QUOTA)]),
    Case("quotas are removed", sends_to("b"), "QueueFull", quota(depth=None), OK, first=[statement(QUOTA)]),
    Case(
        "quotas are deleted, by SQL", sends_to("b"), "QueueFull",
        statement("DELETE FROM meta WHERE key = 'quotas'"), OK, first=[statement(QUOTA)],
    ),
    Case(
        "quotas get another key, by SQL", sends_to("b"), "QueueFull",
        statement("UPDATE meta SET key = 'other' WHERE key = 'quotas'"), OK, first=[statement(QUOTA)],
    ),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_change_by_another_connection_is_seen_by_the_next_call(place: Place, case: Case) -> None:
    for change in case.first:
        change(place)
    assert [case.probe(place), case.probe(place)] == [case.before] * 2
    case.change(place)
    assert case.probe(place) == case.after


def test_what_has_not_changed_is_looked_up_once(place: Place) -> None:
    """Sending, claiming and acknowledging change nothing of it."""
    executed: list[str] = []
    place.runner._connection.set_trace_callback(executed.append)
    for _ in range(4):
        place.one.write(send, note("b"))
        found = place.one.write(claim, place.claiming())
        place.one.write(ack, AckRequest(Actor("b", 1), (found.rows[0].delivered,)))
    looked_up = [sql for sql in executed if "agents_standing" in sql]
    assert len(looked_up) == 2, "that of the two agents of the message, and that of the receiver"
    assert len([sql for sql in executed if "COMMIT" in sql]) == 12


# Changes by the same transaction


def outcomes(place: Place, *calls: Request) -> list[str]:
    """Run calls in one batch and return the names of their errors."""
    batch = [Call(operation, request, False) for operation, request in calls]
    place.runner.run(batch)
    return [type(call.outcome).__name__ if isinstance(call.outcome, Exception) else OK for call in batch]


@operation(durable=False)
def register_and_fail(requests: Sequence[RegisterRequest], now: Now) -> Op[list[Outcome[None]]]:
    """Register agents, send to them, which looks them up as a later send does, and fail."""
    yield from register.run(requests, now)
    for request in requests:
        (receipts,) = yield from send.run([note(request.agent)], now)
        assert isinstance(receipts, list)
    raise ZeroDivisionError


@operation(durable=False)
def define_and_fail(requests: Sequence[DefineRequest], now: Now) -> Op[list[Outcome[None]]]:
    """Define types, look them up, and fail."""
    for request in requests:
        assert (yield known(request.name)) == []
    yield from define.run(requests, now)
    for request in requests:
        assert len((yield known(request.name))) == 1
    raise ZeroDivisionError


def known(name: str) -> Query:
    return Query("type_known", ("message", [name]))


def message_type(name: str) -> DefineRequest:
    return DefineRequest("message", name)


def test_a_batch_sees_what_it_has_changed_itself(place: Place) -> None:
    assert place.write(send, note("c")) == "UnknownRecipient"
    assert outcomes(place, (register, visiting("c")), (send, note("c"))) == [OK, OK]
    assert place.write(send, note("c")) == OK
    end = (finish, EndRequest(Actor("c", 1), "completed"))
    assert outcomes(place, end, (send, note("c"))) == [OK, "AgentEnded"]
    assert place.write(send, note("c")) == "AgentEnded"


def test_a_look_up_after_a_write_of_its_own_transaction_is_not_from_before(place: Place) -> None:
    @operation(durable=False)
    def change(requests: Sequence[None], now: Now) -> Op[list[Outcome[list[Rows]]]]:
        before = yield known("new")
        yield from define.run([message_type("new")], now)
        return [[before, (yield known("new")), (yield known("new"))]]

    place.one.write(look_up, known("new"))
    assert [len(rows) for rows in place.one.write(change, None)] == [0, 1, 1]


def test_a_change_that_was_rolled_back_to_a_savepoint_is_not_seen(place: Place) -> None:
    """By the call behind it in the batch, and by a later one."""
    failing: Request = (register_and_fail, visiting("c"))
    calls: list[Request] = [failing, (send, note("c")), failing, (send, note("c")), (send, note("b"))]
    assert outcomes(place, *calls) == [
        "ZeroDivisionError", "UnknownRecipient", "ZeroDivisionError", "UnknownRecipient", OK,
    ]  # fmt: skip
    assert place.write(send, note("c")) == "UnknownRecipient"


def test_a_rollback_to_a_savepoint_leaves_what_the_calls_before_it_changed(place: Place) -> None:
    calls: list[Request] = [
        (register, visiting("c")),
        (register_and_fail, visiting("d")),
        (send, note("c")),
        (send, note("d")),
    ]
    assert outcomes(place, *calls) == [OK, "ZeroDivisionError", OK, "UnknownRecipient"]
    assert place.write(send, note("c")) == OK
    assert place.write(send, note("d")) == "UnknownRecipient"


def no_commit(action: int, what: str | None, *_: object) -> int:
    refused = action == sqlite3.SQLITE_TRANSACTION and what == "COMMIT"
    return sqlite3.SQLITE_DENY if refused else sqlite3.SQLITE_OK


@each("how", ["the call fails", "the commit fails", "the batch fails"])
def test_a_change_that_was_rolled_back_is_not_seen_when_another_counts_as_far(place: Place, how: str) -> None:
    """The number of changes alone does not tell the change that was undone from the one that came instead."""
    undone, other = f"undone-{len(how)}", f"other-{len(how)}"
    assert place.write(send, note("b", type=undone)) == "UnknownType"
    before = directory(place)
    if how == "the call fails":
        assert outcomes(place, (define_and_fail, message_type(undone))) == ["ZeroDivisionError"]
    elif how == "the batch fails":
        failing = (define_and_fail, message_type(undone))
        assert outcomes(place, failing, failing) == ["ZeroDivisionError"] * 2
    else:
        place.runner._connection.set_authorizer(no_commit)
        calls: list[Request] = [(define, message_type(undone)), (send, note("b", type=undone))]
        assert outcomes(place, *calls) == ["StoreError", "StoreError"]
        place.runner._connection.set_authorizer(None)
    assert directory(place) == before
    place.other.write(define, message_type(other))
    assert directory(place) == before + 1
    assert place.write(send, note("b", type=undone)) == "UnknownType"
    assert place.write(send, note("b", type=other)) == OK


def directory(place: Place) -> int:
    (found,) = place.rows("SELECT value FROM counters WHERE name = 'directory'")
    return int(found)


# The triggers


def columns_read(place: Place, name: str) -> set[tuple[str, str]]:
    """Return the tables and columns that a query reads, as SQLite reports them."""
    read: set[tuple[str, str]] = set()

    def note(action: int, table: str | None, column: str | None, *_: object) -> int:
        if (
            action == sqlite3.SQLITE_READ
            and table is not None
            and column
            and not table.startswith(("json_", "sqlite_"))
        ):
            read.add((table, column))
        return sqlite3.SQLITE_OK

    sql = load("sqlite")[name]
    with closing(sqlite3.connect(place.home.file)) as connection:
        connection.set_authorizer(note)
        connection.execute(f"EXPLAIN {sql}", [None] * sql.count("?"))
    return read


LOOKED_UP = {
    "agents": "agents WHERE id = 'b'",
    "mailboxes": "mailboxes WHERE kind = 'pool'",
    "vocabulary": "vocabulary WHERE kind = 'message' AND name = 'note'",
    "meta": "meta WHERE key = 'quotas'",
}
"""A row of each table that a lookup may return."""
UNGUARDED = ("DROP TRIGGER IF EXISTS vocabulary_stays", "DROP TRIGGER IF EXISTS vocabulary_keeps_its_names")
"""No test of these: they refuse to remove and to rename a type."""


@each("name", sorted(DIRECTORY))
def test_a_change_of_any_column_that_a_look_up_reads_is_counted(place: Place, name: str) -> None:
    found = columns_read(place, name)
    assert found
    place.sql("INSERT OR IGNORE INTO meta (key, value) VALUES ('quotas', '{}')", *UNGUARDED)
    with closing(sqlite3.connect(place.home.file, isolation_level=None)) as connection:
        # A column may be changed by itself, to any other value.
        connection.execute("PRAGMA ignore_check_constraints = ON")
        for table, column in sorted(found):
            where = LOOKED_UP[table]
            before = directory(place)
            ((type,),) = connection.execute(f"SELECT typeof({column}) FROM {where}").fetchall()
            value = f"{column} + 1000" if type == "integer" else f"coalesce({column}, '') || 'x'"
            connection.execute("SAVEPOINT before")
            connection.execute(f"UPDATE {table} SET {column} = {value} WHERE {where.partition(' WHERE ')[2]}")
            ((after,),) = connection.execute("SELECT value FROM counters WHERE name = 'directory'")
            connection.execute("ROLLBACK TO before")
            connection.execute("RELEASE before")
            assert after > before, f"{table}.{column}"


@each("table", sorted(LOOKED_UP))
def test_every_table_that_is_looked_up_counts_rows_that_come_and_go(place: Place, table: str) -> None:
    assert table in {table for name in DIRECTORY for table, _ in columns_read(place, name)}
    place.sql("INSERT OR IGNORE INTO meta (key, value) VALUES ('quotas', '{}')")
    numbers = [directory(place)]
    place.sql(*UNGUARDED)
    place.sql(f"CREATE TABLE kept AS SELECT * FROM {LOOKED_UP[table]}")
    for change in (f"DELETE FROM {LOOKED_UP[table]}", f"INSERT INTO {table} SELECT * FROM kept"):
        place.sql(change)
        numbers.append(directory(place))
    place.sql("DROP TABLE kept")
    assert numbers[0] < numbers[1] < numbers[2]


def test_what_calls_change_all_the_time_is_not_counted(place: Place) -> None:
    """Otherwise no answer would be used twice."""
    before = directory(place)
    place.one.write(send, note("p", kind="pool"))
    place.one.write(send, note("b"))
    place.one.write(claim, place.claiming())
    place.sql("UPDATE agents SET progress = 5, last_call = 7", "UPDATE mailboxes SET epoch = 1 WHERE kind = 'agent'")
    place.sql("INSERT INTO meta (key, value) VALUES ('mine', '1')", "UPDATE meta SET value = '2' WHERE key = 'mine'")
    assert directory(place) == before


# The size of the cache


@pytest.mark.parametrize("found", [0, 1, 6])
def test_the_number_of_cached_rows_is_bounded(place: Place, monkeypatch: pytest.MonkeyPatch, found: int) -> None:
    """The names in the question count too: an answer without rows is not free."""
    monkeypatch.setattr(transaction, "_MAX_CACHED_ROWS", 30)
    cache = place.runner._lookups
    agents = [place.register(f"agent-{number}").agent for number in range(found)]
    for number in range(200):
        assert len(place.one.write(look_up, standing(*agents, f"nothing-{number}"))) == found
        assert sum(len(answer) or 1 for answer in cache._answers.values()) <= 30
        assert sum(len(cell) for key in cache._answers for cell in key if type(cell) is tuple) <= 30
    assert cache._answers
    assert place.write(send, note("b")) == OK
    place.other.write(finish, EndRequest(Actor("b", 1), "completed"))
    assert place.write(send, note("b")) == "AgentEnded"


def test_an_answer_that_is_too_large_is_not_cached(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction, "_MAX_CACHED_ROWS", 30)
    for _ in range(2):
        place.one.write(look_up, standing(*(f"nothing-{number}" for number in range(40))))
    assert not place.runner._lookups._answers


# Counters that cannot be read


def unreadable(action: int, table: str | None, *_: object) -> int:
    refused = action == sqlite3.SQLITE_READ and table == "counters"
    return sqlite3.SQLITE_DENY if refused else sqlite3.SQLITE_OK


def is_free(place: Place) -> bool:
    """Return True if neither the lock nor a transaction is left, so that another program writes at once."""
    assert not place.runner._connection.in_transaction
    with closing(sqlite3.connect(place.home.file, timeout=0, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("ROLLBACK")
    return lock.holder(str(place.home.lock)) is None


LOST: dict[str, tuple[Change, Change]] = {
    "no row": (
        statement("DELETE FROM counters WHERE name = 'directory'"),
        statement("INSERT INTO counters (name, value) VALUES ('directory', 0)"),
    ),
    "an error": (
        lambda place: place.runner._connection.set_authorizer(unreadable),
        lambda place: place.runner._connection.set_authorizer(None),
    ),
    "no table": (
        statement("ALTER TABLE counters RENAME TO lost"),
        statement("ALTER TABLE lost RENAME TO counters"),
    ),
}


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("kind", LOST)
def test_a_transaction_that_cannot_read_the_counters_is_closed(place: Place, kind: str, number: int) -> None:
    lose, restore = LOST[kind]
    lose(place)
    for run in (place.runner.run, place.runner.run_nowait, place.runner.run):
        calls = [Call(define, message_type(f"new-{each}"), False) for each in range(number)]
        run(calls)
        assert [type(call.outcome) for call in calls] == [StoreError] * number
        assert is_free(place)
    restore(place)
    assert place.rows("SELECT name FROM vocabulary WHERE name LIKE 'new%'") == []
    assert place.write(define, message_type("new")) == OK
    assert place.write(send, note("b", type="new")) == OK


# Listeners


class Listener:
    """Another process, with a doorbell."""

    def __init__(self, place: Place, bell: Bell) -> None:
        self.bell = bell
        self._place = place
        self.process = place.other.write(enter, EnterRequest("host", 2, "1", bell.path)).process
        place.other.set_process(self.process)

    def listen(self, channel: str, *, add: bool = True) -> None:
        self._place.other.write(listen, ListenRequest(self.process, channel, add))


@pytest.fixture
def listener(place: Place) -> Iterator[Listener]:
    with closing(open_doorbell(place.home)) as bell:
        yield Listener(place, bell)


def registered_with_process(place: Place, agent: str, *, fails: bool) -> Request:
    """Return a call that registers an agent of this process, and so listens to its mailboxes."""
    process = place.one.write(enter, EnterRequest("host", 1, "1", None)).process
    place.one.set_process(process)
    parts = [Part(register, RegisterRequest(agent, "worker", process, Profile()))]
    parts += [Part(send, note("nowhere"))] * fails
    return unit, UnitRequest(tuple(parts))


def topology(place: Place) -> int:
    (found,) = place.rows("SELECT value FROM counters WHERE name = 'topology'")
    return int(found)


@each("before", [False, True])
@pytest.mark.parametrize("first", ["send", "register"])
def test_a_process_that_listens_after_a_registration_was_rolled_back_is_rung(
    place: Place, listener: Listener, first: str, before: bool
) -> None:
    """Both count the listeners to the same number, and only the number tells that they have changed."""
    mailbox = f"agent-{before}"
    channel = mailbox_channel(place.register(mailbox).mailbox)
    if before:
        assert place.write(send, note(mailbox)) == OK
    failing = registered_with_process(place, "x", fails=True)
    listeners = topology(place)
    calls = [(send, note(mailbox)), failing] if first == "send" else [failing, (send, note(mailbox))]
    expected = {"send": OK, "unit": "UnknownRecipient"}
    assert outcomes(place, *calls) == [expected[operation.name] for operation, _ in calls]
    assert topology(place) == listeners
    assert listener.bell.rung() == []
    listener.listen(channel)
    assert topology(place) == listeners + 1, "as far as the registration counted"
    assert place.write(send, note(mailbox)) == OK
    assert listener.bell.rung() == [channel]


def test_a_process_that_listens_between_two_registrations_is_rung(place: Place, listener: Listener) -> None:
    """In neither transaction is the number of its listeners known until the end."""
    channel = mailbox_channel(place.registered["b"].mailbox)
    assert outcomes(place, registered_with_process(place, "x", fails=False), (send, note("b"))) == [OK, OK]
    listener.listen(channel)
    assert outcomes(place, registered_with_process(place, "y", fails=False), (send, note("b"))) == [OK, OK]
    assert listener.bell.rung() == [channel]


def test_a_process_whose_removal_was_rolled_back_is_still_rung(place: Place, listener: Listener) -> None:
    channel = mailbox_channel(place.registered["b"].mailbox)
    listener.listen(channel)
    place.runner._connection.set_authorizer(no_commit)
    removal = (leave, LeaveRequest((listener.process,), False, "it is gone"))
    assert outcomes(place, removal, (send, note("b"))) == ["StoreError", "StoreError"]
    place.runner._connection.set_authorizer(None)
    assert listener.bell.rung() == []
    assert place.write(send, note("b")) == OK
    assert listener.bell.rung() == [channel]


def test_a_change_is_announced_to_a_process_that_watches_after_a_rollback(place: Place, listener: Listener) -> None:
    """A claim names its message to the processes that listen to ``LIVE``, and looks whether there are any."""
    failing = registered_with_process(place, "x", fails=True)
    place.one.write(send, note("b"))
    listeners = topology(place)
    assert outcomes(place, failing, (claim, place.claiming())) == ["UnknownRecipient", OK]
    ((id, lease),) = place.one.read(held_by, "b")
    listener.listen(LIVE)
    assert topology(place) == listeners + 1
    assert place.write(ack, AckRequest(Actor("b", 1), ((id, lease),))) == OK
    assert listener.bell.rung() == [f"live#acked {id}"]


def held_by(agent: str, now: Now) -> Op[list[Lease]]:
    return [(held.id, held.lease) for held in (yield from list_held(agent, now))]


def test_a_process_that_stops_listening_is_rung_no_more_and_rung_once_it_returns(
    place: Place, listener: Listener
) -> None:
    channel = mailbox_channel(place.registered["b"].mailbox)
    for _ in range(3):
        listener.listen(channel)
        assert place.write(send, note("b")) == OK
        assert place.write(send, note("b")) == OK
        assert listener.bell.rung() == [channel, channel]
        listener.listen(channel, add=False)
        assert place.write(send, note("b")) == OK
        assert listener.bell.rung() == []
