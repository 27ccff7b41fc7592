"""What the doctor asks of the tables. Questions only; none of them is asked under the lock."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from agentbus.clock import Now
from agentbus.codec import decode
from agentbus.errors import AgentBusError
from agentbus.operations import Op, Query, Row
from agentbus.operations.processes import Neighbour

NEWEST = 2**62
_STUCK = 60_000
"""Awake milliseconds after which a lease that ran out should have been taken back."""
_AHEAD = 5 * 60_000
"""Wall milliseconds that what is stored may be ahead of the clock."""
_SESSIONS = 1000


class Unseen(msgspec.Struct, frozen=True):
    """Something that the doctor could not look at, why, and what to do if the error itself does not say it best."""

    name: str
    error: AgentBusError
    fix: str | None = None


class OpenTransaction(msgspec.Struct, frozen=True):
    """A transaction that somebody has open on a server: for how many seconds, in which backend, by which program."""

    seconds: int
    pid: int
    program: str

    @property
    def text(self) -> str:
        program = self.program or "unnamed"
        return f"backend {self.pid} ({program}) has had a transaction open for {self.seconds} s: claims grow slower"

    @property
    def fix(self) -> str:
        return f"end it: SELECT pg_terminate_backend({self.pid})"


class Page(msgspec.Struct, frozen=True):
    """Some stored payloads: what they are, their checksums and texts; and from where the next page goes on."""

    rows: Sequence[tuple[str, int | str, str]]
    cursor: int | None


class Clocks(msgspec.Struct, frozen=True):
    """How far what is stored is ahead of the clocks, in milliseconds; 0 if it is not."""

    wall: int
    awake: int


def message_payloads(cursor: int, now: Now) -> Op[Page]:
    rows = yield Query("message_payloads", (cursor, 64))
    return _page(rows, 64, "message {}")


def state_payloads(cursor: int, now: Now) -> Op[Page]:
    rows = yield Query("state_payloads", (cursor, 64))
    return _page(rows, 64, "state {} of {}")


def document_payloads(cursor: int, now: Now) -> Op[Page]:
    rows = yield Query("document_payloads", (cursor, 4))
    return _page(rows, 4, "version {} of document {} of session {}")


def participant_payloads(cursor: int, now: Now) -> Op[Page]:
    rows = yield Query("participant_payloads", (cursor, 64))
    return _page(rows, 64, "the result of {} in session {}")


def checkpoint_payloads(cursor: int, now: Now) -> Op[Page]:
    rows = yield Query("checkpoint_payloads", (cursor, 4))
    return _page(rows, 4, "checkpoint {}")


def task_payloads(cursor: int, now: Now) -> Op[Page]:
    rows = yield Query("task_payloads", (cursor, 64))
    items = [(f"{what} of task {id}", checksum, text) for _, checksum, text, what, id in rows]
    return Page(items, rows[-1][0] if len({row[0] for row in rows}) == 64 else None)


def step_payloads(cursor: int, now: Now) -> Op[Page]:
    rows = yield Query("step_payloads", (cursor, 64))
    found = _page([row for row in rows if row[2] is not None], 64, "the result of step {} of task {}")
    return Page(found.rows, rows[-1][0] if len(rows) == 64 else None)


def approval_payloads(cursor: int, now: Now) -> Op[Page]:
    rows = yield Query("approval_payloads", (cursor, 64))
    return _page(rows, 64, "what approval {} of task {} shows")


def _page(rows: Sequence[Row], limit: int, what: str) -> Page:
    """Rows are an id, a checksum, a text, and what names them to people."""
    items = [(what.format(*names), checksum, text) for _, checksum, text, *names in rows]
    return Page(items, rows[-1][0] if len(rows) == limit else None)


def stuck_leases(_: None, now: Now) -> Op[int]:
    """How many leases ran out a while ago and were not taken back: nobody claims from their mailboxes."""
    ((count,),) = yield Query("message_stuck", (now.awake - _STUCK,))
    return int(count)


def live_processes(_: None, now: Now) -> Op[list[Neighbour]]:
    """Every process that counts as live."""
    rows = yield Query("process_places")
    return [Neighbour(*row) for row in rows]


def clocks(_: None, now: Now) -> Op[Clocks]:
    """Whether anything was written in the future."""
    ((wall,),) = yield Query("wall_newest")
    ((awake,),) = yield Query("process_newest_beat", (now.boot,))
    ahead = wall - now.wall
    return Clocks(ahead if ahead > _AHEAD else 0, max(0, awake - now.awake))


def missing_documents(_: None, now: Now) -> Op[dict[str, list[str]]]:
    """Of the newest sessions that were completed or cut off, the documents that they expected and do not have."""
    rows = yield Query("session_expecting", (_SESSIONS,))
    documents = yield Query("document_names", ([session for session, _ in rows],))
    there = set(documents)
    missing = {
        session: [name for name in sorted(map(str, set(decode(expected).values()))) if (session, name) not in there]
        for session, expected in rows
    }
    return {session: names for session, names in missing.items() if names}
