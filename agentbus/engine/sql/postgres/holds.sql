-- name: thread_count
-- Count messages of threads: for each thread of $1 what came before it ($2), the number of messages ($3) and their
-- senders ($4), at $5. Returns the threads as they are now. Differs: lists are arrays, and the rows stay locked, in
-- order of their names, so that concurrent transactions count exactly.
INSERT INTO threads (thread, opened, messages, agents, since, updated)
SELECT given.thread, given.opened, given.messages, given.agents, CAST($5 AS bigint), CAST($5 AS bigint)
FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::text[]) AS given (thread, opened, messages, agents)
ORDER BY given.thread COLLATE "C"
ON CONFLICT (thread) DO UPDATE SET
    messages = threads.messages + excluded.messages,
    updated = excluded.updated,
    agents = CASE WHEN strpos(threads.agents || ',', excluded.agents || ',') > 0 OR length(threads.agents) > 2000
                  THEN threads.agents ELSE threads.agents || excluded.agents END
RETURNING thread, opened + messages, held, since, agents;
