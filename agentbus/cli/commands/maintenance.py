"""Maintenance: cleanup, quotas, backups, doctor, import, export and copy."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import to_builtins
from msgspec.structs import replace

from agentbus.cli.arguments import amount, days, hours, minutes, size
from agentbus.cli.context import Call, Command
from agentbus.cli.errors import DONE, FAILED
from agentbus.cli.operators import AgentsCannotDecide, caller
from agentbus.cli.output import PLAIN, Done, One, PlainFormat, Result, Rows, plain
from agentbus.cli.views import Fields, Part, Sections, progress_bar
from agentbus.errors import PlanOutdated, WrongState

if TYPE_CHECKING:
    from agentbus import Bus, RetentionPolicy
    from agentbus.engine.blocking import BlockingEngine
    from agentbus.records import CopyReport, ImportReport


def quotas(call: Call) -> Result:
    """Set the quotas that are given, and print all."""
    from agentbus.cli.async_runner import on_bus

    given = {name: getattr(call.arguments, name) for name in _QUOTAS}
    changes = {name: None if value == "none" else value for name, value in given.items() if value is not None}
    agent = call.settings.text("agent")
    if changes and agent is not None:
        raise AgentsCannotDecide(agent=agent.partition("#")[0], action="change quotas")
    by = caller(call) if changes else None
    found = on_bus(call, lambda bus: bus.quotas.change(by=by, **changes) if changes else bus.quotas.policy())
    shown = {name: "none" if (quota := getattr(found, name)) is None else f"{quota:.15g}" for name in _QUOTAS}
    return One(found, shown=shown)


def create(call: Call) -> Result:
    from agentbus.cli.async_runner import with_bar

    given = call.arguments
    made = with_bar(call, "backing up", lambda bus, report: bus.backup(given.path, keep=given.keep, progress=report))
    return Done(made, f"saved a backup as {made.path}", made.path)


def backups(call: Call) -> Result:
    from agentbus.api.maintenance.backup import list_backups

    found = list_backups(call.settings["url"])
    return Rows(found, ("path", "size:bytes", "created:time"), paged=False, terminal=_named, empty="no backups")


def _named(backup: dict[str, Any]) -> dict[str, Any]:
    """Return the columns of a terminal: the name, which restore accepts, instead of the long path."""
    name = backup["path"].rpartition("/")[2]
    return {"name": name, "size:bytes": backup["size"], "created:time": backup["created"]}


def restore(call: Call) -> Result:
    """Replace the bus by a backup. The replaced bus is stored in backups/."""
    import os

    from agentbus import restore_backup
    from agentbus.cli.context import location_of
    from agentbus.engine.url import server_url

    path: str = call.arguments.path
    if (server := server_url(call.settings["url"])) is not None:
        restore_backup(path, server)
    home = location_of(call.settings["url"])
    kept = os.path.join(home, "backups", path)
    if os.sep not in path and not os.path.exists(path) and os.path.exists(kept):
        path = kept
    directory = str(restore_backup(path, home))
    call.note(
        "the replaced bus is in backups/ as replaced-….db; work that ran at the time of the backup is interrupted"
    )
    return Done({"backup": os.path.abspath(path), "path": directory}, f"replaced the bus in {directory}", directory)


def doctor(call: Call) -> Result:
    """Check the bus without opening it: it may be one that cannot be opened."""
    import asyncio
    import os

    import agentbus
    from agentbus.cli.context import capacity_bounds, location_of
    from agentbus.engine.url import server_url
    from agentbus.errors import NoBus

    home = location_of(call.settings["url"])
    server = server_url(call.settings["url"])
    if server is None and not os.path.isdir(home):
        raise NoBus(path=home)
    checks = asyncio.run(agentbus.doctor(server or home, outgrown=capacity_bounds(call.settings)))
    failed = any(check.status == "error" for check in checks)
    columns = ("status:status", "name", "text", "fix")
    return Rows(checks, columns, paged=False, terminal=_diagnosis, code=FAILED if failed else 0)


def _diagnosis(check: dict[str, Any]) -> dict[str, Any]:
    """Return the columns of a terminal: the fix below the finding."""
    fix = f"\n→ {check['fix']}" if check["fix"] else ""
    return {"status:status": check["status"], "finding": f"{check['name']}: {check['text']}{fix}"}


def _cleanup(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--stale", type=minutes, metavar="MIN",
        help="first mark failed the sessions without activity for this number of minutes (not paused ones)",
    )  # fmt: skip
    add("--failed-sessions", type=hours, metavar="H", help="delete failed sessions older than this number of hours")
    add("--keep-days", type=days, metavar="N", help="delete finished data older than this number of days")
    add("--histories", type=days, metavar="N", help="delete histories not written for this number of days")
    add("--dry-run", action="store_true", help="only show what would be deleted")


def _quotas(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("--depth", type=amount, metavar="N", help="maximum number of messages in one mailbox, or none")
    add("--rate", type=amount, metavar="N", help="maximum number of messages per second from one agent, or none")
    add("--size", type=size, metavar="BYTES", help="size at which the bus rejects new messages (2GiB), or none")
    add(
        "--thread", type=amount, metavar="N",
        help="maximum number of messages of agents in one thread without progress, or none (default 100)",
    )  # fmt: skip
    add("--by", metavar="NAME", help="the person who changes them (default: AGENTBUS_OPERATOR, or the user account)")


_QUOTAS = ("depth", "rate", "size", "thread")


def _create(parser: ArgumentParser) -> None:
    parser.add_argument("path", nargs="?", help="a new file, or a directory (default: backups/ of the bus)")
    parser.add_argument(
        "--keep", type=int, default=10, metavar="N", help="number of backups to keep in backups/ (default 10)"
    )  # fmt: skip


def _restore(parser: ArgumentParser) -> None:
    parser.add_argument("path", help="the backup: a path, or a name from agentbus backup list")


_DAY = 24 * 3600
_FOR_DAYS = ("messages", "dead_letters", "agents", "sessions", "tasks", "events", "processes", "tombstones")


def cleanup(call: Call) -> Result:
    given = call.arguments
    ended: list[str] = []
    left: dict[str, str] = {}

    async def work(bus: Bus) -> Any:
        policy = _policy(await bus.retention.policy(), given.failed_sessions, given.keep_days, given.histories)
        if given.stale is not None:
            await _end_stale(bus, given.stale, given.dry_run, ended, left)
        if given.dry_run:
            return await bus.retention.apply(dry_run=True, policy=policy)
        with progress_bar("cleaning up", call) as report:
            return await bus.retention.apply(policy=policy, progress=report)

    from agentbus.cli.async_runner import on_bus

    found = on_bus(call, work)
    removed = [{"kind": kind, "count": count} for kind, count in found.removed.items()]
    would = "would be " if given.dry_run else ""
    archive = {} if found.archive is None else {"path": found.archive, "bytes": found.archive_bytes}
    return Sections(
        {**to_builtins(found), "ended": ended, "left": left},
        Part("ended", f"sessions that {would or 'were '}ended", ("session",), [{"session": name} for name in ended]),
        Part(
            "left", "stale sessions that were not ended", ("session", "why"),
            [{"session": name, "why": why} for name, why in left.items()],
        ),
        Part("removed", f"{would}removed", ("kind", "count"), removed),
        Fields("archive", "archive", archive, {"bytes": "bytes"}),
        empty=None if removed or ended else "nothing to delete",
    )  # fmt: skip


def _policy(
    policy: RetentionPolicy, failed_sessions: float | None, keep_days: float | None, histories: float | None
) -> RetentionPolicy:
    """Return the policy of the bus, with the options of this run."""
    changes: dict[str, Any] = {}
    if keep_days is not None:
        seconds = keep_days * _DAY
        changes = dict.fromkeys(_FOR_DAYS, seconds)
        changes["checkpoints_daily"] = int(keep_days)
    if failed_sessions is not None:
        changes["failed_sessions"] = failed_sessions * 3600
    if histories is not None:
        changes["histories"] = histories * _DAY
    return replace(policy, **changes)


async def _end_stale(bus: Bus, minutes: float, dry_run: bool, ended: list[str], left: dict[str, str]) -> None:
    """Abandon sessions without activity, except those with a live process."""
    if not dry_run:
        await bus.sweep()
    for session in await bus.sessions.stale(minutes):
        if session.status == "paused":
            left[session.id] = "it is paused"
            continue
        plan = await bus.recovery.plan(session.id)
        if plan.record.at_work or (session.status == "active" and plan.record.owned):
            left[session.id] = f"{', '.join(plan.record.at_work[:3]) or 'its process'} is live"
            continue
        try:
            if not dry_run:
                await plan.abandon(f"no activity for {minutes:g} minutes")
        except (PlanOutdated, WrongState) as error:
            left[session.id] = str(error.args[0])
        else:
            ended.append(session.id)


def import_(call: Call) -> Result:
    """Import the data at a path."""
    from agentbus.cli.async_runner import with_bar

    path = call.arguments.path
    return Imported(with_bar(call, "importing", lambda bus, report: bus.import_path(path, progress=report)))


def export(call: Call) -> Result:
    """Write the bus, or a session, to a file."""
    from agentbus.cli.async_runner import with_bar

    given = call.arguments
    made = with_bar(
        call, "exporting", lambda bus, report: bus.export(given.path, session=given.session, progress=report)
    )
    return Done(made, f"exported to {made.path}", made.path)


_IMPORTED = ("what", "of", "count", "why")


class Imported(Result):
    """The report of an import. It failed if rows were rejected and none was imported or present."""

    def __init__(self, report: ImportReport) -> None:
        self._report = report
        self.code = FAILED if report.refused and not report.imported and not report.present else DONE

    def data(self) -> Any:
        return msgspec.to_builtins(self._report)

    def lines(self, form: PlainFormat = PLAIN) -> list[str]:
        return form.headed(_IMPORTED, ["\t".join(plain(value) for value in row) for row in self._rows()])

    def show(self) -> None:
        from agentbus.cli.rich_output import table

        columns = tuple(zip(_IMPORTED, ("", "prose", "", "reason"), strict=True))
        rows = [dict(zip(_IMPORTED, row, strict=True)) for row in self._rows()]
        table(columns, rows, "nothing to import", None)
        hidden = self._report.refused + self._report.changed - len(self._report.problems)
        if hidden > 0:
            print(f"and {hidden} more rejected or changed")

    def _rows(self) -> Iterator[tuple[str, str | None, int, str | None]]:
        report = self._report
        for kind, count in report.imported.items():
            yield "imported", kind, count, None
        if report.present:
            yield "present", None, report.present, None
        for what, count in (("refused", report.refused), ("changed", report.changed)):
            if count:
                yield what, None, count, None
        for problem in report.problems:
            yield "changed" if problem.taken else "refused", problem.file or report.path, problem.line, problem.reason


def _import(parser: ArgumentParser) -> Any:
    parser.add_argument("path", metavar="PATH", help="a directory, a JSON file, an SQLite database, or an archive")


def _export(parser: ArgumentParser) -> Any:
    parser.add_argument("path", metavar="PATH", help="a new file, or a directory")
    parser.add_argument("--session", metavar="ID", help="only this session, with its agents and their data")


_NOT_COPIED = ("archive", "backups", "agentbus.toml")
"""Files of a bus in a directory that are not part of the bus itself."""


def copy(call: Call) -> Result:
    """Copy a bus, or resume an interrupted copy."""
    import os
    from contextlib import closing
    from shlex import quote

    from agentbus.api.maintenance.copy import copy_bus

    given = call.arguments
    with closing(_open_store(call, given.source)) as source, progress_bar("copying", call) as report:
        made = copy_bus(source, lambda: _open_store(call, given.target, create=True), report)
    if made.resumed:
        call.note("an interrupted copy was resumed")
    call.note(f"{made.source} is unchanged; to use the copy: export AGENTBUS_URL={quote(made.target)}")
    left = [name for name in _NOT_COPIED if os.path.exists(os.path.join(made.source, name))]
    if left:
        call.note(f"not copied: {', '.join(left)}")
    return Copied(made)


def _open_store(call: Call, url: str, *, create: bool = False) -> BlockingEngine:
    from agentbus.sync.bus import open_store

    settings = call.settings
    return open_store(
        url, create=create, durability=settings["durability"], lock_timeout=settings["lock_timeout"]
    )  # fmt: skip


class Copied(Result):
    """The tables, which are equal in both."""

    def __init__(self, report: CopyReport) -> None:
        self._report = report
        self._tables = report.tables

    def data(self) -> Any:
        return msgspec.to_builtins(self._report)

    def lines(self, form: PlainFormat = PLAIN) -> list[str]:
        rows = [(table.name, table.rows, table.checksum) for table in self._tables]
        return form.headed(("table", "rows", "checksum"), ["\t".join(map(plain, row)) for row in rows])

    def show(self) -> None:
        from agentbus.cli.rich_output import table

        columns = [("table", ""), ("rows", ""), ("checksum of both", "")]
        rows = [{"table": one.name, "rows": f"{one.rows:,}", "checksum of both": one.checksum} for one in self._tables]
        table(columns, rows, "", None)


def _copy(parser: ArgumentParser) -> Any:
    parser.add_argument("source", metavar="FROM", help="the bus: its directory, or postgresql://…")
    parser.add_argument("target", metavar="TO", help="a new or empty bus: a directory, or postgresql://…")


COMMANDS = {
    "cleanup": Command(
        cleanup, "Archive and delete old finished data, by the retention policy of the bus and these options.",
        "agentbus cleanup --keep-days 7 --dry-run", _cleanup,
        output="plain output: by the first column\n  removed, kind, count\n  ended, session (with --stale)\n"
        "  left, session, why (it was not ended)\n  archive, name (path, bytes), value",
        columns=True,
    ),
    "quotas": Command(
        quotas, "Show or set quotas, which keep a runaway agent from starving the others. By default only --thread is"
        " set. Agents cannot change them.",
        "agentbus quotas --depth 10000 --rate 50", _quotas,
        output="plain output: name (depth, rate, size, thread), value (or none)", columns=True,
    ),
    "backup create": Command(
        create, "Make a verified copy of the bus while it is in use.", "agentbus backup", _create,
        output="plain output: its path",
    ),
    "backup list": Command(
        backups, "List the backups of this bus, newest first.", "agentbus backup list",
        output="plain output: path, size, created", columns=True,
    ),
    "backup restore": Command(
        restore, "Replace the bus by a backup. No process may have it open. The replaced bus is stored in backups/.",
        "agentbus backup restore bus-20260101T000000.000Z-1a2b3c4d.db", _restore,
        output="plain output: the directory of the bus",
    ),
    "doctor": Command(
        doctor, "Check the bus for problems. Changes nothing. Exit code 1 if there is an error.",
        "agentbus doctor", output="plain output: status (ok, warning, error), name, text, fix", columns=True,
    ),
    "import": Command(
        import_,
        "Import existing data: directories of JSON files, SQLite databases, archives of a bus.",
        "agentbus import ./coordination",
        _import,
        output="plain output: what (imported, present, refused or changed), of (kind or file), count (or line), why",
        columns=True,
    ),
    "export": Command(
        export,
        "Write the bus, or one session, to a file that import reads.",
        "agentbus export planning-001.jsonl.gz --session planning-001",
        _export,
        output="plain output: its path",
    ),
    "copy": Command(
        copy, "Copy a bus to another location, between files and servers, and compare the two. No process may have it"
        " open. The source is unchanged. Run it again to resume an interrupted copy.",
        "agentbus copy .agentbus postgresql://me@server/agents", _copy,
        output="plain output: table, rows, checksum", columns=True,
    ),
}  # fmt: skip
