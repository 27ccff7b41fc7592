-- The tables of databases of other programs, whatever columns they have: read by their names.

-- name: tasks
-- Durable tasks of a custom workflow.
SELECT * FROM tasks;

-- name: checkpoints
-- The recorded steps of those tasks.
SELECT * FROM checkpoints;

-- name: coordination_sessions
-- Sessions of a custom coordination.
SELECT * FROM coordination_sessions;

-- name: agent_registry
-- Its agents.
SELECT * FROM agent_registry;

-- name: agent_state
-- Their state.
SELECT * FROM agent_state;

-- name: agent_checkpoints
-- Their checkpoints.
SELECT * FROM agent_checkpoints;

-- name: agent_messages
-- Their messages.
SELECT * FROM agent_messages;
