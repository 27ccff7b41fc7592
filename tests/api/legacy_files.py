"""Files and databases of hand-made coordination, for the tests of importing."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any


def write(path: Path, value: Any) -> Path:
    """A JSON file as scripts write them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=2))
    return path


def agent(id: str, **fields: Any) -> dict[str, Any]:
    """One agent as its own file has it."""
    return {
        "agent_id": id,
        "agent_name": f"Agent {id}",
        "agent_type": "milestone-planner",
        "parent_agent_id": "coord-001",
        "model": "opus",
        "prompt": "Plan the milestone.",
        "load_percentage": 40,
        "estimated_duration": 1800,
        "metadata": {"milestone": "ms-123"},
        "status": "completed",
        "pid": 4711,
        "started_at": "2024-01-15T10:30:05Z",
        "progress": 100,
        "created_at": "2024-01-15T10:30:00Z",
        "last_updated": "2024-01-15T11:00:00Z",
        **fields,
    }


def session(**fields: Any) -> dict[str, Any]:
    """current_session.json."""
    return {
        "session_id": "session-20240115",
        "start_time": "2024-01-15T10:00:00+00:00",
        "last_update": "2024-01-15T12:00:00+00:00",
        "status": "active",
        "current_meeting": {
            "team": "planning",
            "progress": 60,
            "current_agent": "risk-assessor",
            "agents_completed": ["scope-analyzer", "estimation-agent"],
        },
        "pending_actions": ["review the plan", {"action": "deploy"}],
        "active_agents": ["planner-1", "risk-assessor"],
        **fields,
    }


def workflow(path: Path) -> Path:
    """The database of a hand-made workflow: tasks with what their steps made, and checkpoints."""
    connection = sqlite3.connect(path)
    connection.executescript("""
        CREATE TABLE tasks (
            id TEXT PRIMARY KEY, request TEXT NOT NULL, status TEXT DEFAULT 'pending', workflow_state TEXT, plan TEXT,
            implementation TEXT, review TEXT, verification_result TEXT, approvals TEXT, error_details TEXT,
            retry_count INTEGER DEFAULT 0, created_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP, updated_at TIMESTAMP,
            workflow TEXT, priority TEXT
        );
        CREATE TABLE checkpoints (
            id INTEGER PRIMARY KEY AUTOINCREMENT, task_id TEXT REFERENCES tasks (id), phase TEXT, state TEXT,
            created_at TIMESTAMP
        );
        INSERT INTO tasks VALUES
            ('t-1', 'add a login', 'completed', '{"phase": "done"}', '{"steps": [1, 2]}', 'diff', 'fine',
             '{"ok": true}',
             '[{"by": "ann", "decision": "yes"}]', NULL, 0, '2024-01-15 10:00:00', '2024-01-15 11:00:00', NULL, NULL),
            ('t-2', 'fix it', 'failed', '{"phase": "review"}', NULL, NULL, NULL, NULL, '[]', 'boom', 3,
             '2024-01-15 12:00:00', '2024-01-15 12:30:00', NULL, NULL),
            ('t-3', 'make it fast', 'plan_awaiting_approval', NULL, '{"steps": [7]}', NULL, NULL, NULL,
             '[{"phase": "plan", "approver": "ann", "approved": true, "comment": "go on"}]', NULL, 0,
             '2024-01-15 12:00:00', '2024-01-15 12:30:00', 'feature', 'high'),
            ('4', 'never mind', 'cancelled', NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0,
             '2024-01-15 12:00:00', '2024-01-15 12:30:00', NULL, NULL);
        INSERT INTO checkpoints (task_id, phase, state, created_at) VALUES
            ('t-1', 'plan', '{"steps": [1]}', '2024-01-15 10:10:00'),
            ('t-1', 'plan', '{"steps": [1, 2]}', '2024-01-15 10:20:00'),
            ('t-2', 'review', 'no json', '2024-01-15 12:10:00');
    """)
    connection.close()
    return path


def coordination(path: Path) -> Path:
    """The database of hand-made coordination."""
    connection = sqlite3.connect(path)
    connection.executescript("""
        CREATE TABLE coordination_sessions (
            session_id TEXT PRIMARY KEY, operation_type TEXT, milestone_id TEXT, status TEXT, created_at TEXT,
            updated_at TEXT, metadata TEXT
        );
        CREATE TABLE agent_registry (
            agent_id TEXT PRIMARY KEY, agent_name TEXT, agent_type TEXT, session_id TEXT, parent_agent_id TEXT,
            status TEXT, pid INTEGER, capabilities TEXT, metadata TEXT, created_at REAL, last_heartbeat REAL
        );
        CREATE TABLE agent_messages (
            id INTEGER PRIMARY KEY, from_agent TEXT, to_agent TEXT, message_type TEXT, payload TEXT, priority TEXT,
            status TEXT, session_id TEXT, created_at INTEGER, processed_at INTEGER, error TEXT
        );
        CREATE TABLE agent_state (
            agent_id TEXT, state_key TEXT, state_value TEXT, state_type TEXT, updated_at INTEGER,
            PRIMARY KEY (agent_id, state_key)
        );
        CREATE TABLE agent_checkpoints (
            checkpoint_id INTEGER PRIMARY KEY, agent_id TEXT, session_id TEXT, checkpoint_name TEXT, data TEXT,
            created_at TEXT
        );
        INSERT INTO coordination_sessions VALUES
            ('plan-1', 'planning', 'ms-123', 'active', '2024-01-15 10:00:00', '2024-01-15 10:30:00', '{"by": "ann"}'),
            ('plan-0', 'planning', NULL, 'completed', '2024-01-14 10:00:00', '2024-01-14 11:00:00', NULL);
        INSERT INTO agent_registry VALUES
            ('coord-1', 'The coordinator', 'milestone-coordinator', 'plan-1', NULL, 'running', 12, '["plan","sql"]',
             '{}', 1705312800.5, 1705313000),
            ('exec-1', NULL, 'code-monkey', 'plan-1', 'coord-1', 'completed', NULL, NULL, 'no json', 1705312800, NULL);
        INSERT INTO agent_messages VALUES
            (1, 'coord-1', 'exec-1', 'task_assignment', '{"phase": "design"}', 'high', 'processed', 'plan-1',
             1705312900, 1705312950, NULL),
            (2, 'coord-1', 'exec-1', 'shout', 'hello', '9', 'pending', 'plan-1', 1705312901000, NULL, NULL),
            (3, 'exec-1', 'coord-1', 'error_report', '{"why": 1}', NULL, 'failed', NULL, 1705312902, NULL, 'too late'),
            (4, 'coord-1', NULL, 'note', '1', NULL, 'pending', NULL, 1705312903, NULL, NULL);
        INSERT INTO agent_state VALUES
            ('exec-1', 'scope', '{"files": 12}', 'progress', 1705312900),
            ('exec-1', 'x', 'plain', 'whatever', 1705312900);
        INSERT INTO agent_checkpoints VALUES
            (7, 'exec-1', 'plan-1', 'half', '{"step": 2}', '2024-01-15 10:20:00'),
            (8, 'exec-1', 'plan-1', 'half', '{"step": 1}', '2024-01-15 10:10:00');
    """)
    connection.close()
    return path
