"""Damaged bytes of the file are detected, and a wrong payload is never delivered."""

import asyncio
import random
import shutil
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import agentbus
from agentbus.errors import AgentBusError
from tests.support.figures import Figure, Scale

SEED = 20_261_118


async def fill(path: Path) -> None:
    """Something of everything, in about a hundred pages."""
    async with agentbus.connect(path, beat_every=3600) as bus, bus.session("planning", id="s") as session:
        await bus.declare(agentbus.pool("jobs"))
        for name in ("a", "b", "c"):
            async with session.agent(name, type="worker", capabilities=[f"can-{name}"]) as agent:
                for number in range(40):
                    await agent.state.set(f"key-{number}", {"n": number, "text": name * (number * 7 % 300)})
                    await agent.send(agentbus.pool("jobs"), "note", {"n": number, "text": name * (number * 13 % 900)})
                for number in range(4):
                    await agent.checkpoint(f"step-{number}", {"n": number, "text": name * 5000})
        await session.document("plan").save({"text": "p" * 9000})
        puts = [agentbus.HistoryPut(body=bytes([n]) * 9000, meta={"n": n}) for n in range(12)]
        await bus.histories.write("langgraph", "thread", puts)
        await bus.backup()


async def everything(path: Path) -> dict[str, Any]:
    """All that the bus gives out."""
    async with agentbus.connect(path, beat_every=3600) as bus:
        found: dict[str, Any] = {}
        for name in ("a", "b", "c"):
            found[f"agent {name}"] = await bus.agents.get(name)
            found[f"state of {name}"] = (await bus.state(name).list(limit=1000)).items
            for one in (await bus.checkpoints.list(name)).items:
                found[f"checkpoint {name} {one.name}"] = await bus.checkpoints.get(one.id)
        found["messages"] = (await bus.messages.list(limit=1000)).items
        found["session"] = await bus.sessions.get("s")
        found["document"] = await (await bus.sessions.open("s")).document("plan").record()
        found["history"] = await bus.histories.items("langgraph")
        found["events"] = [event async for event in bus.events()]
        return found


def damage(file: Path, chance: random.Random) -> str:
    """One bit, some bytes, or a sector that was never written: where, and what."""
    content = bytearray(file.read_bytes())
    how = chance.choice(("bit", "bytes", "sector"))
    if how == "bit":
        place = chance.randrange(len(content))
        content[place] ^= 1 << chance.randrange(8)
    elif how == "bytes":
        place = chance.randrange(len(content) - 64)
        content[place : place + 64] = chance.randbytes(64)
    else:
        place = chance.randrange(len(content) // 512) * 512
        content[place : place + 512] = bytes(512)
    file.write_bytes(content)
    return f"{how} at {place}"


async def judge(path: Path, right: dict[str, Any]) -> tuple[str, str]:
    """Return ``noticed``, ``harmless`` or ``unseen``, with the reason."""
    checks = await agentbus.doctor(path)
    errors = [check for check in checks if check.status == "error"]
    if errors:
        return "noticed", "" if all(check.fix for check in errors) else f"no advice: {errors}"
    try:
        found = await everything(path)
    except AgentBusError as error:
        return "noticed", "" if error.fix else f"no advice: {error}"
    wrong = [name for name, record in right.items() if contents(found.get(name)) != contents(record)]
    if wrong:
        return "given out", ", ".join(wrong)
    return ("elsewhere" if found != right else "harmless"), ""


def contents(record: Any) -> Any:
    """Return what a caller stored: the part that has a checksum."""
    if isinstance(record, list):
        return [contents(one) for one in record]
    names = ("payload", "value", "snapshot", "body")
    return next((getattr(record, name) for name in names if hasattr(record, name)), None)


@pytest.mark.slow
@pytest.mark.fault(19)
async def test_damaged_bytes_are_detected_and_never_delivered(tmp_path: Path, figure: Figure, scale: Scale) -> None:
    chance = random.Random(seed := scale.seed(SEED))
    source = tmp_path / "source"
    await fill(source)
    with closing(sqlite3.connect(source / "bus.db")) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    right = await everything(source)
    verdicts: Counter[str] = Counter()
    unseen: list[str] = []
    for number in range(times := scale(12, 60, 1000)):
        path = tmp_path / str(number)
        shutil.copytree(source, path, ignore=shutil.ignore_patterns("bells", "*-wal", "*-shm"))
        where = damage(path / "bus.db", chance)
        verdict, facts = await judge(path, right)
        verdicts[verdict] += 1
        if facts:
            unseen.append(f"seed {seed}, {number}: {where}: {facts}")
        await asyncio.to_thread(shutil.rmtree, path)
    figure(
        damages=times,
        noticed=verdicts["noticed"],
        harmless=verdicts["harmless"],
        returned_wrong=verdicts["given out"],
        note=f"{verdicts['elsewhere']} in a column that has no checksum and no constraint",
    )
    assert verdicts["noticed"] >= times // 4
    # Times have neither a checksum nor a tight constraint: few damages hit one.
    assert verdicts["elsewhere"] <= scale(1, 1, times // 100)
    assert not unseen, unseen
