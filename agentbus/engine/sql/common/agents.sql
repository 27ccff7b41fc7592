-- name: listener_insert
-- A process wants to be rung for a channel.
INSERT INTO listeners (channel, process) VALUES ($1, $2) ON CONFLICT DO NOTHING;

-- name: listener_delete
-- A process no longer wants to be rung for a channel.
DELETE FROM listeners WHERE channel = $1 AND process = $2;

-- name: agent_names
-- Agents that could be meant by a misspelt name.
SELECT id FROM agents ORDER BY updated DESC LIMIT 1000;

-- name: agent_status
-- How an agent stands, its session, and where it lives.
SELECT agents.id, agents.status, agents.session, processes.id, processes.host, processes.pid, processes.started, processes.bell
FROM agents LEFT JOIN processes ON processes.id = agents.process
WHERE agents.id = $1;

-- name: agent_life
-- An agent's epoch and own mailboxes.
SELECT epoch, mailbox, replies, session FROM agents WHERE id = $1;

-- name: agent_mailboxes
-- The pools and subscriptions that an agent reads.
SELECT mailboxes.kind, mailboxes.name, mailboxes.id
FROM pool_members JOIN mailboxes ON mailboxes.id = pool_members.pool
WHERE pool_members.agent = $1
UNION ALL
SELECT mailboxes.kind, mailboxes.name, mailboxes.id
FROM subscriptions JOIN mailboxes ON mailboxes.id = subscriptions.mailbox
WHERE subscriptions.agent = $1;

-- name: agent_register
-- Start a life of an agent, or announce it ($12 is 1 or 0, what is added to its epoch; one that was deleted goes on
-- counting where it was). What the profile leaves open stays as it was; $24 is the patience of one that never had any.
INSERT INTO agents (
    id, type, kind, session, process, status, created, started, updated, last_call, mailbox, replies, epoch,
    name, milestone, parent, capabilities, model, prompt, load, estimate, metadata, patience, busy_until
)
VALUES (
    $1, $2, $3, $4, $5, $6, $7, $8, $7, $9, $10, $11, $12 + (SELECT epoch FROM mailboxes WHERE id = $10),
    coalesce($13, $1), $14, $15, coalesce($16, '[]'), $17, $18, $19, $20, coalesce($21, '{}'),
    coalesce(CAST($22 AS bigint), $24), $23
)
ON CONFLICT (id) DO UPDATE SET
    type = excluded.type,
    kind = excluded.kind,
    session = excluded.session,
    process = excluded.process,
    status = excluded.status,
    started = coalesce(excluded.started, agents.started),
    updated = excluded.updated,
    last_call = excluded.last_call,
    epoch = agents.epoch + $12,
    name = coalesce($13, agents.name),
    milestone = coalesce($14, agents.milestone),
    parent = coalesce($15, agents.parent),
    capabilities = coalesce($16, agents.capabilities),
    model = coalesce($17, agents.model),
    prompt = coalesce($18, agents.prompt),
    load = coalesce($19, agents.load),
    estimate = coalesce($20, agents.estimate),
    metadata = coalesce($21, agents.metadata),
    patience = coalesce($22, agents.patience, $24),
    progress = 0,
    cut_off = CASE WHEN $12 = 1 THEN 0 ELSE agents.cut_off END,
    note = NULL,
    busy_until = excluded.busy_until,
    error = NULL,
    evidence = NULL,
    ended = NULL;

-- name: agent_join_session
-- An agent takes part in another session.
UPDATE agents SET session = $1, updated = $2 WHERE id = $3;

-- name: agent_expect_again
-- The agents of a session that failed, or stopped though nobody meant them to, are expected to come back: by $4 (awake),
-- unless that is NULL.
UPDATE agents SET
    status = CASE WHEN CAST($4 AS bigint) IS NULL THEN 'pending' ELSE 'spawning' END,
    process = NULL, last_call = $3, busy_until = $4, updated = $1, ended = NULL, error = NULL, evidence = NULL
WHERE session = $2 AND (status = 'failed' OR (status = 'stopped' AND cut_off <> 2))
RETURNING id;

-- name: agent_cut_off
-- Whether the last life that an agent began did not complete.
SELECT cut_off FROM agents WHERE id = $1;

-- name: agent_of_session
-- The agents of a session, each with its newest checkpoint of it, and whether it was stopped on purpose.
SELECT id, type, status, epoch, progress, note, error,
    (SELECT max(id) FROM checkpoints WHERE owner_kind = 'agent' AND owner = agents.id AND session = $1),
    CASE WHEN cut_off = 2 THEN 1 ELSE 0 END
FROM agents
WHERE agents.session = $1
ORDER BY id;

-- name: agent_update
-- Change what an agent says of itself; NULL leaves what is there.
UPDATE agents SET
    name = coalesce($1, name),
    milestone = coalesce($2, milestone),
    parent = coalesce($3, parent),
    capabilities = coalesce($4, capabilities),
    model = coalesce($5, model),
    prompt = coalesce($6, prompt),
    load = coalesce($7, load),
    estimate = coalesce($8, estimate),
    metadata = coalesce($9, metadata),
    patience = coalesce($10, patience),
    updated = $11
WHERE id = $12
RETURNING id;

-- name: agent_end
-- An agent completed, failed or stopped; on which evidence, if it was judged.
UPDATE agents SET
    status = $1, error = $2, ended = $3, updated = $3, busy_until = NULL, evidence = $4,
    cut_off = CASE WHEN status IN ('pending', 'spawning') THEN cut_off WHEN $1 = 'completed' THEN 0 ELSE 1 END
WHERE id = $5;

-- name: agent_dismiss
-- An agent was stopped on purpose.
UPDATE agents SET cut_off = 2 WHERE id = $1 AND cut_off = 1;

-- name: agent_ending
-- How an agent stands, and why, if it has ended.
SELECT id, status, error FROM agents WHERE id = $1;

-- name: agent_suspect
-- Something speaks against an agent.
UPDATE agents SET status = 'suspect', evidence = $1, updated = $2 WHERE id = $3;

-- name: agent_recover
-- A suspect agent showed life.
UPDATE agents SET status = 'running', evidence = NULL, last_call = $1, updated = $2 WHERE id = $3;

-- name: agent_suspects
-- The suspect agents of a process.
SELECT id, epoch, evidence FROM agents WHERE process = $1 AND status = 'suspect' AND ended IS NULL;

-- name: agent_absent
-- Agents that somebody started, and whose time to register is over.
SELECT id, last_call, busy_until FROM agents
WHERE status = 'spawning' AND ended IS NULL AND (busy_until IS NULL OR busy_until <= $1)
ORDER BY last_call
LIMIT $2;

-- name: agent_progress
-- How far an agent is.
UPDATE agents SET progress = $1, note = coalesce($2, note), updated = $3, last_call = $4 WHERE id = $5;

-- name: agent_busy
-- An agent will be silent for a while.
UPDATE agents SET busy_until = $1, last_call = $2, updated = $3 WHERE id = $4;

-- name: agent_called
-- When an agent last did something.
UPDATE agents SET last_call = $1 WHERE id = $2 AND epoch = $3 AND ended IS NULL;

-- name: agent_forget_calls
-- Awake time is another one: whoever has not ended called at this time of it.
UPDATE agents SET last_call = $1, busy_until = NULL WHERE ended IS NULL;

-- name: agent_finished_before
-- Agents that completed or stopped before a time.
SELECT id FROM agents WHERE status IN ('completed', 'stopped') AND ended <= $1 ORDER BY id LIMIT $2;

-- name: agent_get
-- All that is known of one agent.
SELECT id, name, type, kind, session, milestone, parent, capabilities, model, prompt, load, estimate, metadata,
    status, progress, note, process, epoch, patience, last_call, busy_until, created, started, updated, ended, error,
    evidence
FROM agents WHERE id = $1;

-- name: agent_counts
-- How many agents there are of each status.
SELECT status, count(*) FROM agents GROUP BY status;

-- name: agent_expendable
-- Agents after one that ended before a time, and whose session has ended too.
SELECT id FROM agents
WHERE id > $1 AND ended <= $2
    AND (session IS NULL OR EXISTS (
        SELECT 1 FROM sessions WHERE sessions.id = agents.session AND sessions.ended IS NOT NULL
    ))
ORDER BY id
LIMIT $3;

-- name: agent_restore
-- An ended agent from an archive, without its session if that is gone; its epoch is never below one that was given out.
INSERT INTO agents (
    id, name, type, kind, session, milestone, parent, capabilities, model, prompt, load, estimate, metadata, status,
    progress, note, epoch, patience, error, evidence, created, started, updated, ended, mailbox, replies, cut_off
)
VALUES (
    $1, $2, $3, $4, (SELECT id FROM sessions WHERE id = $5), $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16,
    coalesce((SELECT epoch FROM mailboxes WHERE id = $25 AND epoch > $17), $17),
    $18, $19, $20, $21, $22, $23, $24, $25, $26,
    CASE WHEN $14 IN ('failed', 'stopped') THEN 1 ELSE 0 END
);

-- name: agent_after
-- Agents in the order of their ids, after one.
SELECT id, 500 + length(metadata) + coalesce(length(prompt), 0) FROM agents WHERE id > $1 ORDER BY id LIMIT $2;

-- name: agent_made
-- When an agent that has not ended was first known, and what it is doing.
SELECT created, status FROM agents WHERE id = $1 AND ended IS NULL;
