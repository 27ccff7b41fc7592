"""Registration of agents, their profile, progress, pools and topics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec

from agentbus.core.clock import Now
from agentbus.errors import AgentBusError, AgentExists, UnknownAgent, UnknownType
from agentbus.operations.agent_identity import Registration, current_registration
from agentbus.operations.agent_status import end, resume
from agentbus.operations.checkpoints import restored
from agentbus.operations.common import LIVE, SESSION_ENDED, closed_session_error, fence
from agentbus.operations.events import event, record
from agentbus.operations.processes import PeerProcess, add_listeners
from agentbus.operations.protocol import (
    Actor,
    CannotBatch,
    ExecuteMany,
    Op,
    Outcome,
    Query,
    Wake,
    mailbox_channel,
    operation,
    single_operation,
)
from agentbus.operations.receive import take_back
from agentbus.operations.rows import Held, Profile
from agentbus.operations.task_ownership import release_tasks_of

DEFAULT_PATIENCE = 30 * 60 * 1000
"""Milliseconds that a visiting agent may be silent by default."""


class RegisterRequest(msgspec.Struct, frozen=True):
    """Register an agent: in ``process``, or visiting. Otherwise it is only expected: pending, or spawning if it must
    register ``within`` this many milliseconds."""

    agent: str
    type: str
    process: int | None
    profile: Profile
    kind: str = "resident"
    session: str | None = None
    pools: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()
    takeover: bool = False
    within: int | None = None
    by: str | None = None
    """The operator who registers it, None for the agent itself."""

    @property
    def alive(self) -> bool:
        return self.process is not None or self.kind == "visiting"

    @property
    def status(self) -> str:
        return "running" if self.alive else "pending" if self.within is None else "spawning"


class EndRequest(msgspec.Struct, frozen=True):
    """End an agent as completed, failed or stopped. ``on_purpose``: it was not interrupted, and is not expected
    again."""

    actor: Actor
    status: str
    error: str | None = None
    on_purpose: bool = False
    by: str | None = None
    """The operator who ends it, None for the agent itself."""


class ProgressRequest(msgspec.Struct, frozen=True):
    """Set the progress of an agent; None leaves the note."""

    row_estimate: ClassVar[int] = 1
    actor: Actor
    percent: int
    note: str | None = None


class BusyRequest(msgspec.Struct, frozen=True):
    """Declare that an agent will be silent for ``duration`` milliseconds; 0 cancels it."""

    row_estimate: ClassVar[int] = 1
    actor: Actor
    duration: int


class UpdateRequest(msgspec.Struct, frozen=True):
    """Change the profile of an agent, on behalf of any caller."""

    agent: str
    profile: Profile


class MembershipRequest(msgspec.Struct, frozen=True):
    """Join or leave pools and topics. ``process`` listens to the new mailboxes; None for a visiting agent."""

    actor: Actor
    process: int | None
    pools: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()
    leave: bool = False


class DeclareRequest(msgspec.Struct, frozen=True):
    """Create pools and topics that have no members yet."""

    pools: tuple[str, ...]
    topics: tuple[str, ...]


@single_operation(durable=True)
def register(request: RegisterRequest, now: Now) -> Op[Outcome[Registration]]:
    """Start an incarnation of each agent, or announce it. State, checkpoints and mailbox of earlier ones are
    retained."""
    error = yield from _cannot_register(request)
    return error or (yield from _register(request, now))


@operation(durable=True)
def finish(requests: Sequence[EndRequest], now: Now) -> Op[list[Outcome[None]]]:
    """End agents on their own request, or on that of an operator."""
    if len({request.actor for request in requests}) < len(requests):
        # Of two requests to end one incarnation, the second is fenced.
        raise CannotBatch
    refused = yield from fence(request.actor for request in requests)
    for request in requests:
        if request.actor not in refused:
            agent = request.actor.agent
            yield from end([agent], request.status, request.error, request.by or agent, now)
            if request.on_purpose:
                yield Query("agent_dismiss", (agent,))
    return [refused.get(request.actor) for request in requests]


@operation(durable=False, concurrent=True)
def progress(requests: Sequence[ProgressRequest], now: Now) -> Op[list[Outcome[None]]]:
    """Record the progress of agents."""
    refused = yield from fence(request.actor for request in requests)
    yield ExecuteMany(
        "agent_progress",
        [
            (request.percent, request.note, now.wall, now.awake, request.actor.agent)
            for request in requests
            if request.actor not in refused
        ],
    )
    return [refused.get(request.actor) for request in requests]


@operation(durable=False, concurrent=True)
def busy(requests: Sequence[BusyRequest], now: Now) -> Op[list[Outcome[None]]]:
    """Record that agents will be silent for a while."""
    refused = yield from fence(request.actor for request in requests)
    yield ExecuteMany(
        "agent_busy",
        [
            (
                now.awake + request.duration if request.duration else None,
                now.awake,
                now.wall,
                request.actor.agent,
            )
            for request in requests
            if request.actor not in refused
        ],
    )
    yield from record([
        event(
            now.wall, "agent_busy", ("agent", request.actor.agent), request.actor.agent,
            seconds=request.duration / 1000, until=now.wall + request.duration,
        )
        for request in requests
        if request.actor not in refused
    ])  # fmt: skip
    return [refused.get(request.actor) for request in requests]


@single_operation(durable=True)
def update(request: UpdateRequest, now: Now) -> Op[Outcome[None]]:
    """Change the profiles of agents."""
    rows = yield Query("agent_update", (now.wall, request.agent, *request.profile.row()))
    return None if rows else UnknownAgent(agent=request.agent)


@operation(durable=True)
def change_membership(requests: Sequence[MembershipRequest], now: Now) -> Op[list[Outcome[Registration]]]:
    """Join or leave pools and topics; the outcome is the registration afterwards."""
    refused = yield from fence(request.actor for request in requests)
    outcomes: list[Outcome[Registration]] = []
    for request in requests:
        if request.actor in refused:
            outcomes.append(refused[request.actor])
            continue
        if request.leave:
            yield from _leave(request, now)
        else:
            yield from _join(request.actor.agent, request.pools, request.topics, now)
        registration = yield from _registration(request.actor.agent, now)
        if request.process is not None:
            yield from _listen(registration, request.process)
        outcomes.append(registration)
    return outcomes


@operation(durable=True)
def declare(requests: Sequence[DeclareRequest], now: Now) -> Op[list[Outcome[None]]]:
    """Create pools and topics."""
    for request in requests:
        wanted = [("pool", name, "") for name in request.pools] + [("topic", name, "") for name in request.topics]
        for kind, name, owner in dict.fromkeys(wanted):
            if not (yield Query("mailbox_find", (kind, name, owner))):
                yield from _mailboxes([(kind, name, owner)], now)
                yield from record([event(now.wall, "mailbox_declared", ("mailbox", f"{kind}:{name}"), None)])
    return [None] * len(requests)


def _cannot_register(request: RegisterRequest) -> Op[AgentBusError | None]:
    known = yield Query("type_known", ("agent", [request.type]))
    if not known:
        return UnknownType(kind="agent", name=request.type)
    if request.session is not None:
        error = yield from closed_session_error(request.session, "join it")
        if error is not None:
            return error
    rows = yield Query("agent_status", (request.agent,))
    if rows:
        _, status, _, *process = rows[0]
        if status in LIVE and request.alive and not request.takeover:
            home = None if process[0] is None else msgspec.structs.asdict(PeerProcess(*process))
            return AgentExists(agent=request.agent, status=status, pid=home and home["pid"], process=home)
    return None


def _register(request: RegisterRequest, now: Now) -> Op[Registration]:
    before = yield Query("agent_status", (request.agent,))
    was, old = (before[0][1], before[0][2]) if before else (None, None)
    if was in LIVE and not request.alive:
        # The expected agent is registered already.
        return (yield from _registration(request.agent, now))
    if was in LIVE:
        # The end of the old incarnation is not reported: its successor is here.
        held = yield Query("message_held_by", ([request.agent],))
        yield from take_back([Held(*row) for row in held], "it was taken over", now)
        yield from release_tasks_of([request.agent], "it was taken over", now)
        yield Query("workflow_forget", ([request.agent],))
        # Wake receivers of the old incarnation: they are fenced now.
        ((_, mailbox, *_),) = yield Query("agent_incarnation", (request.agent,))
        yield Wake([mailbox_channel(mailbox)])
    boxes = yield from _mailboxes(
        [("agent", request.agent, request.agent), ("replies", request.agent, request.agent)], now
    )
    session = request.session or (yield from _open_session(old))
    left = (yield from _leaving(old, was)) if request.session not in {None, old} else None
    last = (yield from restored(request.agent, was, session)) if request.alive else None
    yield Query(
        "agent_register",
        (
            request.agent, request.type, request.kind, session, request.process,
            request.status, now.wall, now.wall if request.alive else None, now.awake, *boxes,
            int(request.alive), None if request.within is None else now.awake + request.within,
            DEFAULT_PATIENCE if request.kind == "visiting" else None, *request.profile.row(),
        ),
    )  # fmt: skip
    if request.alive and session is not None:
        yield from resume(session, request.agent, now)
    yield from _join(request.agent, request.pools, request.topics, now)
    registration = msgspec.structs.replace((yield from _registration(request.agent, now)), restored=last, left=left)
    kind = "agent_taken_over" if was in LIVE else "agent_registered" if request.alive else "agent_expected"
    if request.process is not None:
        yield from _listen(registration, request.process)
    facts: dict[str, Any] = {"epoch": registration.epoch, "type": request.type, "before": was}
    if left is not None:
        facts["left"] = left[0]
    yield from record([event(now.wall, kind, ("agent", request.agent), request.by or request.agent, **facts)])
    return registration


def _open_session(session: str | None) -> Op[str | None]:
    """Return the session of the previous incarnation while it is open."""
    if session is None:
        return None
    return None if (yield from closed_session_error(session, "continue it")) else session


def _leaving(session: str | None, was: str | None) -> Op[tuple[str, str] | None]:
    """Return the open session, and its status, that an agent leaves without having completed."""
    if session is None or was == "completed":
        return None
    rows = yield Query("session_status", (session,))
    return None if not rows or rows[0][0] in SESSION_ENDED else (session, rows[0][0])


def _registration(agent: str, now: Now) -> Op[Registration]:
    registration = yield from current_registration(agent, now)
    assert registration is not None  # noqa: S101 - it was registered before
    return registration


def _listen(registration: Registration, process: int) -> Op[None]:
    boxes = (
        registration.mailbox,
        registration.replies,
        *registration.pools.values(),
        *registration.subscriptions.values(),
    )
    yield from add_listeners([(mailbox_channel(box), process) for box in boxes])


def _mailboxes(wanted: Sequence[tuple[str, str, str]], now: Now) -> Op[list[int]]:
    """Return the ids of the (kind, name, owner) mailboxes, creating missing ones."""
    yield ExecuteMany("mailbox_ensure", [(*box, now.wall) for box in wanted])
    ids: list[int] = []
    for box in wanted:
        ((id,),) = yield Query("mailbox_find", box)
        ids.append(id)
    return ids


def _join(agent: str, pools: Sequence[str], topics: Sequence[str], now: Now) -> Op[None]:
    boxes = yield from _mailboxes([("pool", name, "") for name in pools], now)
    yield ExecuteMany("pool_join", [(box, agent, now.wall) for box in boxes])
    boxes = yield from _mailboxes([("topic", name, "") for name in topics], now)
    own = yield from _mailboxes([("subscription", name, agent) for name in topics], now)
    yield ExecuteMany(
        "subscription_insert", [(box, agent, mine, now.wall) for box, mine in zip(boxes, own, strict=True)]
    )


def _leave(request: MembershipRequest, now: Now) -> Op[None]:
    agent = request.actor.agent
    for name in request.pools:
        yield Query("pool_leave", (name, agent))
    for name in request.topics:
        rows = yield Query("subscription_end", (name, agent))
        if rows:
            boxes = [mailbox for (mailbox,) in rows]
            yield Query("message_expire_all", (now.wall, "the subscription ended", boxes))
