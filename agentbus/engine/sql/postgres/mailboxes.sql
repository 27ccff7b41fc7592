-- name: pool_mailbox
-- The mailboxes of pools. Differs: lists are arrays.
SELECT name, id FROM mailboxes WHERE kind = 'pool' AND owner = '' AND name = ANY ($1);

-- name: topic_mailboxes
-- A row for each subscription of these topics, and one with NULL for a topic that has none.
-- Differs: lists are arrays.
SELECT topics.name, subscriptions.mailbox
FROM mailboxes AS topics LEFT JOIN subscriptions ON subscriptions.topic = topics.id
WHERE topics.kind = 'topic' AND topics.owner = '' AND topics.name = ANY ($1);

-- name: mailbox_horizon
-- When each mailbox has something due next: a scheduled message, a lease that runs out, a message that expires.
-- Differs: lists are arrays.
SELECT wanted.mailbox,
    (SELECT min(due) FROM messages WHERE messages.mailbox = wanted.mailbox AND status = 'scheduled'),
    (SELECT min(lease_until) FROM messages WHERE messages.mailbox = wanted.mailbox AND status = 'leased'),
    (SELECT min(expires) FROM messages
     WHERE messages.mailbox = wanted.mailbox AND expires IS NOT NULL AND status IN ('queued', 'scheduled'))
FROM unnest($1::bigint[]) AS wanted (mailbox);

-- name: mailbox_pending
-- Which of these mailboxes have something to claim or to tend. Differs: lists are arrays.
SELECT wanted.mailbox
FROM unnest($1::bigint[]) AS wanted (mailbox)
WHERE EXISTS (SELECT 1 FROM messages WHERE messages.mailbox = wanted.mailbox AND status = 'queued')
    OR EXISTS (
        SELECT 1 FROM messages WHERE messages.mailbox = wanted.mailbox AND status = 'scheduled' AND due <= $2
    )
    OR EXISTS (
        SELECT 1 FROM messages WHERE messages.mailbox = wanted.mailbox AND status = 'leased' AND lease_until <= $3
    );

-- name: mailbox_unsubscribed
-- Those of these mailboxes that belong to a subscription which has ended. Differs: lists are arrays.
SELECT id FROM mailboxes
WHERE id = ANY ($1)
    AND kind = 'subscription'
    AND NOT EXISTS (
        SELECT 1 FROM subscriptions
        WHERE subscriptions.agent = mailboxes.owner AND subscriptions.mailbox = mailboxes.id
    );

-- name: subscription_delete
-- All subscriptions of agents end. Differs: lists are arrays.
DELETE FROM subscriptions WHERE agent = ANY ($1) RETURNING mailbox;

-- name: pool_leave_all
-- Agents take no more work from any pool. Differs: lists are arrays.
DELETE FROM pool_members WHERE agent = ANY ($1);

-- name: mailbox_keep_epochs
-- Remember the last epoch of agents that are about to be deleted. Differs: lists are arrays.
UPDATE mailboxes SET epoch = (SELECT agents.epoch FROM agents WHERE agents.id = mailboxes.owner)
WHERE id IN (SELECT mailbox FROM agents WHERE agents.id = ANY ($1));

-- name: mailbox_expiring
-- Mailboxes in which something is too old. Differs: no index needs to be named.
SELECT DISTINCT mailbox FROM messages
WHERE expires IS NOT NULL AND status IN ('queued', 'scheduled') AND expires <= $1
LIMIT $2;
