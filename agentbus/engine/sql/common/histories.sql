-- name: history_find
-- One history.
SELECT kind, name, version, items, size, created, updated, meta FROM histories WHERE kind = $1 AND name = $2;

-- name: history_of_kind
-- Histories of a kind with names from $2 on and below $3 and $4 in their metadata, ordered by name.
SELECT kind, name, version, items, size, created, updated, meta FROM histories
WHERE kind = $1 AND name >= $2 AND name < $3 AND /* sqlite: instr *//* postgres: strpos */(meta, $4) > 0
ORDER BY name
LIMIT $5;

-- name: history_list
-- Histories of all kinds after ($1, $2) with names from $3 on and below $4 and $5 in their metadata, ordered.
SELECT kind, name, version, items, size, created, updated, meta FROM histories
WHERE (kind, name) > ($1, $2) AND name >= $3 AND name < $4
    AND /* sqlite: instr *//* postgres: strpos */(meta, $5) > 0
ORDER BY kind, name
LIMIT $6;

-- name: history_kinds
-- The kinds of histories, ordered: how many histories and items, the bytes of the bodies, the last write.
SELECT kind, count(*), CAST(sum(items) AS bigint), CAST(sum(size) AS bigint), max(updated) FROM histories
GROUP BY kind
ORDER BY kind
LIMIT $1;

-- name: history_get
-- One item; without its body if that has more than $5 bytes.
SELECT
    i.id, h.name, i.part, i.key, i.number, i.encoding, i.checksum, i.size, i.created, i.meta,
    CASE WHEN i.size <= $5 THEN i.body END
FROM histories AS h JOIN history_items AS i ON i.history = h.id
WHERE h.kind = $1 AND h.name = $2 AND i.part = $3 AND i.key = $4;

-- name: history_item
-- One item with its body, by its row.
SELECT i.id, h.name, i.part, i.key, i.number, i.encoding, i.checksum, i.size, i.created, i.meta, i.body
FROM history_items AS i JOIN histories AS h ON h.id = i.history
WHERE i.id = $1;

-- name: history_items_oldest
-- Items of a history after a number, in order: of the part $4 (NULL: of all), with keys from $5 on and below $6, with $7
-- in their metadata; bodies of at most $8 bytes.
SELECT
    i.id, h.name, i.part, i.key, i.number, i.encoding, i.checksum, i.size, i.created, i.meta,
    CASE WHEN i.size <= $8 THEN i.body END
FROM histories AS h
    CROSS JOIN history_items AS i /* sqlite: INDEXED BY history_items_by_number */
WHERE h.kind = $1 AND h.name = $2 AND i.history = h.id AND i.number > $3
    AND (CAST($4 AS text) IS NULL OR i.part = $4) AND i.key >= $5 AND i.key < $6
    AND /* sqlite: instr *//* postgres: strpos */(i.meta, $7) > 0
ORDER BY i.number
LIMIT $9;

-- name: history_items_newest
-- Items of a history after the number $3 and before $4, the last first, filtered like history_items_oldest.
SELECT
    i.id, h.name, i.part, i.key, i.number, i.encoding, i.checksum, i.size, i.created, i.meta,
    CASE WHEN i.size <= $9 THEN i.body END
FROM histories AS h
    CROSS JOIN history_items AS i /* sqlite: INDEXED BY history_items_by_number */
WHERE h.kind = $1 AND h.name = $2 AND i.history = h.id AND i.number > $3 AND i.number < $4
    AND (CAST($5 AS text) IS NULL OR i.part = $5) AND i.key >= $6 AND i.key < $7
    AND /* sqlite: instr *//* postgres: strpos */(i.meta, $8) > 0
ORDER BY i.number DESC
LIMIT $10;

-- name: history_items_first
-- Items of a part of a history with keys from $4 on and below $5, ordered by key: with numbers after $6 and $7 in their
-- metadata; bodies of at most $8 bytes.
SELECT
    i.id, h.name, i.part, i.key, i.number, i.encoding, i.checksum, i.size, i.created, i.meta,
    CASE WHEN i.size <= $8 THEN i.body END
FROM histories AS h CROSS JOIN history_items AS i
WHERE h.kind = $1 AND h.name = $2 AND i.history = h.id AND i.part = $3 AND i.key >= $4 AND i.key < $5
    AND i.number > $6 AND /* sqlite: instr *//* postgres: strpos */(i.meta, $7) > 0
ORDER BY i.key
LIMIT $9;

-- name: history_items_last
-- The same items, the greatest key first.
SELECT
    i.id, h.name, i.part, i.key, i.number, i.encoding, i.checksum, i.size, i.created, i.meta,
    CASE WHEN i.size <= $8 THEN i.body END
FROM histories AS h CROSS JOIN history_items AS i
WHERE h.kind = $1 AND h.name = $2 AND i.history = h.id AND i.part = $3 AND i.key >= $4 AND i.key < $5
    AND i.number > $6 AND /* sqlite: instr *//* postgres: strpos */(i.meta, $7) > 0
ORDER BY i.key DESC
LIMIT $9;

-- name: history_items_all_oldest
-- Items of all histories of a kind after the item number $3 of history $2, in the order of the names of the histories and
-- then of numbers: after the number $4, of the part $5 (NULL: of all), with keys from $6 on and below $7, with $8 in their
-- metadata; bodies of at most $9 bytes.
SELECT
    i.id, h.name, i.part, i.key, i.number, i.encoding, i.checksum, i.size, i.created, i.meta,
    CASE WHEN i.size <= $9 THEN i.body END
FROM histories AS h
    CROSS JOIN history_items AS i /* sqlite: INDEXED BY history_items_by_number */
WHERE h.kind = $1 AND h.name >= $2 AND i.history = h.id AND (h.name > $2 OR i.number > $3)
    AND i.number > $4 AND (CAST($5 AS text) IS NULL OR i.part = $5) AND i.key >= $6 AND i.key < $7
    AND /* sqlite: instr *//* postgres: strpos */(i.meta, $8) > 0
ORDER BY h.name, i.number
LIMIT $10;

-- name: history_items_all_newest
-- The same items in the opposite order, before the item number $3 of history $2.
SELECT
    i.id, h.name, i.part, i.key, i.number, i.encoding, i.checksum, i.size, i.created, i.meta,
    CASE WHEN i.size <= $9 THEN i.body END
FROM histories AS h
    CROSS JOIN history_items AS i /* sqlite: INDEXED BY history_items_by_number */
WHERE h.kind = $1 AND h.name <= $2 AND i.history = h.id AND (h.name < $2 OR i.number < $3)
    AND i.number > $4 AND (CAST($5 AS text) IS NULL OR i.part = $5) AND i.key >= $6 AND i.key < $7
    AND /* sqlite: instr *//* postgres: strpos */(i.meta, $8) > 0
ORDER BY h.name DESC, i.number DESC
LIMIT $10;

-- name: history_items_all_first
-- Items of a kind after (key, history, part) in this order: of the history $5 and the part $6 (NULL: of all), with keys
-- from $7 on and below $8, with numbers after $9 and $10 in their metadata; bodies of at most $11 bytes.
SELECT
    i.id, h.name, i.part, i.key, i.number, i.encoding, i.checksum, i.size, i.created, i.meta,
    CASE WHEN i.size <= $11 THEN i.body END
FROM histories AS h CROSS JOIN history_items AS i
WHERE h.kind = $1 AND (CAST($5 AS text) IS NULL OR h.name = $5) AND i.history = h.id
    AND (i.key, h.name, i.part) > ($2, $3, $4)
    AND (CAST($6 AS text) IS NULL OR i.part = $6) AND i.key >= $7 AND i.key < $8 AND i.number > $9
    AND /* sqlite: instr *//* postgres: strpos */(i.meta, $10) > 0
ORDER BY i.key, h.name, i.part
LIMIT $12;

-- name: history_items_all_last
-- The same items in the opposite order, before (key, history, part).
SELECT
    i.id, h.name, i.part, i.key, i.number, i.encoding, i.checksum, i.size, i.created, i.meta,
    CASE WHEN i.size <= $11 THEN i.body END
FROM histories AS h CROSS JOIN history_items AS i
WHERE h.kind = $1 AND (CAST($5 AS text) IS NULL OR h.name = $5) AND i.history = h.id
    AND (i.key, h.name, i.part) < ($2, $3, $4)
    AND (CAST($6 AS text) IS NULL OR i.part = $6) AND i.key >= $7 AND i.key < $8 AND i.number > $9
    AND /* sqlite: instr *//* postgres: strpos */(i.meta, $10) > 0
ORDER BY i.key DESC, h.name DESC, i.part DESC
LIMIT $12;

-- name: history_touch
-- Change the counts of a history.
UPDATE histories SET version = $1, last = $2, items = $3, size = $4, updated = $5 WHERE id = $6;

-- name: history_change
-- Change the counts and the metadata of a history.
UPDATE histories SET version = $1, last = $2, items = $3, size = $4, updated = $5, meta = $6 WHERE id = $7;

-- name: history_put
-- Insert an item.
INSERT INTO history_items (history, part, key, number, encoding, checksum, size, created, meta, body)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10);

-- name: history_replace
-- Replace an item. Not an upsert, which checks every format twice.
UPDATE history_items SET
    number = $1, encoding = $2, checksum = $3, size = $4, created = $5, meta = $6, body = $7
WHERE id = $8;

-- name: history_drop
-- Delete an item in a batch.
DELETE FROM history_items WHERE id = $1;

-- name: history_clear
-- Delete the items of a history.
DELETE FROM history_items WHERE history = $1;

-- name: history_part_size
-- The number of items of a part, and the bytes of their bodies.
SELECT count(*), CAST(coalesce(sum(size), 0) AS bigint) FROM history_items WHERE history = $1 AND part = $2;

-- name: history_clear_part
-- Delete the items of a part of a history.
DELETE FROM history_items WHERE history = $1 AND part = $2;

-- name: history_floor
-- The greatest version of the histories that were deleted.
SELECT value FROM counters WHERE name = 'history';

-- name: history_raise_floor
-- Record the version of a history that is being deleted.
UPDATE counters SET value = $1 WHERE name = 'history' AND value < $1;

-- name: history_delete
-- Delete a history without items.
DELETE FROM histories WHERE id = $1;

-- name: history_copy
-- Copy the items of the history $2 to the history $1.
INSERT INTO history_items (history, part, key, number, encoding, checksum, size, created, meta, body)
SELECT CAST($1 AS bigint), part, key, number, encoding, checksum, size, created, meta, body
FROM history_items
WHERE history = $2;

-- name: history_after
-- Histories after one row and up to another, ordered by row.
SELECT id, 500 + length(meta) FROM histories WHERE id > $1 AND id <= $2 ORDER BY id LIMIT $3;

-- name: history_item_after
-- Items of histories after one row and up to another, ordered by row.
SELECT id, 500 + size FROM history_items WHERE id > $1 AND id <= $2 ORDER BY id LIMIT $3;

-- name: history_item_sizes
-- The items of a history after one row, ordered by row.
SELECT id, 500 + size FROM history_items WHERE history = $1 AND id > $2 ORDER BY id LIMIT $3;

-- name: history_archive
-- Histories for an archive, ordered by row.
SELECT kind, name, version, last, created, updated, meta
FROM /* rows: histories.id $1 */
/* postgres: ORDER BY id */;

-- name: history_item_archive
-- Items of histories for an archive, ordered by row.
SELECT
    histories.kind, histories.name, histories.version, histories.created, history_items.part, history_items.key,
    history_items.number, history_items.encoding, history_items.checksum, history_items.created, history_items.meta,
    history_items.body, histories.updated
FROM histories, /* rows: history_items.id $1 */ AND histories.id = history_items.history
/* postgres: ORDER BY history_items.id */;

-- name: history_alike
-- The items of a history that have this part and key, or this number.
SELECT part, key, number, checksum FROM history_items
WHERE history = $1 AND ((part = $2 AND key = $3) OR number = $4);

-- name: history_expendable
-- Histories after one row that were last written before a time, ordered by row, with an estimate of their size.
SELECT id, version, 500 + size + 300 * items FROM histories WHERE id > $1 AND updated <= $2 ORDER BY id LIMIT $3;

-- name: history_version
-- A history, if it has this version.
SELECT kind, name, items, size FROM histories WHERE id = $1 AND version = $2;

-- name: history_payloads
-- Stored bodies before the cursor, newest first, with their checksums.
SELECT i.id, i.checksum, i.body, i.key, h.name, h.kind
FROM history_items AS i LEFT JOIN histories AS h ON h.id = i.history
WHERE i.id < $1
ORDER BY i.id DESC
LIMIT $2;
