"""Deliver notifications to the notifiers of the user: ``bus.notifications``, and the part of a monitor that delivers.

What is to be delivered is on the bus (``operations.notifications``). Where to, and by which command, is only in the
settings of the user (``core.notification_settings``), which are read again when they change.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING

import anyio
import msgspec

from agentbus.core import notification_settings, user_files
from agentbus.core.cancellation import finish_shielded
from agentbus.core.notification_settings import EVERY_BUS, Settings, Webhook, wanted_kinds
from agentbus.engine.url import server_url
from agentbus.errors import AgentBusError, BusClosed, InvalidSettings, InvalidUrl, UnknownNotifier
from agentbus.operations.archive_rows import bus_name
from agentbus.operations.notifications import (
    CONDITIONS,
    KINDS,
    ClaimRequest,
    FindRequest,
    Found,
    PassRequest,
    SettleRequest,
    Subscription,
    claim_notification,
    find_notification,
    list_notifiers,
    open_notifiers,
    pass_events,
    report_conditions,
    settle_notification,
)
from agentbus.records import Finding, Notification, NotificationAttempt

if TYPE_CHECKING:
    from agentbus.api.webhook import Delivery
    from agentbus.engine.interface import Engine
    from agentbus.records import NotifierRecord

log = logging.getLogger("agentbus.notifications")

_LEASE_MARGIN = 30_000
"""Milliseconds of a lease beyond the timeout of an attempt."""
_MAX_CONDITIONS = 1000
"""Conditions that wait to be recorded."""
_is_id = re.compile(r"[0-9A-Za-z_]{1,64}").fullmatch


class Notifications:
    """``bus.notifications``: the notifiers of users on this bus. Monitors deliver to those of their own user.

    >>> [(one.name, one.status, one.dead) for one in await bus.notifications.list()]  # doctest: +SKIP
    [('ada@laptop/ops', 'idle', 0)]
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def list(self) -> Sequence[NotifierRecord]:
        """Return the progress of every notifier that a monitor has opened on this bus.

        >>> [one.error for one in await bus.notifications.list()]                     # doctest: +SKIP
        ['HTTP status 503']
        """
        return await self._engine.read(list_notifiers, None)

    async def deliver(self, findings: Iterable[Finding] = ()) -> Sequence[NotificationAttempt]:
        """Deliver what is due to the notifiers of this user once, as a monitor does all the time. Lasting conditions
        among ``findings`` of ``bus.sweep`` are recorded first.

        >>> await bus.notifications.deliver((await bus.sweep()).findings)             # doctest: +SKIP
        [NotificationAttempt(notifier='ops', id='…', kind='agent_failed', error=None, output=None)]
        """
        deliverer = Deliverer(self._engine)
        await deliverer.start()
        deliverer.note(findings)
        return await deliverer.deliver()

    async def test(self, notifier: str) -> NotificationAttempt:
        """Send a test to a notifier of the user's settings, and return what became of it. It is not retried.

        >>> (await bus.notifications.test("ops")).error                               # doctest: +SKIP
        'HTTP status 503'
        """
        identity = await _bus_id(self._engine)
        return await send_test(notifier, self._engine.location, identity)


async def send_test(notifier: str, bus: str, bus_id: str) -> NotificationAttempt:
    """Send a test to a notifier, and return what became of it."""
    settings = notification_settings.load(KINDS)
    if notifier not in settings.notifiers:
        raise UnknownNotifier(notifier=notifier, path=notification_settings.path())
    made = Notification(
        id=f"test-{os.urandom(8).hex()}",
        kind="test",
        severity="info",
        text="this is a test",
        at=time.time_ns() // 1_000_000,
        subject="bus:notifications",
        bus=bus,
        bus_id=bus_id,
        notifier=notifier,
        event=0,
    )
    found = await _send(settings, notifier, made)
    return NotificationAttempt(notifier, made.id, made.kind, found.error, found.output)


class Deliverer:
    """Delivers notifications of one bus to the notifiers of the user, each on its own, so that a slow one delays
    neither the monitor nor the others."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._report: Callable[[Finding], None] | None = None
        self._settings: Settings | None = None
        self._version: tuple[int, ...] | None = None
        self._bus_id = ""
        self._subscriptions: dict[str, Subscription] = {}
        self._seen: dict[str, int] = {}
        """The event up to which a notifier has nothing to do, so that it is not read again."""
        self._busy: set[str] = set()
        self._conditions: deque[Finding] = deque(maxlen=_MAX_CONDITIONS)

    async def start(self, report: Callable[[Finding], None] | None = None) -> None:
        """Read the settings, and open the notifiers: from now on events are notified. ``report`` receives the
        finding that the settings are invalid; without it, that is raised."""
        self._report = report
        await self._reload()

    def note(self, findings: Iterable[Finding]) -> None:
        """Take lasting conditions of a sweep, to be recorded on the bus if a notifier wants them."""
        wanted = {kind for one in self._subscriptions.values() for kind in one.kinds} & CONDITIONS.keys()
        self._conditions.extend(finding for finding in findings if finding.kind in wanted)

    async def run(self, interval: float) -> None:
        """Deliver until cancelled, or until the bus is closed."""
        pause = self._engine.waiters.listen(())
        async with anyio.create_task_group() as tasks:
            while True:
                try:
                    await self._reload()
                    await self._record_conditions()
                except BusClosed:
                    tasks.cancel_scope.cancel()
                    return
                except AgentBusError as error:
                    log.warning("notifications failed: %s", error)
                except Exception:
                    log.exception("notifications failed")
                for name in self._subscriptions:
                    if name not in self._busy:
                        self._busy.add(name)
                        tasks.start_soon(self._drain_logging, name)
                await pause.wait(interval)

    async def deliver(self) -> list[NotificationAttempt]:
        """Deliver what is due now, to all notifiers at once."""
        await self._record_conditions()
        drains = (self._drain(name) for name in self._subscriptions)
        attempts: list[NotificationAttempt] = []
        for found in await asyncio.gather(*drains, return_exceptions=True):
            if isinstance(found, BaseException):
                raise found
            attempts += found
        return attempts

    async def _drain_logging(self, name: str) -> None:
        try:
            await self._drain(name)
        except BusClosed:
            pass
        except AgentBusError as error:
            log.warning("notifier %s failed: %s", name, error)
        except Exception:
            log.exception("notifier %s failed", name)
        finally:
            self._busy.discard(name)

    async def _drain(self, name: str) -> list[NotificationAttempt]:
        """Deliver to one notifier until nothing is due. Return the attempts."""
        attempts: list[NotificationAttempt] = []
        while (attempt := await self._attempt(name)) is not None:
            attempts.append(attempt)
        return attempts

    async def _attempt(self, name: str) -> NotificationAttempt | None:
        """Deliver the next notification, if one is due and no other process delivers it."""
        settings, wanted = self._settings, self._subscriptions.get(name)
        if settings is None or wanted is None:
            return None
        request = FindRequest(wanted, self._engine.location, self._bus_id, self._seen.get(name, 0))
        found = await self._engine.read(find_notification, request)
        if found.notification is None:
            await self._pass(name, wanted, found)
            return None
        options = settings.notifiers[name]
        claim = ClaimRequest(
            wanted.notifier, found, round(options.timeout * 1000) + _LEASE_MARGIN, options.max_attempts
        )
        lease = await self._engine.write(claim_notification, claim)
        if lease is None:
            return None
        settle = SettleRequest(wanted.notifier, lease, found.notification, options.max_attempts)
        try:
            outcome = await _send(settings, name, found.notification)
        except asyncio.CancelledError:
            await finish_shielded(self._engine, self._settle(msgspec.structs.replace(settle, interrupted=True)))
            raise
        if outcome.error is not None:
            log.warning("notification %s was not delivered: %s", found.notification.id, outcome.error)
        settle = msgspec.structs.replace(settle, error=outcome.error, after=outcome.after, final=outcome.final)
        await self._settle(settle)
        return NotificationAttempt(name, found.notification.id, found.notification.kind, outcome.error, outcome.output)

    async def _settle(self, request: SettleRequest) -> None:
        await self._engine.write(settle_notification, request)

    async def _pass(self, name: str, wanted: Subscription, found: Found) -> None:
        if found.is_new:
            await self._engine.write(open_notifiers, (wanted.notifier,))
            return
        self._seen[name] = found.seen
        if found.passing:
            await self._engine.write(
                pass_events, PassRequest(wanted.notifier, found.cursor, found.until, found.seen, found.dropped)
            )

    async def _record_conditions(self) -> None:
        if self._conditions:
            reported = tuple(self._conditions)
            await self._engine.write(report_conditions, reported)
            for _ in reported:
                self._conditions.popleft()

    async def _reload(self) -> None:
        """Read the settings if they changed, and open the notifiers of this bus. Invalid settings have none."""
        version = user_files.version(notification_settings.path())
        if self._settings is not None and version == self._version:
            return
        try:
            settings = notification_settings.load(KINDS)
        except InvalidSettings as error:
            if self._report is None:
                raise
            text = f"notifications are off: {error}"
            at = self._engine.clock.now().wall
            self._report(Finding("notifications_off", "bus:notifications", "error", text, {"code": error.code}, at))
            settings = Settings("", {})
        chosen = {
            name: Subscription(
                f"{settings.owner}/{name}",
                wanted_kinds(one, KINDS),
                frozenset(one.sessions),
                frozenset(one.workflows),
                frozenset(one.include),
            )
            for name, one in settings.notifiers.items()
            if any(is_meant(bus, self._engine.home, self._engine.location) for bus in one.buses)
        }
        if chosen:
            self._bus_id = self._bus_id or await _bus_id(self._engine)
            await self._engine.write(open_notifiers, tuple(one.notifier for one in chosen.values()))
        self._settings, self._version, self._subscriptions = settings, version, chosen
        self._seen.clear()


def is_meant(entry: str, home: str | None, location: str) -> bool:
    """Return whether an entry of ``buses`` names a bus: its directory or the one above it, or the URL of its server
    (``home`` is None)."""
    if entry == EVERY_BUS:
        return True
    server = server_url(entry)
    if server is not None:
        from agentbus.engine.postgres.server import parse

        try:
            return home is None and parse(server).location == location
        except InvalidUrl:
            return False
    if home is None:
        return False
    wanted, found = os.path.realpath(os.path.expanduser(entry)), os.path.realpath(home)
    return wanted == found or (os.path.basename(found) == ".agentbus" and os.path.dirname(found) == wanted)


async def _send(settings: Settings, name: str, notification: Notification) -> Delivery:
    """Make one attempt, by the settings of the user."""
    body = msgspec.json.encode(notification)
    options = settings.notifiers[name]
    if isinstance(options, Webhook):
        # Imported only here: most users have no notifiers.
        from agentbus.api.webhook import post

        return await post(options, notification.id, body)
    from agentbus.api.notification_command import run

    facts = {
        "ID": notification.id,
        "KIND": notification.kind,
        "SEVERITY": notification.severity,
        "NOTIFIER": name,
    }
    return await run(options, facts, body)


async def _bus_id(engine: Engine) -> str:
    """Return the identity of the bus in a form that fits a header. A foreign bus may have any text."""
    found = await engine.read(bus_name, None) or ""
    return found if _is_id(found) else sha256(found.encode("utf-8", "backslashreplace")).hexdigest()[:16]
