"""Checkpoints: named snapshots of agents and sessions, with references to files."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import TYPE_CHECKING, Any

from agentbus.errors import UnknownCheckpoint
from agentbus.interfaces.cli.command import Call, Command
from agentbus.interfaces.cli.failures import FAILED, NothingThere, Usage, missing
from agentbus.interfaces.cli.output import One, Result, Rows, Said, bare
from agentbus.interfaces.cli.values import JSON_HELP, paging, text_option, value

if TYPE_CHECKING:
    from agentbus.records import CheckpointSummary

_SESSION = "session:"
COLUMNS = ("id", "owner_kind", "owner", "name", "created:time", "size:bytes", "files", "notes")


def create(call: Call) -> Result:
    given = call.arguments
    if given.all:
        return _composite(call)
    snapshot = value(given, "snapshot")
    options: dict[str, Any] = {
        "notes": given.notes, "files": given.file or (), "root": given.root, "keep": given.keep,
    }  # fmt: skip
    if given.of is None:
        made = call.me.checkpoint(given.name, snapshot, **options)
    else:
        owner, kind = _owner(call)
        made = call.bus.do(call.bus.checkpoints.save(owner, given.name, snapshot, kind=kind, **options))
    return _made(made)


def _composite(call: Call) -> Result:
    """All that belongs to a session."""
    given = call.arguments
    if given.snapshot is not None or given.file:
        raise Usage(reason="--all takes what the session has", advice="give it no snapshot and no files")
    owner, kind = _owner(call, session=True)
    if kind != "session":
        raise Usage(reason="--all is for a session", advice=f"name it: --of {_SESSION}ID")
    session = call.bus.do(call.bus.sessions.open(owner))
    return _made(call.bus.do(session.checkpoint_all(given.name, notes=given.notes, keep=given.keep)))


def _made(made: Any) -> Result:
    fields = ("id", "owner_kind", "owner", "name", "session", "created")
    return Said({name: getattr(made, name) for name in fields}, str(made.id))


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
    return Rows(items, COLUMNS, cursor=page.cursor, empty="there are no such checkpoints")


def show(call: Call) -> Result:
    found = call.bus.do(call.bus.checkpoints.get(call.arguments.id))
    if found is None:
        raise missing(UnknownCheckpoint(id=call.arguments.id))
    return One(found)


def restore(call: Call) -> Result:
    """What to go on from."""
    owner, kind = _owner(call)
    found = call.bus.do(call.bus.checkpoints.latest(owner, call.arguments.name, kind=kind))
    if found is None:
        named = f" named {call.arguments.name}" if call.arguments.name else ""
        what = f"{kind} {owner!r} has no checkpoint{named}"
        raise NothingThere(what=what, advice="begin at the beginning; `agentbus checkpoint create` makes one")
    return Said(found, bare(found.snapshot))


def verify(call: Call) -> Result:
    checks = call.bus.do(call.bus.checkpoints.verify(call.arguments.id, call.arguments.root))
    wrong = any(check.status != "ok" for check in checks)
    empty = "it refers to no files"
    return Rows(checks, ("path", "status:status"), paged=False, code=FAILED if wrong else 0, empty=empty)


def prune(call: Call) -> Result:
    given = call.arguments
    owner, kind = _owner(call, session=given.all)
    if given.all:
        kind = "composite"
    count = call.bus.do(call.bus.checkpoints.prune(owner, given.name, keep=given.keep, kind=kind))
    return Said({"pruned": count}, str(count))


def _owner(call: Call, *, session: bool = False) -> tuple[str, str]:
    """Whose it is: what ``--of`` names, or whoever calls (or their session)."""
    of: str | None = call.arguments.of
    if of is not None and of.startswith(_SESSION):
        return of.removeprefix(_SESSION), "session"
    if of is not None:
        return of, "agent"
    if not session:
        return call.me.id, "agent"
    if call.visitor is None or call.visitor.session is None:
        raise Usage(reason="of which session?", advice=f"name it: --of {_SESSION}ID")
    return call.visitor.session, "session"


def _of(parser: ArgumentParser) -> None:
    parser.add_argument("--of", metavar="OWNER", help="an agent's id, or session:ID (yours)")


def _all(parser: ArgumentParser, text: str) -> None:
    parser.add_argument("--all", action="store_true", help=text)


def _root(parser: ArgumentParser) -> None:
    parser.add_argument("--root", metavar="DIR", help="what the paths are below (the working directory)")


def _create(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("name", help="its name: after_planning")
    add("snapshot", nargs="?", help=f"what to go on from: {JSON_HELP}")
    text_option(parser)
    add(
        "--file",
        action="append",
        metavar="PATH",
        help="a file whose size and hash are kept; may be given several times",
    )
    _root(parser)
    add("--notes", default="", metavar="TEXT", help="for whoever goes on from it")
    add("--keep", type=int, metavar="N", help="of this name, only the newest so many stay")
    _of(parser)
    _all(parser, "of a session: its documents, state and participants, to go back to with `session recover --rollback`")


def _list(parser: ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", help="of this name (all)")
    _of(parser)
    _all(parser, "those with all that belongs to a session")
    parser.add_argument("--everybody", action="store_true", help="not only yours")
    paging(parser)


def _restore(parser: ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", help="of this name (the newest of all)")
    _of(parser)


def _id(parser: ArgumentParser) -> None:
    parser.add_argument("id", type=int, help="its id")


def _verify(parser: ArgumentParser) -> None:
    _id(parser)
    _root(parser)


def _prune(parser: ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", help="of this name (of each)")
    parser.add_argument("--keep", type=int, required=True, metavar="N", help="the newest so many stay")
    _of(parser)
    _all(parser, "those with all that belongs to a session")


COMMANDS = {
    "checkpoint create": Command(
        create, "Save a named snapshot to go on from later. When this returns, it is on the disk.",
        "agentbus checkpoint create after_planning '{\"step\": 1}' --file plan.md", _create,
        output="plain output: its id",
    ),
    "checkpoint list": Command(
        listed, "List checkpoints, newest first: yours, or everybody's if nobody says who calls.",
        "agentbus checkpoint list --of planner-1", _list,
        output="plain output: id, owner kind, owner, name, created, size, files, notes",
    ),
    "checkpoint show": Command(
        show, "Show a checkpoint with its snapshot.", "agentbus checkpoint show 7", _id,
        output="plain output: a line for each field: its name, its value",
    ),
    "checkpoint restore": Command(
        restore, "Print the snapshot of your newest checkpoint. Exit code 4 if there is none.",
        "agentbus checkpoint restore after_planning", _restore,
        output="plain output: the snapshot (a text as it is, anything else as JSON)",
    ),
    "checkpoint verify": Command(
        verify, "Look what became of the files that a checkpoint refers to. Exit code 1 if one is not as it was.",
        "agentbus checkpoint verify 7", _verify,
        output="plain output: path, status (ok, changed, vanished, outside, unreadable)",
    ),
    "checkpoint prune": Command(
        prune, "Delete all but the newest checkpoints of a name, or of each name.",
        "agentbus checkpoint prune --keep 3", _prune, output="plain output: how many",
    ),
}  # fmt: skip
