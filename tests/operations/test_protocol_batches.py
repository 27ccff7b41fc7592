"""A batch must not change what a request means: run together or one after another, the outcome is the same.

The only tests here with a database: the rules are compared with themselves, in memory, and a request that is run by
itself with what the tables said before.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentbus.core.addresses import Address, pool, topic
from agentbus.core.clock import Now
from agentbus.core.codec import encode, plain
from agentbus.engine.queries import load
from agentbus.engine.sqlite.connection import Connection, migrations
from agentbus.engine.sqlite.migration import build
from agentbus.errors import AgentBusError, AgentFenced, LeaseLost
from agentbus.operations.agents import EndRequest, RegisterRequest, finish, register
from agentbus.operations.processes import EnterRequest, enter
from agentbus.operations.protocol import (
    Actor,
    CannotBatch,
    ExecuteMany,
    Gather,
    InsertNumbered,
    Op,
    Operation,
    Part,
    Query,
    UnitRequest,
    unit,
)
from agentbus.operations.receive import (
    AckRequest,
    Claim,
    ClaimRequest,
    DeliveryStart,
    ExtendRequest,
    RejectRequest,
    ReleaseRequest,
    ReplyRequest,
    StartDeliveryRequest,
    ack,
    claim,
    extend,
    reject,
    release,
    start_delivery,
    take_reply,
)
from agentbus.operations.rows import Draft, Profile
from agentbus.operations.send import SendRequest, send
from tests.support.examples import examples

EARLY = Now(1_000_000, 50_000, "boot-1")
NOW = Now(1_002_000, 52_000, "boot-1")
A, B, STALE, UNKNOWN = Actor("a", 1), Actor("b", 1), Actor("a", 0), Actor("unknown", 1)
TABLES = ("agents", "counters", "events", "mailboxes", "messages", "pool_members", "subscriptions")


def drive(connection: sqlite3.Connection, op: Op[Any]) -> Any:
    queries = load("sqlite")
    rows: list[tuple[Any, ...]] = []
    try:
        step = next(op)
        while True:
            rows = []
            if isinstance(step, Query | Gather):
                answers = [
                    connection.execute(
                        queries[query.name],
                        [plain(value) if isinstance(value, list) else value for value in query.parameters],
                    ).fetchall()
                    for query in (step.queries if isinstance(step, Gather) else (step,))
                ]
                rows = answers if isinstance(step, Gather) else answers[0]  # type: ignore[assignment]
            elif isinstance(step, InsertNumbered):
                taken = connection.execute(queries["counter_take"], (step.counter, len(step.rows))).fetchall()
                rows = [(taken[0][0] - len(step.rows) + 1,)]
                connection.executemany(queries[step.name], [(id, *row) for id, row in enumerate(step.rows, rows[0][0])])
            elif isinstance(step, ExecuteMany):
                connection.executemany(queries[step.name], step.rows)
            step = op.send(rows)
    except StopIteration as stop:
        return stop.value


def one_by_one(connection: sqlite3.Connection, operation: Operation[Any, Any], requests: Sequence[Any]) -> list[Any]:
    outcomes: list[Any] = []
    for request in requests:
        connection.execute("SAVEPOINT call")
        try:
            outcomes += drive(connection, operation.run([request], NOW))
        except AgentBusError as error:
            connection.execute("ROLLBACK TO call")
            outcomes.append(error)
        connection.execute("RELEASE call")
    return outcomes


def together(connection: sqlite3.Connection, operation: Operation[Any, Any], requests: Sequence[Any]) -> list[Any]:
    connection.execute("BEGIN")
    try:
        outcomes = drive(connection, operation.run(requests, NOW))
    except (CannotBatch, AgentBusError):
        connection.execute("ROLLBACK")
        return one_by_one(connection, operation, requests)
    connection.execute("COMMIT")
    assert isinstance(outcomes, list)
    return outcomes


def message(to: Address | int, **options: Any) -> Draft:
    return Draft(to, "note", encode(options.pop("payload", 1), 100), options.pop("priority", 5), 2, **options)


@cache
def template() -> bytes:
    """A database with two agents that share a pool, a subscriber, one that completed, and messages of every kind."""
    connection = sqlite3.connect(":memory:", isolation_level=None, factory=Connection)
    build(connection, [step for _, step in sorted(migrations().items())])
    connection.execute("PRAGMA foreign_keys = ON")

    def do(operation: Operation[Any, Any], *requests: Any) -> Any:
        outcomes = drive(connection, operation.run(requests, EARLY))
        assert not [outcome for outcome in outcomes if isinstance(outcome, AgentBusError)]
        return outcomes

    do(enter, EnterRequest("host", 1, "", None))
    do(register, *(RegisterRequest(id, "worker", 1, Profile(), pools=("p",)) for id in "ab"))
    do(register, RegisterRequest("c", "worker", 1, Profile(), topics=("t",)))
    do(register, RegisterRequest("gone", "worker", 1, Profile()))
    do(finish, EndRequest(Actor("gone", 1), "completed"))
    own = {row[0]: row[1:] for row in connection.execute("SELECT id, mailbox, replies FROM agents")}
    drafts = [message(Address("agent", "a"), priority=n % 10, reply_to=own["b"][1], correlation="r") for n in range(6)]
    drafts += [message(pool("p"), priority=n) for n in range(4)]
    drafts += [message(Address("agent", "a"), delay=delay, ttl=500) for delay in (1_000, 10_000)]
    drafts += [message(Address("agent", "b"), message_id="old"), message(own["a"][1], correlation="q")]
    do(send, SendRequest(B, tuple(drafts)))
    # Leases 1 to 4 of a: two that ran out by now, one of them on its last attempt.
    do(claim, ClaimRequest(A, (), (own["a"][0],), (), 2, 1_000))
    do(claim, ClaimRequest(A, (), (own["a"][0],), (), 2, 60_000))
    last = "SELECT max(id) FROM messages WHERE status = 'leased'"
    connection.execute(f"UPDATE messages SET attempts = 2 WHERE id IN ({last})")
    # What b did: one message is done, one is dead, one given back, and one it still holds.
    do(send, SendRequest(A, tuple(message(Address("agent", "b"), priority=9) for _ in range(4))))
    ((*rows,),) = (outcome.rows for outcome in do(claim, ClaimRequest(B, (), (own["b"][0],), (), 4, 60_000)))
    done, dead, back, _ = (((row.id, 1),) for row in rows)
    do(ack, AckRequest(B, done))
    do(reject, RejectRequest(B, dead, "bad"))
    do(release, ReleaseRequest(B, back))
    image = connection.serialize()
    connection.close()
    return image


def fresh() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:", isolation_level=None, factory=Connection)
    connection.deserialize(template())
    connection.execute("PRAGMA foreign_keys = ON")
    return connection


@cache
def known() -> tuple[dict[str, int], list[tuple[int, int]], list[tuple[int, int]]]:
    """The mailboxes by kind and name, the leases, those that ran out first, and the leases that are no more."""
    connection = fresh()
    try:
        boxes = {f"{kind}/{name}": id for id, kind, name in connection.execute("SELECT id, kind, name FROM mailboxes")}
        leased = "SELECT id, lease FROM messages WHERE status = 'leased' ORDER BY lease_until, id"
        former = "SELECT id, lease FROM messages WHERE status <> 'leased' AND lease > 0 ORDER BY id"
        return boxes, connection.execute(leased).fetchall(), connection.execute(former).fetchall()
    finally:
        connection.close()


def seen(outcome: Any) -> Any:
    """An outcome as it can be compared. What is left for others depends on who came before, and is no promise."""
    if isinstance(outcome, AgentBusError):
        return type(outcome), outcome.facts
    return list(outcome.rows) if isinstance(outcome, Claim) else outcome


def contents(connection: sqlite3.Connection) -> dict[str, list[Any]]:
    return {table: connection.execute(f"SELECT * FROM {table} ORDER BY 1, 2").fetchall() for table in TABLES}


actors = st.sampled_from([A, A, A, B, B, STALE, UNKNOWN])
HELD, FORMER = known()[1:]
MISNUMBERED = [(id, lease + 1) for id, lease in HELD[-2:]]
leases = st.lists(st.sampled_from([*HELD, *HELD, (1, 9), (999, 1)]), max_size=3, unique=True).map(tuple)
recipients = st.sampled_from(
    [*(Address("agent", name) for name in ("a", "b", "gone", "unknown")), pool("p"), pool("q"), topic("t"), topic("u")]
)
drafts = st.builds(
    Draft,
    recipients | st.just(known()[0]["replies/b"]),
    st.sampled_from(["note", "note", "note", "control", "nonsense"]),
    st.sampled_from([encode(1, 100), encode(2, 100)]),
    st.integers(0, 9),
    st.just(3),
    st.sampled_from([0, 0, 500]),
    st.sampled_from([None, 500]),
    st.sampled_from([None, None, "old", "x", "y"]),
    st.sampled_from([None, "r"]),
)
sends = st.builds(SendRequest, actors, st.lists(drafts, min_size=1, max_size=3).map(tuple))
beginnings = st.builds(DeliveryStart, st.sampled_from([*HELD, (999, 1)]), st.integers(1, 3))
acks = st.builds(AckRequest, actors, leases, st.none() | beginnings)
parts = sends.map(lambda request: Part(send, request)) | acks.map(lambda request: Part(ack, request))
# Of a lease that ran out, its holder and another claim may be first; together, the holder is.
lasting = st.lists(st.sampled_from([*HELD[2:], (999, 1)]), max_size=2, unique=True).map(tuple)
claims = st.builds(
    ClaimRequest,
    actors,
    lasting,
    st.sampled_from([(known()[0]["agent/a"],), (known()[0]["agent/b"], known()[0]["subscription/t"])]),
    st.sampled_from([(), (known()[0]["pool/p"],)]),
    st.integers(1, 4),
    st.sampled_from([1_000, 5_000]),
    st.booleans(),
)
CASES: list[tuple[Operation[Any, Any], st.SearchStrategy[Any]]] = [
    (send, sends),
    (claim, claims),
    (ack, acks),
    (start_delivery, st.builds(StartDeliveryRequest, actors, leases, st.integers(1, 3))),
    (extend, st.builds(ExtendRequest, actors, leases, st.integers(1, 9_000))),
    (release, st.builds(ReleaseRequest, actors, leases, st.sampled_from([0, 500]), st.sampled_from([None, "why"]))),
    (reject, st.builds(RejectRequest, actors, leases, st.just("bad"))),
    (finish, st.builds(EndRequest, actors, st.sampled_from(["completed", "failed", "stopped"]))),
    (take_reply, st.builds(ReplyRequest, actors, st.just(known()[0]["replies/a"]), st.sampled_from(["q", "r"]))),
    (unit, st.builds(UnitRequest, st.lists(parts, min_size=1, max_size=3).map(tuple))),
]


@pytest.mark.parametrize(("operation", "requests"), CASES, ids=[operation.name for operation, _ in CASES])
def test_together_is_the_same_as_one_after_another(operation: Operation[Any, Any], requests: Any) -> None:
    # The same batches in every run, however slow the machine.
    @settings(max_examples=examples(100), deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
    @given(st.lists(requests, min_size=2, max_size=5))
    def compare(batch: list[Any]) -> None:
        fused, apart = fresh(), fresh()
        try:
            first = [seen(outcome) for outcome in together(fused, operation, batch)]
            second = [seen(outcome) for outcome in one_by_one(apart, operation, batch)]
            assert first == second
            assert contents(fused) == contents(apart)
        finally:
            fused.close()
            apart.close()

    compare()


def test_only_the_holder_begins_a_message_in_a_batch() -> None:
    batch = [AckRequest(actor, (), DeliveryStart(HELD[-2], 2)) for actor in (A, B)]
    fused, apart = fresh(), fresh()
    try:
        assert one_by_one(apart, ack, batch) == [True, False]
        assert together(fused, ack, batch) == [True, False]
    finally:
        fused.close()
        apart.close()


BECOMES = {
    "ack": {"acked"}, "claim": {"acked"}, "start_delivery": {"leased"}, "extend": {"leased"},
    "release": {"queued", "dead"}, "reject": {"dead"},
}  # fmt: skip
any_leases = st.lists(st.sampled_from([*HELD, *HELD, *FORMER, *MISNUMBERED, (999, 1)]), max_size=3).map(tuple)
SETTLING: list[tuple[Operation[Any, Any], st.SearchStrategy[Any]]] = [
    (ack, st.builds(AckRequest, actors, any_leases)),
    (
        claim,
        st.builds(
            ClaimRequest, actors, any_leases, st.just((known()[0]["agent/a"],)), st.just(()), st.just(2), st.just(500)
        ),
    ),
    (start_delivery, st.builds(StartDeliveryRequest, actors, any_leases, st.just(1))),
    (extend, st.builds(ExtendRequest, actors, any_leases, st.just(9_000))),
    (release, st.builds(ReleaseRequest, actors, any_leases)),
    (reject, st.builds(RejectRequest, actors, any_leases, st.just("bad"))),
]


@pytest.mark.parametrize(("operation", "requests"), SETTLING, ids=[operation.name for operation, _ in SETTLING])
def test_a_request_settles_all_that_it_holds_or_changes_nothing_and_names_what_is_lost(
    operation: Operation[Any, Any], requests: Any
) -> None:
    @settings(max_examples=examples(100), deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
    @given(requests)
    def compare(request: Any) -> None:
        connection = fresh()
        try:
            messages = {
                id: (lease, status, holder, message_id or f"m-{id}")
                for id, lease, status, holder, message_id in connection.execute(
                    "SELECT id, lease, status, holder, message_id FROM messages"
                )
            }
            before = contents(connection)
            (outcome,) = one_by_one(connection, operation, [request])
            missing = [
                id
                for id, lease in request.leases
                if id not in messages or messages[id][:3] != (lease, "leased", request.actor.agent)
            ]
            if request.actor in {STALE, UNKNOWN}:
                assert isinstance(outcome, AgentFenced)
            elif missing:
                _, status, holder, name = messages.get(missing[0], (0, "purged", None, f"m-{missing[0]}"))
                assert isinstance(outcome, LeaseLost)
                assert outcome.facts == {
                    "message_id": name,
                    "status": status,
                    "holder": holder if status == "leased" else "no agent",
                }
            else:
                assert not isinstance(outcome, AgentBusError)
                statuses = dict(connection.execute("SELECT id, status FROM messages").fetchall())
                assert {statuses[id] for id, _ in request.leases} <= BECOMES[operation.name]
                return
            assert contents(connection) == before
        finally:
            connection.close()

    compare()
