"""The doctor: check the store, its environment and its contents, and suggest fixes. It changes nothing."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence
from hashlib import sha256
from typing import Any, Protocol, TypeVar
from zlib import crc32

import anyio.to_thread

from agentbus.api.overview import CapacityLimits, capacity_warnings, migration_advice
from agentbus.core import process_info
from agentbus.core.clock import Clock, Now, SystemClock
from agentbus.engine.url import require_driver, server_url
from agentbus.errors import AgentBusError, NotADatabase, NotWritable, StoreError, UnsafeFile, UntrustedHome
from agentbus.operations import health
from agentbus.operations.capacity import read_writer_load
from agentbus.operations.copy_position import read_copy_position
from agentbus.operations.health import SkippedCheck
from agentbus.operations.holds import count_holds
from agentbus.operations.protocol import Op
from agentbus.operations.task_lookups import blocked_tasks
from agentbus.records import Check

R = TypeVar("R")
T = TypeVar("T")

_MAX_ROWS = 10_000
_MAX_BLOCKED = 100
_MAX_BYTES = 64 * 1024 * 1024
"""Limits on the rows and bytes of each kind of payload that are compared with their checksums, newest first."""

_PAYLOADS: dict[str, tuple[Callable[[int, Any], Any], Callable[[bytes], int | str]]] = {
    "messages": (health.message_payloads, crc32),
    "state": (health.state_payloads, crc32),
    "documents": (health.document_payloads, lambda text: sha256(text).hexdigest()),
    "participants": (health.participant_payloads, crc32),
    "checkpoints": (health.checkpoint_payloads, lambda text: sha256(text).hexdigest()),
    "tasks": (health.task_payloads, crc32),
    "steps": (health.step_payloads, crc32),
    "approvals": (health.approval_payloads, crc32),
    "signals": (health.signal_payloads, crc32),
    "histories": (health.history_payloads, crc32),
}


class Checkable(Protocol):
    """A store that can be checked, open or not."""

    @property
    def process(self) -> int: ...

    @property
    def home(self) -> str | None: ...

    async def sizes(self) -> tuple[int, int]: ...

    async def check_health(self) -> list[Check | SkippedCheck]: ...

    async def read_isolated(self, question: Callable[[R, Now], Op[T]], request: R) -> T: ...


async def run_checks(store: Checkable, limits: CapacityLimits) -> list[Check]:
    """Run all checks and return them in display order. ``limits`` bound the capacity of one file."""
    found = await store.check_health()
    if "integrity" in {one.name for one in found}:
        for kind in _PAYLOADS:
            found.append(await _check(f"payloads of {kind}", _payloads(store, kind)))
        found.append(await _check("processes", _processes(store)))
        found.append(await _check("leases", _leases(store)))
        found.append(await _check("holds", _holds(store)))
        found.append(await _check("clock", _clock(store)))
        found.append(await _check("expected documents", _expected(store)))
        found.append(await _check("dependencies", _dependencies(store)))
        if store.home is not None:
            found.append(await _check("room", _room(store, store.home, limits)))
        found += await _unfinished(store)
    return format_check(found)


async def check_closed(url: str | os.PathLike[str] | None, clock: Clock | None, limits: CapacityLimits) -> list[Check]:
    """Run all checks on a bus that is not opened, whatever its state."""
    server = server_url(url)
    if server is not None:
        with require_driver():
            from agentbus.engine.postgres.health import OfflinePostgres
            from agentbus.engine.postgres.server import parse
        async with OfflinePostgres(parse(server), clock) as store:
            return await run_checks(store, limits)
    from agentbus.engine.sqlite import paths
    from agentbus.engine.sqlite.health import OfflineStore

    return await run_checks(OfflineStore(paths.find(url), clock or SystemClock()), limits)


def format_check(found: Sequence[Check | SkippedCheck]) -> list[Check]:
    """Merge checks that failed for the same cause: the check that explains the cause names the others."""
    failed = {check.name: check for check in found if isinstance(check, Check) and check.status == "error"}
    checks: dict[str, Check] = {}
    causes: dict[str, str] = {}
    unchecked: dict[str, list[str]] = {}
    for one in found:
        if isinstance(one, Check):
            checks[one.name] = one
            continue
        text = str(one.error.args[0])
        cause = _EXPLAINED_BY.get(type(one.error), "")
        cause = cause if cause in failed else causes.setdefault(text, one.name)
        if cause == one.name:
            checks[one.name] = Check(one.name, "error", text, one.fix or one.error.fix)
        else:
            unchecked.setdefault(cause, []).append(one.name)
    for cause, names in unchecked.items():
        check = checks[cause]
        text = f"{check.text}; not checked for the same reason: {', '.join(names)}"
        checks[cause] = Check(check.name, check.status, text, check.fix)
    return list(checks.values())


_EXPLAINED_BY: dict[type[AgentBusError], str] = {
    NotADatabase: "integrity",
    StoreError: "schema",
    NotWritable: "permissions",
    UnsafeFile: "permissions",
    UntrustedHome: "permissions",
}
"""The check that explains an error which other checks run into."""


async def _check(name: str, outcome: Awaitable[tuple[str, str, str | None]]) -> Check | SkippedCheck:
    try:
        return Check(name, *(await outcome))
    except NotADatabase as error:
        return SkippedCheck(name, error, "restore a backup: agentbus backup restore")
    except AgentBusError as error:
        return SkippedCheck(name, error)


async def _payloads(store: Checkable, kind: str) -> tuple[str, str, str | None]:
    question, checksum_of = _PAYLOADS[kind]
    cursor: int | None = health.NEWEST
    count = size = 0
    damaged: list[str] = []
    while cursor is not None and count < _MAX_ROWS and size < _MAX_BYTES:
        page: health.PayloadPage = await store.read_isolated(question, cursor)
        found, bytes = await anyio.to_thread.run_sync(_compare, page, checksum_of)
        damaged += found
        size += bytes
        count += len(page.rows)
        cursor = page.cursor
    whole = f"all {count}" if cursor is None else f"the newest {count}"
    if damaged:
        match = "does not match its checksum" if len(damaged) == 1 else "do not match their checksums"
        text = f"{len(damaged)} of {whole.removeprefix('all ')} {match}: {', '.join(damaged[:5])}"
        return "error", text, "check the disk, and restore damaged data from a backup"
    rest = "" if cursor is None else "; older ones were not checked"
    return "ok", f"{whole} match their checksums{rest}" if count else "there are none", None


def _compare(page: health.PayloadPage, checksum_of: Callable[[bytes], int | str]) -> tuple[list[str], int]:
    damaged: list[str] = []
    size = 0
    for what, checksum, text in page.rows:
        # A damaged row may contain anything.
        encoded = text.encode(errors="surrogateescape") if isinstance(text, str) else text
        whole = isinstance(encoded, bytes)
        size += len(encoded) if whole else 0
        if not whole or checksum_of(encoded) != checksum:
            damaged.append(what)
    return damaged, size


async def _processes(store: Checkable) -> tuple[str, str, str | None]:
    live = await store.read_isolated(health.live_processes, None)
    host = process_info.host_key()
    ours = [process for process in live if process.host == host and process.process != store.process]
    gone = await anyio.to_thread.run_sync(
        lambda: [other.pid for other in ours if process_info.is_gone(other.pid, other.started, other.bell)]
    )
    if gone:
        are = "is marked live but gone" if len(gone) == 1 else "are marked live but gone"
        text = f"{len(gone)} of {len(live)} {are}: {', '.join(map(str, gone[:5]))}"
        return "warning", text, "none needed: the next heartbeat of any process, or the next open, marks them dead"
    return "ok", "one has the bus open" if len(live) == 1 else f"{len(live) or 'none'} have the bus open", None


async def _leases(store: Checkable) -> tuple[str, str, str | None]:
    stuck = await store.read_isolated(health.stuck_leases, None)
    if stuck:
        leases = "lease" if stuck == 1 else "leases"
        text = f"{stuck} {leases} expired more than a minute ago, with the messages not yet redelivered"
        return "warning", text, "run a monitor, or let an agent receive from those mailboxes"
    return "ok", "none is overdue", None


async def _holds(store: Checkable) -> tuple[str, str, str | None]:
    messages, threads = await store.read_isolated(count_holds, None)
    if messages:
        wait = "message waits" if messages == 1 else "messages wait"
        of = "thread" if threads == 1 else "threads"
        text = f"{messages} {wait} for a person in {threads} {of} without progress"
        return "warning", text, "agentbus holds list shows them; agentbus holds release THREAD delivers them"
    return "ok", "no message waits for a person", None


async def _clock(store: Checkable) -> tuple[str, str, str | None]:
    ahead = await store.read_isolated(health.clocks, None)
    if ahead.awake:
        text = f"the last heartbeat of a process is {ahead.awake / 1000:.0f} s in the future of this boot"
        return "error", text, "processes with another clock (on another machine?) must not share the bus"
    if ahead.wall:
        text = f"data was written {ahead.wall / 1000:.0f} s in the future: the clock was set back"
        return (
            "warning",
            text,
            "correct the clock: delays, expiry and retention are early or late until then",
        )
    return "ok", "no timestamp is in the future", None


async def _room(store: Checkable, home: str, limits: CapacityLimits) -> tuple[str, str, str | None]:
    """Check whether one file is still enough."""
    load = await store.read_isolated(read_writer_load, None)
    why = capacity_warnings(load, sum(await store.sizes()), limits)
    if why:
        return "warning", f"the bus is outgrowing one file: {'; '.join(why)}", migration_advice(home)
    return "ok", f"one file is enough; writers waited for each other for {load.waits:.1f} s of each minute", None


async def _unfinished(store: Checkable) -> list[Check | SkippedCheck]:
    """Report a bus that is only part of a copy."""
    try:
        position = await store.read_isolated(read_copy_position, None)
    except AgentBusError as error:
        return [SkippedCheck("copy", error)]
    if position is None:
        return []
    text = f"this is an unfinished copy of {position.source} and cannot be opened"
    return [Check("copy", "error", text, f"finish it: {position.command}")]


async def _dependencies(store: Checkable) -> tuple[str, str, str | None]:
    blocked = await store.read_isolated(blocked_tasks, _MAX_BLOCKED)
    if not blocked:
        return "ok", "no task waits for one that failed, was stopped or was deleted", None
    some = "; ".join(f"{task} waits for {dependency} ({status})" for task, dependency, status in blocked[:5])
    count = f"{len(blocked)} or more" if len(blocked) == _MAX_BLOCKED else str(len(blocked))
    verb = "dependency" if count == "1" else "dependencies"
    fix = "resume the dependency (agentbus task resume), or remove it: agentbus task edit TASK --no-after DEPENDENCY"
    return "warning", f"{count} {verb} cannot complete: {some}", fix


async def _expected(store: Checkable) -> tuple[str, str, str | None]:
    missing = await store.read_isolated(health.missing_documents, None)
    if missing:
        some = "; ".join(f"{session}: {', '.join(names)}" for session, names in list(missing.items())[:5])
        lack = "session was completed or interrupted without all documents that it"
        if len(missing) > 1:
            lack = "sessions were completed or interrupted without all documents that they"
        text = f"{len(missing)} {lack} expected: {some}"
        return "warning", text, "resume the interrupted sessions, or save the documents"
    return "ok", "none is missing", None
