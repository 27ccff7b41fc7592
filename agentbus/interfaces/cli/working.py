"""``agentbus worker``: runs durable tasks with the workflows of Python modules, until it is told to end."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import TYPE_CHECKING, Any

from agentbus.errors import InvalidInput
from agentbus.interfaces.cli.command import Call, Command
from agentbus.interfaces.cli.failures import Usage
from agentbus.interfaces.cli.output import Rows
from agentbus.interfaces.cli.values import seconds
from agentbus.limits import error_text

if TYPE_CHECKING:
    import asyncio

    from agentbus.records import TaskChange
    from agentbus.tasks.workflow import Workflow

COLUMNS = ("at:time", "task", "kind", "name", "status:status", "attempt")


class NoWorkflow(InvalidInput):
    """There is no such workflow, or its module cannot be imported."""

    code = "no_workflow"
    text = "{what}: {reason}"
    fix_text = "{advice}"


def worker(call: Call) -> int:
    from agentbus.interfaces.cli.looping import run

    workflows = load(call.arguments.workflow)
    run(call, lambda: _work(call, workflows))
    return 0


async def _work(call: Call, workflows: list[Workflow[..., Any]]) -> None:
    import asyncio

    from agentbus.interfaces.cli.looping import connected

    given = call.arguments
    changes: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    def tell(change: TaskChange) -> None:
        changes.put_nowait(_told(change))

    async with connected(call) as bus:
        call.note(f"working on {', '.join(one.name for one in workflows)}; Ctrl-C ends it")
        work = asyncio.create_task(
            bus.tasks.run_worker(
                *workflows,
                concurrency=given.concurrency,
                agent=_id(call),
                lease=given.lease,
                on_step=tell,
                on_phase=tell,
                on_task=tell,
                until_idle=given.until_idle,
            )
        )
        # Printed beside it, not in a callback: what cannot be printed must end the command.
        printing = asyncio.create_task(_print(call, changes))
        try:
            await asyncio.wait((work, printing), return_when=asyncio.FIRST_COMPLETED)
        finally:
            # What is being done is let go, so that others may take it at once.
            for one in (work, printing):
                one.cancel()
            ended = await asyncio.gather(work, printing, return_exceptions=True)
        while not changes.empty():
            _emit(call, changes.get_nowait())
        for error in ended:
            if isinstance(error, Exception):
                raise error


async def _print(call: Call, changes: asyncio.Queue[dict[str, Any]]) -> None:
    while True:
        _emit(call, await changes.get())


def _emit(call: Call, change: dict[str, Any]) -> None:
    call.emit(Rows([change], COLUMNS, paged=False, whole=True, one=True, following=True))


def _told(change: TaskChange) -> dict[str, Any]:
    import time

    from msgspec import to_builtins

    return {"at": time.time_ns() // 1_000_000, **to_builtins(change)}


def _id(call: Call) -> str | None:
    """The worker's id: from --agent, or made by the bus. The environment says who is calling, not who works."""
    if call.settings.sources["agent"] != "option":
        return None
    id: str = call.settings["agent"]
    if "#" in id:
        raise Usage(reason=f"{id} is one life of an agent", advice="a worker begins a new one: give the id alone")
    return id


def load(names: list[str]) -> list[Workflow[..., Any]]:
    """The workflows that are named: ``module:name``, or all of a ``module``. Modules are found from here."""
    import os
    import sys

    sys.path.insert(0, os.getcwd())
    found: dict[str, Workflow[..., Any]] = {}
    for name in names:
        for workflow in _named(name):
            other = found.setdefault(workflow.name, workflow)
            if other is not workflow:
                advice = "a worker has one of a name: rename one, or run two workers"
                raise NoWorkflow(what=name, reason=f"there are two workflows {workflow.name!r}", advice=advice)
    return list(found.values())


def _named(text: str) -> list[Workflow[..., Any]]:
    from agentbus.tasks.workflow import Workflow

    module_name, mark, name = text.partition(":")
    module = _module(module_name, text)
    known = {key: value for key, value in vars(module).items() if isinstance(value, Workflow)}
    listed = f"it has {', '.join(sorted(known))}" if known else "it has no workflow: make one with @agentbus.workflow"
    if not mark:
        if not known:
            raise NoWorkflow(what=text, reason="there is no workflow in it", advice="make one with @agentbus.workflow")
        return list({id(one): one for one in known.values()}.values())
    if name in known:
        return [known[name]]
    of_that_name = [one for one in known.values() if one.name == name]
    if of_that_name:
        return of_that_name[:1]
    if hasattr(module, name):
        raise NoWorkflow(what=text, reason=f"{name} is no workflow", advice=f"decorate it; {listed}")
    raise NoWorkflow(what=text, reason=f"there is no {name or 'name'!r} in {module_name}", advice=listed)


def _module(name: str, text: str) -> Any:
    from importlib import import_module

    if name.endswith(".py") or "/" in name or not all(part.isidentifier() for part in name.split(".")):
        dotted = name.removesuffix(".py").strip("./").replace("/", ".")
        raise NoWorkflow(
            what=text, reason=f"{name!r} is not the name of a module",
            advice=f"name it as an import does, with the workflow: {dotted or 'flows'}:WORKFLOW",
        )  # fmt: skip
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (error.name == name or name.startswith(f"{error.name}.")):
            advice = "modules are looked for in the working directory, then where Python finds them"
            raise NoWorkflow(what=text, reason=f"there is no module {error.name!r}", advice=advice) from error
        raise _broken(text, error) from error
    except Exception as error:
        raise _broken(text, error) from error


def _broken(text: str, error: Exception) -> NoWorkflow:
    """It is there, and cannot be imported."""
    from traceback import extract_tb

    places = [frame for frame in extract_tb(error.__traceback__) if "importlib" not in frame.filename]
    where = f" ({places[-1].filename}, line {places[-1].lineno})" if len(places) > 1 else ""
    reason = f"its module cannot be imported: {error_text(error)}{where}"
    return NoWorkflow(what=text, reason=reason, advice="--debug shows all of it")


def _worker(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("workflow", nargs="+", metavar="MODULE[:WORKFLOW]", help="a workflow of a module, or all of the module")
    add("--concurrency", type=int, default=8, metavar="N", help="so many tasks at a time (8)")
    add("--lease", type=seconds, default=60.0, metavar="S", help="seconds that it holds a task without a sign (60)")
    add("--until-idle", action="store_true", help="end when there is nothing to do")


COMMANDS = {
    "worker": Command(
        worker, "Take durable tasks and run them, until Ctrl-C: new ones, and those whose worker died, from their last"
        " finished step on. Any number of workers may run.",
        "agentbus worker flows:feature flows:bugfix", _worker,
        output="plain output: at, task, kind (step, task, phase, checkpoint, workflow), name, status, attempt; with\n"
        "--json an envelope on each line. Modules are found from the working directory. The worker is an agent:\n"
        "--agent ID, or one with an id of its own. When it is told to end, it lets go of its tasks: others go on\n"
        "with them at once, or it does when it is run again. What blocks (a long call that is not awaited) delays\n"
        "that.",
    ),
}  # fmt: skip
