"""Mapping any JSON or rows gives valid lines or a reason; it never raises."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentbus.api.maintenance.archive import Limits
from agentbus.api.maintenance.importer import databases, json_files, mapping
from agentbus.api.maintenance.importer.importer import FileTally
from agentbus.api.maintenance.importer.json_files import Folder
from agentbus.api.maintenance.importer.mapping import Mapper
from agentbus.core.validation import check_key, check_name
from agentbus.operations.archive_restore import ImportedRow
from agentbus.operations.archive_rows import ArchivedAgent, ArchivedMessage, ArchivedSession, ArchivedState
from tests.support.examples import examples

FIELDS = [
    "agent_id", "agent_name", "agent_type", "parent_agent_id", "model", "prompt", "load_percentage",
    "estimated_duration",
    "metadata", "status", "pid", "started_at", "progress", "created_at", "last_updated", "session_id", "start_time",
    "current_meeting", "team", "current_agent", "agents_completed", "pending_actions", "active_agents", "agents", "id",
    "capabilities", "error", "name", "checkpoint_name", "session", "timestamp", "milestone", "operation", "notes",
]  # fmt: skip
COLUMNS = [
    *FIELDS, "message_id", "from_agent", "to_agent", "message_type", "payload", "priority", "processed", "expires_at",
    "correlation_id", "state_key", "state_value", "state_type", "data", "task_id", "phase", "request", "completed_at",
]  # fmt: skip
text = st.text(max_size=20)
scalars = (
    st.none() | st.booleans() | st.integers() | st.floats() | text | st.sampled_from(["running", "a", "²", "[1", "{}"])
)
anything = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(FIELDS) | text, inner, max_size=6),
    max_leaves=25,
)


def mapper() -> Mapper:
    return Mapper(FileTally("x", ""), Limits(1024 * 1024, 1024 * 1024), 1_700_000_000_000, utc=True)


def sound(items: list[ImportedRow]) -> None:
    for item in items:
        line = item.line
        assert line.created >= 0
        if isinstance(line, ArchivedAgent | ArchivedSession):
            check_name(line.id, "id")
            assert 0 <= line.progress <= 100
        if isinstance(line, ArchivedAgent):
            check_name(line.type, "type")
            assert line.load is None or 0 <= line.load <= 100
            assert line.name
        if isinstance(line, ArchivedState):
            check_key(line.key)
        if isinstance(line, ArchivedMessage):
            check_name(line.mailbox_name, "recipient")
            check_name(line.message_id, "message_id")
            assert (line.finished is None) == (line.status == "queued")


@pytest.mark.parametrize("format", ["session", "agents", "agent", "document", "checkpoint", "state"])
@settings(max_examples=examples(60), deadline=None)
@given(value=anything)
def test_any_json_is_mapped_or_refused(format: str, value: Any) -> None:
    if format == "agent" and not isinstance(value, dict):
        value = {"agent_id": value}
    place = Folder(Path("/x"))
    if format == "session":
        place.learn(value)
    name = "checkpoint_20240115_103000.json" if format == "checkpoint" else "x-1705314600.json"
    sound(json_files.items_of(format, name, value, place, mapper()))
    sound(json_files.agents_of_session(place, mapper()))


@pytest.mark.parametrize("table", sorted(databases._READERS))
@settings(max_examples=examples(60), deadline=None)
@given(row=st.dictionaries(st.sampled_from(COLUMNS), scalars | st.just({"base64": "/w=="}), max_size=20))
def test_any_row_is_mapped_or_refused(table: str, row: dict[str, Any]) -> None:
    items = databases._READERS[table](row, 1, Folder(Path("/x")), mapper())
    sound([item for item in items if item is not None])


@settings(max_examples=examples(150), deadline=None)
@given(value=anything)
def test_values_are_read_or_not(value: Any) -> None:
    found = mapping.name_of(value)
    if found is not None:
        check_name(found, "name")
    moment = mapping.parse_time(value)
    assert moment is None or moment >= 0
    share = mapping.parse_percent(value)
    assert share is None or 0 <= share <= 100
    assert 0 <= mapping.parse_priority(value) <= 9
    length = mapping.parse_duration(value)
    assert length is None or length >= 0


@given(st.lists(text, unique=True))
def test_no_two_names_become_the_same(names: list[str]) -> None:
    found = [name for name in map(mapping.name_of, names) if name is not None]
    assert len(set(found)) == len(found)
