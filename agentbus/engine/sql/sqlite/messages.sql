-- name: message_by_message_id
-- Messages sent before under these ids. Differs: one writer at a time needs no lock.
SELECT messages.message_id, messages.id, messages.mailbox, messages.type, messages.payload, messages.correlation,
    CASE WHEN mailboxes.kind = 'subscription' THEN mailboxes.name END,
    CASE WHEN messages.status = 'scheduled' AND messages.due IS NULL THEN 1 ELSE 0 END
FROM messages JOIN mailboxes ON mailboxes.id = messages.mailbox
WHERE messages.message_id IN (SELECT value FROM json_each($1))
ORDER BY messages.id;

-- name: message_ready
-- The most urgent messages of each mailbox, at most $2 of each. Differs: no LATERAL, and no locks inside BEGIN
-- IMMEDIATE. Reading the rows of those that are leased is faster than RETURNING them.
SELECT ready.mailbox, ready.priority, ready.id
FROM json_each($1) AS wanted
JOIN messages AS ready ON ready.id IN (
    SELECT id FROM messages
    WHERE mailbox = wanted.value AND status = 'queued'
    ORDER BY priority DESC, id
    LIMIT $2
)
ORDER BY ready.priority DESC, ready.id;

-- name: message_next
-- The most urgent messages of one mailbox, at most $2, as their receiver gets them; and a row without an id if it has
-- more. Differs: no locks inside BEGIN IMMEDIATE.
SELECT * FROM (
    SELECT mailbox, priority, /* columns: message */
    FROM messages
    WHERE mailbox = $1 AND status = 'queued'
    ORDER BY priority DESC, id
    LIMIT $2
) AS found
UNION ALL
SELECT $1, -1, /* nulls: message */
WHERE EXISTS (SELECT 1 FROM messages WHERE mailbox = $1 AND status = 'queued' LIMIT 1 OFFSET $2);

-- name: message_claim_one
-- Lease the most urgent message of the mailboxes $1 to $2 until $3, at the wall time $5 and awake time $6; $4 is 1 if the
-- attempt counts at once. Returns whether messages are left, and the leased message; nothing if none is ready, or a
-- mailbox must be maintained first. Differs: no locks inside BEGIN IMMEDIATE, and the caller has checked the directory.
UPDATE messages SET
    status = 'leased', lease = lease + 1, holder = $2, lease_until = $3, attempts = attempts + $4, leased_at = $5
WHERE id = (
    SELECT ready.id
    FROM json_each($1) AS wanted
    JOIN messages AS ready ON ready.id = (
        SELECT id FROM messages
        WHERE mailbox = wanted.value AND status = 'queued'
        ORDER BY priority DESC, id
        LIMIT 1
    )
    ORDER BY ready.priority DESC, ready.id
    LIMIT 1
) AND NOT EXISTS (
    SELECT 1 FROM json_each($1) AS wanted
    WHERE EXISTS (SELECT 1 FROM messages WHERE mailbox = wanted.value AND status = 'scheduled' AND due <= $5)
        OR EXISTS (SELECT 1 FROM messages WHERE mailbox = wanted.value AND status = 'leased' AND lease_until <= $6)
        OR EXISTS (
            SELECT 1 FROM messages
            WHERE mailbox = wanted.value AND expires <= $5 AND expires IS NOT NULL AND status IN ('queued', 'scheduled')
        )
)
RETURNING EXISTS (
    SELECT 1 FROM json_each($1) AS wanted
    WHERE EXISTS (SELECT 1 FROM messages AS others WHERE others.mailbox = wanted.value AND others.status = 'queued')
), /* columns: message */;

-- name: message_ack_one
-- Acknowledge a message that is leased to $4 under the lease $3. Differs: the caller has checked the directory.
UPDATE messages SET status = 'acked', finished = $1
WHERE id = $2 AND status = 'leased' AND lease = $3 AND holder = $4
RETURNING id;

-- name: message_waiting_for
-- At most $2 unfinished messages of an agent's own mailboxes, each after the length of its payload. One branch for each
-- partial index. Differs: one limit stops all branches.
WITH own (mailbox) AS (
    SELECT mailbox FROM agents WHERE id = $1
    UNION SELECT replies FROM agents WHERE id = $1
    UNION SELECT mailbox FROM subscriptions WHERE agent = $1
)
SELECT length(payload), /* columns: held */
FROM messages
WHERE id IN (
    SELECT id FROM messages WHERE status = 'queued' AND mailbox IN (SELECT mailbox FROM own)
    UNION ALL SELECT id FROM messages WHERE status = 'scheduled' AND mailbox IN (SELECT mailbox FROM own)
    UNION ALL SELECT id FROM messages WHERE status = 'leased' AND mailbox IN (SELECT mailbox FROM own)
    LIMIT $2
);

-- name: message_promote
-- Queue scheduled messages that are due. Differs: no other transaction can promote them.
UPDATE messages SET status = 'queued'
WHERE status = 'scheduled' AND due <= $1 AND mailbox IN (SELECT value FROM json_each($2));

-- name: message_expire
-- Expire messages that were not claimed in time. Differs: no other transaction can have locked them.
UPDATE messages SET status = 'expired', finished = $1
WHERE status IN ('queued', 'scheduled') AND expires IS NOT NULL AND expires <= $1
    AND mailbox IN (SELECT value FROM json_each($2));

-- name: message_expire_all
-- Expire the waiting messages of mailboxes without a reader. One branch for each partial index. Differs: no other
-- transaction can have locked them.
UPDATE messages SET status = 'expired', finished = $1, error = $2
WHERE id IN (
    SELECT id FROM messages WHERE status = 'queued' AND mailbox IN (SELECT value FROM json_each($3))
    UNION ALL SELECT id FROM messages WHERE status = 'scheduled' AND mailbox IN (SELECT value FROM json_each($3))
);

-- name: message_expire_some
-- Expire at most $3 messages that were not claimed in time. Differs: a join, so that the limit stops the search.
UPDATE messages SET status = 'expired', finished = $1
WHERE id IN (
    SELECT messages.id FROM json_each($2) AS boxes CROSS JOIN messages ON messages.mailbox = boxes.value
    WHERE messages.status IN ('queued', 'scheduled') AND messages.expires IS NOT NULL AND messages.expires <= $1
    LIMIT $3
)
RETURNING id;

-- name: message_purge
-- Delete finished messages, oldest first. Differs: no other transaction can delete them.
DELETE FROM messages
WHERE id IN (
    SELECT id FROM messages
    WHERE id > $4 AND status IN (SELECT value FROM json_each($1)) AND finished <= $2
    ORDER BY id
    LIMIT $3
)
RETURNING id;

-- name: message_open_of
-- Unfinished messages in the mailboxes of these agents, oldest first. One branch for each partial index. Differs: no
-- LATERAL.
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
