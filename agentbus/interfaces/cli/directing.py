"""What people do with durable tasks: start, decide, halt, continue, stop, resume, redo, restart, edit."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING, Any

from agentbus.interfaces.cli.command import Call, Command
from agentbus.interfaces.cli.failures import Usage
from agentbus.interfaces.cli.operators import caller, decider
from agentbus.interfaces.cli.output import Result, Said
from agentbus.interfaces.cli.values import JSON_HELP, json_value, seconds, text_option

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from agentbus.records import ApprovalRecord, TaskRecord


_MOST_WORKERS = 100
"""That are asked what they know."""


def start(call: Call) -> Result:
    given = call.arguments
    if given.auto:
        decider(call, "pass approvals through")
    made = call.bus.do(
        call.bus.tasks.start(
            given.workflow,
            *(json_value(one, as_text=given.text, texts=True) for one in given.argument),
            keywords=dict(_keyword(text, given) for text in given.keyword or ()),
            id=given.id,
            name=given.name,
            session=given.session or _own_session(call),
            auto=given.auto,
            context=json_value(given.context),
            settings=json_value(given.settings),
            restarts=given.restarts,
            backoff=given.backoff,
            delay=given.delay,
            max_losses=given.max_losses,
        )
    )
    _look_for_workers(call, made.workflow)
    return Said(_brief(made), made.id)


def _own_session(call: Call) -> str | None:
    """The session of the agent that calls, if it goes on."""
    from agentbus.interfaces.cli.sessions import still_open

    visitor = call.visitor
    return None if visitor is None or visitor.session is None else still_open(call, visitor.session)


def _keyword(text: str, given: Namespace) -> tuple[str, Any]:
    name, mark, value = text.partition("=")
    if not mark:
        raise Usage(reason=f"--keyword {text!r} has no =", advice="name the argument: --keyword size=3")
    return name, json_value(value, as_text=given.text, texts=True)


def approve(call: Call) -> Result:
    return _decide(call, call.bus.tasks.approve, "approve")


def reject(call: Call) -> Result:
    return _decide(call, call.bus.tasks.reject, "reject")


def _decide(call: Call, decide: Callable[..., Coroutine[Any, Any, ApprovalRecord]], action: str) -> Result:
    given = call.arguments
    by = decider(call, f"{action} anything")
    made = call.bus.do(decide(given.task, given.name, by=by, reason=given.reason))
    _look_for_workers(call)
    fields = ("task", "key", "status", "by", "reason", "decided")
    return Said({name: getattr(made, name) for name in fields})


def settle(call: Call) -> Result:
    given = call.arguments
    outcome: dict[str, Any]
    if given.redo:
        outcome = {"redo": True}
    elif given.error is not None:
        outcome = {"error": given.error}
    elif given.result is not None:
        outcome = {"result": json_value(given.result, as_text=given.text, texts=True)}
    else:
        advice = "say it with --result JSON, --error TEXT or --redo"
        raise Usage(reason=f"what became of {given.step}?", advice=advice)
    by = decider(call, "say what became of a step")
    return _directed(call, call.bus.do(call.bus.tasks.settle(given.task, given.step, by=by, **outcome)))


def auto(call: Call) -> Result:
    given = call.arguments
    on = given.switch == "on"
    by = decider(call, "pass approvals through") if on else caller(call)
    return _directed(call, call.bus.do(call.bus.tasks.auto(given.task, on, by=by)))


def halt(call: Call) -> Result:
    found = _control(call, call.bus.tasks.halt)
    if found.halting:
        call.note(f"{found.id} is running, and halts before its next step")
    return Said(_brief(found))


def go_on(call: Call) -> Result:
    return _directed(call, _control(call, call.bus.tasks.continue_))


def stop(call: Call) -> Result:
    return Said(_brief(_control(call, call.bus.tasks.stop)))


def resume(call: Call) -> Result:
    return _directed(call, _control(call, call.bus.tasks.resume))


def restart(call: Call) -> Result:
    return _directed(call, _control(call, call.bus.tasks.restart))


def redo(call: Call) -> Result:
    given = call.arguments
    options = {"note": given.note, "by": caller(call), "reason": given.reason}
    found = call.bus.do(call.bus.tasks.redo(given.task, given.step, **options))
    if found.redo:
        call.note(f"{found.id} is running; {', '.join(found.redo)} is redone when the steps beside it have ended")
    return _directed(call, found)


def edit(call: Call) -> Result:
    given = call.arguments
    changes = {
        "name": given.name, "context": json_value(given.context), "settings": json_value(given.settings),
        "restarts": given.restarts, "backoff": given.backoff, "max_losses": given.max_losses,
        "arguments": json_value(given.arguments), "keywords": json_value(given.keywords),
    }  # fmt: skip
    if all(value is None for value in changes.values()):
        advice = f"there are {', '.join(f'--{name}' for name in changes).replace('_', '-')}"
        raise Usage(reason="nothing is to be changed", advice=advice)
    if changes["arguments"] is not None and not isinstance(changes["arguments"], list):
        advice = "put them into a list: --arguments '[…]', each as JSON, in their order"
        raise Usage(reason="arguments must be a list", advice=advice)
    return Said(_brief(call.bus.do(call.bus.tasks.edit(given.task, **changes, by=caller(call)))))


def _control(call: Call, control: Callable[..., Coroutine[Any, Any, TaskRecord]]) -> TaskRecord:
    return call.bus.do(control(call.arguments.task, by=caller(call), reason=call.arguments.reason))


def _directed(call: Call, task: TaskRecord) -> Result:
    _look_for_workers(call, task.workflow)
    return Said(_brief(task))


def _brief(task: TaskRecord) -> dict[str, Any]:
    return {name: getattr(task, name) for name in ("id", "name", "workflow", "status", "halting", "auto")}


def _look_for_workers(call: Call, workflow: str | None = None) -> None:
    """Whoever wants a task to go on is told if nobody works, or nobody who knows this workflow."""
    if call.arguments.quiet:
        return
    workers = call.bus.do(call.bus.agents.list(type="worker", status="running", limit=_MOST_WORKERS))
    known = sorted({name for worker in workers.items for name in worker.capabilities})
    if not workers.items:
        call.note("no worker is running: agentbus worker MODULE:WORKFLOW takes it up")
    elif (
        workflow
        and workflow not in known
        and workers.cursor is None
        and all(worker.capabilities for worker in workers.items)
    ):
        call.note(f"no worker that is running says that it knows {workflow}, only {', '.join(known)}")


def _by(parser: ArgumentParser, decides: bool = False) -> None:
    text = "the person who decides" if decides else "who wants it"
    parser.add_argument("--by", metavar="NAME", help=f"{text} (AGENTBUS_OPERATOR, or whose account this is)")


def _reason(parser: ArgumentParser) -> None:
    parser.add_argument("--reason", metavar="TEXT", help="why")


def _id(parser: ArgumentParser) -> None:
    parser.add_argument("task", help="its id")


def _controlled(parser: ArgumentParser) -> None:
    _id(parser)
    _reason(parser)
    _by(parser)


def _decided(parser: ArgumentParser) -> None:
    _id(parser)
    parser.add_argument("name", nargs="?", help="which of its approvals (the only one that is open)")
    _reason(parser)
    _by(parser, decides=True)


def _start(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("workflow", help="the name of the workflow; any worker that has it takes the task")
    add("argument", nargs="*", help=f"its arguments, each {JSON_HELP}")
    text_option(parser)
    add("--keyword", action="append", metavar="NAME=JSON", help="an argument by its name; may be given several times")
    add("--id", metavar="ID", help="its id; called again with the same, it is the same task (a new one)")
    add("--name", metavar="TEXT", help="what people call it (the workflow)")
    add("--session", metavar="ID", help="the session that it belongs to (yours)")
    add("--auto", action="store_true", help="pass its approvals through; only people may say so")
    add("--context", metavar="JSON", help="what the workflow is told besides, a JSON object")
    add("--settings", metavar="JSON", help="how it is to work, a JSON object")
    add("--restarts", type=int, default=0, metavar="N", help="try it again when it fails, N times at most (0)")
    add(
        "--backoff", type=seconds, default=1.0, metavar="S", help="seconds before the first restart, then ever more (1)"
    )
    add("--delay", type=seconds, metavar="S", help="not before so many seconds")
    add(
        "--max-losses", type=int, default=5, metavar="N",
        help="fail it when N workers in a row died or lost their lease while they ran it (5)",
    )  # fmt: skip
    _by(parser, decides=True)


def _settle(parser: ArgumentParser) -> None:
    _id(parser)
    parser.add_argument("step", help="the step whose outcome nobody knows")
    only: Any = parser.add_mutually_exclusive_group()
    only.add_argument("--result", metavar="JSON", help=f"it was done, with this result: {JSON_HELP}")
    only.add_argument("--error", metavar="TEXT", help="it failed, for this reason")
    only.add_argument("--redo", action="store_true", help="it was not done: run it again")
    text_option(parser)
    _by(parser, decides=True)


def _auto(parser: ArgumentParser) -> None:
    _id(parser)
    parser.add_argument("switch", choices=("on", "off"), help="on: pass them through; off: ask people")
    _by(parser, decides=True)


def _redo(parser: ArgumentParser) -> None:
    _id(parser)
    parser.add_argument("step", help="the first step to be done again: plan, plan#2, approval:plan, task:build")
    parser.add_argument("--note", metavar="TEXT", help="what the step is told, as task.note")
    _reason(parser)
    _by(parser)


def _edit(parser: ArgumentParser) -> None:
    _id(parser)
    add = parser.add_argument
    add("--name", metavar="TEXT", help="what people call it")
    add("--context", metavar="JSON", help="what the workflow is told besides, a JSON object")
    add("--settings", metavar="JSON", help="how it is to work, a JSON object")
    add("--restarts", type=int, metavar="N", help="try it again when it fails, N times at most")
    add("--backoff", type=seconds, metavar="S", help="seconds before the first restart, then ever more")
    add("--max-losses", type=int, metavar="N", help="workers that it may lose in a row before it fails")
    add("--arguments", metavar="JSON", help="its arguments, a JSON array; not while a worker has it")
    add("--keywords", metavar="JSON", help="its arguments by name, a JSON object; not while a worker has it")
    _by(parser)


_SILENT = "plain output: nothing"
_GUARD = (
    "An agent (AGENTBUS_AGENT, --agent) is refused unless --by names a person; without a terminal --by or\n"
    "AGENTBUS_OPERATOR must. That is a guard against accidents, not against malice."
)

COMMANDS = {
    "task start": Command(
        start, "Have a workflow done, by any worker that has it. When this returns, the task is on the disk. Arguments"
        " that no running worker's version of the workflow takes are refused.",
        "agentbus task start feature --text 'Add login' --id feature-1", _start, output="plain output: its id",
    ),
    "task approve": Command(
        approve, "Approve what a task asks for; it goes on.", "agentbus task approve feature-1 plan", _decided,
        output=f"{_SILENT}\n{_GUARD}",
    ),
    "task reject": Command(
        reject, "Reject what a task asks for. Its workflow is told the reason, and decides how to go on.",
        "agentbus task reject feature-1 plan --reason 'too large'", _decided, output=f"{_SILENT}\n{_GUARD}",
    ),
    "task settle": Command(
        settle, "Say what became of a step that must run only once, and whose worker went away.",
        "agentbus task settle order-7 charge --result '{\"paid\": true}'", _settle, output=f"{_SILENT}\n{_GUARD}",
    ),
    "task halt": Command(
        halt, "Let a task, and its sub-tasks, come to a halt before the next step.", "agentbus task halt feature-1",
        _controlled, output=_SILENT,
    ),
    "task continue": Command(
        go_on, "Let a task that was halted go on.", "agentbus task continue feature-1", _controlled, output=_SILENT,
    ),
    "task auto": Command(
        auto, "Pass the approvals of a task through from now on, the open ones too; or ask people again.",
        "agentbus task auto feature-1 on", _auto, output=f"{_SILENT}\n{_GUARD}",
    ),
    "task stop": Command(
        stop, "Give a task up, with its sub-tasks: the step that runs is cancelled. It can be resumed.",
        "agentbus task stop feature-1 --reason 'not wanted any more'", _controlled, output=_SILENT,
    ),
    "task resume": Command(
        resume, "Let a task go on that was halted, stopped or failed, after its last finished step.",
        "agentbus task resume feature-1", _controlled, output=_SILENT,
    ),
    "task redo": Command(
        redo, "Do a step of a task again, and everything that began after it had ended. Steps that run beside it finish"
        " first. What was done is kept as history.",
        "agentbus task redo feature-1 implement --note 'use the new client'", _redo, output=_SILENT,
    ),
    "task restart": Command(
        restart, "Do a task again from its beginning. What was done is kept as history.",
        "agentbus task restart feature-1", _controlled, output=_SILENT,
    ),
    "task edit": Command(
        edit, "Change what a task is called, what its workflow is told, how it is restarted, or its arguments. Finished"
        " steps stay finished: one that is then asked for with other arguments is named as an error; redo it.",
        "agentbus task edit feature-1 --settings '{\"model\": \"small\"}'", _edit, output=_SILENT,
    ),
}  # fmt: skip
