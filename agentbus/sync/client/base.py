"""The base classes of the synchronous API. Each class wraps an object of the asynchronous API, whose methods it calls
on the event loop of the bus.

The other modules of this package are written by ``make sync`` from the asynchronous API, which alone is written by
hand.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NoReturn, ParamSpec, TypeVar, cast

from agentbus import core
from agentbus.api.block import Block, is_public
from agentbus.api.bus import Bus
from agentbus.api.message import Message, check_handler
from agentbus.api.tasks.items import WorkItem
from agentbus.errors import BusClosed, BusForked, Misuse
from agentbus.sync.portal import OpenBlock, Portal, iterate

if TYPE_CHECKING:
    from agentbus.core.trace_context import Span

I_co = TypeVar("I_co", covariant=True)
P = ParamSpec("P")
T = TypeVar("T")
W = TypeVar("W", bound="Wrapper[Any]")

log = logging.getLogger("agentbus")

_WRAPPERS: dict[type[Any], type[Wrapper[Any]]] = {}


class Wrapper(Generic[I_co]):
    """An object of the asynchronous API, used without an event loop."""

    __slots__ = ("_inner", "_portal")
    _wrapped: ClassVar[type[Any] | None] = None

    _inner: I_co

    def __init_subclass__(cls, *, wraps: type[Any] | None = None) -> None:
        super().__init_subclass__()
        if wraps is not None:
            cls._wrapped = wraps
            _WRAPPERS[wraps] = cls

    def __init__(self, portal: Portal, inner: I_co) -> None:
        self._portal = portal
        self._inner = inner

    def __repr__(self) -> str:
        return repr(self._inner)

    def __str__(self) -> str:
        return str(self._inner)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Wrapper) and self._inner is other._inner

    def __hash__(self) -> int:
        return hash(self._inner)

    def _wrap(self, value: Any) -> Any:
        """Return a value as callers see it."""
        return wrap(self._portal, value)

    def _call(self, work: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        return self._portal.call(work, *args, **kwargs)

    def _start(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call on the loop what starts a task there and does not wait for it."""

        async def start() -> T:
            return work(*args, **kwargs)

        return self._portal.call(start)

    def _call_wrapping(self, work: Callable[P, Awaitable[object]], *args: P.args, **kwargs: P.kwargs) -> Any:
        return self._wrap(self._portal.call_releasing(_release, work, *args, **kwargs))

    def _iterate(self, make: Callable[P, AsyncIterator[object]], *args: P.args, **kwargs: P.kwargs) -> Iterator[Any]:
        self._portal.check()
        return map(self._wrap, iterate(self._portal, make(*args, **kwargs), _release))

    def _block(
        self, make: Callable[P, AbstractAsyncContextManager[object]], *args: P.args, **kwargs: P.kwargs
    ) -> SyncBlock[Any]:
        self._portal.check()
        return SyncBlock(self._portal, make(*args, **kwargs))

    def _handler(self, handler: Callable[[Any, Any], object]) -> Callable[[Any, Any], object]:
        """Return a handler of the asynchronous API, which calls one of the synchronous API on a thread."""
        check_handler(handler)
        return lambda message, unit: handler(self._wrap(message), self._wrap(unit))


def wrap(portal: Portal, value: Any) -> Any:
    """Return a value of the asynchronous API as the synchronous API returns it; so the items of a list."""
    kind = _WRAPPERS.get(type(value))
    if kind is not None:
        return kind(portal, value)
    if type(value) is list and value and type(value[0]) in _WRAPPERS:
        return [wrap(portal, one) for one in value]
    return value


def unwrap(value: Any) -> Any:
    """Return an argument as the asynchronous API takes it."""
    return value._inner if isinstance(value, Wrapper) else value


def unwrap_all(values: Iterable[Any]) -> list[Any]:
    return [unwrap(value) for value in values]


async def _release(result: object) -> None:
    """Release the messages and work items that an interrupted caller did not receive."""
    for one in result if isinstance(result, list) else [result]:
        if isinstance(one, WorkItem):
            await one._release_if_new()
        elif isinstance(one, Message) and not one._settled:
            await one._release()


class SyncBlock(AbstractContextManager[T], Generic[T]):
    """A block that is entered with ``with``, such as ``bus.agent(…)``."""

    def __init__(self, portal: Portal, context: AbstractAsyncContextManager[object]) -> None:
        self._portal = portal
        self._context = context
        self._opened: OpenBlock[Any] | None = None

    def __enter__(self) -> T:
        self._opened = OpenBlock(self._portal, self._context)
        return cast(T, wrap(self._portal, self._opened.enter()))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        opened, self._opened = self._opened, None
        assert opened is not None  # noqa: S101 - set on entering
        return opened.exit(error)

    # A type checker rejects these uses, and must not find the methods.
    if not TYPE_CHECKING:

        def __await__(self) -> NoReturn:
            raise Misuse(reason=f"{self._form()}: the synchronous API is not awaited")

        def __aenter__(self) -> NoReturn:
            raise Misuse(reason=f"{self._form()}: the synchronous API needs no `async`")

        def __aexit__(self, *error: object) -> None: ...

        def __getattr__(self, name: str) -> NoReturn:
            if not isinstance(self._context, Block) or not is_public(self._context._kind, name):
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            raise Misuse(reason=f"{self._form()} and use `{self._context._name}.{name}` inside")

    def _form(self) -> str:
        if not isinstance(self._context, Block):
            return "write `with …:`"
        return f"{self._context._call} is a block: write `with {self._context._call} as {self._context._name}:`"


class BlockWrapper(Wrapper[I_co], Generic[I_co, T]):
    """A wrapper that is itself a block: ``with message as unit``, ``with agent.unit() as unit``."""

    __slots__ = ("_opened", "_shared")

    def __enter__(self) -> T:
        opened: OpenBlock[Any] = OpenBlock(self._portal, cast(Any, self._inner))
        value = opened.enter()
        self._opened = opened
        # The loop has entered the span of the block; what this thread does belongs to it too.
        span: Span | None = None if core.tracer is None else getattr(self._inner, "_span", None)
        self._shared = None if span is None else span.share()
        if self._shared is not None:
            self._shared.begin()
        return cast(T, self if value is self._inner else self._wrap(value))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        opened: OpenBlock[Any] = self._opened
        del self._opened
        if self._shared is not None:
            self._shared.end()
        return opened.exit(error)


class BusBase(Wrapper[Bus]):
    """Opening and closing of a bus: the thread with its event loop lives in between."""

    __slots__ = ()

    def __init__(self, inner: Bus) -> None:
        super().__init__(Portal(), inner)

    def open(self: W) -> W:
        """Open the bus, and return it. ``with agentbus.sync.connect() as bus`` does this; in a notebook, whose cells
        cannot share a block, open it in one cell and close it in another.

        >>> bus = agentbus.sync.connect().open()                                      # doctest: +SKIP
        """
        bus = self._inner
        if bus._opened:
            raise Misuse(reason="this bus was opened before; connect() again")
        self._portal.start(self.close)  # type: ignore[attr-defined]
        try:
            self._portal.call(bus.__aenter__)
        except BaseException:
            self._portal.stop()
            raise
        return self

    def close(self) -> None:
        """Close the bus: its agents that have not ended have stopped. Closing it again does nothing. A bus that is
        never closed is closed at the end of the interpreter.

        >>> bus.close()                                                               # doctest: +SKIP
        """
        self._close(None)

    def _close(self, error: BaseException | None) -> None:
        if not self._portal.is_open():
            return
        try:
            self._portal.check()
        except BusClosed:
            return
        except BusForked as forked:
            # Only the process that opened the bus can close it.
            self._portal.stop()
            if error is None:
                raise
            log.warning("the bus was not closed: %s", forked)
            return
        # Another thread that closes the bus must not stop the loop meanwhile.
        with self._portal.closing:
            if not self._portal.is_open():
                return
            try:
                self._portal.call(self._inner.__aexit__, None if error is None else type(error), error, None)
            finally:
                self._portal.stop()

    def __enter__(self: W) -> W:
        return self.open()  # type: ignore[attr-defined, no-any-return]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close(error)

    # A type checker rejects these uses, and must not find the methods.
    if not TYPE_CHECKING:

        def __await__(self) -> NoReturn:
            raise Misuse(reason="agentbus.sync.connect() is not awaited: write `with agentbus.sync.connect() as bus:`")

        def __aenter__(self) -> NoReturn:
            raise Misuse(
                reason="agentbus.sync.connect() is for code without an event loop: write "
                "`with agentbus.sync.connect() as bus:`, or in coroutines `async with agentbus.connect() as bus:`"
            )

        def __aexit__(self, *error: object) -> None: ...


def run_alone(work: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a coroutine function that needs no bus."""
    portal = Portal()
    portal.start(portal.stop)
    try:
        return portal.call(work, *args, **kwargs)
    finally:
        portal.stop()
