"""Stop within a transaction with the lock (``stopped``), or leave a forked child with a copy of it (``inherited``)."""

import asyncio
import ctypes
import os
import signal
import sys
import threading
from collections.abc import Sequence

import agentbus
from agentbus import Now
from agentbus.errors import AgentBusError
from agentbus.operations.protocol import Op, Query, operation
from tests.support.processes import say


@operation(durable=True)
def pause(requests: Sequence[str], now: Now) -> Op[list[AgentBusError | None]]:
    yield Query("meta_set", ("paused", requests[0]))
    if requests[0] == "stopped":
        say("stopping", os.getpid())
        # This thread, which must not finish the transaction before the process stops.
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
    else:
        child = ctypes.CDLL(None).fork()
        if child == 0:
            signal.pause()
            os._exit(0)
        say("stopping", child)
        os.kill(os.getpid(), signal.SIGKILL)
    return [None] * len(requests)


async def main(path: str, how: str) -> None:
    async with agentbus.connect(path, beat_every=3600) as bus:
        await bus._engine.write(pause, how)
        say("through")


asyncio.run(main(*sys.argv[1:]))
