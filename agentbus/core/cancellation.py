"""Cancellation and user code: shielded writes, work on threads, and calls of functions that users supply.

A write on the way out of a block is shielded from cancellation, but bounded in time so that it does not delay the exit.

User code that is not a coroutine function may block, so it runs on a thread. An exception that it raises is a failure
of that code, never the end of its caller: asyncio ends the event loop when SystemExit or KeyboardInterrupt leaves a
task, so the innermost call catches both. Only an exception that a signal handler raised in user code passes: Ctrl-C, or
the SystemExit of a SIGTERM handler.
"""

from __future__ import annotations

import asyncio
import dis
import inspect
import logging
import math
import signal
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from types import CodeType
from typing import Any, ParamSpec, Protocol, TypeVar

import anyio
import anyio.to_thread

from agentbus.core.threads import Interruption, has_loop, interruption
from agentbus.core.validation import error_text
from agentbus.errors import InvalidInput

P = ParamSpec("P")
T = TypeVar("T")

log = logging.getLogger("agentbus")

SHUTDOWN_TIMEOUT = 0.7
"""Seconds that leaving a block waits for its last write."""
CONTENDED_TIMEOUT = 0.05
"""The same while another process holds the lock: one slow exit is enough."""
GRACE = 5.0
"""Seconds that a cancelled caller, and a closing bus, wait for a function that still runs on a thread."""
_CONTENTION_MEMORY = 5.0
"""Seconds for which a lock timeout counts as recent."""
_LOOP_ITERATIONS = 5
"""Iterations of the event loop in which a cancelled task cancels the group that it hosts."""
_MAX_TRACEBACK = 64 * 1024
_RAISE_OPCODES = frozenset(dis.opmap[name] for name in ("RAISE_VARARGS", "RERAISE"))


class HasLockTimeout(Protocol):
    """The part of an engine on which leaving a block depends."""

    last_lock_timeout: float
    """Monotonic time at which a write last gave up waiting for the lock."""


@contextmanager
def shielded(engine: HasLockTimeout) -> Iterator[None]:
    """Shield the writes of a block for a bounded time. A slower write is withdrawn, or commits on its own."""
    if not has_loop():
        # In a forked child, or under an event loop other than asyncio's, the engine refuses at once.
        yield
        return
    contended = time.monotonic() - engine.last_lock_timeout < _CONTENTION_MEMORY
    with anyio.move_on_after(CONTENDED_TIMEOUT if contended else SHUTDOWN_TIMEOUT, shield=True) as scope:
        yield
    if scope.cancelled_caught:
        engine.last_lock_timeout = time.monotonic()


async def finish_shielded(engine: HasLockTimeout, writing: Coroutine[Any, Any, None]) -> bool:
    """Perform the last write of a block and return True if it finished. The wait ends after a timeout, or when the task
    is cancelled again; the write itself continues as long as the bus is open."""
    if not has_loop():
        await writing
        return True
    task = asyncio.ensure_future(writing)
    task.add_done_callback(_consume_exception)
    with shielded(engine):
        await asyncio.shield(task)
    return task.done()


def is_foreign_cancellation(error: BaseException) -> bool:
    """Return True for the cancellation of something that this task awaited, not of the task itself."""
    if not isinstance(error, asyncio.CancelledError):
        return False
    task = asyncio.current_task()
    return task is not None and task.cancelling() == 0


def fire_and_forget(writing: Awaitable[Any]) -> None:
    """Start a write without waiting for its outcome."""
    asyncio.ensure_future(writing).add_done_callback(_consume_exception)


def _consume_exception(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()


async def run_to_completion(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run ``work`` on a thread. A cancellation of the caller is raised once the thread has ended: until then no other
    code may use the file or generator that the thread uses. Work that calls ``check_interruption`` ends there."""
    stop = Interruption()

    def run() -> T:
        interruption.set(stop)  # in this call's own context
        return work(*args, **kwargs)

    return await complete(anyio.to_thread.run_sync(run), stop)


async def complete(work: Coroutine[Any, Any, T], stop: Interruption | None = None) -> T:
    """Run ``work`` to its end, and raise a cancellation of the caller only then. It also sets ``stop.requested``.

    An anyio shield does not hold off ``Task.cancel``, by which asyncio cancels on Ctrl-C and in its task groups.
    """
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    with anyio.CancelScope(shield=True):
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError as error:
                cancelled = error
                if stop is not None:
                    stop.requested = True
    if cancelled is not None:
        raise cancelled from (None if task.cancelled() else task.exception())
    return task.result()


class Threads:
    """Run user functions on threads for one bus, and track those that are still running."""

    def __init__(self) -> None:
        self._running: set[_Work] = set()
        # Not anyio's default, which the whole process shares. Callers bound their own concurrency.
        self._limiter: anyio.CapacityLimiter | None = None

    @property
    def running(self) -> list[str]:
        """Return the names of the running functions."""
        return [work.name for work in self._running]

    async def run(self, name: str, call: Callable[[], Any], is_abandoned: Callable[[], bool]) -> Any:
        """Call a function on a thread in the context of the task; return its result or raise its exception.

        A thread cannot be cancelled. If the task is, wait a few seconds for the function to return before the
        cancellation continues, so that the work is not given to another worker meanwhile, unless ``is_abandoned()``
        returns True: then another worker has it already. The function's result is discarded.
        """
        if self._limiter is None:
            self._limiter = anyio.CapacityLimiter(float("inf"))
        work = _Work(name, call, asyncio.get_running_loop(), self._running)
        self._running.add(work)
        try:
            await anyio.to_thread.run_sync(work.run, abandon_on_cancel=True, limiter=self._limiter)
        except asyncio.CancelledError:
            if work.abandon() and not is_abandoned():
                await work.settle(GRACE)
            raise
        except BaseException:
            # The thread did not start.
            work.abandon()
            raise
        return work.outcome()

    async def finish(self) -> None:
        """Wait a few seconds for running functions, then log those that have not ended."""
        waiting = [work.ended for work in self._running if not work.overdue]
        if waiting:
            await asyncio.wait(waiting, timeout=GRACE)
        if self._running:
            log.warning(
                "bus closed while functions still run on threads, which cannot be cancelled: %s",
                ", ".join(sorted(self.running)),
            )


class _Work:
    """One call on a thread."""

    def __init__(
        self, name: str, call: Callable[[], Any], loop: asyncio.AbstractEventLoop, running: set[_Work]
    ) -> None:
        self.name = name
        self.ended: asyncio.Future[None] = loop.create_future()
        self.overdue = False
        """True once a wait for its end has timed out."""
        self._call = call
        self._loop = loop
        self._running = running
        self._lock = threading.Lock()
        self._started = False
        self._abandoned = False
        self._value: Any = None
        self._error: BaseException | None = None

    def run(self) -> None:
        """Run on the thread."""
        with self._lock:
            if self._abandoned:
                return
            self._started = True
        try:
            self._value = self._call()
        except BaseException as error:
            self._error = error
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._end)

    def abandon(self) -> bool:
        """Discard the outcome. Return False if the function has not been called; it never will be."""
        with self._lock:
            self._abandoned = True
        if not self._started:
            self._end()
        return self._started

    async def settle(self, seconds: float) -> None:
        """Wait until the function has returned, at most ``seconds``."""
        with anyio.CancelScope(shield=True):
            await asyncio.wait([self.ended], timeout=seconds)
        self.overdue = not self.ended.done()
        if self.overdue:
            log.warning("%s was cancelled and is still running on its thread", self.name)

    def outcome(self) -> Any:
        # The callback from the thread may arrive later than anyio's result.
        self._end()
        error, self._error = self._error, None
        try:
            if error is not None:
                raise error
            return self._value
        finally:
            # Break the reference cycle: the traceback refers to this frame.
            del error

    def _end(self) -> None:
        self._running.discard(self)
        if not self.ended.done():
            self.ended.set_result(None)
            if self._abandoned and self._started:
                log.info("%s returned after it was cancelled; its result is discarded", self.name)


class UserCodeExit(Exception):
    """User code raised ``error``, which is not an Exception."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(f"user code raised {type(error).__name__}")
        self.error = error


def check_callback(callback: object, name: str, argument: str) -> None:
    """Raise InvalidInput unless the callback can be called with one argument."""
    if not callable(callback):
        raise InvalidInput(reason=f"{name} is not callable")
    try:
        inspect.signature(callback).bind(None)
    except TypeError:
        raise InvalidInput(reason=f"{name} must take one argument: {name}({argument})") from None
    except ValueError:
        return  # a builtin without a signature


def is_being_cancelled() -> bool:
    """Return True if this task was cancelled, False if a call in it raised a CancelledError of its own."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def reset_cancellation_count(task: asyncio.Task[Any] | None, count: int = 0) -> None:
    """Reset the task's number of cancellation requests after user code that was not cancelled.

    ``asyncio.TaskGroup`` in Python 3.11 and 3.12 leaves one request behind when a child fails while the group waits. A
    CancelledError that the code merely awaits would then look like a cancellation of the task.
    """
    if task is not None and sys.version_info < (3, 13):
        while task.cancelling() > count:
            task.uncancel()


async def is_cancelled_by_group() -> bool:
    """Return True if this task of a task group is being cancelled; its cancellation count alone does not show it.

    A cancellation reaches the task through a scope. When the event loop ends it also reaches the host of the group,
    which then cancels its scope within a few iterations of the loop.
    """
    if sys.version_info >= (3, 13):
        return True
    for _ in range(_LOOP_ITERATIONS):
        if anyio.current_effective_deadline() == -math.inf:
            return True
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            return True
    reset_cancellation_count(asyncio.current_task())
    return False


def is_async(function: Callable[..., Any]) -> bool:
    """Return True if calling ``function`` returns a coroutine: an async function, a partial of one, or an object with
    an async ``__call__``."""
    while isinstance(function, partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


async def call(
    threads: Threads,
    name: str,
    function: Callable[..., Any],
    *arguments: Any,
    is_abandoned: Callable[[], bool] = lambda: False,
    **keywords: Any,
) -> Any:
    """Call user code, on the loop if it is async and otherwise on a thread, and return its result.

    An awaitable result of a plain function is awaited. Exceptions are raised unchanged, or wrapped in UserCodeExit if
    they are not an Exception. ``name`` appears in the log; ``Threads.run`` describes ``is_abandoned``.
    """
    if not is_async(function):
        on_thread = partial(call_wrapping_exits, partial(function, *arguments, **keywords))
        value = await threads.run(name, on_thread, is_abandoned)
        return await await_user_code(value) if inspect.isawaitable(value) else value
    return await await_user_code(function(*arguments, **keywords))


async def await_user_code(code: Awaitable[T]) -> T:
    """Await user code on the loop, with UserCodeExit in place of an exception that is not an Exception."""
    task = asyncio.current_task()
    before = 0 if task is None else task.cancelling()
    try:
        value = await code
    except asyncio.CancelledError:
        raise
    except Exception:
        reset_cancellation_count(task, before)
        raise
    except GeneratorExit as error:
        # Either the coroutine is being closed outside its task, or the code raised it.
        if _current_task() is not task:
            raise
        raise UserCodeExit(error) from error
    except BaseException as error:
        if _comes_from_signal(error):
            raise
        raise UserCodeExit(error) from error
    reset_cancellation_count(task, before)
    return value


def is_user_code_exit(error: BaseException) -> bool:
    """Return True for an exception that ends the event loop and that a coroutine raised, not a signal handler."""
    if not isinstance(error, SystemExit | KeyboardInterrupt) or _comes_from_signal(error):
        return False
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    return any(frame.f_code.co_flags & inspect.CO_COROUTINE for frame in frames)


def unwrap_exit(error: BaseException) -> BaseException:
    """Return the exception that user code raised."""
    return error.error if isinstance(error, UserCodeExit) else error


def exception_chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception, its cause or context, and so on. The chain may be circular."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        # Not "or": the truth value of an exception is user code.
        error = error.__context__ if error.__cause__ is None else error.__cause__


def call_wrapping_exits(call: Callable[[], Any]) -> Any:
    """Call user code on a thread, where no signal handler runs, wrapping exits in UserCodeExit."""
    try:
        return call()
    except (Exception, asyncio.CancelledError):
        raise
    except BaseException as error:
        raise UserCodeExit(error) from error


def _current_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


def _comes_from_signal(error: BaseException) -> bool:
    """Return True if a signal handler raised this exception or its context.

    A handler written in Python appears in the traceback. The default SIGINT handler leaves no frame: it raises
    KeyboardInterrupt at any instruction, whereas code raises one with a ``raise`` instruction.
    """
    if threading.current_thread() is not threading.main_thread():
        return False
    handlers = set(_handler_codes())
    default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    for found in exception_chain(error):
        if isinstance(found, Exception):
            return False
        trace, last = found.__traceback__, None
        while trace is not None:
            if trace.tb_frame.f_code in handlers:
                return True
            trace, last = trace.tb_next, trace
        if default and last is not None and isinstance(found, KeyboardInterrupt):
            instruction = last.tb_frame.f_code.co_code[last.tb_lasti]
            if instruction not in _RAISE_OPCODES:
                return True
    return False


def _handler_codes() -> Iterator[CodeType]:
    """Yield the code objects of signal handlers written in Python, including the one of asyncio.run, which is only
    installed while its loop runs."""
    runner = getattr(asyncio.Runner, "_on_sigint", None)
    if runner is not None:
        yield runner.__code__
    for number in signal.valid_signals():
        handler: Any = signal.getsignal(number)
        while isinstance(handler, partial):
            handler = handler.func
        if callable(handler):
            function = handler if inspect.isroutine(handler) else type(handler).__call__
            code = getattr(inspect.unwrap(getattr(function, "__func__", function)), "__code__", None)
            if isinstance(code, CodeType):
                yield code


def log_failure(
    log: logging.Logger, error: BaseException, text: str, *arguments: object, level: int = logging.ERROR
) -> None:
    """Log an exception of user code, with its traceback if that can be formatted.

    Attributes of a user exception may raise, and its text may be unbounded or invalid Unicode. Then only type and
    message are logged, so that neither the calling loop nor a log handler fails.
    """
    if not log.isEnabledFor(level):
        return
    if _can_format(error):
        log.log(level, text, *arguments, exc_info=error)
    else:
        log.log(level, f"{text}: %s", *arguments, error_text(error))


def _can_format(error: BaseException) -> bool:
    try:
        return len("".join(traceback.format_exception(error)).encode()) <= _MAX_TRACEBACK
    except KeyboardInterrupt:
        raise
    except BaseException:
        return False
