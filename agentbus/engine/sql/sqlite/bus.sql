-- name: schema_objects
-- Every table, index and trigger that somebody made, and how. Differs: each engine has a catalogue of its own.
SELECT type, name, sql FROM sqlite_schema WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite\_%' ESCAPE '\' ORDER BY name;

-- name: bus_size
-- Bytes that are in use; pages that were freed will be used again. Differs: only SQLite counts pages.
SELECT (page_count - freelist_count) * page_size FROM pragma_page_count, pragma_freelist_count, pragma_page_size;
