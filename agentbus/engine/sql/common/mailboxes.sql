-- name: topology
-- Changes whenever someone begins or ceases to listen.
SELECT value FROM counters WHERE name = 'topology';

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

-- name: mailbox_deep
-- Mailboxes in which more than $1 messages wait, also such as are due at $2 and that nobody came for. Each
-- mailbox is found by one step along the index: there may be many messages.
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
-- How many messages wait in a mailbox, now or for their time; no more than $2 are counted.
SELECT count(*) FROM (
    SELECT id FROM messages WHERE mailbox = $1 AND status = 'queued'
    UNION ALL
    SELECT id FROM messages WHERE mailbox = $1 AND status = 'scheduled'
    LIMIT $2
) AS waiting;

-- name: mailbox_unattended
-- Pools in which work waits, also such as is due at $1, and of which no member is live. Members first: there may be many live
-- agents.
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

-- name: mailbox_places
-- Every pool and topic.
SELECT kind, name FROM mailboxes WHERE kind IN ('pool', 'topic') ORDER BY id;
