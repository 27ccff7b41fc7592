"""Every query that has to be fast, or that holds the lock, finds its rows by an index."""

from __future__ import annotations

import ast
import re
import sqlite3
from collections.abc import Iterator

import pytest

from tests.support.cases import each
from tests.support.queries import HOT, LOOKS, PACKAGE, QUERIES, STEPS, schema, width
from tests.support.source import package_nodes

# These look for what was cut off, among much that was not.
RECOVERY = (
    "recovery_incomplete",
    "recovery_interrupted",
    "recovery_dead_holders",
    "recovery_history",
    "session_list_open",
    "session_recoverable",
    "session_stale",
    "recovery_clearable",
    "message_open_counts",
    "checkpoint_latest_of",
    "session_follow_ons",
    "session_overdue",
)
# These run with every sweep, over however many agents and messages: by which index, where that matters.
SWEEPS = {
    "agent_silent": "agents_by_call (status=? AND last_call<?)",
    "agent_overdue": "agents_visiting (<expr><?)",
    "agent_absent": "(status=?",
    "agent_of_status": "agents_by_process (process=? AND status=?)",
    "agent_suspects": "agents_by_process (process=? AND status=?)",
    "session_troubles": "sessions_open (status=?)",
    "mailbox_expiring": "messages_by_expiry (expires>? AND expires<?)",
    "mailbox_deep": "messages_due (mailbox=? AND due<?)",
    "mailbox_unattended": "(pool=?)",
    "message_expire_some": "messages_expiring (mailbox=? AND expires>? AND expires<?)",
}
# These read without the lock, or (purging) walk what they delete in bounded steps.
MAY_SCAN = {
    "message_counts",
    "queue_depths",
    "queue_oldest",
    "queue_dead",
    "message_list",
    # The end of the table, though SQLite calls that a scan.
    "message_newest",
    "message_purgeable",
    "message_spans",
    "message_purge",
    "message_senders",
    "message_finished_counts",
    "copy_counts",
    # Indexes of only those that are counted, see below.
    "metrics_queues",
    "metrics_dead",
}

MANY = """
WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 20000)
INSERT INTO messages (
    id, message_id, mailbox, sender, type, payload, checksum, priority, status, max_attempts, holder, lease_until, due,
    expires, correlation, created, finished
)
SELECT n, CASE WHEN n % 3 = 0 THEN 'id-' || n END, 1 + n % 50, 'a', 'note', '1', 0, n % 10,
    CASE n % 20 WHEN 0 THEN 'leased' WHEN 1 THEN 'scheduled' WHEN 2 THEN 'dead' WHEN 3 THEN 'acked' ELSE 'queued' END,
    5, 'a', n, n, CASE WHEN n % 7 = 0 THEN n END, CASE WHEN n % 5 = 0 THEN 'r-' || n END, n,
    CASE WHEN n % 20 IN (2, 3) THEN n END
FROM numbers
"""


@pytest.fixture(scope="module", params=["empty", "many messages", "many messages, analyzed"])
def store(request: pytest.FixtureRequest) -> Iterator[sqlite3.Connection]:
    """The planner's choice must not depend on how much is there, nor on ANALYZE."""
    connection = schema()
    if request.param != "empty":
        boxes = [("agent", f"a-{n}", f"a-{n}", 0) for n in range(50)]
        connection.executemany("INSERT INTO mailboxes (kind, name, owner, created) VALUES (?, ?, ?, ?)", boxes)
        agents = [(f"a-{n}", f"a-{n}", n + 1, n + 1) for n in range(50)]
        connection.executemany(
            "INSERT INTO agents (id, name, type, status, mailbox, replies, created, updated)"
            " VALUES (?, ?, 'worker', 'running', ?, ?, 0, 0)",
            agents,
        )
        members = [(n + 1, f"a-{n}") for n in range(50)]
        connection.executemany("INSERT INTO pool_members (pool, agent, joined) VALUES (?, ?, 0)", members)
        connection.execute(MANY)
        entries = [(f"s-{n % 50}", f"k-{n}", n + 1, n if n % 3 else None) for n in range(5000)]
        connection.executemany(
            "INSERT INTO state (scope, key, version, change, expires, checksum, value, created, updated)"
            " VALUES (?, ?, 1, ?, ?, 0, '1', 0, 0)",
            entries,
        )
    if request.param.endswith("analyzed"):
        connection.execute("ANALYZE")
    yield connection
    connection.close()


def plan(connection: sqlite3.Connection, name: str) -> list[str]:
    parameters = [None] * width(QUERIES[name])
    return [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {QUERIES[name]}", parameters)]


def scans(steps: list[str]) -> list[str]:
    """The steps that walk a whole table or index; opening a list of ours with json_each is none."""
    return [step for step in steps if step.startswith("SCAN") and "VIRTUAL TABLE" not in step]


@each("name", STEPS)
def test_a_step_of_a_session_finds_its_rows_by_an_index(name: str, store: sqlite3.Connection) -> None:
    # Of one document or session, sorting the newest versions that were found is fine.
    assert [step for step in scans(plan(store, name)) if not step.startswith("SCAN newest")] == []


@each("name", RECOVERY)
def test_interrupted_work_is_found_by_an_index(name: str, store: sqlite3.Connection) -> None:
    # What the query itself collected in brackets, or a row that is one value, is walked; no table is.
    found = [step for step in scans(plan(store, name)) if not re.fullmatch(r"SCAN (own|CONSTANT ROW)", step)]
    assert found == []


def test_the_newest_versions_are_found_without_sorting(store: sqlite3.Connection) -> None:
    assert not [
        step for name in ("document_versions", "session_list") for step in plan(store, name) if "B-TREE" in step
    ]


@each("name", [*HOT, *LOOKS])
def test_a_hot_query_finds_its_rows_by_an_index(name: str, store: sqlite3.Connection) -> None:
    steps = plan(store, name)
    # What the query itself found, or a row that is one value, is walked; no table is.
    assert [step for step in scans(steps) if not re.fullmatch(r"SCAN (found|CONSTANT ROW)", step)] == []
    assert any(re.search(r"SEARCH .* USING .*(INDEX|PRIMARY KEY)", step) for step in steps)


@each(
    ("name", "index"),
    [
        ("state_list", "sqlite_autoindex_state_1 (scope=? AND key>? AND key<?)"),
        ("state_changes", "state_by_change (scope=? AND change>?)"),
        ("state_expired", "state_expiring (expires>? AND expires<?)"),
        ("state_lengths", "state_by_change (scope=? AND change>?)"),
    ],
)
def test_a_list_of_state_is_a_range_of_an_index_in_its_order(name: str, index: str, store: sqlite3.Connection) -> None:
    steps = plan(store, name)
    assert scans(steps) == []
    assert any(step.endswith(index) for step in steps), steps
    assert not [step for step in steps if "TEMP B-TREE" in step]


@each(("name", "index"), SWEEPS.items())
def test_a_sweep_finds_what_is_wrong_by_an_index(name: str, index: str, store: sqlite3.Connection) -> None:
    steps = plan(store, name)
    # What it walks step by step is the list of mailboxes that it makes itself.
    assert [step for step in scans(steps) if step not in {"SCAN boxes", "SCAN later", "SCAN every"}] == []
    assert any(index in step for step in steps), steps


@each(
    ("name", "index"),
    [
        ("task_ready", "SEARCH tasks USING INDEX tasks_ready (workflow=?)"),
        ("task_horizon", "SEARCH tasks USING COVERING INDEX tasks_due (due>?)"),
        ("task_horizon", "SCAN tasks USING INDEX tasks_leased"),
        ("task_waited", "SEARCH tasks USING INDEX tasks_due (due>? AND due<?)"),
        ("task_promote", "SEARCH tasks USING INDEX tasks_due (due>? AND due<?)"),
        ("task_lapsed", "SEARCH tasks USING INDEX tasks_leased (lease_until<?)"),
        ("task_held_by", "SCAN tasks USING INDEX tasks_leased"),
    ],
)
def test_a_claim_of_tasks_looks_only_at_those_that_it_may_change(
    name: str, index: str, store: sqlite3.Connection
) -> None:
    # What is walked is an index of only those that are held.
    assert index in plan(store, name)


@each("name", [name for name in QUERIES if name.startswith("metrics_")])
def test_metrics_walk_only_indexes(name: str, store: sqlite3.Connection) -> None:
    """Of the messages, agents and tasks that wait or were left: the finished ones may be many."""
    found = [step for step in scans(plan(store, name)) if not re.search(r"SCAN (counted|grouped|ready|holds)\b", step)]
    partial = r"messages_(ready|due|leased|dead)|agents_\w+|tasks_(ready|by_status)|approvals_open|sessions_open"
    assert [step for step in found if not re.search(rf"USING (COVERING )?INDEX ({partial})\b", step)] == []


def test_every_inline_read_is_listed_here() -> None:
    """Every question given to ``read_inline``, with the queries that it asks."""
    questions = {
        ast.unparse(node.args[0])
        for file in PACKAGE.rglob("*.py")
        for node in package_nodes(file)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "read_inline"
    }
    asked = {
        name.args[0].value
        for file in (PACKAGE / "operations").rglob("*.py")
        for function in package_nodes(file)
        if isinstance(function, ast.FunctionDef) and function.name in questions
        for name in ast.walk(function)
        if isinstance(name, ast.Call)
        and isinstance(name.func, ast.Name)
        and name.func.id == "Query"
        and isinstance(name.args[0], ast.Constant)
    }
    assert asked == set(LOOKS)


@each("name", ["message_ready", "message_next", "reply_take"])
def test_the_most_urgent_message_is_found_without_sorting_the_queue(name: str, store: sqlite3.Connection) -> None:
    # One sort of what was found is fine; inside, the index must give the order.
    sorts = [step for step in plan(store, name) if "TEMP B-TREE FOR" in step]
    assert len(sorts) <= (1 if name == "message_ready" else 0)


@each("name", [name for name in QUERIES if "message" in QUERIES[name] and name not in MAY_SCAN])
def test_nothing_that_holds_the_lock_scans_the_messages(name: str, store: sqlite3.Connection) -> None:
    # Walking all leases of the last boot, by their own index, is the whole point of message_leased.
    found = [step for step in scans(plan(store, name)) if re.match(r"SCAN (messages|ready)\b", step)]
    assert [step for step in found if not step.endswith("USING INDEX messages_leased")] == []


@each("name", [name for name in QUERIES if name.startswith(("checkpoint_", "event_"))])
def test_checkpoints_and_events_are_found_by_an_index_and_in_its_order(name: str, store: sqlite3.Connection) -> None:
    # max(id) is answered by the end of the table, though SQLite calls that a scan.
    steps = plan(store, name)
    assert [step for step in scans(steps) if name != "event_last"] == []
    assert [step for step in steps if "TEMP B-TREE" in step] == []


@each("name", ["process_remove", "process_references"])
def test_a_process_is_deleted_without_a_scan_of_agents(name: str, store: sqlite3.Connection) -> None:
    # The foreign keys are in the plan too.
    assert [step for step in scans(plan(store, name)) if re.match(r"SCAN (agents|sessions)\b", step)] == []


def test_a_plan_that_scans_would_be_noticed(store: sqlite3.Connection) -> None:
    steps = [row[3] for row in store.execute("EXPLAIN QUERY PLAN SELECT * FROM messages WHERE sender = 'a'")]
    assert scans(steps) == ["SCAN messages"]
