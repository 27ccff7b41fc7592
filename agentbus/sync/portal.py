"""An event loop on a thread of its own, on which other threads run the calls of the asynchronous API.

The loop runs while its callers compute: it sends the heartbeats, renews the leases, and answers any number of threads.
Their calls are served in the order in which they arrive, and every object of the asynchronous API is touched by this
one thread only.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import math
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, suppress
from contextvars import copy_context
from typing import Any, Generic, ParamSpec, TypeVar

from agentbus.core.cancellation import GRACE
from agentbus.errors import BusClosed, BusForked, Misuse, NotPicklable

P = ParamSpec("P")
T = TypeVar("T")

log = logging.getLogger("agentbus")

_NOTHING: Any = object()
_LONGEST_SLEEP = 0.5
"""Seconds after which a waiting main thread wakes for the handlers of signals."""
_open: set[Portal] = set()
"""The portals that the end of the interpreter closes."""


class _Call(Generic[T]):
    """A call that a thread waits for."""

    def __init__(self, work: Callable[[], Awaitable[T]]) -> None:
        self.result: T = _NOTHING
        self.error: BaseException | None = None
        self._work = work
        # A plain lock: an exception of a signal handler in threading.Event leaves it unusable.
        self._waiting = threading.Lock()
        self._waiting.acquire()
        self._ended = False
        self._task: asyncio.Task[None] | None = None
        self._cancelled = False

    # On the loop

    def start(self) -> None:
        if self._cancelled:
            self.end()
        else:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def cancel(self) -> None:
        self._cancelled = True
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        try:
            self.result = await self._work()
        except BaseException as error:
            # SystemExit and KeyboardInterrupt too: leaving the task they would end the loop of all callers.
            self.error = error
        finally:
            self.end()

    def end(self) -> None:
        if not self._ended:
            self._ended = True
            self._waiting.release()

    # On the thread of the caller

    def wait(self, seconds: float = math.inf) -> None:
        """Wait for the end of the call, at most ``seconds``.

        A signal may be delivered to another thread, or just before this one sleeps. Its handler runs on the main
        thread, as soon as that runs Python code, so the main thread must not sleep for long.
        """
        longest = _LONGEST_SLEEP if threading.current_thread() is threading.main_thread() else threading.TIMEOUT_MAX
        while not self._ended and seconds > 0 and not self._waiting.acquire(timeout=min(seconds, longest)):
            seconds -= longest

    def outcome(self) -> T:
        error, self.error = self.error, None
        try:
            closed = isinstance(error, asyncio.CancelledError) or (error is None and self.result is _NOTHING)
            if closed and not self._cancelled:
                # The loop was stopped.
                raise BusClosed
            if error is not None:
                raise error
            return self.result
        finally:
            # Break the reference cycle: the traceback refers to this frame.
            del error


class Portal:
    """The thread with its event loop. ``start`` it, then ``call`` from any thread, then ``stop`` it."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._stopping: asyncio.Event | None = None
        self._calls: set[_Call[Any]] = set()
        """The calls that threads wait for."""
        self._closers: list[Callable[[], object]] = []
        self.closing = threading.RLock()
        """Held by the thread that closes the bus."""

    def __reduce__(self) -> tuple[Any, ...]:
        raise NotPicklable

    def start(self, close: Callable[[], object]) -> None:
        """Start the loop. ``close`` is called at the end of the interpreter, if the portal was not stopped before."""
        self._pid = os.getpid()
        ready = threading.Event()
        # A daemon, closed by the exit handler: a bus that was never closed must not keep the interpreter from exiting.
        self._thread = threading.Thread(target=self._serve, args=(ready,), name="agentbus-sync", daemon=True)
        self._thread.start()
        ready.wait()
        self._closers.append(close)
        _open.add(self)

    def stop(self) -> None:
        """Stop the loop, and wait for its thread. A forked child leaves both to its parent."""
        _open.discard(self)
        if self._pid != os.getpid():
            return
        loop, thread, stopping = self._loop, self._thread, self._stopping
        if loop is not None and thread is not None and stopping is not None:
            with suppress(RuntimeError):  # it has ended
                loop.call_soon_threadsafe(stopping.set)
            thread.join()

    def is_open(self) -> bool:
        """Return True between ``start`` and ``stop``."""
        return self._loop is not None

    def check(self) -> asyncio.AbstractEventLoop:
        """Return the loop; raise Misuse where no call is possible: after a fork, on the loop itself, when closed."""
        if self._pid != os.getpid():
            raise BusForked(parent=self._pid)
        loop = self._loop
        if loop is None or self._thread is None:
            raise BusClosed
        if threading.get_ident() == self._thread.ident:
            raise Misuse(
                reason="a synchronous bus was called on its own event loop, which the call would block: call it in a "
                "plain function, or use agentbus.connect() in coroutines"
            )
        return loop

    def call(self, work: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a coroutine function on the loop, in the context of the caller, and return its result.

        An exception that a signal handler raises meanwhile, such as KeyboardInterrupt, cancels the call.
        """
        return self.call_releasing(None, work, *args, **kwargs)

    def call_releasing(
        self,
        release: Callable[[T], Awaitable[object]] | None,
        work: Callable[P, Awaitable[T]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Do as ``call`` does. ``release`` gets a result that an interrupted caller did not receive."""
        loop = self.check()
        call = _Call(lambda: work(*args, **kwargs))
        # Before it is scheduled: the end of the loop ends every call that is known.
        self._calls.add(call)
        try:
            self._run(loop, call, release)
        finally:
            self._calls.discard(call)
        return call.outcome()

    @staticmethod
    def _run(loop: asyncio.AbstractEventLoop, call: _Call[T], release: Callable[[T], Awaitable[object]] | None) -> None:
        context = copy_context()
        try:
            # In the same block as the wait: a call that has started must not outlive an interruption.
            try:
                loop.call_soon_threadsafe(call.start, context=context)
            except RuntimeError:
                raise BusClosed from None
            call.wait()
        except BaseException:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(call.cancel)
                call.wait(GRACE)
                if release is not None and call.error is None and call.result is not _NOTHING:
                    result = call.result
                    loop.call_soon_threadsafe(_Call(lambda: release(result)).start)
            raise

    def finish(self, work: Callable[[], Awaitable[object]]) -> None:
        """Run the last call of an object, unless the bus is closed. The garbage collector may call this on any thread,
        also on that of the loop, which does not wait."""
        loop, thread = self._loop, self._thread
        if loop is not None and thread is not None and threading.get_ident() == thread.ident:
            loop.call_soon(_Call(work).start)
            return
        with suppress(BusClosed, BusForked):
            self.call(work)

    # On the thread

    def _serve(self, ready: threading.Event) -> None:
        try:
            asyncio.run(self._main(ready))
        finally:
            self._loop = None
            for call in tuple(self._calls):
                call.end()
            ready.set()

    async def _main(self, ready: threading.Event) -> None:
        self._stopping = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        ready.set()
        await self._stopping.wait()


def _forget_in_child() -> None:
    """Leave the loops to the parent process: their threads do not exist here."""
    for portal in tuple(_open):
        with suppress(Exception):
            for task in asyncio.all_tasks(portal._loop):
                # Otherwise each would be reported as lost when this process ends.
                task._log_destroy_pending = False  # type: ignore[attr-defined]
    _open.clear()


os.register_at_fork(after_in_child=_forget_in_child)


@atexit.register
def _close_all() -> None:
    for portal in tuple(_open):
        if portal._pid == os.getpid():
            for close in portal._closers:
                with suppress(Exception):
                    close()


def iterate(portal: Portal, items: AsyncIterator[T], release: Callable[[object], Awaitable[object]]) -> Iterator[T]:
    """Iterate over an asynchronous iterator; leaving the loop closes it. ``release`` gets an item that an interrupted
    caller did not receive."""

    async def step() -> tuple[T] | None:
        try:
            return (await anext(items),)
        except StopAsyncIteration:
            return None

    async def close() -> None:
        closing = getattr(items, "aclose", None)
        if closing is not None:
            await closing()

    async def release_step(found: tuple[T] | None) -> None:
        if found is not None:
            await release(found[0])

    try:
        while (found := portal.call_releasing(release_step, step)) is not None:
            yield found[0]
    finally:
        portal.finish(close)


class OpenBlock(Generic[T]):
    """An asynchronous block that a thread has entered. One task of the loop enters and leaves it, as it would be with
    ``async with``: its cancel scopes belong to this task."""

    def __init__(self, portal: Portal, context: AbstractAsyncContextManager[T]) -> None:
        self._portal = portal
        self._context = context
        self._leaving: asyncio.Future[BaseException | None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._raised: BaseException | None = None
        self._suppressed = False

    def enter(self) -> T:
        return self._portal.call_releasing(lambda _: self._leave(KeyboardInterrupt()), self._enter)

    def exit(self, error: BaseException | None) -> bool:
        """Leave the block, and return True if it suppresses the error. An error of the block itself is raised, unless
        the caller has one already."""
        try:
            self._portal.call(self._leave, error)
        except (BusClosed, BusForked) as closed:
            if error is None:
                raise
            log.warning("a block could not be left: %s", closed)
            return False
        raised, self._raised = self._raised, None
        try:
            if raised is None or raised is error:
                return self._suppressed
            if isinstance(raised, asyncio.CancelledError):
                raised = BusClosed()
            if error is None or isinstance(error, Misuse):
                # A unit refuses calls once the lease of its message is lost: that is the cause.
                raise raised
            # The exception of the block matters more.
            log.warning("a block ended with an error: %s", raised)
            return False
        finally:
            # Break the reference cycle: the traceback refers to this frame.
            del raised, error

    # On the loop

    async def _enter(self) -> T:
        loop = asyncio.get_running_loop()
        self._leaving = loop.create_future()
        entered: asyncio.Future[T] = loop.create_future()
        self._task = loop.create_task(self._run(entered))
        try:
            return await asyncio.shield(entered)
        except asyncio.CancelledError:
            entered.cancel()
            self._task.cancel()
            await asyncio.wait([self._task])
            raise

    async def _run(self, entered: asyncio.Future[T]) -> None:
        try:
            value = await self._context.__aenter__()
        except BaseException as problem:
            if not entered.done():
                entered.set_exception(problem)
            return
        if not entered.done():
            entered.set_result(value)
        assert self._leaving is not None  # noqa: S101 - set on entering
        cancelled = None
        try:
            error = await self._leaving
        except asyncio.CancelledError as cancellation:
            # The block ends itself, as the block of a message does whose lease is lost.
            error = cancelled = cancellation
        try:
            self._suppressed = bool(
                await self._context.__aexit__(
                    None if error is None else type(error), error, None if error is None else error.__traceback__
                )
            )
        except BaseException as problem:
            self._raised = problem
        else:
            if cancelled is not None:
                self._raised = cancelled

    async def _leave(self, error: BaseException | None) -> None:
        if self._leaving is None or self._task is None:
            raise Misuse(reason="the block was not entered")
        if not self._leaving.done():
            self._leaving.set_result(error)
        await asyncio.wait([self._task])
