"""Scripts with the synchronous API as processes: killed, interrupted, forked, and ended without closing the bus."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import agentbus
from agentbus import sync
from tests.conftest import Engine
from tests.support.processes import Worker

pytestmark = pytest.mark.slow


@contextmanager
def script(engine: Engine, kind: str) -> Iterator[Worker]:
    worker = Worker("tests.sync.worker", engine.url, kind)
    try:
        yield worker
    finally:
        worker.close()


@contextmanager
def opened(engine: Engine) -> Iterator[sync.Bus]:
    """The same bus in this process, in real time."""
    with sync.Bus(engine.connect(clock=None)) as bus:
        yield bus


def test_a_script_that_is_killed_has_failed_and_its_message_is_delivered_again(engine: Engine) -> None:
    with opened(engine) as bus:
        boss = bus.register("boss", type="worker")
        bus.declare(agentbus.pool("jobs"))
        boss.send(agentbus.pool("jobs"), "note", 1)
        with script(engine, "hold") as worker:
            worker.expect("holding")
            worker.kill()
            boss.join("jobs")
            bus.sweep()
            found = bus.agents.get("worker")
            assert found is not None
            assert (found.status, found.error) == ("failed", "its process died")
            again = boss.receive(timeout=30)
            assert again is not None
            assert (again.payload, again.attempts) == (1, 2)
        assert bus.state("worker").get("done") is None


@pytest.mark.one_engine
def test_ctrl_c_ends_a_waiting_call_and_the_bus_can_still_be_used(engine: Engine) -> None:
    with opened(engine) as bus:
        bus.declare(agentbus.pool("jobs"))
        with script(engine, "wait") as worker:
            worker.expect("waiting")
            worker.signal(signal.SIGINT)
            assert worker.expect("interrupted") == "1"
            worker.finish()
        assert bus.stats().messages == {"acked": 1}


@pytest.mark.one_engine
def test_a_forked_child_is_refused_and_its_parent_is_not_disturbed(engine: Engine) -> None:
    with opened(engine) as bus, script(engine, "fork") as worker:
        assert worker.expect("child") == "bus_forked"
        assert worker.expect("parent") == "0 1"
        worker.finish()
        assert "destroyed" not in worker.errors()
        found = bus.agents.get("worker")
        assert found is not None
        assert found.status == "completed"


def test_a_script_that_does_not_close_its_bus_ends_and_its_agents_have_stopped(engine: Engine) -> None:
    with opened(engine) as bus, script(engine, "leave") as worker:
        worker.expect("leaving")
        worker.finish()
        found = bus.agents.get("worker")
        assert found is not None
        assert found.status == "stopped"
