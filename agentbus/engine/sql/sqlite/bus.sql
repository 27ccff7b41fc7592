-- name: schema_objects
-- Every table, index and trigger that somebody made, and how. Differs: each engine has a catalogue of its own.
SELECT type, name, sql FROM sqlite_schema WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite\_%' ESCAPE '\' ORDER BY name;
