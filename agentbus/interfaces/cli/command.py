"""What a command is: a function from a call to a result, with what its help says."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

from agentbus.interfaces.cli.failures import NoIdentity
from agentbus.interfaces.cli.texts import harmless

if TYPE_CHECKING:
    from agentbus.blocking import BlockingBus
    from agentbus.blocking.agent import BlockingAgent
    from agentbus.interfaces.cli.output import Result
    from agentbus.interfaces.cli.settings import Settings


@contextmanager
def ending_cleanly() -> Iterator[None]:
    """For what waits: what ends it (a terminal that is closed, too) ends it as Ctrl-C does, so that what it holds is
    given back."""
    import signal

    from agentbus.interfaces.cli.interrupts import ENDING, patient

    def end(number: int) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.getsignal(number) for number in ENDING}
    for number, handler in before.items():
        # What is ignored when we begin (nohup) stays so.
        if handler is not signal.SIG_IGN:
            signal.signal(number, patient(end))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Call:
    """One call of a command: its arguments, its settings, the bus, and who calls."""

    def __init__(self, command: str, arguments: Namespace, settings: Settings) -> None:
        self.command = command
        self.arguments = arguments
        self.settings = settings

    @cached_property
    def bus(self) -> BlockingBus:
        """The bus, opened when it is first asked for. Whoever calls as an agent has called, whatever they ask for."""
        from agentbus.interfaces.cli.settings import open_here

        bus = open_here(self.settings)
        if bus.store.read_only:
            self.note(f"{bus.store.shown} can only be read here: nothing is written, and who died is not noticed")
        if bus.unmarked is not None:
            self.note(f"agentbus: processes died, and this cannot be noted now: {bus.unmarked}")
        return bus

    @cached_property
    def me(self) -> BlockingAgent:
        """The agent that calls; it is an error if nobody says who."""
        identity = self.settings.text("agent")
        if identity is None:
            raise NoIdentity
        return self.bus.agent(identity)

    @cached_property
    def visitor(self) -> BlockingAgent | None:
        """The agent that calls, if one does and there is such an agent: for what anybody may ask."""
        from agentbus.errors import InvalidInput, NotFound

        try:
            return None if self.settings.text("agent") is None else self.me
        except (NotFound, InvalidInput):
            return None

    def close(self, *, visit: bool) -> None:
        """Let go of the bus. ``visit``: an agent that only looked has called as well."""
        if "bus" in self.__dict__:
            try:
                if visit and not self.bus.store.read_only and self.visitor is not None:
                    self.visitor.called()
            finally:
                self.bus.close()

    def emit(self, result: Result) -> None:
        """Print something now: when this returns, it is out."""
        from agentbus.interfaces.cli.output import emit

        emit(result, json=self.arguments.json)

    def note(self, text: str) -> None:
        """Tell people something that is not data."""
        if not self.arguments.quiet:
            print(harmless(text), file=sys.stderr)


class Command:
    """A command: what it does, its purpose in a line, an example, and its arguments.

    ``run`` gives what it found, or what to exit with if it has printed that itself.
    """

    def __init__(
        self,
        run: Callable[[Call], Result | int],
        purpose: str,
        example: str,
        arguments: Callable[[ArgumentParser], Any] | None = None,
        *,
        output: str = "",
        runs: bool = False,
    ) -> None:
        self.run = run
        self.purpose = purpose
        self.example = example
        self.arguments = arguments
        self.output = output
        """What the plain output has on a line."""
        self.runs = runs
        """Whether what stands after ``--`` is a command to be run, which is none of our business."""
