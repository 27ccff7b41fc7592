"""Documents, the named and versioned outputs of a session; and meetings, which record the members that have finished,
so that an interrupted one continues with the remaining."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from agentbus.core.clock import Now
from agentbus.errors import AgentBusError, InvalidInput, UnknownParticipant
from agentbus.operations.common import closed_session_error, fence
from agentbus.operations.protocol import Actor, ExecuteMany, Op, Outcome, Query, operation, single_operation
from agentbus.records import DocumentSummary

_NAMED = 10
"""Meetings that an error lists."""


class SaveRequest(msgspec.Struct, frozen=True):
    """The next version of a document; ``value`` is JSON, ``checksum`` its SHA-256. An agent that saves is fenced."""

    session: str
    name: str
    value: str
    checksum: str
    author: str | None
    keep: int
    actor: Actor | None = None

    @property
    def data_size(self) -> int:
        return len(self.value)


class Saved(msgspec.Struct, frozen=True):
    """The saved version."""

    id: int
    version: int
    created: int


class DocumentQuery(msgspec.Struct, frozen=True):
    """Selects the newest versions of a document, or one of them."""

    session: str
    name: str
    version: int | None = None
    limit: int = 1


class Stored(msgspec.Struct, frozen=True):
    """A version of a document as it is stored."""

    id: int
    session: str
    name: str
    version: int
    author: str | None
    created: int
    checksum: str
    value: str


@operation(durable=True, concurrent=True, stores_data=True)
def save_document(requests: Sequence[SaveRequest], now: Now) -> Op[list[Outcome[Saved]]]:
    """Save documents, and remove versions in excess of ``keep``."""
    refused = yield from fence(request.actor for request in requests)
    outcomes: list[Outcome[Saved]] = []
    for request in requests:
        error = refused.get(request.actor) or (yield from closed_session_error(request.session, f"save {request.name}"))
        if error is not None:
            outcomes.append(error)
            continue
        ((id, version),) = yield Query(
            "document_insert",
            (request.session, request.name, request.checksum, request.author, now.wall, request.value),
        )
        if version > request.keep:
            yield Query("document_trim", (request.session, request.name, version - request.keep))
        outcomes.append(Saved(id, version, now.wall))
    return outcomes


def get_documents(wanted: DocumentQuery, now: Now) -> Op[list[Stored]]:
    """Return versions of a document, newest first."""
    rows = yield Query("document_versions", (wanted.session, wanted.name, wanted.version, wanted.limit))
    return [Stored(*row) for row in rows]


def list_documents(session: str, now: Now) -> Op[list[DocumentSummary]]:
    rows = yield Query("document_list", (session,))
    return [DocumentSummary(*row) for row in rows]


class EnrolRequest(msgspec.Struct, frozen=True):
    """Members of a meeting. New ones are appended to the present ones."""

    session: str
    meeting: str
    members: tuple[str, ...]


class FinishRequest(msgspec.Struct, frozen=True):
    """A member that has finished; ``result`` is JSON with its checksum. Without a meeting, it is the only one that the
    member has not finished."""

    session: str
    meeting: str | None
    member: str
    result: tuple[str, int]

    @property
    def data_size(self) -> int:
        return len(self.result[0])


class Member(msgspec.Struct, frozen=True):
    """A member of a meeting; ``result`` and ``checksum`` are set once it has finished."""

    name: str
    finished: int | None
    result: str | None
    checksum: int | None


@single_operation(durable=True)
def enrol(request: EnrolRequest, now: Now) -> Op[Outcome[list[Member]]]:
    """Add members; the outcome is the list of all."""
    key = (request.session, request.meeting)
    members = [Member(*row) for row in (yield Query("participant_list", key))]
    known = {member.name for member in members}
    new = [name for name in request.members if name not in known]
    if new:
        error = yield from closed_session_error(request.session, f"add to its {request.meeting}")
        if error is not None:
            return error
    yield ExecuteMany(
        "participant_insert",
        [(*key, name, position, now.wall) for position, name in enumerate(new, len(members))],
    )
    return members + [Member(name, None, None, None) for name in new]


@single_operation(durable=True)
def finish_member(request: FinishRequest, now: Now) -> Op[Outcome[tuple[bool, Member, str]]]:
    """Mark members finished. Of two requests for one member, the first counts. The outcome has whether this was the
    first, the member, and the meeting."""
    meeting = request.meeting
    if meeting is None:
        found = yield from _meeting_of(request)
        if isinstance(found, AgentBusError):
            return found
        meeting = found
    key = (request.session, meeting, request.member)
    rows = yield Query("participant_get", key)
    if not rows:
        return UnknownParticipant(session=request.session, meeting=meeting, member=request.member)
    member = Member(*rows[0])
    if member.finished is not None:
        return False, member, meeting
    error = yield from closed_session_error(request.session, f"finish {request.member}")
    if error is not None:
        return error
    yield Query("participant_finish", (now.wall, *request.result, *key))
    return True, Member(request.member, now.wall, *request.result), meeting


def _meeting_of(request: FinishRequest) -> Op[Outcome[str]]:
    """Return the meeting that a member is to finish."""
    rows = yield Query("participant_progress", (request.session,))
    known = [(meeting, finished) for meeting, member, finished in rows if member == request.member]
    if not known:
        return UnknownParticipant(session=request.session, meeting="participants", member=request.member)
    unfinished: list[str] = [meeting for meeting, finished in known if finished is None]
    if len(unfinished) > 1:
        names = ", ".join(unfinished[:_NAMED])
        return InvalidInput(reason=f"{request.member} takes part in several meetings: {names}; name one")
    return unfinished[0] if unfinished else str(known[0][0])


def list_meetings(session: str, now: Now) -> Op[dict[str, list[Member]]]:
    """Return the members of each meeting of a session."""
    rows = yield Query("participant_of_session", (session,))
    meetings: dict[str, list[Member]] = {}
    for meeting, member, _, _, finished, checksum, result in rows:
        meetings.setdefault(meeting, []).append(Member(member, finished, result, checksum))
    return meetings


def remaining_members(session: str) -> Op[dict[str, list[str]]]:
    """Return the members of the meetings of a session that have not finished; without meetings that are over."""
    rows = yield Query("participant_progress", (session,))
    remaining: dict[str, list[str]] = {}
    for meeting, member, finished in rows:
        if finished is None:
            remaining.setdefault(meeting, []).append(member)
    return remaining
