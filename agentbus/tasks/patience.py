"""A store that does not answer at present is asked again: that is no failure of a task, nor of its worker."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from agentbus.engine.hub import Hub
from agentbus.errors import OutcomeUnknown, StoreError

log = logging.getLogger("agentbus")

T = TypeVar("T")

_PAUSE = 0.5


async def patiently(hub: Hub, who: str, asking: Callable[[], Awaitable[T]], *, repeatable: bool = False) -> T:
    """What the store answers, as soon as it does. Where nobody knows whether something was written, only what is
    ``repeatable`` is asked again."""
    while True:
        try:
            return await asking()
        except StoreError as error:
            if not error.transient or (isinstance(error, OutcomeUnknown) and not repeatable):
                raise
            log.warning("%s, trying again: %s", who, error)
            await hub.listen(()).wait(_PAUSE)
