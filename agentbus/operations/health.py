"""Read-only queries of the doctor; none runs under the lock."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from agentbus.core.clock import Now
from agentbus.core.codec import decode
from agentbus.errors import AgentBusError
from agentbus.operations.processes import PeerProcess
from agentbus.operations.protocol import Op, Query, Row

NEWEST = 2**62
_STUCK = 60_000
"""Awake milliseconds after which a lapsed lease should have been released."""
_AHEAD = 5 * 60_000
"""Wall milliseconds that stored times may be ahead of the clock."""
_SESSIONS = 1000


class SkippedCheck(msgspec.Struct, frozen=True):
    """A check that could not run, its error, and a fix if the error's own does not apply."""

    name: str
    error: AgentBusError
    fix: str | None = None


class OpenTransaction(msgspec.Struct, frozen=True):
    """An open transaction on a server: its age in seconds, backend and program."""

    seconds: int
    pid: int
    program: str

    @property
    def text(self) -> str:
        program = self.program or "unnamed"
        return f"backend {self.pid} ({program}) has had a transaction open for {self.seconds} s: it slows down claims"

    @property
    def fix(self) -> str:
        return f"end it: SELECT pg_terminate_backend({self.pid})"


class PayloadPage(msgspec.Struct, frozen=True):
    """A page of stored payloads: descriptions, checksums and texts or bytes; and the cursor of the next page."""

    rows: Sequence[tuple[str, int | str, str | bytes]]
    cursor: int | None


class Clocks(msgspec.Struct, frozen=True):
    """Milliseconds that stored times are ahead of the clocks; 0 if they are not."""

    wall: int
    awake: int


def message_payloads(cursor: int, now: Now) -> Op[PayloadPage]:
    rows = yield Query("message_payloads", (cursor, 64))
    return _page(rows, 64, "message {}")


def state_payloads(cursor: int, now: Now) -> Op[PayloadPage]:
    rows = yield Query("state_payloads", (cursor, 64))
    return _page(rows, 64, "state {} of {}")


def document_payloads(cursor: int, now: Now) -> Op[PayloadPage]:
    rows = yield Query("document_payloads", (cursor, 4))
    return _page(rows, 4, "version {} of document {} of session {}")


def participant_payloads(cursor: int, now: Now) -> Op[PayloadPage]:
    rows = yield Query("participant_payloads", (cursor, 64))
    return _page(rows, 64, "the result of {} in session {}")


def checkpoint_payloads(cursor: int, now: Now) -> Op[PayloadPage]:
    rows = yield Query("checkpoint_payloads", (cursor, 4))
    return _page(rows, 4, "checkpoint {}")


def task_payloads(cursor: int, now: Now) -> Op[PayloadPage]:
    rows = yield Query("task_payloads", (cursor, 64))
    items = [(f"{what} of task {id}", checksum, text) for _, checksum, text, what, id in rows]
    return PayloadPage(items, rows[-1][0] if len({row[0] for row in rows}) == 64 else None)


def step_payloads(cursor: int, now: Now) -> Op[PayloadPage]:
    rows = yield Query("step_payloads", (cursor, 64))
    found = _page([row for row in rows if row[2] is not None], 64, "the result of step {} of task {}")
    return PayloadPage(found.rows, rows[-1][0] if len(rows) == 64 else None)


def approval_payloads(cursor: int, now: Now) -> Op[PayloadPage]:
    rows = yield Query("approval_payloads", (cursor, 64))
    return _page(rows, 64, "what approval {} of task {} shows")


def signal_payloads(cursor: int, now: Now) -> Op[PayloadPage]:
    rows = yield Query("signal_payloads", (cursor, 64))
    return _page(rows, 64, "signal {} of task {}")


def history_payloads(cursor: int, now: Now) -> Op[PayloadPage]:
    rows = yield Query("history_payloads", (cursor, 8))
    return _page(rows, 8, "item {!r} of history {!r} ({})")


def _page(rows: Sequence[Row], limit: int, what: str) -> PayloadPage:
    """Convert rows of an id, a checksum, a text and the values of the description."""
    items = [(what.format(*names), checksum, text) for _, checksum, text, *names in rows]
    return PayloadPage(items, rows[-1][0] if len(rows) == limit else None)


def stuck_leases(_: None, now: Now) -> Op[int]:
    """Return the number of leases that lapsed a while ago and were not released: no process claims from their
    mailboxes."""
    ((count,),) = yield Query("message_stuck", (now.awake - _STUCK,))
    return int(count)


def live_processes(_: None, now: Now) -> Op[list[PeerProcess]]:
    """Return every live process."""
    rows = yield Query("process_places")
    return [PeerProcess(*row) for row in rows]


def clocks(_: None, now: Now) -> Op[Clocks]:
    """Return how far stored times are in the future."""
    ((wall,),) = yield Query("wall_newest")
    ((awake,),) = yield Query("process_newest_beat", (now.boot,))
    ahead = wall - now.wall
    return Clocks(ahead if ahead > _AHEAD else 0, max(0, awake - now.awake))


def missing_documents(_: None, now: Now) -> Op[dict[str, list[str]]]:
    """Return the documents that recent completed or interrupted sessions expected and do not have."""
    rows = yield Query("session_expecting", (_SESSIONS,))
    documents = yield Query("document_names", ([session for session, _ in rows],))
    there = set(documents)
    missing = {
        session: [name for name in sorted(map(str, set(decode(expected).values()))) if (session, name) not in there]
        for session, expected in rows
    }
    return {session: names for session, names in missing.items() if names}
