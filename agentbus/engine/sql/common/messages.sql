-- name: message_insert
-- Insert a message.
INSERT INTO messages (/* columns: new_message */)
VALUES (/* values: new_message */);

-- name: message_start
-- Count an attempt of a reserved message when it is delivered to the handler.
UPDATE messages SET attempts = $1 WHERE id = $2;

-- name: message_extend
-- Extend a lease.
UPDATE messages SET lease_until = $1 WHERE id = $2;

-- name: message_release
-- Release a message, to be ready at once or when it is due.
UPDATE messages SET
    status = $1, due = $2, attempts = $3, error = coalesce($4, error), holder = NULL, lease_until = NULL
WHERE id = $5;

-- name: message_dead_letter
-- Make a message a dead letter.
UPDATE messages SET status = 'dead', error = $1, finished = $2, lease_until = NULL WHERE id = $3;

-- name: message_requeue
-- Queue a dead letter again. If it was a request, no requester waits for the reply any more.
UPDATE messages SET
    status = 'queued', attempts = 0, due = NULL, expires = NULL, finished = NULL, holder = NULL, reply_to = NULL
WHERE id = $1;

-- name: message_receive
-- Acknowledge a message that a task receives.
UPDATE messages SET status = 'acked', finished = $1, attempts = attempts + 1 WHERE id = $2;

-- name: message_give_back
-- Queue the message again that a step of a task had received: the step is repeated. In a task that was restored from an
-- archive, the number may be that of another message, in another mailbox.
UPDATE messages SET status = 'queued', finished = NULL, due = NULL, expires = NULL
WHERE id = (SELECT message FROM steps WHERE task = $1 AND position = $2) AND status = 'acked'
    AND mailbox = (
        SELECT mailboxes.id FROM tasks JOIN mailboxes ON mailboxes.kind = 'task' AND mailboxes.name = tasks.id
        WHERE tasks.number = $1
    );

-- name: message_for_task
-- The mailbox of a task, and whether a message waits in it that is due.
SELECT mailboxes.id,
    CASE
        WHEN EXISTS (SELECT 1 FROM messages WHERE mailbox = mailboxes.id AND status = 'queued') THEN 1
        WHEN EXISTS (SELECT 1 FROM messages WHERE mailbox = mailboxes.id AND status = 'scheduled' AND due <= $2) THEN 1
        ELSE 0
    END,
    (SELECT min(due) FROM messages WHERE mailbox = mailboxes.id AND status = 'scheduled')
FROM tasks JOIN mailboxes ON mailboxes.kind = 'task' AND mailboxes.name = tasks.id AND mailboxes.owner = ''
WHERE tasks.number = $1;

-- name: message_unread_of_task
-- At most $2 unfinished messages of the mailbox of a task, each after the length of its payload.
SELECT length(payload), /* columns: held */
FROM messages
WHERE id IN (
    SELECT id FROM messages
    WHERE status = 'queued' AND mailbox = (SELECT id FROM mailboxes WHERE kind = 'task' AND name = $1 AND owner = '')
    UNION ALL
    SELECT id FROM messages
    WHERE status = 'scheduled' AND mailbox = (SELECT id FROM mailboxes WHERE kind = 'task' AND name = $1 AND owner = '')
)
ORDER BY id
LIMIT $2;

-- name: message_leased
-- All leased messages.
SELECT /* columns: held */
FROM messages WHERE status = 'leased';

-- name: reply_take
-- Take the reply to one request and acknowledge it in one step.
UPDATE messages SET status = 'acked', finished = $1, attempts = 1
WHERE id = (
    SELECT id FROM messages WHERE mailbox = $2 AND correlation = $3 AND status = 'queued' ORDER BY id LIMIT 1
)
RETURNING /* columns: message */;

-- name: reply_again
-- The reply to one request that was taken before.
SELECT /* columns: message */
FROM messages WHERE mailbox = $1 AND correlation = $2 AND status = 'acked' ORDER BY id LIMIT 1;

-- name: message_get
-- One message by its row id, or by the message_id that its sender gave it.
SELECT /* columns: stored_message messages */,
    (SELECT min(at) FROM receipts WHERE receipts.message = messages.id), mailboxes.kind, mailboxes.name, mailboxes.owner
FROM messages JOIN mailboxes ON mailboxes.id = messages.mailbox
WHERE messages.id IN (
    SELECT id FROM messages WHERE id = $1
    UNION ALL SELECT id FROM messages WHERE message_id = $2
)
ORDER BY messages.id DESC
LIMIT 1;

-- name: message_list
-- Messages before the cursor, newest first; a NULL filter matches all. $2 is a list of statuses between commas, $7 and
-- $8 are the kind and name of the recipient, $10 is the holder.
SELECT /* columns: stored_message messages */,
    (SELECT min(at) FROM receipts WHERE receipts.message = messages.id), mailboxes.kind, mailboxes.name, mailboxes.owner
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
-- The number of waiting and of leased messages in the mailboxes of each agent of a session.
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

-- name: message_brief_after
-- Messages after an id, oldest first, without their payloads, for the live feed.
SELECT messages.id, messages.message_id, messages.sender, mailboxes.kind, mailboxes.name, mailboxes.owner, messages.holder,
    messages.type, messages.status, messages.priority, messages.attempts, messages.session, messages.correlation,
    messages.created, messages.finished, (SELECT min(at) FROM receipts WHERE receipts.message = messages.id)
FROM messages JOIN mailboxes ON mailboxes.id = messages.mailbox
WHERE messages.id > $1
ORDER BY messages.id
LIMIT $2;

-- name: message_brief
-- These messages without their payloads, for the live feed.
SELECT messages.id, messages.message_id, messages.sender, mailboxes.kind, mailboxes.name, mailboxes.owner, messages.holder,
    messages.type, messages.status, messages.priority, messages.attempts, messages.session, messages.correlation,
    messages.created, messages.finished, (SELECT min(at) FROM receipts WHERE receipts.message = messages.id)
FROM messages JOIN mailboxes ON mailboxes.id = messages.mailbox
WHERE messages.id /* in: $1 */
ORDER BY messages.id;

-- name: message_newest
-- The highest id of a message.
SELECT coalesce(max(id), 0) FROM messages;

-- name: message_spans
-- The messages that were on the bus in a period ($1 to $2), newest first, without their payloads: when each was sent, last
-- delivered and finished.
SELECT messages.id, messages.message_id, messages.sender, mailboxes.kind, mailboxes.name, mailboxes.owner, messages.holder,
    messages.type, messages.status, messages.created, messages.leased_at, messages.finished, messages.correlation
FROM messages JOIN mailboxes ON mailboxes.id = messages.mailbox
WHERE messages.created <= $2 AND (messages.finished IS NULL OR messages.finished >= $1) AND messages.id < $3
ORDER BY messages.id DESC
LIMIT $4;

-- name: message_list_dead
-- Dead letters before the cursor, newest first. They are few among many, and have an index of their own.
SELECT /* columns: stored_message messages */,
    (SELECT min(at) FROM receipts WHERE receipts.message = messages.id), mailboxes.kind, mailboxes.name, mailboxes.owner
FROM messages JOIN mailboxes ON mailboxes.id = messages.mailbox
WHERE messages.status = 'dead' AND messages.id < $1
ORDER BY messages.id DESC
LIMIT $2;

-- name: message_counts
-- The number of messages of each status.
SELECT status, count(*) FROM messages GROUP BY status;

-- name: message_ages
-- Messages after a cursor, ordered by id, as retention reads them.
SELECT id, status, finished, created, CASE WHEN finished IS NULL THEN 0 ELSE length(payload) + 400 END
FROM messages WHERE id > $1 ORDER BY id LIMIT $2;

-- name: message_purgeable
-- The number of finished messages that a purge would delete.
SELECT count(*) FROM messages WHERE finished <= $2 AND status /* in: $1 */;

-- name: message_span
-- An upper bound for the number of messages: from the first id to the last.
SELECT coalesce((SELECT max(id) FROM messages) - (SELECT min(id) FROM messages) + 1, 0);

-- name: message_finished_counts
-- The number of finished messages, and of dead letters.
SELECT coalesce(sum(CASE WHEN status = 'dead' THEN 0 ELSE 1 END), 0), coalesce(sum(CASE WHEN status = 'dead' THEN 1 ELSE 0 END), 0)
FROM messages WHERE finished IS NOT NULL;

-- name: message_senders
-- The senders of waiting and leased messages.
SELECT sender FROM messages WHERE status = 'queued'
UNION SELECT sender FROM messages WHERE status = 'scheduled'
UNION SELECT sender FROM messages WHERE status = 'leased';

-- name: message_restore
-- Insert a message of an archive or an import.
INSERT INTO messages (/* columns: stored_message */)
VALUES (/* values: stored_message */)
ON CONFLICT DO NOTHING
RETURNING id;

-- name: message_same
-- Whether the message of an id is the one in an archive.
SELECT CASE WHEN created = $2 AND checksum = $3 THEN 1 ELSE 0 END FROM messages WHERE id = $1;

-- name: message_payloads
-- Stored payloads before the cursor, newest first, with their checksums.
SELECT id, checksum, payload, coalesce(message_id, 'm-' || id) FROM messages WHERE id < $1 ORDER BY id DESC LIMIT $2;

-- name: message_stuck
-- The number of leases that expired before a time.
SELECT count(*) FROM messages WHERE status = 'leased' AND lease_until <= $1;

-- name: message_in_box
-- The checksum, type and sender of the message with a message_id in a mailbox.
SELECT checksum, type, sender FROM messages WHERE message_id = $1 AND mailbox = $2;

-- name: message_waiting
-- The most urgent queued messages of a mailbox.
SELECT priority, id FROM messages WHERE mailbox = $1 AND status = 'queued' ORDER BY priority DESC, id LIMIT $2;

-- name: message_after
-- Messages after one id and up to another, ordered by id, with their session and an estimate of their size.
SELECT id, session, length(payload) + 400 FROM messages WHERE id > $1 AND id <= $2 ORDER BY id LIMIT $3;

-- name: message_rows
-- Messages as their receiver gets them; `lease` and `attempts` are those before this delivery.
SELECT /* columns: message messages */
FROM /* rows: messages.id $1 */;

-- name: message_lease
-- Lease messages at $5 until $2, to $1 or (if that is NULL) to the owner of their mailbox. $3 is 1 if the attempt counts
-- at once.
UPDATE messages SET
    status = 'leased',
    lease = lease + 1,
    holder = coalesce(CAST($1 AS text), (SELECT owner FROM mailboxes WHERE mailboxes.id = messages.mailbox)),
    lease_until = $2,
    attempts = attempts + $3,
    leased_at = $5
WHERE id /* in: $4 */;

-- name: message_ack
-- Acknowledge leased messages; returns lease and holder, for the caller to compare.
UPDATE messages SET status = 'acked', finished = $1
WHERE id /* in: $2 */ AND status = 'leased'
RETURNING id, lease, holder;

-- name: message_held
-- Messages as the settling operations read them. PostgreSQL locks them until the commit.
SELECT /* columns: held messages */
FROM /* rows: messages.id $1 */
/* postgres: ORDER BY id FOR UPDATE */;

-- name: message_held_by
-- The messages that agents hold, including those of pools that they have left. Few messages are leased, which SQLite
-- does not know, therefore the index is named.
SELECT /* columns: held */
FROM messages /* sqlite: INDEXED BY messages_leased */
WHERE status = 'leased' AND holder /* in: $1 */;

-- name: message_lapsed
-- Messages whose lease expired. PostgreSQL locks them, and skips those that another transaction has locked.
SELECT /* columns: held */
FROM messages
WHERE status = 'leased' AND lease_until <= $1 AND mailbox /* in: $2 */
/* postgres: FOR UPDATE SKIP LOCKED */;

-- name: message_has_lapsed
-- Whether a lease expired in any mailbox. Few messages are leased, therefore the index is named.
SELECT 1 FROM messages /* sqlite: INDEXED BY messages_leased */ WHERE status = 'leased' AND lease_until <= $1 LIMIT 1;

-- name: message_lapsed_anywhere
-- Messages whose lease expired in any mailbox. Few messages are leased, therefore the index is named. PostgreSQL locks
-- them, and skips those that another transaction has locked.
SELECT /* columns: held */
FROM messages /* sqlite: INDEXED BY messages_leased */
WHERE status = 'leased' AND lease_until <= $1
LIMIT $2
/* postgres: FOR UPDATE SKIP LOCKED */;

-- name: message_extend_held
-- Extend all leases of an agent. Few messages are leased, therefore the index is named.
UPDATE messages /* sqlite: INDEXED BY messages_leased */ SET lease_until = $1
WHERE status = 'leased' AND holder = $2 AND lease_until < $1;

-- name: message_still_open
-- The messages among these that are not finished.
SELECT messages.id
FROM /* rows: messages.id $1 */ AND messages.status IN ('queued', 'leased', 'scheduled');

-- name: message_remove
-- Delete archived messages, unless they finished later than $2.
DELETE FROM messages WHERE id /* in: $1 */ AND finished <= $2 RETURNING id;

-- name: message_archive
-- Finished messages for an archive.
SELECT /* columns: stored_message messages */, mailboxes.kind, mailboxes.name, mailboxes.owner,
    (SELECT owner FROM mailboxes AS replies WHERE replies.id = messages.reply_to)
FROM messages JOIN mailboxes ON mailboxes.id = messages.mailbox
WHERE messages.id /* in: $1 */ AND finished IS NOT NULL
ORDER BY messages.id;

-- name: message_export
-- Messages for an export, finished or not.
SELECT /* columns: stored_message messages */, mailboxes.kind, mailboxes.name, mailboxes.owner,
    (SELECT owner FROM mailboxes AS replies WHERE replies.id = messages.reply_to)
FROM messages JOIN mailboxes ON mailboxes.id = messages.mailbox
WHERE messages.id /* in: $1 */
ORDER BY messages.id;

-- name: message_find
-- Messages by row id or by message_id, and the agent or task that reads their mailbox.
SELECT messages.id, messages.message_id, messages.status, messages.mailbox, messages.attempts, messages.error,
    mailboxes.kind, mailboxes.owner, coalesce(agents.status, tasks.status), subscriptions.mailbox, mailboxes.name
FROM messages
JOIN mailboxes ON mailboxes.id = messages.mailbox
LEFT JOIN agents ON agents.id = mailboxes.owner
LEFT JOIN tasks ON mailboxes.kind = 'task' AND tasks.id = mailboxes.name
LEFT JOIN subscriptions ON subscriptions.agent = mailboxes.owner AND subscriptions.mailbox = mailboxes.id
WHERE messages.id IN (
    SELECT /* list: $1 bigint */
    UNION SELECT id FROM messages WHERE message_id /* in: $2 */
);
