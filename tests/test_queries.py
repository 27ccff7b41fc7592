"""Named SQL: every query can be prepared on the real schema, is used, is explained, and finds its rows by an index."""

from __future__ import annotations

import ast
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

import agentbus
from agentbus.engine.queries import load, parse, text, widened
from agentbus.engine.sqlite.connection import migrations
from agentbus.operations.copying import TABLES

PACKAGE = Path(agentbus.__file__).parent
QUERIES = load("sqlite")
each_query = pytest.mark.parametrize("name", QUERIES)

# These run with every send, claim, acknowledgement or reply.
HOT = (
    "message_ready",
    "mailbox_horizon",
    "message_rows",
    "message_held",
    "agent_standing",
    "message_by_message_id",
    "reply_take",
    "message_lapsed",
    "message_promote",
    "message_expire",
    "message_lease",
    "message_ack",
    "message_begin",
    "message_extend",
    "message_release",
    "message_bury",
    "state_standing",
    "state_values",
    "state_update",
    "task_ready",
    "task_lease",
    "task_renew",
    "task_complete",
    "step_finish",
    "step_again",
    "step_fail",
    "step_interrupt",
)
# These run on the loop's own thread, where a scan would hold everybody up.
LOOKS = (
    "state_value",
    "state_entry",
    "state_last_change",
    "state_next_expiry",
    "state_first_expiry",
    "agent_get",
    "session_get",
    "mailbox_pending",
    "meta_get",
    "recovery_beyond",
    "recovery_incomplete",
    "recovery_interrupted",
    "recovery_dead_holders",
    "recovery_history",
    "task_get",
    "task_ending",
    "task_held",
    "step_recorded",
    "approval_answer",
)
# These run with every step of a session, under the lock.
STEPS = (
    "session_standing",
    "session_interrupt",
    "session_trouble",
    "session_counts",
    "document_insert",
    "document_trim",
    "document_versions",
    "document_list",
    "participant_list",
    "participant_get",
    "participant_finish",
    "participant_of_session",
    "participant_clear",
    "document_newest",
    "document_forget",
    "document_copy",
    "agent_of_session",
    "agent_expect_again",
    "agent_cut_off",
    "session_causes",
    "session_expected",
    "checkpoint_newest_within",
    "state_there",
    "message_open_of",
    "message_still_open",
)
# These look for what was cut off, among much that was not.
RECOVERY = (
    "recovery_incomplete",
    "recovery_interrupted",
    "recovery_dead_holders",
    "recovery_history",
    "session_list_open",
    "session_cut_off",
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
    "message_list",
    "message_purge",
    "message_senders",
    "message_finished_counts",
    "copy_counts",
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


def schema() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    for _, step in sorted(migrations().items()):
        connection.executescript(step)
    return connection


@pytest.fixture(scope="module")
def empty() -> Iterator[sqlite3.Connection]:
    connection = schema()
    yield connection
    connection.close()


@pytest.fixture(scope="module", params=["empty", "many messages", "many messages, analyzed"])
def store(request: pytest.FixtureRequest) -> Iterator[sqlite3.Connection]:
    """The planner's choice must not depend on how much is there, nor on whether somebody ran ANALYZE."""
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


def width(sql: str) -> int:
    return max((int(number) for number in re.findall(r"\?(\d+)", sql)), default=0)


def plan(connection: sqlite3.Connection, name: str) -> list[str]:
    parameters = [None] * width(QUERIES[name])
    return [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {QUERIES[name]}", parameters)]


def scans(steps: list[str]) -> list[str]:
    """The steps that walk a whole table or index; opening a list of ours with json_each is none."""
    return [step for step in steps if step.startswith("SCAN") and "VIRTUAL TABLE" not in step]


STEPS_OF_SQL = {"Query", "Each", "Numbered"}


def uses() -> Iterator[tuple[str, str, int | None]]:
    """Every place that names a query: where, which, and with how many parameters, if that can be seen there."""
    for file in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            count: int | None = None
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in {"Query", "Each", "Numbered"}
            ):
                name = node.args[0]
                count = _count(node) if node.func.id == "Query" else None
            elif isinstance(node, ast.Subscript) and ast.unparse(node.value).endswith("queries"):
                name = node.slice
            else:
                continue
            for query in _named(name):
                yield f"{file.relative_to(PACKAGE.parent)}:{node.lineno}", query, count


def _named(name: ast.expr) -> list[str]:
    """The queries that a name stands for: those of copying are named by their tables."""
    if isinstance(name, ast.JoinedStr) and isinstance(name.values[0], ast.Constant):
        start = str(name.values[0].value)
        return [f"{start}{table.name}" for table in TABLES.values() if table.long or start != "copy_sizes_"]
    return [name.value] if isinstance(name, ast.Constant) and isinstance(name.value, str) else []


def _count(call: ast.Call) -> int | None:
    if len(call.args) < 2:
        return 0
    values = call.args[1]
    if not isinstance(values, ast.Tuple) or any(isinstance(value, ast.Starred) for value in values.elts):
        return None
    return len(values.elts)


def comments(dialect: str) -> dict[str, str]:
    """What each query of a dialect says of itself."""
    parts = re.split(r"^-- name: (\w+)$", text(dialect), flags=re.MULTILINE)
    return {
        name: " ".join(line.removeprefix("--").strip() for line in body.splitlines() if line.startswith("--"))
        for name, body in zip(parts[1::2], parts[2::2], strict=True)
    }


@each_query
def test_a_query_can_be_prepared_on_the_real_schema(name: str, empty: sqlite3.Connection) -> None:
    # SQLite refuses a wrong number of parameters, and numbers without a gap are what the drivers give.
    sql = QUERIES[name]
    assert {int(number) for number in re.findall(r"\?(\d+)", sql)} == set(range(1, width(sql) + 1))
    empty.execute(f"EXPLAIN {sql}", [None] * width(sql)).fetchall()


def test_only_queries_that_exist_are_used() -> None:
    known = {*QUERIES, *parse(text("server")), *parse(text("file"))}
    assert [f"{place}: {name}" for place, name, _ in uses() if name not in known] == []


def test_every_query_is_used() -> None:
    assert set(QUERIES) - {name for _, name, _ in uses()} == set()
    engine = "".join(file.read_text(encoding="utf-8") for file in (PACKAGE / "engine" / "postgres").glob("*.py"))
    assert [name for name in parse(text("server")) if f'"{name}"' not in engine] == []


def test_queries_are_given_as_many_parameters_as_they_take() -> None:
    wrong = [
        f"{place}: {name} takes {width(QUERIES[name])}, is given {count}"
        for place, name, count in uses()
        if count is not None and name in QUERIES and count != width(QUERIES[name])
    ]
    assert wrong == []


@pytest.mark.parametrize("dialect", ["common", "sqlite", "postgres", "server", "file"])
def test_every_query_has_a_sentence(dialect: str) -> None:
    for name, comment in comments(dialect).items():
        assert re.match(r"[A-Z`$].*\.$", comment), f"{name}: {comment!r}"


@pytest.mark.parametrize("dialect", ["sqlite", "postgres"])
def test_a_query_of_a_dialect_says_why_it_differs(dialect: str) -> None:
    for name, comment in comments(dialect).items():
        assert re.search(r"Differs: \w", comment), name


def test_both_dialects_define_the_same_names() -> None:
    assert set(load("postgres")) == set(QUERIES)
    # Each query that SQLite says in its own words is one that PostgreSQL must too.
    assert set(comments("sqlite")) <= set(comments("postgres"))


def test_a_common_query_speaks_no_dialect() -> None:
    for name, sql in parse(text("common")).items():
        assert not re.search(r"json_each|json_extract|rowid|INSERT OR |\?|unnest|::|FOR UPDATE", sql), name


def test_a_parameter_that_may_be_null_says_its_type() -> None:
    # PostgreSQL refuses to prepare "$1 IS NULL OR name = $1": it settles the type of $1 where it stands first.
    for name, sql in parse(text("common")).items():
        assert not re.search(r"\$\d+ IS (NOT )?NULL", sql), name


@each_query
def test_a_query_is_named_entity_first(name: str) -> None:
    assert re.fullmatch(r"[a-z]+(_[a-z]+)*", name)


def test_a_name_that_stands_twice_is_an_error() -> None:
    with pytest.raises(ValueError, match="twice"):
        parse("-- name: a\nSELECT 1;\n-- name: a\nSELECT 2;\n")


@pytest.mark.parametrize("name", STEPS)
def test_a_step_of_a_session_finds_its_rows_by_an_index(name: str, store: sqlite3.Connection) -> None:
    # Of one document or session, sorting the newest versions that were found is fine.
    assert [step for step in scans(plan(store, name)) if not step.startswith("SCAN newest")] == []


@pytest.mark.parametrize("name", RECOVERY)
def test_what_was_cut_off_is_found_by_an_index(name: str, store: sqlite3.Connection) -> None:
    # What the query itself collected in brackets, or a row that is one value, is walked; no table is.
    found = [step for step in scans(plan(store, name)) if not re.fullmatch(r"SCAN (own|CONSTANT ROW)", step)]
    assert found == []


def test_the_newest_versions_are_found_without_sorting(store: sqlite3.Connection) -> None:
    assert not [
        step for name in ("document_versions", "session_list") for step in plan(store, name) if "B-TREE" in step
    ]


@pytest.mark.parametrize("name", [*HOT, *LOOKS])
def test_a_hot_query_finds_its_rows_by_an_index(name: str, store: sqlite3.Connection) -> None:
    steps = plan(store, name)
    assert scans(steps) == []
    assert any(re.search(r"SEARCH .* USING .*(INDEX|PRIMARY KEY)", step) for step in steps)


@pytest.mark.parametrize(
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


@pytest.mark.parametrize(("name", "index"), SWEEPS.items())
def test_a_sweep_finds_what_is_wrong_by_an_index(name: str, index: str, store: sqlite3.Connection) -> None:
    steps = plan(store, name)
    # What it walks step by step is the list of mailboxes that it makes itself.
    assert [step for step in scans(steps) if step not in {"SCAN boxes", "SCAN later", "SCAN every"}] == []
    assert any(index in step for step in steps), steps


@pytest.mark.parametrize(
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


def test_what_is_looked_at_on_the_loops_thread_is_known_here() -> None:
    """Every question given to ``look``, with the queries that it asks."""
    questions = {
        ast.unparse(node.args[0])
        for file in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "look"
    }
    asked = {
        name.args[0].value
        for file in (PACKAGE / "operations").rglob("*.py")
        for function in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(function, ast.FunctionDef) and function.name in questions
        for name in ast.walk(function)
        if isinstance(name, ast.Call)
        and isinstance(name.func, ast.Name)
        and name.func.id == "Query"
        and isinstance(name.args[0], ast.Constant)
    }
    assert asked == set(LOOKS)


@pytest.mark.parametrize("name", ["message_ready", "reply_take"])
def test_the_most_urgent_message_is_found_without_sorting_the_queue(name: str, store: sqlite3.Connection) -> None:
    # One sort of what was found is fine; inside, the index must give the order.
    sorts = [step for step in plan(store, name) if "TEMP B-TREE FOR" in step]
    assert len(sorts) <= (1 if name == "message_ready" else 0)


@pytest.mark.parametrize("name", [name for name in QUERIES if "message" in QUERIES[name] and name not in MAY_SCAN])
def test_nothing_that_holds_the_lock_scans_the_messages(name: str, store: sqlite3.Connection) -> None:
    # Walking all leases of the last boot, by their own index, is the whole point of message_leased.
    found = [step for step in scans(plan(store, name)) if re.match(r"SCAN (messages|ready)\b", step)]
    assert [step for step in found if not step.endswith("USING INDEX messages_leased")] == []


@pytest.mark.parametrize("name", [name for name in QUERIES if name.startswith(("checkpoint_", "event_"))])
def test_checkpoints_and_events_are_found_by_an_index_and_in_its_order(name: str, store: sqlite3.Connection) -> None:
    # max(id) is answered by the end of the table, though SQLite calls that a scan.
    steps = plan(store, name)
    assert [step for step in scans(steps) if name != "event_last"] == []
    assert [step for step in steps if "TEMP B-TREE" in step] == []


@pytest.mark.parametrize("name", ["process_remove", "process_references"])
def test_a_process_goes_without_a_look_at_every_agent(name: str, store: sqlite3.Connection) -> None:
    # The foreign keys are in the plan too.
    assert [step for step in scans(plan(store, name)) if re.match(r"SCAN (agents|sessions)\b", step)] == []


def test_a_plan_that_scans_would_be_noticed(store: sqlite3.Connection) -> None:
    steps = [row[3] for row in store.execute("EXPLAIN QUERY PLAN SELECT * FROM messages WHERE sender = 'a'")]
    assert scans(steps) == ["SCAN messages"]


def test_an_insert_is_widened_to_many_rows(empty: sqlite3.Connection) -> None:
    wide = widened(QUERIES["event_insert"], 3)
    assert wide is not None
    rows = [(n, "kind", "bus", "it", None, f'{{"n":{n}}}') for n in range(3)]
    empty.execute("BEGIN")
    try:
        empty.execute(wide, [value for row in rows for value in row])
        found = empty.execute("SELECT at, kind, subject_kind, subject, actor, facts FROM events ORDER BY id").fetchall()
        assert found == rows
    finally:
        empty.execute("ROLLBACK")


@each_query
def test_only_plain_inserts_are_widened(name: str, empty: sqlite3.Connection) -> None:
    wide = widened(QUERIES[name], 16)
    if wide is None:
        assert not re.fullmatch(r"INSERT [^()]*\([^()]*\)\s*VALUES \([^()]*\)", QUERIES[name])
    else:
        assert width(wide) == 16 * width(QUERIES[name])
        empty.execute(f"EXPLAIN {wide}", [None] * width(wide)).fetchall()
