"""The server of a run: one of our own with fsync, or the one that ``AGENTBUS_BENCH_POSTGRES_URL`` names."""

from __future__ import annotations

import os
from functools import cache

from tests.support.postgres import Server


@cache
def url() -> str:
    given = os.environ.get("AGENTBUS_BENCH_POSTGRES_URL")
    if given:
        return given if "?" in given else f"{given}?"
    return Server(fsync="on", full_page_writes="on", shared_buffers="256MB", max_wal_size="4GB").url
