"""Which versions we are compared with."""

from __future__ import annotations

import subprocess
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path

from benchmarks.contestants.servers import postgres_program, program

PACKAGES = (
    "asyncpg", "dbos", "dirq", "diskcache", "huey", "litequeue", "nats-py", "persist-queue", "procrastinate", "psycopg",
    "redis",
)  # fmt: skip


@cache
def versions() -> dict[str, str]:
    """Of packages and servers, as far as they are here."""
    found: dict[str, str] = {}
    for name in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    for path in (program("redis-server"), program("nats-server"), postgres_program()):
        if path is not None:
            found[path.name] = _said(path)
    return found


def _said(path: Path) -> str:
    said = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
    return said.stdout.strip()
