-- name: metrics_queues
-- The number of queued, scheduled and leased messages by kind of mailbox, and of pools by name; for queued ones the creation
-- time of the oldest. Messages are counted in the indexes alone; one row of each group is read.
SELECT grouped.status, grouped.kind, grouped.pool, CAST(grouped.number AS bigint), messages.created
FROM (
    SELECT counted.status AS status, mailboxes.kind AS kind,
        CASE WHEN mailboxes.kind = 'pool' THEN mailboxes.name ELSE '' END AS pool,
        sum(counted.number) AS number, min(counted.oldest) AS oldest
    FROM (
        SELECT 'queued' AS status, mailbox, count(*) AS number, min(+id) AS oldest
        FROM messages WHERE status = 'queued' GROUP BY mailbox
        UNION ALL
        SELECT 'scheduled', mailbox, count(*), NULL FROM messages WHERE status = 'scheduled' GROUP BY mailbox
        UNION ALL
        SELECT 'leased', mailbox, count(*), NULL FROM messages WHERE status = 'leased' GROUP BY mailbox
    ) AS counted
    JOIN mailboxes ON mailboxes.id = counted.mailbox
    GROUP BY counted.status, mailboxes.kind, CASE WHEN mailboxes.kind = 'pool' THEN mailboxes.name ELSE '' END
) AS grouped
LEFT JOIN messages ON messages.id = grouped.oldest;

-- name: metrics_pools
-- The first pools by name.
SELECT name FROM mailboxes WHERE kind = 'pool' ORDER BY name LIMIT $1;

-- name: metrics_members
-- The number of live members of pools, by name. CROSS JOIN keeps the order: SQLite would walk all live agents for each pool.
SELECT mailboxes.name, count(*)
FROM mailboxes CROSS JOIN pool_members CROSS JOIN agents
WHERE mailboxes.kind = 'pool' AND mailboxes.name /* in: $1 */
    AND pool_members.pool = mailboxes.id AND agents.id = pool_members.agent AND agents.status IN ('running', 'suspect')
GROUP BY mailboxes.name;

-- name: metrics_redelivered
-- The number of leased messages that were delivered before.
SELECT count(*) FROM messages WHERE status = 'leased' AND attempts > 1;

-- name: metrics_dead
-- The number of dead letters, in the index alone: there may be many, and their rows are far apart.
SELECT count(*) FROM messages WHERE status = 'dead';

-- name: metrics_held
-- The number of messages that wait for a person.
SELECT count(*) FROM holds;

-- name: metrics_agent_types
-- The number of agents that have not ended, by type.
SELECT type, count(*) FROM agents WHERE ended IS NULL GROUP BY type;

-- name: metrics_tasks
-- The number of tasks by status, in the index alone.
SELECT status, count(*) FROM tasks GROUP BY status;

-- name: metrics_ready
-- The number of tasks that a worker may claim now by workflow, and the creation time of the oldest.
SELECT ready.workflow, ready.number, tasks.created
FROM (SELECT workflow, count(*) AS number, min(number) AS oldest FROM tasks WHERE due = 0 GROUP BY workflow) AS ready
JOIN tasks ON tasks.number = ready.oldest;

-- name: metrics_approvals
-- The number of open approvals of unfinished tasks, and the creation time of the oldest.
SELECT count(*), min(approvals.created)
FROM approvals JOIN tasks ON tasks.number = approvals.task
WHERE approvals.status = 'open' AND approvals.superseded = 0 AND tasks.ended IS NULL;

-- name: metrics_sessions
-- The number of sessions that have not ended by status, and the time of the longest without a change.
SELECT status, count(*), min(updated) FROM sessions WHERE ended IS NULL GROUP BY status;
