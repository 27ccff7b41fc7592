"""``agentbus run``: a command as a resident agent."""

from __future__ import annotations

import os
import re
import secrets
from argparse import SUPPRESS, ArgumentParser
from typing import TYPE_CHECKING, Any

from agentbus.cli.arguments import seconds
from agentbus.cli.commands.agents import about, about_options
from agentbus.cli.context import Call, Command
from agentbus.cli.errors import Usage
from agentbus.cli.output import Notice
from agentbus.core.validation import check_range, check_seconds
from agentbus.errors import AgentBusError

if TYPE_CHECKING:
    import signal

    from agentbus.cli.run.agent import Ended, Job
    from agentbus.cli.run.supervisor import Supervisor
    from agentbus.cli.run.terminal import Streams

MAX_RESTARTS = 1_000_000
_NOT_FOUND, _NOT_EXECUTABLE = 127, 126


class NotStarted(AgentBusError):
    """The command could not be started. The exit code is the one that shells use."""

    code = "not_started"
    text = "{command}: {reason}"
    fix_text = "pass an executable command: agentbus run -- python agent.py"


def run(call: Call) -> int:
    """Fork the supervisor while there is one thread and nothing is open, then register, and run the command."""
    job = _job(call)
    # Imported before the fork, which needs it, and after the checks of the arguments.
    from agentbus.cli.run.agent import Ended
    from agentbus.cli.run.supervisor import fork_supervisor
    from agentbus.cli.run.terminal import Streams

    streams = Streams()
    supervisor = fork_supervisor(streams)
    streams.start()
    try:
        ended = _run_agent(call, supervisor, streams, job)
    finally:
        streams.detach()
        supervisor.end()
        streams.finish()
    if not isinstance(ended, Ended):
        return 128 + ended
    if ended.run.started is None:
        raise _not_started(job.command[0], ended.run.output, ended.code or _NOT_EXECUTABLE)
    if call.arguments.json:
        call.emit(Notice(_data(ended)))
    return ended.code or 0


def _run_agent(call: Call, supervisor: Supervisor, streams: Streams, job: Job) -> Ended | signal.Signals:
    import logging

    import anyio

    from agentbus.cli.async_runner import connected
    from agentbus.cli.run.agent import Resident
    from agentbus.cli.signals import interrupts_left_to_loop

    bus = connected(call)
    if not (call.arguments.debug or call.logs):
        # Standard error belongs to the command.
        logging.getLogger("agentbus").handlers[:] = [logging.NullHandler()]

    async def work() -> Ended | signal.Signals:
        async with bus:
            return await Resident(bus, supervisor, streams, job, call.note).run()

    with interrupts_left_to_loop():
        return anyio.run(work)


def _job(call: Call) -> Job:
    from agentbus.cli.context import require_bus
    from agentbus.cli.run.agent import Job

    given = call.arguments
    if given.words:
        raise Usage(
            reason=f"unexpected argument {given.words[0]!r} before --",
            advice="put -- before the command and its options",
        )
    if not given.command:
        raise Usage(reason="no command", advice="put it after --: agentbus run -- python agent.py")
    url = require_bus(call.settings)
    check_range(given.restart, "restart", 0, MAX_RESTARTS)
    check_seconds(given.pause, "pause")
    _check_command(given.command[0])
    options = about(call)
    id = _id(call)
    options.setdefault("parent", _caller(id))
    return Job(
        command=given.command,
        environment={**os.environ, "AGENTBUS_URL": url},
        id=id,
        type=given.type,
        about=options,
        restarts=given.restart,
        pause=given.pause,
        lease=call.settings["visitor_lease"],
    )


def _id(call: Call) -> str:
    """Return the id of the agent: from --agent, or made from the command. The environment names the caller."""
    if call.settings.sources["agent"] == "option":
        id: str = call.settings["agent"]
        if "#" in id:
            raise Usage(reason=f"{id} names an incarnation", advice="run starts a new one: pass the id alone")
        return id
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", os.path.basename(call.arguments.command[0])).strip("-.")[:40]
    id = f"{name or 'run'}-{secrets.token_hex(3)}"
    call.note(f"agentbus: running as {id}")
    return id


def _caller(id: str) -> str | None:
    """Return the agent that the environment names: it is the parent, and is notified of a failure."""
    caller = os.environ.get("AGENTBUS_AGENT", "").partition("#")[0]
    return caller if caller and caller != id else None


def _check_command(name: str) -> None:
    """Reject a command that cannot be found or executed, as shells do."""
    import shutil

    if os.path.dirname(name):
        if not os.path.exists(name):
            raise _not_started(name, "no such file", _NOT_FOUND)
        if os.path.isdir(name) or not os.access(name, os.X_OK):
            raise _not_started(name, "not executable", _NOT_EXECUTABLE)
    elif shutil.which(name) is None:
        raise _not_started(name, "command not found", _NOT_FOUND)


def _not_started(name: str, reason: str, code: int) -> NotStarted:
    error = NotStarted(command=name.encode("utf-8", "replace").decode(), reason=reason)
    error.__dict__["exit_code"] = code
    return error


def _data(ended: Ended) -> dict[str, Any]:
    import msgspec

    return {
        "agent": f"{ended.agent}#{ended.epoch}",
        "id": ended.agent,
        "epoch": ended.epoch,
        "status": ended.status,
        **msgspec.to_builtins(ended.run),
    }


def _run(parser: ArgumentParser) -> None:
    add = parser.add_argument
    parser.usage = "agentbus run [OPTION…] -- COMMAND…"
    add("--type", default="worker", metavar="TYPE", help="agent type (default worker)")
    add("--restart", type=int, default=0, metavar="N", help="maximum number of restarts after a failure (default 0)")
    add("--pause", type=seconds, default=1, metavar="S", help="initial restart delay; doubles (default 1)")
    about_options(parser)
    add("words", nargs="*", help=SUPPRESS)


COMMANDS = {
    "run": Command(
        run,
        "Run a command as a resident agent, which completes or fails with the command.",
        "agentbus run --agent builder-1 --type executor --restart 3 -- python builder.py",
        _run,
        output=(
            "plain output: that of the command\n"
            "The agent is --agent, or has an id made from the command; AGENTBUS_AGENT and AGENTBUS_URL are set\n"
            "for it, and TRACEPARENT within a trace. Standard streams and signals pass through. The exit code is\n"
            "that of the command, 128 + n after signal n, 127 if the command does not exist, 126 if it is not\n"
            "executable, 125 if the agent was ended by another process (`agentbus stop --agent ID`, a takeover,\n"
            "a verdict): then the command is ended within seconds. One that calls `complete` or `fail` has 30 s\n"
            "to exit.\n"
            "`agentbus state get agentbus.run --of ID` shows its pid, its exit code and the last lines of\n"
            "its output to all agents; so does --json, on the last line."
        ),
        runs=True,
    ),
}
