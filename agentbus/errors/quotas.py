"""Errors of the quotas of a bus: what keeps one agent that has gone wild from the room and the time of all others."""

from __future__ import annotations

from agentbus.errors.calls import Conflict


class QuotaExceeded(Conflict):
    """A quota of the bus refused the message. Nothing was written."""

    code = "quota_exceeded"
    transient = True


class QueueFull(QuotaExceeded):
    """As many messages wait in the mailbox as the bus allows."""

    code = "queue_full"
    text = "{waiting} messages wait for {kind} {name!r}, and {most} may"
    fix_text = "wait until some are taken, or allow more: bus.quotas.change(depth=…)"


class SendingTooFast(QuotaExceeded):
    """The agent sends more messages a second than the bus allows."""

    code = "sending_too_fast"
    text = "agent {agent!r} sends faster than {rate} messages a second"
    fix_text = "wait {wait} s, or allow more: bus.quotas.change(rate=…)"


class BusFull(QuotaExceeded):
    """The bus is as large as it may be; only new messages are refused."""

    code = "bus_full"
    text = "the bus has {size} bytes, and {most} are allowed before it takes no more messages"
    fix_text = "let old things go (bus.retention.apply()), or allow more: bus.quotas.change(size=…)"
