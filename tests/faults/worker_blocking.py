"""Send to an asynchronous agent through the blocking driver, and receive the replies."""

import os
import sys
import threading
import time

import msgspec

from agentbus.api.sending import draft
from agentbus.api.types import Vocabulary
from agentbus.core import process_info
from agentbus.core.clock import SystemClock
from agentbus.core.validation import MAX_PAYLOAD
from agentbus.engine.sqlite import paths
from agentbus.engine.sqlite.blocking import BlockingSQLite
from agentbus.errors import AgentBusError
from agentbus.operations.agents import RegisterRequest, register
from agentbus.operations.lookups import get_agent
from agentbus.operations.processes import EnterRequest, LeaveRequest, enter, leave
from agentbus.operations.protocol import Actor
from agentbus.operations.receive import AckRequest, ClaimRequest, ack, claim
from agentbus.operations.rows import Profile
from agentbus.operations.send import SendRequest, send


def say(*words: object) -> None:
    """As in tests.support.processes, which needs asyncio."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


MODULES = ("asyncio", "anyio", "aiosqlite", "tenacity", "rich")


def take(bus: BlockingSQLite, actor: Actor, mailbox: int) -> str:
    """The next message, acknowledged. Without a loop there is no bell: look again and again."""
    pause = threading.Event()
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        found = bus.write(claim, ClaimRequest(actor, (), own=(mailbox,), pools=(), limit=1, duration=60_000))
        for row in found.rows:
            bus.write(ack, AckRequest(actor, (row.delivered,)))
            return row.payload
        pause.wait(0.002)
    raise TimeoutError


def main(path: str, count: str) -> None:
    bus = BlockingSQLite(paths.find(path), durability="disk", clock=SystemClock(), lock_timeout=10)
    me = EnterRequest(process_info.host_key(), os.getpid(), process_info.start_time(os.getpid()), None)
    process = bus.write(enter, me).process
    life = bus.write(register, RegisterRequest("blocking", "worker", process, Profile()))
    actor = Actor(life.agent, life.epoch)
    vocabulary = Vocabulary(MAX_PAYLOAD)
    for number in range(int(count)):
        question = draft("echo", "coordination_request", number, vocabulary)
        asked = msgspec.structs.replace(question, reply_to=life.mailbox)
        begun = time.monotonic()
        bus.write(send, SendRequest(actor, (asked,)))
        say("got", number, take(bus, actor, life.mailbox), round((time.monotonic() - begun) * 1000, 2))
    record = bus.read(get_agent, "blocking")
    assert record is not None
    say("status", record.status)
    # An error is the same named error as elsewhere, and nothing is written.
    try:
        bus.write(send, SendRequest(actor, (draft("nobody", "note", None, vocabulary),)))
    except AgentBusError as error:
        say("error", error.code)
    bus.write(leave, LeaveRequest((process,), False, "done"))
    bus.close()
    say("modules", *(name for name in MODULES if name in sys.modules))


main(*sys.argv[1:])
