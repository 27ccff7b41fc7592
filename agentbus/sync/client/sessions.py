"""Sessions of the bus: ``bus.sessions`` lists and opens them.

Written by ``make sync`` from ``agentbus.api.sessions``: change that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from agentbus.api import sessions as api
from agentbus.core.validation import PAGE_SIZE
from agentbus.sync.client.base import Wrapper

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from agentbus.records import CutOffSession, Page, SessionRecord
    from agentbus.sync.client.session import Session


class Sessions(Wrapper[api.Sessions], wraps=api.Sessions):
    """The sessions of the bus.

    >>> for session in bus.sessions.list(status="interrupted").items:         # doctest: +SKIP
    ...     print(session.id, session.progress, session.error)
    """

    __slots__ = ()

    def open(self, session: str, *, by: str | None = None) -> Session:
        """Open an existing session without owning it: nothing ends it when this program leaves. The audit log names the
        operator ``by`` for changes of its status.

        A session that has ended can be opened too, to read its documents.

        >>> session = bus.sessions.open("planning-001")                         # doctest: +SKIP
        """
        return cast("Session", self._call_wrapping(self._inner.open, session, by=by))

    def start(
        self,
        operation: str,
        *,
        milestone: str | None = None,
        id: str | None = None,
        expects: Mapping[str, str] | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> Session:
        """Start a session that no process owns, or resume one; the arguments are those of ``Bus.session``. It outlives
        this program, and is interrupted when its agents have failed.

        >>> session = bus.sessions.start("planning", id="planning-001")         # doctest: +SKIP
        """
        return cast(
            "Session",
            self._call_wrapping(
                self._inner.start, operation, milestone=milestone, id=id, expects=expects, metadata=metadata
            ),
        )

    def get(self, session: str) -> SessionRecord | None:
        """Return the record of one session, or None.

        >>> bus.sessions.get("planning-001")                                    # doctest: +SKIP
        """
        return self._call(self._inner.get, session)

    def list(
        self,
        *,
        status: str | Sequence[str] | None = None,
        operation: str | None = None,
        milestone: str | None = None,
        cursor: str | None = None,
        limit: int = PAGE_SIZE,
    ) -> Page[SessionRecord]:
        """Return sessions, newest first.

        >>> page = bus.sessions.list(status=["interrupted", "paused"], operation="planning")   # doctest: +SKIP
        """
        return self._call(
            self._inner.list, status=status, operation=operation, milestone=milestone, cursor=cursor, limit=limit
        )

    def cut_off(self) -> Sequence[CutOffSession]:
        """Return interrupted sessions, and active ones with failed agents, most recently changed first.

        >>> [(cut.session, cut.status) for cut in bus.sessions.cut_off()]       # doctest: +SKIP
        [('planning-001', 'interrupted'), ('execution-002', 'degraded')]
        """
        return self._call(self._inner.cut_off)

    def stale(self, minutes: float) -> Sequence[SessionRecord]:
        """Return the open sessions without activity for ``minutes`` minutes, longest idle first. Time for which the
        machine was asleep does not count.

        >>> [session.id for session in bus.sessions.stale(60)]                  # doctest: +SKIP
        ['planning-001']
        """
        return self._call(self._inner.stale, minutes)
