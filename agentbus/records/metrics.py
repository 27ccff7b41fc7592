"""Records of metrics."""

from __future__ import annotations

from typing import Literal

import msgspec


class MetricSample(msgspec.Struct, frozen=True):
    """One value of a metric. ``suffix`` follows the name of its family: ``_bucket``, ``_sum`` and ``_count`` of a
    histogram, ``_total`` of a counter.

    >>> MetricSample(3, {"status": "running"}).labels
    {'status': 'running'}
    """

    value: float
    labels: dict[str, str] = {}
    suffix: str = ""


class MetricFamily(msgspec.Struct, frozen=True):
    """A metric with its samples. ``name`` has no ``_total``; ``unit`` is the end of the name, ``seconds`` or ``bytes``.
    ``scope`` is ``bus`` for a value of the store, the same from every process, and ``process`` for one of this process
    alone, which starts at zero with it.

    >>> [family.name for family in await bus.metrics()][:2]                           # doctest: +SKIP
    ['agentbus_build', 'agentbus_messages_sent']
    """

    name: str
    type: Literal["counter", "gauge", "histogram", "info"]
    help: str
    samples: list[MetricSample]
    unit: str = ""
    scope: Literal["bus", "process"] = "bus"
