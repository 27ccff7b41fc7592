-- Version 15 counts the changes of the directory on SQLite. PostgreSQL has counted them since version 3; the file exists so
-- that a number is the same version in both dialects. asyncpg does not execute a text without a statement.
SELECT;
