"""Values of state that expired where nobody watches: they would else stay on the disk."""

from __future__ import annotations

from agentbus.engine.interface import Engine
from agentbus.operations.state import ExpireRequest, expire, next_expiry


async def expire_state(engine: Engine) -> int:
    """Make tombstones of them, in steps; says of how many."""
    gone = 0
    while (expiry := await engine.look(next_expiry, None)) is not None and expiry <= engine.clock.now().wall:
        gone += await engine.write(expire, ExpireRequest())
    return gone
