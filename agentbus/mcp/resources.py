"""The resources of the bus: what clients read without a tool, and are notified of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from agentbus.errors import InvalidName
from agentbus.mcp.tasks import known_task
from agentbus.mcp.tools import compact
from agentbus.sync.bus import Interrupted, run

if TYPE_CHECKING:
    from agentbus.mcp.buses import Buses
    from agentbus.mcp.dispatcher import Cancellation, Context
    from agentbus.mcp.tasks import BusTasks
    from agentbus.sync.bus import BlockingBus

_INBOX = "bus://inbox/"
_TASK = "bus://task/"
_MAX_SHOWN = 50
"""Messages and agents that a resource lists."""
_MAX_COMPARED = 10_000
"""Waiting messages of a mailbox by which a change is noticed."""
_AGAIN = 5.0
"""Seconds after which a watched resource is read again at the latest."""
_JSON = "application/json"


class BusResources:
    """Resources of a bus. ``prime`` returns the instructions for agents."""

    def __init__(self, buses: Buses, tasks: BusTasks, prime: Callable[[], str] | None = None) -> None:
        self._buses = buses
        self._tasks = tasks
        self._prime = prime

    def list(self) -> Sequence[dict[str, Any]]:
        found = [
            _resource("bus://status", "status", "The state of the bus at a glance"),
            _resource("bus://agents", "agents", "The agents that have not ended"),
        ]
        if self._prime is not None:
            found.append({**_resource("bus://prime", "prime", "Instructions for agents"), "mimeType": "text/markdown"})
        return found

    def templates(self) -> Sequence[dict[str, Any]]:
        return [
            {"uriTemplate": f"{_INBOX}{{agent}}", "name": "inbox", "mimeType": _JSON,
             "description": "The messages that wait for an agent; it can be subscribed to"},
            {"uriTemplate": f"{_TASK}{{id}}", "name": "task", "mimeType": _JSON,
             "description": "A durable task and its steps; it can be subscribed to"},
        ]  # fmt: skip

    def read(self, context: Context, uri: str) -> Sequence[dict[str, Any]]:
        if uri == "bus://prime" and self._prime is not None:
            return [{"uri": uri, "mimeType": "text/markdown", "text": self._prime()}]
        with self._buses.borrow(context.cancellation) as bus:
            content = self._content(bus, uri)
        return [{"uri": uri, "mimeType": _JSON, "text": msgspec.json.encode(content, enc_hook=str).decode()}]

    def _content(self, bus: BlockingBus, uri: str) -> Any:
        if uri == "bus://status":
            from agentbus.api.overview import capacity_limits, gather_overview

            return bus.do(gather_overview(bus, bus.store.home, capacity_limits()))
        if uri == "bus://agents":
            page = bus.do(bus.agents.list(status="incomplete", limit=_MAX_SHOWN))
            return {
                "agents": [
                    compact({
                        "id": one.id, "type": one.type, "status": one.status, "session": one.session,
                        "progress": one.progress, "note": one.note, "updated": one.updated,
                    })
                    for one in page.items
                ]
            }  # fmt: skip
        if uri.startswith(_INBOX):
            return _inbox(bus, uri.removeprefix(_INBOX))
        if uri.startswith(_TASK):
            record = known_task(bus, uri.removeprefix(_TASK))
            return {"task": record, "steps": bus.do(bus.tasks.steps(record.id))}
        raise LookupError(uri)

    # Notifications

    def is_watchable(self, uri: str) -> bool:
        return any(uri.startswith(prefix) and len(uri) > len(prefix) for prefix in (_INBOX, _TASK))

    def watch(
        self,
        context: Context,
        uris: Sequence[str],
        tasks: Sequence[str],
        changed: Callable[[str], None],
        task_changed: Callable[[dict[str, Any]], None],
        cancellation: Cancellation,
        ready: Callable[[], None],
    ) -> None:
        with suppress(Interrupted), self._buses.borrow(cancellation) as bus:
            waiter = bus._listening.listen(_channels(bus, uris))
            seen: dict[str, Any] | None = None
            states: dict[str, Any] = {}
            decider = context.connection.decider
            try:
                while True:
                    channels = _channels(bus, uris)
                    if seen is None or channels != waiter.channels:
                        # The agent has joined the bus or another pool. Waiting once registers the channels.
                        waiter.close()
                        waiter = bus._listening.listen(channels)
                        run(waiter.wait(0))
                    if seen is None:
                        seen = {uri: _version(bus, uri) for uri in uris}
                        states = {task: self._state(bus, task, decider) for task in tasks}
                        ready()
                    for uri in uris:
                        version = _version(bus, uri)
                        if version != seen[uri]:
                            seen[uri] = version
                            changed(uri)
                    for task in tasks:
                        state = self._state(bus, task, decider)
                        if state is not None and state != states[task]:
                            states[task] = state
                            task_changed(state)
                    run(waiter.wait(_AGAIN))
            finally:
                waiter.close()

    def _state(self, bus: BlockingBus, task: str, decider: str | None) -> dict[str, Any] | None:
        try:
            return self._tasks.state(bus, task, asks=True, decider=decider)
        except LookupError:
            return None


def _resource(uri: str, name: str, description: str) -> dict[str, Any]:
    return {"uri": uri, "name": name, "description": description, "mimeType": _JSON}


def _inbox(bus: BlockingBus, agent: str) -> Any:
    """Return the messages that an agent would receive now."""
    from agentbus.api.deliveries import delivery
    from agentbus.operations.receive import list_ready

    mailboxes = _mailboxes(bus, agent)
    if mailboxes is None:
        raise LookupError(agent)
    rows = bus.read(list_ready, (mailboxes.all, _MAX_SHOWN))
    return {
        "agent": agent,
        "waiting": [compact(msgspec.to_builtins(delivery(row, mailboxes.addresses[row.mailbox], leased=False)))
                    for row in rows],
    }  # fmt: skip


def _mailboxes(bus: BlockingBus, agent: str) -> Any:
    from agentbus.api.receiving import Mailboxes
    from agentbus.core.validation import check_name
    from agentbus.operations.agent_identity import current_registration

    try:
        registration = bus.read(current_registration, check_name(agent, "agent"))
    except InvalidName:
        return None
    return None if registration is None else Mailboxes.of(registration)


def _channels(bus: BlockingBus, uris: Sequence[str]) -> tuple[str, ...]:
    """Return the channels that wake a watcher: the audit log, which tells of agents and tasks, and mailboxes."""
    from agentbus.operations.events import CHANNEL

    found = [CHANNEL]
    for uri in uris:
        if uri.startswith(_INBOX):
            mailboxes = _mailboxes(bus, uri.removeprefix(_INBOX))
            found += mailboxes.channels if mailboxes is not None else ()
    return tuple(dict.fromkeys(found))


def _version(bus: BlockingBus, uri: str) -> Any:
    """Return something that differs when the resource does."""
    if uri.startswith(_TASK):
        with suppress(LookupError):
            record = known_task(bus, uri.removeprefix(_TASK))
            return record.updated, record.status, record.waits, record.progress, record.note
        return None
    from agentbus.operations.receive import list_waiting

    mailboxes = _mailboxes(bus, uri.removeprefix(_INBOX))
    return None if mailboxes is None else bus.read(list_waiting, (mailboxes.all, _MAX_COMPARED))
