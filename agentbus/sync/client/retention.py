"""Retention: archive rows past their retention period, then delete them.

Rows are durably archived before they are deleted, and only rows that are still as archived are deleted. A crash in
between repeats lines in a later archive and loses none; restoring them is idempotent. For the same reasons concurrent
runs are safe.

Written by ``make sync`` from ``agentbus.api.maintenance.retention``: change that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentbus.api.maintenance import retention as api
from agentbus.sync.client.base import Wrapper

if TYPE_CHECKING:
    from typing import Unpack

    from agentbus.api.maintenance.retention import RetentionChanges
    from agentbus.engine.interface import Progress
    from agentbus.records import RetentionPolicy, RetentionReport


class Retention(Wrapper[api.Retention], wraps=api.Retention):
    """``bus.retention``: the retention policy. Monitors apply it about once an hour; any process may apply it.
    Otherwise nothing is deleted.

    >>> bus.retention.change(messages=24 * 3600, events=None)                   # doctest: +SKIP
    """

    __slots__ = ()

    def policy(self) -> RetentionPolicy:
        """Return the retention policy of this bus: the defaults with its changes.

        >>> bus.retention.policy().checkpoints_last                           # doctest: +SKIP
        24
        """
        return self._call(self._inner.policy)

    def change(self, *, by: str | None = None, **changes: Unpack[RetentionChanges]) -> RetentionPolicy:
        """Change periods of the policy for all processes and return the new policy. The options are the fields of
        ``RetentionPolicy``; those not given stay. The audit log names the operator ``by``.

        >>> bus.retention.change(messages=3 * 24 * 3600, events=None)           # doctest: +SKIP
        """
        return self._call(self._inner.change, by=by, **changes)

    def apply(
        self, *, dry_run: bool = False, policy: RetentionPolicy | None = None, progress: Progress | None = None
    ) -> RetentionReport:
        """Archive expired rows in ``archive/`` of the bus, then delete them; ``dry_run`` only counts them.

        Runs in bounded transactions, so that other writers do not wait long. ``policy`` replaces that of the bus for
        this run. ``progress`` is called with the rows deleted and their total.

        >>> report = bus.retention.apply(dry_run=True)                          # doctest: +SKIP
        >>> report.removed                                                            # doctest: +SKIP
        {'message': 1200, 'event': 310}
        """
        return self._call(self._inner.apply, dry_run=dry_run, policy=policy, progress=progress)
