-- name: approval_insert
-- A question to a person, or one that is passed through.
INSERT INTO approvals (
    task, key, name, position, status, auto, notify, expires, created, decided, checksum, shown, seen, ending
)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14);

-- name: approval_decide
-- An open approval is decided.
UPDATE approvals SET status = $1, auto = $2, decided_by = $3, reason = $4, decided = $5, ending = $6
WHERE task = $7 AND key = $8 AND superseded = 0 AND status = 'open';

-- name: approval_expire
-- An approval was not decided in time; says whether that is so.
UPDATE approvals SET status = 'expired', decided = $1, ending = $2
WHERE task = $3 AND key = $4 AND superseded = 0 AND status = 'open' AND expires <= $1
RETURNING id;

-- name: approval_supersede
-- An approval is void.
UPDATE approvals SET superseded = $1 WHERE task = $2 AND key = $3 AND superseded = 0;

-- name: approval_open
-- What a task asks for.
SELECT key, name, expires FROM approvals WHERE task = $1 AND status = 'open' AND superseded = 0 ORDER BY position;

-- name: approval_known
-- What a task has asked for.
SELECT key, name, status, expires FROM approvals WHERE task = $1 AND superseded = 0 ORDER BY position;

-- name: approval_places
-- What a task has asked for, and where in its order.
SELECT key, position FROM approvals WHERE task = $1 AND superseded = 0 ORDER BY position;

-- name: approval_answer
-- How an approval stands.
SELECT status, decided_by, reason, decided, auto, expires, ending FROM approvals
WHERE task = $1 AND key = $2 AND superseded = 0;

-- name: approval_get
-- All of one approval that counts.
SELECT tasks.id, approvals.key, approvals.name, approvals.status, approvals.position, approvals.checksum,
    approvals.shown, approvals.notify, approvals.expires, approvals.created, approvals.decided, approvals.decided_by,
    approvals.reason, approvals.auto, approvals.superseded
FROM approvals JOIN tasks ON tasks.number = approvals.task
WHERE approvals.task = $1 AND approvals.key = $2 AND approvals.superseded = 0;

-- name: approval_list_of
-- The approvals of a task in their order; NULL takes every status, $3 = 1 also what is void.
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
-- What all tasks ask for that have not ended, the oldest first.
SELECT tasks.id, approvals.key, approvals.name, approvals.status, approvals.position, approvals.checksum,
    approvals.shown, approvals.notify, approvals.expires, approvals.created, approvals.decided, approvals.decided_by,
    approvals.reason, approvals.auto, approvals.superseded
FROM approvals JOIN tasks ON tasks.number = approvals.task
WHERE approvals.status = 'open' AND approvals.superseded = 0 AND tasks.ended IS NULL
ORDER BY approvals.created, approvals.id
LIMIT $1;

-- name: approval_list
-- The approvals of all tasks, newest first; NULL takes every status, $2 = 1 also what is void.
SELECT tasks.id, approvals.key, approvals.name, approvals.status, approvals.position, approvals.checksum,
    approvals.shown, approvals.notify, approvals.expires, approvals.created, approvals.decided, approvals.decided_by,
    approvals.reason, approvals.auto, approvals.superseded
FROM approvals JOIN tasks ON tasks.number = approvals.task
WHERE (CAST($1 AS text) IS NULL OR approvals.status = $1) AND (approvals.superseded = 0 OR $2 = 1)
ORDER BY approvals.id DESC
LIMIT $3;

-- name: approval_count
-- How many approvals are open; NULL takes all workflows.
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
-- An approval from an archive.
INSERT INTO approvals (
    task, key, superseded, name, position, status, auto, notify, expires, created, decided, decided_by, reason,
    checksum, shown, seen, ending
)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17);

-- name: approval_delete
-- A task goes, and its approvals with it.
DELETE FROM approvals WHERE task = (SELECT number FROM tasks WHERE id = $1);

-- name: approval_payloads
-- What approvals before a number show, newest first, with its checksum.
SELECT approvals.id, approvals.checksum, approvals.shown, approvals.key, tasks.id
FROM approvals JOIN tasks ON tasks.number = approvals.task
WHERE approvals.id < $1
ORDER BY approvals.id DESC
LIMIT $2;
