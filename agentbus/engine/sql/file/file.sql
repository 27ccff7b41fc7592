-- name: file_case
-- A row that a CHECK constraint refuses; one of which it cannot say anything is not refused. Its text may end in a comment.
WHEN NOT ({check}
) THEN 1;

-- name: file_refused
-- Whether a table has a row that one of its CHECK constraints refuses.
SELECT EXISTS (SELECT 1 FROM {table} WHERE CASE {cases} ELSE 0 END);
