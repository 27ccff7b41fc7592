"""The log of the engines, in a program that has one."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from logging import Logger


def engine_log() -> Logger | None:
    """The log, if the program uses logging at all: nobody would see what is written to another, and its import takes
    longer than a call of the command line has."""
    logging = sys.modules.get("logging")
    return None if logging is None else cast("Logger", logging.getLogger("agentbus.engine"))
