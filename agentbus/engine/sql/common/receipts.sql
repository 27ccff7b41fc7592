-- name: receipt_readable
-- Messages by row id or by message_id, with what decides who may mark them as seen. PostgreSQL locks them against a purge.
SELECT messages.id, messages.message_id, messages.holder, messages.mailbox,
    (SELECT kind FROM mailboxes WHERE mailboxes.id = messages.mailbox),
    (SELECT owner FROM mailboxes WHERE mailboxes.id = messages.mailbox)
FROM messages
WHERE messages.id IN (
    SELECT /* list: $1 bigint */
    UNION SELECT id FROM messages WHERE message_id /* in: $2 */
)
ORDER BY messages.id
/* postgres: FOR KEY SHARE */;

-- name: receipt_members
-- The pools among these that an agent is a member of.
SELECT pool FROM pool_members WHERE agent = $1 AND pool /* in: $2 */;

-- name: receipt_insert
-- Record that a message was seen; the first time in a context counts.
INSERT INTO receipts (/* columns: receipts */) VALUES (/* values: receipts */) ON CONFLICT DO NOTHING;

-- name: receipt_list
-- The receipts of a message and of its copies, oldest first.
SELECT coalesce(messages.message_id, 'm-' || messages.id), receipts.agent, receipts.epoch, receipts.client,
    receipts.channel, receipts.at
FROM messages JOIN receipts ON receipts.message = messages.id
WHERE messages.id IN (
    SELECT id FROM messages WHERE id = $1
    UNION ALL SELECT id FROM messages WHERE message_id = $2
)
ORDER BY receipts.at, receipts.message, receipts.agent, receipts.epoch, receipts.client
LIMIT $3;

-- name: receipt_progress
-- Messages by row id or by message_id, and their copies: the status of each, and when it was first seen.
SELECT messages.id, messages.message_id, messages.status,
    (SELECT min(at) FROM receipts WHERE receipts.message = messages.id)
FROM messages
WHERE messages.id IN (
    SELECT /* list: $1 bigint */
    UNION SELECT id FROM messages WHERE message_id /* in: $2 */
);

-- name: receipt_delete
-- Delete the receipts of messages that are deleted.
DELETE FROM receipts WHERE message /* in: $1 */;

-- name: receipt_archive
-- The receipts of messages, for an archive.
SELECT /* columns: receipts */
FROM receipts WHERE message /* in: $1 */
ORDER BY message, agent, epoch, client;

-- name: reach_declare
-- Record how an adapter delivers messages to an incarnation.
INSERT INTO reach (agent, channel, epoch, wakes, declared) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (agent, channel) DO UPDATE
SET epoch = excluded.epoch, wakes = excluded.wakes, declared = excluded.declared
WHERE reach.epoch <> excluded.epoch OR reach.wakes <> excluded.wakes;

-- name: reach_declared
-- What an adapter of an agent declared, and for which incarnation.
SELECT epoch, wakes FROM reach WHERE agent = $1 AND channel = $2;

-- name: reach_withdraw
-- Remove what an adapter declared.
DELETE FROM reach WHERE agent = $1 AND channel = $2 AND epoch = $3;
