-- Named queries that every engine runs as they stand: a name, a sentence, then SQL.
-- $1, $2 … are the parameters. One that may be NULL for "all" is cast there: PostgreSQL must know its type.

-- name: counter_take
-- Move a counter on by so many, and give its new value.
UPDATE counters SET value = value + $2 WHERE name = $1 RETURNING value;

-- name: meta_get
-- A fact about the bus.
SELECT value FROM meta WHERE key = $1;

-- name: meta_set
-- Note a fact about the bus.
INSERT INTO meta (key, value) VALUES ($1, $2) ON CONFLICT (key) DO UPDATE SET value = excluded.value;

-- name: event_insert
-- One line of the audit trail.
INSERT INTO events (at, kind, subject_kind, subject, actor, facts) VALUES ($1, $2, $3, $4, $5, $6);

-- name: process_insert
-- A process opens the bus.
INSERT INTO processes (host, boot, pid, started, bell, watched, beat, created) VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
RETURNING id;

-- name: process_neighbours
-- The other live processes of a process's host.
SELECT id, host, pid, started, bell FROM processes
WHERE status = 'live' AND id <> $1 AND host = (SELECT host FROM processes WHERE id = $1);

-- name: process_others
-- Every other process that counts as live, and when it last beat.
SELECT id, host, pid, started, bell, watched, beat FROM processes WHERE status = 'live' AND id <> $1 ORDER BY id;

-- name: process_of_other_boots
-- Live processes that belong to another boot.
SELECT id FROM processes WHERE status = 'live' AND boot <> $1;

-- name: process_beat
-- A process is alive.
UPDATE processes SET beat = $1 WHERE id = $2 AND status = 'live';

-- name: process_revive
-- A process that counted as dead, and beats.
UPDATE processes SET beat = $1, status = 'live', ended = NULL
WHERE id = $2 AND status = 'dead' AND boot = (SELECT value FROM meta WHERE key = 'boot')
RETURNING id;

-- name: listener_insert
-- A process wants to be rung for a channel.
INSERT INTO listeners (channel, process) VALUES ($1, $2) ON CONFLICT DO NOTHING;

-- name: listener_delete
-- A process no longer wants to be rung for a channel.
DELETE FROM listeners WHERE channel = $1 AND process = $2;

-- name: topology
-- Changes whenever someone begins or ceases to listen.
SELECT value FROM counters WHERE name = 'topology';

-- name: session_status
-- How a session stands.
SELECT status FROM sessions WHERE id = $1;

-- name: session_insert
-- A session begins.
INSERT INTO sessions (id, operation, milestone, process, expected, metadata, created, updated)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8);

-- name: session_standing
-- What operations must know of a session, and of the process that owns it.
SELECT sessions.operation, sessions.milestone, sessions.status, sessions.expected, sessions.process, processes.status,
    processes.host, processes.pid, processes.started, processes.bell
FROM sessions LEFT JOIN processes ON processes.id = sessions.process
WHERE sessions.id = $1;

-- name: session_continue
-- A session goes on in another process; NULL leaves what is there. The failures of before count no more.
UPDATE sessions SET
    status = 'active', process = $1, milestone = coalesce($2, milestone), expected = $3,
    metadata = coalesce($4, metadata), error = NULL, troubled = 0, updated = $5
WHERE id = $6;

-- name: session_change
-- A session changes its status; once it is active again, the failures of before count no more.
UPDATE sessions SET
    status = $1, error = $2, updated = $3, ended = $4, process = $5,
    troubled = CASE WHEN $1 = 'active' THEN 0 ELSE troubled END
WHERE id = $6;

-- name: session_disown
-- Nobody is in the block of a session any more.
UPDATE sessions SET process = NULL WHERE id = $1;

-- name: session_resume
-- An agent is at work in an interrupted session again.
UPDATE sessions SET status = 'active', error = NULL, updated = $1 WHERE id = $2 AND status = 'interrupted'
RETURNING id;

-- name: session_progress
-- How far a session is.
UPDATE sessions SET progress = $1, updated = $2 WHERE id = $3 AND ended IS NULL RETURNING id;

-- name: session_rewind
-- A session is as far as it was before.
UPDATE sessions SET progress = $1, updated = $2 WHERE id = $3;

-- name: session_touch
-- Something happened to a session that is not its own change.
UPDATE sessions SET updated = $1 WHERE id = $2;

-- name: session_get
-- All that is known of one session.
SELECT id, operation, milestone, status, progress, process, expected, metadata, created, updated, ended, error,
    status = 'active' AND troubled = 1
        AND EXISTS (SELECT 1 FROM agents WHERE agents.session = sessions.id AND agents.status = 'failed')
FROM sessions WHERE id = $1;

-- name: session_troubles
-- Active sessions of which an agent failed or whose owner is gone: how many agents of each are live, how many failed, and
-- whether its owner is gone.
SELECT sessions.id,
    (SELECT count(*) FROM agents
     WHERE agents.session = sessions.id AND agents.status IN ('running', 'suspect', 'spawning')),
    (SELECT count(*) FROM agents WHERE agents.session = sessions.id AND agents.status = 'failed'),
    CASE WHEN owners.status <> 'live' THEN 1 ELSE 0 END
FROM sessions LEFT JOIN processes AS owners ON owners.id = sessions.process
WHERE sessions.status = 'active' AND sessions.ended IS NULL
    AND (sessions.troubled = 1 OR owners.status <> 'live')
ORDER BY sessions.id;

-- name: session_counts
-- How many agents of a session there are of each status.
SELECT status, count(*) FROM agents WHERE session = $1 GROUP BY status;

-- name: session_stale
-- Open sessions in which nobody did anything since $1 (wall) and $2 (awake), the longest silent first. An agent that said
-- it would be silent until later than $3 (awake) is at work.
SELECT id, operation, milestone, status, progress, process, expected, metadata, created, updated, ended, error
FROM sessions
WHERE ended IS NULL AND status IN ('active', 'paused', 'interrupted') AND updated <= $1
    AND NOT EXISTS (
        SELECT 1 FROM agents
        WHERE agents.session = sessions.id AND (
            agents.updated > $1
            OR (agents.status IN ('running', 'suspect', 'spawning') AND (agents.last_call > $2 OR agents.busy_until > $3))
        )
    )
    AND NOT EXISTS (SELECT 1 FROM documents WHERE documents.session = sessions.id AND documents.created > $1)
    AND NOT EXISTS (SELECT 1 FROM participants WHERE participants.session = sessions.id AND participants.finished > $1)
    AND NOT EXISTS (SELECT 1 FROM state WHERE state.scope = 'session:' || sessions.id AND state.updated > $1)
    AND NOT EXISTS (
        SELECT 1 FROM checkpoints
        WHERE checkpoints.owner_kind IN ('session', 'composite') AND checkpoints.owner = sessions.id
            AND checkpoints.created > $1
    )
ORDER BY updated, id;

-- name: participant_insert
-- One who takes part in a meeting.
INSERT INTO participants (session, meeting, member, position, created) VALUES ($1, $2, $3, $4, $5);

-- name: participant_list
-- Who takes part in a meeting, in their order, and who has finished with which result.
SELECT member, finished, result, checksum FROM participants WHERE session = $1 AND meeting = $2 ORDER BY position;

-- name: participant_get
-- Whether one who takes part has finished, and with which result.
SELECT member, finished, result, checksum FROM participants WHERE session = $1 AND meeting = $2 AND member = $3;

-- name: participant_finish
-- One who takes part has finished.
UPDATE participants SET finished = $1, result = $2, checksum = $3
WHERE session = $4 AND meeting = $5 AND member = $6;

-- name: participant_of_session
-- Who takes part in which meeting of a session.
SELECT meeting, member, position, created, finished, checksum, result FROM participants
WHERE session = $1
ORDER BY meeting, position;

-- name: participant_clear
-- Nobody takes part in any meeting of a session any more.
DELETE FROM participants WHERE session = $1;

-- name: participant_restore
-- One who took part in a meeting, and may have finished.
INSERT INTO participants (session, meeting, member, position, created, finished, checksum, result)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8);

-- name: document_insert
-- The next version of a document. The newest is never removed, so that versions go on counting.
INSERT INTO documents (session, name, version, checksum, author, created, value)
VALUES (
    $1, $2, (SELECT coalesce(max(version), 0) + 1 FROM documents WHERE session = $1 AND name = $2), $3, $4, $5, $6
)
RETURNING id, version;

-- name: document_trim
-- Remove the versions of a document up to this one.
DELETE FROM documents WHERE session = $1 AND name = $2 AND version <= $3;

-- name: document_remove
-- A document was not there at the time that its session goes back to.
DELETE FROM documents WHERE session = $1 AND name = $2;

-- name: document_newest
-- The documents of a session with the values of their newest versions.
SELECT documents.name, documents.version, documents.author, documents.created, documents.checksum, documents.value
FROM (SELECT name, max(version) AS version FROM documents WHERE session = $1 GROUP BY name) AS newest
JOIN documents ON documents.session = $1 AND documents.name = newest.name AND documents.version = newest.version
ORDER BY documents.name;

-- name: document_copy
-- The newest versions of a session's documents become the first ones of another's.
INSERT INTO documents (session, name, version, checksum, author, created, value)
SELECT $1, documents.name, 1, documents.checksum, documents.author, $2, documents.value
FROM (SELECT name, max(version) AS version FROM documents WHERE session = $3 GROUP BY name) AS newest
JOIN documents ON documents.session = $3 AND documents.name = newest.name AND documents.version = newest.version;

-- name: document_versions
-- The newest versions of a document, or ($3) one of them.
SELECT id, session, name, version, author, created, checksum, value
FROM documents
WHERE session = $1 AND name = $2 AND (CAST($3 AS bigint) IS NULL OR version = $3)
ORDER BY version DESC
LIMIT $4;

-- name: document_list
-- The documents of a session, each with its newest version.
SELECT documents.name, documents.version, documents.author, documents.created
FROM (SELECT name, max(version) AS version FROM documents WHERE session = $1 GROUP BY name) AS newest
JOIN documents ON documents.session = $1 AND documents.name = newest.name AND documents.version = newest.version
ORDER BY documents.name;

-- name: type_names
-- All types of a kind.
SELECT name FROM vocabulary WHERE kind = $1 ORDER BY name;

-- name: type_get
-- What is known of one type.
SELECT builtin, description, schema FROM vocabulary WHERE kind = $1 AND name = $2;

-- name: type_list
-- The vocabulary; a NULL kind takes all.
SELECT kind, name, builtin, description, schema, created FROM vocabulary
WHERE (CAST($1 AS text) IS NULL OR kind = $1) ORDER BY kind, name;

-- name: type_define
-- Add a type, or give one another description and schema.
INSERT INTO vocabulary (kind, name, description, schema, created) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (kind, name) DO UPDATE SET description = excluded.description, schema = excluded.schema;

-- name: agent_names
-- Agents that could be meant by a misspelt name.
SELECT id FROM agents ORDER BY updated DESC LIMIT 1000;

-- name: mailbox_names
-- Pools or topics that could be meant by a misspelt name.
SELECT name FROM mailboxes WHERE kind = $1 ORDER BY id DESC LIMIT 1000;

-- name: mailbox_ensure
-- Make a mailbox unless it is there.
INSERT INTO mailboxes (kind, name, owner, created) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING;

-- name: mailbox_find
-- A mailbox by what it is for.
SELECT id FROM mailboxes WHERE kind = $1 AND name = $2 AND owner = $3;

-- name: pool_join
-- An agent takes work from a pool.
INSERT INTO pool_members (pool, agent, joined) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING;

-- name: pool_leave
-- An agent takes no more work from a pool.
DELETE FROM pool_members
WHERE agent = $2 AND pool = (SELECT id FROM mailboxes WHERE kind = 'pool' AND name = $1 AND owner = '');

-- name: subscription_insert
-- An agent gets a copy of what is published to a topic.
INSERT INTO subscriptions (topic, agent, mailbox, since) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING;

-- name: subscription_end
-- An agent no longer wants a topic.
DELETE FROM subscriptions
WHERE agent = $2 AND topic = (SELECT id FROM mailboxes WHERE kind = 'topic' AND name = $1 AND owner = '')
RETURNING mailbox;

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
    coalesce($13, $1), $14, $15, coalesce($16, '[]'), $17, $18, $19, $20, coalesce($21, '{}'), coalesce($22, $24), $23
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
    cut_off = CASE
        WHEN $12 = 1 THEN 0
        WHEN agents.status IN ('failed', 'stopped') THEN 1
        ELSE agents.cut_off
    END,
    note = NULL,
    busy_until = excluded.busy_until,
    error = NULL,
    evidence = NULL,
    ended = NULL;

-- name: agent_expect_again
-- The agents of a session whose life was cut off are expected to come back.
UPDATE agents SET status = 'pending', cut_off = 1, process = NULL, busy_until = NULL, updated = $1, ended = NULL
WHERE session = $2 AND status IN ('failed', 'stopped')
RETURNING id;

-- name: agent_cut_off
-- Whether an agent is expected again after a life that did not complete.
SELECT cut_off FROM agents WHERE id = $1;

-- name: agent_of_session
-- The agents of a session, each with its newest checkpoint.
SELECT id, type, status, epoch, progress, note, error,
    (SELECT max(id) FROM checkpoints WHERE owner_kind = 'agent' AND owner = agents.id)
FROM agents
WHERE session = $1
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
UPDATE agents SET status = $1, error = $2, ended = $3, updated = $3, busy_until = NULL, evidence = $4 WHERE id = $5;

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
-- Awake time starts again after a reboot.
UPDATE agents SET last_call = 0, busy_until = NULL WHERE ended IS NULL;

-- name: agent_finished_before
-- Agents that completed or stopped before a time.
SELECT id FROM agents WHERE status IN ('completed', 'stopped') AND ended <= $1 ORDER BY id LIMIT $2;

-- name: agent_get
-- All that is known of one agent.
SELECT id, name, type, kind, session, milestone, parent, capabilities, model, prompt, load, estimate, metadata,
    status, progress, note, process, epoch, patience, last_call, busy_until, created, started, updated, ended, error,
    evidence
FROM agents WHERE id = $1;

-- name: message_insert
-- A new message.
INSERT INTO messages (
    id, message_id, mailbox, sender, type, payload, checksum, priority, status, max_attempts, due, expires,
    correlation, reply_to, session, created
)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16);

-- name: message_begin
-- A reserved message is handed to the code.
UPDATE messages SET attempts = $1 WHERE id = $2;

-- name: message_extend
-- Hold a lease for longer.
UPDATE messages SET lease_until = $1 WHERE id = $2;

-- name: message_release
-- Give a message back, to be ready at once or when it is due.
UPDATE messages SET
    status = $1, due = $2, attempts = $3, error = coalesce($4, error), holder = NULL, lease_until = NULL
WHERE id = $5;

-- name: message_bury
-- A message becomes a dead letter.
UPDATE messages SET status = 'dead', error = $1, finished = $2, lease_until = NULL WHERE id = $3;

-- name: message_requeue
-- A dead letter gets another chance. If it was a request, nobody waits for the reply any more.
UPDATE messages SET
    status = 'queued', attempts = 0, due = NULL, expires = NULL, finished = NULL, holder = NULL, reply_to = NULL
WHERE id = $1;

-- name: message_leased
-- Every message that somebody holds.
SELECT id, lease, status, holder, attempts, max_attempts, mailbox, type, message_id, correlation, reply_to, session,
    expires
FROM messages WHERE status = 'leased';

-- name: reply_take
-- The reply to one request, handed over and done in one step.
UPDATE messages SET status = 'acked', finished = $1, attempts = 1
WHERE id = (
    SELECT id FROM messages WHERE mailbox = $2 AND correlation = $3 AND status = 'queued' ORDER BY id LIMIT 1
)
RETURNING id, message_id, sender, type, payload, checksum, priority, attempts, lease, session, correlation,
    reply_to, created, mailbox, expires;

-- name: reply_again
-- The reply to one request that was handed over before.
SELECT id, message_id, sender, type, payload, checksum, priority, attempts, lease, session, correlation,
    reply_to, created, mailbox, expires
FROM messages WHERE mailbox = $1 AND correlation = $2 AND status = 'acked' ORDER BY id LIMIT 1;

-- name: message_get
-- One message by its row, or by the id that its sender gave it.
SELECT messages.id, messages.message_id, messages.sender, mailboxes.kind, mailboxes.name, mailboxes.owner,
    messages.type, messages.payload, messages.checksum, messages.priority, messages.status, messages.attempts,
    messages.max_attempts, messages.holder, messages.session, messages.correlation, messages.error, messages.due,
    messages.expires, messages.created, messages.finished
FROM messages JOIN mailboxes ON mailboxes.id = messages.mailbox
WHERE messages.id IN (
    SELECT id FROM messages WHERE id = $1
    UNION ALL SELECT id FROM messages WHERE message_id = $2
)
ORDER BY messages.id DESC
LIMIT 1;

-- name: message_list
-- Messages, newest first, before the cursor; a NULL filter takes all. $7 and $8 are the kind and name of a recipient.
SELECT messages.id, messages.message_id, messages.sender, mailboxes.kind, mailboxes.name, mailboxes.owner,
    messages.type, messages.payload, messages.checksum, messages.priority, messages.status, messages.attempts,
    messages.max_attempts, messages.holder, messages.session, messages.correlation, messages.error, messages.due,
    messages.expires, messages.created, messages.finished
FROM messages JOIN mailboxes ON mailboxes.id = messages.mailbox
WHERE messages.id < $1
    AND (CAST($2 AS text) IS NULL OR messages.status = $2)
    AND (CAST($3 AS text) IS NULL OR messages.type = $3)
    AND (CAST($4 AS text) IS NULL OR messages.sender = $4)
    AND (CAST($5 AS text) IS NULL OR messages.session = $5)
    AND (CAST($6 AS text) IS NULL OR messages.correlation = $6)
    AND (CAST($7 AS text) IS NULL OR messages.mailbox IN (
        SELECT id FROM mailboxes
        WHERE (kind = $7 OR ($7 = 'topic' AND kind = 'subscription')) AND name = $8
    ))
ORDER BY messages.id DESC
LIMIT $9;

-- name: message_open_counts
-- How many messages wait in the mailboxes of each agent of a session, and how many from there are in somebody's hands.
SELECT own.agent,
    sum((SELECT count(*) FROM messages WHERE mailbox = own.mailbox AND status = 'queued')
        + (SELECT count(*) FROM messages WHERE mailbox = own.mailbox AND status = 'scheduled')),
    sum((SELECT count(*) FROM messages WHERE mailbox = own.mailbox AND status = 'leased'))
FROM (
    SELECT id AS agent, mailbox FROM agents WHERE session = $1
    UNION ALL
    SELECT agents.id, subscriptions.mailbox
    FROM agents JOIN subscriptions ON subscriptions.agent = agents.id
    WHERE agents.session = $1
) AS own
GROUP BY own.agent;

-- name: message_list_dead
-- Dead letters, newest first, before the cursor: few among many, so they have an index of their own.
SELECT messages.id, messages.message_id, messages.sender, mailboxes.kind, mailboxes.name, mailboxes.owner,
    messages.type, messages.payload, messages.checksum, messages.priority, messages.status, messages.attempts,
    messages.max_attempts, messages.holder, messages.session, messages.correlation, messages.error, messages.due,
    messages.expires, messages.created, messages.finished
FROM messages JOIN mailboxes ON mailboxes.id = messages.mailbox
WHERE messages.status = 'dead' AND messages.id < $1
ORDER BY messages.id DESC
LIMIT $2;

-- name: message_counts
-- How many messages there are of each status.
SELECT status, count(*) FROM messages GROUP BY status;

-- name: agent_counts
-- How many agents there are of each status.
SELECT status, count(*) FROM agents GROUP BY status;

-- name: queue_oldest
-- Since when the oldest queued message has waited.
SELECT min(created) FROM messages WHERE status = 'queued';

-- name: queue_depths
-- The deepest mailboxes: how many messages wait, and since when the oldest does.
SELECT mailboxes.kind, mailboxes.name, mailboxes.owner, count(*), min(messages.created)
FROM messages JOIN mailboxes ON mailboxes.id = messages.mailbox
WHERE messages.status = 'queued'
GROUP BY mailboxes.id, mailboxes.kind, mailboxes.name, mailboxes.owner
ORDER BY count(*) DESC, mailboxes.id
LIMIT $1;

-- name: mailbox_expiring
-- Mailboxes in which something is too old. Each is found by one step along the index: there may be many messages.
WITH RECURSIVE boxes (mailbox) AS (
    SELECT min(mailbox) FROM messages WHERE expires IS NOT NULL AND status IN ('queued', 'scheduled')
    UNION ALL
    SELECT (
        SELECT min(mailbox) FROM messages
        WHERE mailbox > boxes.mailbox AND expires IS NOT NULL AND status IN ('queued', 'scheduled')
    )
    FROM boxes WHERE boxes.mailbox IS NOT NULL
)
SELECT mailbox FROM boxes
WHERE EXISTS (
    SELECT 1 FROM messages
    WHERE messages.mailbox = boxes.mailbox AND expires IS NOT NULL AND status IN ('queued', 'scheduled')
        AND expires <= $1
)
LIMIT $2;

-- name: mailbox_deep
-- Mailboxes in which more than $1 messages wait, found in the same way.
WITH RECURSIVE boxes (mailbox) AS (
    SELECT min(mailbox) FROM messages WHERE status = 'queued'
    UNION ALL
    SELECT (SELECT min(mailbox) FROM messages WHERE mailbox > boxes.mailbox AND status = 'queued')
    FROM boxes WHERE boxes.mailbox IS NOT NULL
)
SELECT mailboxes.kind, mailboxes.name, mailboxes.owner
FROM boxes JOIN mailboxes ON mailboxes.id = boxes.mailbox
WHERE (
    SELECT id FROM messages WHERE messages.mailbox = boxes.mailbox AND status = 'queued'
    ORDER BY priority DESC, id
    LIMIT 1 OFFSET $1
) IS NOT NULL
LIMIT $2;

-- name: mailbox_unattended
-- Pools in which work waits and of which no member is live. Members first: there may be many live agents.
SELECT name FROM mailboxes
WHERE kind = 'pool' AND owner = ''
    AND EXISTS (SELECT 1 FROM messages WHERE messages.mailbox = mailboxes.id AND messages.status = 'queued')
    AND NOT EXISTS (
        SELECT 1 FROM pool_members
        WHERE pool_members.pool = mailboxes.id
            AND (SELECT status FROM agents WHERE agents.id = pool_members.agent) IN ('running', 'suspect', 'spawning')
    )
ORDER BY name
LIMIT $1;

-- name: state_value
-- The value of one entry that is there.
SELECT value, checksum FROM state
WHERE scope = $1 AND key = $2 AND value IS NOT NULL AND (expires IS NULL OR expires > $3);

-- name: state_entry
-- One entry that is there, with all that is known of it.
SELECT scope, key, type, version, change, expires, author, created, updated, checksum, value FROM state
WHERE scope = $1 AND key = $2 AND value IS NOT NULL AND (expires IS NULL OR expires > $3);

-- name: state_list
-- Entries that are there, with a key from $2 on and below $3, in the order of their keys.
SELECT scope, key, type, version, change, expires, author, created, updated, checksum, value FROM state
WHERE scope = $1 AND key >= $2 AND key < $3 AND value IS NOT NULL AND (expires IS NULL OR expires > $4)
ORDER BY key
LIMIT $5;

-- name: state_insert
-- A new entry.
INSERT INTO state (type, version, change, checksum, expires, author, created, updated, value, scope, key)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11);

-- name: state_update
-- Change an entry, or make a tombstone of it. Not by an upsert, which checks every format twice and takes half as long
-- again.
UPDATE state SET
    type = $1, version = $2, change = $3, checksum = $4, expires = $5, author = $6, created = $7, updated = $8, value = $9
WHERE id = $10;

-- name: state_bury
-- Make a tombstone of an entry that expired, or whose agent was deleted.
UPDATE state SET change = $1, checksum = NULL, expires = NULL, author = NULL, updated = $2, value = NULL
WHERE scope = $3 AND key = $4;

-- name: state_next_expiry
-- When the next entry of a scope expires.
SELECT min(expires) FROM state WHERE scope = $1 AND expires IS NOT NULL;

-- name: state_first_expiry
-- When the next entry expires, of whatever scope.
SELECT min(expires) FROM state WHERE expires IS NOT NULL;

-- name: state_expired
-- What has expired, of whatever scope.
SELECT scope, key FROM state WHERE expires IS NOT NULL AND expires <= $1 ORDER BY expires LIMIT $2;

-- name: state_last_change
-- The last change number given out.
SELECT value FROM counters WHERE name = 'change';

-- name: checkpoint_insert
-- A new checkpoint.
INSERT INTO checkpoints (
    owner_kind, owner, name, session, created, checksum, size, file_count, notes, files, snapshot
)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
RETURNING id;

-- name: checkpoint_again
-- Save an old checkpoint once more, as the newest of its owner.
INSERT INTO checkpoints (
    owner_kind, owner, name, session, created, checksum, size, file_count, notes, files, snapshot
)
SELECT owner_kind, owner, name, session, $1, checksum, size, file_count, notes, files, snapshot
FROM checkpoints
WHERE id = $2
RETURNING id;

-- name: checkpoint_surplus
-- The checkpoints of a name except the newest $4, oldest first, at most $5, each with about the bytes it takes.
SELECT id, size + 100 * file_count FROM checkpoints
WHERE owner_kind = $1 AND owner = $2 AND name = $3 AND id <= (
    SELECT id FROM checkpoints
    WHERE owner_kind = $1 AND owner = $2 AND name = $3
    ORDER BY id DESC
    LIMIT 1 OFFSET $4
)
ORDER BY id
LIMIT $5;

-- name: checkpoint_oldest
-- The oldest $3 checkpoints of somebody, each with about the bytes it takes.
SELECT id, size + 100 * file_count FROM checkpoints WHERE owner_kind = $1 AND owner = $2 ORDER BY id LIMIT $3;

-- name: checkpoint_remove
-- A checkpoint goes with others.
DELETE FROM checkpoints WHERE id = $1;

-- name: checkpoint_names
-- The names under which somebody has checkpoints.
SELECT DISTINCT name FROM checkpoints WHERE owner_kind = $1 AND owner = $2 ORDER BY name;

-- name: checkpoint_delete
-- One checkpoint goes for good.
DELETE FROM checkpoints WHERE id = $1 RETURNING owner_kind, owner, name;

-- name: checkpoint_get
-- All of one checkpoint.
SELECT id, owner_kind, owner, name, notes, session, created, checksum, files, snapshot FROM checkpoints WHERE id = $1;

-- name: checkpoint_latest
-- The newest checkpoint of somebody.
SELECT id, owner_kind, owner, name, notes, session, created, checksum, files, snapshot FROM checkpoints
WHERE owner_kind = $1 AND owner = $2
ORDER BY id DESC
LIMIT 1;

-- name: checkpoint_latest_of
-- The newest checkpoint of each agent of a session, without its snapshot.
SELECT checkpoints.id, checkpoints.owner_kind, checkpoints.owner, checkpoints.name, checkpoints.notes,
    checkpoints.session, checkpoints.created, checkpoints.size, checkpoints.file_count
FROM agents JOIN checkpoints ON checkpoints.id = (
    SELECT max(id) FROM checkpoints WHERE owner_kind = 'agent' AND owner = agents.id
)
WHERE agents.session = $1;

-- name: checkpoint_latest_named
-- The newest checkpoint of somebody under one name.
SELECT id, owner_kind, owner, name, notes, session, created, checksum, files, snapshot FROM checkpoints
WHERE owner_kind = $1 AND owner = $2 AND name = $3
ORDER BY id DESC
LIMIT 1;

-- name: checkpoint_owner
-- Whose a checkpoint is.
SELECT owner_kind, owner FROM checkpoints WHERE id = $1;

-- name: checkpoint_files
-- The files that a checkpoint refers to.
SELECT files FROM checkpoints WHERE id = $1;

-- name: checkpoint_list
-- Checkpoints of all owners, newest first, before the cursor; a NULL filter takes all.
SELECT id, owner_kind, owner, name, notes, session, created, size, file_count FROM checkpoints
WHERE id < $1 AND (CAST($2 AS text) IS NULL OR owner_kind = $2) AND (CAST($3 AS text) IS NULL OR name = $3)
ORDER BY id DESC
LIMIT $4;

-- name: checkpoint_history
-- The checkpoints of one owner, newest first, before the cursor.
SELECT id, owner_kind, owner, name, notes, session, created, size, file_count FROM checkpoints
WHERE owner_kind = $1 AND owner = $2 AND id < $3
ORDER BY id DESC
LIMIT $4;

-- name: checkpoint_history_named
-- The checkpoints of one owner under one name, newest first, before the cursor.
SELECT id, owner_kind, owner, name, notes, session, created, size, file_count FROM checkpoints
WHERE owner_kind = $1 AND owner = $2 AND name = $3 AND id < $4
ORDER BY id DESC
LIMIT $5;

-- name: event_page
-- The audit trail after an event, in its order.
SELECT id, at, kind, subject_kind, subject, actor, facts FROM events WHERE id > $1 ORDER BY id LIMIT $2;

-- name: event_page_of_kind
-- The events of one kind after an event.
SELECT id, at, kind, subject_kind, subject, actor, facts FROM events
WHERE kind = $1 AND id > $2
ORDER BY id
LIMIT $3;

-- name: event_page_of_subject
-- What happened to one subject after an event; a NULL kind takes all.
SELECT id, at, kind, subject_kind, subject, actor, facts FROM events
WHERE subject_kind = $1 AND subject = $2 AND id > $3 AND (CAST($4 AS text) IS NULL OR kind = $4)
ORDER BY id
LIMIT $5;

-- name: event_last
-- The newest event.
SELECT coalesce(max(id), 0) FROM events;

-- name: recovery_beyond
-- A row if a summary has to look at more than $1: agents that did not complete, and interruptions.
SELECT 1 FROM agents WHERE status IN ('pending', 'spawning', 'running', 'suspect', 'failed', 'stopped')
UNION ALL
SELECT 1 FROM events WHERE kind = 'session_interrupted'
LIMIT 1 OFFSET $1;

-- name: recovery_interrupted
-- The sessions that are interrupted, the one that was cut off last first.
SELECT id FROM sessions WHERE ended IS NULL AND status = 'interrupted' ORDER BY updated DESC, id LIMIT $1;

-- name: recovery_history
-- Every interruption, how and when its session went on or ended, and what became of it then.
SELECT cut.at, next.kind, next.at, final.kind
FROM events AS cut
LEFT JOIN events AS next ON next.id = (
    SELECT min(id) FROM events
    WHERE subject_kind = 'session' AND subject = cut.subject AND id > cut.id
        AND kind IN ('session_continued', 'session_completed', 'session_failed')
)
LEFT JOIN events AS final ON final.id = (
    SELECT min(id) FROM events
    WHERE subject_kind = 'session' AND subject = cut.subject AND id > next.id
        AND kind IN ('session_completed', 'session_failed', 'session_interrupted')
)
WHERE cut.kind = 'session_interrupted'
ORDER BY cut.id;

-- name: counter_raise
-- A counter is at least this.
UPDATE counters SET value = $2 WHERE name = $1 AND value < $2;

-- name: checkpoint_groups
-- Owners and names, after one, that have more than so many checkpoints.
SELECT owner_kind, owner, name FROM checkpoints
WHERE (owner_kind, owner, name) > ($1, $2, $3)
GROUP BY owner_kind, owner, name
HAVING count(*) > $4
ORDER BY owner_kind, owner, name
LIMIT $5;

-- name: checkpoint_ages
-- The checkpoints of an owner and a name, newest first.
SELECT id, created, size FROM checkpoints WHERE owner_kind = $1 AND owner = $2 AND name = $3 ORDER BY id DESC;

-- name: checkpoint_border
-- The newest checkpoint of an owner and a name that is not among the last $4.
SELECT id FROM checkpoints WHERE owner_kind = $1 AND owner = $2 AND name = $3 ORDER BY id DESC LIMIT 1 OFFSET $4;

-- name: checkpoint_restore
-- A checkpoint from an archive.
INSERT INTO checkpoints (
    id, owner_kind, owner, name, session, created, checksum, size, file_count, notes, files, snapshot
)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)
ON CONFLICT DO NOTHING
RETURNING id;

-- name: checkpoint_same
-- Whether a checkpoint is the one that an archive has.
SELECT 1 FROM checkpoints WHERE id = $1 AND created = $2 AND checksum = $3;

-- name: message_ages
-- Messages in the order of their ids, after one, as retention sees them.
SELECT id, status, finished, created, CASE WHEN finished IS NULL THEN 0 ELSE length(payload) + 400 END
FROM messages WHERE id > $1 ORDER BY id LIMIT $2;

-- name: message_span
-- How many messages there can be at most: from the first id to the last.
SELECT coalesce((SELECT max(id) FROM messages) - (SELECT min(id) FROM messages) + 1, 0);

-- name: message_finished_counts
-- How many finished messages there are, dead letters apart.
SELECT coalesce(sum(CASE WHEN status = 'dead' THEN 0 ELSE 1 END), 0), coalesce(sum(CASE WHEN status = 'dead' THEN 1 ELSE 0 END), 0)
FROM messages WHERE finished IS NOT NULL;

-- name: message_senders
-- Whose messages wait, or are being handled.
SELECT sender FROM messages WHERE status = 'queued'
UNION SELECT sender FROM messages WHERE status = 'scheduled'
UNION SELECT sender FROM messages WHERE status = 'leased';

-- name: message_restore
-- A finished message from an archive.
INSERT INTO messages (
    id, message_id, mailbox, sender, type, checksum, priority, status, attempts, max_attempts, lease, holder, expires,
    correlation, session, error, created, finished, payload
)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19)
ON CONFLICT DO NOTHING
RETURNING id;

-- name: message_same
-- Whether the message of an id is the one that an archive has.
SELECT CASE WHEN created = $2 AND checksum = $3 THEN 1 ELSE 0 END FROM messages WHERE id = $1;

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
    progress, note, epoch, patience, error, evidence, created, started, updated, ended, mailbox, replies
)
VALUES (
    $1, $2, $3, $4, (SELECT id FROM sessions WHERE id = $5), $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16,
    coalesce((SELECT epoch FROM mailboxes WHERE id = $25 AND epoch > $17), $17),
    $18, $19, $20, $21, $22, $23, $24, $25, $26
);

-- name: session_expendable
-- The first session after one that ended before $2, or failed before $3; and about how large its participants and its
-- state are.
SELECT id, ended,
    500 + coalesce((SELECT sum(200 + length(coalesce(result, ''))) FROM participants WHERE session = sessions.id), 0)
    + coalesce((SELECT sum(200 + length(value)) FROM state WHERE scope = 'session:' || sessions.id), 0)
FROM sessions
WHERE id > $1 AND ended IS NOT NULL AND (ended <= $2 OR (status = 'failed' AND ended <= $3))
ORDER BY id
LIMIT 1;

-- name: session_members
-- The agents of a session.
SELECT id, status FROM agents WHERE session = $1;

-- name: session_ended
-- When a session ended.
SELECT ended FROM sessions WHERE id = $1;

-- name: session_left
-- When a session ended, and whether anything is left that must go before it.
SELECT ended,
    CASE WHEN EXISTS (SELECT 1 FROM agents WHERE agents.session = sessions.id)
        OR EXISTS (SELECT 1 FROM documents WHERE documents.session = sessions.id)
        OR EXISTS (SELECT 1 FROM checkpoints WHERE owner_kind = 'session' AND owner = sessions.id)
    THEN 1 ELSE 0 END
FROM sessions WHERE id = $1;

-- name: session_delete
-- A session that has nothing left.
DELETE FROM sessions WHERE id = $1;

-- name: session_restore
-- An ended session from an archive.
INSERT INTO sessions (
    id, operation, milestone, status, progress, troubled, expected, metadata, error, created, updated, ended
)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)
ON CONFLICT DO NOTHING
RETURNING id;

-- name: session_same
-- Whether a session is the one that an archive has.
SELECT 1 FROM sessions WHERE id = $1 AND created = $2;

-- name: participant_clear
-- Nobody takes part in a session any more.
DELETE FROM participants WHERE session = $1;

-- name: participant_restore
-- One who took part, from an archive.
INSERT INTO participants (session, meeting, member, position, created, finished, checksum, result)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
ON CONFLICT DO NOTHING
RETURNING member;

-- name: document_sizes
-- The versions of all documents of a session, and how large they are.
SELECT id, 300 + length(value) FROM documents WHERE session = $1 ORDER BY id;

-- name: document_restore
-- A version of a document from an archive.
INSERT INTO documents (session, name, version, checksum, author, created, value)
VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT DO NOTHING
RETURNING id;

-- name: document_same
-- Whether a version of a document is the one that an archive has.
SELECT 1 FROM documents WHERE session = $1 AND name = $2 AND version = $3 AND checksum = $4;

-- name: event_ages
-- The audit trail after an event, as retention sees it.
SELECT id, at, length(facts) + 200 FROM events WHERE id > $1 ORDER BY id LIMIT $2;

-- name: event_restore
-- An event from an archive.
INSERT INTO events (id, at, kind, subject_kind, subject, actor, facts) VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT DO NOTHING
RETURNING id;

-- name: event_same
-- Whether an event is the one that an archive has.
SELECT 1 FROM events WHERE id = $1 AND at = $2 AND kind = $3 AND subject = $4;

-- name: process_ended
-- Processes after one that ceased to be before a time.
SELECT id FROM processes WHERE id > $1 AND ended <= $2 ORDER BY id LIMIT $3;

-- name: process_live
-- Every process that counts as live.
SELECT id FROM processes WHERE status = 'live';

-- name: process_pids
-- The pids of the processes that count as live.
SELECT pid FROM processes WHERE status = 'live' ORDER BY id;

-- name: process_bells
-- The doorbells of the processes that count as live.
SELECT bell FROM processes WHERE status = 'live' AND bell IS NOT NULL;

-- name: process_places
-- The processes that count as live: enough to find out whether they are.
SELECT id, host, pid, started, bell FROM processes WHERE status = 'live';

-- name: process_newest_beat
-- The latest beat of a boot.
SELECT coalesce(max(beat), 0) FROM processes WHERE status = 'live' AND boot = $1;

-- name: wall_newest
-- The wall time of the last event and of the last message.
SELECT coalesce(max(at), 0) FROM (
    SELECT at FROM events WHERE id = (SELECT max(id) FROM events)
    UNION ALL SELECT created FROM messages WHERE id = (SELECT max(id) FROM messages)
) AS newest;

-- name: message_payloads
-- Stored payloads with their checksums, newest first, before the cursor.
SELECT id, checksum, payload, coalesce(message_id, 'm-' || id) FROM messages WHERE id < $1 ORDER BY id DESC LIMIT $2;

-- name: message_stuck
-- How many leases ran out before a time.
SELECT count(*) FROM messages WHERE status = 'leased' AND lease_until <= $1;

-- name: state_payloads
-- Stored values with their checksums, before the cursor.
SELECT id, checksum, value, key, scope FROM state WHERE id < $1 AND value IS NOT NULL ORDER BY id DESC LIMIT $2;

-- name: document_payloads
-- Stored versions of documents with their checksums, newest first, before the cursor.
SELECT id, checksum, value, version, name, session FROM documents WHERE id < $1 ORDER BY id DESC LIMIT $2;

-- name: checkpoint_payloads
-- Stored snapshots with their checksums, newest first, before the cursor.
SELECT id, checksum, snapshot, id FROM checkpoints WHERE id < $1 ORDER BY id DESC LIMIT $2;

-- name: session_expecting
-- The newest sessions that were completed or cut off and expected documents.
SELECT id, expected FROM sessions
WHERE status IN ('completed', 'interrupted') AND expected <> '{}'
ORDER BY created DESC, id DESC
LIMIT $1;

-- name: process_restore
-- A process from an archive.
INSERT INTO processes (id, host, boot, pid, started, status, created, ended, beat)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, 0)
ON CONFLICT DO NOTHING
RETURNING id;

-- name: process_same
-- Whether a process is the one that an archive has.
SELECT 1 FROM processes WHERE id = $1 AND pid = $2 AND created = $3;

-- name: state_row
-- An entry or a tombstone: its row, its version, and whether its value is gone.
SELECT id, version, CASE WHEN value IS NULL THEN 1 ELSE 0 END FROM state WHERE scope = $1 AND key = $2;

-- name: state_tombstones
-- Tombstones older than $3, oldest first, after ($1, $2).
SELECT id, updated, change FROM state
WHERE value IS NULL AND (updated, id) > ($1, $2) AND updated <= $3
ORDER BY updated, id
LIMIT $4;
