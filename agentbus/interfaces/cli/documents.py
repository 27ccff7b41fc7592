"""Documents: the named outputs of a session."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from agentbus.errors import UnknownDocument
from agentbus.interfaces.cli.command import Call, Command
from agentbus.interfaces.cli.failures import Usage, missing
from agentbus.interfaces.cli.output import Result, Rows, Said, bare
from agentbus.interfaces.cli.values import JSON_HELP, text_option, value

_KEPT = 10
COLUMNS = ("name", "version", "author", "created:time")


def save(call: Call) -> Result:
    given = call.arguments
    content = value(given, "value")
    session = _session(call)
    if call.settings.text("agent") is None:
        document = call.bus.do(call.bus.sessions.open(session)).document(given.name, keep=given.keep)
        version = call.bus.do(document.save(content)).version
    else:
        # An agent is its author; one that was taken over or ended is refused.
        version = call.me.document(given.name, content, keep=given.keep, session=session).version
    return Said({"session": session, "name": given.name, "version": version}, str(version))


def show(call: Call) -> Result:
    given = call.arguments
    record = call.bus.do(_document(call).record(given.version))
    if record is None:
        raise missing(UnknownDocument(session=_session(call), name=given.name))
    return Said(record, bare(record.value))


def listed(call: Call) -> Result:
    session = call.bus.do(call.bus.sessions.open(_session(call)))
    return Rows(call.bus.do(session.documents()), COLUMNS, paged=False, empty="it has no documents")


def history(call: Call) -> Result:
    given = call.arguments
    found = call.bus.do(_document(call).history(given.limit))
    if not found:
        raise missing(UnknownDocument(session=_session(call), name=given.name))
    return Rows(found, ("version", "author", "created:time"), paged=False)


def export(call: Call) -> Result:
    given = call.arguments
    path = call.bus.do(_document(call).export(given.path))
    return Said({"session": _session(call), "name": given.name, "path": str(path)}, str(path))


def _document(call: Call) -> Any:
    return call.bus.do(call.bus.sessions.open(_session(call))).document(call.arguments.name)


def _session(call: Call) -> str:
    """The session that is named, or that of whoever calls."""
    name: str | None = call.arguments.session
    if name is None and call.visitor is not None:
        name = call.visitor.session
    if name is None:
        raise Usage(reason="of which session?", advice="name it with --session ID, or call as an agent that is in one")
    return name


def _name(parser: ArgumentParser) -> None:
    parser.add_argument("name", help="the document's name")
    _of_session(parser)


def _of_session(parser: ArgumentParser) -> None:
    parser.add_argument("--session", metavar="ID", help="the session that it belongs to (yours)")


def _save(parser: ArgumentParser) -> None:
    parser.add_argument("name", help="the document's name")
    parser.add_argument("value", help=JSON_HELP)
    text_option(parser)
    _of_session(parser)
    parser.add_argument("--keep", type=int, default=_KEPT, metavar="N", help="so many versions are kept (10)")


def _show(parser: ArgumentParser) -> None:
    _name(parser)
    parser.add_argument("--version", type=int, metavar="N", help="this version (the newest)")


def _history(parser: ArgumentParser) -> None:
    _name(parser)
    parser.add_argument("--limit", type=int, default=100, metavar="N", help="so many at most (100)")


def _export(parser: ArgumentParser) -> None:
    _name(parser)
    parser.add_argument("path", help="the file to write; one that is there is replaced")


COMMANDS = {
    "document save": Command(
        save, "Save a new version of a document of your session.",
        "agentbus document save plan @plan.json", _save, output="plain output: its version",
    ),
    "document show": Command(
        show, "Print the value of a document. Exit code 4 if it is not there.",
        "agentbus document show plan --session planning-001", _show,
        output="plain output: the value (a text as it is, anything else as JSON)",
    ),
    "document list": Command(
        listed, "List the documents of a session, each with its newest version.",
        "agentbus document list --session planning-001", _of_session,
        output="plain output: name, version, author, created",
    ),
    "document history": Command(
        history, "List the versions of a document that are kept, newest first.", "agentbus document history plan",
        _history, output="plain output: version, author, created",
    ),
    "document export": Command(
        export, "Write the newest version of a document to a JSON file: the whole file, or nothing of it.",
        "agentbus document export plan plan.json", _export, output="plain output: the path",
    ),
}  # fmt: skip
