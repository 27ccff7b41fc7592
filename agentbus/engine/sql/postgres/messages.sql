-- name: message_by_message_id
-- What was sent before under these ids. Differs: two transactions that send under one id take turns, and the second finds
-- what the first has sent; ids share 256 locks, of which a transaction can have only so many.
SELECT pg_advisory_xact_lock(hashtextextended('agentbus message ' || current_schema() || place, 0))
FROM (SELECT DISTINCT hashtextextended(id, 0) & 255 AS place FROM unnest($1::text[]) AS id ORDER BY place) AS places;
SELECT messages.message_id, messages.id, messages.mailbox, messages.type, messages.payload, messages.correlation,
    CASE WHEN mailboxes.kind = 'subscription' THEN mailboxes.name END
FROM messages JOIN mailboxes ON mailboxes.id = messages.mailbox
WHERE messages.message_id = ANY ($1)
ORDER BY messages.id;

-- name: message_ready
-- The most urgent messages of each mailbox, fewer than $2 from each, with all that message_rows gives of them; and a row
-- without an id for a mailbox in which something is left, be it in other hands or not. Differs: what is found is locked until it
-- is leased, so that none is found in vain, and what others have locked is passed over; asking for the rows apart would take
-- another round trip.
WITH ready AS MATERIALIZED (
    SELECT found.*
    FROM unnest($1::bigint[]) AS wanted (mailbox)
    CROSS JOIN LATERAL (
        SELECT messages.* FROM messages
        WHERE messages.mailbox = wanted.mailbox AND messages.status = 'queued'
        ORDER BY messages.priority DESC, messages.id
        LIMIT $2 - 1
        FOR UPDATE SKIP LOCKED
    ) AS found
)
SELECT mailbox, priority, id, message_id, sender, type, payload, checksum, priority, attempts, lease, session,
    correlation, reply_to, created, mailbox, expires
FROM ready
UNION ALL
SELECT wanted.mailbox, -1, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
FROM unnest($1::bigint[]) AS wanted (mailbox)
WHERE EXISTS (
    SELECT 1 FROM messages WHERE messages.mailbox = wanted.mailbox AND messages.status = 'queued'
    OFFSET (SELECT count(*) FROM ready WHERE ready.mailbox = wanted.mailbox) LIMIT 1
)
ORDER BY 2 DESC, 3;

-- name: message_rows
-- Messages as their receiver gets them; `lease` and `attempts` are those before this hand-out.
-- Differs: lists are arrays.
SELECT messages.id, message_id, sender, messages.type, payload, checksum, priority, attempts, lease, session,
    correlation, reply_to, created, mailbox, expires
FROM messages
WHERE messages.id = ANY ($1);

-- name: message_lease
-- Lease messages until $2, to $1 or (if that is NULL) to the owner of their mailbox; the attempt counts when they are
-- handed to the code at once. Differs: lists are arrays.
UPDATE messages SET
    status = 'leased',
    lease = lease + 1,
    holder = coalesce(CAST($1 AS text), (SELECT owner FROM mailboxes WHERE mailboxes.id = messages.mailbox)),
    lease_until = $2,
    attempts = attempts + $3
WHERE id = ANY ($4);

-- name: message_ack
-- Messages are done; says whose they were, for the caller to compare. Differs: lists are arrays.
UPDATE messages SET status = 'acked', finished = $1
WHERE id = ANY ($2) AND status = 'leased'
RETURNING id, lease, holder;

-- name: message_held
-- Messages as the settling operations see them. Differs: they stay so until the commit.
SELECT id, lease, status, holder, attempts, max_attempts, mailbox, type, message_id, correlation, reply_to, session,
    expires
FROM messages
WHERE id = ANY ($1)
ORDER BY id
FOR UPDATE;

-- name: message_held_by
-- What agents hold, also from pools that they have left since. Differs: lists are arrays.
SELECT id, lease, status, holder, attempts, max_attempts, mailbox, type, message_id, correlation, reply_to, session,
    expires
FROM messages
WHERE status = 'leased' AND holder = ANY ($1);

-- name: message_waiting_for
-- At most $2 unfinished messages of an agent's own mailboxes, each after the length of its payload.
-- Differs: one branch for each partial index, each of which ends after $2.
WITH own (mailbox) AS (
    SELECT mailbox FROM agents WHERE id = $1
    UNION SELECT replies FROM agents WHERE id = $1
    UNION SELECT mailbox FROM subscriptions WHERE agent = $1
)
SELECT length(payload), id, lease, status, holder, attempts, max_attempts, mailbox, type, message_id, correlation,
    reply_to, session, expires
FROM messages
WHERE id IN (
    (SELECT id FROM messages WHERE status = 'queued' AND mailbox IN (SELECT mailbox FROM own) LIMIT $2)
    UNION ALL (SELECT id FROM messages WHERE status = 'scheduled' AND mailbox IN (SELECT mailbox FROM own) LIMIT $2)
    UNION ALL (SELECT id FROM messages WHERE status = 'leased' AND mailbox IN (SELECT mailbox FROM own) LIMIT $2)
    LIMIT $2
);

-- name: message_promote
-- Scheduled messages whose time has come. Differs: those that another transaction promotes are left to it.
UPDATE messages SET status = 'queued'
WHERE id = ANY (ARRAY(
    SELECT id FROM messages
    WHERE status = 'scheduled' AND due <= $1 AND mailbox = ANY ($2)
    FOR UPDATE SKIP LOCKED
));

-- name: message_expire
-- Messages that nobody took in time. Differs: those that another transaction has in hand are left to it.
UPDATE messages SET status = 'expired', finished = $1
WHERE id = ANY (ARRAY(
    SELECT id FROM messages
    WHERE status IN ('queued', 'scheduled') AND expires IS NOT NULL AND expires <= $1 AND mailbox = ANY ($2)
    FOR UPDATE SKIP LOCKED
));

-- name: message_expire_all
-- Messages that wait where nobody will take them. Differs: lists are arrays; whoever has one in hand is waited for.
UPDATE messages SET status = 'expired', finished = $1, error = $2
WHERE status IN ('queued', 'scheduled') AND id IN (
    SELECT id FROM messages WHERE status = 'queued' AND mailbox = ANY ($3)
    UNION ALL SELECT id FROM messages WHERE status = 'scheduled' AND mailbox = ANY ($3)
);

-- name: message_lapsed
-- Messages whose lease ran out. Differs: they stay so until the commit; those in other hands are left to them.
SELECT id, lease, status, holder, attempts, max_attempts, mailbox, type, message_id, correlation, reply_to, session,
    expires
FROM messages
WHERE status = 'leased' AND lease_until <= $1 AND mailbox = ANY ($2)
FOR UPDATE SKIP LOCKED;

-- name: message_has_lapsed
-- Whether a lease ran out, in whatever mailbox. Differs: no index needs to be named.
SELECT 1 FROM messages WHERE status = 'leased' AND lease_until <= $1 LIMIT 1;

-- name: message_lapsed_anywhere
-- Messages whose lease ran out, in whatever mailbox. Differs: as above.
SELECT id, lease, status, holder, attempts, max_attempts, mailbox, type, message_id, correlation, reply_to, session,
    expires
FROM messages
WHERE status = 'leased' AND lease_until <= $1
LIMIT $2
FOR UPDATE SKIP LOCKED;

-- name: message_extend_held
-- Hold all that an agent holds for longer. Differs: no index needs to be named.
UPDATE messages SET lease_until = $1
WHERE status = 'leased' AND holder = $2 AND lease_until < $1;

-- name: message_expire_some
-- At most $3 messages that nobody took in time. Differs: those that another transaction has in hand are left to it.
UPDATE messages SET status = 'expired', finished = $1
WHERE id = ANY (ARRAY(
    SELECT id FROM messages
    WHERE status IN ('queued', 'scheduled') AND expires IS NOT NULL AND expires <= $1 AND mailbox = ANY ($2)
    LIMIT $3
    FOR UPDATE SKIP LOCKED
))
RETURNING id;

-- name: message_find
-- Messages by row id or by message_id, and who reads their mailbox. Differs: lists are arrays.
SELECT messages.id, messages.message_id, messages.status, messages.mailbox, messages.attempts, messages.error,
    mailboxes.kind, mailboxes.owner, agents.status, subscriptions.mailbox
FROM messages
JOIN mailboxes ON mailboxes.id = messages.mailbox
LEFT JOIN agents ON agents.id = mailboxes.owner
LEFT JOIN subscriptions ON subscriptions.agent = mailboxes.owner AND subscriptions.mailbox = mailboxes.id
WHERE messages.id IN (
    SELECT unnest($1::bigint[])
    UNION SELECT id FROM messages WHERE message_id = ANY ($2)
);

-- name: message_purge
-- Delete finished messages, oldest first. Differs: those that another transaction deletes are left to it.
DELETE FROM messages
WHERE id = ANY (ARRAY(
    SELECT id FROM messages
    WHERE id > $4 AND status = ANY ($1) AND finished <= $2
    ORDER BY id
    LIMIT $3
    FOR UPDATE SKIP LOCKED
))
RETURNING id;

-- name: message_open_of
-- Unfinished messages in the mailboxes of these agents, oldest first. Differs: lists are arrays; one branch for each
-- partial index.
WITH own (agent, mailbox) AS (
    SELECT id, mailbox FROM agents WHERE id = ANY ($1)
    UNION ALL SELECT agent, mailbox FROM subscriptions WHERE agent = ANY ($1)
)
SELECT open.id, open.message_id, open.sender, own.agent, open.type, open.status
FROM own CROSS JOIN LATERAL (
    SELECT id, message_id, sender, type, status FROM messages WHERE status = 'queued' AND mailbox = own.mailbox
    UNION ALL
    SELECT id, message_id, sender, type, status FROM messages WHERE status = 'scheduled' AND mailbox = own.mailbox
    UNION ALL
    SELECT id, message_id, sender, type, status FROM messages WHERE status = 'leased' AND mailbox = own.mailbox
) AS open
ORDER BY open.id
LIMIT $2;

-- name: message_still_open
-- Those of these messages that are not finished. Differs: lists are arrays.
SELECT messages.id
FROM messages
WHERE messages.id = ANY ($1)
    AND messages.status IN ('queued', 'leased', 'scheduled');

-- name: message_archive
-- Finished messages with all that they have. Differs: lists are arrays.
SELECT messages.id, message_id, mailboxes.kind, mailboxes.name, mailboxes.owner, sender, messages.type, checksum,
    priority, status, attempts, max_attempts, lease, holder, expires, correlation, session, error, messages.created,
    finished, payload, due, (SELECT owner FROM mailboxes AS replies WHERE replies.id = messages.reply_to)
FROM messages JOIN mailboxes ON mailboxes.id = messages.mailbox
WHERE messages.id = ANY ($1) AND finished IS NOT NULL
ORDER BY messages.id;

-- name: message_export
-- The same of messages that may be open. Differs: lists are arrays.
SELECT messages.id, message_id, mailboxes.kind, mailboxes.name, mailboxes.owner, sender, messages.type, checksum,
    priority, status, attempts, max_attempts, lease, holder, expires, correlation, session, error, messages.created,
    finished, payload, due, (SELECT owner FROM mailboxes AS replies WHERE replies.id = messages.reply_to)
FROM messages JOIN mailboxes ON mailboxes.id = messages.mailbox
WHERE messages.id = ANY ($1)
ORDER BY messages.id;

-- name: message_remove
-- Messages that are archived go, unless they finished later than $2. Differs: lists are arrays.
DELETE FROM messages WHERE id = ANY ($1) AND finished <= $2 RETURNING id;

-- name: reply_take
-- The reply to one request, handed over and done in one step. Differs: of two who take it at once, one does.
UPDATE messages SET status = 'acked', finished = $1, attempts = 1
WHERE id = (
    SELECT id FROM messages
    WHERE mailbox = $2 AND correlation = $3 AND status = 'queued'
    ORDER BY id
    LIMIT 1
    FOR UPDATE SKIP LOCKED
)
RETURNING id, message_id, sender, type, payload, checksum, priority, attempts, lease, session, correlation,
    reply_to, created, mailbox, expires;
