-- name: notifier_get
-- The progress of a notifier.
SELECT /* columns: notifier */ FROM notifiers WHERE name = $1;

-- name: notifier_list
-- The notifiers of this bus, by name.
SELECT /* columns: notifier */ FROM notifiers ORDER BY name;

-- name: notifier_open
-- Note a notifier that starts after an event, unless it is known.
INSERT INTO notifiers (name, cursor, created, updated) VALUES ($1, $2, $3, $3) ON CONFLICT DO NOTHING;

-- name: notifier_pass
-- Move a notifier past events that concern no notification.
UPDATE notifiers SET cursor = $1, first = NULL, until = NULL, skipped = 0, attempts = 0, dropped = dropped + $4,
    updated = $2
WHERE name = $3;

-- name: notifier_claim
-- Lease the next notification, of the events $1 to $2; $3 events before it are dropped.
UPDATE notifiers SET first = $1, until = $2, skipped = $3, dropped = dropped + $4, attempts = attempts + 1,
    lease = lease + 1, lease_until = $5, due = NULL, updated = $6
WHERE name = $7;

-- name: notifier_delivered
-- Note that a notification was delivered, and move past its events.
UPDATE notifiers SET cursor = until, first = NULL, until = NULL, skipped = 0, attempts = 0, failures = 0,
    lease_until = NULL, due = NULL, delivered = delivered + 1, error = NULL, updated = $1
WHERE name = $2;

-- name: notifier_failed
-- Note that an attempt failed, and when the next is due.
UPDATE notifiers SET failures = failures + 1, lease_until = NULL, due = $1, error = $2, updated = $3 WHERE name = $4;

-- name: notifier_dead
-- Give a notification up, and move past its events. The next one waits as long as another attempt would.
UPDATE notifiers SET cursor = until, first = NULL, until = NULL, skipped = 0, attempts = 0, failures = failures + 1,
    lease_until = NULL, due = $1, dead = dead + 1, error = $2, updated = $3
WHERE name = $4;

-- name: notifier_release
-- End the lease of an attempt that was interrupted, which is not counted.
UPDATE notifiers SET attempts = attempts - 1, lease_until = NULL, updated = $1 WHERE name = $2;

-- name: notifier_skip
-- Move notifiers past a restored event, which needs no notification. Undelivered ones are given up, and fenced.
UPDATE notifiers SET cursor = $1, first = NULL, until = NULL, skipped = 0, attempts = 0, lease = lease + 1,
    lease_until = NULL, updated = $2
WHERE cursor < $1;

-- name: notifier_events
-- Events of these kinds after one id and up to another, newest first.
SELECT /* columns: events */ FROM events WHERE id > $1 AND id <= $2 AND kind /* in: $3 */ ORDER BY id DESC LIMIT $4;

-- name: notifier_count
-- The number of events of these kinds after one id and before another.
SELECT count(*) FROM events WHERE id > $1 AND id < $2 AND kind /* in: $3 */;

-- name: notifier_agents
-- The sessions of agents.
SELECT agents.id, session FROM /* rows: agents.id $1 */;

-- name: notifier_tasks
-- The sessions and workflows of tasks.
SELECT tasks.id, session, workflow FROM /* rows: tasks.id $1 */;

-- name: notifier_messages
-- The sessions of messages, by their rows and by the ids that their senders gave them.
SELECT 'm-' || messages.id, session FROM /* rows: messages.id $1 */
UNION ALL
SELECT message_id, session FROM /* rows: messages.message_id $2 */;

-- name: notifier_approval
-- An approval that waits for a decision: what is shown, and its checksum.
SELECT approvals.shown, approvals.checksum FROM approvals JOIN tasks ON tasks.number = approvals.task
WHERE tasks.id = $1 AND approvals.key = $2 AND approvals.superseded = 0 AND approvals.status = 'open'
    AND (approvals.expires IS NULL OR approvals.expires > $3);
