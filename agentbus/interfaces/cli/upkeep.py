"""Keeping a bus in order: cleaning up, backups, the doctor."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from agentbus.interfaces.cli.command import Call, Command
from agentbus.interfaces.cli.failures import FAILED, typed
from agentbus.interfaces.cli.output import Result, Rows, Said
from agentbus.interfaces.cli.values import amount, days, hours, minutes, size


def cleanup(call: Call) -> Result:
    # Imported only here: the others do without.
    from agentbus.interfaces.cli.cleaning import cleanup

    return cleanup(call)


def quotas(call: Call) -> Result:
    """Set what was named, and say what holds then."""
    from agentbus.interfaces.cli.looping import on_bus

    given = {name: getattr(call.arguments, name) for name in _QUOTAS}
    changes = {name: None if said == "none" else said for name, said in given.items() if said is not None}
    found = on_bus(call, lambda bus: bus.quotas.change(**changes) if changes else bus.quotas.policy())
    lines = [f"{name}\t{'none' if (most := getattr(found, name)) is None else f'{most:.15g}'}" for name in _QUOTAS]
    return Said(found, "\n".join(lines))


def create(call: Call) -> Result:
    from agentbus.interfaces.cli.looping import with_bar

    given = call.arguments
    made = with_bar(call, "backing up", lambda bus, report: bus.backup(given.path, keep=given.keep, progress=report))
    return Said(made, made.path)


def backups(call: Call) -> Result:
    from agentbus.backups import list_backups

    found = list_backups(call.settings["url"])
    return Rows(found, ("path", "size:bytes", "created:time"), paged=False, people=_named, empty="there are no backups")


def _named(backup: dict[str, Any]) -> dict[str, Any]:
    """What people see: the name, by which it can be restored; the path would not fit."""
    name = backup["path"].rpartition("/")[2]
    return {"name": name, "size:bytes": backup["size"], "created:time": backup["created"]}


def restore(call: Call) -> Result:
    """Put a backup in the place of the bus; what was there is kept beside it."""
    import os

    from agentbus import restore_backup
    from agentbus.engine.places import server_url
    from agentbus.interfaces.cli.settings import place_of

    path: str = call.arguments.path
    if (server := server_url(call.settings["url"])) is not None:
        restore_backup(path, server)
    place = place_of(call.settings["url"])
    kept = os.path.join(place, "backups", path)
    if os.sep not in path and not os.path.exists(path) and os.path.exists(kept):
        path = kept
    directory = str(restore_backup(path, place))
    call.note("what was there is kept in backups/ as replaced-….db; what was running then counts as interrupted")
    return Said({"backup": os.path.abspath(path), "path": directory}, directory)


def doctor(call: Call) -> Result:
    """Without opening the bus: it may be one that cannot be opened."""
    import asyncio
    import os

    from msgspec.structs import replace

    import agentbus
    from agentbus.engine.places import server_url
    from agentbus.errors import NoBus
    from agentbus.interfaces.cli.settings import outgrown_by, place_of

    place = place_of(call.settings["url"])
    server = server_url(call.settings["url"])
    if server is None and not os.path.isdir(place):
        raise NoBus(path=place)
    checks = asyncio.run(agentbus.doctor(server or place, outgrown=outgrown_by(call.settings)))
    checks = [replace(check, text=typed(check.text), fix=check.fix and typed(check.fix)) for check in checks]
    sick = any(check.status == "error" for check in checks)
    columns = ("status:status", "name", "text", "fix")
    return Rows(checks, columns, paged=False, people=_diagnosis, code=FAILED if sick else 0)


def _diagnosis(check: dict[str, Any]) -> dict[str, Any]:
    """What people see: the fix, where there is one, below what it mends."""
    fix = f"\n→ {check['fix']}" if check["fix"] else ""
    return {"status:status": check["status"], "finding": f"{check['name']}: {check['text']}{fix}"}


def _cleanup(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--stale", type=minutes, metavar="MIN",
        help="first end, as failed, the sessions in which nobody did anything for so many minutes (paused ones stay)",
    )  # fmt: skip
    add("--failed-sessions", type=hours, metavar="H", help="let failed sessions go after so many hours")
    add("--keep-days", type=days, metavar="N", help="keep everything that is done for so many days only")
    add("--dry-run", action="store_true", help="only say what would go")


def _quotas(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("--depth", type=amount, metavar="N", help="so many messages may wait in one mailbox; `none` for any number")
    add("--rate", type=amount, metavar="N", help="so many messages a second may one agent send; `none` for any")
    add("--size", type=size, metavar="BYTES", help="a bus with so much in it takes no more messages (2GiB, `none`)")


_QUOTAS = ("depth", "rate", "size")


def _create(parser: ArgumentParser) -> None:
    parser.add_argument("path", nargs="?", help="a file that does not exist yet, or a directory (backups/ of the bus)")
    parser.add_argument(
        "--keep", type=int, default=10, metavar="N", help="in backups/, the newest so many stay (10)"
    )  # fmt: skip


def _restore(parser: ArgumentParser) -> None:
    parser.add_argument("path", help="the backup: a path, or a name that `backup list` shows")


COMMANDS = {
    "cleanup": Command(
        cleanup, "Archive what is done and old enough, then let it go; how long things are kept is the bus's policy,"
        " and what these options say for this time.", "agentbus cleanup --keep-days 7 --dry-run", _cleanup,
        output="plain output: by the first column\n  removed, kind, count\n  ended, session (with --stale)\n"
        "  left, session, why it was not ended\n  archive, path",
    ),
    "quotas": Command(
        quotas, "Show or set what one agent that has gone wild may take from the others; none is set at first.",
        "agentbus quotas --depth 10000 --rate 50", _quotas,
        output="plain output: name (depth, rate, size), what is allowed or none",
    ),
    "backup create": Command(
        create, "Make a verified copy of the bus while everybody works on.", "agentbus backup", _create,
        output="plain output: its path",
    ),
    "backup list": Command(
        backups, "List the backups of this bus, newest first.", "agentbus backup list",
        output="plain output: path, size, created",
    ),
    "backup restore": Command(
        restore, "Put a backup in the place of the bus, which nobody may have open. What was there is kept.",
        "agentbus backup restore bus-20260101T000000.000Z-1a2b3c4d.db", _restore,
        output="plain output: the directory of the bus",
    ),
    "doctor": Command(
        doctor, "Look whether everything is in order; changes nothing. Exit code 1 if something is wrong.",
        "agentbus doctor", output="plain output: status (ok, warning, error), name, text, fix",
    ),
}  # fmt: skip
