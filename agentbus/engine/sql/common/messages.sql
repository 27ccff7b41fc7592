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
-- Messages, newest first, before the cursor; a NULL filter takes all. $2 has statuses between commas, $7 and $8 are the
-- kind and name of a recipient, $10 is who holds them.
SELECT messages.id, messages.message_id, messages.sender, mailboxes.kind, mailboxes.name, mailboxes.owner,
    messages.type, messages.payload, messages.checksum, messages.priority, messages.status, messages.attempts,
    messages.max_attempts, messages.holder, messages.session, messages.correlation, messages.error, messages.due,
    messages.expires, messages.created, messages.finished
FROM messages JOIN mailboxes ON mailboxes.id = messages.mailbox
WHERE messages.id < $1
    AND (CAST($2 AS text) IS NULL OR CAST($2 AS text) LIKE '%,' || messages.status || ',%')
    AND (CAST($3 AS text) IS NULL OR messages.type = $3)
    AND (CAST($4 AS text) IS NULL OR messages.sender = $4)
    AND (CAST($5 AS text) IS NULL OR messages.session = $5)
    AND (CAST($6 AS text) IS NULL OR messages.correlation = $6)
    AND (CAST($7 AS text) IS NULL OR messages.mailbox IN (
        SELECT id FROM mailboxes
        WHERE (kind = $7 OR ($7 = 'topic' AND kind = 'subscription')) AND name = $8
    ))
    AND (CAST($10 AS text) IS NULL OR (messages.status = 'leased' AND messages.holder = $10))
ORDER BY messages.id DESC
LIMIT $9;

-- name: message_open_counts
-- How many messages wait in the mailboxes of each agent of a session, and how many from there are in somebody's hands.
SELECT own.agent,
    CAST(sum((SELECT count(*) FROM messages WHERE mailbox = own.mailbox AND status = 'queued')
        + (SELECT count(*) FROM messages WHERE mailbox = own.mailbox AND status = 'scheduled')) AS bigint),
    CAST(sum((SELECT count(*) FROM messages WHERE mailbox = own.mailbox AND status = 'leased')) AS bigint)
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
-- A message from an archive, or from elsewhere.
INSERT INTO messages (
    id, message_id, mailbox, sender, type, checksum, priority, status, attempts, max_attempts, lease, holder, expires,
    correlation, session, error, created, finished, payload, due, reply_to
)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21)
ON CONFLICT DO NOTHING
RETURNING id;

-- name: message_same
-- Whether the message of an id is the one that an archive has.
SELECT CASE WHEN created = $2 AND checksum = $3 THEN 1 ELSE 0 END FROM messages WHERE id = $1;

-- name: message_payloads
-- Stored payloads with their checksums, newest first, before the cursor.
SELECT id, checksum, payload, coalesce(message_id, 'm-' || id) FROM messages WHERE id < $1 ORDER BY id DESC LIMIT $2;

-- name: message_stuck
-- How many leases ran out before a time.
SELECT count(*) FROM messages WHERE status = 'leased' AND lease_until <= $1;

-- name: message_in_box
-- The message that has a message_id in a mailbox: its checksum, type and sender.
SELECT checksum, type, sender FROM messages WHERE message_id = $1 AND mailbox = $2;

-- name: message_standing
-- A message as the settling operations see it, for one who only wants to look.
SELECT id, lease, status, holder, attempts, max_attempts, mailbox, type, message_id, correlation, reply_to, session,
    expires
FROM messages WHERE id = $1;

-- name: message_waiting
-- The most urgent messages that wait in a mailbox.
SELECT priority, id FROM messages WHERE mailbox = $1 AND status = 'queued' ORDER BY priority DESC, id LIMIT $2;

-- name: message_after
-- Messages in the order of their ids, after one and up to another: whose session they are of, and how large they are.
SELECT id, session, length(payload) + 400 FROM messages WHERE id > $1 AND id <= $2 ORDER BY id LIMIT $3;
