"""Execution of a step: start, retry, time out, validate, and commit with its unit."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from contextlib import AsyncExitStack
from contextvars import ContextVar
from functools import partial
from typing import Any

import anyio
import msgspec

from agentbus import core
from agentbus.api.tasks.run import Run, Wait, problem_of, summary_of
from agentbus.api.tasks.workflow import result_type
from agentbus.api.unit import Unit
from agentbus.core.cancellation import call, is_async, is_foreign_cancellation, unwrap_exit
from agentbus.core.codec import encode, plain, verify_value
from agentbus.core.validation import RETRY_DELAY, check_range, check_seconds
from agentbus.errors import InvalidInput, StepFailed
from agentbus.operations.protocol import Part
from agentbus.operations.task_lookups import Recorded, problem, recorded_step
from agentbus.operations.task_steps import (
    FailStepRequest,
    FinishStepRequest,
    StartStepRequest,
    StepIdentity,
    fail_step,
    finish_step,
    start_step,
)
from agentbus.operations.tasks import retry_delay
from agentbus.records import TaskProblem

MAX_RETRIES = 1000
MAX_INTERRUPTIONS = 100
"""Workers that may die during a step before the step counts as the cause."""
_DIGEST_LENGTH = 32


class Options(msgspec.Struct, frozen=True):
    """Options of a step; times are milliseconds."""

    retries: int = 0
    backoff: int = round(RETRY_DELAY * 1000)
    timeout: int | None = None
    once: bool = False
    validate: Callable[[Any], Any] | None = None
    returns: Any = None

    def delay(self, failures: int) -> int | None:
        """Return the delay after ``failures`` failures, or None if no attempt is left."""
        return None if failures > self.retries else retry_delay(self.backoff, failures)


class Current(msgspec.Struct, frozen=True, eq=False):
    """The step that is executed in this context."""

    run: Run
    key: str
    unit: Unit
    attempt: int
    note: str | None


CURRENT: ContextVar[Current | None] = ContextVar("agentbus_step", default=None)


def step_options(
    retries: int = 0,
    backoff: float = RETRY_DELAY,
    timeout: float | None = None,
    once: bool = False,
    validate: Callable[[Any], Any] | None = None,
    returns: Any = None,
) -> Options:
    """Return checked options of a step."""
    if validate is not None and not callable(validate):
        raise InvalidInput(reason="validate is not callable")
    return Options(
        check_range(retries, "retries", 0, MAX_RETRIES),
        check_seconds(backoff, "backoff", zero=True),
        None if timeout is None else check_seconds(timeout, "timeout"),
        bool(once),
        validate,
        returns,
    )


async def take_step(
    run: Run,
    name: str,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    keywords: dict[str, Any],
    options: Options,
) -> Any:
    """Return the recorded result of a step, or execute it."""
    if not callable(function):
        raise InvalidInput(reason=f"step {name!r}: {function!r} is not callable")
    as_ = result_type(function) if options.returns is None else options.returns
    with run.busy():
        identity, known = run.locate("step", name, digest(arguments, keywords))
        with run.executing(identity.key):
            while known is not None:
                if known.status == "finished":
                    return run.stored(known, as_)
                if known.status == "failed":
                    raise _failed(run, identity, options, known.failures, problem(known.error))
                if known.status == "retrying":
                    await run.wait_until(identity.key, known.due or 0)
                    break
                if known.status != "unknown":
                    break
                known = await _wait_until_settled(run, identity)
            return await _execute(run, identity, known, options, as_, partial(function, *arguments, **keywords))


async def _execute(
    run: Run, identity: StepIdentity, known: Recorded | None, options: Options, as_: Any, function: Callable[[], Any]
) -> Any:
    """Execute a step until it succeeds or no attempt is left."""
    attempt, failures, note = (0, 0, None) if known is None else (known.attempt, known.failures, known.note)
    note = run.notes.get(identity.key) if known is None else note
    if attempt - failures >= MAX_INTERRUPTIONS:
        failures += 1
        reason = f"{MAX_INTERRUPTIONS} workers died during the step"
        await _after_failure(run, identity, options, attempt, failures, RuntimeError(reason))
    trace = None if known is None else known.trace
    while True:
        attempt += 1
        tracer = core.tracer
        with core.NO_SPAN if tracer is None else tracer.attempt_step(run, identity, attempt, trace) as span:
            trace = None if span is None else span.trace
            await _start(run, identity, options, attempt, note, trace)
            try:
                return await _attempt(run, identity, options, attempt, note, as_, function)
            except Exception as error:
                if run.lost:
                    raise
                problem_found = unwrap_exit(error)
            except asyncio.CancelledError as error:
                if not is_foreign_cancellation(error):
                    raise
                problem_found = error
            if span is not None:
                span.fail(problem_found)
        failures += 1
        await _after_failure(run, identity, options, attempt, failures, problem_found)


async def _start(
    run: Run, identity: StepIdentity, options: Options, attempt: int, note: str | None, trace: str | None
) -> None:
    """Record the start of an attempt; durably for a step that must run only once."""
    request = StartStepRequest(run.agent._actor, run.hold, identity, attempt, options.once, note, trace)
    while not await run.write(start_step, request, durable=True if options.once else None):
        await run.wait_out_halt()
    run.report("step", identity.key, "running", attempt)


async def _attempt(
    run: Run,
    identity: StepIdentity,
    options: Options,
    attempt: int,
    note: str | None,
    as_: Any,
    function: Callable[[], Any],
) -> Any:
    unit = Unit(run.agent, run.claimed.session)._begin()
    token = CURRENT.set(Current(run, identity.key, unit, attempt, note))
    try:
        value = await _call_with_timeout(run, identity.key, options.timeout, function)
        text, crc = encode(value, run.bus._max_payload)
        # Read as it is on replay: a workflow must see the same value in both cases.
        result = verify_value(text, crc, f"the result of step {identity.key}", as_)
        validation = None if options.validate is None else await _validate(run, identity.key, options.validate, result)
    finally:
        unit._end()
        CURRENT.reset(token)
    ending = run.next_ending()
    finishing = FinishStepRequest(run.agent._actor, run.hold, identity, (text, crc), validation, ending)
    if unit._empty:
        await run.write(finish_step, finishing)
    else:
        # The unit of the step and its result are one commit.
        await run.commit_unit(unit, Part(finish_step, finishing))
    run.mark_seen(ending)
    run.report("step", identity.key, "finished", attempt)
    return result


async def _call_with_timeout(run: Run, step: str, timeout: int | None, function: Callable[[], Any]) -> Any:
    """Call the function, within its timeout by the clock of the bus."""
    name = f"step {step!r} of task {run.claimed.id}"
    async with AsyncExitStack() as room:
        if not is_async(function):
            # The wait for a thread does not count towards the timeout.
            owner = object()
            await run.worker.slots.acquire_on_behalf_of(owner)
            room.callback(run.worker.slots.release_on_behalf_of, owner)
        if timeout is None:
            return await call(run.bus._threads, name, function, is_abandoned=lambda: run.lost)
        with anyio.CancelScope() as scope:
            timer = run.engine.clock.call_later(asyncio.get_running_loop(), timeout / 1000, scope.cancel)
            try:
                return await call(
                    run.bus._threads, name, function, is_abandoned=lambda: run.lost or scope.cancel_called
                )
            finally:
                timer.cancel()
    raise TimeoutError(f"timed out after {timeout / 1000:g} s")


async def _validate(run: Run, step: str, validate: Callable[[Any], Any], result: Any) -> str:
    """Return the result of the validation as JSON; False or an exception fails the step."""
    name = f"the validation of step {step!r} of task {run.claimed.id}"
    verdict = await call(run.bus._threads, name, validate, result, is_abandoned=lambda: run.lost)
    if verdict is False:
        raise ValueError("the validation rejected the result")
    return encode(verdict, run.bus._max_payload)[0]


async def _after_failure(
    run: Run, identity: StepIdentity, options: Options, attempt: int, failures: int, error: BaseException
) -> None:
    """Record a failure and wait for the next attempt; raise StepFailed if there is none."""
    recorded = problem_of(error, run.claimed.id, identity.key)
    # The outcome of a timed-out attempt is unknown: a step that must run only once is not retried.
    delay = None if options.once and isinstance(error, TimeoutError) else options.delay(failures)
    ending = run.next_ending() if delay is None else None
    request = FailStepRequest(run.agent._actor, run.hold, identity, plain(recorded), failures, delay, ending)
    if delay is None:
        # Before the write: a branch that is cancelled meanwhile does not raise the recorded error.
        run.unhandled[identity.key] = None
    due = await run.write(fail_step, request, durable=None if delay is None else False)
    run.mark_seen(ending)
    status = "failed" if due is None else "retrying"
    run.report("step", identity.key, status, attempt, summary_of(recorded))
    if due is None:
        raise _failed(run, identity, options, failures, recorded) from error
    await run.wait_until(identity.key, due)


async def _wait_until_settled(run: Run, identity: StepIdentity) -> Recorded:
    """Wait until an operator has settled a step whose outcome is unknown."""

    async def settled() -> Recorded | None:
        known = await run.read_inline(recorded_step, (run.hold.number, identity.kind, identity.key))
        return known if known is not None and known.status != "unknown" else None

    return await run.wait(Wait("step", identity.key), settled)


def _failed(run: Run, identity: StepIdentity, options: Options, failures: int, cause: TaskProblem | None) -> StepFailed:
    name, message = ("?", "?") if cause is None else (cause.type, cause.message)
    if options.once and name == TimeoutError.__name__:
        run.unrepeatable.add(identity.key)
    return StepFailed(task=run.claimed.id, step=identity.key, failures=failures, type=name, message=message)


def digest(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> str:
    """Return a digest of the arguments of a step. A value that is not JSON counts by its type."""
    try:
        text = _encode((arguments, keywords))
    except (TypeError, ValueError, OverflowError, RecursionError):
        text = _encode(
            (
                [_encode_or_type(value) for value in arguments],
                {name: _encode_or_type(keywords[name]) for name in keywords},
            )
        )
    return hashlib.sha256(text).hexdigest()[:_DIGEST_LENGTH]


def _encode_or_type(value: Any) -> bytes:
    try:
        return _encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return _type_name(value).encode()


def _type_name(value: Any) -> str:
    return f"<{type(value).__module__}.{type(value).__qualname__}>"


_encode = msgspec.json.Encoder(order="deterministic", enc_hook=_type_name).encode
