"""Metrics by the conventions of OpenTelemetry for messaging, and what those lack: the metrics of the bus itself.

Operations are counted and timed as they end. Depths, ages, leases, agents and tasks by status, approvals, the size of
group commits, the wait for the lock and the time of commits come from ``bus.metrics()``, which collects them once for
all interfaces, whenever a reader asks.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import TimeoutError as CollectionTimedOut
from typing import TYPE_CHECKING, Any, Protocol

from opentelemetry.metrics import CallbackOptions, Observation

from agentbus.core.measurements import SECOND_BOUNDS
from agentbus.errors import AgentBusError
from agentbus.telemetry import VERSION

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from opentelemetry.metrics import MeterProvider

log = logging.getLogger("agentbus.telemetry")

DURATIONS = [*SECOND_BOUNDS, 60, 600]
"""Upper bounds in seconds: of a commit, and of a handler."""
MAX_NAMED = 100
"""Pools and topics that the metrics of a process name; the others are counted together."""
OTHER = "other"
_NO_SUBJECTS = frozenset({"dead"})
"""First words of metrics that are part of a longer one."""
_TIMEOUT = 5.0
"""Seconds that a reader waits for a collection."""


class Sample(Protocol):
    """A value of a metric."""

    @property
    def value(self) -> float: ...
    @property
    def labels(self) -> dict[str, str]: ...
    @property
    def suffix(self) -> str: ...


class Family(Protocol):
    """A metric of a bus, as ``bus.metrics()`` returns it."""

    @property
    def name(self) -> str: ...
    @property
    def type(self) -> str: ...
    @property
    def help(self) -> str: ...
    @property
    def samples(self) -> Sequence[Sample]: ...
    @property
    def unit(self) -> str: ...


class Observed:
    """An open bus, whose metrics are read by the threads of readers."""

    def __init__(self, bus: Any) -> None:
        self._collect: Callable[[], Awaitable[Sequence[Family]]] = bus.metrics
        self._loop = asyncio.get_running_loop()
        home: str | None = bus._engine.home
        self.name = "postgresql" if home is None else os.path.basename(os.path.dirname(os.path.abspath(home)))
        """Distinguishes the buses of a process: the directory of the bus."""
        self._families: Sequence[Family] = ()
        self._served: set[str] | None = None
        """The instruments that the last metrics have served; None before the first reader."""

    async def read(self) -> Sequence[Family]:
        """Collect the metrics."""
        self._families = await self._collect()
        return self._families

    def families(self, instrument: str) -> Sequence[Family]:
        """Return the metrics for an instrument. The event loop of the bus collects them once for all instruments of a
        reader. On the thread of that loop, which cannot wait for itself, the last ones are returned."""
        served = self._served
        if served is not None and instrument not in served:
            served.add(instrument)
            return self._families
        self._served = {instrument}
        if self._loop.is_running() and not self._is_here():
            reading = asyncio.run_coroutine_threadsafe(self.read(), self._loop)
            try:
                return reading.result(_TIMEOUT)
            except (CollectionTimedOut, AgentBusError) as error:
                reading.cancel()
                log.warning("metrics of %s were not collected: %s", self.name, error or "the event loop is busy")
                return ()
        return self._families

    def _is_here(self) -> bool:
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False


class Meters:
    """The instruments of this process."""

    def __init__(self, provider: MeterProvider) -> None:
        self.provider = provider
        self._meter = meter = provider.get_meter("agentbus", VERSION)
        self._sent = meter.create_counter(
            "messaging.client.sent.messages", "{message}", "Messages that were sent, or could not be."
        )
        self._consumed = meter.create_counter(
            "messaging.client.consumed.messages", "{message}", "Messages that were received."
        )
        self._operations = meter.create_histogram(
            "messaging.client.operation.duration", "s", "Duration of a send, a claim or a settlement.",
            explicit_bucket_boundaries_advisory=DURATIONS,
        )  # fmt: skip
        self._processing = meter.create_histogram(
            "messaging.process.duration", "s", "Duration of the block of a message.",
            explicit_bucket_boundaries_advisory=DURATIONS,
        )  # fmt: skip
        self._named: set[str] = set()
        self._buses: dict[int, Observed] = {}
        self._instruments: set[str] = set()

    def record(
        self, attributes: dict[str, Any], seconds: float, messages: int, error: str | None, *, process: bool = False
    ) -> None:
        """Count an operation that has ended."""
        name = attributes.get("messaging.destination.name")
        if name is not None and name not in self._named:
            # Pools and topics may be made for one session each.
            if len(self._named) < MAX_NAMED:
                self._named.add(name)
            else:
                attributes["messaging.destination.name"] = OTHER
        if error is not None:
            attributes["error.type"] = error
        if process:
            self._processing.record(seconds, attributes)
            return
        self._operations.record(seconds, attributes)
        if messages:
            sending = attributes["messaging.operation.type"] == "send"
            (self._sent if sending else self._consumed).add(messages, attributes)

    async def observe(self, bus: Any) -> None:
        """Observe an open bus: make the instruments of its metrics."""
        observed = Observed(bus)
        try:
            families = await observed.read()
        except AgentBusError as error:
            log.warning("metrics of %s were not collected: %s", observed.name, error)
            return
        for family in families:
            for name, suffix in _instruments(family):
                if name not in self._instruments:
                    self._instruments.add(name)
                    self._create(name, family, suffix)
        self._buses[id(bus)] = observed

    def forget(self, bus: Any) -> None:
        """Stop observing a bus."""
        self._buses.pop(id(bus), None)

    def stop(self) -> None:
        """Observe no bus any more."""
        self._buses.clear()

    def _create(self, name: str, family: Family, suffix: str) -> None:
        def observe(options: CallbackOptions) -> Iterable[Observation]:
            for bus in list(self._buses.values()):
                for found in bus.families(name):
                    if found.name == family.name:
                        for one in found.samples:
                            if one.suffix == suffix:
                                yield Observation(one.value, {**one.labels, "agentbus.bus": bus.name})

        unit = {"seconds": "s", "bytes": "By"}.get(family.unit, family.unit) if suffix != "_count" else ""
        create = (
            self._meter.create_observable_gauge
            if family.type == "gauge"
            else self._meter.create_observable_counter
        )  # fmt: skip
        create(name, [observe], unit or "1", family.help)


def _instruments(family: Family) -> list[tuple[str, str]]:
    """Return the names of the instruments of a metric, with the suffix of their samples: a histogram that the bus has
    collected is two counters, the number and the sum of its values.

    >>> from agentbus.records import MetricFamily
    >>> _instruments(MetricFamily("agentbus_queue_messages", "gauge", "Messages.", []))
    [('agentbus.queue.messages', '')]
    >>> _instruments(MetricFamily("agentbus_database_bytes", "gauge", "Size.", [], "bytes"))
    [('agentbus.database.size', '')]
    """
    if not family.name.startswith("agentbus_") or family.type == "info":
        return []
    whole = family.name.removeprefix("agentbus_")
    if family.unit:
        whole = whole.removesuffix(f"_{family.unit}")
    subject, _, rest = whole.partition("_")
    if not rest and family.unit:
        rest = {"bytes": "size"}.get(family.unit, "duration")
    separator = "_" if subject in _NO_SUBJECTS else "."
    name = f"agentbus.{subject}{separator}{rest}" if rest else f"agentbus.{subject}"
    if family.type == "histogram":
        return [(f"{name}.count", "_count"), (f"{name}.sum", "_sum")]
    return [(name, "_total" if family.type == "counter" else "")]
