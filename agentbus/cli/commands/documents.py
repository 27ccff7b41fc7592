"""Documents: the named outputs of a session."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from agentbus.cli.arguments import JSON_HELP, snapshot, text_option
from agentbus.cli.context import Call, Command
from agentbus.cli.errors import Usage, missing, querying
from agentbus.cli.output import Done, Notice, Result, Rows, bare
from agentbus.errors import UnknownDocument

_VERSIONS = 10
COLUMNS = ("name", "version", "author", "created:time")


def save(call: Call) -> Result:
    given = call.arguments
    content = snapshot(call, "value")
    session = _session(call)
    if call.settings.text("agent") is None:
        document = call.bus.do(call.bus.sessions.open(session)).document(given.name, keep=given.keep)
        version = call.bus.do(document.save(content)).version
    else:
        # The agent is the author; a fenced agent is rejected.
        version = call.me.document(given.name, content, keep=given.keep, session=session).version
    done = f"saved {given.name} of session {session}, version {version}"
    return Done({"session": session, "name": given.name, "version": version}, done, str(version))


def show(call: Call) -> Result:
    given = call.arguments
    with querying():
        record = call.bus.do(_document(call).record(given.version))
    if record is None:
        raise missing(UnknownDocument(session=_session(call), name=given.name))
    return Notice(record, bare(record.value))


def listed(call: Call) -> Result:
    with querying():
        session = call.bus.do(call.bus.sessions.open(_session(call)))
    return Rows(call.bus.do(session.documents()), COLUMNS, paged=False, empty="the session has no documents")


def history(call: Call) -> Result:
    given = call.arguments
    with querying():
        found = call.bus.do(_document(call).history(given.limit))
    if not found:
        raise missing(UnknownDocument(session=_session(call), name=given.name))
    return Rows(found, ("version", "author", "created:time"), paged=False)


def export(call: Call) -> Result:
    given = call.arguments
    path = call.bus.do(_document(call).export(given.path))
    data = {"session": _session(call), "name": given.name, "path": str(path)}
    return Done(data, f"wrote {given.name} to {path}", str(path))


def _document(call: Call) -> Any:
    return call.bus.do(call.bus.sessions.open(_session(call))).document(call.arguments.name)


def _session(call: Call) -> str:
    """Return the session that is named, or that of the calling agent."""
    name: str | None = call.arguments.session
    if name is None and call.visitor is not None:
        name = call.visitor.session
    if name is None:
        raise Usage(reason="no session specified", advice="pass --session ID, or call as an agent in a session")
    return name


def _name(parser: ArgumentParser) -> None:
    parser.add_argument("name", help="the document's name")
    _of_session(parser)


def _of_session(parser: ArgumentParser) -> None:
    parser.add_argument("--session", metavar="ID", help="session (default: that of the calling agent)")


def _save(parser: ArgumentParser) -> None:
    parser.add_argument("name", help="the document's name")
    parser.add_argument("value", help=JSON_HELP)
    text_option(parser)
    _of_session(parser)
    parser.add_argument(
        "--keep", type=int, default=_VERSIONS, metavar="N", help="number of versions to keep (default 10)"
    )


def _show(parser: ArgumentParser) -> None:
    _name(parser)
    parser.add_argument("--version", type=int, metavar="N", help="version (default: the newest)")


def _history(parser: ArgumentParser) -> None:
    _name(parser)
    parser.add_argument("--limit", type=int, default=100, metavar="N", help="maximum number of results (default 100)")


def _export(parser: ArgumentParser) -> None:
    _name(parser)
    parser.add_argument("path", help="file to write; an existing one is replaced")


COMMANDS = {
    "document save": Command(
        save, "Save a new version of a document of the session.",
        "agentbus document save plan @plan.json", _save, output="plain output: its version",
    ),
    "document show": Command(
        show, "Print the value of a document. Exit code 4 if it does not exist.",
        "agentbus document show plan --session planning-001", _show,
        output="plain output: the value (a string as is, other values as JSON)",
    ),
    "document list": Command(
        listed, "List the documents of a session, each with its newest version.",
        "agentbus document list --session planning-001", _of_session,
        output="plain output: name, version, author, created", columns=True,
    ),
    "document history": Command(
        history, "List the stored versions of a document, newest first.", "agentbus document history plan",
        _history, output="plain output: version, author, created", columns=True,
    ),
    "document export": Command(
        export, "Write the newest version of a document to a JSON file, atomically.",
        "agentbus document export plan plan.json", _export, output="plain output: the path",
    ),
}  # fmt: skip
