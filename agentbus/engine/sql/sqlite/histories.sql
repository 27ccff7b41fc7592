-- name: history_by_name
-- Histories without their items; $1 has a list of names for each kind. Differs: json_each.
SELECT h.kind, h.name, h.id, h.version, h.last, h.items, h.size, h.created, h.updated, h.meta
FROM json_each($1) AS kinds CROSS JOIN json_each(kinds.value) AS wanted
CROSS JOIN histories AS h ON h.kind = kinds.key AND h.name = wanted.value;

-- name: history_present
-- Items without their bodies; $1 has lists of history, part and key. Differs: json_extract.
SELECT i.history, i.part, i.key, i.id, i.number, i.size, i.created
FROM json_each($1) AS wanted CROSS JOIN history_items AS i
    ON i.history = json_extract(wanted.value, '$[0]')
        AND i.part = json_extract(wanted.value, '$[1]') AND i.key = json_extract(wanted.value, '$[2]');

-- name: history_create
-- Insert histories; $1 has a list of values for each. Differs: json_extract.
INSERT INTO histories (kind, name, version, last, items, size, created, updated, meta)
SELECT
    json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]'),
    json_extract(value, '$[3]'), json_extract(value, '$[4]'), json_extract(value, '$[5]'),
    json_extract(value, '$[6]'), json_extract(value, '$[7]'), json_extract(value, '$[8]')
FROM json_each($1)
RETURNING kind, name, id;
