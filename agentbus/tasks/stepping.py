"""How a step is executed: begun, tried, timed, validated, and committed with what it did on the bus."""

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

from agentbus.codec import encode, open_value, plain
from agentbus.errors import InvalidInput, StepFailed
from agentbus.limits import check_range, check_seconds
from agentbus.operations import Part
from agentbus.operations.steps import (
    BeginStepRequest,
    FailStepRequest,
    FinishStepRequest,
    StepPlace,
    begin_step,
    fail_step,
    finish_step,
)
from agentbus.operations.task_reading import Recorded, problem, recorded_step
from agentbus.operations.tasks import backoff
from agentbus.parting import is_stray
from agentbus.records import TaskProblem
from agentbus.services.callbacks import call, is_async, raised
from agentbus.tasks.problems import problem_of
from agentbus.tasks.running import Run, Wait
from agentbus.tasks.workflow import result_type
from agentbus.unit import Unit

MAX_RETRIES = 1000
MAX_INTERRUPTIONS = 100
"""So many workers may go away in the middle of a step before it counts as the reason."""
_DIGEST = 32


class Options(msgspec.Struct, frozen=True):
    """How a step is to be executed; times are milliseconds."""

    retries: int = 0
    backoff: int = 1000
    timeout: int | None = None
    once: bool = False
    validate: Callable[[Any], Any] | None = None
    returns: Any = None

    def delay(self, failures: int) -> int | None:
        """How long to wait after so many failures; None if there is no further attempt."""
        return None if failures > self.retries else backoff(self.backoff, failures)


class Current(msgspec.Struct, frozen=True, eq=False):
    """The step that is being executed here."""

    run: Run
    key: str
    unit: Unit
    attempt: int
    note: str | None


CURRENT: ContextVar[Current | None] = ContextVar("agentbus_step", default=None)


def options(
    retries: int, backoff: float, timeout: float | None, once: bool, validate: Callable[[Any], Any] | None, returns: Any
) -> Options:
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
    how: Options,
) -> Any:
    """The result of a step: the one that is recorded, or the one that it has when it is executed."""
    if not callable(function):
        raise InvalidInput(reason=f"step {name!r} is given {function!r}, which is not callable")
    as_ = result_type(function) if how.returns is None else how.returns
    with run.busy():
        place, known = run.ask("step", name, digest(arguments, keywords))
        with run.executing(place.key):
            while known is not None:
                if known.status == "finished":
                    return run.stored(known, as_)
                if known.status == "failed":
                    raise _failed(run, place, how, known.failures, problem(known.error))
                if known.status == "retrying":
                    await run.wait_until(place.key, known.due or 0)
                    break
                if known.status != "unknown":
                    break
                known = await _settled(run, place)
            return await _execute(run, place, known, how, as_, partial(function, *arguments, **keywords))


async def _execute(
    run: Run, place: StepPlace, known: Recorded | None, how: Options, as_: Any, function: Callable[[], Any]
) -> Any:
    """Execute a step until it has a result, or no attempt is left."""
    attempt, failures, note = (0, 0, None) if known is None else (known.attempt, known.failures, known.note)
    note = run.notes.get(place.key) if known is None else note
    if attempt - failures >= MAX_INTERRUPTIONS:
        failures += 1
        reason = f"{MAX_INTERRUPTIONS} workers went away in the middle of it"
        await _after_failure(run, place, how, attempt, failures, RuntimeError(reason))
    while True:
        attempt += 1
        await _begin(run, place, how, attempt, note)
        try:
            return await _attempt(run, place, how, attempt, note, as_, function)
        except Exception as error:
            if run.lost:
                raise
            problem_found = raised(error)
        except asyncio.CancelledError as error:
            if not is_stray(error):
                raise
            problem_found = error
        failures += 1
        await _after_failure(run, place, how, attempt, failures, problem_found)


async def _begin(run: Run, place: StepPlace, how: Options, attempt: int, note: str | None) -> None:
    """Note that it is being executed. What must run only once is known to have begun even after a power cut."""
    request = BeginStepRequest(run.agent.actor, run.hold, place, attempt, how.once, note)
    while not await run.write(begin_step, request, durable=True if how.once else None):
        await run.wait_out_halt()
    run.tell("step", place.key, "running", attempt)


async def _attempt(
    run: Run, place: StepPlace, how: Options, attempt: int, note: str | None, as_: Any, function: Callable[[], Any]
) -> Any:
    unit = Unit(run.agent, run.claimed.session).open()
    token = CURRENT.set(Current(run, place.key, unit, attempt, note))
    try:
        value = await _in_time(run, place.key, how.timeout, function)
        text, crc = encode(value, run.bus.max_payload)
        # As it is read later: a workflow must find the same, whether the step ran just now or long ago.
        result = open_value(text, crc, f"the result of step {place.key}", as_)
        validation = None if how.validate is None else await _validate(run, place.key, how.validate, result)
    finally:
        unit.close()
        CURRENT.reset(token)
    ending = run.ending()
    finishing = FinishStepRequest(run.agent.actor, run.hold, place, (text, crc), validation, ending)
    if unit.empty:
        await run.write(finish_step, finishing)
    else:
        # What the step did on the bus and its result are one commit.
        await run.commit_unit(unit, Part(finish_step, finishing))
    run.saw(ending)
    run.tell("step", place.key, "finished", attempt)
    return result


async def _in_time(run: Run, step: str, timeout: int | None, function: Callable[[], Any]) -> Any:
    """Call it, in the time that it may take by the clock of the bus."""
    name = f"step {step!r} of task {run.claimed.id}"
    async with AsyncExitStack() as room:
        if not is_async(function):
            # Waiting for a thread is no part of the time that the step takes.
            owner = object()
            await run.worker.slots.acquire_on_behalf_of(owner)
            room.callback(run.worker.slots.release_on_behalf_of, owner)
        if timeout is None:
            return await call(run.bus.threads, name, function, abandons=lambda: run.lost)
        with anyio.CancelScope() as scope:
            timer = run.engine.clock.call_later(asyncio.get_running_loop(), timeout / 1000, scope.cancel)
            try:
                return await call(run.bus.threads, name, function, abandons=lambda: run.lost or scope.cancel_called)
            finally:
                timer.cancel()
    raise TimeoutError(f"it took longer than {timeout / 1000:g} s")


async def _validate(run: Run, step: str, validate: Callable[[Any], Any], result: Any) -> str:
    """What the validation says, as JSON; False is a failure of the step, as an exception is."""
    name = f"the validation of step {step!r} of task {run.claimed.id}"
    said = await call(run.bus.threads, name, validate, result, abandons=lambda: run.lost)
    if said is False:
        raise ValueError("its result was found invalid")
    return encode(said, run.bus.max_payload)[0]


async def _after_failure(
    run: Run, place: StepPlace, how: Options, attempt: int, failures: int, error: BaseException
) -> None:
    """Keep what went wrong, and wait for the next attempt; raise if there is none."""
    kept = problem_of(error, run.claimed.id, place.key)
    # Whether something that ran out of time has happened nobody knows: what must happen only once is not tried again.
    delay = None if how.once and isinstance(error, TimeoutError) else how.delay(failures)
    ending = run.ending() if delay is None else None
    request = FailStepRequest(run.agent.actor, run.hold, place, plain(kept), failures, delay, ending)
    if delay is None:
        # Before it is written: a branch that is cancelled meanwhile does not raise what is recorded then.
        run.unheard[place.key] = None
    due = await run.write(fail_step, request, durable=None if delay is None else False)
    run.saw(ending)
    run.tell("step", place.key, "failed" if due is None else "retrying", attempt)
    if due is None:
        raise _failed(run, place, how, failures, kept) from error
    await run.wait_until(place.key, due)


async def _settled(run: Run, place: StepPlace) -> Recorded:
    """What a person found out of a step whose outcome was unknown."""

    async def settled() -> Recorded | None:
        known = await run.look(recorded_step, (run.hold.number, place.kind, place.key))
        return known if known is not None and known.status != "unknown" else None

    return await run.wait(Wait("step", place.key), settled)


def _failed(run: Run, place: StepPlace, how: Options, failures: int, kept: TaskProblem | None) -> StepFailed:
    name, message = ("?", "?") if kept is None else (kept.type, kept.message)
    if how.once and name == TimeoutError.__name__:
        run.unrepeatable.add(place.key)
    return StepFailed(task=run.claimed.id, step=place.key, failures=failures, type=name, message=message)


def digest(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> str:
    """What tells the arguments of a step from others. Of what is not JSON only its type counts."""
    try:
        text = _encode((arguments, keywords))
    except (TypeError, ValueError, OverflowError, RecursionError):
        text = _encode(([_known(value) for value in arguments], {name: _known(keywords[name]) for name in keywords}))
    return hashlib.sha256(text).hexdigest()[:_DIGEST]


def _known(value: Any) -> bytes:
    try:
        return _encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return _named(value).encode()


def _named(value: Any) -> str:
    return f"<{type(value).__module__}.{type(value).__qualname__}>"


_encode = msgspec.json.Encoder(order="deterministic", enc_hook=_named).encode
