-- name: approval_insert
-- Insert an approval: open, or approved automatically.
INSERT INTO approvals (
    task, key, name, position, status, auto, notify, expires, created, decided, checksum, shown, seen, ending
)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14);

-- name: approval_decide
-- Decide an open approval.
UPDATE approvals SET status = $1, auto = $2, decided_by = $3, reason = $4, decided = $5, ending = $6
WHERE task = $7 AND key = $8 AND superseded = 0 AND status = 'open';

-- name: approval_expire
-- Expire an approval that was not decided in time; returns it if it was open.
UPDATE approvals SET status = 'expired', decided = $1, ending = $2
WHERE task = $3 AND key = $4 AND superseded = 0 AND status = 'open' AND expires <= $1
RETURNING id;

-- name: approval_supersede
-- Invalidate an approval.
UPDATE approvals SET superseded = $1 WHERE task = $2 AND key = $3 AND superseded = 0;

-- name: approval_open
-- The open approvals of a task.
SELECT key, name, expires FROM approvals WHERE task = $1 AND status = 'open' AND superseded = 0 ORDER BY position;

-- name: approval_known
-- The approvals of a task.
SELECT key, name, status, expires FROM approvals WHERE task = $1 AND superseded = 0 ORDER BY position;

-- name: approval_places
-- The approvals of a task, with their positions.
SELECT key, position FROM approvals WHERE task = $1 AND superseded = 0 ORDER BY position;

-- name: approval_answer
-- The status of an approval and its decision.
SELECT status, decided_by, reason, decided, auto, expires, ending FROM approvals
WHERE task = $1 AND key = $2 AND superseded = 0;

-- name: approval_get
-- One approval that is not superseded.
SELECT tasks.id, approvals.key, approvals.name, approvals.status, approvals.position, approvals.checksum,
    approvals.shown, approvals.notify, approvals.expires, approvals.created, approvals.decided, approvals.decided_by,
    approvals.reason, approvals.auto, approvals.superseded
FROM approvals JOIN tasks ON tasks.number = approvals.task
WHERE approvals.task = $1 AND approvals.key = $2 AND approvals.superseded = 0;

-- name: approval_list_of
-- The approvals of a task by position; a NULL status matches all, $3 = 1 includes superseded ones.
SELECT tasks.id, approvals.key, approvals.name, approvals.status, approvals.position, approvals.checksum,
    approvals.shown, approvals.notify, approvals.expires, approvals.created, approvals.decided, approvals.decided_by,
    approvals.reason, approvals.auto, approvals.superseded
FROM approvals JOIN tasks ON tasks.number = approvals.task
WHERE tasks.id = $1
    AND (CAST($2 AS text) IS NULL OR approvals.status = $2)
    AND (approvals.superseded = 0 OR $3 = 1)
ORDER BY approvals.position
LIMIT $4;

-- name: approval_list_open
-- The open approvals of all unfinished tasks, oldest first.
SELECT tasks.id, approvals.key, approvals.name, approvals.status, approvals.position, approvals.checksum,
    approvals.shown, approvals.notify, approvals.expires, approvals.created, approvals.decided, approvals.decided_by,
    approvals.reason, approvals.auto, approvals.superseded
FROM approvals JOIN tasks ON tasks.number = approvals.task
WHERE approvals.status = 'open' AND approvals.superseded = 0 AND tasks.ended IS NULL
ORDER BY approvals.created, approvals.id
LIMIT $1;

-- name: approval_list
-- The approvals of all tasks, newest first; a NULL status matches all, $2 = 1 includes superseded ones.
SELECT tasks.id, approvals.key, approvals.name, approvals.status, approvals.position, approvals.checksum,
    approvals.shown, approvals.notify, approvals.expires, approvals.created, approvals.decided, approvals.decided_by,
    approvals.reason, approvals.auto, approvals.superseded
FROM approvals JOIN tasks ON tasks.number = approvals.task
WHERE (CAST($1 AS text) IS NULL OR approvals.status = $1) AND (approvals.superseded = 0 OR $2 = 1)
ORDER BY approvals.id DESC
LIMIT $3;

-- name: approval_count
-- The number of open approvals; a NULL workflow matches all.
SELECT count(*) FROM approvals JOIN tasks ON tasks.number = approvals.task
WHERE approvals.status = 'open' AND approvals.superseded = 0 AND tasks.ended IS NULL
    AND (CAST($1 AS text) IS NULL OR tasks.workflow = $1);

-- name: approval_archive
-- All approvals of a task.
SELECT approvals.key, approvals.superseded, approvals.name, approvals.position, approvals.status, approvals.auto,
    approvals.notify, approvals.expires, approvals.created, approvals.decided, approvals.decided_by,
    approvals.reason, approvals.checksum, approvals.shown, approvals.seen, approvals.ending
FROM approvals JOIN tasks ON tasks.number = approvals.task
WHERE tasks.id = $1
ORDER BY approvals.position, approvals.superseded;

-- name: approval_restore
-- Insert an approval of an archive.
INSERT INTO approvals (
    task, key, superseded, name, position, status, auto, notify, expires, created, decided, decided_by, reason,
    checksum, shown, seen, ending
)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17);

-- name: approval_delete
-- Delete the approvals of a task.
DELETE FROM approvals WHERE task = (SELECT number FROM tasks WHERE id = $1);

-- name: approval_payloads
-- Stored requests of approvals before a number, newest first, with their checksums.
SELECT approvals.id, approvals.checksum, approvals.shown, approvals.key, tasks.id
FROM approvals JOIN tasks ON tasks.number = approvals.task
WHERE approvals.id < $1
ORDER BY approvals.id DESC
LIMIT $2;
