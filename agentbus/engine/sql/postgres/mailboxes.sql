-- name: mailbox_horizon
-- When each mailbox has something due next: a scheduled message, an expiring lease, an expiring message. Differs:
-- unnest.
SELECT wanted.mailbox,
    (SELECT min(due) FROM messages WHERE messages.mailbox = wanted.mailbox AND status = 'scheduled'),
    (SELECT min(lease_until) FROM messages WHERE messages.mailbox = wanted.mailbox AND status = 'leased'),
    (SELECT min(expires) FROM messages
     WHERE messages.mailbox = wanted.mailbox AND expires IS NOT NULL AND status IN ('queued', 'scheduled'))
FROM unnest($1::bigint[]) AS wanted (mailbox);

-- name: mailbox_pending
-- The mailboxes among these with something to claim or to maintain. Differs: unnest.
SELECT wanted.mailbox
FROM unnest($1::bigint[]) AS wanted (mailbox)
WHERE EXISTS (SELECT 1 FROM messages WHERE messages.mailbox = wanted.mailbox AND status = 'queued')
    OR EXISTS (
        SELECT 1 FROM messages WHERE messages.mailbox = wanted.mailbox AND status = 'scheduled' AND due <= $2
    )
    OR EXISTS (
        SELECT 1 FROM messages WHERE messages.mailbox = wanted.mailbox AND status = 'leased' AND lease_until <= $3
    );
