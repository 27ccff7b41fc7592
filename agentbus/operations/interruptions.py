"""When a session counts as interrupted, and how an agent that comes back to it lets it go on."""

from __future__ import annotations

from collections.abc import Sequence

from agentbus.clock import Now
from agentbus.operations import Op, Query
from agentbus.operations.events import event, record


def interrupt(
    agents: Sequence[str], processes: Sequence[int], reason: str, now: Now, sessions: Sequence[str] = ()
) -> Op[list[str]]:
    """Interrupt, of the sessions of these agents, those that these processes own and those named, each that nobody goes
    on with.

    That is one that is active, of which no agent is live, and of which an agent failed or the owner's process is gone.
    A paused session is left alone. A failure from before the session was last continued does not count: whoever
    continued it knew. A session whose owner is gone needs to have had no agent: being in its block was work too.
    """
    rows = yield Query("session_interrupt", (reason, now.wall, list(agents), list(processes), list(sessions)))
    interrupted = [session for (session,) in rows]
    yield from record([
        event(now.wall, "session_interrupted", ("session", session), None, before="active", reason=reason)
        for session in interrupted
    ])  # fmt: skip
    return interrupted


def resume(session: str, agent: str, now: Now) -> Op[None]:
    """An agent that registers in an interrupted session is how it goes on: from now on somebody is at work in it.

    What failed before still counts, and so does an owner that is gone: when this agent ends and leaves the others
    behind, the session is interrupted again.
    """
    rows = yield Query("session_resume", (now.wall, session))
    if rows:
        subject = ("session", session)
        yield from record([event(now.wall, "session_continued", subject, agent, before="interrupted")])
