"""Sessions: beginning, looking at, pausing, ending them; those that were cut off, and how they go on."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Sequence
from typing import Any

from agentbus.errors import UnknownSession
from agentbus.interfaces.cli.command import Call, Command
from agentbus.interfaces.cli.failures import Usage, missing
from agentbus.interfaces.cli.output import Result, Rows, Said
from agentbus.interfaces.cli.values import JSON_HELP, json_value, minutes, paging

COLUMNS = ("id", "operation", "milestone", "status:status", "progress:percent", "updated:time", "degraded:flag")
_TASKS = 100
"""Tasks of a session that are shown, the newest."""
MEMBERS = ("meeting", "member", "status:status", "finished:time", "result")
CUT_OFF = ("session", "milestone", "operation", "inactive_minutes", "agents", "active", "failed", "status:status")


def start(call: Call) -> Result:
    given = call.arguments
    me = call.visitor
    elsewhere = None if me is None or me.session in {None, given.id} else still_open(call, me.session)
    if me is not None:
        # Nothing begins by the hand of one that is over.
        me.heartbeat()
    begun = call.bus.begin(
        given.operation,
        milestone=given.milestone,
        id=given.id,
        expects=_expected(given.expect),
        metadata=json_value(given.metadata),
        member=None if elsewhere is not None else me,
    )
    if begun.continued:
        call.note(f"{begun.session} had begun before, and goes on")
    if elsewhere is not None:
        call.note(f"you stay in {elsewhere}; agentbus session join {begun.session} would take you into this one")
    data = {
        "id": begun.session, "operation": begun.operation, "milestone": begun.milestone, "continued": begun.continued,
        "joined": me is not None and elsewhere is None,
    }  # fmt: skip
    return Said(data, begun.session)


def still_open(call: Call, session: str) -> str | None:
    """The session, if it goes on."""
    record = call.bus.do(call.bus.sessions.get(session))
    return None if record is None or record.status in {"completed", "failed"} else session


def join(call: Call) -> Result:
    name = call.arguments.id
    left = call.me.join(name)
    if left is not None:
        call.note(f"you left {left}, which goes on without you")
    return Said({"id": name, "agent": call.me.identity, "left": left})


def _expected(given: list[str] | None) -> dict[str, str] | None:
    if given is None:
        return None
    expected: dict[str, str] = {}
    for text in given:
        producer, mark, document = text.partition("=")
        if not mark:
            raise Usage(reason=f"--expect {text!r} has no =", advice="say who owes what: --expect planner-1=plan")
        if producer in expected:
            raise Usage(reason=f"--expect names {producer!r} twice", advice="each producer owes one document")
        expected[producer] = document
    return expected


def status(call: Call) -> Result:
    """Everything about one session that fits on a screen."""
    from msgspec import to_builtins

    from agentbus.interfaces.cli.sections import Fields, Part, Sections
    from agentbus.interfaces.cli.unfolding import BRIEF

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
            raise Usage(reason="--stale goes with no other filter", advice="agentbus session list --stale 60")
        found = call.bus.do(call.bus.sessions.stale(given.stale))
        return Rows(_standing(found[: given.limit]), COLUMNS, empty="no session is that silent")
    page = call.bus.do(
        call.bus.sessions.list(
            status=given.status.split(",") if given.status else None,
            operation=given.operation,
            milestone=given.milestone,
            cursor=given.cursor,
            limit=given.limit,
        )
    )
    return Rows(_standing(page.items), COLUMNS, cursor=page.cursor, empty="there are no such sessions")


def _standing(sessions: Sequence[Any]) -> list[Any]:
    """With the status that all commands show."""
    from msgspec.structs import replace

    return [replace(one, status="degraded") if one.degraded else one for one in sessions]


def interrupted(call: Call) -> Result:
    """What was cut off, as one table."""
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
    return Rows(rows, CUT_OFF, paged=False, empty="nothing was cut off")


def progress(call: Call) -> Result:
    name = chosen(call)
    session = call.bus.do(call.bus.sessions.open(name))
    call.bus.do(session.progress(call.arguments.percent))
    return Said({"id": name, "progress": call.arguments.percent})


def pause(call: Call) -> Result:
    name = chosen(call)
    call.bus.do(call.bus.do(call.bus.sessions.open(name)).pause(call.arguments.reason))
    return _is(name, "paused")


def go_on(call: Call) -> Result:
    name = chosen(call)
    call.bus.do(call.bus.do(call.bus.sessions.open(name)).continue_())
    return _is(name, "active")


def complete(call: Call) -> Result:
    name = chosen(call)
    session = call.bus.do(call.bus.sessions.open(name))
    call.bus.do(session.complete())
    owed = call.bus.do(session.missing())
    if owed:
        call.note(f"completed without {', '.join(owed.values())}, which was expected")
    return _is(name, "completed")


def fail(call: Call) -> Result:
    name = call.arguments.id
    call.bus.do(call.bus.do(call.bus.sessions.open(name)).fail(call.arguments.error))
    return _is(name, "failed")


def participants(call: Call) -> Result:
    """The meetings of a session, member by member."""
    name, only = chosen(call), call.arguments.meeting
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
    return Rows(rows, MEMBERS, paged=False, empty="it has no such meeting" if only else "it has no meeting")


def finish(call: Call) -> Result:
    given = call.arguments
    name, result = chosen(call, given.session), json_value(given.result)
    if call.visitor is not None:
        # Nothing is finished by the hand of one that is over.
        call.visitor.heartbeat()
    session = call.bus.do(call.bus.sessions.open(name))
    done = call.bus.do(session.finish_member(given.member, result, meeting=given.meeting))
    if not done.changed:
        call.note(f"{done.member} had finished {done.meeting} before: nothing has changed")
    left = ", ".join(done.remaining)
    return Said(done, "\t".join((done.meeting, left or "-")))


def _is(session: str, status: str) -> Result:
    return Said({"id": session, "status": status})


def recover(call: Call) -> Result:
    # Imported only here: it is seldom needed.
    from agentbus.interfaces.cli.recovering import recover

    return recover(call)


def chosen(call: Call, given: str | None = None) -> str:
    """The session that is named, or that of whoever calls."""
    name = given or getattr(call.arguments, "id", None)
    if name is None and call.visitor is not None:
        name = call.visitor.session
    if name is None:
        raise Usage(reason="which session?", advice="name it; `agentbus session list` shows those there are")
    found: str = name
    return found


def _start(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("operation", help="what it is about: planning, execution …")
    add("--id", metavar="ID", help="its id; one that was begun before and has not ended goes on (a new one)")
    add("--milestone", metavar="NAME", help="what it is for")
    add("--expect", action="append", metavar="WHO=DOCUMENT", help="who owes which document; may be given several times")
    add("--metadata", metavar="JSON", help="anything else, a JSON object")


def _id(parser: ArgumentParser) -> None:
    parser.add_argument("id", nargs="?", help="the session's id (yours)")


def _join(parser: ArgumentParser) -> None:
    parser.add_argument("id", help="the session's id")


def _list(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("--status", metavar="S", help="active, paused, interrupted, completed or failed, or several (a,b)")
    add("--operation", metavar="NAME", help="of this operation")
    add("--milestone", metavar="NAME", help="for this milestone")
    add("--stale", type=minutes, metavar="MIN", help="open ones in which nobody did anything for so many minutes")
    paging(parser)


def _progress(parser: ArgumentParser) -> None:
    parser.add_argument("percent", type=int, help="0 to 100")
    _id(parser)


def _pause(parser: ArgumentParser) -> None:
    _id(parser)
    parser.add_argument("--reason", metavar="TEXT", help="why")


def _fail(parser: ArgumentParser) -> None:
    parser.add_argument("id", help="the session's id")
    parser.add_argument("error", help="why it cannot be done")


def _participants(parser: ArgumentParser) -> None:
    _id(parser)
    parser.add_argument("--meeting", metavar="NAME", help="only this meeting")


def _finish(parser: ArgumentParser) -> None:
    parser.add_argument("member", metavar="NAME", help="the member's name")
    parser.add_argument("result", metavar="JSON", nargs="?", help=f"its result: {JSON_HELP} (null)")
    parser.add_argument("--session", metavar="ID", help="the session's id (yours)")
    parser.add_argument("--meeting", metavar="NAME", help="the meeting's name (the one that it has not finished)")


def _recover(parser: ArgumentParser) -> None:
    parser.add_argument("id", nargs="?", help="the session's id (yours)")
    only: Any = parser.add_mutually_exclusive_group()
    only.add_argument("--resume", action="store_true", help="go on with it; its agents are expected again")
    only.add_argument("--complete", action="store_true", help="end it as completed; refused if a document is missing")
    only.add_argument(
        "--abandon", nargs="?", const="abandoned", metavar="REASON", help="end it as failed, for this reason"
    )
    only.add_argument(
        "--rollback", type=int, metavar="ID", help="go back to this composite checkpoint, then go on with it"
    )
    only.add_argument(
        "--follow-on", metavar="OPERATION", help="begin another session with copies of its documents, and end it"
    )
    parser.add_argument("--follow-on-id", metavar="ID", help="with --follow-on: the id of the new session")


_SILENT = "plain output: nothing"

COMMANDS = {
    "session start": Command(
        start, "Begin a session, or go on with one that has not ended. An agent that is in no other is in it from then"
        " on. It goes on without this command.",
        "agentbus session start planning --milestone ms-123 --id planning-001 --expect scope-analyzer=scope", _start,
        output="plain output: its id",
    ),
    "session join": Command(
        join, "Take part in a session from now on, in the life that you are in.", "agentbus session join planning-001",
        _join, output=_SILENT,
    ),
    "session status": Command(
        status, "Show how a session stands, its agents, documents and tasks, and what is missing. Exit code 4: there is"
        " none.",
        "agentbus session status planning-001", _id,
        output="plain output: by the first column\n  session, field, value\n  agent, id, type, status, progress, note,"
        " updated\n  document, name, version, author, created\n  task, id, workflow, status, phase, progress, updated"
        "\n  missing, producer, document",
    ),
    "session list": Command(
        listed, "List sessions, newest first.", "agentbus session list --status active,paused", _list,
        output="plain output: id, operation, milestone, status, progress, updated, degraded",
    ),
    "session progress": Command(
        progress, "Say how far a session is.", "agentbus session progress 40 planning-001", _progress, output=_SILENT,
    ),
    "session pause": Command(
        pause, "Set a session aside: it is not interrupted when its agents fail.",
        "agentbus session pause planning-001 --reason 'waiting for the budget'", _pause, output=_SILENT,
    ),
    "session continue": Command(
        go_on, "Go on with a session after a pause or an interruption.", "agentbus session continue planning-001", _id,
        output=_SILENT,
    ),
    "session complete": Command(
        complete, "End a session: it is done.", "agentbus session complete planning-001", _id, output=_SILENT,
    ),
    "session fail": Command(
        fail, "End a session: it cannot be done.", "agentbus session fail planning-001 'the budget was not granted'",
        _fail, output=_SILENT,
    ),
    "session interrupted": Command(
        interrupted, "List the sessions that were cut off, those that go on though agents failed, and those that"
        " nobody is left in while work waits.",
        "agentbus session interrupted --json",
        output="plain output: session, milestone, operation, inactive minutes, agents, active, failed, status"
        " (interrupted, degraded, or deserted: nobody is left, and work waits)",
    ),
    "session participants": Command(
        participants, "List the meetings of a session: who takes part, who has finished and with which result.",
        "agentbus session participants planning-001", _participants,
        output="plain output: meeting, member, status (finished or remaining), finished, result",
    ),
    "session finish": Command(
        finish, "Note that a member of a meeting has finished, with its result; the meeting continues with the others."
        " Repeating it changes nothing.",
        "agentbus session finish scope-analyzer '{\"files\": 12}' --session planning-001", _finish,
        output="plain output: meeting, the members who remain (-: none)",
    ),
    "session recover": Command(
        recover, "Show what a session came to and what can be done with it; with an option, do it.",
        "agentbus session recover planning-001 --resume", _recover,
        output="plain output: of a plan, by the first column\n  session, field, value\n"
        "  agent, id, type, status, progress, checkpoint, waiting, held\n  missing, producer, document\n"
        "  document, name, version, author, created\n  meeting, name, members who remain\n"
        "  checkpoint, id, name, created\n  option, action, what it does\n"
        "  remark, what helps beside that\n"
        "of what was done: done, field, value",
    ),
}  # fmt: skip
