"""The bus against a model: any sequence of sends, claims, settlements, crashes, takeovers, state changes and time."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterator
from itertools import count
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentbus import Address, Agent, Bus, Message, State, pool
from agentbus.errors import AgentFenced, LeaseLost, VersionConflict
from tests.api.helpers import stored, worker
from tests.conftest import Engine
from tests.support.clock import FakeClock
from tests.support.examples import examples
from tests.support.figures import Figure


class Entry(msgspec.Struct):
    """A message as the rules define it; times in milliseconds of wall and awake time."""

    number: int
    box: str
    priority: int
    max_attempts: int
    status: str
    due: int | None
    expires: int | None
    attempts: int = 0
    lease: int = 0
    until: int = 0
    holder: str = ""


class Model:
    """The rules of the queue, as plainly as they can be written."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.versions: dict[str, int] = {}

    def send(self, wall: int, box: str, priority: int, delay: int | None, ttl: int | None, max_attempts: int) -> None:
        due = wall + delay * 1000 if delay else None
        expires = (due or wall) + ttl * 1000 if ttl else None
        status = "scheduled" if due else "queued"
        self.entries.append(Entry(len(self.entries), box, priority, max_attempts, status, due, expires))

    def tend(self, boxes: tuple[str, ...], wall: int, awake: int) -> None:
        for entry in self.entries:
            if entry.box not in boxes:
                continue
            if entry.status == "leased" and entry.until <= awake:
                entry.status = "dead" if entry.attempts >= entry.max_attempts else "queued"
            waits = entry.status in {"queued", "scheduled"}
            if waits and entry.expires is not None and entry.expires <= wall:
                entry.status = "expired"
            elif entry.status == "scheduled" and entry.due is not None and entry.due <= wall:
                entry.status = "queued"

    def claim(self, boxes: tuple[str, ...], most: int, lease: int, wall: int, awake: int) -> list[Entry]:
        self.tend(boxes, wall, awake)
        ready = [entry for entry in self.entries if entry.box in boxes and entry.status == "queued"]
        taken = sorted(ready, key=lambda entry: (-entry.priority, entry.number))[:most]
        for entry in taken:
            entry.status = "leased"
            entry.attempts += 1
            entry.lease += 1
            entry.until = awake + lease * 1000
            entry.holder = boxes[0]
        return taken

    def end_life(self, holder: str) -> None:
        """Messages held by an agent that crashed or was taken over return as if their leases had ended."""
        for entry in self.entries:
            if entry.status == "leased" and entry.holder == holder:
                entry.status = "dead" if entry.attempts >= entry.max_attempts else "queued"

    def compare_and_set(self, key: str, if_version: int) -> int | None:
        """The version that a key then has; None if it had another than that."""
        if self.versions.get(key, 0) != if_version:
            return None
        self.versions[key] = if_version + 1
        return if_version + 1

    def give_back(self, entry: Entry, delay: int, wall: int) -> None:
        if entry.attempts >= entry.max_attempts:
            entry.status = "dead"
        else:
            entry.status = "scheduled" if delay else "queued"
            entry.due = wall + delay * 1000 if delay else None


SENDS = st.tuples(
    st.just("send"),
    st.sampled_from(["x", "y", "p"]),
    st.integers(0, 9),
    st.sampled_from([None, 5, 20]),
    st.sampled_from([None, None, 3, 30]),
    st.sampled_from([1, 2, 5]),
)
CLAIMS = st.tuples(st.just("claim"), st.sampled_from(["x", "y"]), st.sampled_from([1, 1, 3]), st.sampled_from([4, 60]))
SETTLEMENTS = st.tuples(
    st.just("settle"), st.integers(0, 50), st.sampled_from(["ack", "ack", "back", "later", "reject", "extend"])
)
LIVES = st.tuples(st.sampled_from(["crash", "take over"]), st.sampled_from(["x", "y"]))
SETS = st.tuples(st.just("compare and set"), st.sampled_from(["k", "l"]), st.integers(0, 4))
TIMES = st.tuples(st.sampled_from(["advance", "advance", "jump"]), st.sampled_from([0.5, 3, 10, 60]))

STEPS = st.one_of(SENDS, SENDS, CLAIMS, CLAIMS, CLAIMS, SETTLEMENTS, SETTLEMENTS, SETTLEMENTS, TIMES, LIVES, SETS)

_PROFILE = settings.get_profile("faults")
_round = count()
_done: Counter[str] = Counter()


@pytest.fixture
async def bus(engine: Engine) -> AsyncIterator[Bus]:
    """It is not about power cuts: what is written thousands of times need not be synced."""
    async with engine.connect(durability="process") as bus:
        yield bus


@pytest.fixture
def counted(figure: Figure, request: pytest.FixtureRequest) -> Iterator[None]:
    """Says at the end how much was done."""
    _done.clear()
    yield
    name = request.node.callspec.params["engine"]
    figure(name, **{"examples": _done["examples"], "steps": _done["steps"], "that differ from the model": 0})


@pytest.mark.slow
@pytest.mark.fault(14)
@settings(
    _PROFILE,
    max_examples=_PROFILE.max_examples if examples.full else 20,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(steps=st.lists(STEPS, min_size=8, max_size=60))
async def test_any_sequence_ends_as_the_model_says(bus: Bus, clock: FakeClock, counted: None, steps: list[Any]) -> None:
    _done.update(examples=1, steps=len(steps))
    # One bus for all examples, each with agents and a pool of its own.
    name = f"r{next(_round)}"
    agents = {box: await worker(bus, f"{name}-{box}", pools=[f"{name}-p"]) for box in ("x", "y")}
    addresses: dict[str, str | Address] = {"x": f"{name}-x", "y": f"{name}-y", "p": pool(f"{name}-p")}
    model = Model()
    held: list[tuple[Message, Entry, int]] = []
    for step in steps:
        match step:
            case ("send", box, priority, delay, ttl, max_attempts):
                number = len(model.entries)
                model.send(clock.now().wall, box, priority, delay, ttl, max_attempts)
                await agents["x"].send(
                    addresses[box],
                    "note",
                    number,
                    priority=priority,
                    delay=delay,
                    ttl=ttl,
                    max_attempts=max_attempts,
                    message_id=f"{name}-{number}",
                )
            case ("claim", reader, most, lease):
                held += await _claim(agents[reader], model, clock, (reader, "p"), most, lease)
            case ("settle", which, how):
                if held:
                    message, entry, turn = held[which % len(held)]
                    await _settle(message, entry, turn, how, model, clock)
            case ("crash" | "take over" as how, reader):
                if how == "crash":
                    await agents[reader].fail("it crashed")
                model.end_life(reader)
                agents[reader] = await worker(bus, f"{name}-{reader}", pools=[f"{name}-p"], takeover=True)
                for message, _, _ in [one for one in held if one[1].holder == reader][:1]:
                    with pytest.raises((AgentFenced, LeaseLost)):
                        await message.ack()
                held = [one for one in held if one[1].holder != reader]
            case ("compare and set", key, version):
                await _compare_and_set(bus.state(f"{name}-s"), model, key, version)
            case ("advance", seconds):
                clock.advance(seconds)
            case ("jump", seconds):
                clock.jump(seconds)
    # A last look tends every mailbox.
    for reader in ("x", "y"):
        await _claim(agents[reader], model, clock, (reader, "p"), 1, 60)
    for entry in model.entries:
        record = await stored(bus, f"{name}-{entry.number}")
        assert (record.status, record.attempts) == (entry.status, entry.attempts), entry
    for agent in agents.values():
        await agent.stop()


async def _compare_and_set(state: State, model: Model, key: str, version: int) -> None:
    expected = model.compare_and_set(key, version)
    try:
        found = await state.set(key, version, if_version=version)
    except VersionConflict:
        found = None
    assert found == expected


async def _claim(
    agent: Agent, model: Model, clock: FakeClock, boxes: tuple[str, ...], most: int, lease: int
) -> list[tuple[Message, Entry, int]]:
    now = clock.now()
    expected = model.claim(boxes, most, lease, now.wall, now.awake)
    messages = await agent.receive_many(most, timeout=0, lease=lease)
    assert [(message.payload, message.attempts) for message in messages] == [
        (entry.number, entry.attempts) for entry in expected
    ]
    return [(message, entry, entry.lease) for message, entry in zip(messages, expected, strict=True)]


async def _settle(message: Message, entry: Entry, lease: int, how: str, model: Model, clock: FakeClock) -> None:
    now = clock.now()
    if entry.status == "leased" and entry.until <= now.awake:
        return  # ended, but not yet noticed: either answer is right
    ours = entry.status == "leased" and entry.lease == lease
    try:
        match how:
            case "ack":
                await message.ack()
            case "back":
                await message.nack(delay=0)
            case "later":
                await message.nack(delay=7)
            case "reject":
                await message.reject("no")
            case "extend":
                await message.extend(30)
    except LeaseLost:
        assert not ours, entry
        return
    assert ours, entry
    match how:
        case "ack":
            entry.status = "acked"
        case "back" | "later":
            model.give_back(entry, 7 if how == "later" else 0, now.wall)
        case "reject":
            entry.status = "dead"
        case "extend":
            entry.until = now.awake + 30_000
