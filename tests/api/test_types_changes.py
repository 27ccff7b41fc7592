"""Changed Structs and definitions: payloads that are still readable, and errors."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from msgspec import Struct

from agentbus import Bus, Message, Unit
from agentbus.errors import InvalidPayload, PayloadMismatch
from tests.api.helpers import refusing, running, stored, take, worker
from tests.api.structs import PLAN, Other
from tests.conftest import Engine
from tests.support.clock import FakeClock


def versions() -> tuple[type[Struct], type[Struct], type[Struct], type[Struct]]:
    """Plan as it was, with an optional field more, with a field renamed, and with a required one more."""

    def make(*fields: Any) -> type[Struct]:
        return msgspec.defstruct("Plan", fields)

    files = ("files", int)
    return (
        make(files),
        make(files, ("owner", str, "nobody")),
        make(("file_count", int)),
        make(files, ("owner", str)),
    )


@pytest.mark.one_engine
async def test_a_struct_with_an_optional_field_more_reads_old_payloads(engine: Engine) -> None:
    old, new, *_ = versions()
    async with engine.connect() as bus, engine.connect() as later:
        a, b = await worker(bus, "a"), await worker(later, "b")
        await a.send("b", old(files=1))
        await later.define(new)
        message = await take(b)
        assert message.payload == new(files=1, owner="nobody")
        await message.ack()
        # And the old one reads what the new one sends, which the old process may still send itself.
        await b.send("a", new(files=2, owner="ada"))
        assert (await take(a)).payload == old(files=2)
        await a.send("b", old(files=3))
        assert (await take(b)).payload == new(files=3, owner="nobody")


Settle = Callable[[Message], Awaitable[Any]]
SETTLING: dict[str, tuple[Settle, str]] = {
    "ack": (lambda message: message.ack(), "acked"),
    "nack": (lambda message: message.nack(0), "queued"),
    "reject": (lambda message: message.reject("cannot be read"), "dead"),
}


@pytest.mark.one_engine
@pytest.mark.parametrize("how", SETTLING)
async def test_a_struct_that_does_not_read_old_payloads_is_an_error_when_reading_not_before(
    engine: Engine, how: str
) -> None:
    old, _, renamed, _ = versions()
    async with engine.connect() as bus, engine.connect() as later:
        a, b = await worker(bus, "a"), await worker(later, "b")
        receipt = await a.send("b", old(files=1))
        await later.define(renamed)
        message = await take(b)
        for _ in range(2):
            with pytest.raises(PayloadMismatch, match="file_count") as mismatch:
                _ = message.payload
        error = mismatch.value
        assert (error.code, error.type) == ("payload_mismatch", "Plan")
        assert message.message_id in error.what
        assert message.raw == {"files": 1}
        assert message.decode(old) == old(files=1)
        settle, status = SETTLING[how]
        await settle(message)
        assert (await stored(bus, receipt.message_id)).status == status


@pytest.mark.one_engine
async def test_a_handler_that_cannot_read_its_message_makes_a_dead_letter_of_it(
    engine: Engine, clock: FakeClock
) -> None:
    old, _, renamed, _ = versions()
    async with engine.connect() as bus, engine.connect() as later:
        a, b = await worker(bus, "a"), await worker(later, "b")
        receipt = await a.send("b", old(files=1), max_attempts=1)
        await a.send("b", "note", "next")
        await later.define(renamed)
        seen: list[Any] = []

        async def handle(message: Message, unit: Unit) -> None:
            seen.append(message.payload)

        async with running(b.serve(handle)):
            while not seen:
                await clock.settle()
        record = await stored(bus, receipt.message_id)
        assert (seen, record.status) == (["next"], "dead")
        assert "PayloadMismatch" in (record.error or "")


async def test_a_later_definition_applies_to_every_sender(engine: Engine) -> None:
    old, _, _, stricter = versions()
    async with engine.connect() as bus, engine.connect() as later:
        a, b = await worker(bus, "a"), await worker(later, "b")
        await a.send("b", old(files=1))
        await b.send("a", stricter(files=2, owner="ada"))
        async with refusing(bus, a, InvalidPayload) as found:
            await a.send("b", old(files=3))
        assert "'owner'" in str(found.value)


async def test_two_structs_of_one_name_do_not_redefine_each_other_repeatedly(bus: Bus) -> None:
    a = await worker(bus, "a")
    await a.send("a", PLAN)
    await a.send("a", Other("x"))
    (record,) = [type for type in await bus.types() if type.name == "plan"]
    async with refusing(bus, a, InvalidPayload):
        await a.send("a", PLAN)
    assert [type for type in await bus.types() if type.name == "plan"] == [record]
