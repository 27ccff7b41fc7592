"""Typed payloads between real processes that know different forms of a Struct, or none."""

from pathlib import Path

import msgspec
import pytest

import agentbus
from agentbus.errors import InvalidPayload
from tests.support.processes import Team

pytestmark = pytest.mark.slow


class Plan(msgspec.Struct):
    files: int


@pytest.mark.parametrize("knows", ["plan", "nothing"])
async def test_a_struct_goes_to_another_process_and_back(short: Path, team: Team, knows: str) -> None:
    path = short / "bus"
    async with agentbus.connect(path) as bus, bus.agent("asker", type="worker") as asker:
        team.start("worker_typed", path, knows).expect("ready")
        reply = await asker.request("echo", Plan(1), timeout=20)
        assert (reply.type, reply.payload) == ("plan", Plan(2))
        assert reply.raw == ({"files": 2, "owner": "echo"} if knows == "plan" else {"files": 2})
        # Its schema holds here too, although another process defined it.
        with pytest.raises(InvalidPayload):
            await asker.send("echo", "plan", {"files": "twelve"})


async def test_a_process_with_another_form_of_a_struct_gets_an_error_on_reading_and_continues(
    short: Path, team: Team
) -> None:
    path = short / "bus"
    async with agentbus.connect(path) as bus, bus.agent("asker", type="worker") as asker:
        await bus.expect("echo", type="worker")
        # It waits there before the other process comes with its form, which would not let it in.
        old = await asker.send("echo", Plan(1))
        team.start("worker_typed", path, "renamed").expect("ready")
        answer = await asker.receive(timeout=20)
        assert answer is not None
        assert (answer.type, answer.payload) == ("note", {"code": "payload_mismatch", "raw": {"files": 1}})
        await answer.ack()
        assert old.message_id is not None
        record = await bus.messages.get(old.message_id)
        assert record is not None
        with pytest.raises(InvalidPayload, match="file_count"):
            await asker.send("echo", Plan(2))
