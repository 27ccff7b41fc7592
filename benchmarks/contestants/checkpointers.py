"""Checkpointers of LangGraph: ours, and those of its makers on SQLite and PostgreSQL if installed (extra ``bench``)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, Protocol

import agentbus
from benchmarks.contestants import servers
from benchmarks.contestants.queues.postgres import schema_url

CONNECTIONS = 16
"""Connections of the pool of the makers' saver on PostgreSQL."""


class Contestant(Protocol):
    @property
    def key(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def durability(self) -> str: ...
    def missing(self) -> str | None: ...
    def open(self, directory: Path) -> Any: ...


def installed(name: str) -> bool:
    """Return True if a module can be imported; also if its package is missing."""
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def _missing(module: str, package: str, *, server: bool = False) -> str | None:
    if not installed(module):
        return f"{package} is not installed"
    return None if not server or servers.has_postgres() else "postgres not found"


@dataclass(frozen=True)
class AgentBus:
    """AgentBusSaver on a bus with default options."""

    key: str
    title: str
    durability: str
    mode: Literal["disk", "process"] = "disk"
    server: bool = False

    def missing(self) -> str | None:
        return _missing("langgraph.checkpoint.base", "langgraph-checkpoint", server=self.server)

    @asynccontextmanager
    async def open(self, directory: Path) -> AsyncIterator[Any]:
        saver = import_module("agentbus.integrations.langgraph").AgentBusSaver
        url = schema_url(directory) if self.server else directory / "bus"
        async with agentbus.connect(url, durability=self.mode) as bus:
            yield saver(bus)


@dataclass(frozen=True)
class SqliteSaver:
    """AsyncSqliteSaver as its documentation shows it."""

    key: str = "sqlite-saver"
    title: str = "AsyncSqliteSaver"
    durability: str = "disk: every call is a commit, which is fsynced (WAL, synchronous=FULL: its defaults)"

    def missing(self) -> str | None:
        return _missing("langgraph.checkpoint.sqlite", "langgraph-checkpoint-sqlite")

    @asynccontextmanager
    async def open(self, directory: Path) -> AsyncIterator[Any]:
        module = import_module("langgraph.checkpoint.sqlite.aio")
        async with module.AsyncSqliteSaver.from_conn_string(str(directory / "checkpoints.sqlite")) as saver:
            await saver.setup()
            yield saver


@dataclass(frozen=True)
class PostgresSaver:
    """AsyncPostgresSaver on a pool of connections, as its documentation recommends."""

    key: str = "postgres-saver"
    title: str = "AsyncPostgresSaver"
    durability: str = "disk: every call is a commit, which is flushed"

    def missing(self) -> str | None:
        return _missing("langgraph.checkpoint.postgres", "langgraph-checkpoint-postgres", server=True)

    @asynccontextmanager
    async def open(self, directory: Path) -> AsyncIterator[Any]:
        saver = import_module("langgraph.checkpoint.postgres.aio").AsyncPostgresSaver
        psycopg = import_module("psycopg")
        url, _, schema = schema_url(directory).partition("&schema=")
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
            await connection.execute(f'CREATE SCHEMA "{schema}"')
        options = {
            "autocommit": True,
            "prepare_threshold": 0,
            "row_factory": import_module("psycopg.rows").dict_row,
            "options": f"-c search_path={schema}",
        }
        pool = import_module("psycopg_pool").AsyncConnectionPool
        async with pool(url, min_size=CONNECTIONS, max_size=CONNECTIONS, kwargs=options, open=False) as connections:
            found = saver(connections)
            await found.setup()
            yield found


OURS = AgentBus("agentbus", "agentbus", "disk: every call is fsynced (many in one commit)")
PROCESS = AgentBus("agentbus-process", "agentbus, durability=process", "process: nothing is fsynced", "process")
ON_SERVER = AgentBus(
    "agentbus-postgres", "agentbus, PostgreSQL", "disk: every call is flushed (many in one commit)", server=True
)
CONTESTANTS: tuple[Contestant, ...] = (OURS, PROCESS, SqliteSaver(), ON_SERVER, PostgresSaver())


def unavailable() -> list[str]:
    """Return a note for each contestant that is left out."""
    return [f"{one.title} was left out: {why}." for one in CONTESTANTS if (why := one.missing()) is not None]
