"""Control of durable tasks: start, decide, halt, continue, stop, resume, redo, restart, edit. A decision carries the
name of a person."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import TYPE_CHECKING, Any

from agentbus.cli.arguments import JSON_HELP, ask_reason, json_value, option, seconds, text_option
from agentbus.cli.context import Call, Command
from agentbus.cli.errors import Usage, echoed
from agentbus.cli.operators import caller, require_operator
from agentbus.cli.output import CONFIRMED, Done, Result, listing
from agentbus.core.validation import RETRY_DELAY, Priority
from agentbus.operations.task_dependencies import POLICIES

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from agentbus.records import ApprovalRecord, TaskRecord

_POLICY_HELP = "if a dependency fails or is stopped: wait until it completes (block), or stop the task (cancel)"
_MAX_WORKFLOWS = 1000
"""Workflows of live workers that are compared."""


def start(call: Call) -> Result:
    given = call.arguments
    if given.manual:
        return _add(call)
    if given.priority is not None:
        raise Usage(reason="only a work item has a priority", advice="add --manual, or remove --priority")
    if given.auto:
        require_operator(call, "pass approvals automatically")
    made = call.bus.do(
        call.bus.tasks.start(
            given.workflow,
            *(_value(call, one) for one in given.argument),
            keywords=dict(_keyword(call, text) for text in given.keyword or ()),
            id=given.id,
            name=given.name,
            session=given.session or _own_session(call),
            auto=given.auto,
            context=option(call, given.context),
            settings=option(call, given.settings),
            restarts=given.restarts,
            backoff=given.backoff,
            delay=given.delay,
            max_losses=given.max_losses,
            after=given.after or (),
            on_failed_dependency=given.on_failed_dependency,
        )
    )
    look_for_workers(call, made.workflow)
    return Done(_brief(made), f"started {made.id}", made.id)


def _add(call: Call) -> Result:
    """Add a work item."""
    given = call.arguments
    excluded = {"--auto": given.auto, "--keyword": given.keyword, "--settings": given.settings}
    found = [option for option, value in excluded.items() if value]
    if found:
        raise Usage(reason=f"{found[0]} is for workflows: a work item has no code", advice=f"remove {found[0]}")
    if len(given.argument) > 1:
        raise Usage(
            reason=f"unexpected argument {given.argument[1]!r}", advice="a work item has one input: a JSON value"
        )
    made = call.bus.do(
        call.bus.tasks.add(
            given.workflow,
            _value(call, given.argument[0]) if given.argument else None,
            id=given.id,
            name=given.name,
            session=given.session or _own_session(call),
            context=option(call, given.context),
            priority=Priority.NORMAL if given.priority is None else given.priority,
            restarts=given.restarts,
            backoff=given.backoff,
            delay=given.delay,
            max_losses=given.max_losses,
            after=given.after or (),
            on_failed_dependency=given.on_failed_dependency,
        )
    )
    return Done(_brief(made), f"added {made.id}", made.id)


def _own_session(call: Call) -> str | None:
    """Return the session of the calling agent, if it has not ended."""
    from agentbus.cli.commands.sessions import open_session_or_none

    visitor = call.visitor
    return None if visitor is None or visitor.session is None else open_session_or_none(call, visitor.session)


def _keyword(call: Call, text: str) -> tuple[str, Any]:
    name, mark, value = text.partition("=")
    if not mark:
        raise Usage(reason=f"--keyword {echoed(text)} has no =", advice="name the argument: --keyword size=3")
    return name, _value(call, value)


def _value(call: Call, text: str) -> Any:
    return json_value(text, as_text=call.arguments.text, texts=True, limit=call.settings["max_payload"])


def approve(call: Call) -> Result:
    return _decide(call, call.bus.tasks.approve, "approve")


def reject(call: Call) -> Result:
    return _decide(call, call.bus.tasks.reject, "reject")


def _decide(call: Call, decide: Callable[..., Coroutine[Any, Any, ApprovalRecord]], action: str) -> Result:
    given = call.arguments
    by = require_operator(call, f"{action} anything")
    reason = given.reason
    if action == "reject" and not reason:
        # The workflow receives it, and decides by it how to continue.
        reason = ask_reason(call, f"reject {given.task}", "--reason")
    made = call.bus.do(decide(given.task, given.name, by=by, reason=reason))
    look_for_workers(call)
    fields = ("task", "key", "status", "by", "reason", "decided")
    because = f": {made.reason}" if made.reason else ""
    return Done({name: getattr(made, name) for name in fields}, f"{made.status} {made.key} of {made.task}{because}")


def settle(call: Call) -> Result:
    given = call.arguments
    outcome: dict[str, Any]
    if given.redo:
        outcome = {"redo": True}
    elif given.error is not None:
        outcome = {"error": given.error}
    elif given.result is not None:
        outcome = {"result": _value(call, given.result)}
    else:
        advice = "pass --result JSON, --error TEXT or --redo"
        raise Usage(reason=f"no outcome given for {given.step}", advice=advice)
    by = require_operator(call, "settle a step")
    found = call.bus.do(call.bus.tasks.settle(given.task, given.step, by=by, **outcome))
    how = "it runs again" if given.redo else "it failed" if given.error is not None else "it succeeded"
    return _directed(call, found, f"settled {given.step} of {found.id}: {how}")


def auto(call: Call) -> Result:
    given = call.arguments
    on = given.switch == "on"
    by = require_operator(call, "pass approvals automatically") if on else caller(call)
    found = call.bus.do(call.bus.tasks.auto(given.task, on, by=by))
    what = "passes its approvals automatically" if on else "waits for decisions"
    return _directed(call, found, f"{found.id} {what}")


def halt(call: Call) -> Result:
    found = _control(call, call.bus.tasks.halt)
    if found.halting and found.manual:
        when = f"halting {found.id} when {found.holder} releases it"
    else:
        when = f"halting {found.id} before its next step" if found.halting else f"halted {found.id}"
    return Done(_brief(found), when)


def continue_(call: Call) -> Result:
    found = _control(call, call.bus.tasks.continue_)
    return _directed(call, found, f"continued {found.id}")


def stop(call: Call) -> Result:
    found = _control(call, call.bus.tasks.stop)
    return Done(_brief(found), f"stopped {found.id}")


def resume(call: Call) -> Result:
    found = _control(call, call.bus.tasks.resume)
    return _directed(call, found, f"resumed {found.id} after its last finished step")


def restart(call: Call) -> Result:
    found = _control(call, call.bus.tasks.restart)
    return _directed(call, found, f"restarted {found.id} from its first step")


def redo(call: Call) -> Result:
    given = call.arguments
    options = {"note": given.note, "by": caller(call), "reason": given.reason}
    found = call.bus.do(call.bus.tasks.redo(given.task, given.step, **options))
    later = f", {', '.join(found.redo)}, when the concurrent steps have ended" if found.redo else ""
    return _directed(call, found, f"redoing {given.step} of {found.id}{later}")


def edit(call: Call) -> Result:
    given = call.arguments
    changes = {
        "name": given.name, "context": option(call, given.context), "settings": option(call, given.settings),
        "restarts": given.restarts, "backoff": given.backoff, "max_losses": given.max_losses,
        "arguments": option(call, given.arguments), "keywords": option(call, given.keywords),
        "priority": given.priority, "after": given.after, "no_after": given.no_after,
        "on_failed_dependency": given.on_failed_dependency,
    }  # fmt: skip
    if all(value is None for value in changes.values()):
        advice = f"options: {', '.join(f'--{name}' for name in changes).replace('_', '-')}"
        raise Usage(reason="no change given", advice=advice)
    if not isinstance(changes["arguments"], list | None):
        advice = "pass a JSON array: --arguments '[…]'"
        raise Usage(reason="arguments must be a list", advice=advice)
    changes = {name: value for name, value in changes.items() if value is not None}
    found = call.bus.do(call.bus.tasks.edit(given.task, **changes, by=caller(call)))
    changed = ", ".join(changes)
    return Done(_brief(found), f"changed {changed} of {found.id}")


def _control(call: Call, control: Callable[..., Coroutine[Any, Any, TaskRecord]]) -> TaskRecord:
    return call.bus.do(control(call.arguments.task, by=caller(call), reason=call.arguments.reason))


def _directed(call: Call, task: TaskRecord, sentence: str) -> Result:
    if not task.manual:
        look_for_workers(call, task.workflow)
    return Done(_brief(task), sentence)


def _brief(task: TaskRecord) -> dict[str, Any]:
    return {name: getattr(task, name) for name in ("id", "name", "workflow", "status", "halting", "auto")}


def look_for_workers(call: Call, workflow: str | None = None) -> None:
    """Print a note if no running worker can execute the workflow."""
    if call.arguments.quiet:
        return
    from agentbus.operations.task_lookups import served_workflows

    served = call.bus.read(served_workflows, _MAX_WORKFLOWS)
    if not served:
        call.note("no worker is running; start one: agentbus worker MODULE:WORKFLOW")
    elif workflow and workflow not in served and len(served) < _MAX_WORKFLOWS:
        call.note(f"no running worker has the workflow {workflow}, only {listing(served)}")


def _by(parser: ArgumentParser, decides: bool = False) -> None:
    text = "the person who decides" if decides else "the caller"
    parser.add_argument("--by", metavar="NAME", help=f"{text} (default: AGENTBUS_OPERATOR, or the user account)")


def _reason(parser: ArgumentParser) -> None:
    parser.add_argument("--reason", metavar="TEXT", help="the reason")


def _id(parser: ArgumentParser) -> None:
    parser.add_argument("task", help="its id")


def _controlled(parser: ArgumentParser) -> None:
    _id(parser)
    _reason(parser)
    _by(parser)


def _decided(parser: ArgumentParser) -> None:
    _id(parser)
    parser.add_argument("name", nargs="?", help="name of the approval (default: the only open one)")
    _reason(parser)
    _by(parser, decides=True)


def _rejected(parser: ArgumentParser) -> None:
    _id(parser)
    parser.add_argument("name", nargs="?", help="name of the approval (default: the only open one)")
    parser.add_argument("--reason", metavar="TEXT", help="the reason; required, a terminal asks for it")
    _by(parser, decides=True)


def _start(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("workflow", help="name of the workflow; any worker that has it runs the task. With --manual, the kind of work")
    add("argument", nargs="*", help=f"arguments, each {JSON_HELP}")
    text_option(parser)
    add("--manual", action="store_true", help="add a work item, which an agent takes: agentbus task take")
    add("--priority", type=int, metavar="N", help="of a work item: 0 to 9, 9 is the most urgent (default 5)")
    add("--after", action="append", metavar="ID", help="start when this task has completed; can be repeated")
    add("--on-failed-dependency", choices=POLICIES, default="block", help=_POLICY_HELP)
    add("--keyword", action="append", metavar="NAME=JSON", help="keyword argument; can be repeated")
    add("--id", metavar="ID", help="task id; the same id returns the same task (default: a new id)")
    add("--name", metavar="TEXT", help="display name (default: the workflow)")
    add("--session", metavar="ID", help="session of the task (default: that of the calling agent)")
    add("--auto", action="store_true", help="pass its approvals automatically; only a person can choose this")
    add("--context", metavar="JSON", help="context for the workflow, a JSON object")
    add("--settings", metavar="JSON", help="settings for the workflow, a JSON object")
    add("--restarts", type=int, default=0, metavar="N", help="maximum number of restarts after a failure (default 0)")
    add("--backoff", type=seconds, default=RETRY_DELAY, metavar="S", help="initial restart delay; doubles (default 1)")
    add("--delay", type=seconds, metavar="S", help="delay in seconds")
    add(
        "--max-losses", type=int, default=5, metavar="N",
        help="fail the task after N workers in a row died or lost their lease (default 5)",
    )  # fmt: skip
    _by(parser, decides=True)


def _settle(parser: ArgumentParser) -> None:
    _id(parser)
    parser.add_argument("step", help="the step with the unknown outcome")
    only: Any = parser.add_mutually_exclusive_group()
    only.add_argument("--result", metavar="JSON", help=f"it succeeded with this result: {JSON_HELP}")
    only.add_argument("--error", metavar="TEXT", help="it failed with this error")
    only.add_argument("--redo", action="store_true", help="it did not run: run it again")
    text_option(parser)
    _by(parser, decides=True)


def _auto(parser: ArgumentParser) -> None:
    _id(parser)
    parser.add_argument(
        "switch", choices=("on", "off"), help="on: pass approvals automatically; off: wait for a decision"
    )
    _by(parser, decides=True)


def _redo(parser: ArgumentParser) -> None:
    _id(parser)
    parser.add_argument("step", help="the first step to redo: plan, plan#2, approval:plan, task:build")
    parser.add_argument("--note", metavar="TEXT", help="note for the step, as task.note")
    _reason(parser)
    _by(parser)


def _edit(parser: ArgumentParser) -> None:
    _id(parser)
    add = parser.add_argument
    add("--name", metavar="TEXT", help="display name")
    add("--context", metavar="JSON", help="context for the workflow, a JSON object")
    add("--settings", metavar="JSON", help="settings for the workflow, a JSON object")
    add("--restarts", type=int, metavar="N", help="maximum number of restarts after a failure")
    add("--backoff", type=seconds, metavar="S", help="initial restart delay; doubles")
    add("--max-losses", type=int, metavar="N", help="workers in a row that can be lost before the task fails")
    add("--arguments", metavar="JSON", help="arguments, a JSON array; not while a worker runs the task")
    add("--keywords", metavar="JSON", help="keyword arguments, a JSON object; not while a worker runs the task")
    add("--priority", type=int, metavar="N", help="priority of a work item, 0 to 9")
    add("--after", action="append", metavar="ID", help="add a dependency, until the task has started; can be repeated")
    add("--no-after", action="append", metavar="ID", help="remove a dependency; can be repeated")
    add("--on-failed-dependency", choices=POLICIES, help=_POLICY_HELP)
    _by(parser)


_GUARD = (
    "An agent (AGENTBUS_AGENT, --agent) is refused, also with --by: a person decides, in their own shell. A caller\n"
    "without a terminal passes --by or sets AGENTBUS_OPERATOR. This prevents accidents, not malice."
)

COMMANDS = {
    "task start": Command(
        start, "Start a task, which any worker with the workflow runs; with --manual, a work item that an agent takes."
        " It is on disk when the command returns. Arguments that no running worker's version of the workflow accepts"
        " are rejected. With --after it starts when those tasks have completed.",
        "agentbus task start feature --text 'Add login' --id feature-1", _start, output="plain output: its id",
    ),
    "task approve": Command(
        approve, "Approve a request of a task, which then continues.", "agentbus task approve feature-1 plan", _decided,
        output=f"{CONFIRMED}\n{_GUARD}",
    ),
    "task reject": Command(
        reject, "Reject a request of a task. Its workflow receives the reason and decides how to continue.",
        "agentbus task reject feature-1 plan --reason 'too large'", _rejected, output=f"{CONFIRMED}\n{_GUARD}",
    ),
    "task settle": Command(
        settle, "Settle the outcome of a step that must run only once and whose worker died.",
        "agentbus task settle order-7 charge --result '{\"paid\": true}'", _settle, output=f"{CONFIRMED}\n{_GUARD}",
    ),
    "task halt": Command(
        halt, "Halt a task and its sub-tasks before the next step.", "agentbus task halt feature-1",
        _controlled, output=CONFIRMED,
    ),
    "task continue": Command(
        continue_, "Continue a halted task.", "agentbus task continue feature-1", _controlled, output=CONFIRMED,
    ),
    "task auto": Command(
        auto, "Pass the approvals of a task automatically, including the open ones; or wait for decisions again.",
        "agentbus task auto feature-1 on", _auto, output=f"{CONFIRMED}\n{_GUARD}",
    ),
    "task stop": Command(
        stop, "Stop a task and its sub-tasks. The running step is cancelled. The task can be resumed.",
        "agentbus task stop feature-1 --reason 'no longer needed'", _controlled, output=CONFIRMED,
    ),
    "task resume": Command(
        resume, "Resume a halted, stopped or failed task after its last finished step.",
        "agentbus task resume feature-1", _controlled, output=CONFIRMED,
    ),
    "task redo": Command(
        redo, "Redo a step of a task and every step that started after it ended. Concurrent steps finish first."
        " Earlier results stay in the history.",
        "agentbus task redo feature-1 implement --note 'use the new client'", _redo, output=CONFIRMED,
    ),
    "task restart": Command(
        restart, "Restart a task from its first step. Earlier results stay in the history.",
        "agentbus task restart feature-1", _controlled, output=CONFIRMED,
    ),
    "task edit": Command(
        edit, "Change the name, context, settings, restarts, arguments, priority or dependencies of a task. Finished"
        " steps stay finished: a step that is then called with other arguments fails the task; redo it.",
        "agentbus task edit feature-1 --settings '{\"model\": \"small\"}'", _edit, output=CONFIRMED,
    ),
}  # fmt: skip
