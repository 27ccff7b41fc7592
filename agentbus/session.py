"""A session: one coordinated operation, with its agents, documents and participants."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

from agentbus.codec import encode
from agentbus.document import Document
from agentbus.errors import InvalidInput, UnknownSession
from agentbus.limits import KEEP_VERSIONS, check_name, check_range, check_text, name_or_none, session_scope
from agentbus.operations.documents import list_documents
from agentbus.operations.participants import FinishRequest, finish_member, list_meetings
from agentbus.operations.sessions import (
    ChangeRequest,
    SessionProgressRequest,
    advance_session,
    change_session,
    count_agents,
    get_session,
    missing,
)
from agentbus.participants import Participants, result_of
from agentbus.records import (
    Checkpoint,
    CheckpointSummary,
    DocumentSummary,
    FinishedMember,
    MeetingRecord,
    MemberRecord,
    Page,
    Rollback,
    SessionRecord,
)
from agentbus.state import State

if TYPE_CHECKING:
    from agentbus.agent import Agent
    from agentbus.bus import Bus
    from agentbus.services.composites import Composites


class Session:
    """A session that this program is in. Made by ``bus.session(…)``, which owns it and ends it with its block, or by
    ``bus.sessions.open(id)``, which only takes part.

    ``continued`` is True when it had begun before and goes on now.

    >>> async with bus.session("planning", milestone="ms-123") as session:            # doctest: +SKIP
    ...     async with session.agent("planner-1", type="planner") as planner:
    ...         ...
    ...     await session.document("planning_output").save({"phases": 3})
    """

    def __init__(
        self,
        bus: Bus,
        id: str,
        operation: str,
        milestone: str | None,
        *,
        owner: int | None = None,
        continued: bool = False,
    ) -> None:
        self.id = id
        self.operation = operation
        self.milestone = milestone
        self.continued = continued
        self.ended = False
        self._bus = bus
        self._engine = bus.engine
        self._owner = owner

    def __repr__(self) -> str:
        return f"<Session {self.id} {self.operation}>"

    # How it stands

    async def record(self) -> SessionRecord:
        """All that is known of it now.

        >>> (await session.record()).status                                           # doctest: +SKIP
        'active'
        """
        record = await self._engine.look(get_session, self.id)
        if record is None:
            raise UnknownSession(session=self.id)
        return record

    async def counts(self) -> dict[str, int]:
        """How many of its agents there are of each status.

        >>> await session.counts()                                                    # doctest: +SKIP
        {'completed': 2, 'running': 1}
        """
        return await self._engine.read(count_agents, self.id)

    async def progress(self, percent: int) -> None:
        """Say how far it is, from 0 to 100.

        >>> await session.progress(40)                                                # doctest: +SKIP
        """
        percent = check_range(percent, "progress", 0, 100)
        await self._engine.write(advance_session, SessionProgressRequest(self.id, percent))

    async def pause(self, reason: str | None = None) -> None:
        """Set it aside: a paused session is not interrupted when its agents fail. Its agents are not told, and leaving
        the block of ``bus.session(…)`` ends it all the same.

        >>> await session.pause("waiting for the budget")                             # doctest: +SKIP
        """
        await self._change("paused", None if reason is None else check_text(reason, "reason"))

    async def continue_(self) -> None:
        """Go on with it after a pause or an interruption.

        >>> await session.continue_()                                                 # doctest: +SKIP
        """
        await self._change("active")

    async def complete(self) -> None:
        """It is done. The block of ``bus.session(…)`` does this at its end.

        >>> await session.complete()                                                  # doctest: +SKIP
        """
        await self._change("completed")
        self.ended = True

    async def fail(self, error: str) -> None:
        """It cannot be done.

        >>> await session.fail("the budget was not granted")                          # doctest: +SKIP
        """
        await self._change("failed", check_text(error, "error"))
        self.ended = True

    async def _leave(self, status: str, reason: str | None = None) -> None:
        """The block that owns it is over."""
        await self._change(status, reason, leaving=True)
        self.ended = True

    # Its agents

    def agent(self, id: str, *, type: str, **options: Any) -> AbstractAsyncContextManager[Agent]:
        """Register an agent of this session for the length of a block, as ``bus.agent`` does.

        >>> async with session.agent("planner-1", type="planner") as planner:         # doctest: +SKIP
        ...     ...
        """
        return self._bus.agent(id, type=type, session=self._own(options), **options)

    async def expect(self, id: str, *, type: str, **about: Any) -> None:
        """Announce an agent of this session that will come, as ``bus.expect`` does.

        >>> await session.expect("executor-1", type="executor")                       # doctest: +SKIP
        """
        await self._bus.expect(id, type=type, session=self._own(about), **about)

    # What it makes

    @property
    def state(self) -> State:
        """Its key-value state; what is written here has no author. Refused once the session has ended.

        >>> await session.state.set("phase", "design")                                # doctest: +SKIP
        1
        """
        return State(self._bus, session_scope(self.id))

    def document(self, name: str, *, default: Any = None, keep: int = KEEP_VERSIONS) -> Document:
        """A named output, of which the last versions are kept. ``default`` is its value until something is saved.

        >>> await session.document("planning_output", keep=3).save({"phases": 3})     # doctest: +SKIP
        """
        return Document(self._engine, self._bus.max_snapshot, self.id, name, default=default, keep=keep)

    async def checkpoint(
        self,
        name: str,
        snapshot: Any,
        *,
        notes: str = "",
        files: Iterable[str | os.PathLike[str]] = (),
        root: str | os.PathLike[str] | None = None,
        keep: int | None = None,
    ) -> Checkpoint:
        """Save a named snapshot of the session; the options are those of ``Agent.checkpoint``.

        >>> await session.checkpoint("after_design", {"phase": 2})                    # doctest: +SKIP
        """
        return await self._bus.checkpoints.save(
            self.id, name, snapshot, kind="session", notes=notes, files=files, root=root, keep=keep
        )

    async def restore(self, name: str | None = None) -> Checkpoint | None:
        """Its newest checkpoint made by ``checkpoint``, of that name or of any; None if there is none. Those made by
        ``checkpoint_all`` are others: ``composites`` lists them, ``rollback`` goes back to them.

        >>> last = await session.restore("after_design")                              # doctest: +SKIP
        """
        return await self._bus.checkpoints.latest(self.id, name, kind="session")

    # All that belongs to it

    @property
    def _composites(self) -> Composites:
        # Imported only here: most of what is done with a session does without.
        from agentbus.services.composites import Composites

        return Composites(self._engine, self.id, self._bus.max_snapshot)

    async def checkpoint_all(self, name: str, *, notes: str = "", keep: int | None = None) -> CheckpointSummary:
        """Save all that belongs to it at this moment in one composite checkpoint: its documents, its state and that of
        its agents, its participants. Open messages are listed in it. ``rollback`` is the way back.

        It may have as many bytes as any checkpoint (``connect(max_snapshot=…)``). With ``keep`` only so many of this
        name stay.

        >>> point = await session.checkpoint_all("before-deploy")                     # doctest: +SKIP
        """
        return await self._composites.save(name, notes=notes, keep=keep)

    def checkpoint_every(
        self, seconds: float, *, name: str = "auto", keep: int = 10
    ) -> AbstractAsyncContextManager[None]:
        """Save a composite checkpoint every so many seconds while a block runs, and once more at its end, unless
        nothing has changed. After an exception in the block nothing more is saved.

        >>> async with session.checkpoint_every(300):                                 # doctest: +SKIP
        ...     await work()
        """
        return self._composites.every(seconds, name, keep)

    def before(self, operation: str, *, rollback: bool = False) -> AbstractAsyncContextManager[CheckpointSummary]:
        """Save a composite checkpoint ``before-<operation>``, then do something major in a block. With ``rollback`` an
        exception in the block takes the session back to it. ``operation`` is a name, as of a session's.

        >>> async with session.before("deploy", rollback=True):                       # doctest: +SKIP
        ...     await deploy()
        """
        return self._composites.before(operation, rollback)

    async def composites(
        self, name: str | None = None, *, cursor: str | None = None, limit: int = 100
    ) -> Page[CheckpointSummary]:
        """The composite checkpoints that ``rollback`` could go back to, newest first: those of ``checkpoint_all``,
        ``checkpoint_every`` and ``before``, and what was there before each rollback.

        >>> [(point.id, point.name) for point in (await session.composites()).items]  # doctest: +SKIP
        [(17, 'auto'), (12, 'before-deploy')]
        """
        return await self._bus.checkpoints.list(self.id, name, kind="composite", cursor=cursor, limit=limit)

    async def rollback(self, checkpoint: int) -> Rollback:
        """Go back to a composite checkpoint of this session, in one commit; says what that changed.

        Documents get a new version with their old value, those that were not there go; state and participants become
        what they were. What was there before is saved first, as a composite ``before-rollback``. Messages stay as
        they are. Agents that are at work are not told: they are named in ``live``.

        >>> (await session.rollback(point.id)).documents                              # doctest: +SKIP
        ['plan']
        """
        return await self._composites.roll_back(checkpoint)

    async def documents(self) -> list[DocumentSummary]:
        """What there is, by name, each with its newest version.

        >>> [document.name for document in await session.documents()]                 # doctest: +SKIP
        ['planning_output', 'risks']
        """
        return await self._engine.read(list_documents, self.id)

    async def missing(self) -> dict[str, str]:
        """Which of the documents it was begun with as ``expects`` are not there yet: who owes what.

        >>> await session.missing()                                                   # doctest: +SKIP
        {'scope-analyzer': 'planning-scope'}
        """
        return await self._engine.read(missing, self.id)

    async def participants(self, members: Iterable[str], *, name: str = "participants") -> Participants:
        """Record who takes part in a meeting, so that one that is cut off goes on with those who remain.

        Asked again, with the same list after a crash, it says who has finished. Members that are new are added at the
        end; whoever is recorded and not in the list stays. ``name`` tells several meetings of a session apart.

        >>> meeting = await session.participants(["a", "b", "c"])                     # doctest: +SKIP
        >>> for member in meeting.remaining:                                          # doctest: +SKIP
        ...     await meeting.finish(member, await ask(member))
        """
        meeting = Participants(self._engine, self._bus.max_payload, self.id, name)
        await meeting.enrol(members)
        return meeting

    async def meetings(self) -> Sequence[MeetingRecord]:
        """Return its meetings by their names, each with its members, and with the results of those who have finished.

        >>> [(meeting.name, meeting.remaining) for meeting in await session.meetings()]   # doctest: +SKIP
        [('participants', ['b', 'c'])]
        """
        found = await self._engine.read(list_meetings, self.id)
        return [
            MeetingRecord(
                name, [MemberRecord(one.name, one.finished, result_of(one, name, self.id)) for one in members]
            )
            for name, members in found.items()
        ]  # fmt: skip

    async def finish_member(self, member: str, result: Any = None, *, meeting: str | None = None) -> FinishedMember:
        """Note that a member of a meeting has finished, with its result. Repeating it changes nothing.

        Without ``meeting`` it is the one that the member has not finished yet; of several, name one.

        >>> (await session.finish_member("a", {"agrees": True})).remaining            # doctest: +SKIP
        ['b', 'c']
        """
        request = FinishRequest(
            self.id, name_or_none(meeting, "meeting"), check_name(member, "member"),
            encode(result, self._bus.max_payload),
        )  # fmt: skip
        first, _, where = await self._engine.write(finish_member, request)
        members = (await self._engine.read(list_meetings, self.id)).get(where, [])
        return FinishedMember(self.id, where, member, first, [one.name for one in members if one.finished is None])

    async def _change(self, status: str, reason: str | None = None, *, leaving: bool = False) -> None:
        await self._engine.write(change_session, ChangeRequest(self.id, status, reason, self._owner, leaving))

    def _own(self, options: dict[str, Any]) -> str:
        if "session" in options:
            raise InvalidInput(reason="an agent of this session has no other; use bus.agent for that")
        return self.id
