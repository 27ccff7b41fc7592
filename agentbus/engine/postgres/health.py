"""Health checks of a server and of the bus on it, also of a bus that is not open. They change nothing."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from functools import cache
from types import TracebackType
from typing import Any, TypeVar

import anyio.to_thread

from agentbus.core.clock import Clock, Now
from agentbus.core.files import EXPORT_PREFIX, find_abandoned
from agentbus.core.validation import OLD_TRANSACTION
from agentbus.engine.postgres.connection import migrations
from agentbus.engine.postgres.errors import STANDBY
from agentbus.engine.postgres.readers import Readers
from agentbus.engine.postgres.server import Address, ServerClock
from agentbus.errors import AgentBusError
from agentbus.operations.health import OpenTransaction, SkippedCheck
from agentbus.operations.protocol import Op
from agentbus.records import Check

_DURABILITY_SETTINGS = ("fsync", "full_page_writes")
"""Settings without which committed data may be lost."""
_CROWDED = 0.8
_DEAD = 100_000


async def examine(readers: Readers, address: Address) -> list[Check | SkippedCheck]:
    """Run every check that reads no data of the bus, or return why it could not run."""
    checks: list[Check | SkippedCheck] = []
    selected = _CHECKS
    try:
        ((_, name, encoding, follows, _, made, _),) = await readers.fetch("server_facts", address.schema)
    except AgentBusError as error:
        return [SkippedCheck("server", error)]
    if follows:
        checks.append(Check("server", "error", f"PostgreSQL {name}: {STANDBY}", "connect to the primary"))
    else:
        checks.append(Check("server", "ok", f"PostgreSQL {name}, {encoding}"))
    if not made:
        text = f"no bus in the schema {address.schema} of {address.shown}"
        checks.append(Check("schema", "error", text, "name another schema, or create a bus: agentbus init"))
        selected = {name: check for name, check in _CHECKS.items() if name not in _NEED_BUS}
    for name, check in selected.items():
        try:
            checks.append(Check(name, *(await check(readers))))
        except AgentBusError as error:
            checks.append(SkippedCheck(name, error))
    checks.append(await anyio.to_thread.run_sync(_orphans, address))
    return checks


Found = tuple[str, str, str | None]


async def _schema(readers: Readers) -> Found:
    ((found,),) = await readers.fetch("server_version")
    newest = max(migrations())
    if found != newest:
        fix = "upgrade agentbus" if found > newest else "open the bus, which migrates it"
        return "error", f"schema {found}, this agentbus uses {newest}", fix
    there = {f"{kind} {name}" for kind, name, _ in await readers.ask("schema_objects")}
    missing = [thing for thing in _made() if thing not in there]
    if missing:
        return "error", f"the tables were changed: missing: {', '.join(missing)}", "restore a backup: pg_restore"
    return "ok", f"schema {found}", None


@cache
def _made() -> list[str]:
    """Return the tables, indexes, triggers and functions that the migrations create."""
    made = re.compile(r"^CREATE (?:UNIQUE )?(TABLE|INDEX|TRIGGER|FUNCTION|SEQUENCE) (\w+)", re.MULTILINE)
    steps = "\n".join(sql for _, sql in sorted(migrations().items()))
    return [f"{kind.lower()} {name}" for kind, name in made.findall(steps)]


async def _guards(readers: Readers) -> Found:
    off = [name for (name,) in await readers.fetch("server_unguarded")]
    if off:
        text = f"triggers of {', '.join(off)} are disabled: foreign keys and types are not checked"
        return "error", text, "enable them (ALTER TABLE … ENABLE TRIGGER ALL) and check the rows written without them"
    unsound = [name for (name,) in await readers.fetch("server_unsound")]
    if unsound:
        text = f"invalid, or not validated for every row: {', '.join(unsound)}"
        return "error", text, "REINDEX the index; ALTER TABLE … VALIDATE CONSTRAINT"
    return "ok", "every constraint, trigger and index is enabled", None


async def _durability(readers: Readers) -> Found:
    off = [name for name in _DURABILITY_SETTINGS if await readers.fetch("server_setting", name) == [("off",)]]
    if off:
        text = f"{' and '.join(off)} is off: a power cut may lose committed data or corrupt the database"
        return "warning", text, "enable it for the server, the database and the user, unless this is a test"
    return "ok", "commits are flushed to disk", None


async def oldest(readers: Readers) -> OpenTransaction | None:
    """Return the longest open transaction that this user can see."""
    rows = await readers.fetch("server_oldest")
    return OpenTransaction(*rows[0]) if rows else None


async def _oldest(readers: Readers) -> Found:
    found = await oldest(readers)
    if found is not None and found.seconds >= OLD_TRANSACTION:
        return "warning", found.text, found.fix
    return "ok", "no long-running transaction", None


async def _connections(readers: Readers) -> Found:
    ((used, most),) = await readers.fetch("server_connections")
    if used >= most * _CROWDED:
        return "warning", f"{used} of {most} connections are in use", "raise max_connections, or open fewer buses"
    return "ok", f"{used} of {most} connections are in use", None


def _orphans(address: Address) -> Check:
    """Report leftovers of killed processes on this machine."""
    found = [str(path) for path in find_abandoned(address.directory / "archive", f"{EXPORT_PREFIX}*")]
    if found:
        text = f"left behind by a killed process: {', '.join(found[:5])}"
        return Check("orphans", "warning", text, "the next export removes it")
    return Check("orphans", "ok", "no leftover files")


async def _dead_rows(readers: Readers) -> Found:
    rows = await readers.fetch("server_dead_rows")
    live, dead = rows[0] if rows else (0, 0)
    if dead > _DEAD and dead > live:
        text = f"messages has {dead} dead rows and {live} live ones"
        return "warning", text, "check that autovacuum runs, or VACUUM the table"
    return "ok", f"messages has {dead} dead rows", None


_CHECKS: dict[str, Callable[[Readers], Awaitable[Any]]] = {
    "schema": _schema,
    "integrity": _guards,
    "durability": _durability,
    "transactions": _oldest,
    "connections": _connections,
    "dead rows": _dead_rows,
}
_NEED_BUS = {"schema", "integrity", "dead rows"}
"""Checks that need an existing bus."""


R = TypeVar("R")
T = TypeVar("T")
_CONNECT_TIMEOUT = 2.0
"""Seconds of retries while a server does not answer."""


class OfflinePostgres:
    """Read a bus in any state without opening it, for the length of a block."""

    process = 0
    home: str | None = None

    def __init__(self, address: Address, clock: Clock | None) -> None:
        self._address = address
        self._clock = clock or ServerClock()
        self._readers = Readers(address, _CONNECT_TIMEOUT, standby=True)

    async def __aenter__(self) -> OfflinePostgres:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._readers.close()

    async def check_health(self) -> list[Check | SkippedCheck]:
        if isinstance(self._clock, ServerClock):
            try:
                ((_, _, _, _, moment, *_),) = await self._readers.fetch("server_facts", self._address.schema)
            except AgentBusError as error:
                return [SkippedCheck("server", error)]
            self._clock.set(moment)
        return await examine(self._readers, self._address)

    async def sizes(self) -> tuple[int, int]:
        ((bytes,),) = await self._readers.fetch("server_size")
        return bytes, 0

    async def read_isolated(self, question: Callable[[R, Now], Op[T]], request: R) -> T:
        return await self._readers.answer(lambda: question(request, self._clock.now()))
