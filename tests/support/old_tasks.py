"""Tasks as version 2 of the tables has them, for the tests that bring a bus up to date."""

from __future__ import annotations

from zlib import crc32

import agentbus
from agentbus import Bus, Task
from tests.support.traces import TRACE, traced

_ARGUMENTS = '{"arguments":[],"keywords":{}}'
OLD_TASKS = """
INSERT INTO tasks (
    id, workflow, name, status, generation, lease, due, restarts, created, started, updated, ended, error, checksum,
    result_sum, arguments, result
)
VALUES
    ('done', 'kept', 'Done', 'completed', 0, 1, NULL, 0, 1, 1, 2, 2, NULL, $crc, 1790921346, '$given', '7'),
    ('broken', 'kept', 'Broken', 'failed', 1, 1, NULL, 0, 1, 1, 2, 2,
        '{"type":"ValueError","message":"no","step":"two"}', $crc, NULL, '$given', NULL),
    ('begun', 'kept', 'Begun', 'pending', 0, 1, 0, 3, 1, 1, 2, NULL, NULL, $crc, NULL, '$given', NULL);
INSERT INTO steps (
    task, kind, key, superseded, name, position, status, attempt, error, started, finished, checksum, result
)
VALUES
    (2, 'step', 'one', 0, 'one', 1, 'finished', 1, NULL, 1, 2, 2212294583, '1'),
    (2, 'step', 'two', 1, 'two', 2, 'failed', 1, '{"type":"ValueError","message":"no"}', 1, 2, NULL, NULL),
    (2, 'step', 'two', 0, 'two', 3, 'failed', 2, '{"type":"ValueError","message":"no"}', 1, 2, NULL, NULL),
    (3, 'step', 'one', 0, 'one', 1, 'finished', 1, NULL, 1, 2, 2212294583, '1'),
    (3, 'step', 'two', 0, 'two', 2, 'interrupted', 1, NULL, 1, NULL, NULL, NULL);
INSERT INTO approvals (task, key, name, position, status, created, decided, decided_by, checksum, shown)
VALUES (1, 'go', 'go', 1, 'approved', 1, 2, 'ada', 2212294583, '1');
""".replace("$crc", str(crc32(_ARGUMENTS.encode()))).replace("$given", _ARGUMENTS)


@agentbus.workflow("kept")
async def kept(task: Task) -> int:
    one = await task.step("one", lambda: 1)
    return one + await task.step("two", lambda: 2)


async def check_old_tasks(bus: Bus) -> None:
    """They are all there, go on, and are redone by the rule of their version: all from the step on."""
    records = {record.id: record for record in (await bus.tasks.list()).items}
    assert {id: (record.status, record.losses, record.max_losses, record.redo) for id, record in records.items()} == {
        "done": ("completed", 0, 5, []), "broken": ("failed", 0, 5, []), "begun": ("pending", 0, 5, []),
    }  # fmt: skip
    assert records["done"].result == 7
    assert [one.status for one in await bus.tasks.approvals("done", status=None)] == ["approved"]
    assert [one.superseded for one in await bus.tasks.steps("broken", history=True)] == [0, 1, 0]
    await bus.tasks.resume("broken")
    await bus.tasks.redo("begun", "one")
    assert await bus.tasks.steps("begun") == []
    await bus.tasks.run_worker(kept, until_idle=True)
    assert [await bus.tasks.result(id) for id in ("broken", "begun")] == [3, 3]
    # They can be depended on, and the new columns have their defaults.
    assert [(record.manual, record.priority, record.after) for record in records.values()] == [(False, 5, [])] * 3
    await bus.tasks.restart("begun")
    await bus.tasks.add("review", id="review", after=["done", "begun"])
    assert (await bus.tasks.start(kept, id="last", after=["review"])).waits == ["after:review"]
    await bus.tasks.run_worker(kept, until_idle=True)
    async with bus.agent("reviewer", type="worker") as reviewer:
        await reviewer.items.take("review")
        await reviewer.items.finish("review")
    await bus.tasks.run_worker(kept, until_idle=True)
    assert await bus.tasks.result("last") == 3
    # Version 14 stores traces: those from before have none.
    assert {record.trace for record in records.values()} == {None}
    with traced():
        await bus.tasks.start(kept, id="traced")
        await bus.tasks.run_worker(kept, until_idle=True)
    record, steps = await bus.tasks.get("traced"), await bus.tasks.steps("traced")
    assert [one and one.trace for one in (record, *steps)] == [TRACE] * (1 + len(steps))
    assert [check for check in await bus.doctor() if check.status == "error"] == []


NUMBERED = "UPDATE steps SET seen = position - 1, ending = position WHERE status = 'finished'"
"""The order of endings, which version 4 added."""
STEPS = (
    "SELECT id, task, kind, key, superseded, position, status, attempt, error, started, finished, checksum, result, "
    "seen, ending FROM steps ORDER BY id"
)


@agentbus.workflow("waits")
async def waits(task: Task) -> list[object]:
    await task.sleep(0)
    await task.expose("stage", "waiting")
    message = await task.receive()
    assert message is not None
    return [await task.signal("go"), message.payload]


async def check_waits(bus: Bus) -> None:
    """A bus that was brought up to date has what version 7 added."""
    sender = await bus.register("sender", type="worker")
    await bus.tasks.start(waits, id="waits-1")
    await bus.tasks.run_worker(waits, until_idle=True)
    record = await bus.tasks.get("waits-1")
    assert record is not None
    assert (record.status, record.waits) == ("waiting", ["message"])
    await sender.send("task:waits-1", "note", 1)
    await bus.tasks.signal("waits-1", "go", "now")
    await bus.tasks.run_worker(waits, until_idle=True)
    assert await bus.tasks.result("waits-1") == ["now", 1]
    assert await bus.tasks.query("waits-1") == {"stage": "waiting"}
    assert [check for check in await bus.doctor() if check.status == "error"] == []
