"""Recovery of interrupted sessions: ``bus.recovery``, its plans, and auto-resume when a bus is opened.

Written by ``make sync`` from ``agentbus.api.recovery``: change that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from agentbus.api import recovery as api
from agentbus.api.recovery import WITHIN
from agentbus.core.validation import PAGE_SIZE
from agentbus.sync.client.base import Wrapper

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from agentbus.records import (
        AgentRecord,
        CheckpointSummary,
        Page,
        Recovered,
        RecoveryAgent,
        RecoveryOption,
        RecoveryRecord,
        RecoverySummary,
        SessionRecord,
    )


class Recovery(Wrapper[api.Recovery], wraps=api.Recovery):
    """Interrupted sessions and incomplete agents, and the ways to resume them.

    >>> summary = bus.recovery.summary()                                        # doctest: +SKIP
    >>> for session in summary.interrupted:                                           # doctest: +SKIP
    ...     plan = bus.recovery.plan(session)
    ...     print(session, [option.action for option in plan.options])
    """

    __slots__ = ()

    def summary(self) -> RecoverySummary:
        """Return a summary of interrupted sessions, incomplete agents and past recoveries.

        >>> bus.recovery.summary().incomplete                                 # doctest: +SKIP
        3
        """
        return self._call(self._inner.summary)

    def plan(self, session: str, *, by: str | None = None) -> RecoveryPlan:
        """Return the state of a session and its recovery options, most likely first. Nothing is changed yet. The audit
        log names the operator ``by`` for what the plan does.

        >>> plan = bus.recovery.plan("planning-001")                            # doctest: +SKIP
        >>> plan.options[0].action, plan.missing                                      # doctest: +SKIP
        ('resume', {'scope-analyzer': 'planning-scope'})
        >>> plan.resume()                                                       # doctest: +SKIP
        """
        return cast("RecoveryPlan", self._call_wrapping(self._inner.plan, session, by=by))

    def agents(self, *, cursor: str | None = None, limit: int = PAGE_SIZE) -> Page[AgentRecord]:
        """Return the incomplete agents, ordered by id: those that have not ended, and those that failed or stopped in a
        session that is active or interrupted.

        >>> [(agent.id, agent.status) for agent in bus.recovery.agents().items]   # doctest: +SKIP
        [('executor-1', 'running'), ('planner-1', 'failed')]
        """
        return self._call(self._inner.agents, cursor=cursor, limit=limit)

    def clear(self, agent: str | None = None, *, by: str | None = None) -> list[str]:
        """Stop the agents that are suspect or that failed in a session that has not ended, release what they held, and
        return their ids. Nothing is deleted. A named ``agent`` is stopped whatever its status; if it is running, its
        next call is refused.

        >>> bus.recovery.clear()                                                # doctest: +SKIP
        ['planner-1']
        """
        return self._call(self._inner.clear, agent, by=by)


class RecoveryPlan(Wrapper[api.RecoveryPlan], wraps=api.RecoveryPlan):
    """The recovery options of a session at the time of planning, made by ``bus.recovery.plan(id)``.

    Each action is one commit. If the session has changed since, it raises PlanOutdated and does nothing.

    >>> plan = bus.recovery.plan("planning-001")                                # doctest: +SKIP
    >>> print(plan)                                                                   # doctest: +SKIP
    session planning-001 (planning, 40 %) is interrupted: planner-1 failed: its process died
      planner-1 (planner) failed at 40 %; its process died; checkpoint 12 'half'; 3 messages unfinished
    resume: continues it and expects planner-1 again; each continues with its state, checkpoint and mailbox
    abandon: ends it as failed, with your reason
    """

    __slots__ = ()

    @property
    def record(self) -> RecoveryRecord:
        """Everything the plan is based on, as a record."""
        return self._inner.record

    @property
    def session(self) -> SessionRecord:
        """The session.

        >>> plan.session.status, plan.session.error                                   # doctest: +SKIP
        ('interrupted', 'planner-1 failed: its process died')
        """
        return self._inner.session

    @property
    def agents(self) -> Sequence[RecoveryAgent]:
        """The agents of the session: progress, newest checkpoint, waiting messages.

        >>> [(agent.id, agent.progress, agent.waiting) for agent in plan.agents]      # doctest: +SKIP
        [('planner-1', 40, 3)]
        """
        return self._inner.agents

    @property
    def present(self) -> dict[str, str]:
        """Expected documents that exist, by producer.

        >>> plan.present                                                              # doctest: +SKIP
        {'risk-assessor': 'risks'}
        """
        return self._inner.present

    @property
    def missing(self) -> dict[str, str]:
        """Expected documents that are missing, by producer.

        >>> plan.missing                                                              # doctest: +SKIP
        {'scope-analyzer': 'planning-scope'}
        """
        return self._inner.missing

    @property
    def checkpoints(self) -> Sequence[CheckpointSummary]:
        """Composite checkpoints that ``rollback`` can restore, newest first.

        >>> [(point.id, point.name) for point in plan.checkpoints]                    # doctest: +SKIP
        [(17, 'auto'), (12, 'before-deploy')]
        """
        return self._inner.checkpoints

    @property
    def follow_ons(self) -> Sequence[str]:
        """Sessions started from this one by ``follow_on``, newest first.

        >>> plan.follow_ons                                                           # doctest: +SKIP
        ['planning-001-execution']
        """
        return self._inner.follow_ons

    @property
    def options(self) -> Sequence[RecoveryOption]:
        """Sensible actions, most likely first; none while an agent of the session is active.

        >>> [option.action for option in plan.options]                                # doctest: +SKIP
        ['resume', 'rollback', 'abandon']
        """
        return self._inner.options

    def resume(self, *, within: float | None = WITHIN) -> Recovered:
        """Resume the session. Its interrupted agents are expected again: one that registers under the same id continues
        with its state, checkpoint and mailbox. An active session is not changed (``changed`` is False).

        This starts no process. An agent that has not registered ``within`` seconds fails with the next sweep or open of
        the bus, and the session is interrupted again. None means no limit.

        >>> plan.resume(within=60).agents                                     # doctest: +SKIP
        ['executor-1', 'planner-1']
        """
        return self._call(self._inner.resume, within=within)

    def complete(self) -> Recovered:
        """End the session as completed. Refused while an expected document is missing.

        >>> plan.complete()                                                     # doctest: +SKIP
        """
        return self._call(self._inner.complete)

    def abandon(self, reason: str) -> Recovered:
        """End the session as failed.

        >>> plan.abandon("the milestone was dropped")                           # doctest: +SKIP
        """
        return self._call(self._inner.abandon, reason)

    def rollback(self, checkpoint: int | None = None, *, within: float | None = WITHIN) -> Recovered:
        """Restore documents, state and participants from a composite checkpoint (default: the newest), then resume as
        ``resume`` does. The present state is saved as a composite first; ``rollback`` of the result lists the changes.

        >>> plan.rollback(17).rollback.documents                              # doctest: +SKIP
        ['plan']
        """
        return self._call(self._inner.rollback, checkpoint, within=within)

    def follow_on(
        self,
        operation: str,
        *,
        id: str | None = None,
        milestone: str | None = None,
        expects: Mapping[str, str] | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> Recovered:
        """Start a new session with copies of this one's documents: a plan becomes an execution. This one is completed,
        unless an expected document is missing.

        Without an ``id`` the new session is named after this one and the operation, so that a second call raises
        SessionIdTaken. Its ``metadata["follows"]`` names this session. It has no owner yet: enter it with
        ``bus.session(operation, id=done.follow_on)``.

        >>> done = plan.follow_on("execution", expects={"executor-1": "results"})   # doctest: +SKIP
        >>> with bus.session("execution", id=done.follow_on) as session:        # doctest: +SKIP
        ...     session.document("plan").latest()
        """
        return self._call(
            self._inner.follow_on, operation, id=id, milestone=milestone, expects=expects, metadata=metadata
        )
