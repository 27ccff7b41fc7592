"""Delivery into running agents: receipts of what is printed, reach, steering, and a watch that wakes an idle agent."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from threading import Thread
from typing import Any

import pytest

from agentbus.sync.bus import open_bus
from agentbus.sync.receiving import arrivals
from tests.cli.conftest import TIMEOUT, Shell, until


@contextmanager
def started(shell: Shell, *words: str, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A command that is over when the block ends."""
    process = shell.start(*words, **options)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdout, process.stderr):
            assert stream is not None
            stream.close()


def line(process: subprocess.Popen[bytes]) -> list[str]:
    assert process.stdout is not None
    return process.stdout.readline().decode().rstrip("\n").split("\t")


def test_a_watch_wakes_an_idle_agent(nowhere: Shell, url: str) -> None:
    with open_bus(url) as bus:
        a = bus.register("a", type="worker", pools=["p"])
        b = bus.register("b", type="worker")
        b.send("a", "note", {"text": "before"})
        with started(nowhere, "watch", "--agent", "a", "--url", url) as watching:
            assert line(watching) == ["m-1", "b", "note", "5", '"before"']
            until(lambda: bus.do(bus.messages.reach("a")).reach == "now")
            b.send("pool:p", "note", {"text": 'two\nlines \x1b[2J "quoted" ' + "x" * 300}, priority=9)
            *columns, excerpt = line(watching)
            assert columns == ["m-2", "b", "note", "9"]
            assert excerpt.startswith("\"two\\nlines \\\\x1b[2J 'quoted' xxx")
            assert excerpt.endswith('…"')
            assert len(excerpt) < 250
            # Nothing is taken, and what is released has not arrived again.
            assert [one.message_id for one in a.receive_many(10)] == ["m-2", "m-1"]
            a.nack("m-1", "m-2", delay=0)
            b.send("a", "note", 3)
            assert line(watching) == ["m-3", "b", "note", "5", '"3"']
            os.kill(watching.pid, signal.SIGINT)
            assert watching.wait(TIMEOUT) == 130
        assert bus.do(bus.messages.reach("a")).reach == "unknown"
        assert bus.do(bus.messages.receipts("m-1")) == [], "an excerpt is no message"


def test_a_watch_follows_its_agent_and_ends_with_it(shell: Shell) -> None:
    shell.register("a")
    constants = {"agentbus.sync.waiters.MAX_WAIT": 0.2}
    with (
        started(shell, "watch", "--agent", "a", "--json", constants=constants) as watching,
        open_bus(shell.directory / ".agentbus") as bus,
    ):
        until(lambda: bus.do(bus.messages.reach("a")).reach == "now")
        new = bus.register("a", type="worker", takeover=True, pools=["p"])
        until(lambda: bus.do(bus.messages.reach("a")).reach == "now")
        new.send("pool:p", "note", [1])
        arrived = json.loads(line(watching)[0])["data"]
        assert (arrived["message_id"], arrived["recipient"], arrived["excerpt"]) == ("m-1", "pool:p", "[1]")
        new.complete()
        assert json.loads(line(watching)[0])["error"]["code"] == "agent_fenced"
        assert watching.wait(TIMEOUT) == 1


def test_a_watch_follows_a_takeover_at_any_moment(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentbus.sync.waiters.MAX_WAIT", 0.02)
    shell.register("a")
    home = shell.directory / ".agentbus"
    with open_bus(home) as other, open_bus(home) as bus:
        read = bus.read

        def taken_over(before: int) -> Callable[..., Any]:
            """Return ``read``, which another process precedes once, after a number of reads."""
            left = iter(range(before, -1, -1))

            def reading(*arguments: Any) -> Any:
                if next(left, None) == 0:
                    new = other.register("a", type="worker", takeover=True, pools=[f"p-{before}"])
                    new.send("a", "note", before)
                return read(*arguments)

            return reading

        for moment in range(12):
            with monkeypatch.context() as patch, closing(arrivals(bus, "a", lambda: False)) as watched:
                patch.setattr(bus, "read", taken_over(moment))
                assert next(one.payload for one in watched if one.payload == moment) == moment
            other.agent("a").receive_many(10)


def test_a_watch_whose_output_is_closed_ends(shell: Shell) -> None:
    shell.register("a")
    constants = {"agentbus.sync.waiters.MAX_WAIT": 0.05}
    with started(shell, "watch", "--agent", "a", constants=constants) as watching:
        assert watching.stdout is not None
        watching.stdout.close()
        assert watching.wait(TIMEOUT) == 0
    with started(shell, "watch", "--agent", "a") as watching, open_bus(shell.directory / ".agentbus") as bus:
        until(lambda: bus.do(bus.messages.reach("a")).reach == "now")
        watching.kill()
        watching.wait()
        # As every opening of a bus does.
        until(bus.mark_dead_processes)
        assert bus.do(bus.messages.reach("a")).reach == "unknown"
    assert shell.run("watch").code == 2
    assert shell.refused("watch", "--agent", "nobody", code=1)["code"] == "unknown_agent"


@pytest.mark.one_engine
def test_what_is_printed_is_seen(shell: Shell) -> None:
    shell.register("a")
    shell.register("b")
    for number in range(3):
        assert shell.told("send", "a", "note", str(number), agent="b")["reach"] == "unknown"
    shell.say("receive", "--peek", agent="a")
    assert shell.told("messages", "show", "m-1")["receipts"] == []
    shell.environment["CLAUDE_CODE_SESSION_ID"] = "5b1c"
    shell.say("receive", "--ack", agent="a")
    shell.say("receive", agent="a")
    first, second, third = (shell.told("messages", "show", f"m-{number}") for number in (1, 2, 3))
    assert [one["status"] for one in (first, second, third)] == ["acked", "leased", "queued"]
    assert [(one["agent"], one["epoch"], one["client"], one["channel"]) for one in second["receipts"]] == [
        ("a", 1, "5b1c", "receive")
    ]
    assert (first["seen"] == first["receipts"][0]["at"], third["seen"]) == (True, None)
    assert "receipts\t[{" in shell.say("messages", "show", "m-2")


def test_a_sender_waits_until_its_message_is_seen(nowhere: Shell, url: str) -> None:
    nowhere.environment["AGENTBUS_URL"] = url
    with open_bus(url) as bus:
        bus.register("a", type="worker", topics=["t"])
        bus.register("b", type="worker", topics=["t"])
        taking = Thread(target=nowhere.run, args=("receive", "--wait", "30"), kwargs={"agent": "a"})
        taking.start()
        sent = nowhere.told("send", "a", "note", "1", "--wait-seen", "30", "--by", "ada")
        taking.join()
        assert (sent["seen"], [one["agent"] for one in sent["receipts"]]) == (True, ["a"])
        late = nowhere.run("send", "topic:t", "note", "1", "--wait-seen", "0.01", "--json", agent="b")
        data = json.loads(late.out)["data"]
        assert (late.code, data["seen"], data["delivered"], data["reach"]) == (4, False, 2, "unknown")
        assert "no adapter declared" in late.err
        assert data["recipient"]["status"] == "running"


def test_a_person_steers_and_an_agent_cannot(nowhere: Shell, url: str) -> None:
    nowhere.environment["AGENTBUS_URL"] = url
    with open_bus(url) as bus:
        a = bus.register("a", type="worker")
        a.declare_reach("tool", channel="hook")
    taking = Thread(target=nowhere.run, args=("receive", "--wait", "30"), kwargs={"agent": "a"})
    taking.start()
    steered = nowhere.told("steer", "a", "use the new API", "--stop-after", "--by", "ada")
    taking.join()
    assert (steered["seen"], steered["receipts"][0]["channel"]) == (True, "receive")
    shown = nowhere.told("messages", "show", steered["message_id"])
    assert (shown["type"], shown["sender"], shown["priority"], shown["payload"]["stop_after"]) == (
        "steer", "operator:ada", 9, True,
    )  # fmt: skip
    late = nowhere.run("steer", "a", "faster", "--wait", "0", "--by", "ada")
    assert (late.code, late.out) == (4, "m-2\n")
    assert "a is running, its last call was" in late.err
    assert "after its next tool call" in late.err
    for words in (("steer", "a", "obey"), ("steer", "a", "obey", "--by", "ada"), ("send", "a", "steer", "1")):
        assert nowhere.refused(*words, agent="a", code=2)["code"] == "not_an_operator"
    assert nowhere.refused("steer", "a", "obey", "--by", "a", code=2)["code"] == "not_an_operator"
    assert nowhere.run("steer", "a", "obey").code == 2, "no operator is named"
