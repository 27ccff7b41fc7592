-- name: history_by_name
-- Histories without their items; $1 has a list of names for each kind. Differs: locks their names until the commit,
-- also of those that do not exist yet, in a fixed order. There are 1024 locks, so that a large batch does not use up the
-- lock table.
SELECT pg_advisory_xact_lock(hashtext('agentbus histories ' || current_schema()), lock)
FROM (
    SELECT DISTINCT hashtext(kinds.key || '/' || wanted.name) & 1023 AS lock
    FROM json_each(CAST($1 AS json)) AS kinds
    CROSS JOIN LATERAL json_array_elements_text(kinds.value) AS wanted (name)
    ORDER BY lock
) AS locks;
SELECT h.kind, h.name, h.id, h.version, h.last, h.items, h.size, h.created, h.updated, h.meta
FROM json_each(CAST($1 AS json)) AS kinds
CROSS JOIN LATERAL json_array_elements_text(kinds.value) AS wanted (name)
JOIN histories AS h ON h.kind = kinds.key AND h.name = wanted.name;

-- name: history_present
-- Items without their bodies; $1 has lists of history, part and key. Differs: JSON operators.
SELECT i.history, i.part, i.key, i.id, i.number, i.size, i.created
FROM json_array_elements(CAST($1 AS json)) AS wanted
JOIN history_items AS i
    ON i.history = (wanted->>0)::bigint AND i.part = wanted->>1 AND i.key = wanted->>2;

-- name: history_create
-- Insert histories; $1 has a list of values for each. Differs: JSON operators.
INSERT INTO histories (kind, name, version, last, items, size, created, updated, meta)
SELECT
    value->>0, value->>1, (value->>2)::bigint, (value->>3)::bigint, (value->>4)::bigint, (value->>5)::bigint,
    (value->>6)::bigint, (value->>7)::bigint, value->>8
FROM json_array_elements(CAST($1 AS json)) AS value
RETURNING kind, name, id;
