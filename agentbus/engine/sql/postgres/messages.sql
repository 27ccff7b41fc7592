-- name: message_by_message_id
-- Messages sent before under these ids. Differs: transactions that send under one id are serialized, and the second
-- finds the message of the first; ids share 256 locks, because a transaction can hold a limited number.
SELECT pg_advisory_xact_lock(hashtextextended('agentbus message ' || current_schema() || place, 0))
FROM (SELECT DISTINCT hashtextextended(id, 0) & 255 AS place FROM unnest($1::text[]) AS id ORDER BY place) AS places;
SELECT messages.message_id, messages.id, messages.mailbox, messages.type, messages.payload, messages.correlation,
    CASE WHEN mailboxes.kind = 'subscription' THEN mailboxes.name END,
    CASE WHEN messages.status = 'scheduled' AND messages.due IS NULL THEN 1 ELSE 0 END
FROM messages JOIN mailboxes ON mailboxes.id = messages.mailbox
WHERE messages.message_id = ANY ($1)
ORDER BY messages.id;

-- name: message_ready
-- The most urgent messages of each mailbox, fewer than $2 of each, as their receiver gets them; and a row without an id
-- for a mailbox with more messages, locked or not. Differs: the messages stay locked until they are leased, and those
-- that other transactions have locked are skipped; a second query for the rows would take another round trip.
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
SELECT mailbox, priority, /* columns: message */
FROM ready
UNION ALL
SELECT wanted.mailbox, -1, /* nulls: message */
FROM unnest($1::bigint[]) AS wanted (mailbox)
WHERE EXISTS (
    SELECT 1 FROM messages WHERE messages.mailbox = wanted.mailbox AND messages.status = 'queued'
    OFFSET (SELECT count(*) FROM ready WHERE ready.mailbox = wanted.mailbox) LIMIT 1
)
ORDER BY 2 DESC, 3;

-- name: message_claim_one
-- Lease the most urgent message of the mailboxes $1 to $2 until $3, at the wall time $5 and awake time $6; $4 is 1 if the
-- attempt counts at once. Returns whether messages are left or a mailbox must be maintained first, and the leased
-- message, if any. Differs: a transaction of its own, not flushed; returns nothing unless the directory has the version
-- $7.
WITH current AS MATERIALIZED (
    SELECT directory_is($7) AND set_config('synchronous_commit', 'off', true) = 'off' AS is_current,
        EXISTS (SELECT 1 FROM messages WHERE mailbox = ANY ($1) AND status = 'scheduled' AND due <= $5)
        OR EXISTS (SELECT 1 FROM messages WHERE mailbox = ANY ($1) AND status = 'leased' AND lease_until <= $6)
        OR EXISTS (
            SELECT 1 FROM messages
            WHERE mailbox = ANY ($1) AND expires <= $5 AND expires IS NOT NULL AND status IN ('queued', 'scheduled')
        ) AS is_past
),
leased AS (
    UPDATE messages SET
        status = 'leased', lease = lease + 1, holder = $2, lease_until = $3, attempts = attempts + $4, leased_at = $5
    WHERE id = (
        SELECT ready.id
        FROM unnest($1::bigint[]) AS wanted (mailbox)
        CROSS JOIN LATERAL (
            SELECT messages.id, messages.priority FROM messages
            WHERE messages.mailbox = wanted.mailbox AND messages.status = 'queued'
                AND (SELECT is_current AND NOT is_past FROM current)
            ORDER BY messages.priority DESC, messages.id
            LIMIT 1
            FOR UPDATE SKIP LOCKED
        ) AS ready
        ORDER BY ready.priority DESC, ready.id
        LIMIT 1
    )
    RETURNING /* columns: message */
)
SELECT is_past OR EXISTS (
        SELECT 1 FROM messages
        WHERE mailbox = ANY ($1) AND status = 'queued' AND id <> coalesce((SELECT leased.id FROM leased), 0)
    ),
    leased.*
FROM current LEFT JOIN leased ON true
WHERE is_current;

-- name: message_claim_one_lost
-- Release the message that `message_claim_one` leased with these parameters, if it did. Differs: for a lost connection.
UPDATE messages SET status = 'queued', holder = NULL, lease_until = NULL, attempts = attempts - $4
WHERE mailbox = ANY ($1) AND status = 'leased' AND holder = $2 AND lease_until = $3 AND leased_at = $5
    AND lease_until > CAST($6 AS bigint);

-- name: message_ack_one
-- Acknowledge a message that is leased to $4 under the lease $3. Differs: a transaction of its own, not flushed; changes
-- nothing unless the directory has the version $5.
UPDATE messages SET status = 'acked', finished = $1
WHERE id = $2 AND status = 'leased' AND lease = $3 AND holder = $4
    AND directory_is($5) AND set_config('synchronous_commit', 'off', true) = 'off'
RETURNING id;

-- name: message_ack_one_lost
-- The message that `message_ack_one` acknowledged with these parameters, if it did. Differs: for a lost connection.
SELECT id FROM messages WHERE id = $2 AND status = 'acked' AND lease = $3 AND holder = $4 AND finished = $1;

-- name: message_next
-- The most urgent messages of one mailbox, at most $2, as their receiver gets them; and a row without an id if it has
-- more, locked or not. Differs: the messages stay locked until they are leased, and those that other transactions have
-- locked are skipped.
WITH ready AS MATERIALIZED (
    SELECT messages.* FROM messages
    WHERE mailbox = $1 AND status = 'queued'
    ORDER BY priority DESC, id
    LIMIT $2
    FOR UPDATE SKIP LOCKED
)
SELECT mailbox, priority, /* columns: message */
FROM ready
UNION ALL
SELECT CAST($1 AS bigint), -1, /* nulls: message */
WHERE EXISTS (
    SELECT 1 FROM messages WHERE messages.mailbox = $1 AND messages.status = 'queued'
    OFFSET (SELECT count(*) FROM ready) LIMIT 1
)
ORDER BY 2 DESC, 3;

-- name: message_waiting_for
-- At most $2 unfinished messages of an agent's own mailboxes, each after the length of its payload. One branch for each
-- partial index. Differs: each branch has a limit.
WITH own (mailbox) AS (
    SELECT mailbox FROM agents WHERE id = $1
    UNION SELECT replies FROM agents WHERE id = $1
    UNION SELECT mailbox FROM subscriptions WHERE agent = $1
)
SELECT length(payload), /* columns: held */
FROM messages
WHERE id IN (
    (SELECT id FROM messages WHERE status = 'queued' AND mailbox IN (SELECT mailbox FROM own) LIMIT $2)
    UNION ALL (SELECT id FROM messages WHERE status = 'scheduled' AND mailbox IN (SELECT mailbox FROM own) LIMIT $2)
    UNION ALL (SELECT id FROM messages WHERE status = 'leased' AND mailbox IN (SELECT mailbox FROM own) LIMIT $2)
    LIMIT $2
);

-- name: message_promote
-- Queue scheduled messages that are due. Differs: skips those that another transaction promotes.
UPDATE messages SET status = 'queued'
WHERE id = ANY (ARRAY(
    SELECT id FROM messages
    WHERE status = 'scheduled' AND due <= $1 AND mailbox = ANY ($2)
    FOR UPDATE SKIP LOCKED
));

-- name: message_expire
-- Expire messages that were not claimed in time. Differs: skips those that another transaction has locked.
UPDATE messages SET status = 'expired', finished = $1
WHERE id = ANY (ARRAY(
    SELECT id FROM messages
    WHERE status IN ('queued', 'scheduled') AND expires IS NOT NULL AND expires <= $1 AND mailbox = ANY ($2)
    FOR UPDATE SKIP LOCKED
));

-- name: message_expire_all
-- Expire the waiting messages of mailboxes without a reader. Differs: waits for transactions that have locked one, then
-- checks its status again.
UPDATE messages SET status = 'expired', finished = $1, error = $2
WHERE status IN ('queued', 'scheduled') AND id IN (
    SELECT id FROM messages WHERE status = 'queued' AND mailbox = ANY ($3)
    UNION ALL SELECT id FROM messages WHERE status = 'scheduled' AND mailbox = ANY ($3)
);

-- name: message_expire_some
-- Expire at most $3 messages that were not claimed in time. Differs: skips those that another transaction has locked.
UPDATE messages SET status = 'expired', finished = $1
WHERE id = ANY (ARRAY(
    SELECT id FROM messages
    WHERE status IN ('queued', 'scheduled') AND expires IS NOT NULL AND expires <= $1 AND mailbox = ANY ($2)
    LIMIT $3
    FOR UPDATE SKIP LOCKED
))
RETURNING id;

-- name: message_purge
-- Delete finished messages, oldest first. Differs: skips those that another transaction deletes.
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
-- Unfinished messages in the mailboxes of these agents, oldest first. One branch for each partial index. Differs:
-- LATERAL.
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

-- name: reply_take
-- Take the reply to one request and acknowledge it in one step. Differs: of two transactions that take it at once, one
-- does.
UPDATE messages SET status = 'acked', finished = $1, attempts = 1
WHERE id = (
    SELECT id FROM messages
    WHERE mailbox = $2 AND correlation = $3 AND status = 'queued'
    ORDER BY id
    LIMIT 1
    FOR UPDATE SKIP LOCKED
)
RETURNING /* columns: message */;
