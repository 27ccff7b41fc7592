"""The named queries of the SQLite engine, the schema that they are for, and which of them have to be fast."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path

import agentbus
from agentbus.engine.queries import load
from agentbus.engine.sqlite.connection import Connection, migrations
from agentbus.engine.sqlite.migration import build

PACKAGE = Path(agentbus.__file__).parent
QUERIES = load("sqlite")

# These run with every send, claim, acknowledgement or reply.
HOT = (
    "message_ready",
    "message_next",
    "mailbox_horizon",
    "message_rows",
    "message_held",
    "agent_statuses",
    "message_by_message_id",
    "reply_take",
    "message_lapsed",
    "message_promote",
    "message_expire",
    "message_lease",
    "message_ack",
    "message_start",
    "message_extend",
    "message_release",
    "message_dead_letter",
    "state_by_key",
    "state_values",
    "state_update",
    "history_by_name",
    "history_present",
    "history_touch",
    "history_replace",
    "history_items_oldest",
    "history_items_newest",
    "history_items_first",
    "history_items_last",
    "task_ready",
    "task_lease",
    "task_renew",
    "task_complete",
    "step_finish",
    "step_again",
    "step_fail",
    "step_interrupt",
)
# These run on the loop's own thread, where a scan would hold everybody up.
LOOKS = (
    "message_for_task",
    "signal_waiting",
    "agent_incarnation",
    "agent_mailboxes",
    "token_find",
    "state_value",
    "state_entry",
    "history_find",
    "history_get",
    "state_last_change",
    "state_next_expiry",
    "state_first_expiry",
    "agent_get",
    "session_get",
    "mailbox_pending",
    "meta_get",
    "recovery_beyond",
    "recovery_incomplete",
    "recovery_interrupted",
    "recovery_dead_holders",
    "recovery_history",
    "task_get",
    "task_ending",
    "task_held",
    "step_recorded",
    "approval_answer",
)
# These run with every step of a session, under the lock.
STEPS = (
    "session_owner",
    "session_interrupt",
    "session_trouble",
    "session_counts",
    "document_insert",
    "document_trim",
    "document_versions",
    "document_list",
    "participant_list",
    "participant_get",
    "participant_finish",
    "participant_of_session",
    "participant_clear",
    "document_newest",
    "document_forget",
    "document_copy",
    "agent_of_session",
    "agent_expect_again",
    "agent_cut_off",
    "session_causes",
    "session_expected",
    "checkpoint_newest_within",
    "state_there",
    "message_open_of",
    "message_still_open",
)


def schema() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:", isolation_level=None, factory=Connection)
    build(connection, [step for _, step in sorted(migrations().items())])
    return connection


def width(sql: str) -> int:
    return max((int(number) for number in re.findall(r"\?(\d+)", sql)), default=0)
