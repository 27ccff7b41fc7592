"""Clocks that jump, go back, stop and restart: no agent fails and no lease is lost or delivered twice."""

import random
from collections import Counter

import pytest

from agentbus import Bus, Message, pool
from tests.api.helpers import known, worker
from tests.conftest import Engine
from tests.support.clock import FakeClock
from tests.support.figures import Figure, Scale

SEED = 20_261_120
HOUR = 3600.0
AGENTS = 5
LEASE = 30.0


@pytest.mark.slow
@pytest.mark.fault(12)
async def test_clock_changes_fail_no_agent_and_lose_or_double_no_lease(
    bus: Bus, engine: Engine, clock: FakeClock, figure: Figure, scale: Scale
) -> None:
    chance = random.Random(seed := scale.seed(SEED))
    agents = [await worker(bus, f"a{n}", pools=["p"]) for n in range(AGENTS)]
    faults: Counter[str] = Counter()
    failures: list[str] = []
    doubled: list[int] = []
    held: dict[int, tuple[Message, int]] = {}
    sent = handled = 0
    for _ in range(scale(30, 600, 6000)):
        sent += 1
        await agents[0].send(pool("p"), "note", sent)
        message = await chance.choice(agents).receive(timeout=0, lease=LEASE)
        if message is not None:
            doubled += [message.payload] if message.payload in held else []
            held[message.payload] = message, clock.now().awake
        match fault := chance.choice(("forward", "back", "asleep", "awake")):
            case "forward" | "back":
                clock.jump(HOUR if fault == "forward" else -HOUR)
            case "asleep":
                clock.sleep_machine(HOUR)
            case "awake":
                await clock.pass_time(chance.choice((1, 5)))
        faults[fault] += 1
        failures += [finding.text for finding in (await bus.sweep(fail_stuck_after=600)).findings]
        for payload, (message, since) in list(held.items()):
            # Before its time of awake milliseconds is over, a lease is whole: this raises if it is not.
            if clock.now().awake - since > (LEASE - 10) * 1000 or chance.random() < 0.3:
                await message.ack()
                handled += 1
                del held[payload]
    failures += [agent.id for agent in agents if (await known(bus, agent.id)).status != "running"]

    # Some are held when the machine is started again.
    await agents[0].send_many([(pool("p"), "note", sent + n) for n in range(1, 6)])
    sent += 5
    left = len(held) + len(await agents[1].receive_many(3, timeout=0, lease=LEASE))
    now = clock.now()
    async with engine.connect(clock=FakeClock(wall=now.wall, awake=500, boot="boot-2")) as after:
        survivor = await worker(after, "a0", pools=["p"])
        rest = await survivor.receive_many(10_000, timeout=0)
        again = sum(message.attempts == 2 for message in rest)
        await survivor.ack(rest)
    lost = sent - handled - len({message.payload for message in rest})
    jumps = faults.total() - faults["awake"]
    note = f"then a reboot: {again} of {left} held messages delivered again"
    figure(note, faults=jumps, false_failures=len(failures), acknowledged=sent, lost=lost, duplicated=len(doubled))
    assert not failures, f"seed {seed}: {failures[:3]}"
    assert (lost, doubled, again) == (0, [], left)
