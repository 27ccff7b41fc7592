"""Sources and targets that a copy refuses: missing, not empty, in use, or the same bus."""

from __future__ import annotations

import asyncio
import os

import pytest

from agentbus import Bus
from agentbus.errors import NoBus, NotAtRest, NotEmpty, SameBus
from agentbus.operations.processes import EnterRequest, enter
from agentbus.sync.bus import open_store
from tests.api.copy_helpers import Places, crossed
from tests.api.helpers import worker


@crossed
def test_a_target_that_is_not_empty_is_refused(places: Places) -> None:
    with places.visited(places.source) as bus:
        bus.register("a", type="worker")
    for what in ("agents", "state", "vocabulary"):
        target = places.more()
        with places.visited(target) as bus:
            if what == "agents":
                bus.register("mine", type="worker")
            elif what == "state":
                bus.do(bus.state("mine").set("k", 1))
            else:
                bus.define("mine")
        with pytest.raises(NotEmpty, match=rf"{what} \(1\)"):
            places.copy(target=target)
        with places.visited(target) as bus:
            assert bus.do(bus.agents.get("a")) is None
            assert (bus.do(bus.agents.get("mine")) is not None) == (what == "agents")


@crossed
def test_an_empty_bus_is_copied_into_one_that_was_only_made(places: Places) -> None:
    places.visited(places.source).close()
    places.visited(places.target).close()
    assert not places.copy().resumed
    with places.visited(places.target) as bus:
        assert bus.stats().agents == {}


@crossed
def test_a_process_that_is_only_watched_does_not_have_the_bus_open(places: Places) -> None:
    with places.visited(places.source) as bus:
        bus.register("a", type="worker", pid=os.getpid())
    places.copy()
    with places.visited(places.target) as bus:
        assert bus.stats().agents == {"running": 1}


def test_a_bus_cannot_be_copied_onto_itself_or_again(places: Places) -> None:
    with places.visited(places.source) as bus:
        bus.register("a", type="worker")
    with pytest.raises(SameBus):
        places.copy(target=places.source)
    places.copy()
    with pytest.raises(SameBus):
        places.copy()
    for url in (places.source, places.target):
        with places.visited(url) as bus:
            assert bus.stats().agents == {"running": 1}


@crossed
def test_there_must_be_a_source(places: Places) -> None:
    with pytest.raises(NoBus):
        open_store(places.nowhere)


@crossed
def test_a_source_that_is_open_elsewhere_is_refused(places: Places) -> None:
    async def try_it(bus: Bus) -> None:
        await worker(bus, "busy-1")
        with pytest.raises(NotAtRest, match=rf"process {os.getpid()} \(busy-1\)"):
            await asyncio.to_thread(places.copy, target=places.nowhere)

    places.on(places.source, try_it)
    # Nothing was created at the target.
    with pytest.raises(NoBus):
        open_store(places.nowhere)
    places.copy()


@crossed
def test_a_process_on_another_host_counts_until_it_is_silent(places: Places) -> None:
    with places.visited(places.source) as bus:
        bus.write(enter, EnterRequest("elsewhere/pid", 7, "then", None))
    with pytest.raises(NotAtRest, match="process 7 on elsewhere/pid"):
        places.copy()
    places.clock.advance(61)
    places.copy()
