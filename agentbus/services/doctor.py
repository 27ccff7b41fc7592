"""The doctor: looks at the store, its surroundings and what is in it, and says what to do. It changes nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from hashlib import sha256
from typing import Any
from zlib import crc32

import anyio.to_thread

from agentbus.engine import presence
from agentbus.engine.interface import Engine
from agentbus.errors import AgentBusError
from agentbus.operations import examining
from agentbus.records import Check

_MOST_ROWS = 10_000
_MOST_BYTES = 64 * 1024 * 1024
"""Of each kind of payload, so many rows or bytes are compared with their checksums, the newest first."""

_PAYLOADS: dict[str, tuple[Callable[[int, Any], Any], Callable[[bytes], int | str]]] = {
    "messages": (examining.message_payloads, crc32),
    "state": (examining.state_payloads, crc32),
    "documents": (examining.document_payloads, lambda text: sha256(text).hexdigest()),
    "checkpoints": (examining.checkpoint_payloads, lambda text: sha256(text).hexdigest()),
}


async def examine(engine: Engine) -> list[Check]:
    """Every check there is, in the order in which people want to read them."""
    checks = await engine.examine()
    for kind in _PAYLOADS:
        checks.append(await _looked(f"payloads of {kind}", _payloads(engine, kind)))
    checks.append(await _looked("processes", _processes(engine)))
    checks.append(await _looked("leases", _leases(engine)))
    checks.append(await _looked("clock", _clock(engine)))
    checks.append(await _looked("expected documents", _expected(engine)))
    return checks


async def _looked(name: str, look: Awaitable[tuple[str, str, str | None]]) -> Check:
    try:
        return Check(name, *(await look))
    except AgentBusError as error:
        return Check(name, "error", str(error.args[0]), error.fix)


async def _payloads(engine: Engine, kind: str) -> tuple[str, str, str | None]:
    question, hashed = _PAYLOADS[kind]
    cursor: int | None = examining.NEWEST
    count = size = 0
    damaged: list[str] = []
    while cursor is not None and count < _MOST_ROWS and size < _MOST_BYTES:
        page: examining.Page = await engine.read(question, cursor)
        found, bytes = await anyio.to_thread.run_sync(_compare, page, hashed)
        damaged += found
        size += bytes
        count += len(page.rows)
        cursor = page.cursor
    whole = "all" if cursor is None else "the newest"
    if damaged:
        text = f"{len(damaged)} of {whole} {count} do not match their checksums: {', '.join(damaged[:5])}"
        return "error", text, "check the disk, and restore what is missing from a backup"
    return "ok", f"{whole} {count} match their checksums", None


def _compare(page: examining.Page, hashed: Callable[[bytes], int | str]) -> tuple[list[str], int]:
    damaged: list[str] = []
    size = 0
    for what, checksum, text in page.rows:
        encoded = text.encode()
        size += len(encoded)
        if hashed(encoded) != checksum:
            damaged.append(what)
    return damaged, size


async def _processes(engine: Engine) -> tuple[str, str, str | None]:
    live = await engine.read(examining.live_processes, None)
    host = presence.host_key()
    ours = [process for process in live if process.host == host and process.process != engine.process]
    gone = await anyio.to_thread.run_sync(
        lambda: [other.pid for other in ours if presence.is_gone(other.pid, other.started, other.bell)]
    )
    if gone:
        text = f"{len(gone)} of {len(live)} that count as live are gone: {', '.join(map(str, gone[:5]))}"
        return "warning", text, "nothing: the next beat of any process strikes them off"
    return "ok", f"{len(live)} have the bus open", None


async def _leases(engine: Engine) -> tuple[str, str, str | None]:
    stuck = await engine.read(examining.stuck_leases, None)
    if stuck:
        text = f"{stuck} leases ran out more than a minute ago, and nobody has taken the messages back"
        return "warning", text, "run a monitor, or let an agent receive from those mailboxes"
    return "ok", "none is overdue", None


async def _clock(engine: Engine) -> tuple[str, str, str | None]:
    ahead = await engine.read(examining.clocks, None)
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


async def _expected(engine: Engine) -> tuple[str, str, str | None]:
    missing = await engine.read(examining.missing_documents, None)
    if missing:
        some = "; ".join(f"{session}: {', '.join(names)}" for session, names in list(missing.items())[:5])
        text = f"{len(missing)} sessions that were completed or cut off lack documents that they expected: {some}"
        return "warning", text, "go on with those sessions, or save the documents"
    return "ok", "none is missing", None
