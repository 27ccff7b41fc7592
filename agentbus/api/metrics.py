"""Metrics: collected once for all interfaces, and written as Prometheus or OpenMetrics text.

The number of series is bounded: no agent, task, session or message is a label, and of pools, types and workflows the
MAX_NAMED largest are named; ``other`` is the sum of the rest.

Imports no event loop: the synchronous API drives it too.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from agentbus.core.measurements import Histogram, writes
from agentbus.core.validation import AGENT_STATUSES, TASK_STATUSES
from agentbus.operations.metrics import BusCounts, Waiting, count_bus
from agentbus.records.metrics import MetricFamily, MetricSample

if TYPE_CHECKING:
    from agentbus.engine.interface import Engine

MAX_NAMED = 20
"""Pools, types of agents and workflows that are named."""
PROMETHEUS = "prometheus"
OPENMETRICS = "openmetrics"
CONTENT_TYPES = {
    PROMETHEUS: "text/plain; version=0.0.4; charset=utf-8",
    OPENMETRICS: "application/openmetrics-text; version=1.0.0; charset=utf-8",
}
"""The formats, with their media types."""
_OPEN_SESSIONS = ("active", "paused", "interrupted")
"""The statuses of sessions that have not ended."""
_KINDS = {"agent": "agent", "replies": "replies", "pool": "pool", "subscription": "topic", "task": "task"}
"""The label of each kind of mailbox."""
_CHANGES = {
    "leased": ("delivered", "Messages delivered to a receiver, since this server started."),
    "acked": ("acked", "Messages acknowledged, since this server started."),
    "released": ("redelivered", "Messages released for redelivery, since this server started."),
    "dead": ("dead_lettered", "Messages that became dead letters, since this server started."),
}
"""The counter of each change that a server observes, with its help."""
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Source(Protocol):
    """An open bus, asynchronous or synchronous."""

    @property
    def _engine(self) -> Engine: ...


async def collect(
    bus: Source, home: str | None, *, process: bool = False, changes: Mapping[str, int] | None = None
) -> list[MetricFamily]:
    """Return the metrics of a bus. ``home`` is its directory, or None for a bus on a server. ``process``: also those of
    this process. ``changes`` are the numbers of messages leased, acked, released and dead that a server has counted."""
    start = time.perf_counter()
    counts = await bus._engine.read(count_bus, MAX_NAMED)
    sizes = await bus._engine.sizes()
    families = [_build("postgresql" if home is None else "sqlite"), *_bus(counts), *_sizes(sizes, home)]
    if changes is not None:
        families += [
            MetricFamily(f"agentbus_messages_{name}", "counter", help, [_total(changes.get(change, 0))], "", "process")
            for change, (name, help) in _CHANGES.items()
        ]
    if process:
        families += _process()
    seconds = time.perf_counter() - start
    families.append(_gauge("agentbus_collect_seconds", "Duration of this collection.", seconds, unit="seconds"))
    return families


def _gauge(name: str, help: str, value: float, *, unit: str = "") -> MetricFamily:
    return MetricFamily(name, "gauge", help, [MetricSample(value)], unit)


def _labelled(name: str, help: str, label: str, values: Mapping[str, float], *, unit: str = "") -> MetricFamily:
    return MetricFamily(name, "gauge", help, [MetricSample(value, {label: own}) for own, value in values.items()], unit)


def _total(value: float) -> MetricSample:
    return MetricSample(value, suffix="_total")


def _build(engine: str) -> MetricFamily:
    from agentbus import __version__

    labels = {"version": __version__, "engine": engine}
    return MetricFamily("agentbus_build", "info", "Version and engine.", [MetricSample(1, labels, "_info")])


def _bus(counts: BusCounts) -> list[MetricFamily]:
    return [
        MetricFamily(
            "agentbus_messages_sent", "counter", "Messages sent since the bus was created.", [_total(counts.sent)]
        ),
        MetricFamily(
            "agentbus_state_changes", "counter", "Changes of state since the bus was created.",
            [_total(counts.state_changes)],
        ),
        *_queues(counts),
        _labelled("agentbus_pool_members", "Live members of a pool.", "pool", counts.members),
        _gauge("agentbus_messages_leased_again", "Leased messages that were delivered before.", counts.redelivered),
        _gauge("agentbus_messages_held", "Messages that the loop guard holds for a person.", counts.held),
        _gauge("agentbus_dead_letters", "Dead letters.", counts.dead),
        _labelled("agentbus_agents", "Agents by status.", "status", _filled(counts.agents, AGENT_STATUSES)),
        _labelled("agentbus_agents_live", "Agents that have not ended, by type.", "type", counts.agent_types),
        _labelled("agentbus_tasks", "Tasks by status.", "status", _filled(counts.tasks, TASK_STATUSES)),
        _labelled(
            "agentbus_tasks_ready", "Tasks that wait for a worker, by workflow.", "workflow",
            {workflow: one.number for workflow, one in counts.ready.items()},
        ),
        _labelled(
            "agentbus_tasks_ready_oldest_seconds", "Age of the oldest task that waits for a worker.", "workflow",
            {workflow: one.oldest / 1000 for workflow, one in counts.ready.items()}, unit="seconds",
        ),
        _gauge("agentbus_approvals_waiting", "Approvals that wait for a person.", counts.approvals.number),
        _gauge(
            "agentbus_approvals_oldest_seconds", "Age of the oldest approval that waits for a person.",
            counts.approvals.oldest / 1000, unit="seconds",
        ),
        _labelled(
            "agentbus_sessions", "Sessions that have not ended, by status.", "status",
            {status: counts.sessions.get(status, Waiting()).number for status in _OPEN_SESSIONS},
        ),
        _gauge(
            "agentbus_sessions_interrupted_oldest_seconds", "Time since the first interruption of those sessions.",
            counts.sessions.get("interrupted", Waiting()).oldest / 1000, unit="seconds",
        ),
        _gauge("agentbus_processes", "Processes that have the bus open.", counts.processes),
        _gauge(
            "agentbus_lock_wait_ratio", "Writers of all processes that waited for the lock on average, recently.",
            counts.lock_waits / 60,
        ),
    ]  # fmt: skip


def _queues(counts: BusCounts) -> list[MetricFamily]:
    """Return the depths of mailboxes. Every kind has its samples, also without a message."""
    numbers = {"queued": {key: one.number for key, one in counts.queued.items()}}
    numbers |= {"scheduled": counts.scheduled, "leased": counts.leased}
    empty = [(kind, "") for kind in _KINDS if kind != "pool"]
    keys = sorted({*empty, *(key for found in numbers.values() for key in found)})
    depths = [
        MetricSample(found.get(key, 0), {**_mailbox(key), "status": status})
        for key in keys for status, found in numbers.items()
    ]  # fmt: skip
    ages = [MetricSample(counts.queued.get(key, Waiting()).oldest / 1000, _mailbox(key)) for key in keys]
    return [
        MetricFamily("agentbus_queue_messages", "gauge", "Messages in mailboxes, by kind, pool and status.", depths),
        MetricFamily("agentbus_queue_oldest_seconds", "gauge", "Age of the oldest queued message.", ages, "seconds"),
    ]


def _mailbox(key: tuple[str, str]) -> dict[str, str]:
    kind, pool = key
    return {"kind": _KINDS.get(kind, kind), **({"pool": pool} if pool else {})}


def _filled(counts: Mapping[str, int], known: Iterable[str]) -> dict[str, float]:
    """Return the counts of all known statuses: a series that is missing looks like one that is not collected."""
    return {status: counts.get(status, 0) for status in known}


def _sizes(sizes: tuple[int, int], home: str | None) -> list[MetricFamily]:
    database, log = sizes
    found = [_gauge("agentbus_database_bytes", "Size of the database.", database, unit="bytes")]
    if home is not None:
        found.append(_gauge("agentbus_wal_bytes", "Size of the write-ahead log.", log, unit="bytes"))
    return found


def _process() -> list[MetricFamily]:
    """Return the measurements of this process."""

    def own(name: str, kind: str, help: str, samples: Sequence[MetricSample], unit: str = "") -> MetricFamily:
        return MetricFamily(name, kind, help, list(samples), unit, "process")  # type: ignore[arg-type]

    commits = [*_histogram(writes.synced_commit, {"synced": "true"}), *_histogram(writes.commit, {"synced": "false"})]
    found = [
        own("agentbus_write_batch_calls", "histogram", "Calls per transaction.", _histogram(writes.batch_calls)),
        own("agentbus_write_lock_wait_seconds", "histogram", "Wait of a batch for the lock of the bus.",
            _histogram(writes.lock_wait), "seconds"),
        own("agentbus_write_commit_seconds", "histogram", "Duration of a commit; synced ones include the fsync.",
            commits, "seconds"),
        own("agentbus_write_lock_timeouts", "counter", "Batches that failed because the lock was not free in time.",
            [_total(writes.lock_timeouts)]),
        own("agentbus_write_replays", "counter", "Batches that were run again call by call after a failure.",
            [_total(writes.replays)]),
        own("process_cpu_seconds", "counter", "CPU time of the process.", [_total(time.process_time())], "seconds"),
        own("process_start_time_seconds", "gauge", "Start of the process, in seconds since 1970.",
            [MetricSample(writes.started)], "seconds"),
    ]  # fmt: skip
    memory = _resident_bytes()
    if memory is not None:
        found.append(own("process_resident_memory_bytes", "gauge", "Resident memory.", [MetricSample(memory)], "bytes"))
    return found


def _histogram(found: Histogram, labels: Mapping[str, str] | None = None) -> list[MetricSample]:
    labels = labels or {}
    cumulative = found.cumulative()
    bounds = [*(repr(float(bound)) for bound in found.bounds), "+Inf"]
    return [
        *(MetricSample(n, {**labels, "le": bound}, "_bucket") for bound, n in zip(bounds, cumulative, strict=True)),
        MetricSample(found.sum, dict(labels), "_sum"),
        MetricSample(cumulative[-1], dict(labels), "_count"),
    ]


def _resident_bytes() -> int | None:
    """Return the resident memory of this process; None where the system does not provide it."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * _PAGE
    except (OSError, ValueError, IndexError):
        return None


def render(families: Iterable[MetricFamily], format: str = PROMETHEUS) -> str:
    r"""Write metrics in a format: ``prometheus`` (text 0.0.4) or ``openmetrics`` (1.0).

    >>> sent = MetricFamily("agentbus_messages_sent", "counter", "Sent.", [MetricSample(3, suffix="_total")])
    >>> print(render([sent]), end="")
    # HELP agentbus_messages_sent_total Sent.
    # TYPE agentbus_messages_sent_total counter
    agentbus_messages_sent_total 3
    >>> print(render([sent], "openmetrics"), end="")
    # HELP agentbus_messages_sent Sent.
    # TYPE agentbus_messages_sent counter
    agentbus_messages_sent_total 3
    # EOF
    """
    open_metrics = format == OPENMETRICS
    lines: list[str] = []
    for family in families:
        name, kind = family.name, family.type
        if not open_metrics:
            # The older format names a counter as its sample, and has no info.
            name += {"counter": "_total", "info": "_info"}.get(kind, "")
            kind = "gauge" if kind == "info" else kind
        help = _escaped(family.help) if open_metrics else _escaped(family.help, quotes=False)
        lines += [f"# HELP {name} {help}", f"# TYPE {name} {kind}"]
        if open_metrics and family.unit:
            lines.append(f"# UNIT {name} {family.unit}")
        lines += [
            f"{family.name}{one.suffix}{_labels(one.labels)} {_number(one.value)}" for one in family.samples
        ]  # fmt: skip
    if open_metrics:
        lines.append("# EOF")
    # A name may hold half of a surrogate pair, which no encoding has.
    return "".join(f"{line}\n" for line in lines).encode(errors="replace").decode()


def _labels(labels: Mapping[str, str]) -> str:
    r"""Return labels in braces.

    >>> _labels({"pool": 'a"b\\c\nd'})
    '{pool="a\\"b\\\\c\\nd"}'
    """
    inside = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())
    return f"{{{inside}}}" if inside else ""


def _escaped(text: str, *, quotes: bool = True) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quotes else text


def _number(value: float) -> str:
    return repr(value) if isinstance(value, int) or not value.is_integer() else str(int(value))


def negotiate(accept: str | None) -> str:
    """Return the format that an Accept header prefers; the older one if it names neither.

    >>> negotiate("application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1")
    'openmetrics'
    >>> negotiate("text/plain"), negotiate("application/openmetrics-text; q=0"), negotiate(None)
    ('prometheus', 'prometheus', 'prometheus')
    """
    best, chosen = 0.0, PROMETHEUS
    for entry in (accept or "").split(","):
        kind, *rest = (part.strip().lower() for part in entry.split(";"))
        parameters = dict(part.partition("=")[::2] for part in rest)
        try:
            quality = float(parameters.get("q", "1"))
        except ValueError:
            continue
        if kind == "application/openmetrics-text" and parameters.get("version", "1.0.0") == "1.0.0":
            format = OPENMETRICS
        elif kind in {"text/plain", "text/*", "*/*"}:
            format = PROMETHEUS
        else:
            continue
        if quality > best:
            best, chosen = quality, format
    return chosen
