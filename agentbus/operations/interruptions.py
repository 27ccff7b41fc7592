"""When a session counts as interrupted, and how an agent that comes back to it lets it go on."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from agentbus.clock import Now
from agentbus.operations import Each, Op, Query
from agentbus.operations.events import event, record


class _Cause(msgspec.Struct, frozen=True):
    """What a session that was just interrupted came to: its owner, if it has one; of its agents the one that failed
    last, why, and how many failed with it; and whether somebody was to come by now."""

    session: str
    process: int | None
    owned: bool
    agent: str | None
    error: str | None
    others: int
    overdue: bool

    def reason(self, processes: Sequence[int], why: str | None) -> str:
        """In words that follow "it was interrupted:". ``why`` is what became of these processes."""
        if self.process in processes and why is not None:
            return why.replace("its process", "its own process", 1)
        gone = self.process is not None and not self.owned
        if self.agent is not None:
            who = f"{self.agent} and {self.others} more" if self.others else self.agent
            return f"{who} failed: {self.error or 'no reason was given'}{'; its own process is gone too' * gone}"
        if self.overdue:
            return "it was resumed, and nobody came in time"
        return "its own process is gone, and none of its agents is live any more"


def interrupt(
    agents: Sequence[str], processes: Sequence[int], why: str | None, now: Now, sessions: Sequence[str] = ()
) -> Op[list[str]]:
    """Interrupt, of the sessions of these agents, those that these processes own and those named, each that nobody goes
    on with. ``why`` is what became of the processes.

    That is one that is active, of which no agent is live, and of which an agent failed or the owner's process is gone;
    or that was resumed, and nobody came in time. A paused session is left alone. A failure from before the session was
    last continued does not count: whoever continued it knew. A session whose owner is gone needs to have had no agent:
    being in its block was work too.
    """
    rows = yield Query("session_interrupt", (now.wall, list(agents), list(processes), list(sessions), now.awake))
    if not rows:
        return []
    found = yield Query("session_causes", ([session for (session,) in rows], now.awake))
    causes = [
        _Cause(session, process, status == "live", agent, error, others, bool(overdue))
        for session, process, status, agent, error, others, overdue in found
    ]
    reasons = {cause.session: cause.reason(processes, why) for cause in causes}
    yield Each("session_reason", [(reason, session) for session, reason in reasons.items()])
    yield from record([
        event(now.wall, "session_interrupted", ("session", session), None, before="active", reason=reason)
        for session, reason in reasons.items()
    ])  # fmt: skip
    return list(reasons)


def resume(session: str, agent: str, now: Now) -> Op[None]:
    """An agent that registers in an interrupted session is how it goes on: from now on somebody is at work in it.

    What failed before still counts, and so does an owner that is gone: when this agent ends and leaves the others
    behind, the session is interrupted again.
    """
    rows = yield Query("session_resume", (now.wall, session))
    if rows:
        subject = ("session", session)
        yield from record([event(now.wall, "session_continued", subject, agent, before="interrupted")])
    yield Query("session_attended", (session,))
