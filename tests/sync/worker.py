"""A script with the synchronous API: ``python -m tests.sync.worker URL KIND``. It ends as its kind says."""

from __future__ import annotations

import os
import sys
import time

from agentbus import sync
from agentbus.errors import BusForked
from tests.support.processes import say


def hold(bus: sync.Bus) -> None:
    """Compute with a message in hand until killed; a line says that it has begun."""
    with bus.agent("worker", type="worker", pools=["jobs"]) as agent:
        message = agent.receive()
        assert message is not None
        with message as unit:
            unit.state.set("done", 1)
            say("holding")
            while True:
                time.sleep(0.01)


def wait(bus: sync.Bus) -> None:
    """Wait for a message until interrupted; then use the bus again."""
    agent = bus.register("worker", type="worker", pools=["jobs"])
    try:
        say("waiting")
        agent.receive()
    except KeyboardInterrupt:
        agent.send("worker", "note", 1)
        message = agent.receive(timeout=30)
        assert message is not None
        message.ack()
        say("interrupted", message.payload)


def fork(bus: sync.Bus) -> None:
    """Use and leave the bus in a forked child, which is refused, while the parent goes on."""
    with bus.agent("worker", type="worker") as agent:
        child = os.fork()
        if child == 0:
            try:
                agent.send("worker", "note", 1)
            except BusForked as refused:
                say("child", refused.code)
            sys.exit(0)
        say("parent", os.waitpid(child, 0)[1], agent.send("worker", "note", 2).delivered)


def leave(bus: sync.Bus) -> None:
    """Exit without closing the bus."""
    bus.register("worker", type="worker")
    say("leaving")


if __name__ == "__main__":
    KINDS = {"hold": hold, "wait": wait, "fork": fork, "leave": leave}
    if sys.argv[2] == "leave":
        leave(sync.connect(sys.argv[1]).open())
    else:
        with sync.connect(sys.argv[1]) as bus:
            KINDS[sys.argv[2]](bus)
