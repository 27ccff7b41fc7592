"""Drive an operation with scripted answers, and record its writes and wake-ups."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from agentbus.core.clock import Now
from agentbus.engine.queries import load
from agentbus.errors import AgentBusError
from agentbus.operations.protocol import (
    LIVE,
    Actor,
    Announce,
    CannotBatch,
    ExecuteMany,
    Gather,
    InsertNumbered,
    Op,
    Query,
    Row,
    Wake,
    WakeLater,
)
from agentbus.operations.rows import MessageRow

T = TypeVar("T")
Answer = tuple[str, Sequence[Row]]

SELDOM = {
    "agent_cut_off", "agent_suspects", "bus_quotas", "checkpoint_newest_within", "copy_position",
    "dependency_dependents", "dependency_missed",
    "mailbox_unsubscribed", "process_revive", "session_expected", "session_interrupt", "session_reclaim",
    "session_resume", "state_floors", "state_lengths", "task_held_by", "task_lapsed", "task_open_of_session",
    "task_running",
}  # fmt: skip
"""Questions whose answer is nothing, unless the script says otherwise; also those that write, and found nothing."""

NOW = Now(wall=1_000_000, awake=50_000, boot="boot-1")
A = Actor("a", 1)
B = Actor("b", 1)


@dataclass
class Played(Generic[T]):
    """The result of an operation and the queries that it asked."""

    outcomes: T
    asked: list[tuple[str, Row]] = field(default_factory=list)
    statements: list[tuple[str, Row]] = field(default_factory=list)
    woken: list[str] = field(default_factory=list)
    again: list[str] = field(default_factory=list)
    announced: list[str] = field(default_factory=list)

    def written(self, name: str) -> list[Row]:
        """The parameters of every execution of one writing query."""
        return [parameters for query, parameters in self.statements if query == name]

    @property
    def wrote(self) -> list[str]:
        """The names of the writing queries, each once, in the order of their first use."""
        return list(dict.fromkeys(name for name, _ in self.statements))

    def parameters(self, name: str) -> Row:
        """Return the parameters of the one query of this name."""
        (found,) = (parameters for query, parameters in self.asked if query == name)
        return found

    def ids(self, name: str) -> list[int]:
        """The message ids that a writing query was given: in a list of its own, or as the last parameter of a row."""
        found: list[int] = []
        for parameters in self.written(name):
            lists = [value for value in parameters if isinstance(value, list)]
            found += lists[0] if lists else [parameters[-1]]
        return sorted(found)


def play(operation: Op[T], *answers: Answer) -> Played[T]:
    """Run an operation to its end.

    Every question must be in the script and every answer must be used; answers of one name are given in their order.
    A statement that gives no rows back needs no answer, nor does a question of ``SELDOM``.
    """
    played: Played[Any] = Played(None)
    left = list(answers)
    played.outcomes = _run(operation, played, left)
    assert not left, f"never asked for: {[name for name, _ in left]}"
    return played


def undone(operation: Op[Any], *answers: Answer) -> Played[AgentBusError | CannotBatch]:
    """Run an operation that gives up: its outcome is what it raised, for the driver to undo what it wrote."""
    played: Played[Any] = Played(None)
    left = list(answers)
    try:
        outcomes = _run(operation, played, left)
    except (AgentBusError, CannotBatch) as error:
        played.outcomes = error
        assert not left, f"never asked for: {[name for name, _ in left]}"
        return played
    raise AssertionError(f"it did not give up, but answered {outcomes}")


def _run(operation: Op[Any], played: Played[Any], left: list[Answer]) -> Any:
    try:
        step = next(operation)
        while True:
            if isinstance(step, Gather):
                step = operation.send([_answer(query, played, left) for query in step.queries])  # type: ignore[misc]
            elif isinstance(step, InsertNumbered):
                taken = Query("counter_take", (step.counter, len(step.rows)))
                ((last,),) = _answer(taken, played, left)
                first = last - len(step.rows) + 1
                _answer(ExecuteMany(step.name, [(id, *row) for id, row in enumerate(step.rows, first)]), played, left)
                step = operation.send([(first,)])
            else:
                step = operation.send(_answer(step, played, left))
    except StopIteration as stop:
        return stop.value


def _answer(
    step: Query | ExecuteMany | Wake | WakeLater | Announce, played: Played[Any], left: list[Answer]
) -> list[Row]:
    if isinstance(step, WakeLater):
        played.again += step.channels
        return []
    if isinstance(step, Wake):
        # Every message that is sent rings the channel of the live feed too.
        played.woken += [channel for channel in step.channels if channel != LIVE]
        return []
    if isinstance(step, Announce):
        played.announced.append(step.channel)
        return []
    text = load("sqlite")[step.name]
    writes = not text.startswith(("SELECT", "WITH"))
    for parameters in step.rows if isinstance(step, ExecuteMany) else [step.parameters]:
        wanted = max((int(number) for number in re.findall(r"[?$](\d+)", text)), default=0)
        assert len(parameters) == wanted, f"{step.name} takes {wanted} parameters, is given {parameters}"
    if isinstance(step, ExecuteMany):
        assert writes, f"{step.name} only reads; Each gives nothing back"
        played.statements += [(step.name, tuple(row)) for row in step.rows]
        return []
    (played.statements if writes else played.asked).append((step.name, step.parameters))
    for position, (name, answer) in enumerate(left):
        if name == step.name:
            del left[position]
            return list(answer)
    if step.name in SELDOM:
        return []
    assert writes, f"asked for {step.name} {step.parameters}, which is not in the script"
    assert "RETURNING" not in text, f"{step.name} gives rows back, which are not in the script"
    return []


def errors(outcomes: Sequence[object]) -> list[AgentBusError]:
    return [outcome for outcome in outcomes if isinstance(outcome, AgentBusError)]


# Rows as the queries give them


def standing(agent: str = "a", status: str = "running", epoch: int = 1, mailbox: int = 10, replies: int = 11) -> Row:
    """A row of agent_statuses."""
    return agent, status, epoch, mailbox, replies


ENDED = ("completed", "failed", "stopped")

ALIVE: Answer = ("agent_statuses", [standing("a"), standing("b", mailbox=20, replies=21)])
"""Both a and b may act."""


def ended(process: int, status: str = "dead", boot: str = NOW.boot, pid: int = 41, beat: int = 40_000) -> Row:
    """A row of process_end."""
    return process, status, boot, pid, beat


def silence(
    agent: str = "a", process: int | None = 3, last_call: int = 30_000, busy_until: int | None = None, progress: int = 0
) -> Row:
    """A row of agent_of_processes, or of agent_of_status."""
    return agent, process, last_call, busy_until, progress


def held(
    id: int,
    lease: int = 1,
    status: str = "leased",
    holder: str | None = "a",
    attempts: int = 1,
    max_attempts: int = 5,
    mailbox: int = 10,
    message_id: str | None = None,
    correlation: str | None = None,
    reply_to: int | None = None,
    expires: int | None = None,
) -> Row:
    """A row of message_held."""
    return (
        id, lease, status, holder, attempts, max_attempts, mailbox, "note", message_id, correlation, reply_to, "s-1",
        expires,
    )  # fmt: skip


def settled(*messages: Row) -> Answer:
    """Return the answer of message_ack to these rows of message_held: those that were leased, with their holders."""
    return "message_ack", [(id, lease, holder) for id, lease, status, holder, *_ in messages if status == "leased"]


def row(id: int, priority: int = 5, mailbox: int = 10, attempts: int = 0, lease: int = 0) -> Row:
    """A row of message_rows."""
    given: dict[str, Any] = {
        "id": id, "sender": "b", "type": "note", "payload": "null", "checksum": 0, "priority": priority,
        "attempts": attempts, "lease": lease, "created": 900_000, "mailbox": mailbox,
    }  # fmt: skip
    return tuple(given.get(column) for column in MessageRow.__struct_fields__)
