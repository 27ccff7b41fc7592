"""Checkpoints: named snapshots of agents and sessions, with references to files."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import TYPE_CHECKING, Any

from agentbus.cli.arguments import JSON_HELP, paging, snapshot, text_option
from agentbus.cli.context import Call, Command
from agentbus.cli.errors import FAILED, NothingThere, Usage, missing, querying
from agentbus.cli.output import Done, Notice, One, Result, Rows, bare, counted
from agentbus.errors import UnknownCheckpoint

if TYPE_CHECKING:
    from agentbus.records import CheckpointSummary

_SESSION = "session:"
COLUMNS = ("id", "owner_kind", "owner", "name", "created:time", "size:bytes", "files", "notes")


def create(call: Call) -> Result:
    given = call.arguments
    if given.all:
        return _composite(call)
    content = snapshot(call, "snapshot")
    options: dict[str, Any] = {
        "notes": given.notes, "files": given.file or (), "root": given.root, "keep": given.keep,
    }  # fmt: skip
    if given.of is None:
        made = call.me.checkpoint(given.name, content, **options)
    else:
        owner, kind = _owner(call)
        made = call.bus.do(call.bus.checkpoints.save(owner, given.name, content, kind=kind, **options))
    return _made(made)


def _composite(call: Call) -> Result:
    """Checkpoint everything that belongs to a session."""
    given = call.arguments
    if given.snapshot is not None or given.file:
        raise Usage(reason="--all stores the contents of the session", advice="pass no snapshot and no files")
    owner, kind = _owner(call, session=True)
    if kind != "session":
        raise Usage(reason="--all requires a session", advice=f"pass --of {_SESSION}ID")
    session = call.bus.do(call.bus.sessions.open(owner))
    return _made(call.bus.do(session.checkpoint_all(given.name, notes=given.notes, keep=given.keep)))


def _made(made: Any) -> Result:
    fields = ("id", "owner_kind", "owner", "name", "session", "created")
    done = f"created checkpoint {made.id}, {made.name} of {made.owner}"
    return Done({name: getattr(made, name) for name in fields}, done, str(made.id))


def listed(call: Call) -> Result:
    given = call.arguments
    owner: str | None = None
    kind: str | None = None
    if given.of is not None or (call.visitor is not None and not given.everybody):
        owner, kind = _owner(call)
    if given.all:
        kind = "composite"
        if owner is not None and given.of is None:
            owner = None if call.visitor is None else call.visitor.session
    page = call.bus.do(call.bus.checkpoints.list(owner, given.name, kind=kind, cursor=given.cursor, limit=given.limit))
    items: list[CheckpointSummary] = page.items
    return Rows(items, COLUMNS, cursor=page.cursor, empty="no matching checkpoints")


def show(call: Call) -> Result:
    found = call.bus.do(call.bus.checkpoints.get(call.arguments.id))
    if found is None:
        raise missing(UnknownCheckpoint(id=call.arguments.id))
    return One(found)


def restore(call: Call) -> Result:
    """Print the newest snapshot."""
    owner, kind = _owner(call)
    found = call.bus.do(call.bus.checkpoints.latest(owner, call.arguments.name, kind=kind))
    if found is None:
        named = f" named {call.arguments.name}" if call.arguments.name else ""
        what = f"{kind} {owner!r} has no checkpoint{named}"
        raise NothingThere(what=what, advice="agentbus checkpoint create makes one")
    return Notice(found, bare(found.snapshot))


def verify(call: Call) -> Result:
    with querying():
        checks = call.bus.do(call.bus.checkpoints.verify(call.arguments.id, call.arguments.root))
    wrong = any(check.status != "ok" for check in checks)
    empty = "the checkpoint refers to no files"
    return Rows(checks, ("path", "status:status"), paged=False, code=FAILED if wrong else 0, empty=empty)


def prune(call: Call) -> Result:
    given = call.arguments
    owner, kind = _owner(call, session=given.all)
    if given.all:
        kind = "composite"
    count = call.bus.do(call.bus.checkpoints.prune(owner, given.name, keep=given.keep, kind=kind))
    return Done({"pruned": count}, f"deleted {counted(count, 'checkpoint')}", str(count))


def _owner(call: Call, *, session: bool = False) -> tuple[str, str]:
    """Return the owner and its kind: the one that ``--of`` names, else the calling agent or its session."""
    of: str | None = call.arguments.of
    if of is not None and of.startswith(_SESSION):
        return of.removeprefix(_SESSION), "session"
    if of is not None:
        return of, "agent"
    if not session:
        return call.me.id, "agent"
    if call.visitor is None or call.visitor.session is None:
        raise Usage(reason="no session specified", advice=f"pass --of {_SESSION}ID")
    return call.visitor.session, "session"


def _of(parser: ArgumentParser) -> None:
    parser.add_argument("--of", metavar="OWNER", help="an agent id, or session:ID (default: the calling agent)")


def _all(parser: ArgumentParser, text: str) -> None:
    parser.add_argument("--all", action="store_true", help=text)


def _root(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--root", metavar="DIR", help="directory that the paths are relative to (default: the working directory)"
    )


def _create(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("name", help="name, such as after_planning")
    add("snapshot", nargs="?", help=f"data to resume from: {JSON_HELP}")
    text_option(parser)
    add(
        "--file",
        action="append",
        metavar="PATH",
        help="file whose size and hash are recorded; can be repeated",
    )
    _root(parser)
    add("--notes", default="", metavar="TEXT", help="notes for the reader of the checkpoint")
    add("--keep", type=int, metavar="N", help="number of checkpoints of this name to keep; older ones are deleted")
    _of(parser)
    _all(parser, "checkpoint a session: documents, state and participants, for agentbus session recover --rollback")


def _list(parser: ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", help="name (default: all)")
    _of(parser)
    _all(parser, "checkpoints of whole sessions")
    parser.add_argument("--everybody", action="store_true", help="include those of other agents")
    paging(parser)


def _restore(parser: ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", help="name (default: the newest of any name)")
    _of(parser)


def _id(parser: ArgumentParser) -> None:
    parser.add_argument("id", type=int, help="its id")


def _verify(parser: ArgumentParser) -> None:
    _id(parser)
    _root(parser)


def _prune(parser: ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", help="name (default: each)")
    parser.add_argument("--keep", type=int, required=True, metavar="N", help="number of checkpoints to keep")
    _of(parser)
    _all(parser, "checkpoints of whole sessions")


COMMANDS = {
    "checkpoint create": Command(
        create, "Save a named snapshot to resume from. It is on disk when the command returns.",
        "agentbus checkpoint create after_planning '{\"step\": 1}' --file plan.md", _create,
        output="plain output: its id",
    ),
    "checkpoint list": Command(
        listed, "List checkpoints, newest first: those of the calling agent, or all if no agent is specified.",
        "agentbus checkpoint list --of planner-1", _list,
        output="plain output: id, owner_kind, owner, name, created, size, files, notes", columns=True,
    ),
    "checkpoint show": Command(
        show, "Show a checkpoint with its snapshot.", "agentbus checkpoint show 7", _id,
        output="plain output: one line per field: name, value", columns=True,
    ),
    "checkpoint restore": Command(
        restore, "Print the snapshot of the newest checkpoint. Exit code 4 if there is none.",
        "agentbus checkpoint restore after_planning", _restore,
        output="plain output: the snapshot (a string as is, other values as JSON)",
    ),
    "checkpoint verify": Command(
        verify, "Compare the files that a checkpoint refers to. Exit code 1 if one has changed.",
        "agentbus checkpoint verify 7", _verify,
        output="plain output: path, status (ok, changed, vanished, outside, unreadable)", columns=True,
    ),
    "checkpoint prune": Command(
        prune, "Delete all but the newest checkpoints of a name, or of each name.",
        "agentbus checkpoint prune --keep 3", _prune, output="plain output: the number of deleted checkpoints",
    ),
}  # fmt: skip
