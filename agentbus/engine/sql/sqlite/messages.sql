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

-- name: message_has_lapsed
-- Whether a lease ran out, in whatever mailbox. Differs: the index is named, as below.
SELECT 1 FROM messages INDEXED BY messages_leased WHERE status = 'leased' AND lease_until <= $1 LIMIT 1;

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

-- name: message_archive
-- Finished messages with all that they have. Differs: lists by json_each.
SELECT messages.id, message_id, mailboxes.kind, mailboxes.name, mailboxes.owner, sender, messages.type, checksum,
    priority, status, attempts, max_attempts, lease, holder, expires, correlation, session, error, messages.created,
    finished, payload, due, (SELECT owner FROM mailboxes AS replies WHERE replies.id = messages.reply_to)
FROM json_each($1) AS wanted
CROSS JOIN messages ON messages.id = wanted.value
CROSS JOIN mailboxes ON mailboxes.id = messages.mailbox
WHERE finished IS NOT NULL;

-- name: message_export
-- The same of messages that may be open. Differs: lists by json_each.
SELECT messages.id, message_id, mailboxes.kind, mailboxes.name, mailboxes.owner, sender, messages.type, checksum,
    priority, status, attempts, max_attempts, lease, holder, expires, correlation, session, error, messages.created,
    finished, payload, due, (SELECT owner FROM mailboxes AS replies WHERE replies.id = messages.reply_to)
FROM json_each($1) AS wanted
CROSS JOIN messages ON messages.id = wanted.value
CROSS JOIN mailboxes ON mailboxes.id = messages.mailbox;

-- name: message_remove
-- Messages that are archived go, unless they finished later than $2. Differs: lists by json_each.
DELETE FROM messages WHERE id IN (SELECT value FROM json_each($1)) AND finished <= $2 RETURNING id;
