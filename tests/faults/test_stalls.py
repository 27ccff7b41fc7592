"""A stalled loop loses its lease, and then writes nothing."""

from pathlib import Path

import pytest

import agentbus
from tests.faults.rows import lock_held, rows
from tests.support.processes import Team


@pytest.mark.parametrize("how", ["frozen", "blocked"])
async def test_a_stalled_loop_loses_its_lease_and_writes_nothing(tmp_path: Path, team: Team, how: str) -> None:
    async with (
        agentbus.connect(tmp_path, beat_every=3600) as bus,
        bus.agent("sink", type="worker") as sink,
    ):
        await bus.declare(agentbus.pool("jobs"))
        await sink.send(agentbus.pool("jobs"), "task_assignment", message_id="job")
        stalling = team.start("worker_stall", tmp_path, how)
        _, lease = map(int, stalling.expect("holding").split())
        if how == "frozen":
            with lock_held(tmp_path):
                stalling.stop()
            stalling.tell("go on")

        async with bus.agent("other", type="worker", pools=["jobs"]) as other:
            # It learns from its claim when that lease ends; no doorbell rings for it.
            message = await other.receive(timeout=20)
            assert message is not None
            assert message.message_id == "job"
            assert message._lease[1] == lease + 1
            async with message as unit:
                unit.send("sink", "completion_notification", {"by": "other"})

        if how == "frozen":
            stalling.resume()
        else:
            stalling.tell("go on")
        assert stalling.expect("lost") == "job"
        stalling.finish()

    results = [payload for (payload,) in rows(tmp_path, "SELECT payload FROM messages WHERE sender = 'stalling'")]
    (progress,) = rows(tmp_path, "SELECT progress, status FROM agents WHERE id = 'stalling'")
    print(f"{how}: 1 lease lost, written under it: {len(results) - 1} sends")
    assert results == ['{"by":"stalling, afterwards"}']
    assert progress == (0, "completed")
    assert rows(tmp_path, "SELECT status, holder, attempts FROM messages WHERE message_id = 'job'") == [
        ("acked", "other", 2)
    ]


async def test_a_stall_shorter_than_the_lease_keeps_it(tmp_path: Path, team: Team) -> None:
    """Conversely, a lease that has not ended is not lost."""
    async with (
        agentbus.connect(tmp_path, beat_every=3600) as bus,
        bus.agent("driver", type="worker") as driver,
    ):
        await bus.declare(agentbus.pool("jobs"))
        await driver.send(agentbus.pool("jobs"), "task_assignment", {"number": 1}, message_id="job")
        holding = team.start("worker_hold", tmp_path, "holder")
        holding.expect("holding")
        with lock_held(tmp_path):
            holding.stop()
        async with bus.agent("other", type="worker", pools=["jobs"]) as other:
            assert await other.receive(timeout=0) is None
        holding.resume()
        holding.tell("kept")
        result = await driver.receive(timeout=20)
        assert result is not None
        assert result.payload == {"number": 1, "by": "kept"}
        holding.finish()
