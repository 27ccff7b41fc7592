"""What the doctor asks of a server: whether it keeps its promises, and whether anything holds the bus up."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any

import anyio.to_thread

from agentbus.disk import EXPORTING, left_behind
from agentbus.engine.postgres.address import Address
from agentbus.engine.postgres.connection import migrations
from agentbus.engine.postgres.problems import STANDBY
from agentbus.engine.postgres.readers import Readers
from agentbus.errors import AgentBusError
from agentbus.limits import OLD_TRANSACTION
from agentbus.operations.examining import OpenTransaction, Unseen
from agentbus.records import Check

_KEEPING = ("fsync", "full_page_writes")
"""Settings without which what is committed may be lost."""
_CROWDED = 0.8
_DEAD = 100_000


async def examine(readers: Readers, address: Address) -> list[Check | Unseen]:
    """Every check that asks for nothing that the bus keeps, or why it could not be made."""
    checks: list[Check | Unseen] = []
    looks = _LOOKS
    try:
        ((_, name, encoding, follows, _, made, _),) = await readers.fetch("server_facts", address.schema)
    except AgentBusError as error:
        return [Unseen("server", error)]
    if follows:
        checks.append(Check("server", "error", f"PostgreSQL {name}: {STANDBY}", "name the server that it follows"))
    else:
        checks.append(Check("server", "ok", f"PostgreSQL {name}, {encoding}"))
    if not made:
        text = f"there is no bus in the schema {address.schema} of {address.shown}"
        checks.append(Check("schema", "error", text, "name another schema; agentbus.connect(…) makes a bus"))
        looks = {name: look for name, look in _LOOKS.items() if name not in _ASKING}
    for name, look in looks.items():
        try:
            checks.append(Check(name, *(await look(readers))))
        except AgentBusError as error:
            checks.append(Unseen(name, error))
    checks.append(await anyio.to_thread.run_sync(_orphans, address))
    return checks


Found = tuple[str, str, str | None]


async def _schema(readers: Readers) -> Found:
    ((found,),) = await readers.fetch("server_version")
    newest = max(migrations())
    if found != newest:
        fix = "upgrade agentbus" if found > newest else "open the bus: that brings it up to date"
        return "error", f"schema {found}, this agentbus uses {newest}", fix
    there = {f"{kind} {name}" for kind, name, _ in await readers.ask("schema_objects")}
    missing = [thing for thing in _made() if thing not in there]
    if missing:
        return "error", f"somebody changed the tables: missing: {', '.join(missing)}", "restore a backup: pg_restore"
    return "ok", f"schema {found}", None


@cache
def _made() -> list[str]:
    """The tables, indexes, triggers and functions that the migrations make."""
    made = re.compile(r"^CREATE (?:UNIQUE )?(TABLE|INDEX|TRIGGER|FUNCTION|SEQUENCE) (\w+)", re.MULTILINE)
    steps = "\n".join(sql for _, sql in sorted(migrations().items()))
    return [f"{kind.lower()} {name}" for kind, name in made.findall(steps)]


async def _guards(readers: Readers) -> Found:
    off = [name for (name,) in await readers.fetch("server_unguarded")]
    if off:
        text = f"triggers of {', '.join(off)} are switched off: foreign keys and types are not checked"
        return "error", text, "switch them on (ALTER TABLE … ENABLE TRIGGER ALL), and see what was written meanwhile"
    unsound = [name for (name,) in await readers.fetch("server_unsound")]
    if unsound:
        text = f"not usable, or not held against every row: {', '.join(unsound)}"
        return "error", text, "REINDEX the index; ALTER TABLE … VALIDATE CONSTRAINT"
    return "ok", "every constraint, trigger and index is in force", None


async def _durability(readers: Readers) -> Found:
    off = [name for name in _KEEPING if await readers.fetch("server_setting", name) == [("off",)]]
    if off:
        text = f"{' and '.join(off)} is off: a power cut may lose what was committed, or damage the database"
        return "warning", text, "switch it on, for the server, the database and the user, unless this is a test"
    return "ok", "what is committed is on the disk", None


async def oldest(readers: Readers) -> OpenTransaction | None:
    """The transaction that has been open for longest, as far as this user may see."""
    rows = await readers.fetch("server_oldest")
    return OpenTransaction(*rows[0]) if rows else None


async def _oldest(readers: Readers) -> Found:
    found = await oldest(readers)
    if found is not None and found.seconds >= OLD_TRANSACTION:
        return "warning", found.text, found.fix
    return "ok", "no transaction is open for long", None


async def _connections(readers: Readers) -> Found:
    ((used, most),) = await readers.fetch("server_connections")
    if used >= most * _CROWDED:
        return "warning", f"{used} of {most} connections are taken", "raise max_connections, or open fewer buses"
    return "ok", f"{used} of {most} connections are taken", None


def _orphans(address: Address) -> Check:
    """What was left behind on this machine by somebody who was killed."""
    found = [str(path) for path in left_behind(address.directory / "archive", f"{EXPORTING}*")]
    if found:
        text = f"left behind by somebody who is gone: {', '.join(found[:5])}"
        return Check("orphans", "warning", text, "the next export there removes it")
    return Check("orphans", "ok", "no files without an owner")


async def _dead_rows(readers: Readers) -> Found:
    rows = await readers.fetch("server_dead_rows")
    live, dead = rows[0] if rows else (0, 0)
    if dead > _DEAD and dead > live:
        text = f"messages has {dead} dead rows beside {live} live ones"
        return "warning", text, "see that autovacuum runs, or VACUUM the table"
    return "ok", f"messages has {dead} dead rows", None


_LOOKS: dict[str, Callable[[Readers], Awaitable[Any]]] = {
    "schema": _schema,
    "integrity": _guards,
    "durability": _durability,
    "transactions": _oldest,
    "connections": _connections,
    "dead rows": _dead_rows,
}
_ASKING = {"schema", "integrity", "dead rows"}
"""What there is to say only of a bus that is there."""
