"""Copies that are interrupted, overtaken or run concurrently resume or report the conflict."""

from __future__ import annotations

import asyncio
from contextlib import closing
from shlex import quote

import pytest

import agentbus
from agentbus import Bus
from agentbus.api.maintenance.copy import copy_bus
from agentbus.errors import CopyDiffers, CopyOvertaken, CopyUnfinished, LockTimeout, NotEmpty
from agentbus.records import CopyReport
from agentbus.sync.bus import open_bus, open_store
from tests.api.copy_helpers import Cut, Places, crossed, cut_after, fill, record_of, shown


def test_a_copy_interrupted_at_any_page_resumes(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentbus.api.maintenance.copy.ROWS", 5)
    fill(places)
    cuts = 0
    while True:
        try:
            # Each time a little further, also in the closing comparison.
            report = places.copy(cut_after(10 + 20 * cuts))
            break
        except Cut:
            cuts += 1
            assert cuts < 100
    assert cuts > 3
    assert report.resumed
    straight = places.copy(target=places.more())
    assert (report.tables, report.rows) == (straight.tables, straight.rows)


@crossed
def test_an_unfinished_copy_cannot_be_opened_or_be_the_target_of_another(places: Places) -> None:
    fill(places)
    with pytest.raises(Cut):
        places.copy(cut_after(9))
    command = f"agentbus copy {quote(shown(places.source))} {quote(shown(places.target))}"

    async def nothing(bus: Bus) -> None:
        """Only open and close it."""

    with pytest.raises(CopyUnfinished) as refused:
        places.on(places.target, nothing)
    assert (refused.value.path, refused.value.source) == (shown(places.target), shown(places.source))
    assert refused.value.fix == f"finish it: {command}"
    with pytest.raises(CopyUnfinished):
        places.visited(places.target)
    # It is no source either.
    with closing(open_store(places.target)) as store, pytest.raises(CopyUnfinished):
        copy_bus(store, lambda: open_store(places.nowhere, create=True))
    checks = asyncio.run(agentbus.doctor(places.target, clock=places.clock))
    found = [(check.status, check.fix) for check in checks if check.name == "copy"]
    assert found == [("error", f"finish it: {command}")]
    another = places.more()
    places.visited(another).close()
    with closing(open_store(another)) as other, pytest.raises(NotEmpty, match="copy of another bus"):
        copy_bus(other, lambda: open_store(places.target))
    assert places.copy().resumed
    assert record_of(places, "visitor").status == "running"
    checks = asyncio.run(agentbus.doctor(places.target, clock=places.clock))
    assert "copy" not in {check.name for check in checks}


@crossed
def test_a_source_that_changes_during_the_copy_is_detected(places: Places) -> None:
    fill(places)
    for change, table in (("send", "messages"), ("state", "state"), ("ack", "messages")):
        changed: list[str] = []
        target = places.more()

        def progress(done: int, total: int, what: str, change: str = change, changed: list[str] = changed) -> None:
            if what == "events" and not changed:
                changed.append(what)
                with places.visited(places.source) as bus:
                    agent = bus.agent("visitor")
                    if change == "send":
                        agent.send("visitor", "note", "late")
                    elif change == "state":
                        bus.do(agent.state.set("here", "late"))
                    else:
                        agent.ack(*(held.message_id for held in agent.in_hand()))

        with pytest.raises(CopyDiffers, match=f"{table} "):
            places.copy(progress, target)
        with pytest.raises(CopyUnfinished):
            places.visited(target)


@crossed
def test_the_source_is_locked_while_both_are_compared(places: Places) -> None:
    fill(places)
    refused: list[str] = []

    def progress(done: int, total: int, what: str) -> None:
        if what == "comparing events" and not refused:
            refused.append(what)
            with (
                pytest.raises(LockTimeout),
                open_bus(places.source, clock=places.clock, lock_timeout=0.1) as bus,
            ):
                agent = bus.agent("visitor")
                agent.ack(*(held.message_id for held in agent.in_hand()))

    places.copy(progress)
    assert refused
    with places.visited(places.source) as bus:
        agent = bus.agent("visitor")
        agent.ack(*(held.message_id for held in agent.in_hand()))


@crossed
def test_of_two_concurrent_copies_one_is_refused(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentbus.api.maintenance.copy.ROWS", 3)
    fill(places)
    others: list[CopyReport] = []

    def progress(done: int, total: int, what: str) -> None:
        if what == "messages" and not others:
            others.append(places.copy())

    with pytest.raises(CopyOvertaken):
        places.copy(progress)
    assert others[0].resumed
    assert record_of(places, "visitor").status == "running"
