"""Sessions: start, show, pause, end and recover them."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Sequence
from typing import Any

from agentbus.cli.arguments import JSON_HELP, minutes, option, paging
from agentbus.cli.context import Call, Command
from agentbus.cli.errors import Usage, echoed, missing, querying
from agentbus.cli.output import CONFIRMED, Done, Result, Rows, is_terminal
from agentbus.errors import UnknownSession

COLUMNS = ("id", "operation", "milestone", "status:status", "progress:percent", "updated:time", "degraded:flag")
_TASKS = 100
"""Tasks of a session that are shown, the newest."""
MEMBERS = ("meeting", "member", "status:status", "finished:time", "result")
INTERRUPTED = ("session", "milestone", "operation", "inactive_minutes", "agents", "active", "failed", "status:status")


def start(call: Call) -> Result:
    given = call.arguments
    me = call.visitor
    elsewhere = None if me is None or me.session in {None, given.id} else open_session_or_none(call, me.session)
    if me is not None:
        # Rejects a fenced agent.
        me.heartbeat()
    started = call.bus.start_session(
        given.operation,
        milestone=given.milestone,
        id=given.id,
        expects=_expected(given.expect),
        metadata=option(call, given.metadata),
        member=None if elsewhere is not None else me,
    )
    if started.continued and not is_terminal():
        call.note(f"{started.session} existed and was resumed")
    if elsewhere is not None:
        call.note(f"the agent stays in {elsewhere}; to join this session: agentbus session join {started.session}")
    data = {
        "id": started.session, "operation": started.operation, "milestone": started.milestone,
        "continued": started.continued,
        "joined": me is not None and elsewhere is None,
    }  # fmt: skip
    done = f"{'resumed' if started.continued else 'started'} session {started.session}"
    return Done(data, done, started.session)


def open_session_or_none(call: Call, session: str) -> str | None:
    """Return the session, or None if it has ended."""
    record = call.bus.do(call.bus.sessions.get(session))
    return None if record is None or record.status in {"completed", "failed"} else session


def join(call: Call) -> Result:
    name = call.arguments.id
    left = call.me.join(name)
    if left is not None:
        call.note(f"left {left} (that session stays active)")
    return Done({"id": name, "agent": call.me.identity, "left": left}, f"{call.me.identity} joined session {name}")


def _expected(given: list[str] | None) -> dict[str, str] | None:
    if given is None:
        return None
    expected: dict[str, str] = {}
    for text in given:
        producer, mark, document = text.partition("=")
        if not mark:
            raise Usage(
                reason=f"--expect {echoed(text)} has no =", advice="name producer and document: --expect planner-1=plan"
            )
        if producer in expected:
            raise Usage(reason=f"--expect names {producer!r} twice", advice="each producer owes one document")
        expected[producer] = document
    return expected


def status(call: Call) -> Result:
    """Show a session with its agents, documents and tasks."""
    from msgspec import to_builtins

    from agentbus.cli.task_tree import BRIEF
    from agentbus.cli.views import Fields, Part, Sections

    name = chosen(call)
    record = call.bus.do(call.bus.sessions.get(name))
    if record is None:
        raise missing(UnknownSession(session=name))
    session = call.bus.do(call.bus.sessions.open(name))
    agents = call.bus.do(call.bus.agents.list(session=name, limit=1000)).items
    documents = call.bus.do(session.documents())
    owed = call.bus.do(session.missing())
    counts = call.bus.do(session.counts())
    fields = to_builtins(record)
    columns = ("id", "type", "status:status", "progress:percent", "note", "updated:time")
    short = [{column.partition(":")[0]: getattr(one, column.partition(":")[0]) for column in columns} for one in agents]
    tasks = [
        {field: getattr(one, field) for field in BRIEF}
        for one in call.bus.do(call.bus.tasks.list(session=name, limit=_TASKS)).items
    ]
    data = {
        "session": fields, "counts": counts, "agents": short, "documents": to_builtins(documents), "missing": owed,
        "tasks": tasks,
    }  # fmt: skip
    shown = {**fields, "status": "degraded"} if record.degraded else fields
    return Sections(
        data,
        Fields("session", "", {name: value for name, value in shown.items() if name != "degraded"}),
        Part("agent", "agents", columns, short),
        Part("document", "documents", ("name", "version", "author", "created:time"), documents),
        Part("task", "tasks", ("id", "workflow", "status:status", "phase", "progress:percent", "updated:time"), tasks),
        Part("missing", "missing", ("producer", "document"), [{"producer": p, "document": d} for p, d in owed.items()]),
    )


def listed(call: Call) -> Result:
    given = call.arguments
    if given.stale is not None:
        if given.status or given.operation or given.milestone or given.cursor:
            raise Usage(reason="--stale excludes other filters", advice="agentbus session list --stale 60")
        found = call.bus.do(call.bus.sessions.stale(given.stale))
        return Rows(_with_shown_status(found[: given.limit]), COLUMNS, empty="no stale sessions")
    page = call.bus.do(
        call.bus.sessions.list(
            status=given.status.split(",") if given.status else None,
            operation=given.operation,
            milestone=given.milestone,
            cursor=given.cursor,
            limit=given.limit,
        )
    )
    return Rows(_with_shown_status(page.items), COLUMNS, cursor=page.cursor, empty="no matching sessions")


def _with_shown_status(sessions: Sequence[Any]) -> list[Any]:
    """Return the sessions with the status that all commands show."""
    from msgspec.structs import replace

    return [replace(one, status="degraded") if one.degraded else one for one in sessions]


def interrupted(call: Call) -> Result:
    """List interrupted, degraded and deserted sessions."""
    found = call.bus.do(call.bus.sessions.cut_off())
    rows = [
        {
            "session": one.session,
            "milestone": one.milestone,
            "operation": one.operation,
            "inactive_minutes": one.inactive // 60_000,
            "agents": one.agents,
            "active": one.active,
            "failed": one.failed,
            "status": one.status,
        }
        for one in found
    ]
    return Rows(rows, INTERRUPTED, paged=False, empty="nothing interrupted")


def progress(call: Call) -> Result:
    name = chosen(call)
    session = call.bus.do(call.bus.sessions.open(name))
    call.bus.do(session.progress(call.arguments.percent))
    percent = call.arguments.percent
    return Done({"id": name, "progress": percent}, f"recorded {percent} % for session {name}")


def pause(call: Call) -> Result:
    name = chosen(call)
    call.bus.do(call.bus.do(call.bus.sessions.open(name)).pause(call.arguments.reason))
    return _is(name, "paused", "paused")


def continue_(call: Call) -> Result:
    name = chosen(call)
    call.bus.do(call.bus.do(call.bus.sessions.open(name)).continue_())
    return _is(name, "active", "continued")


def complete(call: Call) -> Result:
    name = chosen(call)
    session = call.bus.do(call.bus.sessions.open(name))
    call.bus.do(session.complete())
    owed = call.bus.do(session.missing())
    if owed:
        call.note(f"completed without the expected {', '.join(owed.values())}")
    return _is(name, "completed", "completed")


def fail(call: Call) -> Result:
    name = call.arguments.id
    call.bus.do(call.bus.do(call.bus.sessions.open(name)).fail(call.arguments.error))
    return _is(name, "failed", "failed")


def participants(call: Call) -> Result:
    """List the members of the meetings of a session."""
    name, only = chosen(call), call.arguments.meeting
    with querying():
        meetings = call.bus.do(call.bus.do(call.bus.sessions.open(name)).meetings())
    rows = [
        {
            "meeting": meeting.name,
            "member": member.name,
            "status": "remaining" if member.finished is None else "finished",
            "finished": member.finished,
            "result": member.result,
        }
        for meeting in meetings
        if only in {None, meeting.name}
        for member in meeting.members
    ]
    return Rows(rows, MEMBERS, paged=False, empty="no such meeting" if only else "no meetings")


def finish(call: Call) -> Result:
    given = call.arguments
    name, result = chosen(call, given.session), option(call, given.result)
    if call.visitor is not None:
        # Rejects a fenced agent.
        call.visitor.heartbeat()
    session = call.bus.do(call.bus.sessions.open(name))
    done = call.bus.do(session.finish_member(given.member, result, meeting=given.meeting))
    if not done.changed:
        call.note(f"{done.member} had already finished {done.meeting}")
    left = ", ".join(done.remaining)
    said = f"{done.member} finished {done.meeting}; {f'remaining: {left}' if left else 'it is complete'}"
    return Done(done, said, (done.meeting, left or "-"))


def _is(session: str, status: str, done: str) -> Result:
    return Done({"id": session, "status": status}, f"{done} session {session}")


def recover(call: Call) -> Result:
    # Imported lazily: it is rarely needed.
    from agentbus.cli.commands.recovery import recover

    return recover(call)


def chosen(call: Call, given: str | None = None) -> str:
    """Return the session that is named, or that of the calling agent."""
    name = given or getattr(call.arguments, "id", None)
    if name is None and call.visitor is not None:
        name = call.visitor.session
    if name is None:
        raise Usage(reason="no session specified", advice="pass its id; agentbus session list shows the sessions")
    found: str = name
    return found


def _start(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("operation", help="operation of the session: planning, execution …")
    add("--id", metavar="ID", help="session id; one that exists and has not ended is resumed (default: a new id)")
    add("--milestone", metavar="NAME", help="milestone of the session")
    add("--expect", action="append", metavar="WHO=DOCUMENT", help="document expected from a producer; can be repeated")
    add("--metadata", metavar="JSON", help="further data, a JSON object")


def _id(parser: ArgumentParser) -> None:
    parser.add_argument("id", nargs="?", help="session id (default: that of the calling agent)")


def _join(parser: ArgumentParser) -> None:
    parser.add_argument("id", help="session id")


def _list(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("--status", metavar="S", help="active, paused, interrupted, completed or failed, or several (a,b)")
    add("--operation", metavar="NAME", help="operation")
    add("--milestone", metavar="NAME", help="milestone")
    add("--stale", type=minutes, metavar="MIN", help="open sessions without activity for this number of minutes")
    paging(parser)


def _progress(parser: ArgumentParser) -> None:
    parser.add_argument("percent", type=int, help="0 to 100")
    _id(parser)


def _pause(parser: ArgumentParser) -> None:
    _id(parser)
    parser.add_argument("--reason", metavar="TEXT", help="the reason")


def _fail(parser: ArgumentParser) -> None:
    parser.add_argument("id", help="session id")
    parser.add_argument("error", help="the error")


def _participants(parser: ArgumentParser) -> None:
    _id(parser)
    parser.add_argument("--meeting", metavar="NAME", help="meeting (default: all)")


def _finish(parser: ArgumentParser) -> None:
    parser.add_argument("member", metavar="NAME", help="name of the member")
    parser.add_argument("result", metavar="JSON", nargs="?", help=f"result: {JSON_HELP} (default null)")
    parser.add_argument("--session", metavar="ID", help="session id (default: that of the calling agent)")
    parser.add_argument("--meeting", metavar="NAME", help="meeting (default: the one that the member has not finished)")


def _recover(parser: ArgumentParser) -> None:
    parser.add_argument("id", nargs="?", help="session id (default: that of the calling agent)")
    only: Any = parser.add_mutually_exclusive_group()
    only.add_argument("--resume", action="store_true", help="resume it; its agents are expected to register again")
    only.add_argument("--complete", action="store_true", help="mark it completed; rejected if a document is missing")
    only.add_argument(
        "--abandon", nargs="?", const="abandoned", metavar="REASON", help="mark it failed, for this reason"
    )
    only.add_argument("--rollback", type=int, metavar="ID", help="restore this composite checkpoint, then resume it")
    only.add_argument(
        "--follow-on", metavar="OPERATION", help="start a new session with copies of its documents, and end it"
    )
    parser.add_argument("--follow-on-id", metavar="ID", help="with --follow-on: id of the new session")


COMMANDS = {
    "session start": Command(
        start, "Start a session, or resume one that has not ended. The calling agent joins it unless it is in another."
        " The session outlives this command.",
        "agentbus session start planning --milestone ms-123 --id planning-001 --expect scope-analyzer=scope", _start,
        output="plain output: its id",
    ),
    "session join": Command(
        join, "Join a session with the current incarnation of the agent.", "agentbus session join planning-001",
        _join, output=CONFIRMED,
    ),
    "session status": Command(
        status, "Show the status of a session, its agents, documents and tasks, and missing documents."
        " Exit code 4 if it does not exist.",
        "agentbus session status planning-001", _id,
        output="plain output: by the first column\n  session, name, value\n  agent, id, type, status, progress, note,"
        " updated\n  document, name, version, author, created\n  task, id, workflow, status, phase, progress, updated"
        "\n  missing, producer, document",
        columns=True,
    ),
    "session list": Command(
        listed, "List sessions, newest first.", "agentbus session list --status active,paused", _list,
        output="plain output: id, operation, milestone, status, progress, updated, degraded", columns=True,
    ),
    "session progress": Command(
        progress, "Report the progress of a session.", "agentbus session progress 40 planning-001", _progress,
        output=CONFIRMED,
    ),
    "session pause": Command(
        pause, "Pause a session: it is not marked interrupted when its agents fail.",
        "agentbus session pause planning-001 --reason 'waiting for the budget'", _pause, output=CONFIRMED,
    ),
    "session continue": Command(
        continue_, "Resume a paused or interrupted session.", "agentbus session continue planning-001", _id,
        output=CONFIRMED,
    ),
    "session complete": Command(
        complete, "Mark a session completed.", "agentbus session complete planning-001", _id, output=CONFIRMED,
    ),
    "session fail": Command(
        fail, "Mark a session failed.", "agentbus session fail planning-001 'the budget was not granted'",
        _fail, output=CONFIRMED,
    ),
    "session interrupted": Command(
        interrupted, "List sessions that were interrupted, are degraded by failed agents, or are deserted: without"
        " agents while work waits.",
        "agentbus session interrupted --json",
        output="plain output: session, milestone, operation, inactive_minutes, agents, active, failed, status"
        " (interrupted, degraded or deserted)", columns=True,
    ),
    "session participants": Command(
        participants, "List the meetings of a session: members, and which have finished with which result.",
        "agentbus session participants planning-001", _participants,
        output="plain output: meeting, member, status (finished or remaining), finished, result", columns=True,
    ),
    "session finish": Command(
        finish, "Record that a member of a meeting has finished, with its result. The meeting continues with the"
        " others. Repeating it changes nothing.",
        "agentbus session finish scope-analyzer '{\"files\": 12}' --session planning-001", _finish,
        output="plain output: meeting, remaining members (-: none)",
    ),
    "session recover": Command(
        recover, "Show the state of a session and the options for its recovery; with an option, execute it.",
        "agentbus session recover planning-001 --resume", _recover,
        output="plain output: by the first column\n  session, name, value\n"
        "  agent, id, type, status, progress, checkpoint, waiting, held\n  missing, producer, document\n"
        "  document, name, version, author, created\n  meeting, name, remaining\n"
        "  checkpoint, id, name, created\n  option, action, does\n"
        "  remark, advice\n"
        "after an option: done, name, value",
        columns=True,
    ),
}  # fmt: skip
