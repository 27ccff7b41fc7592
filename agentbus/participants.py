"""Participants of a meeting: who has finished, and who remains."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from agentbus.codec import check, decode, encode
from agentbus.engine.interface import Engine
from agentbus.errors import InvalidInput
from agentbus.limits import MAX_BATCH, check_name, check_names, check_range
from agentbus.operations.participants import EnrolRequest, FinishRequest, Member, enrol, finish_member


class Participants:
    """Who takes part in a meeting of a session. Made by ``session.participants([…])``.

    It shows what was known when it was made, and what it did itself; ``refresh`` shows what others did since.

    >>> meeting = await session.participants(["a", "b", "c"])                         # doctest: +SKIP
    >>> for member in meeting.remaining:                                              # doctest: +SKIP
    ...     await meeting.finish(member, await ask(member))
    """

    def __init__(self, engine: Engine, limit: int, session: str, name: str) -> None:
        self.session = session
        self.name = check_name(name, "name")
        self._engine = engine
        self._limit = limit
        self._members: dict[str, Member] = {}

    def __repr__(self) -> str:
        return f"<Participants {self.name} of {self.session}: {len(self.finished)} of {len(self._members)} finished>"

    @property
    def members(self) -> tuple[str, ...]:
        """Everyone who takes part, in the order in which they were given.

        >>> meeting.members                                                           # doctest: +SKIP
        ('a', 'b', 'c')
        """
        return tuple(self._members)

    @property
    def finished(self) -> tuple[str, ...]:
        """Those who have finished.

        >>> meeting.finished                                                          # doctest: +SKIP
        ('a',)
        """
        return tuple(member.name for member in self._members.values() if member.finished is not None)

    @property
    def remaining(self) -> tuple[str, ...]:
        """Those who have not.

        >>> meeting.remaining                                                         # doctest: +SKIP
        ('b', 'c')
        """
        return tuple(member.name for member in self._members.values() if member.finished is None)

    @property
    def results(self) -> dict[str, Any]:
        """What those who have finished came to.

        >>> meeting.results                                                           # doctest: +SKIP
        {'a': {'agrees': True}}
        """
        return {
            member.name: result_of(member, self.name, self.session)
            for member in self._members.values()
            if member.finished is not None
        }

    async def finish(self, member: str, result: Any = None) -> bool:
        """Note that a member has finished, with its result. Saying it again changes nothing, and gives False.

        >>> await meeting.finish("a", {"agrees": True})                               # doctest: +SKIP
        True
        """
        request = FinishRequest(
            self.session, self.name, check_name(member, "member"), encode(result, self._limit)
        )  # fmt: skip
        first, finished, _ = await self._engine.write(finish_member, request)
        self._members[member] = finished
        return first

    async def refresh(self) -> None:
        """Look again who takes part and who has finished: others may have been at work too.

        >>> await meeting.refresh()                                                   # doctest: +SKIP
        """
        await self.enrol(())

    async def enrol(self, members: Iterable[str]) -> None:
        """Record those who are not recorded yet, and look who has finished."""
        names = check_names(members, "member")
        check_range(len(names), "the number of members", 0, MAX_BATCH)
        if len(set(names)) < len(names):
            raise InvalidInput(reason=f"{next(name for name in names if names.count(name) > 1)!r} is given twice")
        found = await self._engine.write(enrol, EnrolRequest(self.session, self.name, names))
        # Whoever has finished stays so: this answer may be older than one that is here already.
        known = self._members
        self._members = {
            member.name: known.get(member.name, member) if member.finished is None else member for member in found
        }


def result_of(member: Member, meeting: str, session: str) -> Any:
    """Return the result of a member, once its checksum is found right; None while it has not finished."""
    if member.result is None or member.checksum is None:
        return None
    check(member.result, member.checksum, f"the result of {member.name} in {meeting} of session {session}")
    return decode(member.result)
