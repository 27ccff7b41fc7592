"""Functions that callers hand in: what can be checked before they are called, and calling them.

A function that is not a coroutine function may block, and is called on a thread. Whatever user code raises is a failure
of that code, never the end of its caller: asyncio lets SystemExit and KeyboardInterrupt end the event loop when they
leave a task, so they are caught here, in the innermost call. Only what a signal handler raised in the middle of user
code passes: a Ctrl-C, or the SystemExit of a program's handler of SIGTERM.
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
import traceback
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from types import CodeType
from typing import Any, TypeVar

import anyio

from agentbus.errors import InvalidInput
from agentbus.limits import error_text
from agentbus.services.threads import Threads

T = TypeVar("T")

_TURNS = 5
"""Turns of the event loop until a cancelled task has cancelled the group that it hosts."""
_LONGEST_TRACEBACK = 64 * 1024
_RAISING = frozenset(dis.opmap[name] for name in ("RAISE_VARARGS", "RERAISE"))


class UserCodeExit(Exception):
    """User code raised something that is no Exception: ``error``."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(f"user code raised {type(error).__name__}")
        self.error = error


def check_callback(callback: object, name: str, argument: str) -> None:
    """One that cannot be called with its argument would fail every time."""
    if not callable(callback):
        raise InvalidInput(reason=f"{name} is not callable")
    try:
        inspect.signature(callback).bind(None)
    except TypeError:
        raise InvalidInput(reason=f"{name} must take one argument: {name}({argument})") from None
    except ValueError:
        return  # not everything that can be called says how


def being_cancelled() -> bool:
    """Whether this task was cancelled, or only something that it called raised a CancelledError of its own."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def forget_cancellations(task: asyncio.Task[Any] | None, count: int = 0) -> None:
    """Set the number of cancellations that were requested of this task back, after user code that was not cancelled.

    ``asyncio.TaskGroup`` of Python 3.11 and 3.12 leaves one behind when a child fails while the group waits for it. A
    CancelledError that code merely awaits would then look like a cancellation of the task.
    """
    if task is not None and sys.version_info < (3, 13):
        while task.cancelling() > count:
            task.uncancel()


async def is_cancelled_by_group() -> bool:
    """Return whether this task, which runs in a task group, is being cancelled, although the count alone cannot tell.

    A cancellation reaches the task by a scope; or, where the event loop ends, the host of the group as well, which then
    cancels its scope within a few turns of the loop.
    """
    if sys.version_info >= (3, 13):
        return True
    for _ in range(_TURNS):
        if anyio.current_effective_deadline() == -math.inf:
            return True
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            return True
    forget_cancellations(asyncio.current_task())
    return False


def is_async(function: Callable[..., Any]) -> bool:
    """Return whether calling this gives a coroutine at once: an async function, a partial of one, or an object whose
    ``__call__`` is async."""
    while isinstance(function, partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


async def call(
    threads: Threads,
    name: str,
    function: Callable[..., Any],
    *arguments: Any,
    abandons: Callable[[], bool] = lambda: False,
    **keywords: Any,
) -> Any:
    """Call user code, on the loop if it is async and else on a thread, and return its result.

    The result of a plain function is awaited if it is awaitable. Its exceptions are raised unchanged, in a
    UserCodeExit if they are no Exception. ``name`` is its name in the log; ``abandons`` is described at
    ``Threads.run``.
    """
    if not is_async(function):
        on_thread = partial(wrapping_exits, partial(function, *arguments, **keywords))
        value = await threads.run(name, on_thread, abandons)
        return await guarded(value) if inspect.isawaitable(value) else value
    return await guarded(function(*arguments, **keywords))


async def guarded(code: Awaitable[T]) -> T:
    """Await user code on the loop. Raises what it raises, in a UserCodeExit if that is no Exception."""
    task = asyncio.current_task()
    before = 0 if task is None else task.cancelling()
    try:
        value = await code
    except asyncio.CancelledError:
        raise
    except Exception:
        forget_cancellations(task, before)
        raise
    except GeneratorExit as error:
        # The coroutine is being closed, outside of its task; or the code has raised it itself.
        if _current_task() is not task:
            raise
        raise UserCodeExit(error) from error
    except BaseException as error:
        if _comes_from_signal(error):
            raise
        raise UserCodeExit(error) from error
    forget_cancellations(task, before)
    return value


def left_by_code(error: BaseException) -> bool:
    """Return whether this ends an event loop and was raised in a coroutine, not by a signal handler or a callback."""
    if not isinstance(error, SystemExit | KeyboardInterrupt) or _comes_from_signal(error):
        return False
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    return any(frame.f_code.co_flags & inspect.CO_COROUTINE for frame in frames)


def raised(error: BaseException) -> BaseException:
    """Return what user code raised."""
    return error.error if isinstance(error, UserCodeExit) else error


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """Return an exception, what it was raised from or in answer to, and so on; a chain may be a circle."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        # Not "or": the truth of an exception is foreign code.
        error = error.__context__ if error.__cause__ is None else error.__cause__


def wrapping_exits(call: Callable[[], Any]) -> Any:
    """Call user code on a thread, where no signal handler runs."""
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
    """Return whether a signal handler raised this, or what it was raised in answer to.

    A handler written in Python is found in the traceback. The default handler of SIGINT leaves no frame: it raises
    KeyboardInterrupt between or inside any instructions, whereas code that raises one itself does so by a ``raise``.
    """
    if threading.current_thread() is not threading.main_thread():
        return False
    handlers = set(_handler_codes())
    default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    for found in chain(error):
        if isinstance(found, Exception):
            return False
        trace, last = found.__traceback__, None
        while trace is not None:
            if trace.tb_frame.f_code in handlers:
                return True
            trace, last = trace.tb_next, trace
        if default and last is not None and isinstance(found, KeyboardInterrupt):
            instruction = last.tb_frame.f_code.co_code[last.tb_lasti]
            if instruction not in _RAISING:
                return True
    return False


def _handler_codes() -> Iterator[CodeType]:
    """Return the code of the signal handlers that are written in Python. The handler of asyncio.run is set only while
    its loop runs."""
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
    """Log an exception that a caller's function raised, with its traceback if that can be shown.

    Attributes of a foreign exception may fail, and its text may be endless or no Unicode. Its type and message are then
    logged alone: neither the loop that called the function nor a log handler must fail for it.
    """
    if not log.isEnabledFor(level):
        return
    if _can_be_shown(error):
        log.log(level, text, *arguments, exc_info=error)
    else:
        log.log(level, f"{text}: %s", *arguments, error_text(error))


def _can_be_shown(error: BaseException) -> bool:
    try:
        return len("".join(traceback.format_exception(error)).encode()) <= _LONGEST_TRACEBACK
    except KeyboardInterrupt:
        raise
    except BaseException:
        return False
