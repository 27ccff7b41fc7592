-- Named queries in SQLite's own words. Lists arrive as JSON text and are opened with json_each.

-- name: agent_standing
-- What operations must know of agents. Differs: lists by json_each; left alone, SQLite prefers the unique index to the
-- covering one and reads the row as well. A join, here and below, because IN copies the list into a b-tree first.
SELECT agents.id, agents.status, agents.epoch, agents.mailbox, agents.replies
FROM json_each($1) AS wanted CROSS JOIN agents INDEXED BY agents_standing ON agents.id = wanted.value;

-- name: type_known
-- Which of these types are in the vocabulary, and what their payloads must fit. Differs: lists by json_each.
SELECT vocabulary.name, vocabulary.schema
FROM json_each($2) AS wanted CROSS JOIN vocabulary ON vocabulary.kind = $1 AND vocabulary.name = wanted.value;

-- name: pool_mailbox
-- The mailboxes of pools. Differs: lists by json_each.
SELECT name, id FROM mailboxes WHERE kind = 'pool' AND owner = '' AND name IN (SELECT value FROM json_each($1));

-- name: topic_mailboxes
-- A row for each subscription of these topics, and one with NULL for a topic that has none.
-- Differs: lists by json_each.
SELECT topics.name, subscriptions.mailbox
FROM mailboxes AS topics LEFT JOIN subscriptions ON subscriptions.topic = topics.id
WHERE topics.kind = 'topic' AND topics.owner = '' AND topics.name IN (SELECT value FROM json_each($1));

-- name: message_by_message_id
-- What was sent before under these ids. Differs: lists by json_each.
SELECT messages.message_id, messages.id, messages.mailbox, messages.type, messages.payload, messages.correlation,
    CASE WHEN mailboxes.kind = 'subscription' THEN mailboxes.name END
FROM messages JOIN mailboxes ON mailboxes.id = messages.mailbox
WHERE messages.message_id IN (SELECT value FROM json_each($1))
ORDER BY messages.id;

-- name: message_ready
-- The most urgent messages of each mailbox, at most $2 from each. Differs: no LATERAL here, and no locks needed
-- inside BEGIN IMMEDIATE.
SELECT ready.mailbox, ready.priority, ready.id
FROM json_each($1) AS wanted
JOIN messages AS ready ON ready.id IN (
    SELECT id FROM messages
    WHERE mailbox = wanted.value AND status = 'queued'
    ORDER BY priority DESC, id
    LIMIT $2
)
ORDER BY ready.priority DESC, ready.id;

-- name: message_rows
-- Messages as their receiver gets them; `lease` and `attempts` are those before this hand-out.
-- Differs: lists by json_each.
SELECT messages.id, message_id, sender, messages.type, payload, checksum, priority, attempts, lease, session,
    correlation, reply_to, created, mailbox, expires
FROM json_each($1) AS wanted CROSS JOIN messages ON messages.id = wanted.value;

-- name: message_lease
-- Lease messages until $2, to $1 or (if that is NULL) to the owner of their mailbox; the attempt counts when they are
-- handed to the code at once. Differs: lists by json_each. RETURNING the rows is slower than asking for them first.
UPDATE messages SET
    status = 'leased',
    lease = lease + 1,
    holder = coalesce($1, (SELECT owner FROM mailboxes WHERE mailboxes.id = messages.mailbox)),
    lease_until = $2,
    attempts = attempts + $3
WHERE id IN (SELECT value FROM json_each($4));

-- name: message_ack
-- Messages are done; says whose they were, for the caller to compare. Differs: lists by json_each.
UPDATE messages SET status = 'acked', finished = $1
WHERE id IN (SELECT value FROM json_each($2)) AND status = 'leased'
RETURNING id, lease, holder;

-- name: message_held
-- Messages as the settling operations see them. Differs: lists by json_each.
SELECT messages.id, lease, status, holder, attempts, max_attempts, mailbox, messages.type, message_id, correlation,
    reply_to, session, expires
FROM json_each($1) AS wanted CROSS JOIN messages ON messages.id = wanted.value;

-- name: message_held_by
-- What agents hold, also from pools that they have left since. Differs: lists by json_each; the index is named because
-- nothing tells SQLite that few messages are leased.
SELECT id, lease, status, holder, attempts, max_attempts, mailbox, type, message_id, correlation, reply_to, session,
    expires
FROM messages INDEXED BY messages_leased
WHERE status = 'leased' AND holder IN (SELECT value FROM json_each($1));

-- name: message_waiting_for
-- At most $2 unfinished messages of an agent's own mailboxes, each after the length of its payload.
-- Differs: one branch for each partial index; SQLite ends after $2 of them.
WITH own (mailbox) AS (
    SELECT mailbox FROM agents WHERE id = $1
    UNION SELECT replies FROM agents WHERE id = $1
    UNION SELECT mailbox FROM subscriptions WHERE agent = $1
)
SELECT length(payload), id, lease, status, holder, attempts, max_attempts, mailbox, type, message_id, correlation,
    reply_to, session, expires
FROM messages
WHERE id IN (
    SELECT id FROM messages WHERE status = 'queued' AND mailbox IN (SELECT mailbox FROM own)
    UNION ALL SELECT id FROM messages WHERE status = 'scheduled' AND mailbox IN (SELECT mailbox FROM own)
    UNION ALL SELECT id FROM messages WHERE status = 'leased' AND mailbox IN (SELECT mailbox FROM own)
    LIMIT $2
);

-- name: mailbox_horizon
-- When each mailbox has something due next: a scheduled message, a lease that runs out, a message that expires.
-- Differs: lists by json_each.
SELECT wanted.value,
    (SELECT min(due) FROM messages WHERE mailbox = wanted.value AND status = 'scheduled'),
    (SELECT min(lease_until) FROM messages WHERE mailbox = wanted.value AND status = 'leased'),
    (SELECT min(expires) FROM messages
     WHERE mailbox = wanted.value AND expires IS NOT NULL AND status IN ('queued', 'scheduled'))
FROM json_each($1) AS wanted;

-- name: mailbox_pending
-- Which of these mailboxes have something to claim or to tend. Differs: lists by json_each.
SELECT wanted.value
FROM json_each($1) AS wanted
WHERE EXISTS (SELECT 1 FROM messages WHERE mailbox = wanted.value AND status = 'queued')
    OR EXISTS (SELECT 1 FROM messages WHERE mailbox = wanted.value AND status = 'scheduled' AND due <= $2)
    OR EXISTS (SELECT 1 FROM messages WHERE mailbox = wanted.value AND status = 'leased' AND lease_until <= $3);

-- name: mailbox_unsubscribed
-- Those of these mailboxes that belong to a subscription which has ended. Differs: lists by json_each.
SELECT id FROM mailboxes
WHERE id IN (SELECT value FROM json_each($1))
    AND kind = 'subscription'
    AND NOT EXISTS (
        SELECT 1 FROM subscriptions
        WHERE subscriptions.agent = mailboxes.owner AND subscriptions.mailbox = mailboxes.id
    );

-- name: message_promote
-- Scheduled messages whose time has come. Differs: lists by json_each.
UPDATE messages SET status = 'queued'
WHERE status = 'scheduled' AND due <= $1 AND mailbox IN (SELECT value FROM json_each($2));

-- name: message_expire
-- Messages that nobody took in time. Differs: lists by json_each.
UPDATE messages SET status = 'expired', finished = $1
WHERE status IN ('queued', 'scheduled') AND expires IS NOT NULL AND expires <= $1
    AND mailbox IN (SELECT value FROM json_each($2));

-- name: message_expire_all
-- Messages that wait where nobody will take them. Differs: lists by json_each; one branch for each partial index.
UPDATE messages SET status = 'expired', finished = $1, error = $2
WHERE id IN (
    SELECT id FROM messages WHERE status = 'queued' AND mailbox IN (SELECT value FROM json_each($3))
    UNION ALL SELECT id FROM messages WHERE status = 'scheduled' AND mailbox IN (SELECT value FROM json_each($3))
);

-- name: message_lapsed
-- Messages whose lease ran out. Differs: lists by json_each.
SELECT id, lease, status, holder, attempts, max_attempts, mailbox, type, message_id, correlation, reply_to, session,
    expires
FROM messages
WHERE status = 'leased' AND lease_until <= $1 AND mailbox IN (SELECT value FROM json_each($2));

-- name: message_lapsed_anywhere
-- Messages whose lease ran out, in whatever mailbox. Differs: the index is named because nothing tells SQLite that few
-- messages are leased.
SELECT id, lease, status, holder, attempts, max_attempts, mailbox, type, message_id, correlation, reply_to, session,
    expires
FROM messages INDEXED BY messages_leased
WHERE status = 'leased' AND lease_until <= $1
LIMIT $2;

-- name: message_extend_held
-- Hold all that an agent holds for longer. Differs: the index is named because nothing tells SQLite that few messages are
-- leased.
UPDATE messages INDEXED BY messages_leased SET lease_until = $1
WHERE status = 'leased' AND holder = $2 AND lease_until < $1;

-- name: message_expire_some
-- At most $3 messages that nobody took in time. Differs: lists by json_each.
UPDATE messages SET status = 'expired', finished = $1
WHERE id IN (
    SELECT messages.id FROM json_each($2) AS boxes CROSS JOIN messages ON messages.mailbox = boxes.value
    WHERE messages.status IN ('queued', 'scheduled') AND messages.expires IS NOT NULL AND messages.expires <= $1
    LIMIT $3
)
RETURNING id;

-- name: message_find
-- Messages by row id or by message_id, and who reads their mailbox. Differs: lists by json_each.
SELECT messages.id, messages.message_id, messages.status, messages.mailbox, messages.attempts, messages.error,
    mailboxes.kind, mailboxes.owner, agents.status, subscriptions.mailbox
FROM messages
JOIN mailboxes ON mailboxes.id = messages.mailbox
LEFT JOIN agents ON agents.id = mailboxes.owner
LEFT JOIN subscriptions ON subscriptions.agent = mailboxes.owner AND subscriptions.mailbox = mailboxes.id
WHERE messages.id IN (
    SELECT value FROM json_each($1)
    UNION SELECT id FROM messages WHERE message_id IN (SELECT value FROM json_each($2))
);

-- name: message_purge
-- Delete finished messages, oldest first. Differs: lists by json_each.
DELETE FROM messages
WHERE id IN (
    SELECT id FROM messages
    WHERE id > $4 AND status IN (SELECT value FROM json_each($1)) AND finished <= $2
    ORDER BY id
    LIMIT $3
)
RETURNING id;

-- name: process_end
-- Processes that are still live cease to be. That a watched one is gone whose agents have ended means nothing.
-- Differs: lists by json_each.
UPDATE processes SET
    status = CASE
        WHEN watched = 1
            AND NOT EXISTS (SELECT 1 FROM agents WHERE agents.process = processes.id AND agents.ended IS NULL)
        THEN 'ended' ELSE $1
    END,
    ended = $2
WHERE status = 'live' AND id IN (SELECT value FROM json_each($3))
RETURNING id, status, boot, pid, beat;

-- name: process_beats
-- When these processes last beat, if they are live. Differs: lists by json_each.
SELECT id, pid, beat FROM processes
WHERE status = 'live' AND watched = 0 AND id IN (SELECT value FROM json_each($1));

-- name: agent_of_processes
-- The live agents of processes. Differs: lists by json_each.
SELECT id, process, last_call, busy_until, progress FROM agents
WHERE ended IS NULL AND process IN (SELECT value FROM json_each($1));

-- name: agent_of_status
-- The resident agents of processes that have this status. Differs: lists by json_each.
SELECT id, process, last_call, busy_until, progress FROM agents
WHERE ended IS NULL AND process IN (SELECT value FROM json_each($1)) AND status = $2 AND kind = 'resident';

-- name: agent_suspected
-- Those of these agents that are suspect, and why. Differs: lists by json_each.
SELECT agents.id, agents.evidence
FROM json_each($1) AS wanted CROSS JOIN agents ON agents.id = wanted.value
WHERE agents.status = 'suspect';

-- name: agent_overdue
-- Visiting agents of this status whose patience is over: at $2, and at $3; or at $4 where a process can be watched.
-- Differs: the index is named because SQLite prefers to look at all agents of that status.
SELECT id, process, last_call, busy_until, progress, patience FROM agents INDEXED BY agents_visiting
WHERE kind = 'visiting' AND ended IS NULL AND status = $1 AND last_call + patience < $2
    AND last_call + patience < CASE WHEN process IS NULL THEN $3 ELSE $4 END
    AND (busy_until IS NULL OR busy_until + patience < $2)
ORDER BY last_call + patience
LIMIT $5;

-- name: agent_silent
-- Agents of this status that, as of the last beat of their process, had been silent for more than $2, and for longer than
-- their patience. $3 is $2 before now: no beat is later, so that the index alone rules most of them out.
-- Differs: the index is named because SQLite, once analyzed, goes by processes.
SELECT agents.id, agents.process, agents.last_call, agents.busy_until, agents.progress, processes.pid, processes.beat
FROM agents INDEXED BY agents_by_call CROSS JOIN processes ON processes.id = agents.process
WHERE agents.status = $1 AND agents.ended IS NULL AND agents.kind = 'resident'
    AND agents.last_call < $3 AND (agents.busy_until IS NULL OR agents.busy_until < $3)
    AND processes.status = 'live'
    AND agents.last_call < processes.beat - $2
    AND (agents.busy_until IS NULL OR agents.busy_until < processes.beat - $2)
    AND (
        agents.patience IS NULL
        OR (agents.last_call < processes.beat - agents.patience
            AND (agents.busy_until IS NULL OR agents.busy_until < processes.beat - agents.patience))
    )
ORDER BY agents.last_call
LIMIT $4;

-- name: listener_clear
-- Processes that listen to nothing any more. Differs: lists by json_each.
DELETE FROM listeners WHERE process IN (SELECT value FROM json_each($1));

-- name: listener_remove
-- Channels that nobody listens to any more. Differs: lists by json_each.
DELETE FROM listeners WHERE channel IN (SELECT value FROM json_each($1));

-- name: listeners_of
-- Whom to ring for each channel. Differs: lists by json_each.
SELECT listeners.channel, processes.bell
FROM json_each($1) AS wanted
JOIN listeners ON listeners.channel = wanted.value
JOIN processes ON processes.id = listeners.process
WHERE processes.status = 'live' AND processes.bell IS NOT NULL AND processes.id <> $2;

-- name: subscription_delete
-- All subscriptions of agents end. Differs: lists by json_each.
DELETE FROM subscriptions WHERE agent IN (SELECT value FROM json_each($1)) RETURNING mailbox;

-- name: pool_leave_all
-- Agents take no more work from any pool. Differs: lists by json_each.
DELETE FROM pool_members WHERE agent IN (SELECT value FROM json_each($1));

-- name: agent_parents
-- The parents of agents that can still read a message. Differs: lists by json_each.
SELECT agents.id, parents.mailbox, agents.session
FROM agents JOIN agents AS parents ON parents.id = agents.parent
WHERE agents.id IN (SELECT value FROM json_each($1)) AND parents.status NOT IN ('completed', 'stopped');

-- name: session_trouble
-- Agents of these sessions failed. Differs: lists by json_each.
UPDATE sessions SET troubled = 1
WHERE ended IS NULL AND id IN (SELECT session FROM agents WHERE id IN (SELECT value FROM json_each($1)));

-- name: session_interrupt
-- Of the sessions of agents ($3), those that processes own ($4) and those named ($5), interrupt the active ones that nobody is
-- at work in and that something happened to: an agent failed, or its owner is gone. Differs: lists by json_each.
UPDATE sessions SET status = 'interrupted', error = $1, updated = $2
WHERE id IN (
        SELECT session FROM agents WHERE id IN (SELECT value FROM json_each($3))
        UNION SELECT id FROM sessions WHERE ended IS NULL AND process IN (SELECT value FROM json_each($4))
        UNION SELECT value FROM json_each($5)
    )
    AND status = 'active'
    AND NOT EXISTS (
        SELECT 1 FROM agents
        WHERE agents.session = sessions.id AND agents.status IN ('running', 'suspect', 'spawning')
    )
    AND (
        (troubled = 1 AND EXISTS (
            SELECT 1 FROM agents WHERE agents.session = sessions.id AND agents.status = 'failed'
        ))
        OR EXISTS (SELECT 1 FROM processes WHERE processes.id = sessions.process AND processes.status <> 'live')
    )
RETURNING id;

-- name: session_list
-- Sessions, newest first, before the cursor ($1, $2); a NULL filter takes all. Differs: lists by json_each.
SELECT id, operation, milestone, status, progress, process, expected, metadata, created, updated, ended, error,
    status = 'active' AND troubled = 1
        AND EXISTS (SELECT 1 FROM agents WHERE agents.session = sessions.id AND agents.status = 'failed')
FROM sessions
WHERE (created, id) < ($1, $2)
    AND ($3 IS NULL OR status IN (SELECT value FROM json_each($3)))
    AND ($4 IS NULL OR operation = $4)
    AND ($5 IS NULL OR milestone = $5)
ORDER BY created DESC, id DESC
LIMIT $6;

-- name: mailbox_keep_epochs
-- Remember the last epoch of agents that are about to be deleted. Differs: lists by json_each.
UPDATE mailboxes SET epoch = (SELECT agents.epoch FROM agents WHERE agents.id = mailboxes.owner)
WHERE id IN (SELECT mailbox FROM agents WHERE agents.id IN (SELECT value FROM json_each($1)));

-- name: agent_delete
-- Agents that are gone for good. Differs: lists by json_each.
DELETE FROM agents WHERE id IN (SELECT value FROM json_each($1)) RETURNING id;

-- name: agent_list
-- Agents after the cursor, in the order of their ids; a NULL filter takes all. Differs: lists by json_each.
SELECT id, name, type, kind, session, milestone, parent, capabilities, model, prompt, load, estimate, metadata,
    status, progress, note, process, epoch, patience, last_call, busy_until, created, started, updated, ended, error,
    evidence
FROM agents
WHERE id > $1
    AND ($2 IS NULL OR status IN (SELECT value FROM json_each($2)))
    AND ($3 IS NULL OR type = $3)
    AND ($4 IS NULL OR session = $4)
    AND ($5 IS NULL OR parent = $5)
    AND ($6 IS NULL OR kind = $6)
    AND ($7 IS NULL OR EXISTS (SELECT 1 FROM json_each(capabilities) WHERE value = $7))
ORDER BY id
LIMIT $8;

-- name: state_standing
-- Entries and tombstones without their values; $1 has a list of keys for each scope. Differs: opened by json_each.
SELECT state.scope, state.key, state.id, state.type, state.version, state.expires, state.created, state.checksum
FROM json_each($1) AS scopes CROSS JOIN json_each(scopes.value) AS wanted
CROSS JOIN state ON state.scope = scopes.key AND state.key = wanted.value;

-- name: state_values
-- The values of entries; $1 has a list of keys for each scope. Differs: opened by json_each.
SELECT state.scope, state.key, state.value
FROM json_each($1) AS scopes CROSS JOIN json_each(scopes.value) AS wanted
CROSS JOIN state ON state.scope = scopes.key AND state.key = wanted.value
WHERE state.value IS NOT NULL;

-- name: state_lengths
-- Entries that changed after a change, in the order of their changes, each with the length of its value, which is NULL
-- for a tombstone. Differs: the index is named, as below.
SELECT scope, key, change, length(value)
FROM state INDEXED BY state_by_change
WHERE scope = $1 AND change > $2
ORDER BY change
LIMIT $3;

-- name: state_changes
-- Entries with a key from $3 on and below $4 that changed after a change, tombstones too, in the order of their changes.
-- Differs: the index is named because SQLite, once analyzed, walks all these keys instead, and sorts.
SELECT scope, key, type, version, change, expires, author, created, updated, checksum, value
FROM state INDEXED BY state_by_change
WHERE scope = $1 AND change > $2 AND key >= $3 AND key < $4
ORDER BY change
LIMIT $5;

-- name: state_there
-- Every entry of these scopes that is there, in their order. Differs: lists by json_each.
SELECT state.scope, state.key, state.type, state.expires, state.checksum, state.value
FROM json_each($1) AS wanted CROSS JOIN state ON state.scope = wanted.value
WHERE state.value IS NOT NULL AND (state.expires IS NULL OR state.expires > $2)
ORDER BY wanted.key, state.key;

-- name: message_open_of
-- Unfinished messages in the mailboxes of these agents, oldest first. Differs: lists by json_each; one branch for each
-- partial index.
WITH own (agent, mailbox) AS (
    SELECT agents.id, agents.mailbox FROM json_each($1) AS wanted CROSS JOIN agents ON agents.id = wanted.value
    UNION ALL
    SELECT agent, mailbox FROM json_each($1) AS wanted CROSS JOIN subscriptions ON subscriptions.agent = wanted.value
)
SELECT messages.id, messages.message_id, messages.sender, own.agent, messages.type, messages.status
FROM own CROSS JOIN messages ON messages.id IN (
    SELECT id FROM messages WHERE status = 'queued' AND mailbox = own.mailbox
    UNION ALL SELECT id FROM messages WHERE status = 'scheduled' AND mailbox = own.mailbox
    UNION ALL SELECT id FROM messages WHERE status = 'leased' AND mailbox = own.mailbox
)
ORDER BY messages.id
LIMIT $2;

-- name: message_still_open
-- Those of these messages that are not finished. Differs: lists by json_each.
SELECT messages.id
FROM json_each($1) AS wanted CROSS JOIN messages ON messages.id = wanted.value
WHERE messages.status IN ('queued', 'leased', 'scheduled');

-- name: session_list_open
-- Open sessions of these statuses, newest first, before the cursor ($1, $2); a NULL filter takes all. Those that have
-- ended, which are most of them, are not walked over. Differs: lists by json_each.
SELECT id, operation, milestone, status, progress, process, expected, metadata, created, updated, ended, error
FROM sessions
WHERE ended IS NULL AND status IN (SELECT value FROM json_each($3))
    AND (created, id) < ($1, $2)
    AND ($4 IS NULL OR operation = $4)
    AND ($5 IS NULL OR milestone = $5)
ORDER BY created DESC, id DESC
LIMIT $6;

-- name: recovery_dead_holders
-- Agents that failed while work waits for them. Differs: the index is named because SQLite, once analyzed, walks all
-- agents in the order of their ids instead.
SELECT id FROM agents INDEXED BY agents_by_status
WHERE status = 'failed' AND (
    EXISTS (SELECT 1 FROM messages WHERE messages.mailbox = agents.mailbox AND messages.status = 'queued')
    OR EXISTS (SELECT 1 FROM messages WHERE messages.mailbox = agents.mailbox AND messages.status = 'scheduled')
    OR EXISTS (SELECT 1 FROM messages WHERE messages.mailbox = agents.mailbox AND messages.status = 'leased')
)
ORDER BY id
LIMIT $1;

-- name: recovery_incomplete
-- The agents that have not ended, and those of open sessions that failed or stopped. Counting them here would take twice
-- as long as fetching them. Differs: CROSS JOIN, because SQLite would walk all agents that ever failed instead.
SELECT status, type, session, created FROM agents WHERE status IN ('pending', 'spawning', 'running', 'suspect')
UNION ALL
SELECT agents.status, agents.type, agents.session, agents.created
FROM sessions CROSS JOIN agents ON agents.session = sessions.id AND agents.status IN ('failed', 'stopped')
WHERE sessions.ended IS NULL AND sessions.status IN ('active', 'paused', 'interrupted');

-- name: checkpoint_sizes
-- The checkpoints of owners, oldest first. Differs: lists by json_each.
SELECT checkpoints.id, checkpoints.owner, checkpoints.size + 500
FROM json_each($2) AS owners CROSS JOIN checkpoints ON owner_kind = $1 AND owner = owners.value;

-- name: checkpoint_present
-- Which of these checkpoints there are. Differs: lists by json_each.
SELECT checkpoints.id FROM json_each($1) AS wanted CROSS JOIN checkpoints ON checkpoints.id = wanted.value;

-- name: checkpoint_remove_all
-- Checkpoints that are archived go. Differs: lists by json_each.
DELETE FROM checkpoints WHERE id IN (SELECT value FROM json_each($1)) RETURNING id;

-- name: checkpoint_archive
-- Checkpoints with all that they have. Differs: lists by json_each.
SELECT checkpoints.id, owner_kind, owner, name, session, created, checksum, size, file_count, notes, files, snapshot
FROM json_each($1) AS wanted CROSS JOIN checkpoints ON checkpoints.id = wanted.value;

-- name: message_archive
-- Finished messages with all that they have. Differs: lists by json_each.
SELECT messages.id, message_id, mailboxes.kind, mailboxes.name, mailboxes.owner, sender, messages.type, checksum,
    priority, status, attempts, max_attempts, lease, holder, expires, correlation, session, error, messages.created,
    finished, payload
FROM json_each($1) AS wanted
CROSS JOIN messages ON messages.id = wanted.value
CROSS JOIN mailboxes ON mailboxes.id = messages.mailbox
WHERE finished IS NOT NULL;

-- name: message_remove
-- Messages that are archived go, unless they finished later than $2. Differs: lists by json_each.
DELETE FROM messages WHERE id IN (SELECT value FROM json_each($1)) AND finished <= $2 RETURNING id;

-- name: agent_marks
-- What must not have changed when agents go: their life, their state, and whether they or their sessions have checkpoints.
-- Differs: lists by json_each.
SELECT agents.id, status, epoch, ended,
    coalesce((SELECT max(change) FROM state WHERE scope = agents.id), 0),
    EXISTS (SELECT 1 FROM checkpoints WHERE owner_kind = 'agent' AND owner = agents.id),
    EXISTS (SELECT 1 FROM checkpoints WHERE owner_kind = 'session' AND owner = agents.session)
FROM json_each($1) AS wanted CROSS JOIN agents ON agents.id = wanted.value;

-- name: agent_awaited
-- Which of these agents have an open message: in a mailbox of theirs, or in their hands.
-- Differs: lists by json_each; one branch for each partial index.
WITH own (agent, mailbox) AS (
    SELECT id, mailbox FROM agents WHERE id IN (SELECT value FROM json_each($1))
    UNION SELECT id, replies FROM agents WHERE id IN (SELECT value FROM json_each($1))
    UNION SELECT agent, mailbox FROM subscriptions WHERE agent IN (SELECT value FROM json_each($1))
)
SELECT agent FROM own
WHERE EXISTS (SELECT 1 FROM messages WHERE messages.mailbox = own.mailbox AND status = 'queued')
    OR EXISTS (SELECT 1 FROM messages WHERE messages.mailbox = own.mailbox AND status = 'scheduled')
    OR EXISTS (SELECT 1 FROM messages WHERE messages.mailbox = own.mailbox AND status = 'leased')
UNION
SELECT holder FROM messages INDEXED BY messages_leased
WHERE status = 'leased' AND holder IN (SELECT value FROM json_each($1));

-- name: agent_archive
-- Agents with all that outlives a boot. Differs: lists by json_each.
SELECT agents.id, name, agents.type, kind, session, milestone, agents.parent, capabilities, model, prompt, load,
    estimate, metadata, status, progress, note, epoch, patience, error, evidence, created, started, updated, ended
FROM json_each($1) AS wanted CROSS JOIN agents ON agents.id = wanted.value;

-- name: session_archive
-- Ended sessions with all that they have. Differs: lists by json_each.
SELECT sessions.id, operation, milestone, status, progress, troubled, expected, metadata, error, created, updated, ended
FROM json_each($1) AS wanted CROSS JOIN sessions ON sessions.id = wanted.value;

-- name: participant_archive
-- Who took part in sessions. Differs: lists by json_each.
SELECT session, meeting, member, position, created, finished, checksum, result
FROM json_each($1) AS wanted CROSS JOIN participants ON participants.session = wanted.value;

-- name: document_archive
-- Versions of documents with all that they have. Differs: lists by json_each.
SELECT session, name, version, checksum, author, created, documents.value
FROM json_each($1) AS wanted CROSS JOIN documents ON documents.id = wanted.value;

-- name: document_names
-- The documents that sessions have. Differs: lists by json_each.
SELECT DISTINCT documents.session, documents.name
FROM json_each($1) AS wanted CROSS JOIN documents ON documents.session = wanted.value;

-- name: document_remove
-- Versions of documents that are archived go, once their session has ended. Differs: lists by json_each.
DELETE FROM documents
WHERE id IN (SELECT value FROM json_each($1))
    AND EXISTS (SELECT 1 FROM sessions WHERE sessions.id = documents.session AND sessions.ended IS NOT NULL)
RETURNING id;

-- name: event_archive
-- Events with all that they have. Differs: lists by json_each.
SELECT events.id, at, kind, subject_kind, subject, actor, facts
FROM json_each($1) AS wanted CROSS JOIN events ON events.id = wanted.value;

-- name: event_remove
-- Events that are archived go. Differs: lists by json_each.
DELETE FROM events WHERE id IN (SELECT value FROM json_each($1)) RETURNING id;

-- name: process_archive
-- Processes with all that outlives them. Differs: lists by json_each.
SELECT processes.id, host, boot, pid, started, status, created, ended
FROM json_each($1) AS wanted CROSS JOIN processes ON processes.id = wanted.value;

-- name: process_references
-- The agents and sessions that name processes. Differs: lists by json_each.
SELECT process, 'agent', id FROM agents WHERE process IN (SELECT value FROM json_each($1))
UNION ALL
SELECT process, 'session', id FROM sessions WHERE process IN (SELECT value FROM json_each($1));

-- name: process_remove
-- Processes that are archived go, unless an agent or a session names them. Differs: lists by json_each.
DELETE FROM processes
WHERE id IN (SELECT value FROM json_each($1)) AND status <> 'live'
    AND id NOT IN (SELECT process FROM agents WHERE process IS NOT NULL)
    AND id NOT IN (SELECT process FROM sessions WHERE process IS NOT NULL)
RETURNING id;

-- name: state_floors
-- Scopes of which tombstones were removed, with the highest version among those. Differs: lists by json_each.
SELECT scope, version
FROM json_each($1) AS wanted CROSS JOIN state_floors ON state_floors.scope = wanted.value;

-- name: state_sizes
-- How large the state of scopes is. Differs: lists by json_each.
SELECT scope, sum(200 + length(state.value))
FROM json_each($1) AS wanted CROSS JOIN state ON state.scope = wanted.value
WHERE state.value IS NOT NULL
GROUP BY scope;

-- name: state_archive
-- The entries of scopes with all that they have. Differs: lists by json_each.
SELECT scope, state.key, state.type, version, checksum, expires, author, created, updated, state.value
FROM json_each($1) AS wanted CROSS JOIN state ON state.scope = wanted.value
WHERE state.value IS NOT NULL;

-- name: state_archive_tombstones
-- Tombstones by their rows. Differs: lists by json_each.
SELECT scope, state.key, state.type, version, checksum, expires, author, created, updated, state.value
FROM json_each($1) AS wanted CROSS JOIN state ON state.id = wanted.value
WHERE state.value IS NULL;

-- name: state_raise_floors
-- Tombstones that go leave the highest version of their scope behind; $1 has their rows and changes.
-- Differs: lists by json_each; max of two numbers is greatest elsewhere.
INSERT INTO state_floors (scope, version)
SELECT scope, max(version)
FROM json_each($1) AS gone CROSS JOIN state ON state.id = json_extract(gone.value, '$[0]')
WHERE state.value IS NULL AND change = json_extract(gone.value, '$[1]')
GROUP BY scope
ON CONFLICT (scope) DO UPDATE SET version = max(version, excluded.version);

-- name: state_remove_tombstones
-- Tombstones that are archived go, unless they were written since; $1 has their rows and changes.
-- Differs: lists by json_each.
DELETE FROM state
WHERE id IN (
        SELECT state.id
        FROM json_each($1) AS gone CROSS JOIN state ON state.id = json_extract(gone.value, '$[0]')
        WHERE state.value IS NULL AND change = json_extract(gone.value, '$[1]')
    )
RETURNING id;
