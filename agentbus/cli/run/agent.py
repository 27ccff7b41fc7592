"""A command as a resident agent: it is registered, its heartbeat is sent while it runs, and its end is recorded.

There are three processes, as with sudo: ``agentbus run`` passes bytes and signals on and has the bus open; the
supervisor, leader of its own session, starts the command and waits for it; the command has its own process group. If
one of the first two is killed, the other ends the command and everything that it started.

A restart is a new incarnation (the next epoch) that takes over from the previous one: the messages it held are released
at once, and any process of it that survived is fenced. A failure is reported only when no restart is left.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import anyio
import msgspec

from agentbus import core
from agentbus.api.agent import Agent
from agentbus.api.bus import Bus
from agentbus.cli.run.supervisor import Supervisor, end_all
from agentbus.cli.run.terminal import Streams
from agentbus.core.clock import backoff
from agentbus.core.validation import RETRY_DELAY, USAGE_KEY, VISITOR_LEASE
from agentbus.errors import AgentBusError, AgentFenced
from agentbus.operations.agent_identity import VisitRequest, visit
from agentbus.operations.common import fence_error

if TYPE_CHECKING:
    from agentbus.core.trace_context import Propagation, Span


class Job(msgspec.Struct):
    """The command to run, and the agent that it runs as."""

    command: Sequence[str]
    environment: Mapping[str, str]
    id: str
    type: str
    about: dict[str, Any]
    restarts: int = 0
    pause: float = RETRY_DELAY
    lease: float = VISITOR_LEASE


class Run(msgspec.Struct):
    """One run of the command, as recorded on the bus: the program alone, since arguments may contain secrets.
    ``exit_code`` is that of a shell: 128 + n for signal n."""

    command: str
    pid: int | None = None
    started: int | None = None
    ended: int | None = None
    exit_code: int | None = None
    signal: str | None = None
    restarts: int = 0
    output: str = ""


class Ended(msgspec.Struct):
    """The result of the last run, and the exit code."""

    agent: str
    epoch: int
    status: str
    run: Run
    code: int | None


def environment_of(trace: str | None) -> dict[str, str]:
    """Return the variables that make a command continue a trace."""
    if trace is None:
        return {}
    from agentbus.core.trace_context import headers_of

    # A tracestate from the environment belongs to another trace.
    return {name.upper(): value for name, value in {"tracestate": "", **headers_of(trace)}.items()}


def outcome(run: Run) -> str:
    if run.started is None:
        return "could not be started"
    return f"killed by {run.signal}" if run.signal else f"exit code {run.exit_code}"


def text(command: str) -> str:
    """Return an argument, which may be any bytes, as valid Unicode."""
    return command.encode("utf-8", "surrogateescape").decode("utf-8", "replace").replace("\0", "")


EVERY = 1.0
"""Seconds between checks whether the agent was ended."""
EXIT_TIMEOUT = 30.0
"""Seconds that a command has to exit after it completed or failed its agent itself."""


async def until_fenced(bus: Bus, agent: Agent) -> str:
    """Wait until the command must end, and return the reason."""
    error = await _until_fence_error(bus, agent)
    if await _ended_itself(bus, agent):
        await anyio.sleep(EXIT_TIMEOUT)
    return str(error.facts["reason"])


async def _until_fence_error(bus: Bus, agent: Agent) -> AgentFenced:
    while True:
        try:
            error = await bus._engine.read_inline(fence_error, agent._actor)
        except AgentBusError:
            error = None  # retried below
        if error is not None:
            return error
        await anyio.sleep(EVERY)


async def _ended_itself(bus: Bus, agent: Agent) -> bool:
    """Return whether the command may have ended its agent, or its session, itself.

    A call in the name of the agent cannot be distinguished from one by the command. A command that is done may have
    output left to write; one that was stopped must stop.
    """
    try:
        record = await bus.agents.get(agent.id)
    except AgentBusError:
        return False
    if record is None or record.epoch != agent.epoch:
        return False
    if record.status == "stopped":
        return (record.error or "").startswith("its session ")
    return record.status == "completed" or (record.status == "failed" and record.evidence is None)


KEY = "agentbus.run"
"""The entry of the agent's state that records the run."""
MAX_PAUSE = 60.0
_FORWARDED = (
    signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTSTP,
    signal.SIGCONT, signal.SIGWINCH,
)  # fmt: skip
_ENDING = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT}
_OWN = {signal.SIGUSR1, signal.SIGUSR2}
"""Sent to the command alone: its children would die of them. A terminal sends the others to the whole group."""
_JOB_CONTROL = {signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}
_COMMAND_LENGTH = 2000
FENCED = 125
"""Exit code of a command that was ended because its agent was."""
_KILL_AFTER = 3.0
"""Seconds between SIGTERM and SIGKILL for a command whose agent was ended."""
_FOREGROUND_INTERVAL = 0.25
"""Seconds between checks whether this process is in the foreground of the terminal."""
_SIGNAL_EFFECT = 10_000
"""Milliseconds in which an exit counts as the effect of a signal that does not always end a command."""


class Resident:
    """A command as an agent of this process."""

    def __init__(
        self, bus: Bus, supervisor: Supervisor, streams: Streams, job: Job, note: Callable[[str], None]
    ) -> None:
        self._bus = bus
        self._supervisor = supervisor
        self._streams = streams
        self._job = job
        self._note = note
        self._reports: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._agent: Agent | None = None
        self._pid: int | None = None
        self._starting = False
        self._waiting: list[int] = []
        """Signals that arrived while the command was starting."""
        self._end_signal: signal.Signals | None = None
        """The last signal that asks to end, and its time."""
        self._end_signal_at = 0
        self._code: int | None = None
        """The exit code, if it is not that of the command."""
        self._fenced = False
        """True if the agent was ended, so that the command must end."""
        self._idle = anyio.CancelScope()

    async def run(self) -> Ended | signal.Signals:
        """Run the command with its restarts. Return the signal instead if one arrived before the start."""
        with self._signals():
            with self._listening():
                if not await self._while_idle(self._register):
                    return self._end_signal or signal.SIGINT
                run = await self._run_with_restarts()
            return await self._conclude(run)

    # Runs

    async def _register(self) -> None:
        job = self._job
        self._agent = await self._bus.register(job.id, type=job.type, **job.about)

    @property
    def agent(self) -> Agent:
        assert self._agent is not None  # noqa: S101 - registered before anything else
        return self._agent

    async def _run_with_restarts(self) -> Run:
        """Run the command until it is not restarted. Return the last run."""
        number, failures = 0, 0
        while True:
            with core.NO_SPAN if core.tracer is None else self._span(core.tracer, number) as span:
                run = await self._run_once(number, {} if span is None else environment_of(span.trace))
                if span is not None:
                    await self._describe(run, span)
            if self._fenced or number == self._job.restarts or self._status(run) != "failed" or run.started is None:
                return run
            if run.ended is not None and run.ended - run.started > MAX_PAUSE * 1000:
                failures = 0
            number += 1
            failures += 1
            pause = backoff(failures, self._job.pause, max(MAX_PAUSE, self._job.pause))
            if not await self._restart(run, number, pause):
                return run

    def _span(self, tracer: Propagation, number: int) -> Span:
        return tracer.run_agent(self.agent.id, self._job.type, number)

    async def _describe(self, run: Run, span: Span) -> None:
        """Add to a span how the command ended, and the tokens that it has reported."""
        status = self._status(run)
        tokens = None
        with suppress(AgentBusError):
            tokens = await self._bus.state(self.agent.id).get(USAGE_KEY)
        span.note({
            "process.exit.code": run.exit_code,
            "agentbus.agent.status": status,
            "agentbus.usage.tokens": tokens if isinstance(tokens, int) else None,
        })  # fmt: skip
        if status == "failed":
            span.fail(run.signal or f"exit_{run.exit_code}")

    async def _run_once(self, number: int, trace: Mapping[str, str]) -> Run:
        """Start the command, which continues a ``trace``, and wait for its end."""
        job, agent = self._job, self.agent
        run = Run(text(job.command[0])[:_COMMAND_LENGTH], restarts=number)
        self._streams.clear()
        self._starting = True
        identity = {"AGENTBUS_AGENT": f"{agent.id}#{agent.epoch}"}
        self._supervisor.start(job.command, {**job.environment, **trace, **identity})
        report = await self._reports.get()
        self._starting = False
        if "started" in report:
            self._pid = run.pid = report["started"]
            run.started = self._now()
            self._take_terminal()
            for waiting in self._waiting:
                self._pass_on(waiting)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._record, run)
                tasks.start_soon(self._extend_leases)
                tasks.start_soon(self._end_when_fenced)
                tasks.start_soon(self._watch_foreground)
                report = await self._follow()
                tasks.cancel_scope.cancel()
            self._pid = None
        self._waiting.clear()
        run.ended = self._now()
        self._read(report, run)
        return run

    async def _follow(self) -> dict[str, Any]:
        """Follow the reports of the supervisor until the end of the command. A stopped command sends no heartbeat."""
        self.agent._waiting = 1
        try:
            while True:
                report = await self._reports.get()
                if "stopped" in report:
                    self.agent._waiting = 0
                    if report["stopped"] in _JOB_CONTROL:
                        self._suspend()
                elif "continued" in report:
                    self.agent._waiting = 1
                else:
                    return report
        finally:
            self.agent._waiting = 0

    def _read(self, report: dict[str, Any], run: Run) -> None:
        if "exited" in report:
            run.exit_code = report["exited"]
        elif "unstarted" in report:
            run.exit_code = 127 if report["unstarted"] in {errno.ENOENT, errno.ENOTDIR} else 126
            run.output = os.strerror(report["unstarted"])
        else:
            # The supervisor may have been killed, and the command with it.
            number = signal.Signals(report.get("killed", signal.SIGKILL))
            run.exit_code = 128 + number
            run.signal = number.name
            if "killed" not in report and run.pid is not None:
                end_all(run.pid, self._supervisor.pid)

    async def _restart(self, run: Run, number: int, pause: float) -> bool:
        """Start a new incarnation after a pause. Return False if there is none."""
        await anyio.to_thread.run_sync(self._streams.settle, 0.2)
        run.output = self._streams.tail.text()
        before = self.agent
        try:
            # By the old incarnation, which is fenced if the agent was ended or taken over.
            await before.state.set(KEY, run, type="system_data")
            self._agent = await self._bus.register(before.id, type=self._job.type, takeover=True)
        except AgentBusError as error:
            self._note(f"agentbus: {before.id} is not restarted: {error.args[0]}")
            return False
        self._bus._forget(before)
        # No process reads a raw terminal while no command runs.
        self._leave_terminal()
        self._note(f"agentbus: {outcome(run)}; restart {number} of {self._job.restarts} in {pause:g} s")
        self.agent._waiting = 1
        if await self._while_idle(lambda: self._pause(pause)):
            return not self._fenced
        self._code = 128 + (self._end_signal or signal.SIGINT)
        return False

    async def _pause(self, seconds: float) -> None:
        with anyio.move_on_after(seconds):
            reason = await until_fenced(self._bus, self.agent)
            self._fenced, self._code = True, FENCED
            self._note(f"agentbus: {self.agent.id} is not restarted: {reason}")

    async def _end_when_fenced(self) -> None:
        """End a command whose agent was ended: SIGTERM, then SIGKILL."""
        reason = await until_fenced(self._bus, self.agent)
        self._fenced, self._code = True, FENCED
        # A raw terminal does not return the carriage.
        self._leave_terminal()
        self._note(f"agentbus: {self.agent.id} is fenced: {reason}; ending its command")
        self._take_terminal()
        self._pass_on(signal.SIGTERM)
        self._pass_on(signal.SIGCONT)
        await anyio.sleep(_KILL_AFTER)
        self._pass_on(signal.SIGKILL)

    def _status(self, run: Run) -> str:
        """Return the status for a run: completed on exit code 0, stopped if a signal asked to end, else failed."""
        if run.exit_code == 0:
            return "completed"
        return "stopped" if self._was_asked_to_end() or run.signal in {"SIGINT", "SIGQUIT", "SIGHUP"} else "failed"

    def _was_asked_to_end(self) -> bool:
        """Return whether a signal asked to end. Others than SIGTERM can mean something else: they count briefly."""
        return self._end_signal is not None and (
            self._end_signal == signal.SIGTERM or self._now() - self._end_signal_at < _SIGNAL_EFFECT
        )

    async def _conclude(self, run: Run) -> Ended:
        """Record the end. A status that the command set itself is kept; only its exit is added."""
        self._leave_terminal()
        self._supervisor.end()
        if run.started is not None:
            await anyio.to_thread.run_sync(self._streams.finish, 0.5)
            run.output = self._streams.tail.text()
        agent, status = self.agent, self._status(run)
        last = (self._streams.last_line if run.started is not None else run.output)[:500]
        reason = outcome(run) + (f": {last}" if last else "")
        try:
            try:
                await agent.state.set(KEY, run, type="system_data")
                if status == "completed":
                    await agent.complete()
                elif status == "failed":
                    await agent.fail(reason)
                else:
                    await agent.stop(reason if self._end_signal is None else f"{self._end_signal.name}; {reason}")
            except AgentFenced:
                status = await self._record_late(run)
        except AgentBusError as error:
            self._note(f"agentbus: could not record the end of {agent.id}: {error.args[0]}")
        return Ended(agent.id, agent.epoch, status, run, run.exit_code if self._code is None else self._code)

    async def _record_late(self, run: Run) -> str:
        """Record the end of an agent that had ended before. Return its status."""
        agent = self.agent
        record = await self._bus.agents.get(agent.id)
        if record is None:
            return "deleted"
        if record.epoch != agent.epoch:
            if not self._fenced:
                self._note(f"agentbus: {agent.id} runs elsewhere as {agent.id}#{record.epoch}")
        else:
            await self._bus.state(agent.id).set(KEY, run, type="system_data")
        return record.status

    async def _record(self, run: Run) -> None:
        try:
            await self.agent.state.set(KEY, run, type="system_data")
        except AgentFenced:
            return  # the command has ended its agent
        except AgentBusError as error:
            self._note(f"agentbus: could not record the start of {self.agent.id}: {error.args[0]}")

    async def _extend_leases(self) -> None:
        """Extend the leases that the command holds while it runs."""
        duration = round(self._job.lease * 1000)
        while True:
            await anyio.sleep(min(self._job.lease / 4, 60))
            if self.agent._waiting:
                try:
                    await self._bus._engine.write(visit, VisitRequest(self.agent._actor, duration))
                except AgentFenced:
                    return
                except AgentBusError:
                    continue  # retried in time

    # Signals and the terminal

    @contextmanager
    def _signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        # An ignored signal (nohup) stays ignored, for the command too.
        taken = [number for number in _FORWARDED if signal.getsignal(number) != signal.SIG_IGN]
        for number in taken:
            loop.add_signal_handler(number, self._on_signal, number)
        try:
            yield
        finally:
            for number in taken:
                loop.remove_signal_handler(number)

    def _on_signal(self, number: signal.Signals) -> None:
        if number == signal.SIGWINCH and self._streams.resize():
            return
        if number in _ENDING:
            self._end_signal, self._end_signal_at = number, self._now()
            self._idle.cancel()
        if number == signal.SIGCONT and self._pid is not None:
            self._take_terminal()
        if self._pid is not None:
            self._pass_on(number)
        elif self._starting:
            self._waiting.append(number)
        elif number == signal.SIGTSTP:
            self._suspend()

    def _pass_on(self, number: int) -> None:
        self._supervisor.signal(number, group=number not in _OWN)

    async def _while_idle(self, work: Callable[[], Any]) -> bool:
        """Do something while no command runs. Return False if a signal asked to end."""
        with anyio.CancelScope() as self._idle:
            # An earlier signal found nothing to cancel.
            if not self._was_asked_to_end():
                await work()
        return not self._was_asked_to_end()

    def _suspend(self) -> None:
        """Stop this process as the command was stopped, until SIGCONT."""
        self._leave_terminal()
        os.kill(os.getpid(), signal.SIGSTOP)

    def _take_terminal(self) -> None:
        if self._streams.attach():
            self._supervisor.terminal(True)

    async def _watch_foreground(self) -> None:
        """Take the terminal when a shell brings this job to the foreground, which it does not announce."""
        while self._streams.interactive:
            await anyio.sleep(_FOREGROUND_INTERVAL)
            if not self._streams.attached:
                self._take_terminal()

    def _leave_terminal(self) -> None:
        self._streams.detach()
        self._supervisor.terminal(False)

    # Reports of the supervisor

    @contextmanager
    def _listening(self) -> Iterator[None]:
        loop, line = asyncio.get_running_loop(), self._supervisor.line
        descriptor = line.socket.fileno()

        def read() -> None:
            messages = line.receive()
            if messages is None:
                loop.remove_reader(descriptor)
                messages = [{"gone": True}]
            for message in messages:
                self._reports.put_nowait(message)

        loop.add_reader(descriptor, read)
        try:
            yield
        finally:
            loop.remove_reader(descriptor)

    def _now(self) -> int:
        return self._bus._engine.clock.now().wall
