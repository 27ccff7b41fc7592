"""The monitor: sweep the bus periodically and report findings.

A sweep checks the liveness of processes and agents, frees expired leases, and reports new events and conditions. On a
quiet bus it costs a few indexed reads and writes nothing. Any number of processes may sweep at once and be killed at
any point: every step is one commit, and the next sweep continues from there.

Written by ``make sync`` from ``agentbus.api.monitor``: change that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentbus.api import monitor as api
from agentbus.sync.client.base import BlockWrapper

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agentbus.records import Finding, Sweep


class Monitor(BlockWrapper[api.Monitor, "Monitor"], wraps=api.Monitor):
    """A monitor that runs for the length of its block, made by ``bus.monitor(…)``.

    >>> with bus.monitor(interval=5, suspect_after=60) as monitor:              # doctest: +SKIP
    ...     for finding in monitor.findings():
    ...         print(finding.text)
    """

    __slots__ = ()

    @property
    def sweeps(self) -> int:
        """The number of its sweeps."""
        return self._inner.sweeps

    @property
    def last(self) -> Sweep | None:
        """The result of its last sweep."""
        return self._inner.last

    def findings(self) -> Iterator[Finding]:
        """Yield all findings since the monitor started, then new ones until its block ends. Every caller gets all of
        them; for a slow one the last 10,000 are kept.

        >>> for finding in monitor.findings():                                  # doctest: +SKIP
        ...     print(finding.severity, finding.subject, finding.text)
        """
        return self._iterate(self._inner.findings)
