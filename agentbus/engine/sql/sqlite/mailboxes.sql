-- name: pool_mailbox
-- The mailboxes of pools. Differs: lists by json_each.
SELECT name, id FROM mailboxes WHERE kind = 'pool' AND owner = '' AND name IN (SELECT value FROM json_each($1));

-- name: topic_mailboxes
-- A row for each subscription of these topics, and one with NULL for a topic that has none.
-- Differs: lists by json_each.
SELECT topics.name, subscriptions.mailbox
FROM mailboxes AS topics LEFT JOIN subscriptions ON subscriptions.topic = topics.id
WHERE topics.kind = 'topic' AND topics.owner = '' AND topics.name IN (SELECT value FROM json_each($1));

-- name: mailbox_expiring
-- Mailboxes in which something is too old. Differs: the index is named because SQLite, once analyzed, asks
-- each mailbox instead.
SELECT DISTINCT mailbox FROM messages INDEXED BY messages_by_expiry
WHERE expires IS NOT NULL AND status IN ('queued', 'scheduled') AND expires <= $1
LIMIT $2;

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

-- name: subscription_delete
-- All subscriptions of agents end. Differs: lists by json_each.
DELETE FROM subscriptions WHERE agent IN (SELECT value FROM json_each($1)) RETURNING mailbox;

-- name: pool_leave_all
-- Agents take no more work from any pool. Differs: lists by json_each.
DELETE FROM pool_members WHERE agent IN (SELECT value FROM json_each($1));

-- name: mailbox_keep_epochs
-- Remember the last epoch of agents that are about to be deleted. Differs: lists by json_each.
UPDATE mailboxes SET epoch = (SELECT agents.epoch FROM agents WHERE agents.id = mailboxes.owner)
WHERE id IN (SELECT mailbox FROM agents WHERE agents.id IN (SELECT value FROM json_each($1)));
