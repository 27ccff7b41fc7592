"""Looking once, or again and again: on a terminal in place, down a pipe one look after the other."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from agentbus.errors import AgentBusError
from agentbus.interfaces.cli.command import Call, ending_cleanly
from agentbus.interfaces.cli.output import Watchable, is_terminal

if TYPE_CHECKING:
    from rich.console import RenderableType

R = TypeVar("R", bound=Watchable)


def looked(call: Call, look: Callable[[], R], over: Callable[[R], bool] = lambda _: False) -> R | int:
    """What ``look`` finds; with --watch all that it finds, until it is over."""
    if not call.arguments.watch:
        return look()
    import time

    from agentbus.limits import check_seconds

    pause = check_seconds(call.arguments.interval, "interval") / 1000
    found: list[R] = []

    def again() -> R:
        if found:
            # Opening the bus has looked for the dead; who watches it wants to see those that die meanwhile.
            with suppress(AgentBusError):
                call.bus.notice_deaths()
        found[:] = [look()]
        return found[0]

    with ending_cleanly():
        if is_terminal() and not call.arguments.json:
            from agentbus.interfaces.cli.overview import live

            def drawn(lines: int) -> RenderableType:
                return again().drawn(lines)

            live(drawn, pause, lambda: over(found[0]))
            return found[0].code
        while True:
            call.emit(again())
            if over(found[0]):
                return found[0].code
            time.sleep(pause)
