"""Participants: who of a list has finished, so that a meeting that was cut off goes on with the remaining ones."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from agentbus.clock import Now
from agentbus.errors import UnknownParticipant
from agentbus.operations import Each, Op, Outcome, Query, operation
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


@operation(durable=True)
def enrol(requests: Sequence[EnrolRequest], now: Now) -> Op[list[Outcome[list[Member]]]]:
    """Record who takes part; the outcome is everyone who does."""
    outcomes: list[Outcome[list[Member]]] = []
    for request in requests:
        place = (request.session, request.meeting)
        members = [Member(*row) for row in (yield Query("participant_list", place))]
        known = {member.name for member in members}
        new = [name for name in request.members if name not in known]
        if new:
            error = yield from not_open(request.session, f"add to its {request.meeting}")
            if error is not None:
                outcomes.append(error)
                continue
        yield Each(
            "participant_insert",
            [(*place, name, position, now.wall) for position, name in enumerate(new, len(members))],
        )
        outcomes.append(members + [Member(name, None, None, None) for name in new])
    return outcomes


@operation(durable=True)
def finish_member(requests: Sequence[FinishRequest], now: Now) -> Op[list[Outcome[tuple[bool, Member]]]]:
    """Note that members have finished. Of two who say so of one member, the first counts."""
    outcomes: list[Outcome[tuple[bool, Member]]] = []
    for request in requests:
        place = (request.session, request.meeting, request.member)
        rows = yield Query("participant_get", place)
        if not rows:
            outcomes.append(UnknownParticipant(session=request.session, meeting=request.meeting, member=request.member))
            continue
        member = Member(*rows[0])
        if member.finished is not None:
            outcomes.append((False, member))
            continue
        error = yield from not_open(request.session, f"finish {request.member}")
        if error is not None:
            outcomes.append(error)
            continue
        yield Query("participant_finish", (now.wall, *request.result, *place))
        outcomes.append((True, Member(request.member, now.wall, *request.result)))
    return outcomes
