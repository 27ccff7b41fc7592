"""The command line with many concurrent processes, and killed at any moment."""

from __future__ import annotations

import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentbus.sync.bus import BlockingBus, open_bus
from tests.cli.conftest import COMMAND, Shell

LOOPS = 6
MESSAGES = 2
"""Twenty each are sent by ``python -m benchmarks.cli``: a thousand processes take a while to start."""


@pytest.fixture
def shell() -> Iterator[Shell]:
    with tempfile.TemporaryDirectory(prefix="agentbus-cli-") as directory:
        open_bus(Path(directory) / ".agentbus", create=True).close()
        yield Shell(Path(directory))


def look(shell: Shell) -> BlockingBus:
    return open_bus(shell.directory / ".agentbus")


@pytest.mark.slow
def test_what_shell_loops_send_at_once_is_all_there(shell: Shell) -> None:
    shell.register("target")
    for number in range(LOOPS):
        shell.register(f"sender-{number}")
    loop = f'for n in $(seq {MESSAGES}); do "{COMMAND}" send target note "$n" || exit 1; done'
    loops = [
        subprocess.Popen(
            ["sh", "-c", loop],
            cwd=shell.directory,
            env={**shell.environment, "AGENTBUS_AGENT": f"sender-{number}#1"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        for number in range(LOOPS)
    ]
    for one in loops:
        _, err = one.communicate(timeout=110)
        assert (one.returncode, err) == (0, b"")
    with look(shell) as bus:
        deliveries = bus.agent("target").receive_many(LOOPS * MESSAGES + 1)
    assert len(deliveries) == LOOPS * MESSAGES
    assert {(one.sender, one.payload) for one in deliveries} == {
        (f"sender-{number}", n) for number in range(LOOPS) for n in range(1, MESSAGES + 1)
    }
    # Each sender's own come in their order.
    for number in range(0, LOOPS, 10):
        own = [one.payload for one in deliveries if one.sender == f"sender-{number}"]
        assert own == sorted(own)


@pytest.mark.slow
def test_a_receiver_interrupted_at_any_moment_holds_no_lease(shell: Shell) -> None:
    """Whatever it printed is leased to it; whatever it did not print is back in the queue, uncounted."""
    shell.register("a")
    with look(shell) as bus:
        for number in range(40):
            bus.agent("a").send("a", "note", number)
    printed: list[str] = []
    for delay in range(40, 140, 12):
        process = shell.start("receive", "--wait", "5", agent="a")
        time.sleep(delay / 1000)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
        # It may also find the interpreter still starting, which then says so itself.
        assert process.returncode in {0, 130, -signal.SIGINT} or b"import the site module" in err, err
        printed += [line.split("\t")[0].partition("#")[0] for line in out.decode().splitlines()]
    with look(shell) as bus:
        records = bus.do(bus.messages.list(limit=100)).items
    leased = {record.message_id for record in records if record.status == "leased"}
    assert leased == set(printed)
    assert all(record.attempts == 0 for record in records if record.status == "queued")
