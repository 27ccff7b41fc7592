"""State against a dict: any sequence of changes and time ends as in the dict, and a watcher sees the same."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import Any

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentbus import Bus, State
from agentbus.errors import VersionConflict, WrongState
from tests.support.clock import FakeClock
from tests.support.examples import examples


class Entry(msgspec.Struct):
    """A key as the rules define it; ``version`` outlives its value."""

    value: Any = None
    version: int = 0
    there: bool = False
    expires: int | None = None


class Model:
    """The rules of state, as plainly as they can be written."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}

    def look(self, key: str, wall: int) -> Entry:
        entry = self.entries.setdefault(key, Entry())
        if entry.there and entry.expires is not None and entry.expires <= wall:
            entry.there = False
        return entry

    def seen(self, wall: int) -> dict[str, tuple[Any, int]]:
        return {
            key: (entry.value, entry.version) for key in sorted(self.entries) if (entry := self.look(key, wall)).there
        }

    def apply(self, step: tuple[Any, ...], wall: int) -> Any:
        """The outcome that a change must have: a value, or the class of an error."""
        name, key, *rest = step
        entry = self.look(key, wall)
        now = entry.version if entry.there else 0
        expected = _expected(rest[-1], entry.version) if name in {"set", "delete"} else None
        if expected is not None and expected != now:
            return VersionConflict
        if name == "delete":
            existed, entry.there = entry.there, False
            return existed
        value, ttl = rest[0], rest[1]
        if name == "increment":
            before = entry.value if entry.there else 0
            if isinstance(before, str):
                return WrongState
            value = before + value
        if name == "set" or ttl is not None or not entry.there:
            entry.expires = None if ttl is None else wall + ttl * 1000
        entry.value, entry.there = value, True
        entry.version += 1
        return value if name == "increment" else entry.version


def _expected(choice: str | None, version: int) -> int | None:
    return {None: None, "zero": 0, "current": version, "stale": max(0, version - 1)}[choice]


KEYS = st.sampled_from(["a", "a/1", "b"])
TTLS = st.sampled_from([None, None, 1, 5])
VERSIONS = st.sampled_from([None, None, "zero", "current", "stale"])
SETS = st.tuples(st.just("set"), KEYS, st.one_of(st.integers(-5, 5), st.just("text")), TTLS, VERSIONS)
DELETES = st.tuples(st.just("delete"), KEYS, VERSIONS)
INCREMENTS = st.tuples(st.just("increment"), KEYS, st.sampled_from([1, -2, 0.5]), TTLS)
CHANGES = st.one_of(SETS, SETS, DELETES, INCREMENTS)
TIMES = st.tuples(st.sampled_from(["stall", "pass"]), st.sampled_from([0.5, 1, 4, 6]))
TOGETHER = st.tuples(st.just("together"), st.lists(CHANGES, min_size=2, max_size=8))

_round = count()


@settings(
    max_examples=examples(120),
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(steps=st.lists(st.one_of(CHANGES, CHANGES, CHANGES, TIMES, TOGETHER), min_size=1, max_size=40))
async def test_any_sequence_ends_as_the_model_says(bus: Bus, clock: FakeClock, steps: list[Any]) -> None:
    # One bus for all examples, each with a scope of its own.
    state = bus.state(f"r{next(_round)}")
    model = Model()
    mirror: dict[str, tuple[Any, int]] = {}
    watcher = asyncio.create_task(_mirror(state, mirror))
    for step in steps:
        match step:
            case ("stall", seconds):
                clock.stall(seconds)
            case ("pass", seconds):
                await clock.pass_time(seconds)
            case ("together", changes):
                # All of them come to the writer at once, and share their statements.
                expected = [_known(model, change, clock) for change in changes]
                calls = [_call(state, change, version) for change, version, _ in expected]
                outcomes = await asyncio.gather(*calls, return_exceptions=True)
                assert [_kind(outcome) for outcome in outcomes] == [outcome for _, _, outcome in expected]
            case change:
                _, version, outcome = _known(model, change, clock)
                alone = await asyncio.gather(_call(state, change, version), return_exceptions=True)
                assert [_kind(found) for found in alone] == [outcome], change
        seen = model.seen(clock.now().wall)
        assert {entry.key: (entry.value, entry.version) for entry in (await state.list()).items} == seen
        for key in ("a", "a/1", "b"):
            assert await state.get(key, "nothing") == seen.get(key, ("nothing", 0))[0]
    clock.advance(0)
    await clock.pass_time(6)
    assert dict(sorted(mirror.items())) == model.seen(clock.now().wall)
    watcher.cancel()
    await asyncio.gather(watcher, return_exceptions=True)


async def _mirror(state: State, mirror: dict[str, tuple[Any, int]]) -> None:
    last = 0
    async for entry in state.watch():
        assert entry.change > last
        last = entry.change
        if entry.deleted:
            mirror.pop(entry.key, None)
        else:
            mirror[entry.key] = entry.value, entry.version


def _known(model: Model, change: Any, clock: FakeClock) -> tuple[Any, int | None, Any]:
    """A change, the version that it demands, and the outcome that it must have."""
    wall = clock.now().wall
    name, key, *rest = change
    version = _expected(rest[-1], model.look(key, wall).version) if name in {"set", "delete"} else None
    return change, version, model.apply(change, wall)


def _call(state: State, change: Any, version: int | None) -> Any:
    match change:
        case ("set", key, value, ttl, _):
            return state.set(key, value, ttl=ttl, if_version=version)
        case ("delete", key, _):
            return state.delete(key, if_version=version)
        case ("increment", key, amount, ttl):
            return state.increment(key, amount, ttl=ttl)


def _kind(outcome: Any) -> Any:
    return type(outcome) if isinstance(outcome, VersionConflict | WrongState) else outcome
