"""JSON files that agents and their scripts leave behind: which is which, and what is in them."""

from __future__ import annotations

import codecs
import os
import re
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

from agentbus.aside import check_interruption
from agentbus.limits import session_scope
from agentbus.operations.adopting import Adopted
from agentbus.operations.archives import ArchivedSession
from agentbus.services.importing.mapping import STARTED, UPDATED, Mapper, Raw, members_of
from agentbus.services.importing.values import moment, name_of, pick, stamped
from agentbus.services.importing.walking import Contents, Unreadable

SESSION = "current_session.json"
AGENTS = "agent_state.json"
DOCUMENTS = frozenset({
    "last_planning_output.json", "last_execution_output.json", "deployment_state.json", "metrics_state.json",
})  # fmt: skip
_checkpoint = re.compile(r"checkpoint_(\d{8}_\d{6})\.json").fullmatch
_loose = re.compile(r".*?[-_.](\d{8}[-_T]?\d{6}Z?|\d{13}|\d{10})\.json", re.DOTALL).fullmatch
_SAYS_AGENT = frozenset({"agent_name", "agent_type", "parent_agent_id", "load_percentage", "status"})
UNKNOWN = "nothing in it is known: neither its name nor its fields"


class Place:
    """The folder that a file lies in, and the session of that folder, if it says of one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.session: str | None = None
        self.updated: int | None = None
        self.members: dict[str, Raw] = {}
        """The agents that the session names, and what it says of each."""
        self.finished: set[str] = set()
        """Those of them that have finished in its meeting."""
        self.begun = False
        """Whether the session of its own was made."""

    @property
    def own(self) -> str:
        """The session that is made for what must belong to one."""
        mark = sha256(os.fsencode(self.folder)).hexdigest()[:8]
        return f"imported-{(name_of(self.folder.name) or 'folder')[:100]}-{mark}"

    def learn(self, raw: object) -> None:
        """What ``current_session.json`` says."""
        if not isinstance(raw, Mapping):
            return
        self.session = name_of(pick(raw, "session_id", "id") or self.own)
        times = (moment(raw.get(name)) for name in (*UPDATED, *STARTED))
        self.updated = next((found for found in times if found is not None), None)
        members = [(member.name, member) for member in members_of(raw)]
        self.members = {name: member.record or {} for name, member in members if name is not None}
        self.finished = {name for name, member in members if name is not None and member.finished}

    def made(self, modified: int) -> int:
        """Return the creation time of a record that has none: for a session not later than its last change, because
        the file may have been copied since."""
        return modified if self.updated is None else min(modified, self.updated)


def is_json(name: str) -> bool:
    return name.lower().endswith(".json")


def decoded(contents: Contents) -> Any:
    """What a JSON file says."""
    try:
        return msgspec.json.decode(contents.data.removeprefix(codecs.BOM_UTF8))
    except RecursionError:
        raise Unreadable(reason="it is nested too deep") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Unreadable(reason=f"it is not JSON: {error}" if contents.data.strip() else "it is empty") from None


def format_of(name: str, value: object) -> str | None:
    """What a file is, by its name and by what is in it."""
    if name == SESSION:
        return "session"
    if name == AGENTS:
        return "agents"
    if name in DOCUMENTS:
        return "document"
    if _checkpoint(name):
        return "checkpoint"
    if isinstance(value, Mapping):
        if "agent_id" in value and not _SAYS_AGENT.isdisjoint(value):
            return "agent"
        if "agent_type" in value and "agent_name" in value:
            return "agent"
    return "state" if _loose(name) else None


def items_of(format: str, name: str, value: Any, place: Place, mapper: Mapper) -> list[Adopted]:
    """What a file of a format has, in the order in which it is taken."""
    items = {
        "session": _session,
        "agents": _agents,
        "agent": _agent,
        "document": _document,
        "checkpoint": _snapshot,
        "state": _state,
    }[format](name, value, place, mapper)
    found: list[Adopted] = []
    for item in items:
        check_interruption()
        if item is not None:
            found.append(item)
    return found


def _agent(name: str, value: Any, place: Place, mapper: Mapper) -> Iterator[Adopted | None]:
    # A name of ours comes before a name of the file's: what others refer to is in the file.
    stem = name.removesuffix(".json")
    yield _member(value, 0, place, mapper, stem)


def _agents(name: str, value: Any, place: Place, mapper: Mapper) -> Iterator[Adopted | None]:
    """A list, or a map by id, of agents; with or without something around it."""
    inner = value.get("agents") if isinstance(value, Mapping) else None
    if isinstance(inner, list | Mapping):
        value = inner
    elif isinstance(value, Mapping) and "agent_id" in value:
        value = [value]
    if isinstance(value, Mapping):
        for line, (key, raw) in enumerate(value.items(), 1):
            if isinstance(raw, str):
                raw = {"status": raw}
            yield _member(raw, line, place, mapper, key)
    elif isinstance(value, list):
        for line, raw in enumerate(value, 1):
            yield _member({"agent_id": raw} if isinstance(raw, str) else raw, line, place, mapper, None)
    else:
        mapper.tally.refuse(0, "it is neither a list nor a map of agents")


def _member(raw: object, line: int, place: Place, mapper: Mapper, id: object) -> Adopted | None:
    if not isinstance(raw, Mapping):
        mapper.tally.refuse(line, f"an agent is a record, not {type(raw).__name__}")
        return None
    agent = name_of(pick(raw, "agent_id", "id") or id)
    if agent not in place.members:
        return mapper.agent(raw, line, id=id)
    return mapper.agent(raw, line, id=id, session=place.session, finished=agent in place.finished, unsaid="running")


def _session(name: str, value: Any, place: Place, mapper: Mapper) -> Iterator[Adopted | None]:
    if not isinstance(value, Mapping):
        mapper.tally.refuse(0, "a session is a record")
        return
    yield from mapper.session(value, 0, id=place.own)


def agents_of_session(place: Place, mapper: Mapper) -> list[Adopted]:
    """The agents that a session names: those of which nothing more is known come in by their names alone."""
    if place.session is None:
        return []
    found = [
        mapper.agent(raw, line, id=id, session=place.session, finished=id in place.finished, unsaid="running")
        for line, (id, raw) in enumerate(place.members.items(), 1)
    ]
    return [agent for agent in found if agent is not None]


def _document(name: str, value: Any, place: Place, mapper: Mapper) -> Iterator[Adopted | None]:
    session = place.session or place.own
    yield session_for(session, place, mapper)
    created = mapper.time(value, "timestamp", "updated_at", "last_updated") if isinstance(value, Mapping) else None
    yield mapper.document(session, name.removesuffix(".json"), value, 0, created)


def _snapshot(name: str, value: Any, place: Place, mapper: Mapper) -> Iterator[Adopted | None]:
    """Of the agent or the session that it names; else of the session of its folder."""
    found = _checkpoint(name)
    created = None if found is None else stamped(found[1])
    raw = value if isinstance(value, Mapping) else {}
    inner = raw.get("session")
    session = name_of(pick(raw, "session_id") or pick(inner if isinstance(inner, Mapping) else {}, "session_id"))
    agent = name_of(pick(raw, "agent_id"))
    title = pick(raw, "checkpoint_name", "checkpoint_type", "name", "phase", "milestone")
    title = title if isinstance(title, str) and title else "checkpoint"
    if agent is not None:
        owner = ("agent", agent)
    else:
        session = session or place.session or place.own
        owner = ("session", session)
        yield session_for(session, place, mapper)
    notes = pick(raw, "notes", "description")
    yield mapper.checkpoint(owner, title, value, 0, created=created, session=session, notes=notes)


def _state(name: str, value: Any, place: Place, mapper: Mapper) -> Iterator[Adopted | None]:
    """A loose file is state of the agent that it names, else of the folder's session, else of the scope "imported"."""
    agent = name_of(pick(value, "agent_id")) if isinstance(value, Mapping) else None
    scope = agent or (session_scope(place.session) if place.session is not None else "imported")
    found = _loose(name)
    created = None if found is None else stamped(found[1])
    yield mapper.state(scope, name.removesuffix(".json"), value, 0, created=created, type="temp_data", author=agent)


def session_for(session: str, place: Place, mapper: Mapper) -> Adopted | None:
    """A session for what must belong to one, unless it is there: it is over, and only holds what was found."""
    if session == place.session:
        return None
    made = mapper.modified
    return Adopted(
        ArchivedSession(session, "imported", None, "completed", 0, 0, "{}", "{}", None, made, made, made),
        dated=False,
    )
