-- name: mailbox_names
-- Pools or topics to suggest for a misspelt name.
SELECT name FROM mailboxes WHERE kind = $1 ORDER BY id DESC LIMIT 1000;

-- name: mailbox_ensure
-- Create a mailbox if it does not exist.
INSERT INTO mailboxes (kind, name, owner, created) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING;

-- name: mailbox_find
-- The mailbox of a kind, name and owner.
SELECT id FROM mailboxes WHERE kind = $1 AND name = $2 AND owner = $3;

-- name: pool_join
-- Add an agent to a pool.
INSERT INTO pool_members (pool, agent, joined) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING;

-- name: pool_leave
-- Remove an agent from a pool.
DELETE FROM pool_members
WHERE agent = $2 AND pool = (SELECT id FROM mailboxes WHERE kind = 'pool' AND name = $1 AND owner = '');

-- name: subscription_insert
-- Subscribe an agent to a topic.
INSERT INTO subscriptions (topic, agent, mailbox, since) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING;

-- name: subscription_end
-- Unsubscribe an agent from a topic.
DELETE FROM subscriptions
WHERE agent = $2 AND topic = (SELECT id FROM mailboxes WHERE kind = 'topic' AND name = $1 AND owner = '')
RETURNING mailbox;

-- name: queue_oldest
-- The creation time of the oldest queued message: ids are given in order. The plus keeps to the index of queued messages, which
-- has the id: finished ones before it are not read.
SELECT (SELECT created FROM messages WHERE id = (SELECT min(+id) FROM messages WHERE status = 'queued'));

-- name: queue_depths
-- The deepest mailboxes: the number of queued messages, and the creation time of the oldest. Messages are counted in the index
-- alone; rows are read for the mailboxes that are returned.
WITH deep AS (
    SELECT mailbox, count(*) AS number FROM messages WHERE status = 'queued'
    GROUP BY mailbox ORDER BY count(*) DESC, mailbox LIMIT $1
)
SELECT mailboxes.kind, mailboxes.name, mailboxes.owner, deep.number,
    (SELECT created FROM messages WHERE id = (
        SELECT min(+queued.id) FROM messages AS queued WHERE queued.mailbox = deep.mailbox AND queued.status = 'queued'
    ))
FROM deep JOIN mailboxes ON mailboxes.id = deep.mailbox
ORDER BY deep.number DESC, mailboxes.id;

-- name: queue_list
-- The mailboxes of agents and pools after a cursor, or of one kind, with the numbers of their waiting, scheduled, leased and
-- dead messages, the creation time of the oldest that waits, and the number of live members.
SELECT mailboxes.id, mailboxes.kind, mailboxes.name, mailboxes.owner,
    (SELECT count(*) FROM messages WHERE messages.mailbox = mailboxes.id AND messages.status = 'queued'),
    (SELECT count(*) FROM messages WHERE messages.mailbox = mailboxes.id AND messages.status = 'scheduled'),
    (SELECT count(*) FROM messages WHERE messages.mailbox = mailboxes.id AND messages.status = 'leased'),
    (SELECT min(messages.created) FROM messages WHERE messages.mailbox = mailboxes.id AND messages.status = 'queued'),
    CASE WHEN mailboxes.kind = 'pool' THEN (
        SELECT count(*) FROM pool_members JOIN agents ON agents.id = pool_members.agent
        WHERE pool_members.pool = mailboxes.id AND agents.status IN ('running', 'suspect')
    ) ELSE (
        SELECT count(*) FROM agents WHERE agents.id = mailboxes.owner AND agents.status IN ('running', 'suspect')
    ) END
FROM mailboxes
WHERE mailboxes.kind IN ('agent', 'pool') AND mailboxes.id > $1 AND (CAST($3 AS text) IS NULL OR mailboxes.kind = $3)
ORDER BY mailboxes.id
LIMIT $2;

-- name: queue_dead
-- The number of dead letters of each mailbox.
SELECT messages.mailbox, count(*) FROM messages WHERE messages.status = 'dead' GROUP BY messages.mailbox;

-- name: mailbox_deep
-- Mailboxes with more than $1 waiting messages, including those due by $2 that no receiver has claimed. Each mailbox is
-- found by one step along the index: there may be many messages.
WITH RECURSIVE boxes (mailbox) AS (
    SELECT min(mailbox) FROM messages WHERE status = 'queued'
    UNION ALL
    SELECT (SELECT min(mailbox) FROM messages WHERE mailbox > boxes.mailbox AND status = 'queued')
    FROM boxes WHERE boxes.mailbox IS NOT NULL
),
later (mailbox) AS (
    SELECT min(mailbox) FROM messages WHERE status = 'scheduled'
    UNION ALL
    SELECT (SELECT min(mailbox) FROM messages WHERE mailbox > later.mailbox AND status = 'scheduled')
    FROM later WHERE later.mailbox IS NOT NULL
)
SELECT mailboxes.kind, mailboxes.name, mailboxes.owner
FROM (SELECT mailbox FROM boxes UNION SELECT mailbox FROM later) AS every
JOIN mailboxes ON mailboxes.id = every.mailbox
WHERE (
    SELECT id FROM messages WHERE messages.mailbox = every.mailbox AND status = 'queued'
    UNION ALL
    SELECT id FROM messages WHERE messages.mailbox = every.mailbox AND status = 'scheduled' AND due <= $2
    LIMIT 1 OFFSET $1
) IS NOT NULL
LIMIT $3;

-- name: mailbox_waiting
-- The number of queued and scheduled messages of a mailbox, counted up to $2.
SELECT count(*) FROM (
    SELECT id FROM messages WHERE mailbox = $1 AND status = 'queued'
    UNION ALL
    SELECT id FROM messages WHERE mailbox = $1 AND status = 'scheduled'
    LIMIT $2
) AS waiting;

-- name: mailbox_arrivals
-- At most $3 messages that wait in a mailbox: queued, or due by $2. One branch for each partial index.
SELECT id FROM messages WHERE mailbox = $1 AND status = 'queued' AND (expires IS NULL OR expires > $2)
UNION ALL
SELECT id FROM messages
WHERE mailbox = $1 AND status = 'scheduled' AND due <= $2 AND (expires IS NULL OR expires > $2)
LIMIT $3;

-- name: mailbox_next_due
-- When the next scheduled message of a mailbox is due after $2.
SELECT min(due) FROM messages WHERE mailbox = $1 AND status = 'scheduled' AND due > $2;

-- name: mailbox_unattended
-- Pools without a live member in which work waits, including work due by $1. Starts from members: there may be many
-- live agents.
SELECT name FROM mailboxes
WHERE kind = 'pool' AND owner = ''
    AND (
        EXISTS (SELECT 1 FROM messages WHERE messages.mailbox = mailboxes.id AND messages.status = 'queued')
        OR EXISTS (
            SELECT 1 FROM messages
            WHERE messages.mailbox = mailboxes.id AND messages.status = 'scheduled' AND messages.due <= $1
        )
    )
    AND NOT EXISTS (
        SELECT 1 FROM pool_members
        WHERE pool_members.pool = mailboxes.id
            AND (SELECT status FROM agents WHERE agents.id = pool_members.agent) IN ('running', 'suspect', 'spawning')
    )
ORDER BY name
LIMIT $2;

-- name: mailbox_shared
-- All pools and topics.
SELECT kind, name FROM mailboxes WHERE kind IN ('pool', 'topic') ORDER BY id;

-- name: pool_mailbox
-- The mailboxes of pools.
SELECT name, id FROM mailboxes WHERE kind = 'pool' AND owner = '' AND name /* in: $1 */;

-- name: mailbox_of_operators
-- The mailboxes of operators.
SELECT name, id FROM mailboxes WHERE kind = 'agent' AND owner = name AND name /* in: $1 */;

-- name: topic_mailboxes
-- A row for each subscription of these topics, and one with NULL for a topic that has none.
SELECT topics.name, subscriptions.mailbox
FROM mailboxes AS topics LEFT JOIN subscriptions ON subscriptions.topic = topics.id
WHERE topics.kind = 'topic' AND topics.owner = '' AND topics.name /* in: $1 */;

-- name: mailbox_expiring
-- Mailboxes with a message that has expired. SQLite would check each mailbox after ANALYZE, therefore the index is
-- named.
SELECT DISTINCT mailbox FROM messages /* sqlite: INDEXED BY messages_by_expiry */
WHERE expires IS NOT NULL AND status IN ('queued', 'scheduled') AND expires <= $1
LIMIT $2;

-- name: mailbox_unsubscribed
-- The mailboxes among these whose subscription has ended.
SELECT id FROM mailboxes
WHERE id /* in: $1 */
    AND kind = 'subscription'
    AND NOT EXISTS (
        SELECT 1 FROM subscriptions
        WHERE subscriptions.agent = mailboxes.owner AND subscriptions.mailbox = mailboxes.id
    );

-- name: subscription_delete
-- End all subscriptions of agents.
DELETE FROM subscriptions WHERE agent /* in: $1 */ RETURNING mailbox;

-- name: pool_leave_all
-- Remove agents from all pools.
DELETE FROM pool_members WHERE agent /* in: $1 */;

-- name: mailbox_keep_epochs
-- Store the last epoch of agents that are about to be deleted.
UPDATE mailboxes SET epoch = (SELECT agents.epoch FROM agents WHERE agents.id = mailboxes.owner)
WHERE id IN (SELECT mailbox FROM agents WHERE agents.id /* in: $1 */);
