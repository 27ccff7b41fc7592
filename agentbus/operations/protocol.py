"""Operations: the rules of the bus, without I/O.

An operation is a generator over a list of requests: it yields statements, receives rows, and returns one outcome
per request. The driver (the group-commit writer, the blocking engine, PostgreSQL) runs the statements. Requests of many
callers run together, so that one set-based statement serves them all.

A request may state its cost to the driver: ``data_size``, the bytes that it writes, and ``row_estimate``, about how
many rows it changes. A request that states neither does not run where it would delay others.

If an outcome is an error, nothing was written for that request. An operation that fails after a write raises: the
driver rolls it back and runs every request by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from functools import lru_cache, wraps
from typing import Any, Generic, TypeAlias, TypeVar, cast

import msgspec

from agentbus.core.clock import Now
from agentbus.core.codec import plain
from agentbus.errors import AgentBusError

Row: TypeAlias = tuple[Any, ...]
Rows: TypeAlias = list[Row]
R = TypeVar("R")
T = TypeVar("T")


BUS = "(agentbus)"
"""The sender of messages of the bus itself; no agent can have this name."""


class Query(msgspec.Struct, frozen=True):
    """Run the named query once. A parameter that is a list reaches SQL as a set of rows."""

    name: str
    parameters: tuple[Any, ...] = ()

    @property
    def key(self) -> Row:
        """Return a value that is equal for equal queries, and can be hashed."""
        return (self.name, *[tuple(item) if type(item) is list else item for item in self.parameters])

    def with_json_lists(self) -> list[Any]:
        """Return the parameters with lists as JSON text, for SQL that reads them with json_each."""
        return [plain(item) if type(item) is list else item for item in self.parameters]


class Gather(msgspec.Struct, frozen=True):
    """Run queries that do not depend on each other; a driver may use one round trip for all of them."""

    queries: tuple[Query, ...]


class ExecuteMany(msgspec.Struct, frozen=True):
    """Run the named query once for every row of parameters; it returns nothing."""

    name: str
    rows: Sequence[Row]


class InsertNumbered(msgspec.Struct, frozen=True):
    """Run the named INSERT for every row, with the next number of a counter as its first parameter, which the rows do
    not have. Returns the first number; the others follow it."""

    name: str
    counter: str
    rows: Sequence[Row]


class Wake(msgspec.Struct, frozen=True):
    """After the commit, wake one listener and all watchers of each channel. A channel may occur several times."""

    channels: Sequence[str]


class WakeLater(msgspec.Struct, frozen=True):
    """Shortly after the commit, wake the listeners of these channels in this process again: another transaction has
    locked what they wait for, and may release it."""

    channels: Sequence[str]


LIVE = "live"
"""The channel of changes of messages. A message that is sent rings it; ``Announce`` names others after a ``#``."""


class Announce(msgspec.Struct, frozen=True):
    """After the commit, name messages that changed to the processes that listen to ``LIVE``. While none does, the
    driver leaves it out, so that claims and acknowledgements ring no doorbell."""

    change: str
    ids: Sequence[int]

    @property
    def channel(self) -> str:
        """Return the channel with the change and the ids, consecutive ones as a range.

        >>> Announce("leased", [7, 8, 9, 12]).channel
        'live#leased 7-9,12'
        """
        parts: list[str] = []
        first = last = None
        for id in sorted(self.ids):
            if last is not None and id == last + 1:
                last = id
                continue
            if first is not None:
                parts.append(f"{first}" if first == last else f"{first}-{last}")
            first = last = id
        if first is not None:
            parts.append(f"{first}" if first == last else f"{first}-{last}")
        return f"{LIVE}#{self.change} {','.join(parts)}"


Op: TypeAlias = Generator[Query | Gather | ExecuteMany | InsertNumbered | Wake | WakeLater | Announce, Rows, T]
Outcome: TypeAlias = T | AgentBusError
Run: TypeAlias = Callable[[Sequence[R], Now], Op[list[Outcome[T]]]]
Shortcut: TypeAlias = Callable[[R, Now], Op[Outcome[T] | None]]


class Operation(Generic[R, T]):
    """A rule, and the properties that a driver depends on.

    ``durable``: the commit is fsynced before the caller gets its outcome. ``run_last``: it runs after the others of a
    batch, so that a claim finds messages sent in the same batch. ``concurrent``: on an engine with several
    transactions it may run together with other concurrent operations; its own queries lock everything it relies on, or
    only exclusive operations change it. ``stores_data``: it stores data of its caller, and therefore gets none of the
    space reserved for cleaning up a full disk (a request may override it by a property of this name).
    ``single_insert``: if it yields ``Gather`` and then one ``InsertNumbered`` row, it yields nothing else; that row
    may commit by itself. ``shortcut``: runs one request by lookups and then one statement, which writes all or nothing
    and may commit by itself; if it has written nothing, it may read more, or return None: the operation must run
    instead.
    """

    __slots__ = ("concurrent", "durable", "name", "run", "run_last", "shortcut", "single_insert", "stores_data")

    def __init__(
        self,
        run: Run[R, T],
        *,
        durable: bool,
        run_last: bool = False,
        concurrent: bool = False,
        stores_data: bool = False,
        single_insert: bool = False,
    ) -> None:
        self.name = run.__name__
        self.run = run
        self.durable = durable
        self.run_last = run_last
        self.concurrent = concurrent
        self.stores_data = stores_data
        self.single_insert = single_insert
        self.shortcut: Shortcut[R, T] | None = None

    def alone(self, shortcut: Shortcut[R, T]) -> Shortcut[R, T]:
        """Use a generator function as the shortcut of this operation."""
        self.shortcut = shortcut
        return shortcut

    def __repr__(self) -> str:
        return f"<operation {self.name}>"


def operation(
    *,
    durable: bool,
    run_last: bool = False,
    concurrent: bool = False,
    stores_data: bool = False,
    single_insert: bool = False,
) -> Callable[[Run[R, T]], Operation[R, T]]:
    """Make an operation of a generator function."""
    return lambda run: Operation(
        run,
        durable=durable,
        run_last=run_last,
        concurrent=concurrent,
        stores_data=stores_data,
        single_insert=single_insert,
    )


def single_operation(
    *, durable: bool, concurrent: bool = False, stores_data: bool = False
) -> Callable[[Callable[[R, Now], Op[Outcome[T]]]], Operation[R, T]]:
    """Make an operation of a generator function for one request. Its requests share no statements: each sees the
    changes of the one before it."""

    def made(answer: Callable[[R, Now], Op[Outcome[T]]]) -> Operation[R, T]:
        @wraps(answer)
        def run(requests: Sequence[R], now: Now) -> Op[list[Outcome[T]]]:
            outcomes: list[Outcome[T]] = []
            for request in requests:
                outcomes.append((yield from answer(request, now)))
            return outcomes

        return Operation(run, durable=durable, concurrent=concurrent, stores_data=stores_data)

    return made


class Actor(msgspec.Struct, frozen=True):
    """The caller: an agent and the epoch of its incarnation."""

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
    def concurrent(self) -> bool:
        return all(part.operation.concurrent for part in self.parts)

    @property
    def stores_data(self) -> bool:
        return any(getattr(part.request, "stores_data", part.operation.stores_data) for part in self.parts)

    @property
    def data_size(self) -> int:
        return sum(getattr(part.request, "data_size", 0) for part in self.parts)


@operation(durable=True)
def unit(requests: Sequence[UnitRequest], now: Now) -> Op[list[Outcome[list[Any]]]]:
    """Run the parts of each unit in order; the first that fails rolls back the unit.

    Units of one batch share their statements, as long as none of them fails.
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
            raise CannotBatch
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


def gather(*queries: Query) -> Op[list[Rows]]:
    """Return the rows of each query. For operations; a read-only question yields its queries one by one."""
    if len(queries) == 1:
        return [(yield queries[0])]
    return cast("list[Rows]", (yield Gather(queries)))


def run_one(operation: Operation[R, T], request: R, now: Now) -> Op[T]:
    """Run one request as a step of a larger operation, which its error rolls back."""
    (outcome,) = yield from operation.run([request], now)
    if isinstance(outcome, AgentBusError):
        raise outcome
    return outcome


@lru_cache(4096)
def mailbox_channel(mailbox: int) -> str:
    return f"mailbox/{mailbox}"


def reply_channel(mailbox: int, correlation: str) -> str:
    """Return the channel that wakes only the requester. Processes listen to the part before the ``#``."""
    return f"mailbox/{mailbox}#{correlation}"


def reach_channel(mailbox: int, epoch: int) -> str:
    """Return the channel that a process listens to while messages of this incarnation wake it. No call rings it: the
    listener itself is the declaration, and ends with its process."""
    return f"reach/{mailbox}/{epoch}"


SEEN = "seen"
"""The channel that is rung when messages are marked as seen."""


class CannotBatch(Exception):
    """These requests cannot run together; the driver runs each by itself."""


class Call(msgspec.Struct, eq=False):
    """One caller's request for one operation, and its outcome."""

    operation: Operation[Any, Any]
    request: Any
    durable: bool
    outcome: Any = None

    @property
    def concurrent(self) -> bool:
        """Return True if it may run concurrently with other transactions. The parts of a unit decide for the unit."""
        own: bool | None = getattr(self.request, "concurrent", None)
        return self.operation.concurrent if own is None else own

    @property
    def stores_data(self) -> bool:
        """Return True if it makes the store larger."""
        return bool(getattr(self.request, "stores_data", self.operation.stores_data))


def group_by_operation(calls: Sequence[Call]) -> list[tuple[Operation[Any, Any], list[Call]]]:
    """Return the calls of each operation together, in the order in which the operations run."""
    groups: dict[Operation[Any, Any], list[Call]] = {}
    for call in calls:
        groups.setdefault(call.operation, []).append(call)
    return sorted(groups.items(), key=lambda group: group[0].run_last)
