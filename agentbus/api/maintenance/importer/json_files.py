"""JSON files of agents and their scripts: find, read, classify and map them to rows.

Only regular files of bounded size are read, and no link is followed. A file that cannot be read is reported and does
not stop the others. All calls block.
"""

from __future__ import annotations

import codecs
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

from agentbus.api.maintenance.importer.mapping import (
    STARTED,
    UPDATED,
    Mapper,
    Raw,
    members_of,
    name_of,
    parse_stamp,
    parse_time,
    pick,
)
from agentbus.core.files import DATABASE
from agentbus.core.threads import check_interruption
from agentbus.core.validation import session_scope
from agentbus.errors import AgentBusError
from agentbus.operations.archive_restore import ImportedRow
from agentbus.operations.archive_rows import ArchivedSession

MAX_FILES = 100_000
MAX_ENTRIES = 250_000
"""Files and folders, including skipped ones: listing them takes memory and time."""
MAX_DEPTH = 32
MAX_BYTES = 16 * 1024 * 1024
"""Bytes of one JSON file: the limit of a checkpoint. Decoded, it may take twenty times as much memory."""
SKIPPED_FOLDERS = frozenset(
    {".git", ".hg", ".svn", "node_modules", ".venv", "venv", "__pycache__", ".mypy_cache", ".tox"}
)
# O_NONBLOCK: if it is a pipe after all, opening it must not wait for a writer.
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_CHUNK = 1024 * 1024

SESSION = "current_session.json"
AGENTS = "agent_state.json"
DOCUMENTS = frozenset({
    "last_planning_output.json", "last_execution_output.json", "deployment_state.json", "metrics_state.json",
})  # fmt: skip
_checkpoint = re.compile(r"checkpoint_(\d{8}_\d{6})\.json").fullmatch
_timestamped = re.compile(r".*?[-_.](\d{8}[-_T]?\d{6}Z?|\d{13}|\d{10})\.json", re.DOTALL).fullmatch
_AGENT_FIELDS = frozenset({"agent_name", "agent_type", "parent_agent_id", "load_percentage", "status"})
UNKNOWN = "unknown format: neither its name nor its fields are recognized"

OwnsFile = Callable[[int, int], bool]


class Unreadable(AgentBusError):
    """A file or folder that is skipped. Callers never see it: it becomes a line of the report."""

    code = "unreadable"


class Entry(msgspec.Struct, frozen=True):
    """A file to import: its path below the root (with invalid Unicode escaped), and its size."""

    name: str
    path: Path
    size: int


class Contents(msgspec.Struct, frozen=True):
    """The contents of a file, and its modification time (wall milliseconds)."""

    data: bytes
    modified: int


def walk_files(root: Path, owns_file: OwnsFile) -> Iterator[Entry | tuple[str, str]]:
    """Yield the files below a folder in the order of their names, or a name and the reason why it is skipped."""
    count = 0
    left = MAX_ENTRIES
    waiting = [(root, 0)]
    while waiting:
        folder, depth = waiting.pop()
        found, problem = _list_folder(folder, left)
        if problem is not None:
            yield display_path(folder, root), problem
            continue
        if any(entry.name == DATABASE for entry in found):
            yield display_path(folder, root), "it is the home of a bus: export that bus and import the file"
            continue
        left -= len(found)
        inner: list[tuple[Path, int]] = []
        for entry in found:
            check_interruption()
            path = folder / entry.name
            name = display_path(path, root)
            kind = _classify_entry(entry, owns_file)
            if isinstance(kind, str):
                yield name, kind
            elif kind is None:
                if entry.name in SKIPPED_FOLDERS or depth >= MAX_DEPTH:
                    yield name, "it is nested too deep" if depth >= MAX_DEPTH else "folders of this name are skipped"
                else:
                    inner.append((path, depth + 1))
            else:
                count += 1
                if count > MAX_FILES:
                    yield "", f"there are more than {MAX_FILES} files; import its folders one by one"
                    return
                yield Entry(name, path, kind)
        waiting += reversed(inner)


def display_path(path: Path, root: Path) -> str:
    """Return a path for the report: relative to the root, valid Unicode."""
    relative = os.fsencode(path.relative_to(root)).decode("utf-8", "backslashreplace") if path != root else ""
    return relative.replace("\0", "\\0")


@contextmanager
def open_file(path: Path, owns_file: OwnsFile) -> Iterator[int]:
    """Open a regular file, never one of an open bus: closing that would drop SQLite's locks."""
    try:
        found = os.stat(path, follow_symlinks=False)
        if owns_file(found.st_dev, found.st_ino):
            raise Unreadable(reason="it is part of a bus that is open")
        if not stat.S_ISREG(found.st_mode):
            raise Unreadable(reason="it is not a plain file")
        file = os.open(path, _FLAGS)
    except (OSError, ValueError) as error:
        raise Unreadable(reason=_reason(error)) from None
    there = os.fstat(file)
    if owns_file(there.st_dev, there.st_ino):
        # Replaced since the check. Never closed.
        raise Unreadable(reason="it is part of a bus that is open")
    try:
        if not stat.S_ISREG(there.st_mode):
            raise Unreadable(reason="it is not a plain file")
        yield file
    except OSError as error:
        raise Unreadable(reason=_reason(error)) from None
    finally:
        os.close(file)


def read_head(path: Path, owns_file: OwnsFile, size: int = 16) -> bytes:
    """Return the first bytes of a file, which identify its format."""
    with open_file(path, owns_file) as file:
        return os.read(file, size)


def read_json_file(path: Path, owns_file: OwnsFile) -> Contents:
    """Read a whole file, which must not change during the read."""
    with open_file(path, owns_file) as file:
        before = os.fstat(file)
        if before.st_size > MAX_BYTES:
            raise Unreadable(reason=f"it has {before.st_size} bytes, the limit is {MAX_BYTES}")
        parts: list[bytes] = []
        size = 0
        while part := os.read(file, _CHUNK):
            parts.append(part)
            size += len(part)
            if size > MAX_BYTES:
                break
        after = os.fstat(file)
        if (after.st_size, after.st_mtime_ns) != (before.st_size, before.st_mtime_ns) or size != after.st_size:
            raise Unreadable(reason="it changed while it was read; import it again")
    return Contents(b"".join(parts), after.st_mtime_ns // 1_000_000)


def _list_folder(folder: Path, max_entries: int) -> tuple[list[os.DirEntry[str]], str | None]:
    """List a folder by name, or return the reason why not. One with more than ``max_entries`` entries is skipped as a
    whole: a part of it would be arbitrary."""
    listed: list[os.DirEntry[str]] = []
    try:
        with os.scandir(folder) as found:
            for entry in found:
                check_interruption()
                if len(listed) == max_entries:
                    return (
                        [],
                        f"there are more than {MAX_ENTRIES} files and folders; import smaller folders one by one",
                    )
                listed.append(entry)
    except OSError as error:
        return [], _reason(error)
    return sorted(listed, key=lambda entry: entry.name), None


def _classify_entry(entry: os.DirEntry[str], owns_file: OwnsFile) -> int | str | None:
    """Return the size of a file, None for a folder, or the reason why it is neither."""
    try:
        found = entry.stat(follow_symlinks=False)
    except OSError as error:
        return _reason(error)
    if stat.S_ISLNK(found.st_mode):
        return "it is a link; links are not followed"
    if stat.S_ISDIR(found.st_mode):
        return None
    if not stat.S_ISREG(found.st_mode):
        return "it is not a plain file"
    return "it is part of a bus that is open" if owns_file(found.st_dev, found.st_ino) else found.st_size


def _reason(error: OSError | ValueError) -> str:
    return getattr(error, "strerror", None) or str(error)


class Folder:
    """The folder of a file, and the session of that folder, if it has one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.session: str | None = None
        self.updated: int | None = None
        self.members: dict[str, Raw] = {}
        """The agents that the session names, with their records."""
        self.finished: set[str] = set()
        """Agents that have finished in the meeting of the session."""
        self.session_created = False
        """True once the session of the folder was created."""

    @property
    def own(self) -> str:
        """The id of a session created for rows that must belong to one."""
        mark = sha256(os.fsencode(self.folder)).hexdigest()[:8]
        return f"imported-{(name_of(self.folder.name) or 'folder')[:100]}-{mark}"

    def learn(self, raw: object) -> None:
        """Read session, members and times from ``current_session.json``."""
        if not isinstance(raw, Mapping):
            return
        self.session = name_of(pick(raw, "session_id", "id") or self.own)
        times = (parse_time(raw.get(name)) for name in (*UPDATED, *STARTED))
        self.updated = next((found for found in times if found is not None), None)
        members = [(member.name, member) for member in members_of(raw)]
        self.members = {name: member.record or {} for name, member in members if name is not None}
        self.finished = {name for name, member in members if name is not None and member.finished}

    def creation_time(self, modified: int) -> int:
        """Return the creation time of a record that has none: not later than the last change of the session, because
        the file may have been copied since."""
        return modified if self.updated is None else min(modified, self.updated)


def is_json(name: str) -> bool:
    return name.lower().endswith(".json")


def decode_json(contents: Contents) -> Any:
    """Decode a JSON file."""
    try:
        return msgspec.json.decode(contents.data.removeprefix(codecs.BOM_UTF8))
    except RecursionError:
        raise Unreadable(reason="it is nested too deep") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Unreadable(reason=f"it is not JSON: {error}" if contents.data.strip() else "it is empty") from None


def format_of(name: str, value: object) -> str | None:
    """Return the format of a file, by its name and fields."""
    if name == SESSION:
        return "session"
    if name == AGENTS:
        return "agents"
    if name in DOCUMENTS:
        return "document"
    if _checkpoint(name):
        return "checkpoint"
    if isinstance(value, Mapping):
        if "agent_id" in value and not _AGENT_FIELDS.isdisjoint(value):
            return "agent"
        if "agent_type" in value and "agent_name" in value:
            return "agent"
    return "state" if _timestamped(name) else None


def items_of(format: str, name: str, value: Any, folder: Folder, mapper: Mapper) -> list[ImportedRow]:
    """Return the rows of a file in import order."""
    items = {
        "session": _session,
        "agents": _agents,
        "agent": _agent,
        "document": _document,
        "checkpoint": _snapshot,
        "state": _state,
    }[format](name, value, folder, mapper)
    found: list[ImportedRow] = []
    for item in items:
        check_interruption()
        if item is not None:
            found.append(item)
    return found


def _agent(name: str, value: Any, folder: Folder, mapper: Mapper) -> Iterator[ImportedRow | None]:
    # The id in the file takes precedence over the file name: others refer to it.
    stem = name.removesuffix(".json")
    yield _member(value, 0, folder, mapper, stem)


def _agents(name: str, value: Any, folder: Folder, mapper: Mapper) -> Iterator[ImportedRow | None]:
    """Map a list of agents, or an object by id, optionally under an ``agents`` key."""
    inner = value.get("agents") if isinstance(value, Mapping) else None
    if isinstance(inner, list | Mapping):
        value = inner
    elif isinstance(value, Mapping) and "agent_id" in value:
        value = [value]
    if isinstance(value, Mapping):
        for line, (key, raw) in enumerate(value.items(), 1):
            if isinstance(raw, str):
                raw = {"status": raw}
            yield _member(raw, line, folder, mapper, key)
    elif isinstance(value, list):
        for line, raw in enumerate(value, 1):
            yield _member({"agent_id": raw} if isinstance(raw, str) else raw, line, folder, mapper, None)
    else:
        mapper.tally.refuse(0, "it is neither a list nor an object of agents")


def _member(raw: object, line: int, folder: Folder, mapper: Mapper, id: object) -> ImportedRow | None:
    if not isinstance(raw, Mapping):
        mapper.tally.refuse(line, f"an agent must be an object, not {type(raw).__name__}")
        return None
    agent = name_of(pick(raw, "agent_id", "id") or id)
    if agent not in folder.members:
        return mapper.agent(raw, line, id=id)
    return mapper.agent(raw, line, id=id, session=folder.session, finished=agent in folder.finished, unsaid="running")


def _session(name: str, value: Any, folder: Folder, mapper: Mapper) -> Iterator[ImportedRow | None]:
    if not isinstance(value, Mapping):
        mapper.tally.refuse(0, "a session must be an object")
        return
    yield from mapper.session(value, 0, id=folder.own)


def agents_of_session(folder: Folder, mapper: Mapper) -> list[ImportedRow]:
    """Return the agents that a session names; those without other data by name only."""
    if folder.session is None:
        return []
    found = [
        mapper.agent(raw, line, id=id, session=folder.session, finished=id in folder.finished, unsaid="running")
        for line, (id, raw) in enumerate(folder.members.items(), 1)
    ]
    return [agent for agent in found if agent is not None]


def _document(name: str, value: Any, folder: Folder, mapper: Mapper) -> Iterator[ImportedRow | None]:
    session = folder.session or folder.own
    yield session_for(session, folder, mapper)
    created = mapper.time(value, "timestamp", "updated_at", "last_updated") if isinstance(value, Mapping) else None
    yield mapper.document(session, name.removesuffix(".json"), value, 0, created)


def _snapshot(name: str, value: Any, folder: Folder, mapper: Mapper) -> Iterator[ImportedRow | None]:
    """Map a checkpoint of the agent or session that it names, else of the session of its folder."""
    found = _checkpoint(name)
    created = None if found is None else parse_stamp(found[1])
    raw = value if isinstance(value, Mapping) else {}
    inner = raw.get("session")
    session = name_of(pick(raw, "session_id") or pick(inner if isinstance(inner, Mapping) else {}, "session_id"))
    agent = name_of(pick(raw, "agent_id"))
    title = pick(raw, "checkpoint_name", "checkpoint_type", "name", "phase", "milestone")
    title = title if isinstance(title, str) and title else "checkpoint"
    if agent is not None:
        owner = ("agent", agent)
    else:
        session = session or folder.session or folder.own
        owner = ("session", session)
        yield session_for(session, folder, mapper)
    notes = pick(raw, "notes", "description")
    yield mapper.checkpoint(owner, title, value, 0, created=created, session=session, notes=notes)


def _state(name: str, value: Any, folder: Folder, mapper: Mapper) -> Iterator[ImportedRow | None]:
    """Map a timestamped file to state of the agent it names, else of the folder's session, else of "imported"."""
    agent = name_of(pick(value, "agent_id")) if isinstance(value, Mapping) else None
    scope = agent or (session_scope(folder.session) if folder.session is not None else "imported")
    found = _timestamped(name)
    created = None if found is None else parse_stamp(found[1])
    yield mapper.state(scope, name.removesuffix(".json"), value, 0, created=created, type="temp_data", author=agent)


def session_for(session: str, folder: Folder, mapper: Mapper) -> ImportedRow | None:
    """Return a completed session for rows that must belong to one, unless the folder has a session."""
    if session == folder.session:
        return None
    made = mapper.modified
    return ImportedRow(
        ArchivedSession(session, "imported", None, "completed", 0, 0, "{}", "{}", None, made, made, made),
        dated=False,
    )
