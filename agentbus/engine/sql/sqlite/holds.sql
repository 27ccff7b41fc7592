-- name: thread_count
-- Count messages of threads: for each thread of $1 what came before it ($2), the number of messages ($3) and their
-- senders ($4), at $5. Returns the threads as they are now. Differs: lists are JSON texts.
INSERT INTO threads (thread, opened, messages, agents, since, updated)
SELECT names.value, opened.value, counts.value, agents.value, $5, $5
FROM json_each($1) AS names
JOIN json_each($2) AS opened ON opened.key = names.key
JOIN json_each($3) AS counts ON counts.key = names.key
JOIN json_each($4) AS agents ON agents.key = names.key
WHERE true
ON CONFLICT (thread) DO UPDATE SET
    messages = threads.messages + excluded.messages,
    updated = excluded.updated,
    agents = CASE WHEN instr(threads.agents || ',', excluded.agents || ',') > 0 OR length(threads.agents) > 2000
                  THEN threads.agents ELSE threads.agents || excluded.agents END
RETURNING thread, opened + messages, held, since, agents;
