"""Sending: from drafts to rows, for many callers at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from agentbus.addresses import Address
from agentbus.clock import Now
from agentbus.codec import canonical
from agentbus.errors import AgentBusError, AgentEnded, MessageIdConflict, UnknownRecipient, UnknownType
from agentbus.operations import (
    Actor,
    Numbered,
    Op,
    Outcome,
    Query,
    Row,
    Rows,
    Separately,
    Wake,
    mailbox_channel,
    operation,
    reply_channel,
    several,
)
from agentbus.operations.fencing import Standing, fenced, known, standing
from agentbus.operations.quotas import Load, admit
from agentbus.operations.vocabulary import Unchecked


class Draft(msgspec.Struct, frozen=True):
    """A message before it has a row. ``to`` is an address, or the mailbox that a reply goes to; times are
    milliseconds from now. A ``reply`` is queued even for a recipient that has ended."""

    to: Address | int
    type: str
    payload: tuple[str, int]
    """JSON text and its checksum."""
    priority: int
    max_attempts: int
    delay: int = 0
    ttl: int | None = None
    message_id: str | None = None
    correlation: str | None = None
    reply_to: int | None = None
    session: str | None = None
    reply: bool = False
    fits: str | None = None
    """The schema that the payload is known to fit. It was checked before: nothing is checked under the lock."""
    defines: str | None = None
    """The schema of the Struct that it was made of, which its first use defines."""

    @property
    def topic(self) -> str | None:
        return self.to.name if isinstance(self.to, Address) and self.to.kind == "topic" else None


class Receipt(msgspec.Struct, frozen=True):
    """What send() gives back once the message is committed.

    ``delivered`` counts the mailboxes it went to (a topic may have no subscriber); ``duplicate`` says that this
    message_id was sent before, and that this is the first receipt again.

    >>> Receipt(id=7, message_id="m-7").delivered
    1
    """

    id: int | None
    message_id: str | None
    delivered: int = 1
    duplicate: bool = False


class SendRequest(msgspec.Struct, frozen=True):
    """One caller's drafts: all are sent, or none."""

    actor: Actor
    drafts: tuple[Draft, ...]

    @property
    def touches(self) -> int:
        return len(self.drafts) + self.weight // 1024

    @property
    def weight(self) -> int:
        return sum(len(draft.payload[0]) for draft in self.drafts)


_Plan: TypeAlias = "Outcome[list[list[int] | Receipt]]"
"""For each draft the mailboxes it goes to, or the receipt it already has; or what is wrong with the request."""


class _Directory(msgspec.Struct):
    """All that the drafts of a batch refer to, looked up once."""

    agents: dict[str, Standing]
    types: dict[str, str | None]
    """The schema of each type, if it has one."""
    quotas: Rows
    pools: dict[str, int] = {}
    topics: dict[str, list[int]] = {}
    sent: dict[str, list[Row]] = {}
    new: dict[str, SendRequest] = {}
    """Ids that this batch is about to use for the first time, and by whom."""


@operation(durable=True, beside=True, grows=True, single=True)
def send(requests: Sequence[SendRequest], now: Now) -> Op[list[Outcome[list[Receipt]]]]:
    """Put every draft into its mailbox, or say which draft of a request cannot be sent."""
    directory = yield from _look_up(requests)
    plans: list[_Plan] = []
    for request in requests:
        error = fenced(request.actor, directory.agents.get(request.actor.agent))
        plans.append(error or _plan(request, directory))
    plans = yield from _admitted(requests, plans, directory.quotas, now)

    rows: list[Row] = []
    channels: list[str] = []
    for request, plan in zip(requests, plans, strict=True):
        if isinstance(plan, AgentBusError):
            continue
        for draft, boxes in zip(request.drafts, plan, strict=True):
            if not isinstance(boxes, Receipt) and boxes:
                values = _values(draft, request.actor.agent, now)
                for box in boxes:
                    rows.append((draft.message_id, box, *values))
                    channels.append(_channel(draft, box))
    id = 0
    if rows:
        # A scheduled message wakes its receivers too: they learn when it is due.
        yield Wake(channels)
        # Ids are never given out twice, not even after a purge.
        ((id,),) = yield Numbered("message_insert", "message", rows)
    elif any(not isinstance(plan, AgentBusError) for plan in plans):
        # Only repetitions. Whoever sent them first may have died before its fsync; touching a row makes this commit a
        # real one, which makes theirs durable too.
        yield Query("counter_take", ("message", 0))
    return _receipts(requests, plans, id)


def _receipts(requests: Sequence[SendRequest], plans: Sequence[_Plan], id: int) -> list[Outcome[list[Receipt]]]:
    """What each request is told; new messages are numbered from ``id`` on."""
    outcomes: list[Outcome[list[Receipt]]] = []
    for request, plan in zip(requests, plans, strict=True):
        if isinstance(plan, AgentBusError):
            outcomes.append(plan)
            continue
        receipts: list[Receipt] = []
        for draft, boxes in zip(request.drafts, plan, strict=True):
            if isinstance(boxes, Receipt):
                receipts.append(boxes)
            elif not boxes:
                receipts.append(Receipt(None, draft.message_id, 0))
            else:
                receipts.append(Receipt(id, draft.message_id or f"m-{id}", len(boxes)))
                id += len(boxes)
        outcomes.append(receipts)
    return outcomes


def post(drafts: Sequence[Draft], sender: str, now: Now) -> Op[None]:
    """Put messages of the bus itself into mailboxes that are known to exist."""
    if drafts:
        rows = [(None, draft.to, *_values(draft, sender, now)) for draft in drafts]
        yield Numbered("message_insert", "message", rows)
        yield Wake([_channel(draft, draft.to) for draft in drafts if isinstance(draft.to, int)])


def _look_up(requests: Sequence[SendRequest]) -> Op[_Directory]:
    agents = {request.actor.agent for request in requests}
    pools: set[str] = set()
    topics: set[str] = set()
    types: set[str] = set()
    ids: set[str] = set()
    for request in requests:
        for draft in request.drafts:
            types.add(draft.type)
            if draft.message_id is not None:
                ids.add(draft.message_id)
            to = draft.to
            if isinstance(to, Address):
                (agents if to.kind == "agent" else pools if to.kind == "pool" else topics).add(to.name)
    asked = [standing(agents), Query("type_known", ("message", list(types))), Query("bus_quotas")]
    if pools:
        asked.append(Query("pool_mailbox", (list(pools),)))
    if topics:
        asked.append(Query("topic_mailboxes", (list(topics),)))
    if ids:
        asked.append(Query("message_by_message_id", (list(ids),)))
    answers = iter((yield from several(*asked)))
    directory = _Directory(known(next(answers)), dict(next(answers)), next(answers))
    if pools:
        directory.pools = {row[0]: row[1] for row in next(answers)}
    for name, mailbox in next(answers) if topics else ():
        boxes = directory.topics.setdefault(name, [])
        if mailbox is not None:
            boxes.append(mailbox)
    for message_id, *rest in next(answers) if ids else ():
        directory.sent.setdefault(message_id, []).append(tuple(rest))
    return directory


def _plan(request: SendRequest, directory: _Directory) -> _Plan:
    """For each draft the mailboxes it goes to, or the receipt it already has; or the first thing that is wrong."""
    plan: list[list[int] | Receipt] = []
    for index, draft in enumerate(request.drafts):
        if draft.type not in directory.types:
            return UnknownType(kind="message", name=draft.type, item=index)
        boxes = _boxes(draft, directory)
        if boxes is None:
            assert isinstance(draft.to, Address)  # noqa: S101 - a mailbox is always its own box
            return UnknownRecipient(kind=draft.to.kind, name=draft.to.name, item=index)
        if draft.message_id is not None:
            sent = _sent_before(request, draft, boxes, directory, index)
            if sent is not None:
                if isinstance(sent, AgentBusError):
                    return sent
                plan.append(sent)
                continue
        if isinstance(draft.to, Address) and draft.to.kind == "agent" and not draft.reply:
            status = directory.agents[draft.to.name].status
            if status in {"completed", "stopped"}:
                return AgentEnded(agent=draft.to.name, status=status, item=index)
        schema = directory.types[draft.type]
        if schema is not None and schema != draft.fits:
            return Unchecked(type=draft.type, item=index, schemas=_schemas(request, directory))
        if draft.message_id is not None:
            directory.new[draft.message_id] = request
        plan.append(boxes)
    return plan


def _admitted(requests: Sequence[SendRequest], plans: list[_Plan], quotas: Rows, now: Now) -> Op[list[_Plan]]:
    """The plans again, but an error in place of those that are over a quota."""
    loads = [_load(request, plan) for request, plan in zip(requests, plans, strict=True)]
    refused = yield from admit(loads, quotas, now)
    return [error or plan for error, plan in zip(refused, plans, strict=True)]


def _load(request: SendRequest, plan: _Plan) -> Load | None:
    if isinstance(plan, AgentBusError):
        return None
    messages = 0
    coming: list[tuple[str, str, int]] = []
    for draft, boxes in zip(request.drafts, plan, strict=True):
        # A reply always queues, and what was sent before is there already.
        if isinstance(draft.to, Address) and not draft.reply and not isinstance(boxes, Receipt):
            messages += 1
            coming += [(draft.to.kind, draft.to.name, box) for box in boxes]
    return Load(request.actor.agent, messages, tuple(coming))


def _schemas(request: SendRequest, directory: _Directory) -> dict[str, str]:
    """All that the payloads of a request must fit, by type."""
    found = {draft.type: directory.types.get(draft.type) for draft in request.drafts}
    return {type: schema for type, schema in found.items() if schema is not None}


def _sent_before(
    request: SendRequest, draft: Draft, boxes: list[int], directory: _Directory, index: int
) -> Outcome[Receipt] | None:
    """The receipt of an earlier send under the same id, or why this one is another message; None for a new id."""
    assert draft.message_id is not None  # noqa: S101 - asked only for those that have one
    if directory.new.get(draft.message_id, request) is not request:
        # Run by itself, the later one finds the row of the earlier one.
        raise Separately
    sent = directory.sent.get(draft.message_id)
    if sent is not None:
        differs = _difference(draft, boxes, sent[0])
        if differs is None:
            return Receipt(sent[0][0], draft.message_id, len(sent), duplicate=True)
        return MessageIdConflict(message_id=draft.message_id, differs=differs, item=index)
    if draft.message_id in directory.new:
        return MessageIdConflict(message_id=draft.message_id, differs="place in the same list", item=index)
    return None


def _boxes(draft: Draft, directory: _Directory) -> list[int] | None:
    to = draft.to
    if isinstance(to, int):
        return [to]
    if to.kind == "agent":
        reader = directory.agents.get(to.name)
        return None if reader is None else [reader.mailbox]
    if to.kind == "pool":
        box = directory.pools.get(to.name)
        return None if box is None else [box]
    return directory.topics.get(to.name)


def _difference(draft: Draft, boxes: Sequence[int], sent: Row) -> str | None:
    """What the message sent before under this id has otherwise. A topic's subscribers may have changed since."""
    _, mailbox, type, payload, correlation, topic = sent
    if (topic != draft.topic) if draft.topic or topic else (mailbox not in boxes):
        return "recipient"
    if type != draft.type:
        return "type"
    if payload != draft.payload[0] and canonical(payload) != canonical(draft.payload[0]):
        return "payload"
    return None if correlation == draft.correlation else "correlation"


def _values(draft: Draft, sender: str, now: Now) -> Row:
    due = now.wall + draft.delay if draft.delay else None
    # Time to live counts from when the message can be read.
    expires = None if draft.ttl is None else (due or now.wall) + draft.ttl
    return (
        sender, draft.type, *draft.payload, draft.priority,
        "queued" if due is None else "scheduled", draft.max_attempts, due, expires, draft.correlation,
        draft.reply_to, draft.session, now.wall,
    )  # fmt: skip


def _channel(draft: Draft, box: int) -> str:
    if isinstance(draft.to, int) and draft.correlation is not None:
        return reply_channel(box, draft.correlation)
    return mailbox_channel(box)
