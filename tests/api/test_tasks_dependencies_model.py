"""Dependencies against a model: in any order of starts, edits, ends and restarts, no task starts early or late."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from itertools import count
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentbus import Agent, Bus
from agentbus.errors import DependencyCycle, TaskLost, UnknownTask, WrongState
from tests.api.helpers import worker
from tests.support.examples import examples

NAMES = "abcd"


class Model:
    """The rules of items and their dependencies, as plainly as they can be written."""

    def __init__(self) -> None:
        self.status: dict[str, str] = {}
        self.after: dict[str, dict[str, bool]] = {}
        """The dependencies of each, and whether it has completed."""
        self.policy: dict[str, str] = {}
        self.started: set[str] = set()

    def add(self, name: str, after: tuple[str, ...], policy: str) -> bool:
        if name in self.status:
            return True
        if any(one not in self.status for one in after):
            return False
        self.after[name] = {one: self.status[one] == "completed" for one in after}
        self.policy[name] = policy
        cancelled = policy == "cancel" and any(self.status[one] in {"failed", "stopped"} for one in after)
        self.status[name] = "stopped" if cancelled else self.ready(name)
        return True

    def ready(self, name: str) -> str:
        return "pending" if all(self.after[name].values()) else "waiting"

    def end(self, name: str, status: str) -> None:
        self.status[name] = status
        for other, after in self.after.items():
            if name not in after or after[name]:
                continue
            if status == "completed":
                after[name] = True
                if self.status[other] == "waiting":
                    self.status[other] = self.ready(other)
            elif self.policy[other] == "cancel" and self.status[other] in {"waiting", "halted"}:
                self.end(other, "stopped")

    def again(self, name: str) -> None:
        if self.status[name] == "completed":
            for other, after in self.after.items():
                if name in after and other not in self.started and self.status[other] in {"waiting", "stopped"}:
                    after[name] = False
        self.status[name] = self.ready(name)

    def needs(self, name: str, other: str) -> bool:
        """Return True if ``name`` cannot end before ``other``."""
        open_ = [one for one, completed in self.after[name].items() if not completed]
        return name == other or any(self.needs(one, other) for one in open_)

    def depend(self, name: str, on: str) -> type[Exception] | None:
        if name in self.started or self.status[name] in {"running", "completed"}:
            return WrongState
        if on == name or (self.status[on] != "completed" and self.needs(on, name)):
            return DependencyCycle
        known = on in self.after[name]
        self.after[name].setdefault(on, self.status[on] == "completed")
        if len(self.after[name]) == 1 and not known:
            self.policy[name] = "block"
        cancels = self.policy[name] == "cancel" and self.status[on] in {"failed", "stopped"}
        if cancels and self.status[name] != "stopped":
            self.end(name, "stopped")
        elif self.status[name] in {"pending", "waiting"}:
            self.status[name] = self.ready(name)
        return None


ACTIONS = st.one_of(
    st.tuples(
        st.just("add"), st.sampled_from(NAMES), st.lists(st.sampled_from(NAMES), max_size=3, unique=True),
        st.sampled_from(["block", "cancel"]),
    ),
    st.tuples(st.sampled_from(["finish", "fail", "stop", "resume", "restart"]), st.sampled_from(NAMES)),
    st.tuples(st.just("depend"), st.sampled_from(NAMES), st.sampled_from(NAMES)),
)  # fmt: skip


@pytest.fixture
def prefixes() -> Iterator[str]:
    """Each run of the example has tasks of its own on the same bus."""
    return (f"run-{number}-" for number in count())


BEGINNING = st.tuples(
    *(
        st.tuples(
            st.just("add"), st.just(name), st.lists(st.sampled_from(NAMES[:place] or "z"), max_size=place, unique=True),
            st.sampled_from(["block", "cancel"]),
        )
        for place, name in enumerate(NAMES)
    )
)  # fmt: skip
"""Four items, each of which depends on some of those before it."""


@given(beginning=BEGINNING, actions=st.lists(ACTIONS, min_size=8, max_size=25))
@settings(max_examples=examples(12), deadline=None, suppress_health_check=list(HealthCheck))
async def test_any_order_ends_as_in_the_model(
    bus: Bus, prefixes: Iterator[str], beginning: tuple[tuple[Any, ...], ...], actions: list[tuple[Any, ...]]
) -> None:
    prefix = next(prefixes)
    model = Model()
    agent = await worker(bus, f"{prefix}agent")
    for action in (*beginning, *actions):
        await _apply(bus, agent, model, prefix, *action)
        records = {name: await bus.tasks.get(prefix + name) for name in model.status}
        assert {name: record.status for name, record in records.items() if record} == model.status, action
        for name, record in records.items():
            assert record is not None
            assert {one.task.removeprefix(prefix): one.completed is not None for one in record.after} == model.after[
                name
            ]
        ready = [task.id for task in await bus.tasks.ready(limit=1000) if task.id.startswith(prefix)]
        assert sorted(ready) == sorted(prefix + name for name, status in model.status.items() if status == "pending")


async def _apply(
    bus: Bus, agent: Agent, model: Model, prefix: str, action: str, name: str, *rest: str | list[str]
) -> None:
    id = prefix + name
    if action == "add":
        after, policy = tuple(rest[0]), str(rest[1])
        if name in after:
            with pytest.raises((DependencyCycle, UnknownTask)) if name not in model.status else nullcontext():
                await bus.tasks.add("w", id=id, after=[prefix + one for one in after])
            return
        with nullcontext() if model.add(name, after, policy) else pytest.raises(UnknownTask):
            await bus.tasks.add("w", id=id, after=[prefix + one for one in after], on_failed_dependency=policy)  # type: ignore[arg-type]
    elif name not in model.status:
        return
    elif action in {"finish", "fail"}:
        with nullcontext() if model.status[name] == "pending" else pytest.raises((WrongState, TaskLost)):
            await agent.items.take(id)
            model.started.add(name)
            await (agent.items.finish(id) if action == "finish" else agent.items.fail(id, "no"))
            model.end(name, "completed" if action == "finish" else "failed")
    elif action == "stop":
        with nullcontext() if model.status[name] in {"pending", "waiting"} else pytest.raises(WrongState):
            await bus.tasks.stop(id)
            model.end(name, "stopped")
    elif action == "resume":
        with nullcontext() if model.status[name] in {"pending", "failed", "stopped"} else pytest.raises(WrongState):
            await bus.tasks.resume(id)
            model.status[name] = model.ready(name)
    elif action == "restart":
        await bus.tasks.restart(id)
        model.again(name)
    elif str(rest[0]) in model.status:
        error = model.depend(name, str(rest[0]))
        with nullcontext() if error is None else pytest.raises(error):
            await bus.tasks.edit(id, after=[prefix + str(rest[0])])
