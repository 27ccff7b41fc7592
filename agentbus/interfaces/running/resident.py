"""The life of a command on the bus: it is registered, vouched for while it runs, and its end is recorded.

A restart is a new life (the next epoch) that takes over from the one before: a process that was started anew knows
nothing of what its predecessor held, so that this goes back to the queue at once, and whatever of the predecessor still
lives somewhere is fenced. Nobody is told of a failure until there are no restarts left.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import anyio

from agentbus.agent import Agent
from agentbus.bus import Bus
from agentbus.errors import AgentBusError, AgentFenced
from agentbus.interfaces.running.guard import Guard, end_all
from agentbus.interfaces.running.job import Ended, Job, Run, outcome, text
from agentbus.interfaces.running.life import until_over
from agentbus.interfaces.running.streams import Streams
from agentbus.operations.visits import VisitRequest, visit

KEY = "agentbus.run"
"""The entry in the agent's state that says what ran, and how it ended."""
LONGEST_PAUSE = 60.0
_PASSED = (
    signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTSTP,
    signal.SIGCONT, signal.SIGWINCH,
)  # fmt: skip
_ENDING = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT}
_OWN = {signal.SIGUSR1, signal.SIGUSR2}
"""For the command alone: what it started would die of them. The others a terminal sends to a whole group as well."""
_JOB_CONTROL = {signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}
_COMMAND_LENGTH = 2000
FENCED = 125
"""What to exit with when the command was ended because its agent was."""
_PATIENCE = 3.0
"""Seconds between SIGTERM and SIGKILL for a command whose agent was ended."""
_FORWARD = 0.25
"""Seconds between two looks whether we are in the terminal's foreground now."""
_ANSWER = 10_000
"""Milliseconds in which a command ends because of a signal that does not always mean that it should."""


class Resident:
    """A command as an agent of this process."""

    def __init__(self, bus: Bus, guard: Guard, streams: Streams, job: Job, note: Callable[[str], None]) -> None:
        self._bus = bus
        self._guard = guard
        self._streams = streams
        self._job = job
        self._note = note
        self._reports: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._agent: Agent | None = None
        self._pid: int | None = None
        self._starting = False
        self._waiting: list[int] = []
        """Signals that came while the command was being started."""
        self._asked: signal.Signals | None = None
        """What we were last told to end by, and when."""
        self._asked_at = 0
        self._code: int | None = None
        """What to exit with, if not with what the command did."""
        self._over = False
        """Whether somebody has ended the agent's life, so that the command must end."""
        self._idle = anyio.CancelScope()

    async def run(self) -> Ended | signal.Signals:
        """Run it to its end, with its restarts; or what ended us before it began."""
        with self._signals():
            with self._listening():
                if not await self._while_idle(self._register):
                    return self._asked or signal.SIGINT
                run = await self._lives()
            return await self._conclude(run)

    # Its lives

    async def _register(self) -> None:
        job = self._job
        self._agent = await self._bus.register(job.id, type=job.type, **job.about)

    @property
    def agent(self) -> Agent:
        assert self._agent is not None  # noqa: S101 - registered before anything else
        return self._agent

    async def _lives(self) -> Run:
        """One run after the other, as often as it may be restarted; the last one."""
        number, pause = 0, self._job.pause
        while True:
            run = await self._live(number)
            if self._over or number == self._job.restarts or self._status(run) != "failed" or run.started is None:
                return run
            if run.ended is not None and run.ended - run.started > LONGEST_PAUSE * 1000:
                pause = self._job.pause
            number += 1
            if not await self._begin_again(run, number, pause):
                return run
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _live(self, number: int) -> Run:
        """Start the command, and wait for its end."""
        job, agent = self._job, self.agent
        run = Run(text(job.command[0])[:_COMMAND_LENGTH], restarts=number)
        self._streams.forget()
        self._starting = True
        self._guard.start(job.command, {**job.environment, "AGENTBUS_AGENT": f"{agent.id}#{agent.epoch}"})
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
                tasks.start_soon(self._keep_leases)
                tasks.start_soon(self._end_when_over)
                tasks.start_soon(self._come_forward)
                report = await self._follow()
                tasks.cancel_scope.cancel()
            self._pid = None
        self._waiting.clear()
        run.ended = self._now()
        self._read(report, run)
        return run

    async def _follow(self) -> dict[str, Any]:
        """What the guard says of the command, up to its end. A command that stands still is not vouched for."""
        self.agent.waiting = 1
        try:
            while True:
                report = await self._reports.get()
                if "stopped" in report:
                    self.agent.waiting = 0
                    if report["stopped"] in _JOB_CONTROL:
                        self._stand_still()
                elif "continued" in report:
                    self.agent.waiting = 1
                else:
                    return report
        finally:
            self.agent.waiting = 0

    def _read(self, report: dict[str, Any], run: Run) -> None:
        if "exited" in report:
            run.exit_code = report["exited"]
        elif "unstarted" in report:
            run.exit_code = 127 if report["unstarted"] in {errno.ENOENT, errno.ENOTDIR} else 126
            run.output = os.strerror(report["unstarted"])
        else:
            # The guard may have been killed itself, and the command with it.
            number = signal.Signals(report.get("killed", signal.SIGKILL))
            run.exit_code = 128 + number
            run.signal = number.name
            if "killed" not in report and run.pid is not None:
                end_all(run.pid, self._guard.pid)

    async def _begin_again(self, run: Run, number: int, pause: float) -> bool:
        """A new life, after a pause; False if there is none."""
        await anyio.to_thread.run_sync(self._streams.settle, 0.2)
        run.output = self._streams.tail.text()
        before = self.agent
        try:
            # By the old life, which is fenced if somebody else has ended it or goes on as this agent.
            await before.state.set(KEY, run, type="system_data")
            self._agent = await self._bus.register(before.id, type=self._job.type, takeover=True)
        except AgentBusError as error:
            self._note(f"agentbus: {before.id} is not restarted: {error.args[0]}")
            return False
        self._bus._forget(before)
        # Nobody hears the keys of a raw terminal while no command runs.
        self._leave_terminal()
        self._note(f"agentbus: {outcome(run)}; restart {number} of {self._job.restarts} in {pause:g} s")
        self.agent.waiting = 1
        if await self._while_idle(lambda: self._pause(pause)):
            return not self._over
        self._code = 128 + (self._asked or signal.SIGINT)
        return False

    async def _pause(self, seconds: float) -> None:
        with anyio.move_on_after(seconds):
            reason = await until_over(self._bus, self.agent)
            self._over, self._code = True, FENCED
            self._note(f"agentbus: {self.agent.id} is not restarted: {reason}")

    async def _end_when_over(self) -> None:
        """A command whose agent was ended must not work on: it is asked to end, then killed."""
        reason = await until_over(self._bus, self.agent)
        self._over, self._code = True, FENCED
        # In a raw terminal nobody puts the carriage back.
        self._leave_terminal()
        self._note(f"agentbus: {self.agent.id} may not act any more: {reason}; its command is ended")
        self._take_terminal()
        self._pass_on(signal.SIGTERM)
        self._pass_on(signal.SIGCONT)
        await anyio.sleep(_PATIENCE)
        self._pass_on(signal.SIGKILL)

    def _status(self, run: Run) -> str:
        """A command that ends well has completed, also if it was told to end. One that was told, and does not end well,
        was stopped; so was one that the keys of its terminal ended."""
        if run.exit_code == 0:
            return "completed"
        return "stopped" if self._told() or run.signal in {"SIGINT", "SIGQUIT", "SIGHUP"} else "failed"

    def _told(self) -> bool:
        """Whether we were told to end. Signals other than SIGTERM may mean something else: they count for a while."""
        return self._asked is not None and (self._asked == signal.SIGTERM or self._now() - self._asked_at < _ANSWER)

    async def _conclude(self, run: Run) -> Ended:
        """Record the end. What the command said of itself before counts; then there is only its exit to add."""
        self._leave_terminal()
        self._guard.end()
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
                    await agent.stop(reason if self._asked is None else f"{self._asked.name}; {reason}")
            except AgentFenced:
                status = await self._record_late(run)
        except AgentBusError as error:
            self._note(f"agentbus: the end of {agent.id} could not be recorded: {error.args[0]}")
        return Ended(agent.id, agent.epoch, status, run, run.exit_code if self._code is None else self._code)

    async def _record_late(self, run: Run) -> str:
        """Its life had ended before: by its own word, or by somebody's verdict. Says how it stands."""
        agent = self.agent
        record = await self._bus.agents.get(agent.id)
        if record is None:
            return "deleted"
        if record.epoch != agent.epoch:
            if not self._over:
                self._note(f"agentbus: {agent.id} goes on elsewhere, as {agent.id}#{record.epoch}")
        else:
            await self._bus.state(agent.id).set(KEY, run, type="system_data")
        return record.status

    async def _record(self, run: Run) -> None:
        try:
            await self.agent.state.set(KEY, run, type="system_data")
        except AgentFenced:
            return  # it has ended its own life already
        except AgentBusError as error:
            self._note(f"agentbus: the start of {self.agent.id} could not be recorded: {error.args[0]}")

    async def _keep_leases(self) -> None:
        """What the command holds stays its own while it runs, however long it thinks."""
        duration = round(self._job.lease * 1000)
        while True:
            await anyio.sleep(min(self._job.lease / 4, 60))
            if self.agent.waiting:
                try:
                    await self._bus.engine.write(visit, VisitRequest(self.agent.actor, duration))
                except AgentFenced:
                    return
                except AgentBusError:
                    continue  # the next may do it in time

    # Signals and the terminal

    @contextmanager
    def _signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        # What is ignored when we begin (nohup) stays so, for the command too.
        taken = [number for number in _PASSED if signal.getsignal(number) != signal.SIG_IGN]
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
            self._asked, self._asked_at = number, self._now()
            self._idle.cancel()
        if number == signal.SIGCONT and self._pid is not None:
            self._take_terminal()
        if self._pid is not None:
            self._pass_on(number)
        elif self._starting:
            self._waiting.append(number)
        elif number == signal.SIGTSTP:
            self._stand_still()

    def _pass_on(self, number: int) -> None:
        self._guard.signal(number, group=number not in _OWN)

    async def _while_idle(self, work: Callable[[], Any]) -> bool:
        """Do something while no command runs; False if we were told to end meanwhile."""
        with anyio.CancelScope() as self._idle:
            # What came just before has found nothing to cancel.
            if not self._told():
                await work()
        return not self._told()

    def _stand_still(self) -> None:
        """The command was stopped, by a key or by hand: so are we, until somebody lets us go on."""
        self._leave_terminal()
        os.kill(os.getpid(), signal.SIGSTOP)

    def _take_terminal(self) -> None:
        if self._streams.attach():
            self._guard.terminal(True)

    async def _come_forward(self) -> None:
        """A shell does not tell a job that runs in the background when it brings it to the foreground."""
        while self._streams.types:
            await anyio.sleep(_FORWARD)
            if not self._streams.attached:
                self._take_terminal()

    def _leave_terminal(self) -> None:
        self._streams.detach()
        self._guard.terminal(False)

    # The guard's reports

    @contextmanager
    def _listening(self) -> Iterator[None]:
        loop, line = asyncio.get_running_loop(), self._guard.line
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
        return self._bus.engine.clock.now().wall
