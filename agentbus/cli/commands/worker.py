"""``agentbus worker``: run durable tasks with the workflows of Python modules."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import TYPE_CHECKING, Any

from agentbus.cli.arguments import seconds
from agentbus.cli.context import Call, Command
from agentbus.cli.errors import Usage, echoed
from agentbus.cli.output import Rows, listing
from agentbus.core.validation import LEASE, error_text
from agentbus.errors import InvalidInput
from agentbus.errors.base import shortened

if TYPE_CHECKING:
    import asyncio

    from agentbus.api.tasks.workflow import Workflow
    from agentbus.records import TaskChange

COLUMNS = ("at:time", "task", "kind", "name", "status:status", "attempt", "error:prose")


class NoWorkflow(InvalidInput):
    """The workflow does not exist, or its module cannot be imported."""

    code = "no_workflow"
    text = "{what}: {reason}"
    fix_text = "{advice}"


def worker(call: Call) -> int:
    from agentbus.cli.async_runner import run

    workflows = load(call.arguments.workflow)
    run(call, lambda: _work(call, workflows))
    return 0


async def _work(call: Call, workflows: list[Workflow[..., Any]]) -> None:
    import asyncio

    from agentbus.cli.async_runner import connected

    given = call.arguments
    changes: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    def report(change: TaskChange) -> None:
        changes.put_nowait(_data(change))

    async with connected(call) as bus:
        call.note(f"working on {listing([one.name for one in workflows])}; press Ctrl-C to stop")
        work = asyncio.create_task(
            bus.tasks.run_worker(
                *workflows,
                concurrency=given.concurrency,
                agent=_id(call),
                lease=given.lease,
                on_step=report,
                on_phase=report,
                on_task=report,
                until_idle=given.until_idle,
            )
        )
        # Printed concurrently, not in a callback: an error of the output must end the command.
        printing = asyncio.create_task(_print(call, changes))
        try:
            await asyncio.wait((work, printing), return_when=asyncio.FIRST_COMPLETED)
        finally:
            # Releases the tasks, so that other workers can take them at once.
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


def _data(change: TaskChange) -> dict[str, Any]:
    import time

    from msgspec import to_builtins

    return {"at": time.time_ns() // 1_000_000, **to_builtins(change)}


def _id(call: Call) -> str | None:
    """Return the id from --agent, or None for a new one. The environment names the caller, not the worker."""
    if call.settings.sources["agent"] != "option":
        return None
    id: str = call.settings["agent"]
    if "#" in id:
        raise Usage(reason=f"{id} names an incarnation", advice="a worker starts a new one: pass the id alone")
    return id


def load(names: list[str]) -> list[Workflow[..., Any]]:
    """Return the workflows that are named: ``module:name``, or all of a ``module``."""
    import os
    import sys

    sys.path.insert(0, os.getcwd())
    found: dict[str, Workflow[..., Any]] = {}
    for name in names:
        for workflow in _named(name):
            other = found.setdefault(workflow.name, workflow)
            if other is not workflow:
                advice = "rename one of them, or run two workers"
                raise NoWorkflow(what=name, reason=f"two workflows are named {workflow.name!r}", advice=advice)
    return list(found.values())


def _named(text: str) -> list[Workflow[..., Any]]:
    from agentbus.api.tasks.workflow import Workflow

    module_name, mark, name = text.partition(":")
    module = _module(module_name, text)
    known = {key: value for key, value in vars(module).items() if isinstance(value, Workflow)}
    listed = f"it has {listing(sorted(known))}" if known else "it has no workflow: add @agentbus.workflow"
    if not mark:
        if not known:
            raise NoWorkflow(
                what=shortened(text), reason="it has no workflow", advice="add @agentbus.workflow to a function"
            )
        return list({id(one): one for one in known.values()}.values())
    if name in known:
        return [known[name]]
    of_that_name = [one for one in known.values() if one.name == name]
    if of_that_name:
        return of_that_name[:1]
    if hasattr(module, name):
        raise NoWorkflow(
            what=shortened(text), reason=f"{name} is not a workflow", advice=f"add @agentbus.workflow to it; {listed}"
        )
    raise NoWorkflow(what=shortened(text), reason=f"no {echoed(name or 'name')} in {module_name}", advice=listed)


def _module(name: str, text: str) -> Any:
    from importlib import import_module

    if name.endswith(".py") or "/" in name or not all(part.isidentifier() for part in name.split(".")):
        dotted = name.removesuffix(".py").strip("./").replace("/", ".")
        raise NoWorkflow(
            what=shortened(text), reason=f"{echoed(name)} is not the name of a module",
            advice=f"pass the name of a module and of a workflow: {shortened(dotted) or 'flows'}:WORKFLOW",
        )  # fmt: skip
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (error.name == name or name.startswith(f"{error.name}.")):
            advice = "modules are searched in the working directory, then in the import path of Python"
            raise NoWorkflow(what=shortened(text), reason=f"no module {echoed(error.name)}", advice=advice) from error
        raise _broken(text, error) from error
    except Exception as error:
        raise _broken(text, error) from error


def _broken(text: str, error: Exception) -> NoWorkflow:
    """Return the error for a module that exists and cannot be imported."""
    from traceback import extract_tb

    frames = [frame for frame in extract_tb(error.__traceback__) if "importlib" not in frame.filename]
    where = f" ({frames[-1].filename}, line {frames[-1].lineno})" if len(frames) > 1 else ""
    reason = f"its module cannot be imported: {error_text(error)}{where}"
    return NoWorkflow(what=shortened(text), reason=reason, advice="--debug shows the traceback")


def _worker(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "workflow",
        nargs="+",
        metavar="MODULE[:WORKFLOW]",
        help="a workflow of a module, or all workflows of the module",
    )
    add("--concurrency", type=int, default=8, metavar="N", help="maximum number of concurrent tasks (default 8)")
    add("--lease", type=seconds, default=LEASE, metavar="S", help="lease on a task in seconds (default 60)")
    add("--until-idle", action="store_true", help="exit when there is no task to run")


COMMANDS = {
    "worker": Command(
        worker, "Run durable tasks until Ctrl-C: new ones, and those whose worker died, from their last finished step."
        " Any number of workers can run.",
        "agentbus worker flows:feature flows:bugfix", _worker,
        output="plain output: at, task, kind (step, task, phase, checkpoint, workflow), name, status, attempt,"
        " error\n\n"
        "With --json it prints one envelope per line. Modules are imported from the working directory. The worker is\n"
        "an agent: --agent ID, or one with a generated id. When it is stopped, it releases its tasks: another worker\n"
        "continues them at once. A blocking call in a workflow delays that.",
        columns=True,
    ),
}  # fmt: skip
