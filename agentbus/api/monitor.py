"""The monitor: sweep the bus periodically and report findings.

A sweep checks the liveness of processes and agents, frees expired leases, and reports new events and conditions. On a
quiet bus it costs a few indexed reads and writes nothing. Any number of processes may sweep at once and be killed at
any point: every step is one commit, and the next sweep continues from there.
"""

from __future__ import annotations

import asyncio
import logging
import os
import stat
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from types import TracebackType
from typing import Any

import anyio
import msgspec

from agentbus.api.block import AsyncOnly
from agentbus.api.heartbeat import expire_state, is_gone
from agentbus.api.notifications import Deliverer
from agentbus.core import process_info
from agentbus.core.cancellation import Threads, call, is_being_cancelled, log_failure
from agentbus.core.files import check_path, file_error
from agentbus.core.validation import OLD_TRANSACTION
from agentbus.engine.interface import Engine
from agentbus.errors import AgentBusError, BusClosed, InvalidInput, Misuse, NotWritable
from agentbus.operations.events import EventFilter, last_event, read_events
from agentbus.operations.health import OpenTransaction
from agentbus.operations.liveness import CheckLiveness, Rules, mark_failed, suspect
from agentbus.operations.sweep import CleanUpRequest, OtherProcess, Survey, SurveyRequest, clean_up, survey
from agentbus.operations.tasks import release_lapsed_tasks
from agentbus.records import EventRecord, Finding, Sweep

log = logging.getLogger("agentbus.monitor")

Callback = Callable[[Finding], object]

_MAX_DEAD_LETTERS_NAMED = 20
_EVENTS_PER_READ = 500
_MAX_BUFFERED_FINDINGS = 10_000
"""Findings kept for a slow reader."""
_QUEUE_CHECK_INTERVAL = 60_000
"""Milliseconds; the cost of the check grows with the number of queues."""
_COUNTED = (
    "processes_dead", "agents_failed", "agents_suspected", "sessions_interrupted", "leases_freed", "messages_expired",
    "tasks_freed", "state_expired",
)  # fmt: skip
_LEVELS = {"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def _suspected(event: EventRecord) -> str:
    evidence = event.facts["evidence"]
    return f"{event.subject} is suspect: {_SUSPICIONS[evidence['verdict']].format(**_ages(evidence))}"


def _failed(event: EventRecord) -> str:
    return f"{event.subject} failed: {event.facts.get('error') or 'no reason given'}"


def _died(event: EventRecord) -> str:
    evidence = event.facts["evidence"]
    return f"process {event.subject} (pid {evidence['pid']}) {_DEATHS[evidence['verdict']]}"


def _interrupted(event: EventRecord) -> str:
    return f"session {event.subject} was interrupted: {event.facts.get('reason') or 'by its owner'}"


def _gave_up(event: EventRecord) -> str:
    facts = event.facts
    notification = f"notification of {facts['about']} by {facts['notifier']}"
    return f"{notification} was given up after {facts['attempts']} attempts: {facts['error']}"


_DEATHS = {
    "dead": "died",
    "rebooted": "is gone: the machine was rebooted",
    "unreachable": "is considered dead: it is not visible from this host and was silent for too long",
}
_SUSPICIONS = {
    "stalled": "its process (pid {pid}) exists, but sent no heartbeat for {beat_age} s",
    "unreachable": "its process (pid {pid}) is not visible from this host and sent no heartbeat for {beat_age} s",
    "stuck": "it did nothing for {call_age} s, although its process (pid {pid}) exists",
    "silent": "it made no call for {call_age} s; its limit is {patience} s",
}
_DESCRIPTIONS: dict[str, tuple[str, Callable[[EventRecord], str]]] = {
    "agent_suspected": ("warning", _suspected),
    "agent_recovered": ("info", lambda event: f"{event.subject} is responsive again"),
    "agent_failed": ("error", _failed),
    "process_dead": ("error", _died),
    "process_back": ("warning", lambda event: f"process {event.subject} was marked dead, but sends heartbeats"),
    "session_interrupted": ("error", _interrupted),
    "task_failed": ("error", lambda event: f"task {_failed(event)}"),
    "notification_dead": ("warning", _gave_up),
    "approval_requested": ("info", lambda event: f"task {event.subject} requests approval: {event.facts['approval']}"),
}


def findings_of(events: Iterable[EventRecord]) -> list[Finding]:
    """Return the findings of these events. Dead letters, of which there may be thousands, become one finding, and so do
    the steps of retention."""
    found: list[Finding] = []
    dead: list[EventRecord] = []
    removals: list[EventRecord] = []
    for event in events:
        if event.kind == "message_dead":
            dead.append(event)
        elif event.kind == "retention_applied":
            removals.append(event)
        elif event.kind in _DESCRIPTIONS:
            severity, describe = _DESCRIPTIONS[event.kind]
            subject = f"{event.subject_kind}:{event.subject}"
            facts: dict[str, Any] = {**event.facts, "event": event.id}
            found.append(Finding(event.kind, subject, severity, describe(event), facts, event.at))
    if dead:
        letters = "a message became a dead letter" if len(dead) == 1 else f"{len(dead)} messages became dead letters"
        text = f"{letters}: {dead[-1].facts.get('error')}"
        named = {event.subject: event.facts.get("error") for event in dead[:_MAX_DEAD_LETTERS_NAMED]}
        facts = {"count": len(dead), "errors": named}
        found.append(Finding("messages_dead", "bus:messages", "warning", text, facts, dead[-1].at))
    if removals:
        counts: Counter[str] = Counter()
        for event in removals:
            counts.update(event.facts["counts"])
        archives = list(dict.fromkeys(event.facts["archive"] for event in removals))
        removed = ", ".join(f"{count:,} {kind}{'' if count == 1 else 's'}" for kind, count in counts.items())
        text = f"retention removed {removed}; archived in {', '.join(archives)}"
        facts = {"counts": dict(counts), "archives": archives}
        found.append(Finding("retention_applied", "bus:retention", "info", text, facts, removals[-1].at))
    return found


class Thresholds(msgspec.Struct, frozen=True):
    """Thresholds for findings: size of the log and free disk space (bytes), depth of a queue, and age of a server
    transaction (seconds)."""

    log: int = 64 * 1024 * 1024
    disk: int = 512 * 1024 * 1024
    queue: int = 1000
    transaction: int = OLD_TRANSACTION


class Condition(msgspec.Struct, frozen=True):
    """A lasting condition, reported when it starts and when its ``level`` changes."""

    level: object
    finding: Finding


def conditions(survey: Survey, thresholds: Thresholds, log: int, free: int | None) -> list[Condition]:
    """Return the conditions to warn of now."""
    at = survey.now.wall
    found = [
        Condition(
            (trouble.failed, trouble.live, trouble.awaited),
            Finding(
                "session_degraded",
                f"session:{trouble.session}",
                "warning",
                f"session {trouble.session} is active, but {trouble.failed} of its agents failed;"
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
        text = f"messages wait in pool {name}, which has no live member"
        found.append(Condition(None, Finding("pool_unattended", f"mailbox:pool:{name}", "warning", text, {}, at)))
    for name in survey.deep:
        text = f"more than {thresholds.queue:,} messages wait for {name}"
        facts = {"more_than": thresholds.queue}
        found.append(Condition(None, Finding("queue_deep", f"mailbox:{name}", "warning", text, facts, at)))
    if log > thresholds.log:
        text = f"the write-ahead log has {_mebibytes(log)} and cannot be checkpointed; look for a long-running reader"
        found.append(Condition(log.bit_length(), Finding("log_long", "bus:log", "warning", text, {"bytes": log}, at)))
    if free is not None and free < thresholds.disk:
        text = f"only {_mebibytes(free)} of disk space left"
        found.append(Condition(free.bit_length(), Finding("disk_low", "bus:disk", "error", text, {"bytes": free}, at)))
    return found


def silent_hosts(survey: Survey, rules: Rules) -> list[Condition]:
    """Return other hosts whose processes are all silent: the host or the network is down."""
    hosts: dict[str, list[OtherProcess]] = {}
    for other in survey.others:
        if not other.watched and other.peer.host != rules.host:
            hosts.setdefault(other.peer.host, []).append(other)
    found: list[Condition] = []
    for host, others in hosts.items():
        if all(other.silent(rules, survey.now) for other in others):
            silence = survey.now.awake - max(other.beat for other in others)
            facts = {"processes": len(others), "silent": round(silence / 1000, 1)}
            text = f"host {host} is silent: no heartbeat from its {len(others)} processes for {facts['silent']} s"
            found.append(Condition(None, Finding("host_silent", f"host:{host}", "error", text, facts, survey.now.wall)))
    return found


def old_transaction(found: OpenTransaction | None, thresholds: Thresholds, at: int) -> list[Condition]:
    """Return a transaction that has been open too long; its level changes when its age doubles."""
    if found is None or found.seconds < thresholds.transaction:
        return []
    facts = {"seconds": found.seconds, "pid": found.pid, "program": found.program}
    text = f"{found.text}; {found.fix}"
    finding = Finding("transaction_old", "server:transactions", "warning", text, facts, at)
    return [Condition((found.pid, found.seconds.bit_length()), finding)]


class _ReportedConditions:
    """The conditions already reported: each is reported again only when it changes."""

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
    """Return the evidence with a default for each placeholder."""
    return {"pid": "?", "beat_age": "?", "call_age": "?", "patience": "?", **evidence}


def _mebibytes(size: int) -> str:
    return f"{size / 1024 / 1024:,.0f} MiB"


class Sweeper:
    """Sweeps, and remembers which events and conditions it has reported."""

    def __init__(self, engine: Engine, rules: Rules, thresholds: Thresholds) -> None:
        self._engine = engine
        self._host = process_info.host_key()
        self._rules = msgspec.structs.replace(rules, host=self._host)
        self._thresholds = thresholds
        self._reported = _ReportedConditions()
        self._last_event: int | None = None
        """The last event that was read."""
        self._queues_checked: int | None = None
        """When the depth of queues was last read (awake)."""
        self._deep: Sequence[str] = ()

    async def start(self) -> None:
        """Report every event from now on."""
        self._last_event = await self._engine.read(last_event, None)

    async def sweep(self) -> Sweep:
        """Sweep once."""
        started = time.perf_counter()
        if self._last_event is None:
            await self.start()
        counts = Counter(dict.fromkeys(_COUNTED, 0))
        around = await self._survey()
        hosts = silent_hosts(around, self._rules)
        if await self._check_liveness(around, counts):
            around = await self._survey()
        await self._tidy(around, counts)
        await self._engine.checkpoint()
        _, log = await self._engine.sizes()
        warnings = conditions(around, self._thresholds, log, self._engine.free_space())
        warnings += old_transaction(await self._engine.oldest_transaction(), self._thresholds, around.now.wall)
        findings = [*await self._news(), *self._reported.news([*hosts, *warnings])]
        return Sweep(around.now.wall, time.perf_counter() - started, dict(counts), findings)

    async def _survey(self) -> Survey:
        awake = self._engine.clock.now().awake
        check_queues = self._queues_checked is None or awake - self._queues_checked >= _QUEUE_CHECK_INTERVAL
        request = SurveyRequest(self._engine.process, self._rules, self._thresholds.queue if check_queues else None)
        around = await self._engine.read(survey, request)
        if check_queues:
            self._queues_checked, self._deep = awake, around.deep
        return msgspec.structs.replace(around, deep=self._deep)

    async def _check_liveness(self, around: Survey, counts: Counter[str]) -> bool:
        """Mark dead processes and failed agents, suspect silent ones, and return True if there were any."""
        engine = self._engine
        gone, stalled, unseen = [], [], []
        for other in around.others:
            silent = other.silent(self._rules, around.now)
            if other.peer.host != self._host:
                if silent:
                    unseen.append(other.peer)
            elif is_gone(other.peer):
                gone.append(other.peer)
            elif silent:
                stalled.append(other.peer)
        request = CheckLiveness(
            self._rules,
            tuple(other.process for other in gone),
            tuple(other.process for other in stalled),
            tuple(other.process for other in unseen),
            tuple(trouble.session for trouble in around.troubles if not trouble.live),
        )
        silent_processes = bool(stalled or unseen)
        more = bool(around.failing or gone or silent_processes or request.sessions)
        while more:
            failed = await engine.write(mark_failed, request)
            counts["processes_dead"] += len(failed.processes)
            counts["agents_failed"] += len(failed.agents)
            counts["sessions_interrupted"] += len(failed.sessions)
            more = failed.more
            request = msgspec.structs.replace(request, gone=(), sessions=())
        engine.remove_bells(other.bell for other in gone)
        more = around.suspicious or silent_processes
        while more:
            suspected = await engine.write(suspect, request)
            counts["agents_suspected"] += len(suspected.agents)
            more = suspected.more
        return counts.total() > 0

    async def _tidy(self, around: Survey, counts: Counter[str]) -> None:
        engine = self._engine
        more = around.lapsed or bool(around.expiring)
        while more:
            # In bounded transactions, so that other writers do not wait long.
            tidied = await engine.write(clean_up, CleanUpRequest(around.expiring))
            counts["leases_freed"] += tidied.freed
            counts["messages_expired"] += tidied.expired
            more = tidied.more
        if around.tasks:
            counts["tasks_freed"] += await engine.write(release_lapsed_tasks, None)
        counts["state_expired"] += await expire_state(engine)

    async def _news(self) -> list[Finding]:
        """Return the findings of events since the last sweep, by any process."""
        wanted = EventFilter(self._last_event or 0, limit=_EVENTS_PER_READ)
        events: list[EventRecord] = []
        while True:
            page = await self._engine.read(read_events, wanted)
            events += page
            if len(page) < _EVENTS_PER_READ:
                break
            wanted = msgspec.structs.replace(wanted, after=page[-1].id)
        if events:
            self._last_event = events[-1].id
        return findings_of(events)


class PeriodicJob(msgspec.Struct, frozen=True):
    """A job that a monitor runs after its first interval, then every ``every`` seconds."""

    name: str
    every: float
    do: Callable[[], Awaitable[object]]


class Monitor(AsyncOnly):
    """A monitor that runs for the length of its block, made by ``bus.monitor(…)``.

    >>> async with bus.monitor(interval=5, suspect_after=60) as monitor:              # doctest: +SKIP
    ...     async for finding in monitor.findings():
    ...         print(finding.text)
    """

    _block_form = "async with bus.monitor(…) as monitor:"

    sweeps: int
    """The number of its sweeps."""
    last: Sweep | None
    """The result of its last sweep."""

    def __init__(
        self,
        engine: Engine,
        sweeper: Sweeper,
        *,
        interval: float,
        log_file: str | os.PathLike[str] | None = None,
        on_finding: Callback | None = None,
        jobs: Sequence[PeriodicJob] = (),
        threads: Threads | None = None,
        deliverer: Deliverer | None = None,
    ) -> None:
        self.sweeps = 0
        self.last = None
        self._engine = engine
        self._sweeper = sweeper
        self._interval = interval
        self._log_file = log_file
        self._on_finding = on_finding
        self._jobs = jobs
        self._threads = threads or Threads()
        self._deliverer = deliverer
        self._task: asyncio.Task[None] | None = None
        self._entered = False
        self._file: int | None = None
        self._found: deque[Finding] = deque(maxlen=_MAX_BUFFERED_FINDINGS)
        self._total = 0
        self._news = asyncio.Event()
        self._finished = False

    async def __aenter__(self) -> Monitor:
        if self._entered:
            raise Misuse(reason="a monitor runs once; call bus.monitor() again")
        self._entered = True
        await self._sweeper.start()
        if self._log_file is not None:
            self._file = open_log(self._engine, self._log_file)
        if self._deliverer is not None:
            try:
                await self._deliverer.start(lambda finding: self._publish([finding]))
            except BaseException:
                self._close_log()
                raise
        # A separate task: a task group would wrap the exceptions of the caller's block.
        self._task = asyncio.create_task(self._run(), name="agentbus-monitor")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._task is not None:
                self._task.cancel()
                (ending,) = await asyncio.gather(self._task, return_exceptions=True)
                if isinstance(ending, Exception):
                    log.error("the monitor ended with an error", exc_info=ending)
        finally:
            self._close_log()

    def _close_log(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    async def findings(self) -> AsyncIterator[Finding]:
        """Yield all findings since the monitor started, then new ones until its block ends. Every caller gets all of
        them; for a slow one the last 10,000 are kept.

        >>> async for finding in monitor.findings():                                  # doctest: +SKIP
        ...     print(finding.severity, finding.subject, finding.text)
        """
        position = 0
        while True:
            news, over = self._news, self._finished
            position = max(position, self._total - len(self._found))
            while position < self._total:
                finding = self._found[position - self._total]
                position += 1
                yield finding
                position = max(position, self._total - len(self._found))
            if over:
                return
            self._engine.check()
            await news.wait()

    async def _run(self) -> None:
        try:
            async with anyio.create_task_group() as tasks:
                if self._on_finding is not None:
                    tasks.start_soon(self._call_back, self._on_finding)
                for job in self._jobs:
                    tasks.start_soon(self._run_job, job)
                if self._deliverer is not None:
                    tasks.start_soon(self._deliverer.run, self._interval)
                await self._sweep_loop()
                tasks.cancel_scope.cancel()
        finally:
            self._finished = True
            self._ring()

    async def _sweep_loop(self) -> None:
        """Sweep until the bus is closed. An error does not stop later sweeps."""
        pause = self._engine.waiters.listen(())
        while True:
            try:
                swept = await self._sweeper.sweep()
            except BusClosed:
                return
            except AgentBusError as error:
                log.warning("sweep failed: %s", error)
            except Exception:
                log.exception("sweep failed")
            else:
                self.last = swept
                self._publish(swept.findings)
                if self._deliverer is not None:
                    self._deliverer.note(swept.findings)
            self.sweeps += 1
            await pause.wait(self._interval)

    async def _run_job(self, job: PeriodicJob) -> None:
        pause = self._engine.waiters.listen(())
        await pause.wait(self._interval)
        while True:
            try:
                await job.do()
            except AgentBusError as error:
                log.warning("%s failed: %s", job.name, error)
            except Exception:
                log.exception("%s failed", job.name)
            await pause.wait(job.every)

    async def _call_back(self, callback: Callback) -> None:
        """Pass findings to the callback, in a separate task so that a slow one does not delay sweeps."""
        async for finding in self.findings():
            try:
                await call(self._threads, f"on_finding of {finding.kind}", callback, finding)
            except asyncio.CancelledError:
                if is_being_cancelled():
                    raise
                log.warning("on_finding was cancelled on %s", finding.kind)
            except Exception as error:
                log_failure(log, error, "on_finding failed on %s", finding.kind)

    def _publish(self, findings: Sequence[Finding]) -> None:
        for finding in findings:
            about = {"code": finding.kind, "subject": finding.subject}
            log.log(_LEVELS[finding.severity], "%s", finding.text, extra=about)
            self._found.append(finding)
            self._total += 1
            if self._file is not None:
                try:
                    os.write(self._file, _line(finding))
                except OSError as error:
                    log.warning("could not write to the log file: %s", error)
        if findings:
            self._ring()

    def _ring(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()


def open_log(engine: Engine, path: str | os.PathLike[str]) -> int:
    """Open the log file for appending, readable by this user only. Refuse a file of the store, since closing it would
    drop SQLite's locks, and anything that could block the event loop, such as a pipe."""
    location = check_path(path)
    try:
        with suppress(FileNotFoundError):
            there = location.stat()
            if engine.owns_file(there.st_dev, there.st_ino):
                raise InvalidInput(reason=f"{location} is part of the bus; choose another log file")
            if not stat.S_ISREG(there.st_mode):
                raise NotWritable(path=str(location), reason="it is not a regular file")
        return os.open(location, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
    except OSError as error:
        raise file_error(location, error) from None


def write_log(engine: Engine, path: str | os.PathLike[str], findings: Sequence[Finding]) -> None:
    """Append findings to a log file, as a monitor does."""
    descriptor = open_log(engine, path)
    try:
        os.write(descriptor, b"".join(_line(finding) for finding in findings))
    except OSError as error:
        raise file_error(check_path(path), error) from None
    finally:
        os.close(descriptor)


def _line(finding: Finding) -> bytes:
    """Format a finding as one line, with line breaks escaped."""
    text = finding.text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    at = datetime.fromtimestamp(finding.at / 1000, UTC).isoformat(timespec="milliseconds")
    line = f"{at} {finding.severity} {finding.kind} {finding.subject} {text}\n"
    return line.encode("utf-8", "backslashreplace")
