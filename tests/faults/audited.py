"""Fault tests watch messages by a trigger of their own. Their processes accept it, and no other foreign object."""

from __future__ import annotations

import sqlite3

from agentbus.engine.sqlite import connection as opening
from agentbus.engine.sqlite.paths import Home
from agentbus.errors import ForeignObjects

_refuse = opening.refuse_foreign


def accept_audit() -> None:
    """Open a bus in this process although it has the audit trigger."""
    opening.refuse_foreign = _refuse_others


def _refuse_others(connection: sqlite3.Connection, home: Home, version: int) -> None:
    try:
        _refuse(connection, home, version)
    except ForeignObjects as error:
        if error.objects != "trigger audit_messages":
            raise
