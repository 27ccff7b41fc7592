"""SQLite databases of hand-made workflows and coordination: which tables they have, and what their rows become."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from agentbus.engine.foreign import Foreign
from agentbus.limits import STATE_TYPES, session_scope
from agentbus.operations.adopting import Adopted
from agentbus.operations.archives import ArchivedCheckpoint
from agentbus.services.importing.documents import Place, session_for
from agentbus.services.importing.mapping import Mapper, unpacked
from agentbus.services.importing.tasks import task_id, task_of
from agentbus.services.importing.values import moment, name_of, pick
from agentbus.services.importing.walking import Unreadable

_SORTED = 2000
_SORTED_BYTES = 32 * 1024 * 1024
_CREATED = ("created_at", "created", "timestamp", "time", "saved_at")
_DATA = ("snapshot", "data", "checkpoint_data", "state_snapshot", "state_data", "state", "workflow_state", "payload")
_TITLE = ("checkpoint_name", "name", "step", "step_name", "phase", "stage", "checkpoint_type", "type", "label")
Row = dict[str, Any]


def rows_of(database: Foreign, path: Path, mapper: Mapper) -> Iterator[Adopted]:
    """All that a database has and we know of, in the order in which it is taken."""
    if database.is_bus:
        raise Unreadable(reason="it is the database of a bus: export that bus, and import what it writes")
    known = [table for table in _READERS if table in database.tables]
    if "tasks" not in known and "checkpoints" in known:
        known.remove("checkpoints")
    if not known:
        raise Unreadable(reason="no table in it is known")
    place = Place(path)
    for table in known:
        items = _mapped(database, table, place, mapper)
        yield from _in_order_of_time(items) if table.endswith("checkpoints") else items


def _mapped(database: Foreign, table: str, place: Place, mapper: Mapper) -> Iterator[Adopted]:
    read = _READERS[table]
    for number, row in enumerate(database.rows(table), 1):
        try:
            items = [item for item in read(row, number, place, mapper) if item is not None]
        except RecursionError:
            mapper.tally.refuse(number, f"{table}: a value is nested too deep")
        else:
            yield from items


def _task(row: Row, number: int, place: Place, mapper: Mapper) -> Iterator[Adopted | None]:
    yield task_of(row, number, place.own, mapper)


def _task_checkpoint(row: Row, number: int, place: Place, mapper: Mapper) -> Iterator[Adopted | None]:
    """A checkpoint of its task; of a session that is made for it, if it names none."""
    said = pick(row, "task_id", "task")
    task = None if said is None else task_id(said, place.own)
    if task is None and not place.begun:
        place.begun = True
        yield session_for(place.own, place, mapper)
    owner = ("session", place.own) if task is None else ("task", task)
    yield mapper.checkpoint(
        owner, pick(row, *_TITLE) or "checkpoint", _data(row), number, created=mapper.time(row, *_CREATED),
        session=place.own if task is None else None, notes=pick(row, "notes", "description"),
    )  # fmt: skip


def _session(row: Row, number: int, place: Place, mapper: Mapper) -> Iterator[Adopted | None]:
    yield from mapper.session({name: unpacked(value) for name, value in row.items()}, number)


def _agent(row: Row, number: int, place: Place, mapper: Mapper) -> Iterator[Adopted | None]:
    yield mapper.agent(row, number)


def _state(row: Row, number: int, place: Place, mapper: Mapper) -> Iterator[Adopted | None]:
    agent = pick(row, "agent_id", "agent", "owner", "scope")
    session = name_of(pick(row, "session_id"))
    scope = mapper.name(agent, "agent id", number) if agent is not None else None
    if scope is None:
        scope = session_scope(session) if session is not None else "imported"
    kind = pick(row, "state_type", "type", "data_type")
    yield mapper.state(
        scope,
        pick(row, "state_key", "key", "name") or (kind if isinstance(kind, str) and kind else "state"),
        unpacked(_first(row, "state_value", "value", "state_data", "data", "state")),
        number,
        created=mapper.time(row, "created_at", "created", "updated_at", "timestamp"),
        updated=mapper.time(row, "updated_at", "last_updated", "timestamp"),
        expires=mapper.time(row, "expires_at"),
        type=kind if kind in STATE_TYPES else "user_data",
        author=None if agent is None else scope,
    )


def _checkpoint(row: Row, number: int, place: Place, mapper: Mapper) -> Iterator[Adopted | None]:
    agent = name_of(pick(row, "agent_id", "agent", "owner"))
    session = name_of(pick(row, "session_id", "session"))
    if agent is None and session is None:
        mapper.tally.refuse(number, "agent_checkpoints: a row that names neither an agent nor a session")
        return
    owner = ("agent", agent) if agent is not None else ("session", str(session))
    yield mapper.checkpoint(
        owner, pick(row, *_TITLE) or "checkpoint", _data(row), number,
        created=mapper.time(row, *_CREATED), session=session, notes=pick(row, "notes", "description"),
    )  # fmt: skip


def _message(row: Row, number: int, place: Place, mapper: Mapper) -> Iterator[Adopted | None]:
    yield mapper.message(row, number, place.own)


_READERS: dict[str, Callable[[Row, int, Place, Mapper], Iterator[Adopted | None]]] = {
    "coordination_sessions": _session,
    "tasks": _task,
    "checkpoints": _task_checkpoint,
    "agent_registry": _agent,
    "agent_state": _state,
    "agent_checkpoints": _checkpoint,
    "agent_messages": _message,
}
"""In this order: what others refer to comes before them."""


def _first(row: Row, *names: str) -> Any:
    """The first of these columns that there is; a value may well be null."""
    return next((row[name] for name in names if name in row), None)


def _data(row: Row) -> Any:
    """What was kept: one column, else the whole row."""
    value = pick(row, *_DATA)
    return {name: unpacked(column) for name, column in row.items()} if value is None else unpacked(value)


def _in_order_of_time(items: Iterator[Adopted]) -> Iterator[Adopted]:
    """Oldest first, so that the newest gets the highest number; in stretches that fit into memory."""
    stretch: list[Adopted] = []
    size = 0
    for item in items:
        if isinstance(item.line, ArchivedCheckpoint):
            stretch.append(item)
            size += item.line.size
            if len(stretch) == _SORTED or size > _SORTED_BYTES:
                yield from sorted(stretch, key=_created)
                stretch, size = [], 0
        else:
            yield item
    yield from sorted(stretch, key=_created)


def _created(item: Adopted) -> int:
    return moment(item.line.created) or 0
