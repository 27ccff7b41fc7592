"""Participants: who of a list has finished, so that a meeting that was cut off goes on with the remaining ones."""

from __future__ import annotations

import msgspec

from agentbus.clock import Now
from agentbus.errors import UnknownParticipant
from agentbus.operations import Each, Op, Outcome, Query, one_by_one
from agentbus.operations.closed import not_open


class EnrolRequest(msgspec.Struct, frozen=True):
    """Members of a meeting. Those that are new are added behind those that are there, who stay."""

    session: str
    meeting: str
    members: tuple[str, ...]


class FinishRequest(msgspec.Struct, frozen=True):
    """A member that has finished; ``result`` is JSON with its checksum."""

    session: str
    meeting: str
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
def finish_member(request: FinishRequest, now: Now) -> Op[Outcome[tuple[bool, Member]]]:
    """Note that members have finished. Of two who say so of one member, the first counts."""
    place = (request.session, request.meeting, request.member)
    rows = yield Query("participant_get", place)
    if not rows:
        return UnknownParticipant(session=request.session, meeting=request.meeting, member=request.member)
    member = Member(*rows[0])
    if member.finished is not None:
        return False, member
    error = yield from not_open(request.session, f"finish {request.member}")
    if error is not None:
        return error
    yield Query("participant_finish", (now.wall, *request.result, *place))
    return True, Member(request.member, now.wall, *request.result)
