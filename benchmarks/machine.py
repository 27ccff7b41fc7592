"""Describe the machine of a run, without host or user names."""

from __future__ import annotations

import os
import platform
import sqlite3
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import aiosqlite

import agentbus
from agentbus.engine.sqlite.paths import filesystem

Machine = dict[str, str | int | float | None]
_IN_MEMORY = {"tmpfs", "ramfs"}


def describe(directory: Path) -> Machine:
    """Return the description of the machine; ``directory`` contains the databases."""
    return {
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 0,
        "processor": _processor(),
        "memory_gib": round(_memory() / 2**30),
        "system": f"{platform.system()} {platform.release().partition('-')[0]}",
        "file_system": filesystem_of(directory),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "sqlite": sqlite3.sqlite_version,
        "aiosqlite": aiosqlite.__version__,
        "agentbus": agentbus.__version__,
        "load_before": _load(),
    }


def sentence(about: Mapping[str, object]) -> str:
    """Format the description as one line."""
    return (
        f"{about['cores']} cores ({about['processor']}), {about['memory_gib']} GiB, {about['system']}, "
        f"{about['file_system']}, {about['python']}, SQLite {about['sqlite']}, aiosqlite {about['aiosqlite']}"
    )


def database_directory() -> Path:
    """Return a directory where fsync reaches a disk: the temporary one, unless it is in memory."""
    temporary = Path(tempfile.gettempdir())
    return Path.cwd() if filesystem_of(temporary) in _IN_MEMORY else temporary


def doubts(directory: Path) -> list[str]:
    """Return the reasons not to publish figures measured now."""
    found: list[str] = []
    if filesystem_of(directory) in _IN_MEMORY:
        found.append(f"{filesystem_of(directory)} is in memory; fsync has no cost there")
    load = _load()
    if load is not None and load > 0.5:
        found.append(f"other programs keep the machine busy (load {load:.1f})")
    return found


def filesystem_of(directory: Path) -> str:
    try:
        mounts = Path("/proc/self/mountinfo").read_text()
    except OSError:
        return "unknown file system"
    return filesystem(directory.resolve(), mounts) or "unknown file system"


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    except OSError:
        pass
    return platform.processor() or platform.machine() or sys.platform


def _memory() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        return 0


def _load() -> float | None:
    """Return the load average of the last minute."""
    try:
        return round(os.getloadavg()[0], 2)
    except OSError:
        return None
