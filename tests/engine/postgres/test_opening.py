"""Opening a bus on a server: what can be wrong with the server and the user; and many who open at once."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import subprocess
import sys
import traceback
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import asyncpg
import pytest

import agentbus
from agentbus.api.maintenance.copy import copy_bus
from agentbus.engine.postgres import connection as connections
from agentbus.engine.postgres.connection import migrations
from agentbus.engine.postgres.server import parse
from agentbus.errors import (
    AccessDenied,
    AgentBusError,
    BackupFailed,
    LockTimeout,
    NotWritable,
    SchemaTooNew,
    ServerTooOld,
    ServerUnreachable,
    StatementTimeout,
    UnknownDatabase,
    UseServerTools,
)
from agentbus.operations.notifications import open_notifiers
from agentbus.sync.bus import open_store
from tests.support.guarded import SECRET, free_port, guarded_server, guest, run
from tests.support.postgres import Server, at_schema, server_url
from tests.support.zygote import Popen


@pytest.fixture(scope="module")
def guarded() -> Iterator[Server]:
    with guarded_server() as server:
        yield server


async def refused(url: str, kind: type[AgentBusError]) -> AgentBusError:
    """Opening this must fail like that, at once, and the password must be nowhere in what is said."""
    with pytest.raises(kind) as found:
        async with agentbus.connect(url):
            pass
    error = found.value
    shown = "".join(traceback.format_exception(error)) + repr(error.facts) + str(error.fix)
    assert SECRET not in shown
    return error


async def test_a_wrong_password_is_said_so(guarded: Server) -> None:
    error = await refused(guest(guarded, password="wrong-" + SECRET), AccessDenied)
    assert "password" in str(error)


async def test_a_user_without_permission_is_told_what_it_needs(guarded: Server) -> None:
    error = await refused(guest(guarded), AccessDenied)
    assert "CREATE" in str(error.fix)
    await asyncio.to_thread(run, guarded.url, "CREATE SCHEMA own AUTHORIZATION guest")
    async with agentbus.connect(guest(guarded, more="?schema=own")) as bus:
        assert (await bus.stats()).messages == {}


async def test_a_user_without_rights_on_a_bus_learns_which_are_needed(
    guarded: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with agentbus.connect(at_schema(guarded.url, "theirs")):
        pass
    await asyncio.to_thread(run, guarded.url, "CREATE SCHEMA bare")
    place = guest(guarded, more="?schema=theirs")
    for denied in (place, guest(guarded, more="?schema=bare")):
        assert "USAGE" in str((await refused(denied, AccessDenied)).fix)
    await asyncio.to_thread(run, guarded.url, "GRANT USAGE ON SCHEMA theirs TO guest")
    await refused(place, AccessDenied)
    await asyncio.to_thread(run, guarded.url, "GRANT ALL ON ALL TABLES IN SCHEMA theirs TO guest",
                            "GRANT ALL ON ALL SEQUENCES IN SCHEMA theirs TO guest")  # fmt: skip
    async with agentbus.connect(place) as bus, bus.agent("a", type="worker") as agent:
        await agent.send("a", "note", 1)
        await agent.send_many([("a", "note", 2), ("a", "note", 3)])
        assert (await bus.sweep()).findings == []
    later = {**connections.migrations(), max(connections.migrations()) + 1: "ALTER TABLE meta ADD COLUMN mood text"}
    monkeypatch.setattr(connections, "migrations", lambda: later)
    assert "only their owner" in str(await refused(place, AccessDenied))


async def test_a_database_that_is_not_there_is_said_so(guarded: Server) -> None:
    error = await refused(guest(guarded, database="nowhere"), UnknownDatabase)
    assert "nowhere" in str(error)
    assert "createdb" in str(error.fix)


async def test_no_server_is_said_so() -> None:
    await refused(f"postgresql://guest:{SECRET}@127.0.0.1:{free_port()}/x", ServerUnreachable)


async def test_a_host_that_does_not_exist_is_said_so() -> None:
    await refused(f"postgresql://guest:{SECRET}@host.invalid/x", ServerUnreachable)


async def test_a_server_that_is_too_old_is_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "OLDEST", 990000)
    error = await refused(url, ServerTooOld)
    assert "14" in str(error)


async def test_a_database_that_is_not_utf8_is_refused(schemas: Any) -> None:
    base = server_url()
    await asyncio.to_thread(
        run, base, "CREATE DATABASE latin ENCODING 'SQL_ASCII' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'"
    )
    await refused(base.replace("/postgres", "/latin"), ServerTooOld)


async def test_a_bus_of_a_newer_agentbus_is_refused(schemas: Any) -> None:
    place = at_schema(server_url(), "newer")
    async with agentbus.connect(place):
        pass
    await asyncio.to_thread(run, server_url(), "INSERT INTO newer.migrations VALUES (99)")
    error = await refused(place, SchemaTooNew)
    assert error.found == 99


async def test_the_password_is_in_no_log_and_no_status(
    guarded: Server, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    caplog.set_level(logging.DEBUG)
    await asyncio.to_thread(run, guarded.url, "CREATE SCHEMA IF NOT EXISTS quiet AUTHORIZATION guest")
    async with agentbus.connect(guest(guarded, more="?schema=quiet")) as bus:
        said = [str(check) for check in await bus.doctor()]
        said.append(repr(await bus.stats()))
        with pytest.raises(BackupFailed) as found:
            await bus.backup()
        said += [str(found.value), repr(bus), repr(bus._engine), repr(vars(bus._engine))]
    assert SECRET not in "".join(said) + caplog.text


async def test_a_backup_names_the_command_for_it(url: str, tmp_path: Path) -> None:
    async with agentbus.connect(url) as bus:
        with pytest.raises(UseServerTools, match="pg_dump --format=custom --schema="):
            await bus.backup(tmp_path / "with space.dump")
        await bus.declare(agentbus.pool("p"))


@pytest.mark.parametrize("name", ["MyBus", "select"])
async def test_a_schema_may_have_capitals_or_the_name_of_a_keyword(schemas: Any, name: str, tmp_path: Path) -> None:
    place = at_schema(server_url(), name)
    async with agentbus.connect(place) as bus, bus.agent("a", type="worker") as agent:
        await agent.send("a", "note", 1)
        assert (await bus.stats()).messages == {"queued": 1}
        assert [check for check in await bus.doctor() if check.status == "error"] == []

    def copied() -> int:
        with closing(open_store(place)) as source:
            return copy_bus(source, lambda: open_store(str(tmp_path / "copy"), create=True)).rows

    assert await asyncio.to_thread(copied) > 20


def test_a_backup_of_a_schema_with_capitals_quotes_it() -> None:
    assert """--schema='"MyBus"'""" in parse("postgresql://h/d?schema=MyBus").dump(None)


async def test_the_command_for_a_backup_works(url: str, tmp_path: Path) -> None:
    import shlex

    from tests.support.postgres import binaries

    async with agentbus.connect(url) as bus:
        await bus.declare(agentbus.pool("p"))
        with pytest.raises(UseServerTools) as found:
            await bus.backup(tmp_path / "bus.dump")
        program, *arguments = shlex.split(found.value.command)
        process = await asyncio.create_subprocess_exec(binaries() / program, *arguments)
        assert await process.wait() == 0
        assert (tmp_path / "bus.dump").stat().st_size > 1000


async def test_a_statement_that_takes_too_long_is_a_named_error(url: str) -> None:
    """The server's own limit, as an administrator sets it."""
    slow = url.replace("?", "?options=-c%20statement_timeout%3D100&", 1)
    async with agentbus.connect(url) as holder, agentbus.connect(slow, lock_timeout=5) as bus:
        connection = await asyncpg.connect(parse(url).dsn, server_settings={"search_path": parse(url).schema})
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute(_BUS_LOCK)
        try:
            with pytest.raises(StatementTimeout):
                await bus.declare(agentbus.pool("p"))
        finally:
            await transaction.rollback()
            await connection.close()
        # Nothing was written, and the bus continues.
        await bus.declare(agentbus.pool("q"))
        assert [event.subject async for event in holder.events()] == ["pool:q"]


_BUS_LOCK = "SELECT pg_advisory_xact_lock(hashtextextended('agentbus bus ' || current_schema(), 0))"


async def test_a_lock_that_is_not_to_be_had_is_a_named_error(url: str) -> None:
    async with agentbus.connect(url, lock_timeout=0.2) as bus:
        connection = await asyncpg.connect(parse(url).dsn, server_settings={"search_path": parse(url).schema})
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute(_BUS_LOCK)
        try:
            with pytest.raises(LockTimeout):
                await bus.declare(agentbus.pool("p"))
        finally:
            await transaction.rollback()
            await connection.close()
        await bus.declare(agentbus.pool("p"))


async def test_a_read_only_user_is_a_named_error(url: str) -> None:
    async with agentbus.connect(url):
        pass
    with pytest.raises(NotWritable):
        async with agentbus.connect(url.replace("?", "?options=-c%20default_transaction_read_only%3Don&", 1)):
            pass


async def test_what_is_promised_is_on_the_disk_whatever_the_habit_of_the_server(url: str) -> None:
    lazy = parse(url.replace("?", "?options=-c%20synchronous_commit%3Doff&", 1))
    for settings, habit in (({}, "off"), (connections.writing(1.0), "on")):
        connection = await connections.connect(lazy, settings)
        assert await connection.fetchval("SHOW synchronous_commit") == habit
        await connection.close()


async def test_a_server_whose_machine_is_gone_is_noticed(guarded: Server) -> None:
    connection = await connections.connect(parse(guest(guarded)))
    try:
        own = connection._transport.get_extra_info("socket")  # type: ignore[attr-defined]
        assert own.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert own.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT) == 3
    finally:
        await connection.close()


MANY = 8
_OPEN = """
import asyncio, sys, agentbus
async def main():
    async with agentbus.connect(sys.argv[1]) as bus:
        await bus.declare(agentbus.pool(f"p-{sys.argv[2]}"))
asyncio.run(main())
"""


async def test_processes_that_open_a_new_bus_at_once_all_succeed(schemas: Any, tmp_path: Path) -> None:
    place = at_schema(server_url(), "crowd")
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}
    processes = [
        Popen([sys.executable, "-c", _OPEN, place, str(number)], env=environment, stderr=subprocess.PIPE)
        for number in range(MANY)
    ]
    for process in processes:
        _, said = await asyncio.to_thread(process.communicate)
        assert process.returncode == 0, said.decode()
    async with agentbus.connect(place) as bus:
        assert len([event async for event in bus.events(kind="mailbox_declared")]) == MANY
    ((count,),) = (await asyncio.to_thread(run, server_url(), "SELECT count(*) FROM crowd.migrations"))[0]
    assert count == len(migrations())


async def test_a_bus_of_the_first_version_is_upgraded_with_all_that_is_in_it(schemas: Any) -> None:
    place = at_schema(server_url(), "upgraded")
    connection = await asyncpg.connect(server_url())
    try:
        await connection.execute("CREATE SCHEMA upgraded")
        await connection.execute("SET search_path TO upgraded")
        await connection.execute(connections.server_queries()["server_migrations"])
        await connection.execute(migrations()[1])
        await connection.execute("INSERT INTO migrations VALUES (1)")
        await connection.execute(
            "INSERT INTO sessions (id, operation, status, created, updated) VALUES ('s-1', 'planning', 'paused', 1, 2)"
        )
        await connection.execute(
            "INSERT INTO state (scope, key, version, change, checksum, created, updated, value)"
            " VALUES ('a', 'k', 1, 1, 2212294583, 1, 1, '1')"
        )
    finally:
        await connection.close()
    async with agentbus.connect(place) as bus:
        task = await bus.tasks.start("any", session="s-1")
        assert (task.status, task.session) == ("pending", "s-1")
        assert await bus.state("a").get("k") == 1
        await bus.quotas.change(thread=1)
        agent = await bus.register("a", type="worker")
        assert [(await agent.send("a", "note", correlation="t")).held for _ in range(2)] == [False, True]
        # What happened before the upgrade is not notified.
        await bus._engine.write(open_notifiers, ("ada/ops",))
        (notifier,) = await bus.notifications.list()
        assert (notifier.status, notifier.delivered) == ("idle", 0)
    ((newest,),) = (await asyncio.to_thread(run, server_url(), "SELECT max(version) FROM upgraded.migrations"))[0]
    assert newest == max(migrations())


@pytest.mark.usefixtures("url")
async def test_an_error_of_the_server_is_not_its_own_cause() -> None:
    with pytest.raises(asyncpg.InvalidCatalogNameError) as found:
        await connections.connect(parse(server_url().replace("/postgres", "/missing", 1)))
    assert found.value.__cause__ is None
