"""LangGraph's checkpointer on a bus: the makers' conformance suite, threads, hostile names, limits and delta channels.

``langgraph-checkpoint`` is small enough for every run of the tests; graphs need ``langgraph`` itself.
"""

from __future__ import annotations

import asyncio
import dataclasses
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest

import agentbus
from agentbus.errors import InvalidInput, Misuse, SnapshotTooLarge, UnknownHistory, WrongState
from tests.conftest import Engine
from tests.support.clock import FakeClock

base = pytest.importorskip("langgraph.checkpoint.base", reason="langgraph-checkpoint is not installed")
conformance = pytest.importorskip("langgraph.checkpoint.conformance", reason="the suite is not installed")

import ormsgpack  # noqa: E402
from langchain_core.messages import AIMessage, HumanMessage  # noqa: E402

from agentbus.integrations.langgraph import AgentBusSaver  # noqa: E402
from agentbus.records import HistoryPut  # noqa: E402

CAPABILITIES = {
    "put": 17,
    "put_writes": 10,
    "get_tuple": 10,
    "list": 16,
    "delete_thread": 5,
    "delete_for_runs": 7,
    "copy_thread": 8,
    "prune": 8,
}
HOSTILE = ["a/b", "../../etc", "ünï☃\U0001f600", "x" * 500, " ", "%_'\"\\", "a\nb", "c/1", "00000000000000000007"]


def config(thread: str, id: str | None = None, namespace: str = "") -> Any:
    found = {"thread_id": thread, "checkpoint_ns": namespace}
    return {"configurable": found if id is None else {**found, "checkpoint_id": id}}


def checkpoint(id: str, **values: Any) -> Any:
    return {**base.empty_checkpoint(), "id": id, "channel_values": values, "channel_versions": dict.fromkeys(values, 1)}


async def put_chain(saver: Any, thread: str, ids: list[str], **metadata: Any) -> None:
    """Store checkpoints, each after the one before."""
    previous = None
    for id in ids:
        await saver.aput(config(thread, previous), checkpoint(id, number=id), metadata, {})
        previous = id


async def ids(saver: Any, of: Any, **options: Any) -> list[str]:
    return [found.checkpoint["id"] async for found in saver.alist(of, **options)]


@dataclasses.dataclass
class Colour:
    name: str


async def test_the_conformance_suite_of_langgraph_passes_in_full(bus: agentbus.Bus) -> None:
    async def savers() -> Any:
        yield AgentBusSaver(bus)

    report = await conformance.validate(conformance.checkpointer_test(name="AgentBusSaver")(savers))
    assert [failure for one in report.results.values() for failure in one.failures] == []
    passed = {name: one.tests_passed for name, one in report.results.items() if one.passed}
    # At least: a later version of the suite may have more.
    assert {name: min(count, passed.get(name, 0)) for name, count in CAPABILITIES.items()} == CAPABILITIES
    assert report.passed_all()


@pytest.mark.one_engine
async def test_a_stored_checkpoint_cannot_run_code(bus: agentbus.Bus, tmp_path: Path) -> None:
    saver = AgentBusSaver(bus)
    calls = [("os", "mkdir", "{}"), ("os", "mkdir", ["{}"]), ("os", "mkdir", {"path": "{}"}), ("os", "path", "{}", "x")]
    for code in range(6):
        for number, call in enumerate(calls):
            made = tmp_path / f"{code}-{number}"
            filled = ormsgpack.unpackb(ormsgpack.packb(call).replace(b"\xa2{}", ormsgpack.packb(str(made))))
            hostile = ormsgpack.Ext(code, ormsgpack.packb(filled))
            for value in (hostile, [{"deep": hostile}]):
                body = ormsgpack.packb(checkpoint("1", value=value))
                await bus.histories.write("langgraph", "t", [HistoryPut(key="c/1", body=body, encoding="msgpack")])
                found = await saver.aget_tuple(config("t"))
                assert found is not None
                assert not made.exists()


@pytest.mark.one_engine
async def test_messages_and_the_types_that_are_allowed_are_read_as_objects(bus: agentbus.Bus) -> None:
    values = {"said": [HumanMessage("hello"), AIMessage("hi", id="7")], "colour": Colour("green")}
    await AgentBusSaver(bus).aput(config("t"), checkpoint("1", **values), {}, {})

    async def read(saver: AgentBusSaver) -> Any:
        found = await saver.aget_tuple(config("t"))
        assert found is not None
        return found.checkpoint["channel_values"]

    assert await read(AgentBusSaver(bus)) == {**values, "colour": {"name": "green"}}
    assert await read(AgentBusSaver(bus, types=[Colour])) == values
    assert await read(AgentBusSaver(bus, types=[(Colour.__module__, "Colour")])) == values
    for wrong in ("Colour", [("Colour",)], [7]):
        with pytest.raises(InvalidInput, match="types are classes or pairs"):
            AgentBusSaver(bus, types=cast("Any", wrong))
    with pytest.raises(InvalidInput, match="give them to your serde"):
        AgentBusSaver(bus, types=[Colour], serde=AgentBusSaver(bus).serde)


@pytest.mark.one_engine
async def test_threads_and_other_event_loops_use_the_bus_of_one_loop(bus: agentbus.Bus) -> None:
    saver: Any = AgentBusSaver(bus)

    def work(number: int) -> list[str]:
        """Use the synchronous methods on a plain thread, and then the asynchronous ones on a loop of its own."""
        stored = saver.put(config(f"t{number}"), checkpoint("1"), {"step": 1}, {})
        saver.put_writes(stored, [("channel", number)], "task")
        asyncio.run(put_chain(saver, f"t{number}", ["2", "3"]))
        saver.copy_thread(f"t{number}", f"copy{number}")
        saver.prune([f"copy{number}"])
        saver.delete_for_runs(["none"])
        found = saver.get_tuple(stored)
        assert found.pending_writes == [("task", "channel", number)]
        delta = saver.get_delta_channel_history(config=config(f"t{number}"), channels=["number"])
        assert delta == {"number": {"writes": [], "seed": "2"}}
        return [one.checkpoint["id"] for one in saver.list(config(f"t{number}"))]

    with ThreadPoolExecutor(4) as threads:
        loop = asyncio.get_running_loop()
        found = await asyncio.gather(*[loop.run_in_executor(threads, work, one) for one in range(4)])
    assert found == [["3", "2", "1"]] * 4
    assert await ids(saver, None) == ["3"] * 8 + ["2"] * 4 + ["1"] * 4
    await asyncio.to_thread(saver.delete_thread, "t1")
    assert await saver.aget_tuple(config("t1")) is None
    with pytest.raises(Misuse, match="await the asynchronous one"):
        saver.get_tuple(config("t2"))


@pytest.mark.one_engine
def test_a_synchronous_bus_and_a_url_serve_threads_and_event_loops(engine: Engine) -> None:
    saver: Any
    with agentbus.sync.connect(engine.url) as bus:
        saver = AgentBusSaver(bus)
        saver.put(config("t"), checkpoint("1", value=7), {}, {})
        asyncio.run(put_chain(saver, "u", ["1", "2"]))
    with AgentBusSaver(engine.url) as saver:
        assert saver.get_tuple(config("t")).checkpoint["channel_values"] == {"value": 7}
        assert saver.get(config("u"))["id"] == "2"
    with pytest.raises(agentbus.errors.BusClosed):
        saver.get_tuple(config("t"))

    async def reopened() -> list[str]:
        async with AgentBusSaver(engine.url) as again:
            return await ids(again, config("u"))

    assert asyncio.run(reopened()) == ["2", "1"]
    with pytest.raises(InvalidInput, match=r"agentbus\.connect\(\)"):
        AgentBusSaver(cast("Any", engine))


async def test_any_text_names_a_thread_a_namespace_and_a_checkpoint(bus: agentbus.Bus) -> None:
    saver: Any = AgentBusSaver(bus)
    for number, name in enumerate(HOSTILE):
        await saver.aput(config(name), checkpoint("1", number=number), {"name": name}, {})
        await saver.aput(config("t", namespace=name), checkpoint("1", number=number), {}, {})
        stored = await saver.aput(config("ids"), checkpoint(name, number=number), {}, {})
        await saver.aput_writes(stored, [("channel", number)], name, name)
    for number, name in enumerate(HOSTILE):
        for place in (config(name), config("t", namespace=name), config("ids", name)):
            assert (await saver.aget_tuple(place)).checkpoint["channel_values"] == {"number": number}
        assert (await saver.aget_tuple(config("ids", name))).pending_writes == [(name, "channel", number)]
        assert await ids(saver, None, filter={"name": name}) == ["1"]
    assert {one.name for one in (await bus.histories.list("langgraph")).items} == {*HOSTILE, "t", "ids"}
    # The writes of "a" are not those of "a/b".
    assert (await saver.aget_tuple(config("ids", "a/b"))).pending_writes
    stored = await saver.aput(config("ids"), checkpoint("a"), {}, {})
    assert (await saver.aget_tuple(stored)).pending_writes == []
    with pytest.raises(InvalidInput):
        await saver.aput(config("x" * 513), checkpoint("1"), {}, {})


@pytest.mark.one_engine
async def test_a_checkpoint_over_the_limit_is_refused_and_not_stored(engine: Engine) -> None:
    async with engine.connect(max_snapshot=100_000) as bus:
        saver: Any = AgentBusSaver(bus)
        stored = await saver.aput(config("t"), checkpoint("1", value="x" * 99_000), {}, {})
        with pytest.raises(SnapshotTooLarge, match="the limit is 100000"):
            await saver.aput(config("t", "1"), checkpoint("2", value="x" * 100_000), {}, {})
        with pytest.raises(SnapshotTooLarge):
            await saver.aput_writes(stored, [("small", 1), ("large", "x" * 100_000)], "task")
        found = await saver.aget_tuple(config("t"))
        assert (found.checkpoint["id"], found.pending_writes) == ("1", [])


async def test_the_writes_of_a_task_are_one_commit_and_the_first_ones_stay(bus: agentbus.Bus) -> None:
    saver: Any = AgentBusSaver(bus)
    stored = await saver.aput(config("t"), checkpoint("1"), {}, {})
    # The task paths order the tasks, not the order of arrival.
    await saver.aput_writes(stored, [("b", 1), ("__interrupt__", "ask"), ("c", 2)], "task-1", "~2")
    await saver.aput_writes(stored, [("a", 3)], "task-2", "~1")
    await saver.aput_writes(
        stored, [("b", "changed"), ("__interrupt__", "ask again"), ("c", 2), ("d", 4)], "task-1", "~2"
    )
    assert (await saver.aget_tuple(stored)).pending_writes == [
        ("task-2", "a", 3),
        ("task-1", "__interrupt__", "ask again"),
        ("task-1", "b", 1),
        ("task-1", "c", 2),
        ("task-1", "d", 4),
    ]
    # One write of the history for each call.
    assert (await bus.histories.find("langgraph", "t")).version == 4  # type: ignore[union-attr]
    await saver.aput_writes(stored, [(f"many-{number}", number) for number in range(300)], "task-3", "~3")
    assert len((await saver.aget_tuple(stored)).pending_writes) == 305
    await saver.aput_writes(stored, [], "task-4")
    assert (await bus.histories.find("langgraph", "t")).version == 5  # type: ignore[union-attr]


async def test_a_list_filters_by_any_metadata_and_pages_over_all_threads(bus: agentbus.Bus) -> None:
    saver: Any = AgentBusSaver(bus)
    await put_chain(saver, "t", ["1", "3"], step=1, source="loop", tags=["a"], flag=True)
    await put_chain(saver, "u", ["2", "4"], step=1.5, source="input", nothing=None)
    assert await ids(saver, None) == ["4", "3", "2", "1"]
    assert await ids(saver, None, before=config("any", "4"), limit=2) == ["3", "2"]
    assert await ids(saver, None, limit=0) == []
    for name, value, found in [
        ("step", 1, ["3", "1"]),
        ("step", 1.0, ["3", "1"]),
        ("step", 1.5, ["4", "2"]),
        ("source", "loop", ["3", "1"]),
        ("flag", True, ["3", "1"]),
        ("flag", None, ["4", "2"]),
        ("source", "none", []),
    ]:
        assert await ids(saver, None, filter={name: value}) == found
        assert await ids(saver, None, filter={name: value}, limit=1) == found[:1]
    assert await ids(saver, None, filter={"tags": ["a"], "source": "loop"}) == ["3", "1"]
    assert await ids(saver, config("t"), before=config("t", "3")) == ["1"]
    assert await ids(saver, config("t", "1")) == ["1"]
    assert await ids(saver, {"configurable": {"thread_id": "t"}}) == ["3", "1"]


async def test_pruning_keeps_what_delta_channels_are_rebuilt_from(bus: agentbus.Bus) -> None:
    saver: Any = AgentBusSaver(bus)
    counters = {"log": [1, 1], "unused": [0, 5]}
    versions = {"log": "1", "plain": "1"}
    # A delta channel has its value in some checkpoints only, here in the second.
    chain: list[dict[str, Any]] = [{"plain": 0}, {"plain": 1, "log": ["seed"]}, {"plain": 2}, {"plain": 3}]
    for number, values in enumerate(chain, 1):
        before = config("t", str(number - 1)) if number > 1 else config("t")
        metadata = {"step": number, **({"counters_since_delta_snapshot": counters} if "log" not in values else {})}
        stored = await saver.aput(
            before, {**checkpoint(str(number), **values), "channel_versions": versions}, metadata, {}
        )
        await saver.aput_writes(stored, [("log", f"late-{number}")], "z", "~2")
        await saver.aput_writes(stored, [("log", f"early-{number}"), ("plain", 1)], "a", "~1")
    await put_chain(saver, "other", ["1", "2", "3"])
    before = await saver.aget_delta_channel_history(config=config("t"), channels=["log", "plain", "none"])
    assert before == {
        "log": {
            "writes": [(t, "log", f"{w}-{n}") for n in (2, 3) for t, w in (("a", "early"), ("z", "late"))],
            "seed": ["seed"],
        },
        "plain": {"writes": [("a", "plain", 1)], "seed": 2},
        "none": {"writes": []},
    }
    await saver.aprune(["t", "other", "unknown"])
    assert await ids(saver, config("t")) == ["4", "3", "2"]
    assert await ids(saver, config("other")) == ["3"]
    assert await saver.aget_delta_channel_history(config=config("t"), channels=["log", "plain", "none"]) == before
    # The first that is left has no checkpoint before it.
    assert (await saver.aget_tuple(config("t", "2"))).parent_config is None
    assert (await saver.aget_tuple(config("t", "3"))).parent_config == config("t", "2")
    assert len((await saver.aget_tuple(config("t", "2"))).pending_writes) == 3
    assert await saver.aget_delta_channel_history(config=config("none"), channels=["log"]) == {"log": {"writes": []}}
    assert await saver.aget_delta_channel_history(config=config("t"), channels=[]) == {}
    with pytest.raises(InvalidInput, match="keep_latest or delete"):
        await saver.aprune(["t"], strategy="oldest")
    with pytest.raises(InvalidInput, match="thread_ids"):
        await saver.aprune("t")


async def test_pruning_notices_a_checkpoint_that_is_stored_meanwhile(
    bus: agentbus.Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    saver: Any = AgentBusSaver(bus)
    await put_chain(saver, "t", ["1", "2", "3"])
    items, forks = bus.histories.items, ["2a", "2b"]

    async def overtaken(*arguments: Any, **options: Any) -> Any:
        """A graph continues after an old checkpoint, between the read of the pruning and its write."""
        found = await items(*arguments, **options)
        if forks:
            stored = await saver.aput(config("t", "1"), checkpoint(forks.pop()), {}, {})
            await saver.aput_writes(stored, [("channel", 1)], "task")
        return found

    monkeypatch.setattr(bus.histories, "items", overtaken)
    await saver.aprune(["t"])
    # Otherwise the forks would be left, after a checkpoint that is gone.
    assert await ids(saver, config("t")) == ["3"]
    assert [item.key for item in await bus.histories.items("langgraph", "t")] == ["c/3"]


@pytest.mark.one_engine
async def test_a_copy_is_refused_without_a_source_or_onto_a_thread_that_exists(bus: agentbus.Bus) -> None:
    saver: Any = AgentBusSaver(bus)
    await put_chain(saver, "t", ["1"])
    with pytest.raises(UnknownHistory):
        await saver.acopy_thread("none", "copy")
    with pytest.raises(WrongState):
        await saver.acopy_thread("t", "t")


async def test_retention_archives_a_thread_and_the_archive_restores_it(bus: agentbus.Bus, clock: FakeClock) -> None:
    saver: Any = AgentBusSaver(bus)
    await put_chain(saver, "t", ["1", "2"], source="loop")
    await saver.aput_writes(config("t", "2"), [("channel", {"n": 1})], "task")
    before = await saver.aget_tuple(config("t"))
    assert [(one.kind, one.histories, one.items) for one in await bus.histories.kinds()] == [("langgraph", 1, 3)]
    await bus.retention.change(histories=3600)
    clock.advance(3600)
    await put_chain(saver, "new", ["1"])
    report = await bus.retention.apply()
    assert await ids(saver, None) == ["1"]
    assert report.archive is not None
    await bus.import_archive(report.archive)
    assert await saver.aget_tuple(config("t")) == before
    assert await ids(saver, config("t")) == ["2", "1"]


def test_versions_of_channels_grow() -> None:
    saver: Any = object.__new__(AgentBusSaver)
    versions = [saver.get_next_version(None, None)]
    for _ in range(12):
        versions.append(saver.get_next_version(versions[-1], None))
    assert versions == sorted(set(versions))
    assert saver.get_next_version(7, None).startswith(f"{8:032}.")
