"""The doctor: looks at the store, its surroundings and what is in it, and says what to do. It changes nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from hashlib import sha256
from typing import Any, Protocol, TypeVar
from zlib import crc32

import anyio.to_thread

from agentbus.clock import Now
from agentbus.engine import presence
from agentbus.errors import AgentBusError, NotADatabase, NotWritable, StoreError, UnsafeFile, UntrustedHome
from agentbus.operations import Op, examining
from agentbus.operations.examining import Unseen
from agentbus.operations.outgrowing import read_crowd
from agentbus.operations.unfinished import read_place
from agentbus.records import Check
from agentbus.services.outgrowing import Bounds, outgrown, way_out

R = TypeVar("R")
T = TypeVar("T")

_MOST_ROWS = 10_000
_MOST_BYTES = 64 * 1024 * 1024
"""Of each kind of payload, so many rows or bytes are compared with their checksums, the newest first."""

_PAYLOADS: dict[str, tuple[Callable[[int, Any], Any], Callable[[bytes], int | str]]] = {
    "messages": (examining.message_payloads, crc32),
    "state": (examining.state_payloads, crc32),
    "documents": (examining.document_payloads, lambda text: sha256(text).hexdigest()),
    "participants": (examining.participant_payloads, crc32),
    "checkpoints": (examining.checkpoint_payloads, lambda text: sha256(text).hexdigest()),
    "tasks": (examining.task_payloads, crc32),
    "steps": (examining.step_payloads, crc32),
    "approvals": (examining.approval_payloads, crc32),
}


class Patient(Protocol):
    """A store that can be looked at, be it open or not."""

    @property
    def process(self) -> int: ...

    @property
    def home(self) -> str | None: ...

    async def sizes(self) -> tuple[int, int]: ...

    async def examine(self) -> list[Check | Unseen]: ...

    async def inspect(self, question: Callable[[R, Now], Op[T]], request: R) -> T: ...


async def examine(store: Patient, bounds: Bounds) -> list[Check]:
    """Every check there is, in the order in which people want to read them. ``bounds``: what one file is enough for."""
    found = await store.examine()
    if "integrity" in {one.name for one in found}:
        for kind in _PAYLOADS:
            found.append(await _looked(f"payloads of {kind}", _payloads(store, kind)))
        found.append(await _looked("processes", _processes(store)))
        found.append(await _looked("leases", _leases(store)))
        found.append(await _looked("clock", _clock(store)))
        found.append(await _looked("expected documents", _expected(store)))
        if store.home is not None:
            found.append(await _looked("room", _room(store, store.home, bounds)))
        found += await _unfinished(store)
    return told(found)


def told(found: Sequence[Check | Unseen]) -> list[Check]:
    """One sentence for each cause: what could not be looked at for a reason that another check tells, or that was told
    before, is only named there."""
    ill = {check.name: check for check in found if isinstance(check, Check) and check.status == "error"}
    checks: dict[str, Check] = {}
    causes: dict[str, str] = {}
    spared: dict[str, list[str]] = {}
    for one in found:
        if isinstance(one, Check):
            checks[one.name] = one
            continue
        text = str(one.error.args[0])
        cause = _TOLD_BY.get(type(one.error), "")
        cause = cause if cause in ill else causes.setdefault(text, one.name)
        if cause == one.name:
            checks[one.name] = Check(one.name, "error", text, one.fix or one.error.fix)
        else:
            spared.setdefault(cause, []).append(one.name)
    for cause, names in spared.items():
        check = checks[cause]
        text = f"{check.text}; for the same reason nothing can be said of: {', '.join(names)}"
        checks[cause] = Check(check.name, check.status, text, check.fix)
    return list(checks.values())


_TOLD_BY: dict[type[AgentBusError], str] = {
    NotADatabase: "integrity",
    StoreError: "schema",
    NotWritable: "permissions",
    UnsafeFile: "permissions",
    UntrustedHome: "permissions",
}
"""Which check tells the cause of an error that others run into."""


async def _looked(name: str, look: Awaitable[tuple[str, str, str | None]]) -> Check | Unseen:
    try:
        return Check(name, *(await look))
    except NotADatabase as error:
        return Unseen(name, error, "restore a backup: agentbus.restore_backup(…)")
    except AgentBusError as error:
        return Unseen(name, error)


async def _payloads(store: Patient, kind: str) -> tuple[str, str, str | None]:
    question, hashed = _PAYLOADS[kind]
    cursor: int | None = examining.NEWEST
    count = size = 0
    damaged: list[str] = []
    while cursor is not None and count < _MOST_ROWS and size < _MOST_BYTES:
        page: examining.Page = await store.inspect(question, cursor)
        found, bytes = await anyio.to_thread.run_sync(_compare, page, hashed)
        damaged += found
        size += bytes
        count += len(page.rows)
        cursor = page.cursor
    whole = f"all {count}" if cursor is None else f"the newest {count}"
    if damaged:
        match = "does not match its checksum" if len(damaged) == 1 else "do not match their checksums"
        text = f"{len(damaged)} of {whole.removeprefix('all ')} {match}: {', '.join(damaged[:5])}"
        return "error", text, "check the disk, and restore what is missing from a backup"
    rest = "" if cursor is None else "; older ones were not looked at"
    return "ok", f"{whole} match their checksums{rest}" if count else "there are none", None


def _compare(page: examining.Page, hashed: Callable[[bytes], int | str]) -> tuple[list[str], int]:
    damaged: list[str] = []
    size = 0
    for what, checksum, text in page.rows:
        # In a damaged row there may be anything, or nothing.
        encoded = text.encode(errors="surrogateescape") if isinstance(text, str) else b""
        size += len(encoded)
        if not isinstance(text, str) or hashed(encoded) != checksum:
            damaged.append(what)
    return damaged, size


async def _processes(store: Patient) -> tuple[str, str, str | None]:
    live = await store.inspect(examining.live_processes, None)
    host = presence.host_key()
    ours = [process for process in live if process.host == host and process.process != store.process]
    gone = await anyio.to_thread.run_sync(
        lambda: [other.pid for other in ours if presence.is_gone(other.pid, other.started, other.bell)]
    )
    if gone:
        are = "counts as live and is gone" if len(gone) == 1 else "count as live and are gone"
        text = f"{len(gone)} of {len(live)} {are}: {', '.join(map(str, gone[:5]))}"
        return "warning", text, "nothing: the next beat of any process, or the next opening, strikes them off"
    return "ok", "one has the bus open" if len(live) == 1 else f"{len(live) or 'none'} have the bus open", None


async def _leases(store: Patient) -> tuple[str, str, str | None]:
    stuck = await store.inspect(examining.stuck_leases, None)
    if stuck:
        messages = "lease ran out" if stuck == 1 else "leases ran out"
        text = f"{stuck} {messages} more than a minute ago, and nobody has taken back what it was for"
        return "warning", text, "run a monitor, or let an agent receive from those mailboxes"
    return "ok", "none is overdue", None


async def _clock(store: Patient) -> tuple[str, str, str | None]:
    ahead = await store.inspect(examining.clocks, None)
    if ahead.awake:
        text = f"a process beat {ahead.awake / 1000:.0f} s in the future of this boot"
        return "error", text, "processes with another clock (another machine?) must not share the bus"
    if ahead.wall:
        text = f"something was written {ahead.wall / 1000:.0f} s in the future: the clock was set back"
        return (
            "warning",
            text,
            "set the clock right: what has a delay, a ttl or a retention is early or late until then",
        )
    return "ok", "nothing is from the future", None


async def _room(store: Patient, home: str, bounds: Bounds) -> tuple[str, str, str | None]:
    """Whether one file is still enough."""
    crowd = await store.inspect(read_crowd, None)
    why = outgrown(crowd, sum(await store.sizes()), bounds)
    if why:
        return "warning", f"the bus outgrows one file: {'; '.join(why)}", way_out(home)
    return "ok", f"one file is enough; writers waited for each other for {crowd.waits:.1f} s of each minute", None


async def _unfinished(store: Patient) -> list[Check | Unseen]:
    """Of a bus that is whole there is nothing to say."""
    try:
        place = await store.inspect(read_place, None)
    except AgentBusError as error:
        return [Unseen("copy", error)]
    if place is None:
        return []
    text = f"this is only part of a copy of {place.source}, and nobody can open it"
    return [Check("copy", "error", text, f"finish it: {place.command}")]


async def _expected(store: Patient) -> tuple[str, str, str | None]:
    missing = await store.inspect(examining.missing_documents, None)
    if missing:
        some = "; ".join(f"{session}: {', '.join(names)}" for session, names in list(missing.items())[:5])
        lack = "session was completed or cut off without all documents that it"
        if len(missing) > 1:
            lack = "sessions were completed or cut off without all documents that they"
        text = f"{len(missing)} {lack} expected: {some}"
        return "warning", text, "go on with what was cut off, or save the documents"
    return "ok", "none is missing", None
