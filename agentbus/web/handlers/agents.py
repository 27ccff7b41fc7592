"""Agents: the registry, and agents that act over HTTP as visiting agents. Each call of an agent is its heartbeat."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Literal

import msgspec

from agentbus.core.validation import KEEP_VERSIONS, PAGE_SIZE, VISITOR_LEASE, Priority, check_text
from agentbus.errors import AgentBusError, UnknownAgent
from agentbus.operations.documents import Saved
from agentbus.operations.receipts import Steered
from agentbus.operations.rows import Delivery
from agentbus.operations.send import Reach, Receipt
from agentbus.records import AgentRecord, Checkpoint, Page, StateEntry
from agentbus.web.call import Body, Call, Created, Done, Query, set_fields
from agentbus.web.errors import InvalidRequest, NothingFound

MAX_POLL = 55.0
"""Seconds that a request may wait: proxies commonly end one after 60."""


class AgentView(AgentRecord, frozen=True):
    """An agent, with the wall times of its last sign of life and of the end of its announced silence. ``last_call`` and
    ``busy_until`` are times of the bus's own clock, which mean nothing to a client."""

    seen: int | None = None
    busy_until_wall: int | None = None


class AgentsQuery(Query, frozen=True):
    """``updated_after``: wall milliseconds; a client that has the list reads what has changed since."""

    status: list[str] | None = None
    type: str | None = None
    session: str | None = None
    parent: str | None = None
    kind: str | None = None
    capability: str | None = None
    updated_after: int | None = None
    cursor: str | None = None
    limit: int = PAGE_SIZE


class EpochQuery(Query, frozen=True):
    """``epoch``: the incarnation in which the agent acts (default: the current one). With it, an agent that was taken
    over is refused."""

    epoch: int | None = None


class ProfileBody(Body, frozen=True):
    name: str | None = None
    milestone: str | None = None
    parent: str | None = None
    capabilities: list[str] | None = None
    model: str | None = None
    prompt: str | None = None
    load: int | None = None
    estimate: float | None = None
    metadata: dict[str, Any] | None = None
    patience: float | None = None


class RegisterBody(ProfileBody, frozen=True, kw_only=True):
    type: str
    session: str | None = None
    pools: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()
    takeover: bool = False
    lease: float = VISITOR_LEASE


class ExpectBody(ProfileBody, frozen=True, kw_only=True):
    type: str
    session: str | None = None
    within: float | None = None


class Registered(msgspec.Struct, frozen=True):
    """A registered agent: pass ``epoch`` with every later call. ``restored`` is the id of the checkpoint to resume
    from."""

    id: str
    epoch: int
    session: str | None
    pools: list[str]
    topics: list[str]
    restored: int | None


class ProgressBody(Body, frozen=True):
    percent: int
    note: str | None = None


class BusyBody(Body, frozen=True):
    seconds: float


class FailBody(Body, frozen=True):
    error: str


class ReasonBody(Body, frozen=True):
    reason: str | None = None


class JoinBody(Body, frozen=True):
    session: str


class Joined(msgspec.Struct, frozen=True):
    """The session that the agent has joined, and the open one that it left."""

    session: str
    left: str | None


class MembershipBody(Body, frozen=True):
    pools: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()
    leave: bool = False


class ClearBody(Body, frozen=True):
    older_than: float = 0


class Deleted(msgspec.Struct, frozen=True):
    """The agents that were deleted."""

    agents: list[str]


async def list_agents(call: Call, query: AgentsQuery) -> Page[AgentView]:
    """List agents, ordered by id. ``status=incomplete`` selects all that have not ended."""
    status: str | list[str] | None = query.status
    if query.status == ["incomplete"]:
        status = "incomplete"
    page = await call.bus.agents.list(
        status=status, type=query.type, session=query.session, parent=query.parent, kind=query.kind,
        capability=query.capability, updated_after=query.updated_after, cursor=query.cursor, limit=query.limit,
    )  # fmt: skip
    return Page(await _views(call, page.items), page.cursor)


async def get_agent(call: Call) -> AgentView:
    """Show an agent."""
    return await _view(call, call.names["agent"])


async def update_agent(call: Call, body: ProfileBody) -> AgentView:
    """Change the description of an agent; fields that are not given stay."""
    await call.bus.agents.update(call.names["agent"], **set_fields(body))
    return await _view(call, call.names["agent"])


async def delete_agent(call: Call) -> Deleted:
    """Delete an agent that has ended or was only expected, with its state and checkpoints."""
    await call.bus.agents.delete(call.names["agent"], by=call.by)
    return Deleted([call.names["agent"]])


async def clear_agents(call: Call, body: ClearBody) -> Deleted:
    """Delete the agents that completed or stopped more than ``older_than`` seconds ago."""
    return Deleted(list(await call.bus.agents.clear(older_than=body.older_than, by=call.by)))


async def register(call: Call, body: RegisterBody) -> Registered:
    """Register a visiting agent: each of its calls is its heartbeat. With ``takeover``, fence an incarnation that is
    alive."""
    options = set_fields(body, "type", "lease")
    by = call.by_operator if body.takeover else None
    visitor = await call.bus.register_visitor(call.names["agent"], type=body.type, lease=body.lease, by=by, **options)
    found = visitor._registration
    restored = None if found.restored is None else found.restored.id
    return Registered(
        visitor.id, visitor.epoch, visitor.session, sorted(found.pools), sorted(found.subscriptions), restored
    )


async def expect(call: Call, body: ExpectBody) -> AgentView:
    """Announce an agent that will register later. With ``within`` it fails if it has not registered by then."""
    await call.bus.expect(call.names["agent"], type=body.type, **set_fields(body, "type"))
    return await _view(call, call.names["agent"])


async def heartbeat(call: Call, query: EpochQuery) -> Done:
    """Record that the agent is alive, and extend its leases."""
    await (await call.visitor(query.epoch)).heartbeat()
    return Done()


async def progress(call: Call, query: EpochQuery, body: ProgressBody) -> Done:
    """Report the progress of the work, from 0 to 100."""
    await (await call.visitor(query.epoch)).progress(body.percent, body.note)
    return Done()


async def busy(call: Call, query: EpochQuery, body: BusyBody) -> Done:
    """Announce a period of silence; 0 revokes it."""
    await (await call.visitor(query.epoch)).busy(body.seconds)
    return Done()


async def complete(call: Call, query: EpochQuery) -> AgentView:
    """Mark the agent completed."""
    await (await call.visitor(query.epoch)).complete(by=call.by_operator)
    return await _view(call, call.names["agent"])


async def fail(call: Call, query: EpochQuery, body: FailBody) -> AgentView:
    """Mark the agent failed, and notify its parent."""
    await (await call.visitor(query.epoch)).fail(body.error, by=call.by_operator)
    return await _view(call, call.names["agent"])


async def stop(call: Call, query: EpochQuery, body: ReasonBody) -> AgentView:
    """Mark the agent stopped, though its work is not done."""
    await (await call.visitor(query.epoch)).stop(body.reason, by=call.by_operator)
    return await _view(call, call.names["agent"])


async def join(call: Call, query: EpochQuery, body: JoinBody) -> Joined:
    """Take part in a session from now on."""
    left = await (await call.visitor(query.epoch)).join(body.session)
    return Joined(body.session, left)


async def change_membership(call: Call, query: EpochQuery, body: MembershipBody) -> Registered:
    """Join, or leave, pools and topics."""
    visitor = await call.visitor(query.epoch)
    found = await visitor.change_membership(pools=body.pools, topics=body.topics, leave=body.leave)
    return Registered(visitor.id, visitor.epoch, found.session, sorted(found.pools), sorted(found.subscriptions), None)


# Messages of an agent


class SendBody(Body, frozen=True, kw_only=True):
    """A message. ``message_id``, or the header Idempotency-Key: the same id with the same content is sent once."""

    to: str
    type: str
    payload: Any = None
    priority: int | None = None
    delay: float | None = None
    ttl: float | None = None
    message_id: str | None = None
    max_attempts: int | None = None
    correlation: str | None = None
    session: str | None = None
    headers: dict[str, str] | None = None

    def options(self, call: Call) -> dict[str, Any]:
        found = set_fields(self, "to", "type", "payload", "message_id")
        key = call.key_or(self.message_id)
        return found if key is None else {**found, "message_id": key}


class RequestBody(SendBody, frozen=True, kw_only=True):
    timeout: float = 30.0


class ReplyBody(Body, frozen=True, kw_only=True):
    message: str
    type: str
    payload: Any = None
    settle: bool = True
    priority: int | None = None
    delay: float | None = None
    ttl: float | None = None
    message_id: str | None = None
    max_attempts: int | None = None
    headers: dict[str, str] | None = None


class ReceiveBody(Body, frozen=True):
    """``timeout``: seconds to wait for a message, up to 55. ``lease``: seconds until it is delivered again, unless the
    agent settles it or calls. ``client``: the session of the agent's client, for the receipts."""

    most: int = 1
    timeout: float = 0
    lease: float | None = None
    client: str | None = None


class LimitBody(Body, frozen=True):
    """``most``: the maximum number of messages."""

    most: int = 100


class Deliveries(msgspec.Struct, frozen=True):
    """Messages, most urgent first. ``lease`` of each names it in ``ack``, ``nack``, ``reject``, ``extend`` and
    ``reply``."""

    messages: list[Delivery]


class SettleBody(Body, frozen=True):
    messages: list[str]


class NackBody(Body, frozen=True):
    messages: list[str]
    delay: float | None = None
    error: str | None = None


class RejectBody(Body, frozen=True):
    messages: list[str]
    error: str


class ExtendBody(Body, frozen=True):
    messages: list[str]
    seconds: float


class Acked(msgspec.Struct, frozen=True):
    """``before``: those that the agent had acknowledged before."""

    acked: list[str]
    before: list[str]


class Sent(Receipt, frozen=True):
    """A message that is committed. ``reach``: when its recipient gets to see it: ``now``, ``next_tool``, ``next_turn``,
    ``when_started`` or ``unknown``."""

    reach: str = "unknown"


async def sent(call: Call, body: SendBody, receipt: Receipt) -> Sent:
    """Return a receipt with the reach of the recipient."""
    priority = Priority.NORMAL if body.priority is None else body.priority
    found = await call.bus.messages.reach(body.to, priority=priority)
    return Sent(**msgspec.structs.asdict(receipt), reach=found.reach)


async def send(call: Call, query: EpochQuery, body: SendBody) -> Created | Sent:
    """Send a message as the agent, to an agent, ``pool:NAME`` or ``topic:NAME``."""
    visitor = await call.visitor(query.epoch)
    receipt = await visitor.send(body.to, body.type, body.payload, **body.options(call))
    return Created(await sent(call, body, receipt))


async def request(call: Call, query: EpochQuery, body: RequestBody) -> Delivery:
    """Send a message as the agent, and wait for its reply."""
    visitor = await call.visitor(query.epoch)
    options = body.options(call)
    options.pop("timeout", None)
    return await visitor.request(body.to, body.type, body.payload, timeout=poll(body.timeout), **options)


async def receive(call: Call, query: EpochQuery, body: ReceiveBody) -> Deliveries:
    """Receive messages of the agent under a lease. If the client disconnects before it has the response, they are
    released."""
    visitor = await call.visitor(query.epoch)
    call.when_abandoned = visitor.abandon
    timeout = poll(body.timeout, zero=True)
    if body.client is not None:
        check_text(body.client, "client", 200)
    messages = await visitor.receive(body.most, timeout=timeout, lease=body.lease)

    async def seen() -> None:
        # A receipt that is not written makes a message seem unseen, and nothing else.
        with suppress(AgentBusError):
            await visitor.seen(*(one.message_id for one in messages), channel="http", client=body.client)

    call.when_delivered = seen
    return Deliveries(messages)


class SeenBody(Body, frozen=True):
    """Messages that were delivered into the context of the agent: by what, and into which session of its client."""

    messages: list[str]
    channel: str = "http"
    client: str | None = None


class ReachBody(Body, frozen=True):
    """``wakes``: the adapter delivers messages after every ``tool`` call, or with every ``turn``; null withdraws it."""

    wakes: Literal["tool", "turn"] | None
    channel: str = "http"


async def seen(call: Call, query: EpochQuery, body: SeenBody) -> Done:
    """Record that messages were delivered into the context of the agent."""
    visitor = await call.visitor(query.epoch)
    await visitor.seen(*body.messages, channel=body.channel, client=body.client)
    return Done()


async def declare_reach(call: Call, query: EpochQuery, body: ReachBody) -> Done:
    """Declare how messages wake the agent."""
    await (await call.visitor(query.epoch)).declare_reach(body.wakes, channel=body.channel)
    return Done()


async def get_reach(call: Call) -> Reach:
    """Show when the agent gets to see a message that is sent now."""
    await _view(call, call.names["agent"])
    return await call.bus.messages.reach(call.names["agent"])


class SteerBody(Body, frozen=True, kw_only=True):
    """``stop_after``: ask the agent to stop after its current step. ``timeout``: seconds to wait for the receipt."""

    text: str
    stop_after: bool = False
    timeout: float = 5.0


async def steer(call: Call, body: SteerBody) -> Created | Steered:
    """Direct the agent as the operator of the token, at its next tool call, and wait until the message was seen."""
    return Created(
        await call.bus.messages.steer(
            call.names["agent"], body.text, by=call.by, stop_after=body.stop_after,
            timeout=poll(body.timeout, zero=True),
        )
    )  # fmt: skip


async def peek(call: Call, query: EpochQuery, body: LimitBody) -> Deliveries:
    """Show the messages that the agent would receive now, without claiming them."""
    return Deliveries(await (await call.visitor(query.epoch)).peek(body.most))


async def in_hand(call: Call, query: EpochQuery, body: LimitBody) -> Deliveries:
    """Show the messages that the agent has received and not settled."""
    return Deliveries(await (await call.visitor(query.epoch)).in_hand(body.most))


async def ack(call: Call, query: EpochQuery, body: SettleBody) -> Acked:
    """Acknowledge messages in one commit: all, or none."""
    before = await (await call.visitor(query.epoch)).ack(*body.messages)
    return Acked(body.messages, before)


async def nack(call: Call, query: EpochQuery, body: NackBody) -> Done:
    """Release messages, to be retried later."""
    await (await call.visitor(query.epoch)).nack(*body.messages, delay=body.delay, error=body.error)
    return Done()


async def reject(call: Call, query: EpochQuery, body: RejectBody) -> Done:
    """Make messages dead letters at once."""
    await (await call.visitor(query.epoch)).reject(*body.messages, error=body.error)
    return Done()


async def extend(call: Call, query: EpochQuery, body: ExtendBody) -> Done:
    """Extend the leases on messages."""
    await (await call.visitor(query.epoch)).extend(*body.messages, seconds=body.seconds)
    return Done()


async def reply(call: Call, query: EpochQuery, body: ReplyBody) -> Created | Receipt:
    """Reply to a message, and acknowledge it in the same commit."""
    visitor = await call.visitor(query.epoch)
    options = set_fields(body, "message", "type", "payload", "settle", "message_id")
    key = call.key_or(body.message_id)
    if key is not None:
        options["message_id"] = key
    return Created(await visitor.reply(body.message, body.type, body.payload, settle=body.settle, **options))


# State, checkpoints and documents of an agent


class SetBody(Body, frozen=True, kw_only=True):
    """``if_version``: the version that the entry must have; 0: it must not exist."""

    value: Any
    ttl: float | None = None
    type: str = "user_data"
    if_version: int | None = None


class DeleteQuery(EpochQuery, frozen=True):
    if_version: int | None = None


class IncrementBody(Body, frozen=True):
    by: int | float = 1
    ttl: float | None = None


class Version(msgspec.Struct, frozen=True):
    """The new version of an entry."""

    version: int


class Existed(msgspec.Struct, frozen=True):
    """``existed``: False if there was no such entry."""

    existed: bool


class Sum(msgspec.Struct, frozen=True):
    """The value of an entry after an addition."""

    value: int | float


class CheckpointBody(Body, frozen=True, kw_only=True):
    name: str
    snapshot: Any
    notes: str = ""
    keep: int | None = None


class DocumentBody(Body, frozen=True, kw_only=True):
    value: Any
    keep: int = KEEP_VERSIONS


class SessionDocumentBody(DocumentBody, frozen=True, kw_only=True):
    session: str | None = None


async def get_own_state(call: Call) -> StateEntry:
    """Show an entry of the agent's own state."""
    return await entry(call, call.names["agent"])


async def set_own_state(call: Call, query: EpochQuery, body: SetBody) -> Version:
    """Set an entry of the agent's own state."""
    state = (await call.visitor(query.epoch)).state()
    return Version(
        await state.set(call.names["key"], body.value, ttl=body.ttl, type=body.type, if_version=body.if_version)
    )


async def delete_own_state(call: Call, query: DeleteQuery) -> Existed:
    """Delete an entry of the agent's own state."""
    state = (await call.visitor(query.epoch)).state()
    return Existed(await state.delete(call.names["key"], if_version=query.if_version))


async def increment_own_state(call: Call, query: EpochQuery, body: IncrementBody) -> Sum:
    """Add a number to an entry of the agent's own state. A missing entry counts as 0."""
    state = (await call.visitor(query.epoch)).state()
    return Sum(await state.increment(call.names["key"], body.by, ttl=body.ttl))


async def save_own_checkpoint(call: Call, query: EpochQuery, body: CheckpointBody) -> Created | Checkpoint:
    """Save a checkpoint of the agent, to resume from."""
    visitor = await call.visitor(query.epoch)
    return Created(await visitor.checkpoint(body.name, body.snapshot, notes=body.notes, keep=body.keep))


async def save_own_document(call: Call, query: EpochQuery, body: SessionDocumentBody) -> Created | Saved:
    """Save a document of the agent's session, or of another; the agent is its author."""
    visitor = await call.visitor(query.epoch)
    return Created(await visitor.document(call.names["name"], body.value, session=body.session, keep=body.keep))


async def entry(call: Call, scope: str) -> StateEntry:
    found = await call.bus.state(scope).entry(call.names["key"])
    if found is None:
        raise NothingFound(what=f"entry {call.names['key']!r} in {scope}", scope=scope, key=call.names["key"])
    return found


def poll(seconds: float, *, zero: bool = False) -> float:
    """Return the time that a request may wait."""
    if not (seconds >= 0 if zero else seconds > 0) or seconds > MAX_POLL:
        raise InvalidRequest(reason=f"timeout is {seconds!r}, must be at most {MAX_POLL:g} seconds")
    return seconds


async def _view(call: Call, id: str) -> AgentView:
    record = await call.bus.agents.get(id)
    if record is None:
        raise UnknownAgent(agent=id)
    (view,) = await _views(call, [record])
    return view


async def _views(call: Call, agents: Sequence[AgentRecord]) -> list[AgentView]:
    seen = await call.bus.agents.last_seen(agents)
    return [AgentView(*(*msgspec.structs.astuple(one), seen[one.id].at, seen[one.id].busy_until)) for one in agents]
