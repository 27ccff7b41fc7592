"""Send messages: look up recipients, check quotas and ids, and insert the rows of many callers at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from agentbus.core.addresses import OPERATOR, Address, is_operator
from agentbus.core.clock import Now
from agentbus.core.codec import canonical
from agentbus.core.validation import Priority
from agentbus.errors import (
    AgentBusError,
    AgentEnded,
    MessageIdConflict,
    NotAnOperator,
    ReceivesNothing,
    TaskEnded,
    UnknownOperator,
    UnknownRecipient,
    UnknownTask,
    UnknownType,
)
from agentbus.operations.common import LIVE as ALIVE
from agentbus.operations.common import AgentStatus, agent_status_query, agent_statuses_from, fenced
from agentbus.operations.protocol import (
    LIVE,
    Actor,
    CannotBatch,
    ExecuteMany,
    InsertNumbered,
    Op,
    Outcome,
    Query,
    Row,
    Rows,
    Wake,
    gather,
    mailbox_channel,
    operation,
    reply_channel,
)
from agentbus.operations.quotas import Load, admit
from agentbus.operations.rows import Draft, hold_reason
from agentbus.operations.types import Unchecked

if TYPE_CHECKING:
    from agentbus.operations.task_mail import TaskBox


class Receipt(msgspec.Struct, frozen=True):
    """The result of a send, once the message is committed.

    ``delivered`` counts the mailboxes it went to (a topic may have no subscriber). ``duplicate``: this message_id was
    sent before, and this is the first receipt again. ``held``: its thread has reached the bound of messages without
    progress, and it waits for a person (``bus.holds``); ``hold_reason`` says so in words.

    >>> Receipt(id=7, message_id="m-7").delivered
    1
    """

    id: int | None
    message_id: str | None
    delivered: int = 1
    duplicate: bool = False
    held: bool = False
    hold_reason: str | None = None

    def copy_ids(self) -> list[str]:
        """Return the names of all copies: the message_id of the sender, which they share, or one for each.

        >>> Receipt(7, "m-7", 2).copy_ids(), Receipt(7, "x", 2).copy_ids(), Receipt(None, None, 0).copy_ids()
        (['m-7', 'm-8'], ['x'], [])
        """
        if self.id is None or self.message_id is None:
            return []
        if self.message_id != f"m-{self.id}":
            return [self.message_id]
        # The copies of a message have consecutive ids.
        return [f"m-{self.id + copy}" for copy in range(self.delivered)]


STEER = "steer"
"""The type of the messages by which a person directs a running agent. Agents cannot send it."""
ACTIVE = 120_000
"""Milliseconds after its last call during which an agent counts as at work."""
_BEST = ("now", "next_tool", "next_turn", "unknown", "when_started")


class Reach(msgspec.Struct, frozen=True):
    """The moment at which a recipient gets to see a message that is sent now.

    ``reach`` is ``now`` (a process waits for its messages), ``next_tool`` (after its next tool call), ``next_turn``
    (with its next prompt), ``when_started`` (it is not running) or ``unknown`` (it is running, and no adapter declared
    how it can be woken). ``agent`` is the agent that this holds for: of a pool or a topic the member that is reached
    first. ``last_call`` and ``busy_until`` are wall milliseconds.

    >>> Reach("unknown").agent is None
    True
    """

    reach: str
    agent: str | None = None
    epoch: int | None = None
    status: str | None = None
    last_call: int | None = None
    busy_until: int | None = None


class SendRequest(msgspec.Struct, frozen=True):
    """The drafts of one caller: all are sent, or none."""

    actor: Actor
    drafts: tuple[Draft, ...]

    @property
    def row_estimate(self) -> int:
        return len(self.drafts) + self.data_size // 1024

    @property
    def data_size(self) -> int:
        return sum(draft.size for draft in self.drafts)


Plan: TypeAlias = "Outcome[list[list[int] | Receipt]]"
"""For each draft its mailboxes, or the receipt that it already has; or the error of the request."""
Positions: TypeAlias = Set[tuple[int, int]]
"""Drafts of a batch: the position of the request, and that of the draft in it."""
_NONE: Positions = frozenset()


class _Sent(msgspec.Struct, frozen=True):
    """A message that was sent before under an id; ``topic`` if it was published."""

    message_id: str
    id: int
    mailbox: int
    type: str
    payload: str
    correlation: str | None
    topic: str | None
    held: int = 0


class _Directory(msgspec.Struct):
    """The agents, types, pools, topics and ids that the drafts of a batch refer to."""

    agents: dict[str, AgentStatus]
    types: dict[str, str | None]
    """The schema of each type, if it has one."""
    quotas: Rows
    pools: dict[str, int] = {}
    topics: dict[str, list[int]] = {}
    operators: dict[str, int] = {}
    """The mailboxes of operators."""
    tasks: dict[str, TaskBox] = {}
    sent: dict[str, list[_Sent]] = {}
    new: dict[str, SendRequest] = {}
    """The requests of this batch by the ids that they use for the first time."""
    ambiguous_operators: Set[str] = frozenset()
    """The operators who steer under the name of an agent."""
    threads: bool = False
    """True if a message is counted in its thread, or a person writes in one."""

    def add_mailboxes(self, names: dict[str, set[str]], answers: Iterator[Rows]) -> None:
        """Add the answers to ``_mailbox_queries``."""
        if "pool" in names:
            self.pools = dict(next(answers))
        for name, mailbox in next(answers) if "topic" in names else ():
            boxes = self.topics.setdefault(name, [])
            if mailbox is not None:
                boxes.append(mailbox)
        if "operator" in names:
            self.operators = dict(next(answers))


@operation(durable=True, concurrent=True, stores_data=True, single_insert=True)
def send(requests: Sequence[SendRequest], now: Now) -> Op[list[Outcome[list[Receipt]]]]:
    """Put every draft into its mailboxes; an error names the draft of a request that cannot be sent."""
    directory = yield from _look_up(requests, now)
    plans: list[Plan] = []
    for request in requests:
        error = fenced(request.actor, directory.agents.get(request.actor.agent))
        plans.append(error or _plan(request, directory))
    plans = yield from _apply_quotas(requests, plans, directory.quotas, now)
    held = (yield from _hold_back(requests, plans, directory.quotas, now)) if directory.threads else _NONE

    rows: list[Row] = []
    holds: list[Row] = []
    channels: list[str] = []
    tasks: dict[str, TaskBox] = {}
    for index, (request, plan) in enumerate(zip(requests, plans, strict=True)):
        if isinstance(plan, AgentBusError):
            continue
        for position, (draft, boxes) in enumerate(zip(request.drafts, plan, strict=True)):
            if not isinstance(boxes, Receipt) and boxes:
                if held and (index, position) in held:
                    # Its receivers are not woken: it waits for a person.
                    hold = (draft.correlation, draft.due(now), now.wall)
                    holds += [(len(rows) + copy, *hold) for copy in range(len(boxes))]
                    values = draft.values(request.actor.agent, now, held=True)
                    rows += [(draft.message_id, box, *values) for box in boxes]
                    continue
                values = draft.values(request.actor.agent, now)
                for box in boxes:
                    rows.append((draft.message_id, box, *values))
                    channels.append(_channel(draft, box))
                if isinstance(draft.to, Address) and draft.to.kind == "task":
                    tasks[draft.to.name] = directory.tasks[draft.to.name]
    if tasks:
        from agentbus.operations.task_mail import notify_tasks

        yield from notify_tasks(tasks.values(), now)
    id = 0
    if rows:
        # A scheduled message wakes its receivers too: they wait until it is due.
        yield Wake([*channels, LIVE])
        # Ids are never reused, not even after a purge.
        ((id,),) = yield InsertNumbered("message_insert", "message", rows)
        if holds:
            yield ExecuteMany("hold_insert", [(id + offset, *rest) for offset, *rest in holds])
    elif any(not isinstance(plan, AgentBusError) for plan in plans):
        # Only duplicates. The first sender may have died before its fsync; writing a row makes this commit a real one,
        # which makes the first durable too.
        yield Query("counter_take", ("message", 0))
    return _receipts(requests, plans, id, held)


def _hold_back(requests: Sequence[SendRequest], plans: Sequence[Plan], quotas: Rows, now: Now) -> Op[Positions]:
    # Imported only here: most messages are in no thread.
    from agentbus.operations.holds import hold_back

    return (yield from hold_back(requests, plans, quotas, now))


def _receipts(
    requests: Sequence[SendRequest], plans: Sequence[Plan], id: int, held: Positions
) -> list[Outcome[list[Receipt]]]:
    """Return the outcomes; new messages are numbered from ``id`` on."""
    outcomes: list[Outcome[list[Receipt]]] = []
    for index, (request, plan) in enumerate(zip(requests, plans, strict=True)):
        if isinstance(plan, AgentBusError):
            outcomes.append(plan)
            continue
        receipts: list[Receipt] = []
        for position, (draft, boxes) in enumerate(zip(request.drafts, plan, strict=True)):
            if isinstance(boxes, Receipt):
                receipts.append(boxes)
            elif not boxes:
                receipts.append(Receipt(None, draft.message_id, 0))
            else:
                message_id = draft.message_id or f"m-{id}"
                if held and (index, position) in held:
                    reason = hold_reason(draft.correlation)
                    receipts.append(Receipt(id, message_id, len(boxes), held=True, hold_reason=reason))
                else:
                    receipts.append(Receipt(id, message_id, len(boxes)))
                id += len(boxes)
        outcomes.append(receipts)
    return outcomes


def post(drafts: Sequence[Draft], sender: str, now: Now) -> Op[None]:
    """Insert messages of the bus itself into mailboxes that are known to exist."""
    if drafts:
        rows = [(None, draft.to, *draft.values(sender, now)) for draft in drafts]
        yield InsertNumbered("message_insert", "message", rows)
        yield Wake([*(_channel(draft, draft.to) for draft in drafts if isinstance(draft.to, int)), LIVE])


def _look_up(requests: Sequence[SendRequest], now: Now) -> Op[_Directory]:
    agents = {request.actor.agent for request in requests}
    others: dict[str, set[str]] = {}
    types: set[str] = set()
    ids: set[str] = set()
    for request in requests:
        for draft in request.drafts:
            types.add(draft.type)
            if draft.message_id is not None:
                ids.add(draft.message_id)
            to = draft.to
            if isinstance(to, Address):
                if to.kind == "agent" and not is_operator(to.name):
                    agents.add(to.name)
                else:
                    # A caller may have built an address of any kind: it is looked up as a topic, and not found.
                    kind = "operator" if to.kind == "agent" else to.kind if to.kind in _KINDS else "topic"
                    others.setdefault(kind, set()).add(to.name)
    queries = [agent_status_query(agents), Query("type_known", ("message", list(types))), Query("bus_quotas")]
    queries += _mailbox_queries(others)
    operators = _operators(requests) if STEER in types else []
    queries += [Query("agent_status", (name,)) for name in operators]
    if ids:
        queries.append(Query("message_by_message_id", (list(ids),)))
    answers = iter((yield from gather(*queries)))
    directory = _Directory(agent_statuses_from(next(answers)), dict(next(answers)), next(answers))
    if others:
        directory.add_mailboxes(others, answers)
    directory.ambiguous_operators = {name for name in operators if next(answers)}
    for row in next(answers) if ids else ():
        sent = _Sent(*row)
        directory.sent.setdefault(sent.message_id, []).append(sent)
    if "task" in others:
        directory.tasks = yield from _task_boxes(others["task"], now)
    return directory


_KINDS = frozenset({"pool", "topic", "task"})


def _operators(requests: Sequence[SendRequest]) -> list[str]:
    """Return the names of the operators who send these."""
    senders = {request.actor.agent for request in requests}
    return sorted(_operator_name(sender) for sender in senders if is_operator(sender))


def _operator_name(sender: str) -> str:
    """Return the name of an operator without ``operator:``; an agent's name may have its epoch appended."""
    return sender.removeprefix(OPERATOR).partition("#")[0]


def _mailbox_queries(names: dict[str, set[str]]) -> Iterator[Query]:
    """Yield the queries for the mailboxes of recipients that are not agents, by their kind."""
    if "pool" in names:
        yield Query("pool_mailbox", (list(names["pool"]),))
    if "topic" in names:
        yield Query("topic_mailboxes", (list(names["topic"]),))
    if "operator" in names:
        yield Query("mailbox_of_operators", (list(names["operator"]),))


def _is_operator_address(to: Address) -> bool:
    return to.kind == "agent" and is_operator(to.name)


def _task_boxes(ids: Iterable[str], now: Now) -> Op[dict[str, TaskBox]]:
    # Imported only here: most senders need no tasks.
    from agentbus.operations.task_mail import open_mailboxes

    return (yield from open_mailboxes(list(ids), now))


def _plan(request: SendRequest, directory: _Directory) -> Plan:
    """Return for each draft its mailboxes, or the receipt that it already has; or the first error."""
    plan: list[list[int] | Receipt] = []
    for index, draft in enumerate(request.drafts):
        if draft.type not in directory.types:
            return UnknownType(kind="message", name=draft.type, item=index)
        if draft.type == STEER and not _may_steer(request.actor.agent, directory):
            return NotAnOperator(by=request.actor.agent.removeprefix(OPERATOR), action="steer agents", item=index)
        boxes = _boxes(draft, directory)
        if boxes is None:
            assert isinstance(draft.to, Address)  # noqa: S101 - a mailbox is always its own box
            return _unknown(draft.to, index)
        if draft.message_id is not None:
            sent = _sent_before(request, draft, boxes, directory, index)
            if sent is not None:
                if isinstance(sent, AgentBusError):
                    return sent
                plan.append(sent)
                continue
        if isinstance(draft.to, Address):
            ended = _ended(draft, draft.to, directory, index)
            if ended is not None:
                return ended
        schema = directory.types[draft.type]
        if schema is not None and schema != draft.fits:
            return Unchecked(type=draft.type, item=index, schemas=_schemas(request, directory))
        if draft.message_id is not None:
            directory.new[draft.message_id] = request
        if draft.correlation is not None and (draft.follows is not None or is_operator(request.actor.agent)):
            directory.threads = True
        plan.append(boxes)
    return plan


def _may_steer(sender: str, directory: _Directory) -> bool:
    """Return True for a person whose name is not that of an agent."""
    return is_operator(sender) and _operator_name(sender) not in directory.ambiguous_operators


def _unknown(to: Address, index: int) -> AgentBusError:
    if _is_operator_address(to):
        return UnknownOperator(operator=to.name, item=index)
    if to.kind == "task":
        return UnknownTask(task=to.name, item=index)
    return UnknownRecipient(kind=to.kind, name=to.name, item=index)


def _ended(draft: Draft, to: Address, directory: _Directory, index: int) -> AgentBusError | None:
    """Return the error if the recipient has ended and would not read the message."""
    if to.kind == "agent" and not draft.reply:
        # An operator is not registered, and never ends.
        reader = directory.agents.get(to.name)
        if reader is not None and reader.status in {"completed", "stopped"}:
            return AgentEnded(agent=to.name, status=reader.status, item=index)
    elif to.kind == "task":
        task = directory.tasks[to.name]
        if task.manual:
            return ReceivesNothing(task=task.id, item=index)
        if task.ended:
            return TaskEnded(task=task.id, status=task.status, item=index)
    return None


def _apply_quotas(requests: Sequence[SendRequest], plans: list[Plan], quotas: Rows, now: Now) -> Op[list[Plan]]:
    """Return the plans, with an error in place of those over a quota."""
    if not quotas:
        return plans
    loads = [_load(request, plan) for request, plan in zip(requests, plans, strict=True)]
    refused = yield from admit(loads, quotas, now)
    return [error or plan for error, plan in zip(refused, plans, strict=True)]


def _load(request: SendRequest, plan: Plan) -> Load | None:
    if isinstance(plan, AgentBusError):
        return None
    messages = 0
    incoming: list[tuple[str, str, int]] = []
    for draft, boxes in zip(request.drafts, plan, strict=True):
        # A reply is always queued, and a duplicate is stored already.
        if isinstance(draft.to, Address) and not draft.reply and not isinstance(boxes, Receipt):
            messages += 1
            incoming += [(draft.to.kind, draft.to.name, box) for box in boxes]
    return Load(request.actor.agent, messages, tuple(incoming))


def _schemas(request: SendRequest, directory: _Directory) -> dict[str, str]:
    """Return the schemas of a request by type."""
    found = {draft.type: directory.types.get(draft.type) for draft in request.drafts}
    return {type: schema for type, schema in found.items() if schema is not None}


def _sent_before(
    request: SendRequest, draft: Draft, boxes: list[int], directory: _Directory, index: int
) -> Outcome[Receipt] | None:
    """Return the receipt of an earlier send under the same id, or a conflict; None for a new id."""
    assert draft.message_id is not None  # noqa: S101 - asked only for those that have one
    if directory.new.get(draft.message_id, request) is not request:
        # Run by itself, the later request finds the row of the earlier one.
        raise CannotBatch
    sent = directory.sent.get(draft.message_id)
    if sent is not None:
        differs = _difference(draft, boxes, sent[0])
        if differs is None:
            held = any(copy.held for copy in sent)
            reason = hold_reason(draft.correlation) if held else None
            return Receipt(sent[0].id, draft.message_id, len(sent), duplicate=True, held=held, hold_reason=reason)
        return MessageIdConflict(message_id=draft.message_id, differs=differs, item=index)
    if draft.message_id in directory.new:
        return MessageIdConflict(message_id=draft.message_id, differs="position in the same list", item=index)
    return None


def _boxes(draft: Draft, directory: _Directory) -> list[int] | None:
    to = draft.to
    if isinstance(to, int):
        return [to]
    if to.kind == "agent" and (reader := directory.agents.get(to.name)) is not None:
        return [reader.mailbox]
    if to.kind in {"agent", "pool"}:
        # No agent has the name of an operator.
        box = (directory.pools if to.kind == "pool" else directory.operators).get(to.name)
        return None if box is None else [box]
    if to.kind == "task":
        task = directory.tasks.get(to.name)
        return None if task is None else [] if task.mailbox is None else [task.mailbox]
    return directory.topics.get(to.name)


def _difference(draft: Draft, boxes: Sequence[int], sent: _Sent) -> str | None:
    """Return the part of the content in which the first message of this id differs, or None.

    Headers are not compared: a retry may have another trace context. The subscribers of a topic may have changed.
    """
    if (sent.topic != draft.topic) if draft.topic or sent.topic else (sent.mailbox not in boxes):
        return "recipient"
    if sent.type != draft.type:
        return "type"
    if sent.payload != draft.payload[0] and canonical(sent.payload) != canonical(draft.payload[0]):
        return "payload"
    return None if sent.correlation == draft.correlation else "correlation"


def _channel(draft: Draft, box: int) -> str:
    if isinstance(draft.to, int) and draft.correlation is not None:
        return reply_channel(box, draft.correlation)
    return mailbox_channel(box)


class ReachQuery(msgspec.Struct, frozen=True):
    """A message that is sent now: its recipient, and its priority."""

    to: Address
    priority: int = 9


def reach(wanted: ReachQuery, now: Now) -> Op[Reach]:
    """Return when a recipient gets to see a message. Of several agents the one that is reached first counts; a pool or
    topic without any is reached when one is started. A person or a task declares nothing."""
    to = wanted.to
    if to.kind == "task" or _is_operator_address(to):
        return Reach("unknown")
    rows = yield Query("agent_reach", (to.kind, to.name))
    urgent = wanted.priority >= Priority.HIGH
    found = [_reach(row, urgent, now) for row in rows]
    return min(found, key=lambda one: _BEST.index(one.reach), default=Reach("when_started"))


def _reach(row: Row, urgent: bool, now: Now) -> Reach:
    agent, epoch, status, last_call, busy_until, waits, wakes = row
    live = status in ALIVE
    busy = live and busy_until is not None and busy_until > now.awake
    # A time after now belongs to an earlier boot.
    called = live and last_call is not None and last_call <= now.awake
    if not live:
        reach = "when_started"
    elif waits:
        reach = "now"
    elif wakes == "tool" and urgent and (busy or (called and now.awake - last_call < ACTIVE)):
        reach = "next_tool"
    else:
        reach = "unknown" if wakes is None else "next_turn"
    return Reach(
        reach, agent, epoch, status,
        now.wall - (now.awake - last_call) if called else None,
        now.wall + busy_until - now.awake if busy else None,
    )  # fmt: skip
