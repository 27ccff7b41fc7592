-- name: schema_objects
-- All tables, indexes and triggers, with the statements that created them. Differs: the catalog.
SELECT type, name, sql FROM sqlite_schema WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite\_%' ESCAPE '\' ORDER BY name;

-- name: bus_size
-- The bytes in use, without free pages. Differs: only SQLite counts pages.
SELECT (page_count - freelist_count) * page_size FROM pragma_page_count, pragma_freelist_count, pragma_page_size;
