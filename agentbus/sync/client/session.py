"""A session: one coordinated operation with its agents, documents, checkpoints and meetings.

Written by ``make sync`` from ``agentbus.api.session``: change that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from agentbus.api import session as api
from agentbus.core.validation import KEEP_VERSIONS, PAGE_SIZE
from agentbus.sync.client.base import Wrapper

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from contextlib import AbstractContextManager
    from typing import Any, Unpack

    from agentbus.api.agents import MemberOptions, ProfileOptions
    from agentbus.api.checkpoints import CheckpointOptions
    from agentbus.records import (
        Checkpoint,
        CheckpointSummary,
        DocumentSummary,
        FinishedMember,
        MeetingRecord,
        Page,
        Rollback,
        SessionRecord,
    )
    from agentbus.sync.client.agent import Agent
    from agentbus.sync.client.documents import Document
    from agentbus.sync.client.state import State


class Participants(Wrapper[api.Participants], wraps=api.Participants):
    """The members of a meeting of a session, made by ``session.participants([…])``.

    It shows the members as of its creation and its own calls; ``refresh`` adds the changes of others.

    >>> meeting = session.participants(["a", "b", "c"])                         # doctest: +SKIP
    >>> for member in meeting.remaining:                                              # doctest: +SKIP
    ...     meeting.finish(member, ask(member))
    """

    __slots__ = ()

    @property
    def session(self) -> str:
        """The id of its session."""
        return self._inner.session

    @property
    def name(self) -> str:
        """Its name."""
        return self._inner.name

    @property
    def members(self) -> tuple[str, ...]:
        """All members, in the order in which they were given.

        >>> meeting.members                                                           # doctest: +SKIP
        ('a', 'b', 'c')
        """
        return self._inner.members

    @property
    def finished(self) -> tuple[str, ...]:
        """Members that have finished.

        >>> meeting.finished                                                          # doctest: +SKIP
        ('a',)
        """
        return self._inner.finished

    @property
    def remaining(self) -> tuple[str, ...]:
        """Members that have not finished.

        >>> meeting.remaining                                                         # doctest: +SKIP
        ('b', 'c')
        """
        return self._inner.remaining

    @property
    def results(self) -> dict[str, Any]:
        """Results of the members that have finished.

        >>> meeting.results                                                           # doctest: +SKIP
        {'a': {'agrees': True}}
        """
        return self._inner.results

    def finish(self, member: str, result: Any = None) -> bool:
        """Record that a member has finished, with its result. Repeating it changes nothing and returns False.

        >>> meeting.finish("a", {"agrees": True})                               # doctest: +SKIP
        True
        """
        return self._call(self._inner.finish, member, result)

    def refresh(self) -> None:
        """Read the members again: other processes may have changed them.

        >>> meeting.refresh()                                                   # doctest: +SKIP
        """
        self._call(self._inner.refresh)


class Session(Wrapper[api.Session], wraps=api.Session):
    """A session, made by ``bus.session(…)``, which owns it and ends it with its block, or by ``bus.sessions.open(id)``,
    which only takes part.

    >>> with bus.session("planning", milestone="ms-123") as session:            # doctest: +SKIP
    ...     with session.agent("planner-1", type="planner") as planner:
    ...         ...
    ...     session.document("planning_output").save({"phases": 3})
    """

    __slots__ = ()

    @property
    def id(self) -> str:
        """Its id."""
        return self._inner.id

    @property
    def operation(self) -> str:
        """The operation that it coordinates."""
        return self._inner.operation

    @property
    def milestone(self) -> str | None:
        """The milestone of the operation, if any."""
        return self._inner.milestone

    @property
    def continued(self) -> bool:
        """True when an earlier session with this id resumed."""
        return self._inner.continued

    @property
    def ended(self) -> bool:
        """True once this program has completed or failed it."""
        return self._inner.ended

    def record(self) -> SessionRecord:
        """Return the record of the session as it is now.

        >>> session.record().status                                           # doctest: +SKIP
        'active'
        """
        return self._call(self._inner.record)

    def counts(self) -> dict[str, int]:
        """Return the number of its agents by status.

        >>> session.counts()                                                    # doctest: +SKIP
        {'completed': 2, 'running': 1}
        """
        return self._call(self._inner.counts)

    def progress(self, percent: int) -> None:
        """Set the progress, from 0 to 100.

        >>> session.progress(40)                                                # doctest: +SKIP
        """
        self._call(self._inner.progress, percent)

    def pause(self, reason: str | None = None) -> None:
        """Pause the session: it is not interrupted when its agents fail. Its agents are not notified, and leaving the
        block of ``bus.session(…)`` still ends it.

        >>> session.pause("waiting for the budget")                             # doctest: +SKIP
        """
        self._call(self._inner.pause, reason)

    def continue_(self) -> None:
        """Resume the session after a pause or an interruption.

        >>> session.continue_()                                                 # doctest: +SKIP
        """
        self._call(self._inner.continue_)

    def complete(self) -> None:
        """Mark the session completed. The block of ``bus.session(…)`` does this at its end.

        >>> session.complete()                                                  # doctest: +SKIP
        """
        self._call(self._inner.complete)

    def fail(self, error: str) -> None:
        """Mark the session failed.

        >>> session.fail("the budget was not granted")                          # doctest: +SKIP
        """
        self._call(self._inner.fail, error)

    def agent(self, id: str, *, type: str, **options: Unpack[MemberOptions]) -> AbstractContextManager[Agent]:
        """Register an agent of this session for the length of a block, as ``bus.agent`` does.

        >>> with session.agent("planner-1", type="planner") as planner:         # doctest: +SKIP
        ...     ...
        """
        return self._block(self._inner.agent, id, type=type, **options)

    def expect(self, id: str, *, type: str, within: float | None = None, **about: Unpack[ProfileOptions]) -> None:
        """Announce a future agent of this session, as ``bus.expect`` does.

        >>> session.expect("executor-1", type="executor")                       # doctest: +SKIP
        """
        self._call(self._inner.expect, id, type=type, within=within, **about)

    @property
    def state(self) -> State:
        """The key-value state of the session. Entries have no author; writes fail once the session has ended.

        >>> session.state.set("phase", "design")                                # doctest: +SKIP
        1
        """
        return cast("State", self._wrap(self._inner.state))

    def document(self, name: str, *, default: Any = None, keep: int = KEEP_VERSIONS) -> Document:
        """Return a document: a named, versioned output. ``default`` is its value until a version is saved.

        >>> session.document("planning_output", keep=3).save({"phases": 3})     # doctest: +SKIP
        """
        return cast("Document", self._wrap(self._inner.document(name, default=default, keep=keep)))

    def checkpoint(self, name: str, snapshot: Any, **options: Unpack[CheckpointOptions]) -> Checkpoint:
        """Save a named snapshot of the session. The options are those of ``Agent.checkpoint``.

        >>> session.checkpoint("after_design", {"phase": 2})                    # doctest: +SKIP
        """
        return self._call(self._inner.checkpoint, name, snapshot, **options)

    def restore(self, name: str | None = None) -> Checkpoint | None:
        """Return the newest checkpoint made by ``checkpoint``, of that name or any, or None. ``composites`` lists those
        made by ``checkpoint_all``, and ``rollback`` restores them.

        >>> last = session.restore("after_design")                              # doctest: +SKIP
        """
        return self._call(self._inner.restore, name)

    def checkpoint_all(self, name: str, *, notes: str = "", keep: int | None = None) -> CheckpointSummary:
        """Save the whole session in one composite checkpoint: its documents, its state and that of its agents, and its
        participants. Open messages are listed. ``rollback`` restores it.

        Its size is limited like that of any checkpoint (``connect(max_snapshot=…)``). ``keep`` deletes all but the
        newest ``keep`` of this name.

        >>> point = session.checkpoint_all("before-deploy")                     # doctest: +SKIP
        """
        return self._call(self._inner.checkpoint_all, name, notes=notes, keep=keep)

    def checkpoint_every(self, seconds: float, *, name: str = "auto", keep: int = 10) -> AbstractContextManager[None]:
        """Save a composite checkpoint every ``seconds`` seconds while a block runs and once at its end, unless nothing
        has changed. After an exception in the block nothing more is saved.

        >>> with session.checkpoint_every(300):                                 # doctest: +SKIP
        ...     work()
        """
        return self._block(self._inner.checkpoint_every, seconds, name=name, keep=keep)

    def before(self, operation: str, *, rollback: bool = False) -> AbstractContextManager[CheckpointSummary]:
        """Save a composite checkpoint ``before-<operation>``, then run a block. With ``rollback``, an exception in the
        block rolls the session back to it.

        >>> with session.before("deploy", rollback=True):                       # doctest: +SKIP
        ...     deploy()
        """
        return self._block(self._inner.before, operation, rollback=rollback)

    def composites(
        self, name: str | None = None, *, cursor: str | None = None, limit: int = PAGE_SIZE
    ) -> Page[CheckpointSummary]:
        """Return the composite checkpoints that ``rollback`` can restore, newest first: those of ``checkpoint_all``,
        ``checkpoint_every``, ``before``, and the state before each rollback.

        >>> [(point.id, point.name) for point in session.composites().items]  # doctest: +SKIP
        [(17, 'auto'), (12, 'before-deploy')]
        """
        return self._call(self._inner.composites, name, cursor=cursor, limit=limit)

    def rollback(self, checkpoint: int) -> Rollback:
        """Restore a composite checkpoint of this session in one commit, and report the changes.

        Documents get a new version with their old value; those that did not exist are deleted. State and participants
        become what they were. The present state is first saved as a composite ``before-rollback``. Messages are not
        changed. Running agents are not notified; ``live`` names them.

        >>> session.rollback(point.id).documents                              # doctest: +SKIP
        ['plan']
        """
        return self._call(self._inner.rollback, checkpoint)

    def documents(self) -> list[DocumentSummary]:
        """Return the documents by name, each with its newest version.

        >>> [document.name for document in session.documents()]                 # doctest: +SKIP
        ['planning_output', 'risks']
        """
        return self._call(self._inner.documents)

    def missing(self) -> dict[str, str]:
        """Return the expected documents (``expects``) that do not exist yet, by producer.

        >>> session.missing()                                                   # doctest: +SKIP
        {'scope-analyzer': 'planning-scope'}
        """
        return self._call(self._inner.missing)

    def participants(self, members: Iterable[str], *, name: str = "participants") -> Participants:
        """Record the members of a meeting, so that an interrupted one resumes with those that remain.

        After a crash, the same call returns which members have finished. New members are added at the end; recorded
        ones that are not in the list stay. ``name`` distinguishes several meetings of a session.

        >>> meeting = session.participants(["a", "b", "c"])                     # doctest: +SKIP
        >>> for member in meeting.remaining:                                          # doctest: +SKIP
        ...     meeting.finish(member, ask(member))
        """
        return cast("Participants", self._call_wrapping(self._inner.participants, members, name=name))

    def meetings(self) -> Sequence[MeetingRecord]:
        """Return the meetings of the session, each with its members and the results of those that have finished.

        >>> [(meeting.name, meeting.remaining) for meeting in session.meetings()]   # doctest: +SKIP
        [('participants', ['b', 'c'])]
        """
        return self._call(self._inner.meetings)

    def finish_member(self, member: str, result: Any = None, *, meeting: str | None = None) -> FinishedMember:
        """Record that a member of a meeting has finished, with its result. Repeating it changes nothing.

        ``meeting`` may be omitted if the member has one unfinished meeting.

        >>> session.finish_member("a", {"agrees": True}).remaining            # doctest: +SKIP
        ['b', 'c']
        """
        return self._call(self._inner.finish_member, member, result, meeting=meeting)
