"""Exceptions of callers whose ``__str__`` fails or is invalid: the interrupted work is settled."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, NoReturn

import pytest

import agentbus
from agentbus import Bus, Message, Task, Unit
from agentbus.errors import InvalidInput, InvalidName
from tests.api.helpers import eventually, held, known, running, stored, take, worker
from tests.api.interrupted_sessions import interrupted
from tests.api.task_workers import task_of, work_off
from tests.conftest import Engine
from tests.support.clock import FakeClock


class Hostile(Exception):
    """Has nothing to say."""


class Undecided(Exception):
    """Is neither true nor false."""

    def __bool__(self) -> NoReturn:
        raise LookupError("an exception is asked whether it is true")


class Raising(Hostile):
    def __str__(self) -> str:
        raise ValueError("no text")


class Ending(Hostile):
    def __str__(self) -> str:
        raise SystemExit(3)


class Cancelling(Hostile):
    def __str__(self) -> str:
        raise asyncio.CancelledError


class Textless(Hostile):
    def __str__(self) -> Any:
        return 7  # noqa: PLE0307


class Endless(Hostile):
    def __str__(self) -> str:
        return "x" * 20_000_000


class Recursive(Hostile):
    def __str__(self) -> str:
        return str(self)


class Unencodable(Hostile):
    def __str__(self) -> str:
        return "a\0b\ud800c"


class _Text(str):
    __slots__ = ()

    def __getitem__(self, key: object) -> NoReturn:
        raise SystemExit(4)

    def __format__(self, specification: str) -> NoReturn:
        raise SystemExit(4)


class Disguised(Hostile):
    """Its text is no plain text."""

    def __str__(self) -> str:
        return _Text("disguised")


class Annotated(Hostile):
    """Cannot be shown by the traceback module of Python 3.11 and 3.12."""

    @property
    def __notes__(self) -> NoReturn:  # type: ignore[override]
        raise SystemExit(6)


class _Unnamed(type):
    @property
    def __name__(cls) -> str:  # type: ignore[override]
        raise ValueError("no name")


class Nameless(Hostile, metaclass=_Unnamed):
    pass


EXPECTED: dict[type[Hostile], str] = {
    Raising: "Raising: (its text cannot be shown: ValueError)",
    Ending: "Ending: (its text cannot be shown: SystemExit)",
    Cancelling: "Cancelling: (its text cannot be shown: CancelledError)",
    Textless: "Textless: (its text cannot be shown: TypeError)",
    Recursive: "Recursive: (its text cannot be shown: RecursionError)",
    Endless: f"Endless: {'x' * 9991}",
    Unencodable: "Unencodable: a\\0b\\ud800c",
    Disguised: "Disguised: disguised",
    Annotated: "Annotated",
    Nameless: "exception",
}
KINDS = list(EXPECTED)


@pytest.mark.one_engine
async def test_the_message_that_the_exception_interrupts_is_settled(bus: Bus) -> None:
    for number, (kind, text) in enumerate(EXPECTED.items()):
        agent, session = f"a{number}", f"s{number}"
        with pytest.raises(Hostile):
            async with bus.session("planning", id=session), bus.agent(agent, type="worker") as a:
                receipt = await a.send(agent, "note", 1)
                async with await take(a):
                    raise kind()
        message = await stored(bus, receipt.message_id)
        assert (message.status, message.error) == ("scheduled", text)
        registered, record = await known(bus, agent), await held(bus, session)
        assert (registered.status, registered.error) == ("failed", text)
        assert (record.status, record.error) == ("failed", text)


@pytest.mark.one_engine
async def test_serve_handles_the_next_message(bus: Bus, clock: FakeClock) -> None:
    a = await worker(bus, "a")
    seen: list[int] = []

    async def handle(message: Message, unit: Unit) -> None:
        seen.append(message.payload)
        raise KINDS[message.payload]()

    logging.getLogger("agentbus").addFilter(_brief)
    try:
        receipts = await a.send_many([("a", "note", number) for number in range(len(KINDS))])
        async with running(a.serve(handle)):
            await eventually(clock, lambda: len(seen) == len(KINDS))
            await clock.settle()
    finally:
        logging.getLogger("agentbus").removeFilter(_brief)
    assert seen == list(range(len(KINDS)))
    records = [await stored(bus, receipt.message_id) for receipt in receipts]
    assert [record.error for record in records] == list(EXPECTED.values())


def _brief(record: logging.LogRecord) -> bool:
    """Leave out what would fill the report of the test."""
    return record.exc_info is None or record.exc_info[0] is not Endless


@pytest.mark.one_engine
async def test_tasks_and_their_steps_fail(bus: Bus, clock: FakeClock) -> None:
    @agentbus.workflow("hostile")
    async def flow(task: Task, number: int) -> None:
        def work() -> None:
            raise KINDS[number]() from Undecided()

        await task.step("work", work)

    tasks = [await bus.tasks.start(flow, number) for number in range(len(KINDS))]
    await work_off(bus, flow)
    for task, text in zip(tasks, EXPECTED.values(), strict=True):
        record = await task_of(bus, task.id)
        assert record.status == "failed"
        (step,) = await bus.tasks.steps(task.id)
        assert step.error is not None
        name, _, message = text.partition(": ")
        assert (step.error.type, step.error.message) == (name, message[:2000])


async def test_a_frame_of_a_file_whose_name_is_not_unicode_is_kept_with_the_task(bus: Bus) -> None:
    names: dict[str, Any] = {}
    exec(compile("def work():\n    raise ValueError('no')", "flows\udcff.py", "exec"), names)  # noqa: S102

    @agentbus.workflow("misnamed")
    async def flow(task: Task) -> None:
        names["work"]()

    task = await bus.tasks.start(flow)
    await work_off(bus, flow)
    record = await task_of(bus, task.id)
    assert record.error is not None
    assert record.error.traceback[-1] == "flows\\udcff.py:2 in work"


class Unshown:
    """Cannot be shown."""

    def __repr__(self) -> str:
        raise SystemExit(5)

    def __format__(self, specification: str) -> str:
        raise SystemExit(5)


@pytest.mark.one_engine
async def test_a_value_that_cannot_be_shown_is_refused_by_a_named_error(bus: Bus) -> None:
    unshown: Any = Unshown()
    with pytest.raises(InvalidName, match="cannot be shown"):
        await bus.sessions.get(unshown)
    a = await worker(bus, "a")
    with pytest.raises(InvalidInput, match="cannot be shown"):
        await a.send_many([unshown])


@pytest.mark.one_engine
async def test_an_answer_that_cannot_be_shown_resumes_nothing(engine: Engine) -> None:
    await interrupted(engine, "s", "a")
    unshown: Any = Unshown()
    async with engine.connect(auto_resume=lambda record: unshown) as bus:
        assert (await held(bus, "s")).status == "interrupted"
