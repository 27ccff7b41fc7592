-- name: mailbox_horizon
-- When each mailbox has something due next: a scheduled message, an expiring lease, an expiring message. Differs:
-- json_each.
SELECT wanted.value,
    (SELECT min(due) FROM messages WHERE mailbox = wanted.value AND status = 'scheduled'),
    (SELECT min(lease_until) FROM messages WHERE mailbox = wanted.value AND status = 'leased'),
    (SELECT min(expires) FROM messages
     WHERE mailbox = wanted.value AND expires IS NOT NULL AND status IN ('queued', 'scheduled'))
FROM json_each($1) AS wanted;

-- name: mailbox_pending
-- The mailboxes among these with something to claim or to maintain. Differs: json_each.
SELECT wanted.value
FROM json_each($1) AS wanted
WHERE EXISTS (SELECT 1 FROM messages WHERE mailbox = wanted.value AND status = 'queued')
    OR EXISTS (SELECT 1 FROM messages WHERE mailbox = wanted.value AND status = 'scheduled' AND due <= $2)
    OR EXISTS (SELECT 1 FROM messages WHERE mailbox = wanted.value AND status = 'leased' AND lease_until <= $3);
