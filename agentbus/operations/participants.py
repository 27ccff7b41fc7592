"""Participants: who of a list has finished, so that a meeting that was cut off goes on with the remaining ones."""

from __future__ import annotations

import msgspec

from agentbus.clock import Now
from agentbus.errors import AgentBusError, InvalidInput, UnknownParticipant
from agentbus.operations import Each, Op, Outcome, Query, one_by_one
from agentbus.operations.closed import not_open

_NAMED = 10
"""Meetings that an error names."""


class EnrolRequest(msgspec.Struct, frozen=True):
    """Members of a meeting. Those that are new are added behind those that are there, who stay."""

    session: str
    meeting: str
    members: tuple[str, ...]


class FinishRequest(msgspec.Struct, frozen=True):
    """A member that has finished; ``result`` is JSON with its checksum. Without a meeting it is the only one that the
    member has not finished."""

    session: str
    meeting: str | None
    member: str
    result: tuple[str, int]

    @property
    def weight(self) -> int:
        return len(self.result[0])


class Member(msgspec.Struct, frozen=True):
    """One who takes part; ``result`` and ``checksum`` are there once it has finished."""

    name: str
    finished: int | None
    result: str | None
    checksum: int | None


@one_by_one(durable=True)
def enrol(request: EnrolRequest, now: Now) -> Op[Outcome[list[Member]]]:
    """Record who takes part; the outcome is everyone who does."""
    place = (request.session, request.meeting)
    members = [Member(*row) for row in (yield Query("participant_list", place))]
    known = {member.name for member in members}
    new = [name for name in request.members if name not in known]
    if new:
        error = yield from not_open(request.session, f"add to its {request.meeting}")
        if error is not None:
            return error
    yield Each(
        "participant_insert",
        [(*place, name, position, now.wall) for position, name in enumerate(new, len(members))],
    )
    return members + [Member(name, None, None, None) for name in new]


@one_by_one(durable=True)
def finish_member(request: FinishRequest, now: Now) -> Op[Outcome[tuple[bool, Member, str]]]:
    """Note that members have finished. Of two who say so of one member, the first counts. The outcome says whether this
    was the first, how the member stands, and in which meeting."""
    meeting = request.meeting
    if meeting is None:
        found = yield from _meeting_of(request)
        if isinstance(found, AgentBusError):
            return found
        meeting = found
    place = (request.session, meeting, request.member)
    rows = yield Query("participant_get", place)
    if not rows:
        return UnknownParticipant(session=request.session, meeting=meeting, member=request.member)
    member = Member(*rows[0])
    if member.finished is not None:
        return False, member, meeting
    error = yield from not_open(request.session, f"finish {request.member}")
    if error is not None:
        return error
    yield Query("participant_finish", (now.wall, *request.result, *place))
    return True, Member(request.member, now.wall, *request.result), meeting


def _meeting_of(request: FinishRequest) -> Op[Outcome[str]]:
    """Find the meeting that a member is to finish."""
    rows = yield Query("participant_progress", (request.session,))
    known = [(meeting, finished) for meeting, member, finished in rows if member == request.member]
    if not known:
        return UnknownParticipant(session=request.session, meeting="participants", member=request.member)
    unfinished: list[str] = [meeting for meeting, finished in known if finished is None]
    if len(unfinished) > 1:
        names = ", ".join(unfinished[:_NAMED])
        return InvalidInput(reason=f"{request.member} takes part in several meetings: {names}; name one")
    return unfinished[0] if unfinished else str(known[0][0])


# Questions


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
