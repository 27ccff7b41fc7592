"""The rules of the bus, written once, without I/O.

An operation is a generator over a list of requests: it yields statements, receives rows, and returns one outcome
per request. Whoever drives it (the group-commit writer, the blocking driver, PostgreSQL) decides how a statement
reaches a database; the operation decides what holds. Requests of many callers are handed over together, so that
one set-based statement serves them all.

What a driver may know of a request: ``weight``, the bytes it writes, and ``touches``, about how many rows; one that
does not say is not run where it would hold others up.

An outcome that is an error means that nothing was written for that request. An operation that has to give up after
it wrote something raises: the driver then undoes it and runs every request by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from functools import lru_cache, wraps
from typing import Any, Generic, TypeAlias, TypeVar, cast

import msgspec

from agentbus.clock import Now
from agentbus.errors import AgentBusError

Row: TypeAlias = tuple[Any, ...]
Rows: TypeAlias = list[Row]
R = TypeVar("R")
T = TypeVar("T")


BUS = "(agentbus)"
"""The sender of what the bus itself writes; no agent can have this name."""


class Query(msgspec.Struct, frozen=True):
    """Run the named query once. A parameter that is a list reaches SQL as a set of rows."""

    name: str
    parameters: tuple[Any, ...] = ()


class Several(msgspec.Struct, frozen=True):
    """Ask these, none of which needs another's answer: where an answer takes a round trip, all may come with one."""

    queries: tuple[Query, ...]


class Each(msgspec.Struct, frozen=True):
    """Run the named query once for every row of parameters; nothing comes back."""

    name: str
    rows: Sequence[Row]


class Numbered(msgspec.Struct, frozen=True):
    """The same for a query that inserts, whose first parameter is the next number of a counter, which the rows do not
    have yet; what comes back is the first of these numbers, the others follow it."""

    name: str
    counter: str
    rows: Sequence[Row]


class Wake(msgspec.Struct, frozen=True):
    """Once this is committed, wake one listener and all watchers of each channel named; a channel may be named several
    times."""

    channels: Sequence[str]


class Again(msgspec.Struct, frozen=True):
    """Shortly after this is committed, wake listeners of these channels once more, here: what they came for was in the
    hands of another transaction, which may put it back."""

    channels: Sequence[str]


Op: TypeAlias = Generator[Query | Several | Each | Numbered | Wake | Again, Rows, T]
Outcome: TypeAlias = T | AgentBusError
Run: TypeAlias = Callable[[Sequence[R], Now], Op[list[Outcome[T]]]]


class Operation(Generic[R, T]):
    """A rule with what a driver must know of it.

    ``durable``: its commit is fsynced before the caller hears of it. ``last``: in a batch it runs after the others,
    so that a claim sees what was sent beside it. ``beside``: on an engine with several transactions at once it may run
    beside others that may too; all that it relies on is either locked by its own queries, or changed only by operations
    that run alone. ``grows``: it stores what its caller gives it, and so gets none of the room that is kept for
    cleaning up a full disk (a request may know better, by a property of this name). ``single``: if it asks ``Several``
    and then writes one ``Numbered`` row, it asks for and writes nothing else; that row may commit by itself.
    """

    __slots__ = ("beside", "durable", "grows", "last", "name", "run", "single")

    def __init__(
        self,
        run: Run[R, T],
        *,
        durable: bool,
        last: bool = False,
        beside: bool = False,
        grows: bool = False,
        single: bool = False,
    ) -> None:
        self.name = run.__name__
        self.run = run
        self.durable = durable
        self.last = last
        self.beside = beside
        self.grows = grows
        self.single = single

    def __repr__(self) -> str:
        return f"<operation {self.name}>"


def operation(
    *, durable: bool, last: bool = False, beside: bool = False, grows: bool = False, single: bool = False
) -> Callable[[Run[R, T]], Operation[R, T]]:
    """Make an operation of a generator function."""
    return lambda run: Operation(run, durable=durable, last=last, beside=beside, grows=grows, single=single)


def one_by_one(
    *, durable: bool, beside: bool = False, grows: bool = False
) -> Callable[[Callable[[R, Now], Op[Outcome[T]]]], Operation[R, T]]:
    """Make an operation of a generator function for one request. Such requests share no statements: each is answered
    after what the one before it has changed."""

    def made(answer: Callable[[R, Now], Op[Outcome[T]]]) -> Operation[R, T]:
        @wraps(answer)
        def run(requests: Sequence[R], now: Now) -> Op[list[Outcome[T]]]:
            outcomes: list[Outcome[T]] = []
            for request in requests:
                outcomes.append((yield from answer(request, now)))
            return outcomes

        return Operation(run, durable=durable, beside=beside, grows=grows)

    return made


class Actor(msgspec.Struct, frozen=True):
    """Who calls: an agent in one of its lives."""

    agent: str
    epoch: int


class Part(msgspec.Struct, frozen=True):
    """One operation of a unit, with its request."""

    operation: Operation[Any, Any]
    request: Any


class UnitRequest(msgspec.Struct, frozen=True):
    """Operations that commit together or not at all."""

    parts: tuple[Part, ...]

    @property
    def durable(self) -> bool:
        return any(part.operation.durable for part in self.parts)

    @property
    def beside(self) -> bool:
        return all(part.operation.beside for part in self.parts)

    @property
    def grows(self) -> bool:
        return any(getattr(part.request, "grows", part.operation.grows) for part in self.parts)

    @property
    def weight(self) -> int:
        return sum(getattr(part.request, "weight", 0) for part in self.parts)


@operation(durable=True)
def unit(requests: Sequence[UnitRequest], now: Now) -> Op[list[Outcome[list[Any]]]]:
    """Run each unit's parts in order; the first that fails undoes the whole unit.

    Units that wait together share their statements, as long as none of them fails.
    """
    if len(requests) == 1:
        return [(yield from _one_unit(requests[0], now))]
    parts: dict[Operation[Any, Any], list[Any]] = {}
    for request in requests:
        for part in request.parts:
            parts.setdefault(part.operation, []).append(part.request)
    results: dict[Operation[Any, Any], Iterator[Any]] = {}
    for operation, alike in parts.items():
        outcomes = yield from operation.run(alike, now)
        if any(isinstance(outcome, AgentBusError) for outcome in outcomes):
            raise Separately
        results[operation] = iter(outcomes)
    return [[next(results[part.operation]) for part in request.parts] for request in requests]


def _one_unit(request: UnitRequest, now: Now) -> Op[Outcome[list[Any]]]:
    results: list[Any] = []
    for part in request.parts:
        (outcome,) = yield from part.operation.run([part.request], now)
        if isinstance(outcome, AgentBusError):
            if results:
                raise outcome
            return outcome
        results.append(outcome)
    return results


def several(*queries: Query) -> Op[list[Rows]]:
    """The rows of each of these questions. For operations; what only reads asks one by one."""
    if len(queries) == 1:
        return [(yield queries[0])]
    return cast("list[Rows]", (yield Several(queries)))


def carry_out(operation: Operation[R, T], request: R, now: Now) -> Op[T]:
    """One request as a step of something larger, which its error undoes."""
    (outcome,) = yield from operation.run([request], now)
    if isinstance(outcome, AgentBusError):
        raise outcome
    return outcome


@lru_cache(4096)
def mailbox_channel(mailbox: int) -> str:
    return f"mailbox/{mailbox}"


def reply_channel(mailbox: int, correlation: str) -> str:
    """Wakes only the one that asked. Processes listen to the part before the ``#``."""
    return f"mailbox/{mailbox}#{correlation}"


class Separately(Exception):
    """These requests cannot be run together; the driver then runs each by itself."""
