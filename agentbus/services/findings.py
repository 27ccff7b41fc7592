"""What the monitor tells: events of the audit trail, whoever caused them, and conditions, until they change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from agentbus.limits import OLD_TRANSACTION
from agentbus.operations.examining import OpenTransaction
from agentbus.operations.liveness import Rules
from agentbus.operations.tidying import Other, Survey
from agentbus.records import EventRecord, Finding

_NAMED = 20
"""Dead letters that one finding names."""


def _suspected(event: EventRecord) -> str:
    evidence = event.facts["evidence"]
    return f"{event.subject} is suspect: {_WORDS[evidence['verdict']].format(**_ages(evidence))}"


def _failed(event: EventRecord) -> str:
    return f"{event.subject} failed: {event.facts.get('error') or 'it did not say why'}"


def _died(event: EventRecord) -> str:
    evidence = event.facts["evidence"]
    return f"process {event.subject} (pid {evidence['pid']}) {_ENDS[evidence['verdict']]}"


def _interrupted(event: EventRecord) -> str:
    return f"session {event.subject} was interrupted: {event.facts.get('reason') or 'by its owner'}"


_ENDS = {
    "dead": "died",
    "rebooted": "is gone: the machine was restarted",
    "unreachable": "counts as dead: it cannot be seen from here, and was silent for too long",
}
_WORDS = {
    "stalled": "its process (pid {pid}) is there, but did not beat for {beat_age} s",
    "unreachable": "its process (pid {pid}), which cannot be seen from here, did not beat for {beat_age} s",
    "stuck": "it did nothing for {call_age} s, though its process (pid {pid}) is there",
    "silent": "it did not call for {call_age} s, and its patience is {patience} s",
}
_TOLD: dict[str, tuple[str, Callable[[EventRecord], str]]] = {
    "agent_suspected": ("warning", _suspected),
    "agent_recovered": ("info", lambda event: f"{event.subject} shows life again"),
    "agent_failed": ("error", _failed),
    "process_dead": ("error", _died),
    "process_back": ("warning", lambda event: f"process {event.subject} counted as dead, and beats"),
    "session_interrupted": ("error", _interrupted),
    "task_failed": ("error", lambda event: f"task {_failed(event)}"),
    "approval_requested": ("info", lambda event: f"task {event.subject} asks for approval: {event.facts['approval']}"),
}


def from_events(events: Iterable[EventRecord]) -> list[Finding]:
    """What is worth telling of these events. Dead letters, of which there may be thousands, are told of together, and
    so are the steps of retention."""
    found: list[Finding] = []
    dead: list[EventRecord] = []
    gone: list[EventRecord] = []
    for event in events:
        if event.kind == "message_dead":
            dead.append(event)
        elif event.kind == "retention_applied":
            gone.append(event)
        elif event.kind in _TOLD:
            severity, words = _TOLD[event.kind]
            subject = f"{event.subject_kind}:{event.subject}"
            facts: dict[str, Any] = {**event.facts, "event": event.id}
            found.append(Finding(event.kind, subject, severity, words(event), facts, event.at))
    if dead:
        letters = "a message became a dead letter" if len(dead) == 1 else f"{len(dead)} messages became dead letters"
        text = f"{letters}: {dead[-1].facts.get('error')}"
        named = {event.subject: event.facts.get("error") for event in dead[:_NAMED]}
        facts = {"count": len(dead), "errors": named}
        found.append(Finding("messages_dead", "bus:messages", "warning", text, facts, dead[-1].at))
    if gone:
        counts: Counter[str] = Counter()
        for event in gone:
            counts.update(event.facts["counts"])
        archives = list(dict.fromkeys(event.facts["archive"] for event in gone))
        removed = ", ".join(f"{count:,} {kind}{'' if count == 1 else 's'}" for kind, count in counts.items())
        text = f"old enough, and gone: {removed}; archived in {', '.join(archives)}"
        facts = {"counts": dict(counts), "archives": archives}
        found.append(Finding("retention_applied", "bus:retention", "info", text, facts, gone[-1].at))
    return found


class Thresholds(msgspec.Struct, frozen=True):
    """From where on the size of the log and the room on the disk (bytes), the depth of a queue, and the age of a
    server's transaction (seconds) are worth a word."""

    log: int = 64 * 1024 * 1024
    disk: int = 512 * 1024 * 1024
    queue: int = 1000
    transaction: int = OLD_TRANSACTION


class Condition(msgspec.Struct, frozen=True):
    """Something that lasts. It is told of when it begins, and when its ``level`` changes."""

    level: object
    finding: Finding


def conditions(survey: Survey, thresholds: Thresholds, log: int, free: int | None) -> list[Condition]:
    """What there is to warn of now."""
    at = survey.now.wall
    found = [
        Condition(
            (trouble.failed, trouble.live, trouble.awaited),
            Finding(
                "session_degraded",
                f"session:{trouble.session}",
                "warning",
                f"session {trouble.session} goes on, but {trouble.failed} of its agents failed;"
                f" {trouble.live - trouble.awaited} live" + (f", {trouble.awaited} awaited" if trouble.awaited else ""),
                {"failed": trouble.failed, "live": trouble.live - trouble.awaited}
                | ({"awaited": trouble.awaited} if trouble.awaited else {}),
                at,
            ),
        )
        for trouble in survey.troubles
        if trouble.failed and trouble.live
    ]
    for name in survey.unattended:
        text = f"work waits in the pool {name}, of which no member is live"
        found.append(Condition(None, Finding("pool_unattended", f"mailbox:pool:{name}", "warning", text, {}, at)))
    for name in survey.deep:
        text = f"more than {thresholds.queue:,} messages wait for {name}"
        facts = {"more_than": thresholds.queue}
        found.append(Condition(None, Finding("queue_deep", f"mailbox:{name}", "warning", text, facts, at)))
    if log > thresholds.log:
        text = f"the log has {_mebibytes(log)} and cannot be moved into the database; does somebody read for very long?"
        found.append(Condition(log.bit_length(), Finding("log_long", "bus:log", "warning", text, {"bytes": log}, at)))
    if free is not None and free < thresholds.disk:
        text = f"only {_mebibytes(free)} are left on the disk"
        found.append(Condition(free.bit_length(), Finding("disk_low", "bus:disk", "error", text, {"bytes": free}, at)))
    return found


def silent_hosts(survey: Survey, rules: Rules) -> list[Condition]:
    """Other machines of which every process is silent: then it is the machine, or the way to it."""
    hosts: dict[str, list[Other]] = {}
    for other in survey.others:
        if not other.watched and other.neighbour.host != rules.host:
            hosts.setdefault(other.neighbour.host, []).append(other)
    found: list[Condition] = []
    for host, others in hosts.items():
        if all(other.silent(rules, survey.now) for other in others):
            silence = survey.now.awake - max(other.beat for other in others)
            facts = {"processes": len(others), "silent": round(silence / 1000, 1)}
            text = f"the host {host} is silent: none of its {len(others)} processes beat for {facts['silent']} s"
            found.append(Condition(None, Finding("host_silent", f"host:{host}", "error", text, facts, survey.now.wall)))
    return found


def old_transaction(found: OpenTransaction | None, thresholds: Thresholds, at: int) -> list[Condition]:
    """A transaction that has been open for too long; again whenever it is twice as old, or it is another one."""
    if found is None or found.seconds < thresholds.transaction:
        return []
    facts = {"seconds": found.seconds, "pid": found.pid, "program": found.program}
    text = f"{found.text}; {found.fix}"
    finding = Finding("transaction_old", "server:transactions", "warning", text, facts, at)
    return [Condition((found.pid, found.seconds.bit_length()), finding)]


class Memory:
    """What was told already: a condition that lasts is told of once, until it changes."""

    def __init__(self) -> None:
        self._levels: dict[tuple[str, str], object] = {}

    def news(self, found: Sequence[Condition]) -> list[Finding]:
        levels = {(one.finding.kind, one.finding.subject): one.level for one in found}
        unknown = object()
        news = [
            one.finding
            for one in found
            if self._levels.get((one.finding.kind, one.finding.subject), unknown) != one.level
        ]
        self._levels = levels
        return news


def _ages(evidence: dict[str, Any]) -> dict[str, Any]:
    """Every figure that a sentence may ask for."""
    return {"pid": "?", "beat_age": "?", "call_age": "?", "patience": "?", **evidence}


def _mebibytes(size: int) -> str:
    return f"{size / 1024 / 1024:,.0f} MiB"
