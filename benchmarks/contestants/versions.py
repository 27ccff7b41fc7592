"""The versions of the compared packages and servers."""

from __future__ import annotations

import subprocess
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path

from benchmarks.contestants.servers import postgres_program, program

PACKAGES = (
    "asyncpg", "dbos", "dirq", "diskcache", "huey", "langgraph", "langgraph-checkpoint",
    "langgraph-checkpoint-postgres", "langgraph-checkpoint-sqlite", "litequeue", "nats-py", "persist-queue",
    "procrastinate", "psycopg", "redis",
)  # fmt: skip


@cache
def versions() -> dict[str, str]:
    """Return the versions of installed packages and servers."""
    found: dict[str, str] = {}
    for name in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    for path in (program("redis-server"), program("nats-server"), postgres_program()):
        if path is not None:
            found[path.name] = _version_of(path)
    return found


def _version_of(path: Path) -> str:
    output = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
    return output.stdout.strip()
