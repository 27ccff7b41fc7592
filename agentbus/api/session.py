"""A session: one coordinated operation with its agents, documents, checkpoints and meetings."""

from __future__ import annotations

import logging
import secrets
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Unpack

from agentbus.api.documents import Document
from agentbus.api.state import State
from agentbus.core.codec import check, decode, encode, encode_metadata
from agentbus.core.validation import (
    KEEP_VERSIONS,
    MAX_BATCH,
    PAGE_SIZE,
    check_expected,
    check_name,
    check_names,
    check_range,
    check_text,
    error_text,
    name_or_none,
    session_scope,
)
from agentbus.engine.interface import Engine
from agentbus.engine.processes import evict_dead_processes
from agentbus.errors import AgentBusError, InvalidInput, Misuse, SessionExists, SessionLost, UnknownSession, WrongState
from agentbus.operations.documents import (
    EnrolRequest,
    FinishRequest,
    Member,
    enrol,
    finish_member,
    list_documents,
    list_meetings,
)
from agentbus.operations.processes import PeerProcess
from agentbus.operations.sessions import (
    ChangeRequest,
    SessionProgressRequest,
    StartedSession,
    StartSessionRequest,
    advance_session,
    change_session,
    count_agents,
    get_session,
    missing_documents,
    start_session,
)
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

if TYPE_CHECKING:
    from agentbus.api.agent import Agent
    from agentbus.api.agents import MemberOptions, ProfileOptions
    from agentbus.api.bus import Bus
    from agentbus.api.checkpoints import CheckpointOptions
    from agentbus.api.session_snapshots import Composites

log = logging.getLogger("agentbus")


class Participants:
    """The members of a meeting of a session, made by ``session.participants([…])``.

    It shows the members as of its creation and its own calls; ``refresh`` adds the changes of others.

    >>> meeting = await session.participants(["a", "b", "c"])                         # doctest: +SKIP
    >>> for member in meeting.remaining:                                              # doctest: +SKIP
    ...     await meeting.finish(member, await ask(member))
    """

    session: str
    """The id of its session."""
    name: str
    """Its name."""

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
        """All members, in the order in which they were given.

        >>> meeting.members                                                           # doctest: +SKIP
        ('a', 'b', 'c')
        """
        return tuple(self._members)

    @property
    def finished(self) -> tuple[str, ...]:
        """Members that have finished.

        >>> meeting.finished                                                          # doctest: +SKIP
        ('a',)
        """
        return tuple(member.name for member in self._members.values() if member.finished is not None)

    @property
    def remaining(self) -> tuple[str, ...]:
        """Members that have not finished.

        >>> meeting.remaining                                                         # doctest: +SKIP
        ('b', 'c')
        """
        return tuple(member.name for member in self._members.values() if member.finished is None)

    @property
    def results(self) -> dict[str, Any]:
        """Results of the members that have finished.

        >>> meeting.results                                                           # doctest: +SKIP
        {'a': {'agrees': True}}
        """
        return {
            member.name: result_of(member, self.name, self.session)
            for member in self._members.values()
            if member.finished is not None
        }

    async def finish(self, member: str, result: Any = None) -> bool:
        """Record that a member has finished, with its result. Repeating it changes nothing and returns False.

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
        """Read the members again: other processes may have changed them.

        >>> await meeting.refresh()                                                   # doctest: +SKIP
        """
        await self._enrol(())

    async def _enrol(self, members: Iterable[str]) -> None:
        """Record new members, and read which have finished."""
        names = check_names(members, "member")
        check_range(len(names), "the number of members", 0, MAX_BATCH)
        if len(set(names)) < len(names):
            raise InvalidInput(reason=f"{next(name for name in names if names.count(name) > 1)!r} is given twice")
        found = await self._engine.write(enrol, EnrolRequest(self.session, self.name, names))
        # A finished member stays finished: this answer may be older than one received already.
        known = self._members
        self._members = {
            member.name: known.get(member.name, member) if member.finished is None else member for member in found
        }


def result_of(member: Member, meeting: str, session: str) -> Any:
    """Return the verified result of a member, or None if it has not finished."""
    if member.result is None or member.checksum is None:
        return None
    check(member.result, member.checksum, f"the result of {member.name} in {meeting} of session {session}")
    return decode(member.result)


class Session:
    """A session, made by ``bus.session(…)``, which owns it and ends it with its block, or by ``bus.sessions.open(id)``,
    which only takes part.

    >>> async with bus.session("planning", milestone="ms-123") as session:            # doctest: +SKIP
    ...     async with session.agent("planner-1", type="planner") as planner:
    ...         ...
    ...     await session.document("planning_output").save({"phases": 3})
    """

    id: str
    """Its id."""
    operation: str
    """The operation that it coordinates."""
    milestone: str | None
    """The milestone of the operation, if any."""
    continued: bool
    """True when an earlier session with this id resumed."""
    ended: bool
    """True once this program has completed or failed it."""

    def __init__(
        self,
        bus: Bus,
        id: str,
        operation: str,
        milestone: str | None,
        *,
        owner: int | None = None,
        continued: bool = False,
        by: str | None = None,
    ) -> None:
        self.id = id
        self.operation = operation
        self.milestone = milestone
        self.continued = continued
        self.ended = False
        self._bus = bus
        self._engine = bus._engine
        self._owner = owner
        self._by = by

    def __repr__(self) -> str:
        return f"<Session {self.id} {self.operation}>"

    # Status

    async def record(self) -> SessionRecord:
        """Return the record of the session as it is now.

        >>> (await session.record()).status                                           # doctest: +SKIP
        'active'
        """
        record = await self._engine.read_inline(get_session, self.id)
        if record is None:
            raise UnknownSession(session=self.id)
        return record

    async def counts(self) -> dict[str, int]:
        """Return the number of its agents by status.

        >>> await session.counts()                                                    # doctest: +SKIP
        {'completed': 2, 'running': 1}
        """
        return await self._engine.read(count_agents, self.id)

    async def progress(self, percent: int) -> None:
        """Set the progress, from 0 to 100.

        >>> await session.progress(40)                                                # doctest: +SKIP
        """
        percent = check_range(percent, "progress", 0, 100)
        await self._engine.write(advance_session, SessionProgressRequest(self.id, percent))

    async def pause(self, reason: str | None = None) -> None:
        """Pause the session: it is not interrupted when its agents fail. Its agents are not notified, and leaving the
        block of ``bus.session(…)`` still ends it.

        >>> await session.pause("waiting for the budget")                             # doctest: +SKIP
        """
        await self._change("paused", None if reason is None else check_text(reason, "reason"))

    async def continue_(self) -> None:
        """Resume the session after a pause or an interruption.

        >>> await session.continue_()                                                 # doctest: +SKIP
        """
        await self._change("active")

    async def complete(self) -> None:
        """Mark the session completed. The block of ``bus.session(…)`` does this at its end.

        >>> await session.complete()                                                  # doctest: +SKIP
        """
        await self._change("completed")
        self.ended = True

    async def fail(self, error: str) -> None:
        """Mark the session failed.

        >>> await session.fail("the budget was not granted")                          # doctest: +SKIP
        """
        await self._change("failed", check_text(error, "error"))
        self.ended = True

    async def _leave(self, status: str, reason: str | None = None) -> None:
        """End the session as its owning block ends."""
        await self._change(status, reason, leaving=True)
        self.ended = True

    # Agents

    def agent(self, id: str, *, type: str, **options: Unpack[MemberOptions]) -> AbstractAsyncContextManager[Agent]:
        """Register an agent of this session for the length of a block, as ``bus.agent`` does.

        >>> async with session.agent("planner-1", type="planner") as planner:         # doctest: +SKIP
        ...     ...
        """
        session = self._check_session(options)
        return self._bus._agent_block(id, type, {**options, "session": session}, "session.agent(…)")

    async def expect(self, id: str, *, type: str, within: float | None = None, **about: Unpack[ProfileOptions]) -> None:
        """Announce a future agent of this session, as ``bus.expect`` does.

        >>> await session.expect("executor-1", type="executor")                       # doctest: +SKIP
        """
        await self._bus.expect(id, type=type, within=within, session=self._check_session(about), **about)

    # State, documents and checkpoints

    @property
    def state(self) -> State:
        """The key-value state of the session. Entries have no author; writes fail once the session has ended.

        >>> await session.state.set("phase", "design")                                # doctest: +SKIP
        1
        """
        return State(self._bus, session_scope(self.id))

    def document(self, name: str, *, default: Any = None, keep: int = KEEP_VERSIONS) -> Document:
        """Return a document: a named, versioned output. ``default`` is its value until a version is saved.

        >>> await session.document("planning_output", keep=3).save({"phases": 3})     # doctest: +SKIP
        """
        return Document(self._engine, self._bus._max_snapshot, self.id, name, default=default, keep=keep)

    async def checkpoint(
        self,
        name: str,
        snapshot: Any,
        **options: Unpack[CheckpointOptions],
    ) -> Checkpoint:
        """Save a named snapshot of the session. The options are those of ``Agent.checkpoint``.

        >>> await session.checkpoint("after_design", {"phase": 2})                    # doctest: +SKIP
        """
        return await self._bus.checkpoints.save(self.id, name, snapshot, kind="session", **options)

    async def restore(self, name: str | None = None) -> Checkpoint | None:
        """Return the newest checkpoint made by ``checkpoint``, of that name or any, or None. ``composites`` lists those
        made by ``checkpoint_all``, and ``rollback`` restores them.

        >>> last = await session.restore("after_design")                              # doctest: +SKIP
        """
        return await self._bus.checkpoints.latest(self.id, name, kind="session")

    # Composite checkpoints

    @property
    def _composites(self) -> Composites:
        # Imported late: most sessions make no composite checkpoint.
        from agentbus.api.session_snapshots import Composites

        return Composites(self._engine, self.id, self._bus._max_snapshot)

    async def checkpoint_all(self, name: str, *, notes: str = "", keep: int | None = None) -> CheckpointSummary:
        """Save the whole session in one composite checkpoint: its documents, its state and that of its agents, and its
        participants. Open messages are listed. ``rollback`` restores it.

        Its size is limited like that of any checkpoint (``connect(max_snapshot=…)``). ``keep`` deletes all but the
        newest ``keep`` of this name.

        >>> point = await session.checkpoint_all("before-deploy")                     # doctest: +SKIP
        """
        return await self._composites.save(name, notes=notes, keep=keep)

    def checkpoint_every(
        self, seconds: float, *, name: str = "auto", keep: int = 10
    ) -> AbstractAsyncContextManager[None]:
        """Save a composite checkpoint every ``seconds`` seconds while a block runs and once at its end, unless nothing
        has changed. After an exception in the block nothing more is saved.

        >>> async with session.checkpoint_every(300):                                 # doctest: +SKIP
        ...     await work()
        """
        return self._composites.every(seconds, name, keep)

    def before(self, operation: str, *, rollback: bool = False) -> AbstractAsyncContextManager[CheckpointSummary]:
        """Save a composite checkpoint ``before-<operation>``, then run a block. With ``rollback``, an exception in the
        block rolls the session back to it.

        >>> async with session.before("deploy", rollback=True):                       # doctest: +SKIP
        ...     await deploy()
        """
        return self._composites.before(operation, rollback)

    async def composites(
        self, name: str | None = None, *, cursor: str | None = None, limit: int = PAGE_SIZE
    ) -> Page[CheckpointSummary]:
        """Return the composite checkpoints that ``rollback`` can restore, newest first: those of ``checkpoint_all``,
        ``checkpoint_every``, ``before``, and the state before each rollback.

        >>> [(point.id, point.name) for point in (await session.composites()).items]  # doctest: +SKIP
        [(17, 'auto'), (12, 'before-deploy')]
        """
        return await self._bus.checkpoints.list(self.id, name, kind="composite", cursor=cursor, limit=limit)

    async def rollback(self, checkpoint: int) -> Rollback:
        """Restore a composite checkpoint of this session in one commit, and report the changes.

        Documents get a new version with their old value; those that did not exist are deleted. State and participants
        become what they were. The present state is first saved as a composite ``before-rollback``. Messages are not
        changed. Running agents are not notified; ``live`` names them.

        >>> (await session.rollback(point.id)).documents                              # doctest: +SKIP
        ['plan']
        """
        return await self._composites.roll_back(checkpoint)

    async def documents(self) -> list[DocumentSummary]:
        """Return the documents by name, each with its newest version.

        >>> [document.name for document in await session.documents()]                 # doctest: +SKIP
        ['planning_output', 'risks']
        """
        return await self._engine.read(list_documents, self.id)

    async def missing(self) -> dict[str, str]:
        """Return the expected documents (``expects``) that do not exist yet, by producer.

        >>> await session.missing()                                                   # doctest: +SKIP
        {'scope-analyzer': 'planning-scope'}
        """
        return await self._engine.read(missing_documents, self.id)

    async def participants(self, members: Iterable[str], *, name: str = "participants") -> Participants:
        """Record the members of a meeting, so that an interrupted one resumes with those that remain.

        After a crash, the same call returns which members have finished. New members are added at the end; recorded
        ones that are not in the list stay. ``name`` distinguishes several meetings of a session.

        >>> meeting = await session.participants(["a", "b", "c"])                     # doctest: +SKIP
        >>> for member in meeting.remaining:                                          # doctest: +SKIP
        ...     await meeting.finish(member, await ask(member))
        """
        meeting = Participants(self._engine, self._bus._max_payload, self.id, name)
        await meeting._enrol(members)
        return meeting

    async def meetings(self) -> Sequence[MeetingRecord]:
        """Return the meetings of the session, each with its members and the results of those that have finished.

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
        """Record that a member of a meeting has finished, with its result. Repeating it changes nothing.

        ``meeting`` may be omitted if the member has one unfinished meeting.

        >>> (await session.finish_member("a", {"agrees": True})).remaining            # doctest: +SKIP
        ['b', 'c']
        """
        request = FinishRequest(
            self.id, name_or_none(meeting, "meeting"), check_name(member, "member"),
            encode(result, self._bus._max_payload),
        )  # fmt: skip
        first, _, where = await self._engine.write(finish_member, request)
        members = (await self._engine.read(list_meetings, self.id)).get(where, [])
        return FinishedMember(self.id, where, member, first, [one.name for one in members if one.finished is None])

    async def _change(self, status: str, reason: str | None = None, *, leaving: bool = False) -> None:
        await self._engine.write(change_session, ChangeRequest(self.id, status, reason, self._owner, leaving, self._by))

    def _check_session(self, options: Mapping[str, Any]) -> str:
        if "session" in options:
            raise InvalidInput(reason="session= is set by the session; use bus.agent for another one")
        return self.id


def session_request(
    operation: str,
    process: int | None,
    milestone: str | None,
    id: str | None,
    expects: Mapping[str, str] | None,
    metadata: dict[str, Any] | None,
    limit: int,
) -> StartSessionRequest:
    """Return a checked request for a session that ``process`` owns, if any. Without an id one is generated."""
    check_name(operation, "operation")
    return StartSessionRequest(
        f"{operation[:115]}-{secrets.token_hex(6)}" if id is None else check_name(id, "session"),
        operation,
        process,
        name_or_none(milestone, "milestone"),
        None if expects is None else check_expected(expects),
        None if metadata is None else encode_metadata(metadata, limit),
    )


@asynccontextmanager
async def open_session(
    bus: Bus,
    operation: str,
    milestone: str | None,
    id: str | None,
    expects: Mapping[str, str] | None,
    metadata: dict[str, Any] | None,
) -> AsyncIterator[Session]:
    """Start or resume a session for the length of a block, and end it with the block."""
    request = session_request(operation, bus._engine.process, milestone, id, expects, metadata, bus._max_payload)
    session = await _start(bus, request)
    try:
        yield session
        if not session.ended:
            await session._leave("completed")
    except BaseException as error:
        if not session.ended:
            from agentbus.core.cancellation import finish_shielded

            await finish_shielded(bus._engine, _end_after(session, error))
        raise


async def _start(bus: Bus, request: StartSessionRequest) -> Session:
    def interrupt_orphan(started: StartedSession) -> None:
        """Interrupt the session: its caller was cancelled before entering the block."""
        leaving = ChangeRequest(started.session, "interrupted", "cancelled while starting", request.process, True)
        with suppress(AgentBusError):
            from agentbus.core.cancellation import fire_and_forget

            fire_and_forget(bus._engine.write(change_session, leaving))

    try:
        started = await bus._engine.write(start_session, request, on_abandoned=interrupt_orphan)
    except SessionExists as exists:
        if exists.process is None or not await evict_dead_processes(bus._engine, [PeerProcess(**exists.process)]):
            raise
        started = await bus._engine.write(start_session, request, on_abandoned=interrupt_orphan)
    return Session(
        bus, started.session, started.operation, started.milestone,
        owner=request.process, continued=started.continued,
    )  # fmt: skip


async def _end_after(session: Session, error: BaseException) -> None:
    """End the session: failed after an exception, interrupted (and resumable) after a cancellation or Ctrl-C."""
    try:
        await session._leave("failed" if isinstance(error, Exception) else "interrupted", error_text(error))
    except (SessionLost, WrongState, Misuse):
        log.debug("session %s was already ended or taken over", session.id)
    except AgentBusError as problem:
        # Raise the exception of the block instead; once this process is gone, the session counts as interrupted.
        log.warning("could not end session %s: %s", session.id, problem)
