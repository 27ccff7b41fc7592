"""Deliver notifications to the notifiers of the user: ``bus.notifications``, and the part of a monitor that delivers.

What is to be delivered is on the bus (``operations.notifications``). Where to, and by which command, is only in the
settings of the user (``core.notification_settings``), which are read again when they change.

Written by ``make sync`` from ``agentbus.api.notifications``: change that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentbus.api import notifications as api
from agentbus.sync.client.base import Wrapper

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from agentbus.records import Finding, NotificationAttempt, NotifierRecord


class Notifications(Wrapper[api.Notifications], wraps=api.Notifications):
    """``bus.notifications``: the notifiers of users on this bus. Monitors deliver to those of their own user.

    >>> [(one.name, one.status, one.dead) for one in bus.notifications.list()]  # doctest: +SKIP
    [('ada@laptop/ops', 'idle', 0)]
    """

    __slots__ = ()

    def list(self) -> Sequence[NotifierRecord]:
        """Return the progress of every notifier that a monitor has opened on this bus.

        >>> [one.error for one in bus.notifications.list()]                     # doctest: +SKIP
        ['HTTP status 503']
        """
        return self._call(self._inner.list)

    def deliver(self, findings: Iterable[Finding] = ()) -> Sequence[NotificationAttempt]:
        """Deliver what is due to the notifiers of this user once, as a monitor does all the time. Lasting conditions
        among ``findings`` of ``bus.sweep`` are recorded first.

        >>> bus.notifications.deliver(bus.sweep().findings)             # doctest: +SKIP
        [NotificationAttempt(notifier='ops', id='…', kind='agent_failed', error=None, output=None)]
        """
        return self._call(self._inner.deliver, findings)

    def test(self, notifier: str) -> NotificationAttempt:
        """Send a test to a notifier of the user's settings, and return what became of it. It is not retried.

        >>> bus.notifications.test("ops").error                               # doctest: +SKIP
        'HTTP status 503'
        """
        return self._call(self._inner.test, notifier)
