"""An old snapshot on the server blocks the removal of deleted rows, and its holder is named."""

from __future__ import annotations

import asyncio

import anyio
import asyncpg
import pytest

import agentbus
from agentbus import Agent, Bus
from agentbus.api.monitor import Sweeper, Thresholds
from agentbus.operations.liveness import Rules
from agentbus.records import Check, Finding
from tests.support.figures import Figure, Scale

OLD = 1
"""Seconds that are taken for long here, instead of minutes: the time of a real server cannot be injected."""
WITHIN = 5.0


@pytest.mark.slow
@pytest.mark.fault(22)
async def test_the_holder_of_an_old_snapshot_is_named_by_the_monitor_and_the_doctor(
    url: str, figure: Figure, scale: Scale, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentbus.engine.postgres.health.OLD_TRANSACTION", OLD)
    messages = scale(50, 500)
    async with agentbus.connect(url) as bus:
        agent = await bus.register("a", type="worker")
        sweeper = Sweeper(bus._engine, Rules(60_000, 300_000), Thresholds(transaction=OLD))
        assert await alarms(sweeper) == []
        old = await asyncpg.connect(url.partition("&schema")[0], server_settings={"application_name": "report"})
        await old.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        pid = await old.fetchval("SELECT pg_backend_pid() FROM pg_class")
        await use(agent, messages)
        with anyio.fail_after(WITHIN):
            while not (found := await alarms(sweeper)):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        (finding,) = found
        assert (finding.subject, finding.severity) == ("server:transactions", "warning")
        assert finding.facts == {"seconds": finding.facts["seconds"], "pid": pid, "program": "report"}
        assert f"pg_terminate_backend({pid})" in finding.text
        check = await checked(bus)
        assert (check.status, check.fix) == ("warning", f"end it: SELECT pg_terminate_backend({pid})")
        assert f"backend {pid} (report)" in check.text
        await old.close()
        assert await alarms(sweeper) == []
        assert (await checked(bus)).status == "ok"
        counts = (await bus.stats()).messages
    lost = messages - counts["acked"]
    figure(
        f"an old snapshot: reported by the monitor ({finding.kind}) and the doctor", acknowledged=messages, lost=lost
    )
    assert counts == {"acked": messages}


async def alarms(sweeper: Sweeper) -> list[Finding]:
    return [finding for finding in (await sweeper.sweep()).findings if finding.kind == "transaction_old"]


async def checked(bus: Bus) -> Check:
    (check,) = [one for one in await bus.doctor() if one.name == "transactions"]
    return check


async def use(agent: Agent, count: int) -> None:
    for number in range(count):
        await agent.send(agent.id, "note", number)
        message = await agent.receive(timeout=WITHIN)
        assert message is not None
        assert message.payload == number
        await message.ack()
