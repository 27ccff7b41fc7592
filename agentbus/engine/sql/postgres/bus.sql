-- name: counter_take
-- Move a counter on by so many, and give its new value. Differs: message ids come from a sequence.
SELECT counter_take($1, $2);

-- name: counter_raise
-- A counter is at least this. Differs: the only one that is ever raised is the sequence of message ids.
SELECT setval('message_ids', CAST($2 AS bigint)) FROM message_ids
WHERE CAST($1 AS text) = 'message' AND (last_value < $2 OR NOT is_called);
