-- name: thread_reset
-- Forget threads: a person wrote in them, or released them.
DELETE FROM threads WHERE thread /* in: $1 */;

-- name: thread_restart
-- Start the count of a thread again with $1 messages, at $2.
UPDATE threads SET opened = 0, messages = $1, since = $2 WHERE thread = $3;

-- name: thread_hold
-- Note that the bound of a thread is reached.
UPDATE threads SET held = 1 WHERE thread = $1;

-- name: thread_progress
-- Whether one of these agents has made progress since $2: it reported some, stored a checkpoint, or advanced a task.
-- Registering is not progress, nor is being suspected, recovering or failing. Only the newest events are read.
SELECT 1
WHERE EXISTS (
        SELECT 1 FROM agents
        WHERE id /* in: $1 */ AND status = 'running' AND updated > $2 AND updated > coalesce(started, created)
            AND NOT EXISTS (
                SELECT 1 FROM events
                WHERE subject_kind = 'agent' AND subject = agents.id AND kind = 'agent_recovered'
                    AND at = agents.updated AND events.id > (SELECT max(id) FROM events) - 1000
            )
    )
    OR EXISTS (SELECT 1 FROM checkpoints WHERE owner_kind = 'agent' AND owner /* in: $1 */ AND created > $2)
    OR EXISTS (SELECT 1 FROM tasks WHERE status = 'running' AND holder /* in: $1 */ AND updated > $2)
    OR EXISTS (
        SELECT 1 FROM events
        WHERE id > (SELECT max(id) FROM events) - 1000 AND at > $2 AND actor /* in: $1 */
            AND kind IN ('task_completed', 'task_phase')
    );

-- name: thread_forget
-- Forget up to $2 threads without a message since $1, unless messages of theirs are held.
DELETE FROM threads WHERE updated <= $1 AND thread IN (
    SELECT old.thread FROM threads AS old
    WHERE old.updated <= $1 AND NOT EXISTS (SELECT 1 FROM holds WHERE holds.thread = old.thread)
    LIMIT $2
)
RETURNING thread;

-- name: hold_insert
-- Note that a message is held.
INSERT INTO holds (/* columns: holds */)
VALUES (/* values: holds */);

-- name: hold_threads
-- Threads with held messages after a cursor, in order of their name: the number of held messages, the first and the
-- last of them, when the first was held, and the count of the thread.
SELECT holds.thread, count(*), min(holds.message), max(holds.message), min(holds.created),
    coalesce(max(threads.opened + threads.messages), 0), coalesce(max(threads.agents), '')
FROM holds
/* sqlite: CROSS */ JOIN messages
    ON messages.id = holds.message AND messages.status = 'scheduled' AND messages.due IS NULL
LEFT JOIN threads ON threads.thread = holds.thread
WHERE holds.thread > $1
GROUP BY holds.thread
ORDER BY holds.thread
LIMIT $2;

-- name: hold_count
-- The number of held messages and of their threads.
SELECT count(*), count(DISTINCT holds.thread)
FROM holds /* sqlite: CROSS */ JOIN messages
    ON messages.id = holds.message AND messages.status = 'scheduled' AND messages.due IS NULL;

-- name: hold_messages
-- The held messages of a thread, oldest first, with the due time that their sender gave them.
SELECT holds.message, holds.due, messages.mailbox, messages.message_id, messages.type, messages.correlation,
    messages.reply_to, messages.session, messages.expires
FROM holds /* sqlite: CROSS */ JOIN messages
    ON messages.id = holds.message AND messages.status = 'scheduled' AND messages.due IS NULL
WHERE holds.thread = $1
ORDER BY holds.message
LIMIT $2
/* postgres: FOR UPDATE OF messages */;

-- name: hold_release
-- Queue a held message, or schedule it for the time that its sender gave it.
UPDATE messages SET status = $1, due = $2 WHERE id = $3;

-- name: hold_discard
-- Expire a held message.
UPDATE messages SET status = 'expired', finished = $1, error = $2 WHERE id = $3;

-- name: hold_delete
-- Delete the holds of messages.
DELETE FROM holds WHERE message /* in: $1 */;

-- name: hold_clean
-- Delete up to $1 holds of messages that expired, became dead letters or were deleted.
DELETE FROM holds WHERE message IN (
    SELECT old.message FROM holds AS old
    WHERE NOT EXISTS (
        SELECT 1 FROM messages
        WHERE messages.id = old.message AND messages.status = 'scheduled' AND messages.due IS NULL
    )
    LIMIT $1
)
RETURNING message;

-- name: hold_reply
-- Whether the reply to a request is held, or was held until it expired.
SELECT 1 FROM messages JOIN holds ON holds.message = messages.id
WHERE messages.mailbox = $1 AND messages.correlation = $2
LIMIT 1;
