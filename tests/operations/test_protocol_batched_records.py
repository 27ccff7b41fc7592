"""The same as test_fused, of what agents and sessions keep: state, checkpoints, documents, participants, sessions; and
of types, listeners and deletions."""

from __future__ import annotations

import sqlite3
from functools import cache
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentbus.core.codec import plain, plain_payload
from agentbus.engine.sqlite.connection import Connection
from agentbus.errors import AgentBusError
from agentbus.operations.agent_deletion import DeleteRequest, delete
from agentbus.operations.agents import ProgressRequest, progress
from agentbus.operations.checkpoints import (
    Owner,
    PruneRequest,
    delete_checkpoint,
    prune_checkpoints,
    save_checkpoint,
)
from agentbus.operations.checkpoints import (
    SaveRequest as SaveCheckpoint,
)
from agentbus.operations.documents import (
    EnrolRequest,
    FinishRequest,
    enrol,
    finish_member,
    save_document,
)
from agentbus.operations.documents import (
    SaveRequest as SaveDocument,
)
from agentbus.operations.processes import EnterRequest, ListenRequest, enter, listen
from agentbus.operations.protocol import Actor, Operation, Part, UnitRequest, unit
from agentbus.operations.sessions import (
    ChangeRequest as ChangeSession,
)
from agentbus.operations.sessions import (
    SessionProgressRequest,
    StartSessionRequest,
    advance_session,
    change_session,
    start_session,
)
from agentbus.operations.state import ChangeRequest, ExpireRequest, change_state, expire
from agentbus.operations.types import DefineRequest, define
from tests.operations.test_protocol_batches import (
    EARLY,
    STALE,
    UNKNOWN,
    A,
    B,
    drive,
    one_by_one,
    seen,
    together,
)
from tests.operations.test_protocol_batches import (
    fresh as without_records,
)
from tests.support.examples import examples

GONE = Actor("gone", 1)
# Numbers of changes are given out once for an entry that a batch changes often, and so are those of the topology.
COMPARED = {
    "agents": "*",
    "checkpoints": "*",
    "counters WHERE name NOT IN ('change', 'topology')": "*",
    "documents": "*",
    "events": "*",
    "listeners": "*",
    "mailboxes": "*",
    "messages": "*",
    "participants": "*",
    "pool_members": "*",
    "sessions": "*",
    "state": "scope, key, type, version, checksum, expires, author, created, updated, value",
    "vocabulary": "*",
}


def contents(connection: sqlite3.Connection) -> dict[str, list[Any]]:
    return {
        table: connection.execute(f"SELECT {columns} FROM {table} ORDER BY 1, 2").fetchall()
        for table, columns in COMPARED.items()
    }


def text(value: Any) -> tuple[str, str]:
    """JSON and its SHA-256."""
    encoded = plain(value)
    return encoded, sha256(encoded.encode()).hexdigest()


def checkpoint(actor: Actor | None, owner: Owner, name: str, value: Any, keep: int | None) -> SaveCheckpoint:
    snapshot, checksum = text(value)
    return SaveCheckpoint(actor, owner, name, snapshot, checksum, len(snapshot), keep=keep)


def document(session: str, name: str, value: Any, keep: int, actor: Actor | None) -> SaveDocument:
    return SaveDocument(session, name, *text(value), None, keep, actor)


@cache
def template() -> bytes:
    """Four sessions, each of another status; state of which some has expired by now; a meeting half over."""
    connection = without_records()

    def do(operation: Operation[Any, Any], *requests: Any) -> None:
        outcomes = drive(connection, operation.run(requests, EARLY))
        assert not [outcome for outcome in outcomes if isinstance(outcome, AgentBusError)]

    do(enter, EnterRequest("host", 2, "", None))
    do(start_session, *(StartSessionRequest(id, "planning", 1) for id in ("active", "paused", "cut", "over")))
    for id, status in {"paused": "paused", "cut": "interrupted", "over": "completed"}.items():
        do(change_session, ChangeSession(id, status))
    do(change_state, *(ChangeRequest(scope, "a", plain_payload(1)) for scope in ("a", "free", "session:active")))
    do(change_state, *(ChangeRequest("free", key, plain_payload(key), ttl=1_000) for key in "bc"))
    do(change_state, ChangeRequest("gone", "b", plain_payload(1), ttl=1_000), ChangeRequest("a", "c", plain_payload(1)))
    do(change_state, ChangeRequest("a", "c"))
    do(enrol, EnrolRequest("active", "m", ("u", "v")), EnrolRequest("cut", "m", ("u",)))
    do(finish_member, FinishRequest("active", "m", "u", plain_payload(1)))
    for n in range(3):
        do(save_document, document("active", "d", n, 3, None))
        do(save_checkpoint, *(checkpoint(None, Owner("agent", id), "m", n, None) for id in ("a", "gone")))
    do(define, DefineRequest("message", "survey", "a question", '{"type":"object"}'))
    do(listen, ListenRequest(1, "state/free", True))
    image = connection.serialize()
    connection.close()
    return image


def fresh() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:", isolation_level=None, factory=Connection)
    connection.deserialize(template())
    connection.execute("PRAGMA foreign_keys = ON")
    return connection


acting = st.sampled_from([A, A, B, STALE, UNKNOWN, GONE])
perhaps = st.sampled_from([None, None, A, B, STALE, GONE])
sessions = st.sampled_from(["active", "active", "paused", "cut", "over", "nowhere"])
values = st.sampled_from([1, 2.5, "x", [1]])
scopes = st.sampled_from(["a", "gone", "free", "session:active", "session:over", "session:nowhere"])
versions = st.sampled_from([None, None, None, 0, 1, 2])
ttls = st.sampled_from([None, 500])
changes = st.one_of(
    st.builds(
        ChangeRequest, scopes, st.sampled_from("abc"), values.map(plain_payload), st.none(),
        st.sampled_from(["user_data", "temp_data"]), ttls, versions, perhaps,
    ),
    st.builds(
        ChangeRequest, scopes, st.sampled_from("abc"), amount=st.sampled_from([1, -2, 0.5, 2**62]), ttl=ttls,
        actor=perhaps,
    ),
    st.builds(ChangeRequest, scopes, st.sampled_from("abc"), if_version=versions, actor=perhaps),
)  # fmt: skip
owners = st.sampled_from([
    *(Owner("agent", id) for id in ("a", "gone", "unknown")), *(Owner("session", id) for id in ("active", "over")),
])  # fmt: skip
keeps = st.sampled_from([None, 1, 2])
checkpoints = st.builds(checkpoint, perhaps, owners, st.sampled_from("mn"), values, keeps)
documents = st.builds(document, sessions, st.sampled_from("de"), values, st.integers(1, 3), perhaps)
statuses = st.sampled_from(["active", "paused", "interrupted", "completed", "failed"])
schemas = st.sampled_from([None, '{"type":"object"}', '{"type":"array"}'])
parts = st.one_of(
    changes.map(lambda request: Part(change_state, request)),
    checkpoints.map(lambda request: Part(save_checkpoint, request)),
    documents.map(lambda request: Part(save_document, request)),
    st.builds(ProgressRequest, acting, st.integers(0, 100)).map(lambda request: Part(progress, request)),
)
CASES: list[tuple[Operation[Any, Any], st.SearchStrategy[Any]]] = [
    (change_state, changes),
    (expire, st.just(ExpireRequest())),
    (save_checkpoint, checkpoints),
    (delete_checkpoint, st.integers(1, 8)),
    (prune_checkpoints, st.builds(PruneRequest, owners, st.sampled_from([("m",), ("m", "n")]), st.integers(0, 2))),
    (save_document, documents),
    (enrol, st.builds(EnrolRequest, sessions, st.just("m"), st.lists(st.sampled_from("uvw"), unique=True).map(tuple))),
    (
        finish_member,
        st.builds(FinishRequest, sessions, st.just("m"), st.sampled_from("uvw"), values.map(plain_payload)),
    ),
    (
        start_session,
        st.builds(
            StartSessionRequest,
            sessions | st.sampled_from(["new", "newer"]),
            st.sampled_from(["planning", "planning", "building"]),
            st.sampled_from([None, 1, 2]),
            st.sampled_from([None, "m1"]),
            st.sampled_from([None, {"a": "worker"}]),
        ),
    ),
    (
        change_session,
        st.builds(
            ChangeSession,
            sessions,
            statuses,
            st.sampled_from([None, "why"]),
            st.sampled_from([None, 1, 2]),
            st.booleans(),
        ),
    ),
    (advance_session, st.builds(SessionProgressRequest, sessions, st.integers(0, 100))),
    (
        define,
        st.builds(
            DefineRequest,
            st.just("message"),
            st.sampled_from(["survey", "vote", "note"]),
            st.sampled_from(["", "a question", "words"]),
            schemas,
        ),
    ),
    (
        listen,
        st.builds(
            ListenRequest, st.sampled_from([1, 2]), st.sampled_from(["state/free", "state/a", "events"]), st.booleans()
        ),
    ),
    (delete, st.sampled_from(["a", "gone", "unknown"]).map(DeleteRequest) | st.just(DeleteRequest(None, EARLY.wall))),
    (unit, st.builds(UnitRequest, st.lists(parts, min_size=1, max_size=3).map(tuple))),
]


@pytest.mark.parametrize(("operation", "requests"), CASES, ids=[operation.name for operation, _ in CASES])
def test_together_is_the_same_as_one_after_another(operation: Operation[Any, Any], requests: Any) -> None:
    @settings(max_examples=examples(100), deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
    @given(st.lists(requests, min_size=2, max_size=5))
    def compare(batch: list[Any]) -> None:
        fused, apart = fresh(), fresh()
        try:
            first = [seen(outcome) for outcome in together(fused, operation, batch)]
            second = [seen(outcome) for outcome in one_by_one(apart, operation, batch)]
            # Of one burial, all who asked for it together hear the number.
            assert first == second or operation is expire
            assert contents(fused) == contents(apart)
        finally:
            fused.close()
            apart.close()

    compare()
