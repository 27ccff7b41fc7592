"""The audit log: the documented events are the recorded ones."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import agentbus
from agentbus.engine.sqlite.connection import migrations
from agentbus.operations.events import KINDS, SUBJECTS, EventFilter, event, last_event, read_events, record
from tests.operations.script import NOW, play
from tests.support.cases import each
from tests.support.source import package_tree

OPERATIONS = sorted((Path(agentbus.__file__).parent / "operations").glob("*.py"))


def kinds(node: ast.expr, module: ast.Module) -> Iterator[str]:
    """The kinds that an expression can stand for, as regular expressions."""
    if isinstance(node, ast.Constant):
        yield re.escape(str(node.value))
    elif isinstance(node, ast.IfExp):
        yield from kinds(node.body, module)
        yield from kinds(node.orelse, module)
    elif isinstance(node, ast.JoinedStr):
        yield "".join(
            re.escape(str(part.value)) if isinstance(part, ast.Constant) else "[a-z]+" for part in node.values
        )
    elif isinstance(node, ast.Name):
        values = [
            found.value
            for found in ast.walk(module)
            if isinstance(found, ast.Assign) and any(ast.unparse(target) == node.id for target in found.targets)
        ]
        assert values, f"unknown value of {node.id}"
        for value in values:
            yield from kinds(value, module)
    else:
        pytest.fail(f"{ast.unparse(node)} is too clever for this test")


def emitted(module: ast.Module) -> list[str]:
    nodes = list(ast.walk(module))
    helpers = [node for node in nodes if isinstance(node, ast.FunctionDef) and node.name == "task_events"]
    inside = {id(node) for helper in helpers for node in ast.walk(helper)}
    calls = [
        node
        for node in nodes
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in {"event", "task_events"}
        and id(node) not in inside
    ]
    return [kind for call in calls for kind in kinds(call.args[1], module)]


@cache
def recorded() -> frozenset[str]:
    """Return every kind that the operations record, as regular expressions."""
    return frozenset(kind for file in OPERATIONS for kind in emitted(package_tree(file))) | by_migrations()


def by_migrations() -> frozenset[str]:
    """Return the kinds that migrations record."""
    scripts = "\n".join(migrations().values())
    return frozenset(kind for kind in KINDS if f"'{kind}'" in scripts)


def test_every_event_that_is_recorded_is_documented() -> None:
    assert recorded()
    unknown = [kind for kind in sorted(recorded()) if not any(re.fullmatch(kind, known) for known in KINDS)]
    assert unknown == [], "not in KINDS"


@each("kind", sorted(KINDS))
def test_every_event_that_is_documented_is_recorded(kind: str) -> None:
    assert [pattern for pattern in recorded() if re.fullmatch(pattern, kind)], f"nothing records {kind}"
    assert re.fullmatch(r"[a-z_]+", kind)
    assert KINDS[kind]


def test_an_undocumented_kind_would_be_found() -> None:
    module = ast.parse(
        "def f(now):\n    x = 'a_b' if now else 'c_d'\n    event(now, x, s)\n    event(now, f'e_{x}', s)"
    )
    assert sorted(emitted(module)) == ["a_b", "c_d", "e_[a-z]+"]


def test_the_subjects_are_those_that_the_table_takes() -> None:
    (listed,) = re.findall(r"subject_kind IN \(([^)]*)\)", migrations()[1])
    assert set(re.findall(r"'(\w+)'", listed)) == set(SUBJECTS)


def test_recording_wakes_followers_and_an_empty_list_wakes_none() -> None:
    played = play(record([event(NOW.wall, "type_defined", ("vocabulary", "x"), None, a=1)]))
    assert played.written("event_insert") == [(NOW.wall, "type_defined", "vocabulary", "x", None, '{"a":1}')]
    assert played.woken == ["events"]
    assert play(record([])).woken == []


@pytest.mark.parametrize(
    ("wanted", "query", "parameters"),
    [
        (EventFilter(7, limit=3), "event_page", (7, 3)),
        (EventFilter(7, "agent_failed", limit=3), "event_page_of_kind", ("agent_failed", 7, 3)),
        (EventFilter(7, None, ("agent", "a"), 3), "event_page_of_subject", ("agent", "a", 7, None, 3)),
        (
            EventFilter(7, "agent_failed", ("agent", "a"), 3),
            "event_page_of_subject",
            ("agent", "a", 7, "agent_failed", 3),
        ),
    ],
)
def test_events_are_found_by_the_index_that_fits(wanted: EventFilter, query: str, parameters: tuple[object]) -> None:
    row = (8, 1, "agent_failed", "agent", "a", None, '{"error":"x"}')
    played = play(read_events(wanted, NOW), (query, [row]))
    assert played.parameters(query) == parameters
    assert [(found.id, found.subject, found.facts) for found in played.outcomes] == [(8, "a", {"error": "x"})]


def test_the_newest_event_of_an_empty_log_is_zero() -> None:
    assert play(last_event(None, NOW), ("event_last", [(0,)])).outcomes == 0
