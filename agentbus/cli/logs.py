"""Structured logs of the commands that run for long: serve, monitor, worker and run. Their notes and their last error
are records too, so that every line on standard error is JSON."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from agentbus.core.logs import json_handler, log_settings

if TYPE_CHECKING:
    from agentbus.errors import AgentBusError

_NAME = "agentbus.cli"


def log_note(text: str) -> None:
    """Write a note of a command."""
    _write(logging.INFO, text.removeprefix("agentbus: "))


def log_error(error: AgentBusError, text: str) -> None:
    """Write the error that ends a command."""
    _write(logging.ERROR, text, error)


def _write(level: int, text: str, error: AgentBusError | None = None) -> None:
    least = log_settings()[1]
    if level < least:
        return
    record = logging.makeLogRecord({
        "name": _NAME, "levelno": level, "levelname": logging.getLevelName(level), "msg": text,
    })  # fmt: skip
    if error is not None:
        # Not an argument of the text: the text is complete.
        record.exc_info = (type(error), error, None)
    handler = json_handler(least)
    handler.handle(record)
