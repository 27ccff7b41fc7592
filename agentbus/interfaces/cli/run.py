"""``agentbus run``: a command as a resident agent."""

from __future__ import annotations

import os
import re
import secrets
from argparse import SUPPRESS, ArgumentParser
from typing import TYPE_CHECKING, Any

from agentbus.errors import AgentBusError
from agentbus.interfaces.cli.agents import about, about_options
from agentbus.interfaces.cli.command import Call, Command
from agentbus.interfaces.cli.failures import Usage
from agentbus.interfaces.cli.output import Said
from agentbus.interfaces.cli.values import seconds
from agentbus.limits import check_range, check_seconds

if TYPE_CHECKING:
    import signal

    from agentbus.interfaces.running.guard import Guard
    from agentbus.interfaces.running.job import Ended, Job
    from agentbus.interfaces.running.streams import Streams

MAX_RESTARTS = 1_000_000
_NOT_FOUND, _NOT_EXECUTABLE = 127, 126


class NotStarted(AgentBusError):
    """The command could not be started; shells have exit codes of their own for it."""

    code = "not_started"
    text = "{command}: {reason}"
    fix_text = "give a command that can be run: agentbus run -- python agent.py"


def run(call: Call) -> int:
    """Fork the guard while there is one thread and nothing is open, then register, and run the command."""
    job = _job(call)
    # Imported before the fork, which needs it, and after what is only wrong use.
    from agentbus.interfaces.running.guard import fork_guard
    from agentbus.interfaces.running.job import Ended
    from agentbus.interfaces.running.streams import Streams

    streams = Streams()
    guard = fork_guard(streams)
    streams.begin()
    try:
        ended = _reside(call, guard, streams, job)
    finally:
        streams.detach()
        guard.end()
        streams.finish()
    if not isinstance(ended, Ended):
        return 128 + ended
    if ended.run.started is None:
        raise _not_started(job.command[0], ended.run.output, ended.code or _NOT_EXECUTABLE)
    if call.arguments.json:
        call.emit(Said(_told(ended)))
    return ended.code or 0


def _reside(call: Call, guard: Guard, streams: Streams, job: Job) -> Ended | signal.Signals:
    import logging

    import anyio

    from agentbus.interfaces.cli.interrupts import left_to_the_loop
    from agentbus.interfaces.cli.looping import connected
    from agentbus.interfaces.running.resident import Resident

    bus = connected(call)
    if not call.arguments.debug:
        # Standard error belongs to the command.
        logging.getLogger("agentbus").handlers[:] = [logging.NullHandler()]

    async def reside() -> Ended | signal.Signals:
        async with bus:
            return await Resident(bus, guard, streams, job, call.note).run()

    with left_to_the_loop():
        return anyio.run(reside)


def _job(call: Call) -> Job:
    from agentbus.interfaces.cli.settings import bus_there
    from agentbus.interfaces.running.job import Job

    given = call.arguments
    if given.words:
        raise Usage(reason=f"{given.words[0]!r} stands before --", advice="put -- before the command and its options")
    if not given.command:
        raise Usage(reason="there is no command", advice="put it after --: agentbus run -- python agent.py")
    url = bus_there(call.settings)
    check_range(given.restart, "restart", 0, MAX_RESTARTS)
    check_seconds(given.pause, "pause")
    _check_command(given.command[0])
    options = about(given)
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
        lease=call.settings["lease"],
    )


def _id(call: Call) -> str:
    """The agent's id: from --agent, or made from the command. The environment says who is calling, not who is begun."""
    if call.settings.sources["agent"] == "option":
        id: str = call.settings["agent"]
        if "#" in id:
            raise Usage(reason=f"{id} is one life of an agent", advice="run begins a new one: give the id alone")
        return id
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", os.path.basename(call.arguments.command[0])).strip("-.")[:40]
    id = f"{name or 'run'}-{secrets.token_hex(3)}"
    call.note(f"agentbus: it runs as {id}")
    return id


def _caller(id: str) -> str | None:
    """Whoever begins an agent is told if it fails: the one that the environment names, whatever --agent says."""
    caller = os.environ.get("AGENTBUS_AGENT", "").partition("#")[0]
    return caller if caller and caller != id else None


def _check_command(name: str) -> None:
    """What shells say before they start anything. What else may be wrong is found when it is started."""
    import shutil

    if os.path.dirname(name):
        if not os.path.exists(name):
            raise _not_started(name, "no such file", _NOT_FOUND)
        if os.path.isdir(name) or not os.access(name, os.X_OK):
            raise _not_started(name, "it is not executable", _NOT_EXECUTABLE)
    elif shutil.which(name) is None:
        raise _not_started(name, "command not found", _NOT_FOUND)


def _not_started(name: str, reason: str, code: int) -> NotStarted:
    error = NotStarted(command=name.encode("utf-8", "replace").decode(), reason=reason)
    error.__dict__["exit_code"] = code
    return error


def _told(ended: Ended) -> dict[str, Any]:
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
    add("--type", default="worker", metavar="TYPE", help="its type (worker)")
    add("--restart", type=int, default=0, metavar="N", help="start it again when it fails, N times at most (0)")
    add("--pause", type=seconds, default=1, metavar="S", help="seconds before the first restart, then doubled (1)")
    about_options(parser)
    add("words", nargs="*", help=SUPPRESS)


COMMANDS = {
    "run": Command(
        run,
        "Run a command as a resident agent, which has completed or failed when it ends.",
        "agentbus run --agent builder-1 --type executor --restart 3 -- python builder.py",
        _run,
        output=(
            "plain output: that of the command\n"
            "The agent is --agent, or has a name made from the command; AGENTBUS_AGENT and AGENTBUS_URL are\n"
            "set for it. Standard streams and signals pass through. The exit code is that of the command,\n"
            "128 + n after signal n, 127 if there is no such command, 126 if it cannot be run, 125 if its\n"
            "agent was ended by somebody (`agentbus stop --agent ID`, a takeover, a verdict): then the command\n"
            "is ended too, within seconds. One that calls `complete` or `fail` has 30 s to end by itself.\n"
            "`agentbus state get agentbus.run --of ID` shows its pid, its exit code and the last lines of\n"
            "its output, to everybody on the bus; so does --json, on the last line."
        ),
        runs=True,
    ),
}
